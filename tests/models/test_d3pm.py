"""Discrete diffusion: the chain that is sampled is the one that is scored."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion.d3pm import D3PM, mask_weights
from monge.registry import check_compatible

NAMES = Space(
    kind="columns",
    shape=(3,),
    rows=100,
    columns=(
        Space(kind="binary", size=2, name="flag", rows=100),
        Space(kind="label", size=3, name="name", rows=100, optional=True),
        Space(kind="label", size=2, name="other", rows=100),
    ),
)
TEXT = Space(kind="tokens", shape=(6,), size=4, varies=True, end=0, rows=100)
BLOCKS = replace(TEXT, end=None)


def built(space=NAMES, scale=0.5, **fields):
    torch.manual_seed(0)
    model = replace(D3PM.smallest_config(space), **fields).build(space).double().eval()
    for param in model.parameters():
        param.data = scale * torch.randn_like(param)
    return model


def every_row(model):
    """All rows of a small table, (S, D)."""
    return torch.tensor([*itertools.product(*map(range, model.sizes.tolist()))]).double()


@torch.no_grad()
def chain_probabilities(model, steps):
    """p(x) of every row by products of the transition probabilities of whole rows."""
    dims, masked = model.space.dims, model.values
    states = torch.tensor([*itertools.product(range(masked + 1), repeat=dims)])  # (N, D)
    possible = ((states < model.sizes) | (states == masked)).all(1)
    states = states[possible]
    rest = model.corruption.rest.expand(len(states), -1, -1)
    p = rest.gather(-1, states[..., None])[..., 0].prod(1)  # (N,)
    for step in range(steps, 0, -1):
        here, there = (
            torch.full((len(states), 1), 1 - k / steps).double() for k in (step, step - 1)
        )
        conditions = model.condition_encoder({}, len(states))
        guess = F.pad(model.predict(states, here, conditions).exp(), (0, 1))
        if model.is_absorbing:
            guess = torch.where(
                (states == masked)[..., None], guess, F.one_hot(states, masked + 1)
            )
        back = model.corruption.reverse(guess, states, here, there)  # (N, D, S)
        each = [back[:, i, states[:, i]] for i in range(dims)]
        p = p @ torch.stack(each).prod(0)
    rows = every_row(model)
    return torch.stack([p[(states == row).all(1)].sum() for row in rows])


@torch.no_grad()
def order_probabilities(model):
    """The mean over all orders of the probability of every row."""
    rows = model.read(Batch(every_row(model)))
    found = []
    for order in itertools.permutations(range(model.space.dims)):
        masked, log_p = rows.exist.clone(), 0.0
        for entry in order:
            log_p = log_p + model.masked_log_prob(rows, masked)[:, entry]
            masked[:, entry] = False
        found.append(log_p.exp())
    return torch.stack(found).mean(0)


def shares(model, x):
    """How often each row of the table is among the rows x."""
    rows = every_row(model)
    return (x[:, None] == rows).all(2).double().mean(0)


@pytest.mark.parametrize("transition", ["absorbing", "uniform"])
def test_steps_sample_what_the_bound_of_as_many_steps_scores(transition):
    model, count = built(transition=transition, steps=3), 20_000
    p = chain_probabilities(model, 3)
    assert p.sum().item() == pytest.approx(1)
    x = model.sample(count, generator=make_generator(0))
    assert ((shares(model, x) - p).abs() < 5 * (p / count).sqrt()).all()
    bound = summed_divergences(model, 3)
    assert (bound < p.log()).all()
    if transition == "absorbing":
        torch.testing.assert_close(model.likelihood(Batch(every_row(model))).value, bound)
    assert_unbiased(model, bound)


def test_continuous_time_samples_the_mean_over_orders():
    model, count = built(), 20_000
    p = order_probabilities(model)
    assert p.sum().item() == pytest.approx(1)
    x = model.sample(count, generator=make_generator(0))
    assert ((shares(model, x) - p).abs() < 5 * (p / count).sqrt()).all()
    bound = model.likelihood(Batch(every_row(model)))
    assert (bound.value < p.log()).all()


@torch.no_grad()
def summed_divergences(model, steps):
    """The bound of every row, as a sum over all steps and states."""
    rows, masked = every_row(model).long(), model.values
    states = torch.tensor([*itertools.product(range(masked + 1), repeat=model.space.dims)])
    total = torch.zeros(len(rows)).double()
    for step, (place, x) in itertools.product(range(1, steps + 1), enumerate(rows)):
        here, there = (
            torch.full((len(states), 1), 1 - k / steps).double() for k in (step, step - 1)
        )
        x = x.expand(len(states), -1)
        q = model.corruption.marginal(x, here).gather(-1, states[..., None])[..., 0].prod(1)
        z, x, q, here, there = (each[q > 0] for each in (states, x, q, here, there))
        p = model.predict(z, here, model.condition_encoder({}, len(z))).exp()
        p = F.pad(p, (0, 1))
        if model.is_absorbing:
            p = torch.where((z == masked)[..., None], p, F.one_hot(z, masked + 1))
        total[place] -= (q * model.corruption.divergence(p, z, x, here, there).sum(1)).sum()
    return total


@torch.no_grad()
def assert_unbiased(model, bound, repeats=1500):
    """Sampled bounds and losses have the mean `bound` (S,)."""
    x = every_row(model).repeat_interleave(repeats, 0)
    scored = model.likelihood(Batch(x), model.LikelihoodConfig(samples=2))
    assert scored.kind == "bound"
    assert (scored.stderr >= 0).all()
    for each in (scored.value, -model.loss(Batch(x[torch.randperm(len(x))]))["bound"]):
        if each is scored.value:
            each = each.reshape(len(bound), repeats)
            error = each.std(1) / repeats**0.5
            assert ((each.mean(1) - bound).abs() < 5 * error + 1e-12).all()
        else:
            error = each.std() / len(each) ** 0.5
            assert abs(each.mean() - bound.mean()) < 5 * error


@pytest.mark.parametrize("steps", [None, 2])
def test_samples_of_the_bound_have_its_mean(steps):
    model = built(steps=steps)
    exact = model.likelihood(Batch(every_row(model)))
    assert exact.stderr is None
    assert_unbiased(model, exact.value.detach())


def test_more_steps_are_tighter_and_end_in_continuous_time():
    for dims in (1, 4, 9):
        weights = [mask_weights(dims, steps) for steps in (1, 2, 10, 10_000, None)]
        # all masks together weigh each entry once, however many steps there are
        for each in weights:
            total = sum(mask_count(dims, m) * w for m, w in enumerate(each))
            assert total == pytest.approx(1)
        assert weights[-2] == pytest.approx(weights[-1], abs=1e-3)
    assert mask_weights(4, 1)[1:] == [0, 0, 0, 1]


def mask_count(dims, size):
    """Sets of masked entries that hold the first one."""
    return len([*itertools.combinations(range(dims - 1), size - 1)]) if size else 0


@torch.no_grad()
def test_uniform_noise_in_continuous_time_is_the_limit_of_small_steps():
    model = built(Space(kind="label", size=3, rows=100), transition="uniform")
    for param in model.net.parameters():
        param.zero_()  # the same prediction at all times, so that the error is of order 1/T
    few, many = (summed_divergences(model, steps) for steps in (40, 80))
    nodes = (torch.arange(2000).double() + 0.5) / 2000
    x, z = (
        torch.cartesian_prod(torch.arange(3), torch.arange(3)).repeat(2000, 1)[..., None].unbind(1)
    )
    alpha = 1 - nodes.repeat_interleave(9)[:, None]
    p = F.pad(model.predict(z, alpha, model.condition_encoder({}, len(z))).exp(), (0, 1))
    rate = model.corruption.divergence_rate(p, z, x, alpha)[:, 0]
    q = model.corruption.marginal(x, alpha).gather(-1, z[..., None])[:, 0, 0]
    limit = -(q * rate).reshape(2000, 3, 3).sum(2).mean(0)
    torch.testing.assert_close(2 * many - few, limit, atol=1e-3, rtol=0)
    assert_unbiased(model, limit, 4000)


def test_one_step_is_an_exact_product():
    model = built(steps=1)
    found = model.likelihood(Batch(every_row(model)))
    assert found.kind == "exact"
    assert found.value.exp().sum().item() == pytest.approx(1)
    assert (
        model.likelihood(Batch(every_row(model)), model.LikelihoodConfig(steps=2)).kind == "bound"
    )


@pytest.mark.parametrize("transition", ["absorbing", "uniform"])
def test_completing_one_entry_follows_the_network_and_leaves_no_cell_empty(transition):
    model, count = built(transition=transition, steps=8), 1000
    x = torch.tensor([[1.0, 0.0, 1.0]]).double().repeat(count, 1)
    observed = torch.tensor([True, False, True]).repeat(count, 1)
    found = model.complete(Batch(x, observed=observed), generator=make_generator(0))
    assert torch.equal(found[observed], x[observed])
    assert set(found[:, 1].tolist()) == {0.0, 1.0}  # 2 is the empty cell
    if transition == "absorbing":
        rows = model.read(Batch(torch.tensor([[1.0, 0, 1], [1.0, 1, 1]]).double()))
        masked = torch.tensor([False, True, False]).repeat(2, 1)
        p = model.masked_log_prob(rows, masked)[:, 1].softmax(0)
        share = found[:, 1].mean()
        assert abs(share - p[1]) < 5 * (p[0] * p[1] / count).sqrt()
    assert model.completion


def test_fewer_steps_take_as_many_passes():
    model, passes = built(Space(kind="binary", shape=(12,), size=2, rows=100)), []
    once = model.predict
    model.predict = lambda *words: (passes.append(1), once(*words))[1]
    for steps, most in ((None, 12), (3, 3)):
        passes.clear()
        options = model.SamplingConfig().override(f"sampler.steps={steps}" if steps else "steps=0")
        x = model.sample(50, None, options, make_generator(0))
        assert len(passes) == most
        assert set(x.flatten().tolist()) == {0.0, 1.0}


def test_texts_end_once():
    model = built(TEXT)
    x = torch.tensor([[1, 2, 0, 77, 77, 77], [3, 1, 2, 3, 1, 0]])
    batch = Batch(x, length=torch.tensor([3, 6]))
    padded = batch.x.clone()
    padded[0, 3:] = 0
    few = model.LikelihoodConfig(samples=3)
    bound = model.likelihood(batch, few).value
    for other in (Batch(padded), Batch(padded, length=torch.tensor([6, 6]))):
        torch.testing.assert_close(model.likelihood(other, few).value, bound)
    sampled = model.sample(200, generator=make_generator(0))
    ended = (sampled == 0).long().cumsum(1) > 0
    assert ended.any()
    assert (sampled[ended] == 0).all()
    observed = torch.tensor([[True, False, True, True, True, True]] * 2)
    found = model.complete(replace(batch, observed=observed), generator=make_generator(0))
    assert torch.equal(found[observed], x[observed])


def test_blocks_of_text_begin_with_the_prompt():
    model = built(BLOCKS)
    options = model.SamplingConfig(prompt=(3, 1), steps=4)
    x = model.sample(50, None, options, make_generator(0))
    assert x.shape == (50, 4)
    assert (x[:, :2] == torch.tensor([3, 1])).all()
    (only,) = model.stream(50, None, options, make_generator(0))
    assert torch.equal(only, x)
    with pytest.raises(UsageError, match="7"):
        model.sample(1, None, model.SamplingConfig(steps=7))
    with pytest.raises(UsageError, match="4"):
        model.sample(1, None, model.SamplingConfig(prompt=(1, 1, 1, 1), steps=4))
    with pytest.raises(UsageError, match="5"):
        built().sample(1, None, D3PM.SamplingConfig(steps=5))


def test_unknown_values_and_numbers_are_refused():
    with pytest.raises(DataError, match="entry 1"):
        built().likelihood(torch.tensor([[1.0, 3.0, 0.0]]).double())
    number = Space(kind="real", name="height", rows=100)
    table = replace(NAMES, columns=(*NAMES.columns[:2], number))
    with pytest.raises(DataError, match="height"):
        check_compatible("d3pm", D3PM, table)


def test_images_are_read_by_their_pixels():
    space = Space(kind="levels", shape=(2, 6, 6), size=3, high=(2.0,), rows=100)
    model = built(space)
    entries = torch.rand(2, space.dims, 4).double()
    maps = model.as_maps(entries).reshape(2, 2, 4, 6, 6)
    torch.testing.assert_close(maps[:, 1, :, 2, 3], entries[:, 36 + 15])
    torch.testing.assert_close(model.as_entries(model.as_maps(entries)), entries)
    config = D3PM.defaults(space).config
    assert config.net.tag == "denoiser/unet"
    assert config.build(space).sample(2, generator=make_generator(0)).shape == (2, 2, 6, 6)
