"""Why an LSTM remembers: copying and adding over long gaps, by RNN, GRU and LSTM (K7, K8).

Copying: four symbols, a long pause, then the four again. Adding: pairs (a, mark), of which two are
marked; the answer is the sum of the two. Left, how the gradient of the last hidden vector fades
with the lag (Hochreiter 1991; Bengio et al. 1994); beside it the error of each network as the gap
grows, with that of a guess as a dotted line.

    python -m examples.memory [-o memory.png] [--steps 1500]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monge.nn.recurrent import GRU, LSTM, ElmanRNN, RecurrentNet

NETS: dict[str, RecurrentNet.Config] = {
    "RNN": ElmanRNN.Config(width=48),
    "GRU": GRU.Config(width=48),
    "LSTM": LSTM.Config(width=48),
}
GAPS, SYMBOLS, COPIED, BATCH = (5, 20, 50), 4, 4, 64


def copying(gap: int, n: int) -> tuple[Tensor, Tensor]:
    """Inputs (n, T, symbols + 2), the last two a pause and a call, and the symbols (n, 4)."""
    symbols = torch.randint(SYMBOLS, (n, COPIED))
    x = torch.full((n, 2 * COPIED + gap), SYMBOLS)
    x[:, :COPIED], x[:, COPIED + gap :] = symbols, SYMBOLS + 1
    return F.one_hot(x, SYMBOLS + 2).float(), symbols


def adding(gap: int, n: int) -> tuple[Tensor, Tensor]:
    """Inputs (n, T, 2) and the sum of the two marked numbers (n, 1)."""
    numbers, marks = torch.rand(n, gap), torch.zeros(n, gap)
    first, second = torch.randint(gap // 2, (n,)), gap // 2 + torch.randint(gap - gap // 2, (n,))
    rows = torch.arange(n)
    marks[rows, first], marks[rows, second] = 1.0, 1.0
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)


def train(config: RecurrentNet.Config, task: str, gap: int, steps: int) -> float:
    """The error after training: nats per symbol, or the mean square."""
    torch.manual_seed(0)
    copy = task == "copying"
    net = config.build(SYMBOLS + 2 if copy else 2)
    out = nn.Linear(net.outputs, SYMBOLS if copy else 1)
    optimiser = torch.optim.Adam([*net.parameters(), *out.parameters()], 3e-3)
    losses = []
    for _ in range(steps):
        x, y = (copying if copy else adding)(gap, BATCH)
        h = net(x)
        loss = (
            F.cross_entropy(out(h[:, -COPIED:]).flatten(0, 1), y.flatten())
            if copy
            else F.mse_loss(out(h[:, -1]), y)
        )
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*net.parameters(), *out.parameters()], 1.0)
        optimiser.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / len(losses[-20:])


def fading(config: RecurrentNet.Config, steps: int = 60) -> list[float]:
    """The norm of the gradient of |h_T| by the input at each lag, that at lag 0 being 1."""
    torch.manual_seed(1)
    net = config.build(8)
    x = torch.randn(16, steps, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(net(x)[:, -1].square().sum(), x)
    norms = gradient.norm(dim=2).mean(0).flip(0)
    return (norms / norms[0]).tolist()


def main() -> None:
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("memory.png"))
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    lag, *tasks = figure.subplots(1, 3)
    for name, config in NETS.items():
        lag.semilogy(fading(config), label=name)
    lag.set(title="gradient of the last state", xlabel="lag", ylabel="relative norm")
    for axes, (task, guess) in zip(
        tasks, (("copying", math.log(SYMBOLS)), ("adding", 1 / 6)), strict=True
    ):
        for name, config in NETS.items():
            errors = [train(config, task, gap, options.steps) for gap in GAPS]
            axes.plot(GAPS, errors, "o-", label=name)
            print(
                task,
                name,
                " ".join(
                    f"gap {gap}: {error:.3f}" for gap, error in zip(GAPS, errors, strict=True)
                ),
            )
        axes.axhline(guess, color="0.6", linestyle=":")
        axes.set(
            title=task,
            xlabel="gap",
            ylabel="nats per symbol" if task == "copying" else "mean square error",
        )
    lag.legend(frameon=False)
    figure.savefig(options.out, dpi=120)
    print(options.out)


if __name__ == "__main__":
    main()
