"""Guidance on a model that is known exactly, by a classifier and without one."""

import math
from dataclasses import replace

import pytest
import torch
from known import LABEL, LINE, MEANS, SPREAD, Exact, Known

from monge.core.batch import Batch
from monge.core.config import RunRef
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._denoisers import TransformerDenoiser, UNetDenoiser
from monge.models.diffusion._guidance import Guidance, guided_predictor
from monge.models.diffusion._ode_samplers import DPM
from monge.models.diffusion.ddpm import DDPM
from monge.registry import check_compatible

GIVEN = replace(LINE, given={"label": LABEL})
ONE = {"label": Batch(torch.tensor([1]))}


def build_model(space=GIVEN, drop=0.1):
    return Known(Known.Config(drop=drop), space)


def asked(model, given, n=5, t=0.4, **guidance):
    z = torch.randn(n, 1, generator=make_generator(0), dtype=torch.float64)
    options = model.SamplingConfig(guidance=Guidance(**guidance), guide=guide_of(model))
    return guided_predictor(model, given, n, options)(z, torch.full((n,), t).double())


def guide_of(model):
    return RunRef("a run") if "guide" in model.parts else None


def with_guide(space=LINE, classifier=None):
    model = build_model(space)
    model.parts["guide"] = classifier or Exact()
    return model


def test_gamma_goes_from_unconditional_over_conditional_to_more():
    model = build_model()
    plain, conditional, more = (asked(model, ONE, gamma=gamma).x0 for gamma in (0.0, 1.0, 3.0))
    torch.testing.assert_close(more, 3 * conditional - 2 * plain)
    torch.testing.assert_close(asked(model, ONE, w=2.0).x0, more)
    torch.testing.assert_close(asked(model, {}, gamma=0.0).x0, plain)
    torch.testing.assert_close(asked(model, ONE).x0, conditional)
    assert (more - conditional).abs().max() > 0.1


def test_a_classifier_guides_as_the_model_itself_would():
    """grad log p(z|y) = grad log p(z) + grad log p(y|z), so both ways are one."""
    for gamma in (0.0, 1.0, 2.5):
        free = asked(build_model(), ONE, gamma=gamma)
        guided = asked(with_guide(), ONE, gamma=gamma)
        torch.testing.assert_close(guided.x0, free.x0)
        torch.testing.assert_close(guided.score, free.score)


def test_scores_and_noise_are_combined_as_estimates_of_x_are():
    model = build_model()
    plain, conditional, more = (asked(model, ONE, gamma=gamma) for gamma in (0.0, 1.0, 3.0))
    for kind in ("noise", "score", "velocity"):
        one, two, three = (getattr(each, kind) for each in (plain, conditional, more))
        torch.testing.assert_close(three, 3 * two - 2 * one)


def test_the_weight_follows_time():
    t = torch.tensor([1.0, 0.5, 0.0])
    assert Guidance(gamma=3.0).weight(t)[:, 0].tolist() == [3, 3, 3]
    assert Guidance(gamma=3.0, ramp="linear").weight(t)[:, 0].tolist() == [1, 2, 3]
    assert Guidance(gamma=3.0, ramp="cosine").weight(t)[:, 0].tolist() == pytest.approx([1, 2, 3])
    assert Guidance(gamma=3.0, t_max=0.6, t_min=0.2).weight(t)[:, 0].tolist() == [1, 3, 1]
    outside = asked(build_model(), ONE, gamma=3.0, t_min=0.5).x0
    torch.testing.assert_close(outside, asked(build_model(), ONE, gamma=1.0).x0)


def test_samples_at_one_are_the_conditional_and_above_it_are_purer():
    model, n = build_model(), 4000

    def sampled(gamma):
        options = model.SamplingConfig(
            sampler=DPM.Config(steps=20), guidance=Guidance(gamma=gamma)
        )
        return model.sample(n, ONE, options, make_generator(0))

    conditional, free, more = sampled(1.0), sampled(0.0), sampled(3.0)
    assert abs(conditional.mean() - MEANS[1, 0]) < 5 * SPREAD / math.sqrt(n) + 0.01
    assert abs(conditional.std() - SPREAD) < 0.03
    assert abs(free.mean()) < 0.08
    assert (free < 0).double().mean() > 0.4
    assert (more < 0).double().mean() < (conditional < 0).double().mean() < 0.1


def test_a_stream_ends_in_the_sample_and_guides_completions():
    model = with_guide()
    options = model.SamplingConfig(guide=RunRef("a run"), guidance=Guidance(gamma=2.0))
    *states, last = model.stream(6, ONE, options, make_generator(1))
    assert len(states) == 25
    assert torch.equal(last, model.sample(6, ONE, options, make_generator(1)))
    hidden = Batch(
        torch.full((50, 1), math.nan).double(), ONE, torch.zeros(50, 1, dtype=torch.bool)
    )
    assert model.complete(hidden, options, make_generator(0)).mean() > 0.3


