"""Flows beside those of zuko, nflows and normflows: density, training, samples.

maf: one masked affine map of 64 entries, 3x512, 1024 rows. Couplings: 8 layers of 32 entries with
networks of 2x256, a scaling and a permutation between them, 512 rows, moved by rational-quadratic
splines of 8 pieces or by affine maps. All sides have the same networks; the numbers of weights are
printed. Before nflows' couplings are timed their weights are copied into ours, and both must
assign the same densities to the same rows; every side must score its own samples. The sides
alternate in one process on one thread; reported are median and spread of CPU time and the ratio of
medians, peer by ours. Beside couplings run their networks alone, which both sides need: forward,
in training backward and Adam too. The time of a peer over theirs is the limit of any ratio.

    python -m benchmarks flows
    build/bench/flows/bin/python -m benchmarks.flows [maf spline affine] [--repeats 15]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from monge.core.batch import Batch
from monge.core.space import Space
from monge.models.flow.coupling import CouplingFlow
from monge.models.flow.maf import MAF
from monge.nn.autoregressive.masked_mlp import MaskedMLP
from monge.nn.layers.linear import Linear
from monge.nn.mlp import MLP
from monge.prob.bijections.coupling import CouplingBijection
from monge.prob.bijections.spline import UNIT_DERIVATIVE_LOGIT

from .clock import Work, alternate, measured, show
from .results import keep
from .sides import installed, stepper, weights

LAYERS, WIDTH, BINS, REACH = 8, 256, 8, 5.0


@dataclass(frozen=True)
class Side:
    """A flow under measurement."""

    module: nn.Module
    log_prob: Callable[[Tensor], Tensor]
    sample: Callable[[int], Tensor]


def own(model: Any) -> Side:
    return Side(model, lambda x: -model.loss(Batch(x))["nll"], model.sample)


def space(dims: int) -> Space:
    return Space(kind="real", shape=(dims,), low=(-5.0,), high=(5.0,), rows=10_000)


def our_maf(dims: int) -> Side:
    net = MaskedMLP.Config(width=512, depth=3, residual=False, direct=False)
    return own(MAF.Config(layers=1, kind="affine", net=net).build(space(dims)).eval())


def zuko_maf(dims: int) -> Side:
    from zuko.flows import MAF as Peer

    flow = Peer(dims, 0, transforms=1, hidden_features=[512] * 3)
    return Side(flow, lambda x: flow().log_prob(x), lambda n: flow().sample((n,)))


def nflows_maf(dims: int) -> Side:
    from nflows.flows import MaskedAutoregressiveFlow

    flow = MaskedAutoregressiveFlow(
        dims, 512, num_layers=1, num_blocks_per_layer=2, use_residual_blocks=False
    )
    return Side(flow, flow.log_prob, flow.sample)


def our_coupling(dims: int, kind: str) -> Side:
    net = MLP.Config(width=WIDTH, depth=2, activation="relu")
    config = CouplingFlow.Config(layers=LAYERS, bins=BINS, reach=REACH, mix="permute", net=net)
    return own(config.override(f"kind={kind}").build(space(dims)).eval())


class Plain(nn.Sequential):
    """The network of our couplings, as nflows calls it, of layers of torch or of ours."""

    def __init__(self, inputs: int, outputs: int, layer: type[nn.Linear] = nn.Linear) -> None:
        super().__init__(
            layer(inputs, WIDTH),
            nn.ReLU(),
            layer(WIDTH, WIDTH),
            nn.ReLU(),
            layer(WIDTH, outputs),
        )

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return super().forward(x)


def nflows_coupling(dims: int, kind: str) -> Side:
    from nflows import transforms
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow

    parts: list[nn.Module] = []
    for number in range(LAYERS):
        mask = torch.ones(dims)
        mask[: dims // 2] = -1  # those at most 0 are read and stay
        mask = -mask if number % 2 == 0 else mask
        layer = (
            transforms.AffineCouplingTransform(mask, Plain)
            if kind == "affine"
            else transforms.PiecewiseRationalQuadraticCouplingTransform(
                mask, Plain, num_bins=BINS, tails="linear", tail_bound=REACH
            )
        )
        parts += [transforms.ActNorm(dims), transforms.RandomPermutation(dims), layer]
    flow = Flow(transforms.CompositeTransform(parts), StandardNormal([dims]))
    flow.log_prob(torch.randn(64, dims))  # which sets its scales
    return Side(flow.eval(), flow.log_prob, flow.sample)


def zuko_coupling(dims: int, kind: str) -> Side:
    from zuko.flows import MAF as Affine
    from zuko.flows import NSF

    settings: dict[str, Any] = {"transforms": LAYERS, "passes": 2, "hidden_features": [WIDTH] * 2}
    flow = Affine(dims, 0, **settings) if kind == "affine" else NSF(dims, 0, bins=BINS, **settings)
    return Side(flow, lambda x: flow().log_prob(x), lambda n: flow().sample((n,)))


def normflows_coupling(dims: int, kind: str) -> Side:
    import normflows as nf

    parts = []
    for number in range(LAYERS):
        if kind == "affine":
            net = nf.nets.MLP([dims // 2, WIDTH, WIDTH, dims])
            parts.append(nf.flows.AffineCouplingBlock(net))
        else:
            parts.append(
                nf.flows.CoupledRationalQuadraticSpline(
                    dims, 1, WIDTH, num_bins=BINS, tail_bound=REACH, reverse_mask=bool(number % 2)
                )
            )
        parts += [nf.flows.Permute(dims), nf.flows.ActNorm((dims,))]
    flow = nf.NormalizingFlow(nf.distributions.DiagGaussian(dims, trainable=False), parts)
    flow.log_prob(torch.randn(64, dims))
    return Side(flow.eval(), flow.log_prob, lambda n: flow.sample(n)[0])


MAFS: dict[str, Callable[..., Side]] = {"monge": our_maf, "zuko": zuko_maf, "nflows": nflows_maf}
COUPLINGS: dict[str, Callable[..., Side]] = {
    "monge": our_coupling,
    "nflows": nflows_coupling,
    "zuko": zuko_coupling,
    "normflows": normflows_coupling,
}
TASKS = {
    "maf": (MAFS, (64,), 1024),
    "spline": (COUPLINGS, (32, "spline"), 512),
    "affine": (COUPLINGS, (32, "affine"), 512),
}


NETWORKS = "networks alone"


def coupling_nets(module: nn.Module) -> nn.ModuleList:
    """Networks of the sizes of those in our couplings."""
    found = [part for part in module.modules() if isinstance(part, CouplingBijection)]
    linears = [part.net.net.linears for part in found]  # type: ignore[union-attr]
    sizes = [(each[0].in_features, each[-1].out_features) for each in linears]
    return nn.ModuleList(Plain(*each, Linear) for each in sizes)


@torch.no_grad()
def copied(ours: nn.Module, theirs: nn.Module) -> None:
    """Our couplings with the weights, scales and orders of nflows'."""
    parts = list(theirs._transform._transforms)
    own_parts = list(ours.map.parts[0].parts)  # type: ignore[union-attr, attr-defined]
    for number in range(LAYERS):
        scale, order, layer = parts[3 * number : 3 * number + 3]
        coupling, permutation, act = own_parts[
            len(own_parts) - 3 * number - 3 : len(own_parts) - 3 * number
        ]
        act.log_scale.copy_(-scale.log_scale)
        act.shift.copy_(-scale.shift * (-scale.log_scale).exp())
        permutation.back.copy_(order._permutation)
        permutation.order.copy_(order._permutation.argsort())
        linears = [each for each in layer.transform_net.modules() if isinstance(each, nn.Linear)]
        for mine, other in zip(coupling.net.net.linears, linears, strict=True):
            mine.weight.copy_(other.weight)
            mine.bias.copy_(other.bias)
        coupling.flip = bool(layer.identity_features[0])
        last, count = coupling.net.net.out, coupling.warp.count
        for each in (last.weight, last.bias):  # parameter by parameter, not entry by entry
            each.copy_(each.clone().unflatten(0, (-1, count)).transpose(0, 1).flatten(0, 1))
        last.bias.view(count, -1)[2 * BINS :] -= UNIT_DERIVATIVE_LOGIT


