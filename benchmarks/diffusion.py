"""Diffusion beside diffusers: a training step, and 64 images at equal quality.

Training: U-Nets of three levels and nearly equal FLOPs (both are counted and printed; the ratio is
of times per FLOP) on 28x28 images, batch 64: forward, backward and fused Adam on the mean square
of the noise; beside them run the convolutions of our network alone, forward and backward: the time
of a peer over theirs is the limit of any ratio with this network. Sampling: one model fitted on
digits; the peer's DDPM and DDIM schedulers take 50 steps with its predicted noise, ours takes
DPM-Solver++ of few steps on the same weights. Quality is the energy distance of 2000 samples to
held-out digits, beside that of training digits. Sides alternate in one process on one thread;
medians and spreads of CPU time.

    python -m benchmarks diffusion
    build/bench/diffusion/bin/python -m benchmarks.diffusion [--seconds 60] [--steps 8]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.data import loading as data
from monge.evaluate.energy_distance import FeatureMap, energy
from monge.models.diffusion._denoisers import UNetDenoiser
from monge.models.diffusion._ode_samplers import DPM
from monge.models.diffusion._samplers import Sampler
from monge.models.diffusion.ddpm import DDPM
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

from .clock import alternate, measured, ratios, record, show
from .results import keep
from .sides import installed, stepper, weights

SIDE, ROWS, DRAWS, PEER_STEPS, TIMES = 28, 64, 2000, 50, 1000
CONVOLUTIONS = "convolutions alone"


@dataclass(frozen=True)
class Side:
    """A network that predicts the noise in z (B, 1, 28, 28) at times (B,)."""

    net: nn.Module
    noise: Callable[[Tensor, Tensor], Tensor]

    def flops(self) -> int:
        with FlopCounterMode(display=False) as count:
            self.noise(torch.randn(1, 1, SIDE, SIDE), torch.full((1,), 0.5))
        return count.get_total_flops()

    def trainer(self, bf16: bool) -> Callable[[], None]:
        z, t = torch.randn(ROWS, 1, SIDE, SIDE), torch.rand(ROWS)

        def loss() -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                return F.mse_loss(self.noise(z, t).float(), z)

        return stepper(self.net, loss)


def convolutions(side: Side) -> Callable[[], None]:
    """What every implementation of a step computes: the convolutions of the network."""
    found: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        read = inputs[0].detach().requires_grad_(bool(found))  # nothing below the first learns
        found.append((layer, read, torch.randn_like(out)))

    layers = [layer for layer in side.net.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    side.noise(torch.randn(ROWS, 1, SIDE, SIDE), torch.rand(ROWS))
    for hook in hooks:
        hook.remove()

    def work() -> None:
        for layer, read, slope in found:
            moved = [*layer.parameters(), *([read] if read.requires_grad else [])]
            torch.autograd.grad(layer(read), moved, slope)

    return work


def ours() -> Side:
    space = Space(kind="real", shape=(1, SIDE, SIDE))
    net = UNetDenoiser.Config(width=64, multipliers=(1, 2, 2), blocks=1, attention=1)
    model = DDPM.Config(net=net, target="noise").build(space)
    return Side(model.net, lambda z, t: model.predict(z.flatten(1), t).value.reshape(z.shape))


def theirs() -> Side:
    from diffusers import UNet2DModel

    net = UNet2DModel(
        sample_size=SIDE,
        in_channels=1,
        out_channels=1,
        layers_per_block=2,
        block_out_channels=(32, 64, 128),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )
    return Side(net, lambda z, t: net(z, (t * TIMES).long()).sample)


def train(sides: dict[str, Side], repeats: int, bf16: bool) -> None:
    flops = {name: side.flops() for name, side in sides.items()}
    works = {name: side.trainer(bf16) for name, side in sides.items()}
    if not bf16:
        works[CONVOLUTIONS] = convolutions(sides["monge"])
    times = alternate(works, repeats)
    print(f"train step, batch {ROWS}, {'bf16' if bf16 else 'float32'}")
    show(
        times,
        {
            name: f"{flops[name] / 1e6:.0f} MFLOP per image forward, {weights(side.net)} "
            "weights; ratio of the times per FLOP "
            f"{ratios(times)[name] * flops['monge'] / flops[name]:.2f}"
            for name, side in sides.items()
        },
        0,
        name=f"step {'bf16' if bf16 else ''}",
        shared=CONVOLUTIONS,
    )
    for name in list(sides)[1:]:
        per_flop = ratios(times)[name] * flops["monge"] / flops[name]
        record(f"step {'bf16' if bf16 else ''} per flop {name}", per_flop)


def fitted(seconds: float) -> tuple[DDPM, Tensor, Tensor]:
    """A model of digits, and held-out and training images."""
    view = data.open("digits").view("image")
    train, test = view.split("train"), view.split("test")
    defaults = DDPM.defaults(view.space)
    torch.manual_seed(0)
    model = defaults.config.build(view.space)
    trainer = Trainer(model, train, defaults.train, seed=0)
    for _ in fit(trainer, Budget(seconds=seconds)):
        pass
    trainer.ema.put(trainer.ema.weights)
    whole = [rows.batch(torch.arange(len(rows))).x for rows in (test, train)]
    print(f"model of digits after {trainer.step} steps")
    return model.eval(), whole[0], whole[1]


@torch.no_grad()
def scheduled(model: DDPM, kind: Any, n: int, seed: int = 0) -> Tensor:
    """Digits by a scheduler of diffusers from the noise that our model predicts."""
    grid = model.schedule.grid(TIMES)[1:]
    shares = model.schedule.alpha_bar(grid)
    before = torch.cat([torch.ones(1), shares[:-1]])
    scheduler = kind(
        trained_betas=(1 - shares / before).numpy(),
        clip_sample=True,
        clip_sample_range=3.0,
        prediction_type="epsilon",
    )
    scheduler.set_timesteps(PEER_STEPS)
    generator = make_generator(seed)
    z = torch.randn(n, model.space.dims, generator=generator)
    for place in scheduler.timesteps:
        noise = model.predict(z, grid[place].expand(n)).noise
        z = scheduler.step(noise, place, z, generator=generator).prev_sample
    return model.units.to_data(z)


def sample(model: DDPM, test: Tensor, known: Tensor, steps: int, repeats: int) -> None:
    from diffusers import DDIMScheduler, DDPMScheduler

    sampler: Sampler.Config = DPM.Config(steps=steps)
    works: dict[str, Callable[[int], Tensor]] = {
        f"monge, dpm, {steps} steps": lambda n: model.sample(
            n, options=model.SamplingConfig(sampler=sampler), generator=make_generator(0)
        ),
        f"diffusers, DDIM, {PEER_STEPS} steps": lambda n: scheduled(model, DDIMScheduler, n),
        f"diffusers, DDPM, {PEER_STEPS} steps": lambda n: scheduled(model, DDPMScheduler, n),
    }
    times = alternate({name: partial(work, ROWS) for name, work in works.items()}, repeats)
    eye = FeatureMap(model.space)
    real = eye(Batch(test))
    same = energy(eye(Batch(known)), real)
    print(
        f"{ROWS} images; energy distance of {DRAWS} samples to held-out digits, that of "
        f"training digits is {same.value:.4f}"
    )
    away = {name: energy(eye(Batch(work(DRAWS))), real) for name, work in works.items()}
    show(
        times,
        {name: f"distance {apart.value:.4f} ± {apart.stderr:.4f}" for name, apart in away.items()},
        0,
        name="sample",
    )
    for name, apart in away.items():
        record(f"distance {name}", apart.value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=60, help="training time of the model of digits"
    )
    parser.add_argument("--steps", type=int, default=8, help="steps of our sampler")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each side")
    parser.add_argument("--bf16", action="store_true", help="also train in bf16, where it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not installed("diffusers"):
        return train({"monge": ours()}, options.repeats, False)
    sides = {"monge": ours(), "diffusers": theirs()}
    for bf16 in (False, True)[: 1 + options.bf16]:
        train(sides, options.repeats, bf16)
    sample(*fitted(options.seconds), options.steps, options.repeats)
    keep("diffusion", measured, peers=["diffusers"])


if __name__ == "__main__":
    main()
