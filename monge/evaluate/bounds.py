r"""Tightness of variational bounds: the amortisation gap and the importance-weighted bound.

The amortisation gap is the bound with a posterior refined for each row, less the bound with the
encoder's posterior (Cremer, Li & Duvenaud 2018).

$E \log \frac1k \sum_i w_i$ with $w = p(x, z) / q(z | x)$ never falls as k grows (Burda, Grosse &
Salakhutdinov 2016), so its remaining growth shows the gap. The effective sample size
$(\sum w)^2 / \sum w^2$ near one means that the last value is still a loose bound. Latents of at
most two dimensions are integrated numerically, which gives $\log p(x)$ itself.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.abilities import HasLikelihood, HasPosterior
from ..core.batch import Batch
from ..core.metric import Metric
from ..core.model import Model, device_of
from ..core.rng import make_generator
from ..solve.quadrature import integral, lattice
from .likelihood import HeldOutRows, RowLikelihoods, entries

STEPS = 50
"""Gradient steps that refine each row's posterior."""
GAP_ROWS, GAP_ELEMENTS = 200, 160_000
"""Most rows, and elements of rows, of the amortisation gap."""


def amortisation(model: Model, rows: HeldOutRows, seed: int = 0) -> dict[str, Metric]:
    """The gap in nats per row, for models that can refine a row's posterior."""
    if not (
        isinstance(model, HasPosterior)
        and isinstance(model, HasLikelihood)
        and "refine" in model.LikelihoodConfig.__dataclass_fields__
    ):
        return {}
    count = min(len(rows), GAP_ROWS, max(GAP_ELEMENTS // max(model.space.dims, 1), 16))
    batch = rows.batch(torch.linspace(0, len(rows) - 1, count).long()).to(device_of(model))
    plain, own = (
        model.LikelihoodConfig().override("samples=1", f"refine={steps}") for steps in (0, STEPS)
    )
    with torch.no_grad():
        gap = (
            model.likelihood(batch, own, make_generator(seed)).value
            - model.likelihood(batch, plain, make_generator(seed)).value
        ).double()
    error = float(gap.std()) / count**0.5 if count > 1 else float("nan")
    return {"amortisation_gap": Metric(float(gap.mean()), "estimate", error)}


SAMPLES = (1, 10, 100, 1000)
MAX_CURVE_ROWS, MIN_CURVE_ROWS, CURVE_ELEMENTS = 100, 16, 80_000
"""Most rows of the curve; fewer if they are long."""
INTEGRATED = 16
"""Most rows if their codes can be integrated out."""
GRID = (61, 7.0)
"""Points per dimension of the initial grid over codes, and its half-width."""
POSTERIOR_SAMPLES = 256
"""Posterior samples used besides the grid for the initial estimate of the evidence."""
WANTED, POINTS = 1e-4, 1 << 15
"""Tolerance of an integral in nats, and the number of points after which it may be exceeded."""


@dataclass(frozen=True)
class Rung:
    """The bound for one number of importance samples, over the same rows as the others."""

    samples: int
    score: Metric  # mean over rows, with its error over rows
    error: float | None  # Monte Carlo error of this mean, if there are several samples
    effective: float  # effective sample size, mean over rows

    def to_dict(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            **self.score.to_dict(),
            "error": self.error,
            "effective": self.effective,
        }


@dataclass(frozen=True)
class Tightness:
    """The bounds, and the evidence of the same rows if the code can be integrated out."""

    rows: int
    rungs: list[Rung]
    evidence: Metric | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "rungs": [rung.to_dict() for rung in self.rungs],
            "evidence": self.evidence.to_dict() if self.evidence else None,
        }


def tightness(model: Model, rows: HeldOutRows, seed: int = 0) -> Tightness | None:
    """The bound by number of samples; None if the model has no importance-weighted bound."""
    if not (
        isinstance(model, HasLikelihood)
        and isinstance(model, HasPosterior)
        and "samples" in model.LikelihoodConfig.__dataclass_fields__
    ):
        return None
    flat = model.latent.dims <= 2
    most = (
        INTEGRATED
        if flat
        else min(max(CURVE_ELEMENTS // max(model.space.dims, 1), MIN_CURVE_ROWS), MAX_CURVE_ROWS)
    )
    index = torch.linspace(0, len(rows) - 1, min(len(rows), most)).long()
    batch = rows.batch(index).to(device_of(model))
    with torch.no_grad():
        rungs = [rung(model, batch, samples, seed) for samples in SAMPLES]
        known = evidence(model, batch) if flat else None
    return Tightness(len(batch), rungs, known)


def rung(model: HasLikelihood, batch: Batch, samples: int, seed: int) -> Rung:
    found = model.likelihood(
        batch, model.LikelihoodConfig().override(f"samples={samples}"), make_generator(seed)
    )
    value = found.value.double().cpu().numpy()
    scores = RowLikelihoods(value, found.kind, entries(batch, batch.x[0].numel()) / len(batch))
    if found.stderr is None or samples == 1:
        return Rung(samples, scores.mean, None, 1.0)
    spread = found.stderr.double().square()  # the variance of mean(w) / E w of each row
    effective = samples / (1 + (samples - 1) * spread)
    return Rung(
        samples, scores.mean, float(spread.mean() / len(value)) ** 0.5, float(effective.mean())
    )


def evidence(model: HasPosterior, batch: Batch) -> Metric:
    """log p(x | given) with the code integrated out, for each row in float64."""
    exact = copy.deepcopy(model)
    assert isinstance(exact, Model)
    exact = exact.cpu().double()
    rows = batch.to("cpu").double()
    value = torch.stack([integrated(exact, rows[i : i + 1]) for i in range(len(rows))])
    return RowLikelihoods(value.numpy(), "exact", batch.x[0].numel()).mean


def integrated(model: Any, row: Batch) -> Tensor:
    """log of the integral of p(x, z | given) over z for one row."""
    shape, dims = model.latent.shape, model.latent.dims

    def joint(z: Tensor) -> Tensor:  # (N, dims) -> (N, 1)
        parts = z.reshape(-1, 1, *shape).split(4096)
        return torch.cat([model.log_joint(row, part) for part in parts])

    z, volume = lattice(dims, *GRID)
    noise = torch.randn(
        POSTERIOR_SAMPLES, 1, *shape, generator=make_generator(0), dtype=torch.float64
    )
    sampled = model.infer(row, noise)
    weights = model.log_joint(row, sampled) - model.log_posterior(row, sampled)
    guess = torch.maximum(
        joint(z).logsumexp(0) + volume, weights.logsumexp(0) - math.log(POSTERIOR_SAMPLES)
    )
    total, _ = integral(lambda z: (joint(z) - guess).exp(), dims, WANTED, POINTS)
    return (total.log() + guess)[0]
