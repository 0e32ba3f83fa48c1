"""Six comparisons that papers and books make in prose, each run in a minute with one figure.

1 dropout and bagging (Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 7.11 and 7.12)
2 VAE and GAN (Goodfellow 2016, NIPS 2016 Tutorial: Generative Adversarial Networks)
3 PixelRNN and PixelCNN (van den Oord et al. 2016, Pixel Recurrent Neural Networks)
4 autoregressive and coupling flows (Papamakarios et al. 2021, Normalizing Flows for Probabilistic
  Modeling and Inference, sec. 3.1)
5 RNN and LSTM (Hochreiter & Schmidhuber 1997, Long Short-Term Memory)
6 AE and VAE (Kingma & Welling 2014, Auto-Encoding Variational Bayes)

    python -m examples.claims 3 [-o claim-3.png] [--steps 100]

Each prints its numbers and, of every sentence it tests, whether it held.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import monge
from monge.core.rng import make_generator
from monge.evaluate.energy_distance import energy
from monge.plot.image_grid import as_bytes, grid
from monge.prob.bijections.autoregressive import AutoregressiveBijection
from monge.run.run import start

from .memory import NETS, fading, train

DRAWN = 500
"""Samples that are measured."""


@dataclass(frozen=True)
class Verdict:
    """The numbers of each side, and of each sentence whether it held."""

    sides: dict[str, dict[str, float]]
    held: dict[str, bool]


@dataclass(frozen=True)
class Claim:
    """A comparison: its title, its number of training steps, and its test."""

    title: str
    steps: int
    test: Callable[[int, Path, Figure], Verdict]


def fitted(
    where: Path,
    title: str,
    model: str,
    data: str,
    *settings: str,
    steps: int,
    target: str | None = None,
    ensemble: int = 0,
    bag: bool = False,
) -> monge.Run:
    return monge.fit(
        model,
        data,
        *settings,
        budget=f"{steps}steps",
        target=target,
        ensemble=ensemble,
        bag=bag,
        out=where / title,
    )


def bars(axes: Axes, sides: dict[str, dict[str, float]], name: str) -> None:
    axes.bar(list(sides), [found[name] for found in sides.values()], color="0.4")
    axes.set_title(name)


def dropout_and_bagging(steps: int, where: Path, figure: Figure) -> Verdict:
    """Members of a bag are independent, each trained to its end; those of dropout share weights.
    Both should predict better than one plain network, which overfits half of the digits; only the
    bag pays for it with its size."""
    plain, count = "net.dropout=0", 10
    ways = {
        "one network": ((plain,), 0),
        "dropout": (("net.dropout=0.5",), 0),
        "bagging": ((plain,), count),
    }
    sides: dict[str, dict[str, float]] = {}
    first = None
    for title, (settings, members) in ways.items():
        run = fitted(
            where,
            title,
            "predict.mlp",
            "digits",
            "net.width=256",
            "data.test=0.5",
            *settings,
            steps=steps,
            target="label",
            ensemble=members,
            bag=members > 0,
        )
        rows = run.log_likelihood().value
        first = rows if first is None else first
        size = sum(p.numel() for p in run.model.parameters())
        right = (run.predict()["label"].astype(str).to_numpy() == truth(run)).mean()
        sides[title] = {
            "nats a label": -rows.mean(),
            "accuracy": float(right),
            "parameters": float(size),
            "gain": (rows - first).mean(),
            "error of the gain": (rows - first).std() / len(rows) ** 0.5,
        }
    for axes, name in zip(
        figure.subplots(1, 3), ("nats a label", "accuracy", "parameters"), strict=True
    ):
        bars(axes, sides, name)
    one, drop, bag = sides.values()
    return Verdict(
        sides,
        {
            "dropout predicts better than one network": drop["nats a label"] < one["nats a label"],
            "bagging predicts better than one network": bag["nats a label"] < one["nats a label"],
            "a bag is as large as its members, dropout as one": bag["parameters"]
            == count * drop["parameters"],
        },
    )


def truth(run: monge.Run) -> np.ndarray:
    """The names of the test rows' labels."""
    return run.view.decode(run.split().whole().x).astype(str)


