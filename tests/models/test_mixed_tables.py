"""Tables as people have them: every generative model that takes a table of numbers takes one of
names, holes, atoms and bounds, samples rows of the same support and fills cells in."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import small_data
import torch
from candidates import short_options
from mixed_table import DISCRETE, discrete_rows, states

from monge.core.abilities import CanComplete, CanSample, HasLikelihood
from monge.core.batch import Batch
from monge.core.errors import MongeError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.data import loading as data
from monge.registry import check_compatible, entries, find

FAMILIES = (
    "baseline",
    "autoregressive",
    "latent",
    "flow",
    "diffusion",
    "adversarial",
    "transport",
)
NUMBERS = Space(kind="real", shape=(7,), rows=400, mean=(0.0,) * 7, scale=(1.0,) * 7)


def troubled(n: int = 400) -> pd.DataFrame:
    """A table with everything that people's tables have."""
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    age = rng.gamma(4.0, 9.0, n).round(1)
    tip = np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2.0, 2.0, n).round(2))
    table = pd.DataFrame(
        {
            "kind": kind,
            "age": np.where(rng.random(n) < 0.2, np.nan, age),
            "children": rng.poisson(1.5, n),
            "tip": tip,
            "share": rng.beta(2.0, 3.0, n),
            "member": rng.random(n) < 0.5,
            "score": rng.normal(size=n) + (kind == "a"),
        }
    )
    table["deck"] = pd.Series(np.where(rng.random(n) < 0.5, None, rng.choice(["x", "y"], n)))
    table.loc[rng.random(n) < 0.1, "children"] = np.nan
    return table


@pytest.fixture(scope="module")
def view():
    return data.open(troubled()).view()


def takes_tables(name: str) -> bool:
    try:
        check_compatible(name, find(name), NUMBERS)
    except MongeError:
        return False
    return issubclass(find(name), CanSample | HasLikelihood)


MODELS = [
    entry.name
    for entry in entries()
    if entry.family in FAMILIES and "columns" in entry.events and takes_tables(entry.name)
]
"""Models of images and sequences have no columns among their events."""


def test_every_family_takes_tables():
    assert {name.partition(".")[0] for name in MODELS} == set(FAMILIES)


def trained(name: str, view, steps: int = 2):
    owner = find(name)
    torch.manual_seed(0)
    model = owner.smallest_config(view.space).build(view.space)
    batch = view.split("train").whole()
    model.initialise_from_data(batch)
    for update in model.updates():
        params = list(update.params)
        optimiser = torch.optim.Adam(params, 1e-3) if params else None
        for _ in range(steps):
            total = sum(term.mean() for term in update.loss(batch).values())
            assert torch.isfinite(total), update.name
            if optimiser:
                optimiser.zero_grad()
                total.backward()
                optimiser.step()
    return model.eval()


def check_support(view, x: torch.Tensor) -> None:
    for column, values in zip(view.space.columns, x.T, strict=True):
        empty = values.isnan()
        assert column.optional or not empty.any(), column.name
        seen = values[~empty]
        if column.kind in ("label", "binary"):
            size = 2 if column.kind == "binary" else column.size
            assert set(seen.tolist()) <= set(range(size)), column.name
        if column.kind == "counts":
            assert torch.equal(seen, seen.round()), column.name
        if column.lower is not None:
            assert bool((seen >= column.lower).all()), column.name
        if column.upper is not None:
            assert bool((seen <= column.upper).all()), column.name


def test_the_support_is_found(view):
    columns = {column.name: column for column in view.space.columns}
    assert view.space.kind == "columns"
    assert {name for name, column in columns.items() if column.optional} == {
        "age",
        "children",
        "deck",
    }
    assert columns["tip"].atoms == (0.0,)
    assert {name for name, column in columns.items() if column.lower == 0} >= {"tip", "share"}
    assert columns["share"].upper == 1
    assert columns["score"].is_plain
    assert columns["deck"].size == 3


@pytest.mark.parametrize("name", MODELS)
def test_models_of_numbers_take_tables(name, view):
    check_compatible(name, find(name), view.space)
    model = trained(name, view)
    batch = view.split("test").whole()
    if isinstance(model, HasLikelihood):
        assert torch.isfinite(model.likelihood(batch).value).all()
    if isinstance(model, CanSample):
        x = model.sample(64, None, short_options(model), torch.Generator().manual_seed(0))
        assert x.shape == (64, len(view.space.columns))
        check_support(view, x)
    if isinstance(model, CanComplete):
        check_completion(model, view, batch)


