"""Heads sum or integrate to one, sample what they score, and stay finite far from the data."""

from __future__ import annotations

import math

import pytest
import torch

from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.prob.heads import Head

REAL = Space(kind="real", mean=(3.0,), scale=(2.0,))
COUNTS = Space(kind="counts", mean=(5.0,), scale=(3.0,))
BINARY = Space(kind="binary", mean=(0.2,))
LABEL = Space(kind="label", size=3)
FEW = Space(kind="levels", size=5, mean=(2.0,))
MANY = Space(kind="levels", size=100, mean=(60.0,), scale=(30.0,))
TABLE = Space(kind="columns", shape=(7,), columns=(REAL, LABEL, BINARY, COUNTS, FEW, REAL, MANY))


def head_of(space: Space, components: int = 3) -> Head:
    return Head(space, components).double()


def params_of(head: Head, rows: int = 1, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(rows, head.width, generator=make_generator(seed), dtype=torch.float64)
    return head.initial_params() + 0.5 * noise


def support(space: Space) -> torch.Tensor:
    if space.kind == "counts":
        return torch.arange(-3000.0, 3000.0, dtype=torch.float64)
    return torch.arange(max(space.size, 2), dtype=torch.float64)


@pytest.mark.parametrize("space", [COUNTS, BINARY, LABEL, FEW, MANY], ids=lambda s: s.kind)
@pytest.mark.parametrize("components", [1, 3])
def test_masses_sum_to_one(space, components):
    head, x = head_of(space, components), support(space)
    params = params_of(head).expand(len(x), -1)
    total = head.log_prob(params, x[:, None]).exp().sum()
    assert total.item() == pytest.approx(1.0, abs=1e-12)


def test_the_mean_of_names_is_the_most_probable():
    head = head_of(LABEL)
    params = params_of(head, 20)
    masses = [head.log_prob(params, torch.full((20, 1), k).double())[:, 0] for k in range(3)]
    assert torch.equal(head.mean(params)[:, 0].long(), torch.stack(masses).argmax(0))


@pytest.mark.parametrize("components", [1, 4])
def test_density_integrates_to_one_in_the_units_of_the_data(components):
    head = head_of(REAL, components)
    x = torch.linspace(-60, 66, 200_001, dtype=torch.float64)
    density = head.log_prob(params_of(head).expand(len(x), -1), x[:, None])[:, 0].exp()
    assert torch.trapezoid(density, x).item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("space", [COUNTS, BINARY, LABEL, FEW, MANY], ids=lambda s: s.kind)
def test_samples_follow_the_masses(space):
    head, x, n = head_of(space), support(space), 20_000
    masses = head.log_prob(params_of(head).expand(len(x), -1), x[:, None])[:, 0].exp()
    samples = head.sample(params_of(head).expand(n, -1), head.noise(n, make_generator(1)))[:, 0]
    found = torch.bincount((samples - x[0]).long(), minlength=len(x)).double()
    common = masses * n >= 10  # cells too thin for the chi-square test are joined
    seen = torch.cat([found[common], found[~common].sum(0, keepdim=True)])
    due = n * torch.cat([masses[common], masses[~common].sum(0, keepdim=True)])
    distance = ((seen - due).square() / due.clamp(min=1.0)).sum().item()
    cells = len(seen)
    assert distance < cells + 5 * math.sqrt(2 * cells)


def test_samples_follow_the_density():
    head, n = head_of(REAL), 20_000
    params = params_of(head)
    x = torch.linspace(-60, 66, 100_001, dtype=torch.float64)
    log_p = head.log_prob(params.expand(len(x), -1), x[:, None])[:, 0]
    own = head.sample(params.expand(n, -1), head.noise(n, make_generator(1)))
    scores = head.log_prob(params.expand(n, -1), own)[:, 0]
    negentropy = torch.trapezoid(log_p.exp() * log_p, x)
    assert (scores.mean() - negentropy).abs() < 4 * scores.std() / math.sqrt(n)


def test_a_table_is_its_columns():
    head = head_of(TABLE)
    params = params_of(head, 40)
    noise = head.noise(40, make_generator(2))
    x = head.sample(params, noise)
    scores, means = head.log_prob(params, x), head.mean(params)
    for i, column in enumerate(TABLE.columns):
        alone, own = head_of(column), params[:, head.slices[i]]
        assert torch.equal(alone.sample(own, noise[:, i : i + 1])[:, 0], x[:, i])
        assert torch.equal(head.sample_entry(i, own, noise[:, i]), x[:, i])
        torch.testing.assert_close(alone.log_prob(own, x[:, i : i + 1])[:, 0], scores[:, i])
        torch.testing.assert_close(alone.mean(own)[:, 0], means[:, i])
        assert (head.owner[head.slices[i]] == i).all()
        torch.testing.assert_close(alone.initial_params(), head.initial_params()[head.slices[i]])


@pytest.mark.parametrize("space", [REAL, COUNTS, BINARY, FEW], ids=lambda s: s.kind)
def test_mean_is_the_mean_of_samples(space):
    head, n = head_of(space), 40_000
    params = params_of(head)
    samples = head.sample(params.expand(n, -1), head.noise(n, make_generator(3)))
    assert (samples.mean() - head.mean(params)).abs() < 5 * samples.std() / math.sqrt(n)


def test_mean_of_many_levels_stays_within_rounding():
    head, x = head_of(MANY), support(MANY)
    masses = head.log_prob(params_of(head).expand(len(x), -1), x[:, None])[:, 0].exp()
    assert (head.mean(params_of(head)) - masses @ x).abs().item() < 0.1


@pytest.mark.parametrize("space", [REAL, COUNTS, MANY], ids=lambda s: s.kind)
@pytest.mark.parametrize("far", [-1e6, 0.0, 1e6])
def test_far_values_have_finite_scores_and_gradients(space, far):
    head = Head(space, 3)
    for size in (0.0, 30.0, -30.0):  # ordinary, vast and tiny scales
        params = (head.initial_params() + size)[None].requires_grad_()
        x = torch.full((1, 1), far) * space.scale[0] + space.mean[0]
        x = x.clamp(0, 99) if space is MANY else x.round()
        score = head.log_prob(params, x).sum()
        (gradient,) = torch.autograd.grad(score, params)
        assert score.isfinite()
        assert gradient.isfinite().all()


def test_a_repeated_value_has_a_bounded_density():
    head = Head(REAL, 1)
    params = torch.tensor([[0.0, -1e4]])
    highest = head.log_prob(params, torch.tensor([[3.0]])).item()
    assert highest == pytest.approx(math.log(1e3 / 2.0) - 0.5 * math.log(2 * math.pi), abs=1e-3)


def test_start_spreads_a_mixture_over_the_data():
    head, n = head_of(REAL, 5), 20_000
    x = head.sample(head.initial_params().expand(n, -1), head.noise(n, make_generator(4)))
    assert x.mean().item() == pytest.approx(3.0, abs=0.1)
    assert x.std().item() == pytest.approx(2.0, abs=0.1)


def test_many_levels_may_be_categorical_and_few_logistic():
    assert Head(MANY, levels="categorical").width == 100
    assert Head(FEW, 2, "logistic").width == 6


def test_tokens_are_refused():
    with pytest.raises(DataError, match="tokens"):
        Head(Space(kind="tokens", shape=(4,), size=9))


def test_parameters_are_padded_to_the_longest():
    head = head_of(TABLE)
    params = params_of(head, 4)
    padded = head.padded(params)
    widths = [own.stop - own.start for own in head.slices]
    assert padded.shape == (4, 7, max(widths))
    for i, (own, width) in enumerate(zip(head.slices, widths, strict=True)):
        assert torch.equal(padded[:, i, :width], params[:, own])
        assert not padded[:, i, width:].any()


def test_an_entry_alone_is_as_it_is_among_the_others():
    optional = Space(kind="real", mean=(3.0,), scale=(2.0,), optional=True, atoms=(0.0,))
    names = Space(kind="label", size=3, optional=True)
    space = Space(kind="columns", shape=(5,), columns=(REAL, optional, COUNTS, names, optional))
    head = head_of(space)
    params, noise = params_of(head, 30), head.noise(30, make_generator(2))
    x = head.sample(params, noise)
    scores, present = head.log_prob(params, x), head.log_present(params)
    assert torch.equal(x.isnan().any(0), torch.tensor([False, True, False, False, True]))
    for i, own in enumerate(head.slices):
        single, mine = head.entry_distribution(i), params[:, None, own]
        torch.testing.assert_close(single.log_prob(mine, x[:, i : i + 1])[:, 0], scores[:, i])
        torch.testing.assert_close(single.log_present(mine)[:, 0], present[:, i])
        torch.testing.assert_close(single.mean(mine)[:, 0], head.mean(params)[:, i])
    there = head.sample(head.present(params), noise)
    assert there[:, [0, 1, 2, 4]].isfinite().all()
    assert not space.empty(there).any()
    assert (present[:, [0, 2]] == 0).all()
    assert (present[:, [1, 3, 4]] < 0).all()


@pytest.mark.parametrize("columns", [(REAL, LABEL), (LABEL, REAL, LABEL), (COUNTS, BINARY)])
def test_two_groups_keep_the_order_of_the_columns(columns):
    head = head_of(Space(kind="columns", shape=(len(columns),), columns=columns))
    params, noise = params_of(head, 9), head.noise(9, make_generator(2))
    x = head.sample(params, noise)
    assert x.shape == (9, len(columns))
    for i, column in enumerate(columns):
        alone, own = head_of(column), params[:, head.slices[i]]
        assert torch.equal(alone.sample(own, noise[:, i : i + 1])[:, 0], x[:, i])
        torch.testing.assert_close(alone.mean(own)[:, 0], head.mean(params)[:, i])


def test_every_number_of_a_vector_has_the_bounds_of_the_vector():
    """As a run folder that was edited may say; data have bounds of single numbers."""
    head = Head(Space(kind="real", shape=(3,), mean=(1.0, 2.0, 3.0), lower=0.0))
    one = Head(Space(kind="real", mean=(1.0,), lower=0.0))
    params = head.initial_params()
    assert params.shape == (head.width,) == (3 * one.width,)
    x = head.sample(params.expand(200, -1), head.noise(200, make_generator(0)))
    assert (x >= 0).all()
    log_p = head.log_prob(params.expand(200, -1), x)
    alone = one.log_prob(one.initial_params().expand(200, -1), x[:, :1])
    torch.testing.assert_close(log_p[:, :1], alone)
