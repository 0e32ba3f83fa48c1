"""GPT sums to one over sequences, and samples with caches as with full passes."""

from __future__ import annotations

import itertools

import pytest
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.gpt import GPT
from monge.nn.attention.transformer import CausalTransformer

BITS = Space(kind="binary", shape=(6,), mean=(0.3,))
LEVELS = Space(kind="levels", shape=(1, 2, 2), size=3, mean=(1.0,), high=(2.0,))
BYTES = Space(kind="levels", shape=(9,), size=256, mean=(100.0,), scale=(50.0,), high=(255.0,))
COLOUR = Space(kind="levels", shape=(3, 2, 2), size=4, mean=(1.0,), high=(3.0,))
REAL = Space(kind="real", shape=(7,), mean=(2.0,), scale=(3.0,))
STEREO = Space(kind="real", shape=(5, 2), mean=(2.0,), scale=(3.0,), varies=True)
GIVEN = {"label": Space(kind="label", size=3)}
NETS = [dict(positions=kind) for kind in ("learned", "sinusoidal", "rotary", "table", "alibi")]
NETS += [dict(attention="linear"), dict(norm="post"), dict(join="concatenate")]


def gpt(space, **fields):
    torch.manual_seed(0)
    net = CausalTransformer.Config(width=8, depth=2, heads=2, expand=2, **fields)
    model = GPT.Config(net=net, components=2).build(space).double().eval()
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model


def named(fields):
    return " ".join(map(str, fields.values()))


@torch.no_grad()
@pytest.mark.parametrize("space", [BITS, LEVELS], ids=["bits", "levels"])
@pytest.mark.parametrize("fields", NETS, ids=named)
def test_probabilities_sum_to_one(space, fields):
    codes = itertools.product(range(space.size or 2), repeat=space.dims)
    x = torch.tensor(list(codes), dtype=torch.float64).reshape(-1, *space.shape)
    log_p = gpt(space, **fields).log_prob(x)
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-12)
    assert float(log_p.std()) > 0.1


@pytest.mark.parametrize(
    "space", [BITS, BYTES, COLOUR, REAL, STEREO], ids=["bits", "bytes", "colour", "real", "stereo"]
)
@pytest.mark.parametrize("fields", NETS, ids=named)
def test_cached_samples_equal_full_passes(space, fields):
    model = gpt(space, **fields)
    quick, slow = (
        model.sample(5, None, GPT.SamplingConfig(cached=cached), make_generator(1))
        for cached in (True, False)
    )
    torch.testing.assert_close(quick, slow, rtol=1e-9, atol=1e-9)


def test_a_sample_uses_its_label():
    model = gpt(Space(**{**vars(BITS), "given": GIVEN}))
    one, two = ({"label": Batch(torch.tensor([code]))} for code in (0, 2))
    x, y = (model.sample(200, given, generator=make_generator(0)) for given in (one, two))
    assert not torch.equal(x, y)
    rows = Batch(x, {"label": Batch(torch.zeros(200, dtype=torch.long))})
    other = Batch(x, {"label": Batch(torch.full((200,), 2))})
    assert not torch.allclose(model.log_prob(rows), model.log_prob(other))


def test_a_prefix_of_an_image_is_completed_and_a_suffix_refused():
    model, x = gpt(LEVELS), torch.ones(3, 1, 2, 2, dtype=torch.float64)
    seen = (torch.arange(4) < 3).reshape(1, 1, 2, 2).expand(3, 1, 2, 2)
    done = model.complete(Batch(x, observed=seen), generator=make_generator(0))
    assert torch.equal(done[seen], x[seen])
    with pytest.raises(DataError, match=r"gpt.*row 0\b.*\b3\b.*\b2\b"):
        model.complete(Batch(x, observed=~seen))


def test_a_vector_is_completed_whatever_is_seen():
    """Particles follow p(x | the last entries), for bits and for numbers in their own units."""
    model, n = gpt(BITS), 800
    row, seen = torch.tensor([0.0, 1, 0, 1, 1, 0]).double(), torch.arange(6) >= 3
    batch = Batch(row.expand(n, 6), observed=seen.expand(n, 6))
    done = model.complete(batch, GPT.SamplingConfig(particles=64), make_generator(0))
    every = torch.cartesian_prod(*[torch.arange(2.0).double()] * 6)
    found = every[((every == row) | ~seen).all(1)]
    due = model.log_prob(found).detach().softmax(0) @ found
    error = (due * (1 - due) / n).sqrt()[:3]
    assert ((done.mean(0) - due)[:3].abs() < 5 * error).all()
    assert torch.equal(done[:, 3:], batch.x[:, 3:])
    model, x = gpt(REAL), torch.full((4, 7), 2.0, dtype=torch.float64)
    seen = (torch.arange(7) >= 5).expand(4, 7)
    done = model.complete(Batch(x, observed=seen), generator=make_generator(0))
    assert torch.equal(done[seen], x[seen])
    assert 0.5 < float(done[~seen].std()) < 20  # scale 3


def test_it_begins_as_the_marginal_of_each_place():
    torch.manual_seed(0)
    x = (torch.rand(500, 6) < torch.linspace(0.1, 0.9, 6)).float()
    model = GPT.smallest_config(BITS).build(BITS).eval()
    model.initialise_from_data(Batch(x))
    share = (x.sum(0) + 0.5) / (len(x) + 1)
    expected = (x * share.log() + (1 - x) * (1 - share).log()).sum(1)
    torch.testing.assert_close(model.log_prob(x), expected, rtol=1e-4, atol=1e-4)


def test_places_are_encoded_once():
    assert gpt(BITS, positions="learned").place is None
    assert gpt(BITS, positions="rotary").place is not None
    assert gpt(STEREO, positions="learned").place is not None  # which channel a step is


def test_the_defaults_fit_the_length():
    expected = {
        7: ("softmax", "rotary"),
        5000: ("linear", "learned"),
        50_000: ("linear", "sinusoidal"),
    }
    for steps, chosen in expected.items():
        net = GPT.defaults(Space(kind="levels", shape=(steps,), size=256)).config.net
        assert (net.attention, net.positions) == chosen


def test_a_sequence_longer_than_its_places_is_refused():
    model = gpt(STEREO, positions="learned")
    with pytest.raises(UsageError, match=r"\b100\b.*\b10\b.*positions=sinusoidal"):
        model.sample(1, None, GPT.SamplingConfig(steps=50), make_generator(0))


def test_a_condition_of_varying_length_needs_an_event_that_varies():
    from monge.registry import check_compatible

    sound = Space(kind="levels", shape=(50,), size=256, high=(255.0,), varies=True, name="sound")
    label = Space(kind="binary", shape=(), given={"sound": sound})
    with pytest.raises(DataError, match="sound"):
        check_compatible("autoregressive.gpt", GPT, label)
