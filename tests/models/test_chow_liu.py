"""The Chow-Liu tree: the edges it finds and those it leaves out."""

from __future__ import annotations

import math

import pytest
import torch
from counted import fitted
from scipy.sparse.csgraph import minimum_spanning_tree

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.baseline._base import spanning_forest
from monge.models.baseline.chow_liu import ChowLiuTree


def test_tree_finds_the_tree():
    """Noisy copies of copies: the edges along which they were copied are found."""
    parents = [-1, 0, 0, 1, 1, 2, 5]
    columns = [torch.rand(4000, generator=make_generator(0)) < 0.5]
    for i, above in enumerate(parents[1:]):
        columns.append(
            columns[above] ^ (torch.rand(4000, generator=make_generator(100 + i)) < 0.2)
        )
    x = torch.stack(columns, 1).double()
    space = Space(kind="binary", shape=(7,), size=2, rows=4000)
    model = fitted(ChowLiuTree.Config(), space, Batch(x), 1)
    found = {frozenset((i, above)) for i, above in enumerate(model.parent.tolist()) if above >= 0}
    assert found == {frozenset((i, above)) for i, above in enumerate(parents) if above >= 0}


def test_a_tree_has_no_edge_without_information():
    x = torch.cartesian_prod(*[torch.arange(3.0)] * 3).double().repeat(9, 1)
    space = Space(kind="levels", shape=(3,), size=3, rows=len(x))
    model = fitted(ChowLiuTree.Config(), space, Batch(x), 1)
    assert model.parent.tolist() == [-1, -1, -1]
    torch.testing.assert_close(model.log_prob(x), torch.full((len(x),), -3 * math.log(3)).double())


def test_span_is_the_heaviest_tree():
    worth = torch.rand(9, 9, generator=make_generator(0)).double()
    worth = worth + worth.T
    parent, order = spanning_forest(worth)
    places = {int(node): place for place, node in enumerate(order)}
    total = sum(float(worth[i, above]) for i, above in enumerate(parent.tolist()) if above >= 0)
    assert total == pytest.approx(-minimum_spanning_tree(-worth.fill_diagonal_(0).numpy()).sum())
    assert all(places[above] < places[i] for i, above in enumerate(parent.tolist()) if above >= 0)
