r"""Identities of ensembles: the decomposition of errors, and what bootstraps can reduce.

Squared error is $bias^2 + variance + noise$. The mean of B predictions of variance $s^2$ and
correlation r has the variance $r s^2 + (1 - r) s^2 / B$: more bootstraps of the same rows take
away the second term only. Datasets have three rows here, so that all of them and all of their
bootstraps are enumerated.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.ensemble import Ensemble, EnsembleMean, bootstrap
from ..core.space import Space
from ..models.predict.mlp import MLPPredictor
from ..nn.mlp import MLP
from ._helpers import most, standard_errors
from .framework import Residual

ROUNDING = 1e-13
MAX_STANDARD_ERRORS = 5.0
"""Standard errors by which a mean may be off."""
NOISE = torch.tensor([-0.5, 0.5], dtype=torch.float64)
"""What a target is off by, either with probability one half."""
PLACES = torch.tensor([-1.0, 0.2, 1.5], dtype=torch.float64)
"""Inputs of a dataset."""
ROWS, BAGS = 40, 1000
"""Bootstraps, sampled as ensembles sample them."""


def x46_error_is_bias_variance_and_noise() -> Residual:
    """E (f_D(x) - y)^2 = bias^2 + variance + noise over all datasets.

    f_D is the least-squares fit of the last layer of a network to the dataset D. The members of an
    ensemble are fitted to one dataset each, so that the ensemble predicts E f_D(x).

    Examines: core.ensemble, models.predict._base.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 3.2."""
    x = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64)
    given = {"x": Batch(x)}
    fitted = every_fit()
    assert isinstance(fitted, EnsembleMean)
    each = torch.stack([member.mean(given) for member in fitted.each])  # (8, 9)
    truths = truth(x) + NOISE[:, None]  # (2, 9)
    error = (each[:, None] - truths).square().mean((0, 1))
    bias = (fitted.mean(given) - truth(x)).square()
    apart = bias + each.var(0, correction=0) + truths.var(0, correction=0)
    return Residual(float((error - apart).abs().amax()), ROUNDING)


def x47_bagging_leaves_the_correlated_variance() -> Residual:
    """Var of a mean of B bootstraps = r s^2 + (1 - r) s^2 / B.

    Given a dataset, a mean of B = 2 differs from that of its rows by (1 - r) s^2 / 2.

    Examines: core.ensemble.

    Source: Hastie, Tibshirani & Friedman 2009, The Elements of Statistical Learning, eq. 15.1."""
    every, away = torch.arange(3), []
    bags = torch.stack([bootstrap(seed, every, 3) for seed in range(2 * BAGS)])  # (2 BAGS, 3)
    for targets in every_data_set():
        means = targets[bags].mean(1).unflatten(0, (BAGS, 2)).mean(1)
        due = targets.var(correction=0) / 3 / 2  # of a mean of three rows, halved
        away.append(standard_errors((means - targets.mean()).square(), due))
    return Residual(most(away), MAX_STANDARD_ERRORS)


def x47_distinct_rows_of_a_bootstrap() -> Residual:
    """A bootstrap of n rows has n (1 - (1 - 1/n)^n) distinct ones on average.

    Examines: core.ensemble.

    Source: Hastie, Tibshirani & Friedman 2009, The Elements of Statistical Learning, sec. 7.11."""
    every = torch.arange(ROWS)
    counts = [len(bootstrap(seed, every, ROWS).unique()) for seed in range(BAGS)]
    held = torch.tensor(counts, dtype=torch.float64) / ROWS
    due = 1 - (1 - 1 / ROWS) ** ROWS
    return Residual(
        float((held.mean() - due).abs() / held.std()) * math.sqrt(BAGS), MAX_STANDARD_ERRORS
    )


def truth(x: Tensor) -> Tensor:
    return x.square() - x


def every_data_set() -> Tensor:
    """The targets of all datasets that noise can make, (8, 3)."""
    return truth(PLACES) + torch.cartesian_prod(NOISE, NOISE, NOISE)


@torch.no_grad()
def every_fit() -> Ensemble:
    """An ensemble of predictors of a number from another, each with its last layer fitted to one
    of the datasets by least squares."""
    space = Space(kind="real", given={"x": Space(kind="real", name="x")})
    member = MLPPredictor.Config(net=MLP.Config(width=1, depth=1))
    fitted: Ensemble = Ensemble.Config(member=member, members=8).build(space).double().eval()
    for predictor, targets in zip(fitted.each, every_data_set(), strict=True):
        for weight in predictor.trunk.parameters():
            weight.fill_(1.0)
        h = predictor.trunk({"x": Batch(PLACES)})[:, 0]  # (3,)
        slope = (h - h.mean()) @ targets / (h - h.mean()).square().sum()
        predictor.out.weight[0] = slope
        predictor.out.bias[0] = targets.mean() - slope * h.mean()
    return fitted
