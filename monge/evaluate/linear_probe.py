r"""The linear probe: how well a linear map predicts a label from codes.

Logistic regression of the label on standardised codes, fitted to training rows by L-BFGS with the
penalty $\frac{\lambda}{2} \|W\|^2$ per row; the metric is its accuracy on other rows (Alain &
Bengio 2017).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import LBFGS

from ..core.abilities import CanEncode
from ..core.metric import Metric
from ..core.model import device_of
from .likelihood import HeldOutRows, chunks

MOST = 10_000
"""Most training rows of a probe."""
PENALTY = 1e-4


def codes(model: CanEncode, rows: HeldOutRows) -> Tensor:
    """The code of every row, (N, F), float64."""
    found = [
        model.encode(batch.to(device_of(model))).flatten(1).double().cpu()
        for batch in chunks(rows)
    ]
    return torch.cat(found)


def probe(train: Tensor, names: Tensor, test: Tensor, truth: Tensor) -> Metric:
    """The accuracy on codes `test` (M, F) with labels `truth` (M,) of a linear map fitted to codes
    `train` (N, F) with labels `names` (N,)."""
    train, names = train[:MOST], names[:MOST]
    mean, scale = train.mean(0), train.std(0).clamp(min=1e-8)
    weights = regress((train - mean) / scale, names, int(max(names.max(), truth.max())) + 1)
    found = F.pad((test - mean) / scale, (0, 1), value=1.0) @ weights
    right = (found.argmax(1) == truth).double()
    share = float(right.mean())
    return Metric(share, "estimate", math.sqrt(share * (1 - share) / len(right)), "share")


def regress(x: Tensor, names: Tensor, classes: int) -> Tensor:
    """Weights (F + 1, classes) of logistic regression; the last row is the bias."""
    x = F.pad(x, (0, 1), value=1.0)
    weights = torch.zeros(x.shape[1], classes, dtype=x.dtype, requires_grad=True)
    solver = LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        total = F.cross_entropy(x @ weights, names)
        total = total + PENALTY / 2 * weights[:-1].square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        solver.step(loss)
    return weights.detach()
