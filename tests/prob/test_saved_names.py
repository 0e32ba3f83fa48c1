"""What distributions, embeddings and maps save: fitted values by name, and nothing that follows
from the space of the data."""

import pytest
import torch

from monge.core.space import Space
from monge.prob.bijections.detail_split import SquareDetails
from monge.prob.bijections.elementwise import ActNorm, Logit, Standardise
from monge.prob.bijections.linear import LULinear, Permutation
from monge.prob.bins import BinnedCounts, CellStates, EntryCodes
from monge.prob.copula import GaussianCopula, SinhArcsinhMargins
from monge.prob.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiscretisedLogisticMixture,
    GaussianMixture,
)
from monge.prob.heads import Head, LearnedScales
from monge.prob.marginal_map import MarginalMap
from monge.prob.row_embedding import RowEmbedding

REAL = Space(kind="real", optional=True, atoms=(0.0,), lower=-1.0)
COUNTS = Space(kind="counts")
LABEL = Space(kind="label", size=3)
TABLE = Space(kind="columns", shape=(3,), columns=(REAL, COUNTS, LABEL))
BINS = ["low", "high", "tail", "origin", "unit", "repeated", "repeated_share"]
ONE = torch.ones(2)
SAVED = {
    "bits": (lambda: BernoulliDistribution(ONE / 2), []),
    "codes": (lambda: CategoricalDistribution(2, 3, True), []),
    "normals": (lambda: GaussianMixture(2, ONE, ONE), []),
    "levels": (lambda: DiscretisedLogisticMixture(2, ONE, ONE, 9), []),
    "counts": (lambda: BinnedCounts([COUNTS], 5), [f"runs.{name}" for name in BINS]),
    "head": (lambda: Head(TABLE), [f"by_group.1.runs.{name}" for name in BINS]),
    "scales": (lambda: LearnedScales(Head(Space(kind="real")), True), ["log_scale"]),
    "no scales": (lambda: LearnedScales(Head(Space(kind="real")), False), []),
    "states": (lambda: CellStates(TABLE.columns), []),
    "entries": (lambda: EntryCodes(TABLE, 5), [f"runs.{name}" for name in BINS]),
    "map": (lambda: MarginalMap([REAL]), ["knots", "scores"]),
    "rows": (
        lambda: RowEmbedding(TABLE),
        ["points", "log_share", *(f"runs.{name}" for name in BINS), "map.knots", "map.scores"],
    ),
    "margins": (lambda: SinhArcsinhMargins(torch.arange(2)), ["log_scale", "shape"]),
    "copula": (lambda: GaussianCopula(3, 1), ["raw"]),
    "independent": (lambda: GaussianCopula(3, 0), []),
    "details": (lambda: SquareDetails((1, 1, 1), ONE[:1]), []),
    "standardise": (lambda: Standardise(ONE, ONE), []),
    "logit": (lambda: Logit(ONE, 0.1), []),
    "permutation": (lambda: Permutation(torch.arange(2)), ["back", "order"]),
    "actnorm": (lambda: ActNorm(2), None),
    "mix": (lambda: LULinear(2), ["lower", "upper", "log_scale", "order", "sign"]),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved(name):
    make, names = SAVED[name]
    made = make()
    params = [each for each, _ in made.named_parameters()]
    assert sorted(made.state_dict()) == sorted(params if names is None else names)
