"""The two players of the WGAN: who moves what, what holds the critic, what samples are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.adversarial._lipschitz import (
    Clipping,
    Constraint,
    Penalty,
    Spectral,
    norm_bound,
)
from monge.models.adversarial.wgan import WGAN
from monge.nn.mlp import MLP

REAL = Space(kind="real", shape=(3,), mean=(1.0, -2.0, 10.0), scale=(2.0, 0.5, 4.0))
LEVELS = Space(kind="levels", shape=(1, 2, 2), size=5)
LABEL = {"label": Space(kind="label", size=3)}
HELD = [Penalty.Config(), Clipping.Config(bound=0.05), Spectral.Config()]


def wgan(space: Space, constraint: Constraint.Config = HELD[0], **settings: object) -> WGAN:
    config = replace(WGAN.smallest_config(space), constraint=constraint, **settings)
    torch.manual_seed(0)
    return config.build(space).double()


def rows(space: Space, n: int = 32) -> Batch:
    x = torch.rand(n, *space.shape, generator=make_generator(1), dtype=torch.float64)
    x = (5 * x).floor() if space.kind == "levels" else 3 * x
    codes = torch.arange(n) % 3
    return Batch(x, {name: Batch(codes) for name in space.given})


def largest(model: WGAN) -> float:
    return max(p.abs().max().item() for p in model.critic.parameters())


@pytest.mark.parametrize("constraint", HELD, ids=lambda c: c.owner.__name__)
def test_the_players_share_all_parameters_and_none_twice(constraint):
    model = wgan(replace(LEVELS, given=LABEL), constraint)
    moved = [id(p) for update in model.updates() for p in update.params]
    assert sorted(moved) == sorted(id(p) for p in model.parameters())
    names = [update.name for update in model.updates()]
    assert names.index("critic") < names.index("generator")
    assert ("clip" in names) is isinstance(model.constraint, Clipping)
    assert next(update.repeat for update in model.updates() if update.name == "critic") == 5


@pytest.mark.parametrize("constraint", HELD, ids=lambda c: c.owner.__name__)
def test_a_players_loss_moves_that_player_alone(constraint):
    model = wgan(REAL, constraint)
    for update in model.updates():
        losses = update.loss(rows(REAL))
        if update.params:
            total = torch.stack([term.mean() for term in losses.values()]).sum()
            grads = torch.autograd.grad(total, list(update.params), allow_unused=True)
            # a last bias shifts all verdicts alike, so that no gap can feel it
            felt = [
                g is not None and bool(g.abs().max() > 0)
                for p, g in zip(update.params, grads, strict=True)
                if p is not model.critic.out.bias
            ]
            assert all(felt), update.name


def test_every_weight_is_clipped_before_it_is_used_and_after_it_moved():
    model = wgan(REAL, Clipping.Config(bound=0.05))
    critic, clip, *_ = model.updates()
    assert largest(model) > 0.05
    critic.loss(rows(REAL))
    assert largest(model) == 0.05
    with torch.no_grad():
        for parameter in critic.params:
            parameter += 1.0
    assert clip.loss(rows(REAL))["at_bound"].item() == 1.0
    assert largest(model) == 0.05


def test_the_penalty_of_a_linear_critic_is_known():
    model = wgan(REAL, Penalty.Config(weight=7.0), critic=MLP.Config(depth=0, activation="leaky"))
    w = model.critic.out.weight
    norm = w.norm()
    penalty = model.critic_loss(rows(REAL))["penalty"]
    torch.testing.assert_close(penalty, (7 * (norm - 1) ** 2).expand(32))
    (grad,) = torch.autograd.grad(penalty.mean(), w)
    torch.testing.assert_close(grad, 14 * (norm - 1) * w / norm)


def test_the_penalty_is_taken_with_respect_to_the_event_alone():
    model = wgan(replace(REAL, given=LABEL), critic=MLP.Config(depth=0, activation="leaky"))
    slope = model.critic.out.weight[0, :3].norm()
    penalty = model.critic_loss(rows(model.space))["penalty"]
    torch.testing.assert_close(penalty, (10 * (slope - 1) ** 2).expand(32))


@pytest.mark.parametrize("space", [REAL, LEVELS], ids=lambda s: s.kind)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_critic_is_no_steeper_than_the_product_of_its_norms(space, depth):
    model = wgan(space, critic=MLP.Config(width=8, depth=depth, activation="leaky"))
    norms = [torch.linalg.matrix_norm(layer.weight, 2) for layer in model.critic_layers()]
    assert len(norms) == depth + 1
    a, b = (rows(space, 500).x[torch.randperm(500, generator=make_generator(s))] for s in (1, 2))
    far = model.criticise(Batch(a)) - model.criticise(Batch(b))
    points = [model.coordinates.to_network(x, dequantise=False) for x in (a, b)]
    reach = torch.stack(norms).prod() * (points[0] - points[1]).norm(dim=1)
    assert (far.abs() <= reach * (1 + 1e-12)).all()


def test_the_critic_measures_how_far_the_fakes_are():
    """All fakes are 0 and the data lie around 1, so W_1 = 1; the best slope s of the penalised
    gap s - 10 (s - 1)^2 is 1.05. From a slope of -1 the penalty would not let it escape."""
    space = Space(kind="real", shape=(1,))
    model = wgan(space, critic=MLP.Config(width=16, depth=1, activation="leaky"))
    for parameter in model.generator.parameters():
        torch.nn.init.zeros_(parameter)
    batch = Batch(1 + 0.1 * torch.randn(64, 1, generator=make_generator(0), dtype=torch.float64))
    if model.monitor(batch)["wasserstein"].mean() < 0:
        model.critic.out.weight.data.neg_()
    adam = torch.optim.Adam(model.critic.parameters(), 0.01, betas=(0.0, 0.9))
    for _ in range(200):
        adam.zero_grad()
        torch.stack([term.mean() for term in model.critic_loss(batch).values()]).sum().backward()
        adam.step()
    distance = model.monitor(batch)["wasserstein"].mean().item()
    assert distance == pytest.approx(1.05, abs=0.05)


def test_samples_are_levels():
    x = wgan(LEVELS).sample(500, generator=make_generator(0))
    assert x.shape == (500, 1, 2, 2)
    assert set(x.unique().tolist()) <= set(range(5))


@torch.no_grad()
def test_saturated_generators_reach_the_end_levels():
    model = wgan(LEVELS)
    for weight, level in ((50.0, 4.0), (-50.0, 0.0)):
        model.generator.out.bias.fill_(weight)
        assert (model.sample(20, generator=make_generator(0)) == level).all()


@torch.no_grad()
def test_real_samples_are_in_the_units_of_the_data():
    model = wgan(REAL)
    model.generator.out.weight.zero_()
    model.generator.out.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
    expected = torch.tensor([1.0, -1.5, 6.0]).double().expand(4, 3)
    torch.testing.assert_close(model.sample(4), expected)


@pytest.mark.parametrize("space", [REAL, LEVELS], ids=lambda s: s.kind)
def test_a_real_event_survives_the_players_coordinates(space):
    model, x = wgan(space), rows(space).x
    for dequantise in (False, True):
        back = model.coordinates.to_data(model.coordinates.to_network(x, dequantise))
        torch.testing.assert_close(back, x.reshape(32, -1))


@torch.no_grad()
def test_large_outputs_meet_the_ends_of_many_levels():
    """Background at level 0 is met by any large output, not by one value inside the range."""
    space = Space(kind="levels", shape=(2,), size=256, high=(255.0,), rows=10)
    coordinates = wgan(space).coordinates
    every = torch.arange(256.0).double()[:, None].expand(-1, 2)
    for dequantise in (False, True):
        y = coordinates.to_network(every, dequantise)
        assert y.min() == -1
        assert y.max() == 1
        assert torch.equal(coordinates.to_data(y), every)
    out = torch.tensor([[-4.0, 4.0], [-20.0, 20.0]]).double()
    ends = coordinates.to_data(coordinates.bound(out))
    assert torch.equal(ends, torch.tensor([[0.0, 255.0]] * 2).double())


def test_samples_are_decoded_noise_and_use_the_label():
    model = wgan(replace(REAL, given=LABEL))

    def sample_label(code: int) -> Tensor:
        return model.sample(6, {"label": Batch(torch.tensor([code]))}, generator=make_generator(3))

    z = torch.randn(6, 2, generator=make_generator(3), dtype=torch.float64)
    label = {"label": Batch(torch.full((6,), 1))}
    torch.testing.assert_close(sample_label(1), model.decode(z, label), atol=0, rtol=0)
    assert (sample_label(1) != sample_label(2)).all()


def test_the_constraint_is_chosen_by_an_override():
    config = WGAN.Config().override("constraint.bound=0.1", "constraint=clipping")
    assert config.constraint == Clipping.Config(bound=0.1)
    assert WGAN.Config.from_dict(config.to_dict()) == config
    with pytest.raises(UsageError, match=r"constraint=cliping.*clipping"):
        WGAN.Config().override("constraint=cliping")


@pytest.mark.parametrize("setting", ["critic.activation=silu", "critic.residual=true"])
def test_a_critic_of_unknown_slope_is_refused(setting):
    with pytest.raises(UsageError, match=re.escape(setting)):
        WGAN.Config().override(setting)


def test_spectral_normalisation_makes_the_critic_one_lipschitz():
    model = wgan(REAL, Spectral.Config(passes=3))
    for _ in range(20):  # power iteration converges over uses
        model.critic_loss(rows(REAL))
    model.eval()
    monitored = model.monitor(rows(REAL))
    assert monitored["lipschitz_bound"].item() == pytest.approx(1.0, abs=1e-3)
    assert monitored["max_gradient"].item() <= 1.001
    loose = wgan(REAL)
    assert loose.monitor(rows(REAL))["max_gradient"] <= loose.monitor(rows(REAL))[
        "lipschitz_bound"
    ] * (1 + 1e-9)


def test_diagnostics_name_a_flat_and_a_steep_critic():
    model = wgan(REAL, Clipping.Config(bound=1e-4))
    model.clip(rows(REAL))
    (flat,) = model.diagnose(rows(REAL))
    assert flat.name == "flat critic"
    assert "constraint.bound=0.0001" in flat.remedy
    model = wgan(REAL)
    with torch.no_grad():
        for layer in model.critic_layers():
            layer.weight.mul_(10)
    (steep,) = model.diagnose(rows(REAL))
    assert steep.name == "steep critic"
    assert "constraint.weight=10" in steep.remedy


def test_a_batch_of_one_is_refused():
    model = wgan(REAL).train()
    with pytest.raises(UsageError, match=r"\b2\b.*\b1\b.*train\.batch_size"):
        model.critic_update(rows(REAL)[:1])


def test_labels_that_are_all_alike_are_refused():
    alone = {"label": Space(kind="label", size=1, name="label")}
    assert re.search(
        r"\b2\b.*\blabel\b.*\b1\b", WGAN.unsupported_reason(replace(REAL, given=alone))
    )
    assert WGAN.unsupported_reason(replace(REAL, given=LABEL)) is None


IMAGE = Space(kind="levels", shape=(1, 6, 5), size=5, rows=100)


@pytest.mark.parametrize("constraint", HELD, ids=lambda c: c.owner.__name__)
def test_convolutional_players_share_all_parameters(constraint):
    given = {"label": LABEL["label"], "small": Space(kind="levels", shape=(1, 3, 3), size=5)}
    space = replace(IMAGE, given=given)
    model = wgan(space, constraint, image_net="conv", width=4).train()
    moved = [id(p) for update in model.updates() for p in update.params]
    assert sorted(moved) == sorted(id(p) for p in model.parameters())
    batch = Batch(
        rows(IMAGE).x,
        {"label": Batch(torch.arange(32) % 3), "small": Batch(torch.ones(32, 1, 3, 3).double())},
    )
    for update in model.updates():
        assert all(bool(term.isfinite().all()) for term in update.loss(batch).values())
    model.eval()
    assert model.sample(7, batch[:7].given).shape == (7, 1, 6, 5)
    whole, alone = model.criticise(batch), model.criticise(batch[:1])
    assert torch.allclose(whole[:1], alone)


@pytest.mark.parametrize(("kernel", "stride"), [(4, 2), (3, 2), (3, 1), ((2, 3), 1)])
def test_the_norm_of_a_convolution_stays_below_its_bound(kernel, stride):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(2, 3, kernel, stride, 1, bias=False).double()
    columns = layer(torch.eye(2 * 6 * 5).double().unflatten(1, (2, 6, 5))).flatten(1)
    exact = torch.linalg.matrix_norm(columns, 2)
    assert 0.3 * norm_bound(layer) < exact <= norm_bound(layer)


def test_clipping_comes_with_a_bound_that_suits_the_critic():
    plain = WGAN.defaults_with(REAL, {})
    clipped = WGAN.defaults_with(REAL, {"constraint": "clipping"})
    assert isinstance(plain.config.constraint, Penalty.Config)
    own = clipped.config.override("constraint=clipping").constraint
    assert isinstance(own, Clipping.Config)
    assert own.bound == pytest.approx(clipped.config.critic.width**-0.5, rel=0.1)
    wide = WGAN.defaults_with(replace(IMAGE, shape=(1, 28, 28)), {"constraint": "clipping"})
    assert wide.config.constraint.bound < own.bound
