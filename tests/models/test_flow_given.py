"""Flows that read another image or attribute: superres, cflow, attribute."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.image_to_image import enlargements
from monge.models.flow.attribute import AttributeFlow
from monge.models.flow.cflow import CFlow
from monge.models.flow.superres import Superres, match_block_sums

LEVELS = Space(kind="levels", shape=(1, 8, 8), size=16, mean=(7.0,), scale=(4.0,), rows=100)
SMALL = replace(LEVELS, shape=(1, 4, 4), name="source")
LABEL = Space(kind="label", size=3, name="label", rows=100)
VECTOR = Space(kind="real", shape=(3,), rows=100, name="source")


def built(owner, space, **fields):
    torch.manual_seed(0)
    model = replace(owner.smallest_config(space), **fields).build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def images(n=12, **given):
    x = torch.randint(0, 16, (n, 1, 8, 8), generator=make_generator(0)).double()
    return Batch(x, given)


def pair(n=12):
    """Images given their small images."""
    batch = images(n)
    return replace(batch, given={"source": Batch(F.avg_pool2d(batch.x, 2).round())})


def comes_back(model, batch):
    z = torch.randn(len(batch), model.space.dims, generator=make_generator(1)).double()
    with torch.no_grad():
        y, there = model.push(z, batch.given)
        again, back = model.pull(y, batch.given)
    torch.testing.assert_close(again, z, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(there, -back)


def log_det_of(model, batch):
    """log |det dz/dy| of the first row, by autograd, and by the model."""
    z = 0.3 * torch.randn(1, model.space.dims, generator=make_generator(1)).double()
    one = batch[:1].given
    with torch.no_grad():
        y, _ = model.push(z, one)
    matrix = torch.autograd.functional.jacobian(lambda v: model.pull(v, one)[0][0], y)[:, 0]
    return torch.linalg.slogdet(matrix)[1], model.pull(y, one)[1][0]


@pytest.mark.parametrize("kind", ["levels", "real"])
def test_every_enlargement_shrinks_to_what_was_given(kind):
    space = replace(LEVELS, given={"source": replace(SMALL, kind=kind)})
    model, batch = built(Superres, space), pair()
    for hot in (0.5, 1.0, 3.0):
        x = model.sample(12, batch.given, model.SamplingConfig(temperature=hot), make_generator(0))
        assert (model.shrink(x) - batch.given["source"].x).abs().max() <= 0.5
        assert set(x.flatten().tolist()) <= set(range(16))
    one, two = (model.sample(12, batch.given, generator=make_generator(seed)) for seed in (0, 1))
    assert (one - two).abs().mean() > 0.5


def test_an_exact_small_image_is_met_within_a_half_level_of_four():
    batch = images()
    exact = replace(batch, given={"source": Batch(F.avg_pool2d(batch.x, 2))})
    space = replace(LEVELS, given={"source": replace(SMALL, kind="real")})
    model = built(Superres, space)
    x = model.sample(12, exact.given, generator=make_generator(0))
    torch.testing.assert_close(model.shrink(x), exact.given["source"].x)


def test_superres_is_a_flow_and_a_bound():
    space = replace(LEVELS, given={"source": SMALL, "label": LABEL})
    model, batch = built(Superres, space), pair()
    batch = replace(batch, given={**batch.given, "label": Batch(torch.arange(12) % 3)})
    model.initialise_from_data(batch)
    comes_back(model, batch)
    torch.testing.assert_close(*log_det_of(model, batch))
    assert torch.equal(model.decode(model.encode(batch), batch.given), batch.x)
    assert model.likelihood(batch).kind == "bound"
    other = replace(batch, given={**batch.given, "label": Batch((torch.arange(12) + 1) % 3)})
    assert not torch.equal(model.encode(batch), model.encode(other))


def test_pixels_move_as_little_as_they_must():
    x = torch.tensor([[[[0.0, 0.0], [0.0, 3.0]]]])
    low = torch.tensor([[[[8.0]]]])
    found = match_block_sums(x, low, low, 5)
    assert found.sum() == 8
    assert found.max() <= 5
    assert torch.equal(match_block_sums(x, torch.tensor([[[[0.0]]]]), low, 5), x)
    full = match_block_sums(x, torch.tensor([[[[20.0]]]]), torch.tensor([[[[20.0]]]]), 5)
    assert torch.equal(full, torch.full_like(x, 5))


def test_superres_refuses_what_does_not_fit():
    assert "+low2" in Superres.unsupported_reason(LEVELS)
    assert "+low2" in Superres.unsupported_reason(replace(LEVELS, given={"source": LEVELS}))
    odd = replace(LEVELS, shape=(1, 7, 8))
    assert "6x8" in Superres.unsupported_reason(odd)
    assert "levels" in Superres.unsupported_reason(VECTOR)
    space = replace(LEVELS, given={"source": SMALL})
    model, batch = built(Superres, space), pair()
    with pytest.raises(DataError, match=r"11\.5 levels.*\+low2"):
        model.likelihood(replace(batch, x=15 - batch.x))
    with pytest.raises(UsageError, match=r"levels=4.*levels=3"):
        built(Superres, space, levels=4)
    with pytest.raises(UsageError, match=r"margin=0\.1"):
        Superres.Config(margin=0.1)


@pytest.mark.parametrize(
    "given",
    [LEVELS, replace(SMALL, shape=(1, 4, 4)), VECTOR],
    ids=["image", "another size", "vector"],
)
def test_two_flows_are_a_flow_of_the_second(given):
    space = replace(LEVELS, given={"source": given, "label": LABEL})
    model = built(CFlow, space, margin=0.0)
    assert (model.image_rungs is None) == (given is not LEVELS)
    a = torch.randint(0, 16, (12, *given.shape), generator=make_generator(2)).double()
    batch = images(source=Batch(a), label=Batch(torch.arange(12) % 3))
    model.initialise_from_data(batch)
    comes_back(model, batch)
    torch.testing.assert_close(*log_det_of(model, batch))
    assert set(model.loss(batch)) == {"nll", "other"}
    cycled = built(CFlow, space, cycle=2.0)
    assert cycled.loss(batch)["cycle"].shape == (12,)


def test_the_cycle_term_brings_the_code_0_nearer_to_the_second():
    """In as many steps, with the same weights at first."""
    generator, space = make_generator(0), replace(VECTOR, given={"source": VECTOR})
    a, noise = torch.randn(2, 200, 3, generator=generator)
    batch = Batch(a.flip(1) * a.roll(1, 1) + 0.3 * noise, {"source": Batch(a)})
    missed = {}
    for cycle in (0.0, 10.0):
        torch.manual_seed(4)
        model = replace(CFlow.smallest_config(space), cycle=cycle).build(space)
        model.initialise_from_data(batch)
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(40):
            optimiser.zero_grad()
            sum(term.mean() for term in model.loss(batch).values()).backward()
            optimiser.step()
        decoded = model.decode(torch.zeros(200, 3), batch.given)
        missed[cycle] = float((decoded - batch.x).abs().mean())
    assert missed[10.0] < 0.9 * missed[0.0]


def test_the_second_reads_the_first_at_every_depth():
    """What a coupling of the second reads changes with what enters that of the first."""
    space = replace(VECTOR, given={"source": VECTOR})
    model = built(CFlow, space, layers=3)
    a = torch.randn(1, 3, generator=make_generator(0)).double()
    encoded = model.context({"source": Batch(a)}, 1).reshape(3, 3)
    state = a
    for number, part in reversed(list(enumerate(model.other.each()[0].each()))):
        if number % 2 == 0:
            torch.testing.assert_close(encoded[number // 2], state[0])
        state, _ = part.inverse(state, a.new_zeros(1, 0))


def test_the_first_flow_is_a_model_of_its_own():
    """Its log-determinant is that of autograd, and its loss is -log p(a)."""
    space = replace(VECTOR, given={"source": VECTOR})
    model = built(CFlow, space)
    a, b = torch.randn(2, 5, 3, generator=make_generator(0)).double()
    loss = model.loss(Batch(b, {"source": Batch(a)}))
    again = model.loss(Batch(b + 1, {"source": Batch(a)}))
    torch.testing.assert_close(loss["other"], again["other"])
    assert not torch.equal(loss["nll"], again["nll"])
    nothing = a.new_zeros(1, 0)
    matrix = torch.autograd.functional.jacobian(
        lambda v: model.other.inverse(v, nothing)[0][0], a[:1]
    )[:, 0]
    z, log_det = model.other.inverse(a[:1], nothing)
    torch.testing.assert_close(torch.linalg.slogdet(matrix)[1], log_det[0])
    expected = -(torch.distributions.Normal(0, 1).log_prob(z).sum() + log_det[0])
    torch.testing.assert_close(loss["other"][0], expected)


@pytest.mark.parametrize("owner", [CFlow, AttributeFlow])
def test_a_transfer_keeps_the_code_and_goes_back(owner):
    space = replace(VECTOR, given={"source": VECTOR, "label": LABEL})
    model = built(owner, space)
    x, a, other = (torch.randn(6, 3, generator=make_generator(seed)).double() for seed in range(3))
    a, other = a.clamp(-1, 1), other.clamp(-1, 1)
    batch = Batch(x, {"source": Batch(a), "label": Batch(torch.arange(6) % 3)})
    moved = model.transfer(batch, {"source": Batch(other)})
    assert (moved - x).abs().max() > 1e-3
    there = replace(batch, x=moved, given={**batch.given, "source": Batch(other)})
    torch.testing.assert_close(model.encode(there), model.encode(batch))
    torch.testing.assert_close(model.transfer(there, {"source": Batch(a)}), x)
    one = model.transfer(batch, {"label": Batch(torch.tensor([2]))})
    assert torch.equal(one[2], one[2])
    torch.testing.assert_close(one[2], x[2])  # it was 2 already


def test_editing_an_attribute_moves_what_it_means():
    """x = (shape, size + attribute): after a fit, another attribute moves the second alone."""
    g = make_generator(0)
    flag = torch.randint(0, 2, (600,), generator=g)
    x = torch.randn(600, 2, generator=g) * torch.tensor([1.0, 0.3])
    x[:, 1] += 2.0 * flag
    space = Space(
        kind="real",
        shape=(2,),
        mean=(0.0, 1.0),
        scale=(1.0, 1.04),
        rows=600,
        given={"flag": Space(kind="binary", size=2, name="flag", rows=600)},
    )
    torch.manual_seed(0)
    model = replace(AttributeFlow.smallest_config(space), kind="affine").build(space)
    batch = Batch(x, {"flag": Batch(flag.float())})
    model.initialise_from_data(batch)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        model.loss(batch)["nll"].mean().backward()
        optimiser.step()
    off = batch[flag == 0]
    moved = model.transfer(off, {"flag": Batch(torch.ones(1))}) - off.x
    assert abs(moved[:, 1].mean() - 2) < 0.2
    assert moved[:, 0].abs().mean() < 0.3


def test_what_attribute_and_cflow_refuse():
    assert "--given" in AttributeFlow.unsupported_reason(VECTOR)
    assert "maf" in AttributeFlow.unsupported_reason(
        replace(VECTOR, shape=(1,), given={"label": LABEL})
    )
    assert "+edges" in CFlow.unsupported_reason(replace(VECTOR, given={"label": LABEL}))
    assert "maf" in CFlow.unsupported_reason(replace(VECTOR, shape=(1,), given={"source": VECTOR}))
    age = Space(kind="real", name="age", mean=(40.0,), scale=(9.0,), low=(18.0,), high=(90.0,))
    space = replace(VECTOR, given={"age": age, "label": LABEL})
    model, x = built(AttributeFlow, space), torch.randn(2, 3).double()

    def given(years, code):
        return {"age": Batch(torch.tensor([years, 30.0])), "label": Batch(torch.tensor([code, 0]))}

    model.likelihood(Batch(x, given(20.0, 1)))
    for years, code, value in (
        (1e6, 1, "age=1e[+]06"),
        (float("nan"), 1, "age=nan"),
        (30.0, 7, "label=7"),
    ):
        with pytest.raises(DataError, match=value):
            model.likelihood(Batch(x, given(years, code)))


@pytest.mark.parametrize("factor", [3, 4])
@pytest.mark.parametrize("kind", ["levels", "real"])
def test_images_are_enlarged_by_any_whole_factor(factor, kind):
    whole = replace(LEVELS, shape=(1, 4 * factor, 2 * factor))
    small = replace(LEVELS, shape=(1, 4, 2), kind=kind)
    model = built(Superres, replace(whole, given={"source": small}))
    x = torch.randint(0, 16, (6, *whole.shape), generator=make_generator(0)).double()
    low = F.avg_pool2d(x, factor)
    batch = Batch(x, {"source": Batch(low if kind == "real" else low.round())})
    with torch.no_grad():  # codes of moderate means, which their interval can hold
        for parameter in model.parameters():
            parameter.mul_(0.3)
    comes_back(model, batch)
    assert torch.equal(model.decode(model.encode(batch), batch.given), x)
    made = model.sample(6, batch.given, model.SamplingConfig(temperature=2.0), make_generator(0))
    assert (model.shrink(made) - batch.given["source"].x).abs().max() <= model.slack + 1e-6
    if factor == 3:
        torch.testing.assert_close(*log_det_of(model, batch))


def test_pairs_that_are_no_means_are_learned_and_not_enforced():
    space = replace(LEVELS, given={"source": SMALL})
    batch = pair()
    other = replace(batch, given={"source": Batch(15 - batch.given["source"].x)})
    with pytest.raises(DataError, match="pairs=any"):
        built(Superres, space).likelihood(other)
    model = built(Superres, space, pairs="any")
    comes_back(model, other)
    torch.testing.assert_close(*log_det_of(model, other))
    assert torch.equal(model.decode(model.encode(other), other.given), other.x)
    assert model.likelihood(other).kind == "bound"
    assert "low_resolution_error_of_real_rows" in enlargements(model, other)