def agree(sides: dict[str, Side], x: Tensor, kind: str) -> None:
    """Check densities and samples of every side before it is timed."""
    if "nflows" in sides and kind == "spline":
        copied(sides["monge"].module, sides["nflows"].module)
        ours, theirs = (sides[name].log_prob(x) for name in ("monge", "nflows"))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)
        print(
            "  nflows' weights in ours give the same densities within "
            f"{float((ours - theirs).detach().abs().max()):.1e} nats"
        )
    for name, side in sides.items():
        samples = side.sample(1024)
        assert samples.isfinite().all(), f"samples of {name} are not finite"
        assert side.log_prob(samples).isfinite().all(), f"{name} cannot score its samples"


def compare(task: str, repeats: int) -> None:
    makers, arguments, rows = TASKS[task]
    torch.manual_seed(0)
    sides = {
        name: make(*arguments)
        for name, make in makers.items()
        if name == "monge" or installed(name)
    }
    x = torch.randn(rows, arguments[0])
    print(
        f"{task}, {rows} rows; weights: "
        + ", ".join(f"{name} {weights(side.module)}" for name, side in sides.items())
    )
    agree(sides, x, task)

    def quietly(call: Callable[..., object], *args: Any) -> Work:
        return torch.no_grad()(lambda: call(*args))

    works: dict[str, dict[str, Work]] = {
        "log_prob": {name: quietly(side.log_prob, x) for name, side in sides.items()},
        "sample": {name: quietly(side.sample, rows) for name, side in sides.items()},
        "train step": {
            name: stepper(side.module, lambda side=side: -side.log_prob(x))
            for name, side in sides.items()
        },
    }
    if task != "maf":
        nets = coupling_nets(sides["monge"].module)
        half = x[:, : arguments[0] // 2].clone().requires_grad_()  # gradients reach their inputs

        def outputs() -> Tensor:
            return torch.stack([net(half).sum(1) for net in nets])

        for what in ("log_prob", "sample"):
            works[what][NETWORKS] = quietly(outputs)
        works["train step"][NETWORKS] = stepper(nets, outputs)
    for what, each in works.items():
        fewer = max(3, repeats // 3) if task == "maf" and what == "sample" else repeats
        times = alternate(each, fewer, warm=3)
        show(times, digits=2, head=f"  {what:12}", name=f"{task} {what}", shared=NETWORKS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--repeats", type=int, default=15, help="rounds of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for task in options.tasks:
        measured.clear()
        compare(task, options.repeats)
        keep(f"flows-{task}", measured, peers=["nflows", "normflows", "zuko"])


if __name__ == "__main__":
    main()