def check_completion(model, view, batch) -> None:
    """Known cells stay, unknown ones are filled, and no filled cell is empty."""
    hidden = torch.rand(batch.x.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    hidden |= view.space.empty(batch.x)
    hidden[:, 0] = False  # each row has a known cell
    known, options = ~hidden, short_options(model)
    for asked in (batch.hide(hidden, view.space), replace(batch, observed=known)):
        x = model.complete(asked, options, torch.Generator().manual_seed(2))
        assert torch.equal(x.nan_to_num(-9)[known], batch.x.to(x).nan_to_num(-9)[known])
        assert not bool(view.space.empty(x)[hidden].any())
        check_support(view, x)


SEEDS = 8
"""Repeated likelihoods of every row, where they are random."""
SAMPLES = 4000
DISCRETE_VIEW = SimpleNamespace(
    space=DISCRETE, split=lambda _: small_data.Rows(Batch(discrete_rows().float()))
)


def check_mass(model) -> None:
    """The likelihood of all rows of a small table, empty cells included, sums to one if it is
    exact; a bound, whose mean lies below log p, to at most one."""
    rows = Batch(states(DISCRETE))
    kind = model.likelihood(rows[:2], generator=make_generator(0)).kind
    if kind == "estimate":
        pytest.skip("its likelihood is an estimate")
    if kind == "exact":
        assert abs(float(model.likelihood(rows).value.exp().sum()) - 1) < 1e-6
        return
    found = torch.stack(
        [model.likelihood(rows, generator=make_generator(k)).value for k in range(SEEDS)]
    )
    mass = found.mean(0).exp()
    error = (mass * found.std(0)).square().sum().sqrt() / SEEDS**0.5
    assert float(mass.sum()) < 1 + 4 * float(error)
    assert float(mass.sum()) > 0.01  # a bound says something


def check_flags(model) -> None:
    """Empty cells of samples are as frequent, alone and together, as the likelihood says."""
    every = states(DISCRETE)
    p = model.likelihood(Batch(every)).value.exp()
    x = model.sample(SAMPLES, generator=make_generator(0)).double()
    due, found = DISCRETE.empty(every).double(), DISCRETE.empty(x).double()
    for i, j in ((0, 0), (2, 2), (0, 2)):
        share = float((due[:, i] * due[:, j]) @ p)
        error = (share * (1 - share) / SAMPLES) ** 0.5
        assert abs(float((found[:, i] * found[:, j]).mean()) - share) < 5 * error + 1e-9


@pytest.mark.parametrize(
    "name", [name for name in MODELS if issubclass(find(name), HasLikelihood)]
)
def test_likelihoods_of_tables_with_empty_cells_sum_to_one(name):
    model = trained(name, DISCRETE_VIEW).double()
    with torch.no_grad():
        check_mass(model)
        if model.likelihood(Batch(states(DISCRETE)[:2])).kind == "exact":
            check_flags(model)


class ZeroImputed:
    """A model that was trained on zeros in place of empty cells."""

    def __init__(self) -> None:
        plain = [replace(column, optional=False) for column in DISCRETE.columns]
        space = replace(DISCRETE, columns=tuple(plain))
        rows = small_data.Rows(Batch(self.filled(discrete_rows().float())))
        inside = SimpleNamespace(space=space, split=lambda _: rows)
        self.model = trained("made", inside).double()

    def filled(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(DISCRETE.empty(x), 0.0, x)

    @torch.no_grad()
    def likelihood(self, batch, options=None, generator=None):
        return self.model.likelihood(Batch(self.filled(batch.x)))

    def sample(self, n, generator=None):
        return self.model.sample(n, generator=generator)

    def complete(self, batch, options=None, generator=None):
        return self.filled(batch.x)


def test_a_model_of_imputed_zeros_fails():
    """It gives an empty cell the probability of a zero, so that the whole sums to more than one,
    and never samples an empty cell."""
    model = ZeroImputed()
    total = float(model.likelihood(Batch(states(DISCRETE))).value.detach().exp().sum())
    assert total > 1.2
    with pytest.raises(AssertionError):
        check_mass(model)
    with pytest.raises(AssertionError):
        check_flags(model)