def vae_and_gan(steps: int, where: Path, figure: Figure) -> Verdict:
    """What a VAE's decoder expects is blurred, samples of a GAN are as sharp as the data; the VAE
    has a bound on the likelihood, the GAN samples alone."""
    vae = fitted(where, "vae", "vae", "digits", "latent=4", steps=steps)
    gan = fitted(where, "gan", "dcgan", "digits", steps=steps)
    z = torch.randn(DRAWN, 4, generator=make_generator(0))
    real = vae.split().whole().x.float().numpy()
    shown = {
        "data": real,
        "VAE": np.asarray(vae.decode(z), np.float32).reshape(-1, 1, 8, 8),
        "GAN": gan.sample_tensor(DRAWN).float().numpy(),
    }
    sides = {name: {"sharpness": sharpness(x) / sharpness(real)} for name, x in shown.items()}
    *sheets, last = figure.subplots(1, 4)
    for axes, (name, x) in zip(sheets, shown.items(), strict=True):
        axes.imshow(grid(as_bytes(x[:36], vae.space), columns=6, zoom=4), cmap="gray")
        axes.set_title(name)
        axes.axis("off")
    bars(last, sides, "sharpness")
    far = {name: abs(found["sharpness"] - 1) for name, found in sides.items()}
    return Verdict(
        sides,
        {
            "pictures of the VAE are blurred": sides["VAE"]["sharpness"] < 0.9,
            "those of the GAN are nearer to the sharpness of the data": far["GAN"] < far["VAE"],
        },
    )


def sharpness(pictures: np.ndarray) -> float:
    """The mean square of second differences, (n, 1, H, W)."""
    x = pictures.reshape(-1, 8, 8)
    bend = (
        4 * x[:, 1:-1, 1:-1] - x[:, 2:, 1:-1] - x[:, :-2, 1:-1] - x[:, 1:-1, 2:] - x[:, 1:-1, :-2]
    )
    return float((bend**2).mean())


def pixelrnn_and_pixelcnn(steps: int, where: Path, figure: Figure) -> Verdict:
    """Convolutions see all pixels at once in training, an RNN one after the other; both draw one
    pixel after the other."""
    sides, curves = {}, {}
    for name in ("pixelrnn", "pixelcnn"):
        run = start(
            name,
            "digits",
            "train.batch_size=32",
            "train.eval_every=20",
            out=where / name,
            budget=f"{steps}steps",
        )
        for _ in run.train(f"{steps}steps"):
            pass
        curves[name] = run.history.dropna(subset="held_out")
        sides[name] = {
            "ms a step": 1000 * run.estimate_cost(timed=True).seconds_per_step,
            "nats": run.log_likelihood().mean.value,
        }
    left, right = figure.subplots(1, 2)
    bars(left, sides, "ms a step")
    for name, log in curves.items():
        right.plot(log["seconds"], log["held_out"], ".-", label=name)
    right.set(xlabel="seconds of training", ylabel="held-out nats")
    right.legend(frameon=False)
    rnn, cnn = sides.values()
    return Verdict(sides, {"a step of PixelCNN is faster": cnn["ms a step"] < rnn["ms a step"]})


def autoregression_and_flow(steps: int, where: Path, figure: Figure) -> Verdict:
    """Both have exact densities by a triangular Jacobian. The autoregressive flow has one unknown
    after the other to invert, 64 in a digit, coupling layers halves at a time. Whoever computes
    the whole network again for every unknown pays most; a sampler that computes each hidden unit
    once pays for the steps alone."""
    same = ("layers=4", "kind=affine", "net.width=128", "components=0")
    sides = {}
    for name, settings in {"maf": same, "coupling": (*same, "mix=permute")}.items():
        run = start(name, "digits", *settings, out=where / name, budget=f"{steps}steps")
        started = time.process_time()
        for _ in run.train(f"{steps}steps"):
            pass
        sides[name] = {
            "ms a step": 1000 * (time.process_time() - started) / steps,
            "bits a pixel": run.log_likelihood().bits_per_dim,
            "samples a second": pace(run),
        }
        if name == "maf":
            step = AutoregressiveBijection.step
            whole = partialmethod(step, cached=False)
            with patch.object(AutoregressiveBijection, "step", whole):
                sides["maf, recomputed"] = {**sides[name], "samples a second": pace(run, 200)}
    *rest, last = figure.subplots(1, 3)
    for axes, name in zip(rest, ("bits a pixel", "ms a step"), strict=True):
        bars(axes, sides, name)
    bars(last, sides, "samples a second")
    maf, again, coupling = sides.values()
    rate = "samples a second"
    return Verdict(
        sides,
        {
            "the determinant is no burden: steps cost the same within a factor of 2": 0.5
            < coupling["ms a step"] / maf["ms a step"]
            < 2,
            "coupling layers draw faster": coupling[rate] > maf[rate],
            "each hidden unit once is faster than the network for every pixel": maf[rate]
            > 5 * again[rate],
            "both come within 0.3 bits a pixel of each other": abs(
                maf["bits a pixel"] - coupling["bits a pixel"]
            )
            < 0.3,
        },
    )