def test_what_cannot_be_guided_is_refused():
    with pytest.raises(UsageError, match="drop=0"):
        asked(build_model(drop=0.0), ONE, gamma=3.0)
    with pytest.raises(UsageError, match=r"gamma.*guide=RUN"):
        asked(build_model(LINE), {}, gamma=3.0)
    with pytest.raises(UsageError, match="gamma=3 and w=1"):
        Guidance(gamma=3.0, w=1.0)
    with pytest.raises(DataError, match="'label'"):
        asked(with_guide(), {})
    with pytest.raises(UsageError, match="guide=a run"):
        guided_predictor(
            build_model(), ONE, 2, build_model().SamplingConfig(guide=RunRef("a run"))
        )
    assert asked(build_model(drop=0.0), ONE, gamma=1.0).x0.isfinite().all()


def test_a_classifier_of_other_data_or_other_noise_is_refused():
    other = Exact()
    other.input_space = replace(LINE, shape=(2,))
    with pytest.raises(DataError, match="real numbers of shape 2"):
        asked(with_guide(classifier=other), ONE)
    other.input_space = replace(LINE, mean=(3.0,))
    with pytest.raises(DataError, match=r"guide=a run.*shape 1"):
        asked(with_guide(classifier=other), ONE)
    with pytest.raises(UsageError, match=r"-12 to 8.*-9 to 10"):
        asked(with_guide(classifier=Exact(high=8.0)), ONE)
    with pytest.raises(UsageError, match="noisy_classifier"):
        asked(with_guide(classifier=build_model()), ONE)


def conditions(kind, n):
    """An image, a text or a vector for each of n rows, and its space."""
    if kind == "image":
        space = Space(kind="real", shape=(1, 4, 4), name=kind, mean=(0.0,), scale=(1.0,), rows=100)
        return space, Batch(torch.randn(n, 1, 4, 4, generator=make_generator(0)))
    if kind == "text":
        space = Space(kind="tokens", shape=(6,), size=5, varies=True, name=kind, rows=100)
        length = torch.randint(1, 7, (n,), generator=make_generator(0))
        codes = torch.randint(0, 5, (n, 6), generator=make_generator(1))
        codes[torch.arange(6) >= length[:, None]] = 77  # padding is no symbol
        return space, Batch(codes, length=length)
    space = Space(kind="real", shape=(3,), name=kind, mean=(0.0,) * 3, scale=(1.0,) * 3, rows=100)
    return space, Batch(torch.randn(n, 3, generator=make_generator(0)))


@pytest.mark.parametrize("kind", ["image", "text", "vector"])
def test_images_texts_and_vectors_are_used_and_guide(kind):
    """Images of half the size, as for super-resolution; texts as long as they are."""
    part, given = conditions(kind, 6)
    space = Space(
        kind="real",
        shape=(1, 8, 8),
        name="x",
        mean=(0.0,),
        scale=(1.0,),
        rows=100,
        given={kind: part},
    )
    check_compatible("ddpm", DDPM, space)
    torch.manual_seed(0)
    model = DDPM.Config(net=UNetDenoiser.Config(width=8, multipliers=(1, 2), blocks=1)).build(
        space
    )
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.eval()
    x = torch.randn(6, 1, 8, 8, generator=make_generator(2))
    assert model.loss(Batch(x, {kind: given}))["denoising"].isfinite().all()
    samples = [
        model.sample(6, {kind: given}, how(model, gamma), make_generator(0)) for gamma in (0, 1, 3)
    ]
    other = model.sample(
        6, {kind: given[torch.arange(5, -1, -1)]}, how(model, 1), make_generator(0)
    )
    assert not torch.allclose(samples[1], other, atol=1e-4)
    assert not torch.allclose(samples[1], samples[2], atol=1e-4)
    torch.testing.assert_close(samples[0], model.sample(6, None, how(model, 0), make_generator(0)))


@pytest.mark.parametrize(
    "net",
    [
        UNetDenoiser.Config(width=4, multipliers=(1, 2), blocks=1),
        TransformerDenoiser.Config(width=8, depth=1, heads=2, patch=4),
    ],
    ids=["unet", "transformer"],
)
def test_symbols_of_texts_are_read_one_by_one(net):
    part, given = conditions("text", 4)
    space = Space(
        kind="real",
        shape=(1, 8, 8),
        name="x",
        mean=(0.0,),
        scale=(1.0,),
        rows=100,
        given={"title": part, "body": part},
    )
    torch.manual_seed(0)
    model = DDPM.Config(net=net).build(space).double().eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    z, t = torch.randn(4, 64, dtype=torch.float64), torch.full((4,), 0.5).double()
    conditional = model.encode_conditions(
        {"title": given, "body": given[torch.tensor([1, 2, 3, 0])]}, 4
    )
    swapped = model.encode_conditions({"title": given, "body": given}, 4).tokens
    prediction = model.predict(z, t, conditional).value
    assert not torch.allclose(
        prediction, model.predict(z, t, replace(conditional, tokens=swapped)).value
    )
    none = model.predict(z, t, conditional.keep_rows(torch.zeros(4, dtype=torch.bool))).value
    torch.testing.assert_close(none, model.predict(z, t).value)
    cut = Batch(given.x[:1, : int(given.length[0])], length=given.length[:1])
    shorter = model.encode_conditions({"title": cut, "body": given[torch.tensor([1])]}, 1)
    torch.testing.assert_close(model.predict(z[:1], t[:1], shorter).value, prediction[:1])


def how(model, gamma):
    return model.SamplingConfig(sampler=DPM.Config(steps=3), guidance=Guidance(gamma=float(gamma)))
