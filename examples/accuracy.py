"""Why accuracy is a metric and no loss (C6): accuracy and cross entropy along a line of weights.

A linear softmax classifier is fitted to iris. Its weights are moved along the straight line from
those it started with to those it found. Accuracy is a step function of the weights: between its
few jumps its derivative is 0, so that no gradient says where to go. Cross entropy has a slope
everywhere.

    python -m examples.accuracy [-o accuracy.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_iris
from torch import Tensor

CHANGE = 1e-6
"""Change of t, the place on the line, by which derivatives are measured."""


def rows() -> tuple[Tensor, Tensor]:
    """Standardised measurements with a constant column, and classes."""
    x, y = (torch.from_numpy(part) for part in load_iris(return_X_y=True))
    x = (x - x.mean(0)) / x.std(0)
    return torch.cat([x, torch.ones(len(x), 1)], 1), y


def fitted(x: Tensor, y: Tensor, first: Tensor, steps: int = 300) -> Tensor:
    """Weights (5, 3) after steps of gradient descent on cross entropy."""
    weights = first.clone().requires_grad_()
    for _ in range(steps):
        (slope,) = torch.autograd.grad(F.cross_entropy(x @ weights, y), weights)
        weights = (weights - 0.5 * slope).detach().requires_grad_()
    return weights.detach()


def measure(points: int = 400, seed: int = 0) -> Tensor:
    """Accuracy, cross entropy and the slope of each along the line, (points, 4)."""
    (x, y), random = rows(), torch.Generator().manual_seed(seed)
    first = torch.randn(5, 3, generator=random, dtype=torch.float64)
    last = fitted(x, y, first)

    def at(t: Tensor) -> Tensor:
        logits = x @ torch.lerp(first, last, t)
        right = (logits.argmax(1) == y).double().mean()
        return torch.stack([right, F.cross_entropy(logits, y)])

    line = torch.linspace(0, 1, points, dtype=torch.float64)
    values = torch.stack([at(t) for t in line])
    slopes = torch.stack([(at(t + CHANGE) - at(t - CHANGE)) / (2 * CHANGE) for t in line])
    return torch.cat([values, slopes], 1)


def summarise(line: Tensor) -> dict[str, float]:
    accuracy, loss, flat, steep = line.unbind(1)
    return {
        "first and last accuracy": float(accuracy[0]),
        "": float(accuracy[-1]),
        "values of accuracy on the line": len(accuracy.unique()),
        "values of cross entropy": len(loss.unique()),
        "share of points where accuracy has slope 0": float((flat == 0).double().mean()),
        "share where cross entropy has slope 0": float((steep == 0).double().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("accuracy.png"))
    asked = parser.parse_args()
    line = measure()
    for name, value in summarise(line).items():
        print(f"{name:44} {value:.4g}")
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    t = torch.linspace(0, 1, len(line))
    axes.plot(t, line[:, 0], color="0.2", drawstyle="steps-post", label="accuracy")
    axes.plot(t, line[:, 1], color="0.6", label="cross entropy (nats)")
    axes.set(xlabel="from the first weights to the fitted ones")
    axes.legend(frameon=False)
    figure.savefig(asked.out, dpi=120)
    print(asked.out)


if __name__ == "__main__":
    main()