def pace(run: monge.Run, count: int = 20 * DRAWN) -> float:
    """Samples a second of the processor, many at once."""
    run.sample_tensor(count // 10)
    started = time.process_time()
    run.sample_tensor(count)
    return count / (time.process_time() - started)


def rnn_and_lstm(steps: int, where: Path, figure: Figure) -> Verdict:
    """The gradient of a plain RNN fades with the lag; the cell of an LSTM carries it."""
    gap, sides, courses = 20, {}, {}
    for name in ("RNN", "LSTM"):
        courses[name] = fading(NETS[name])
        sides[name] = {
            "gradient at lag 40": courses[name][40],
            "nats a copied symbol": train(NETS[name], "copying", gap, steps),
        }
    left, right = figure.subplots(1, 2)
    for name, course in courses.items():
        left.semilogy(course, label=name)
    left.set(xlabel="lag", ylabel="gradient")
    left.legend(frameon=False)
    bars(right, sides, "nats a copied symbol")
    rnn, lstm = sides.values()
    return Verdict(
        sides,
        {
            "the gradient of the RNN fades sooner": rnn["gradient at lag 40"]
            < lstm["gradient at lag 40"],
            f"the LSTM copies over a gap of {gap} better": lstm["nats a copied symbol"]
            < rnn["nats a copied symbol"],
        },
    )


def ae_and_vae(steps: int, where: Path, figure: Figure) -> Verdict:
    """An autoencoder restores better, but nothing says where its codes are: what it decodes from
    N(0, I) is no digit. The VAE's codes are held there."""
    sides, shown = {}, {}
    for name in ("ae", "vae"):
        run = fitted(where, name, name, "digits", "latent=8", steps=steps)
        rows = run.split().whole()
        real = rows.x.float().flatten(1)
        z = torch.randn(DRAWN, 8, generator=make_generator(0))
        made = torch.as_tensor(np.asarray(run.decode(z), np.float32)).flatten(1)
        back = torch.as_tensor(np.asarray(run.decode(run.encode()), np.float32)).flatten(1)
        sides[name] = {
            "restoring error": float((back - real).square().mean()),
            "distance of decoded noise": energy(made, real).value,
        }
        shown[name] = made[:36].reshape(-1, 1, 8, 8).numpy()
        space = run.space
    left, middle, *sheets = figure.subplots(1, 4)
    bars(left, sides, "restoring error")
    bars(middle, sides, "distance of decoded noise")
    for axes, (name, x) in zip(sheets, shown.items(), strict=True):
        axes.imshow(grid(as_bytes(x, space), columns=6, zoom=4), cmap="gray")
        axes.set_title(f"{name}: decoded noise")
        axes.axis("off")
    ae, vae = sides.values()
    noise, error = "distance of decoded noise", "restoring error"
    return Verdict(
        sides,
        {
            "the AE restores better": ae[error] < vae[error],
            "the VAE decodes noise to data": vae[noise] < ae[noise],
        },
    )


CLAIMS = {
    1: Claim("dropout and bagging", 600, dropout_and_bagging),
    2: Claim("VAE and GAN", 1200, vae_and_gan),
    3: Claim("PixelRNN and PixelCNN", 60, pixelrnn_and_pixelcnn),
    4: Claim("autoregressive flow and coupling flow", 400, autoregression_and_flow),
    5: Claim("RNN and LSTM", 600, rnn_and_lstm),
    6: Claim("AE and VAE", 1500, ae_and_vae),
}


def examine(number: int, out: Path, steps: int = 0) -> Verdict:
    """Try one claim and draw it."""
    claim = CLAIMS[number]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    with tempfile.TemporaryDirectory() as where:
        found = claim.test(steps or claim.steps, Path(where), figure)
    figure.suptitle(claim.title)
    figure.savefig(out, dpi=120)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("number", type=int, choices=CLAIMS)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--steps", type=int, default=0)
    asked = parser.parse_args()
    out = asked.out or Path(f"claim-{asked.number}.png")
    found = examine(asked.number, out, asked.steps)
    for side, numbers in found.sides.items():
        print(f"{side:12}", "  ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
    for sentence, held in found.held.items():
        print("held    " if held else "FAILED  ", sentence)
    print(out)


if __name__ == "__main__":
    main()
