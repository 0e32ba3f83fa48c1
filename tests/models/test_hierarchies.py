"""Codes in levels: their bound against the evidence, the rate of each, and who sees whom."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.latent._encoder_decoder import DenseEncoderDecoder
from monge.models.latent._hierarchy import HierarchicalModel, LevelGaussian
from monge.models.latent.hvae import HVAE
from monge.models.latent.mhvae import MHVAE
from monge.nn.mlp import MLP

BITS = Space(kind="binary", shape=(6,), mean=(0.5,))
KINDS = [
    HVAE.Config(),
    HVAE.Config(inference="bottom-up"),
    MHVAE.Config(),
    HVAE.Config(inference="ladder"),
]


def named(config: HierarchicalModel.Config) -> str:
    return f"{type(config).owner.__name__}-{getattr(config, 'inference', 'chain')}"


def build(
    config: HierarchicalModel.Config,
    latent: tuple[int, ...] = (1, 1),
    std: float = 0.25,
    space: Space = BITS,
    **settings: object,
) -> HierarchicalModel:
    config = replace(
        config,
        latent=latent,
        summary=6,
        net=DenseEncoderDecoder.Config(width=8, depth=1),
        level_net=MLP.Config(width=6, depth=1),
        **settings,
    )
    model = config.build(space).double().eval()
    generator = make_generator(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return model


def rows(n: int = 12) -> Batch:
    x = (torch.rand(n, 6, generator=make_generator(3)) < 0.5).double()
    return Batch(x, row=torch.arange(n))


@torch.no_grad()
def evidence(model: HierarchicalModel, batch: Batch) -> Tensor:
    grid = torch.linspace(-8, 8, 65, dtype=torch.float64)
    z = torch.cartesian_prod(grid, grid)[:, None].expand(-1, len(batch), -1)
    return model.log_joint(batch, z).logsumexp(0) + 2 * math.log(grid[1] - grid[0])


@pytest.mark.parametrize("config", KINDS, ids=named)
def test_the_bound_rises_to_the_evidence(config):
    model, batch = build(config, std=0.15), rows()
    truth = evidence(model, batch).mean().item()
    options = type(model).LikelihoodConfig
    again = Batch(batch.x.repeat(100, 1))
    with torch.no_grad():
        one, many = (
            model.likelihood(each, options(samples=k), make_generator(0)).value.mean().item()
            for each, k in ((again, 1), (batch, 2000))
        )
    assert one < truth - 0.01
    assert many == pytest.approx(truth, abs=0.05)


@pytest.mark.parametrize("config", KINDS, ids=named)
def test_samples_follow_the_distribution_that_is_scored(config):
    model = build(config)
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * 6)
    log_p = evidence(model, Batch(states))
    assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-6)
    x = model.sample(20_000, generator=make_generator(0))
    share = x.mean(0) - (log_p.exp()[:, None] * states).sum(0)
    assert share.abs().max() < 4 * 0.5 / 20_000**0.5


@pytest.mark.parametrize("config", KINDS, ids=named)
def test_level_kls_add_up_to_the_kl(config):
    model, batch = build(config, (2, 3, 1)), rows(4)
    with torch.no_grad():
        z = model.infer(
            batch, torch.randn(4000, 4, 6, generator=make_generator(0), dtype=torch.float64)
        )
        ratio = model.log_posterior(batch, z) - model.log_prior(batch, z)
        each = model.level_kls(batch, z)
    assert each.shape == (4000, 4, 3)
    gap = each.sum(-1) - ratio
    assert (gap.mean(0).abs() < 5 * gap.std(0) / 4000**0.5 + 1e-12).all()
    with torch.no_grad():
        terms = model.terms(batch, generator=make_generator(0))
        score = model.likelihood(
            batch, type(model).LikelihoodConfig(samples=1), make_generator(0)
        ).value
    assert list(terms) == ["reconstruction", "kl_1", "kl_2", "kl_3"]
    torch.testing.assert_close(-sum(terms.values()), score)
    if model.top_down:
        assert (each >= 0).all()
        assert each.sum(-1).std() < ratio.std()


@pytest.mark.parametrize("config", KINDS, ids=named)
@torch.no_grad()
def test_rates_are_ratios_with_less_noise(config):
    model, batch = build(config, (2, 3, 1), std=0.1), rows(4)
    noise = torch.randn(4000, 4, 6, generator=make_generator(0), dtype=torch.float64)
    code = model.sample_posterior(*model.encoder_outputs(batch), noise)
    ratios, kls = code.log_ratios.sum(-1), code.kl_terms().sum(-1)  # (4000, 4)
    gap = ratios - kls
    assert (gap.mean(0).abs() < 5 * gap.std(0) / 4000**0.5).all()
    assert kls.std(0).mean() < 0.9 * ratios.std(0).mean()
    assert torch.equal(code.kl_terms(monte_carlo=True), code.log_ratios)


def changes(model: HierarchicalModel, call, level: int) -> list[bool]:
    """Of each level, whether moving its code changes the result of `call` for `level`."""
    z = torch.zeros(1, 1, sum(model.widths), dtype=torch.float64)
    before, found = call(z, level), []
    for t in model.levels:
        moved = z.clone()
        moved.split(model.widths, -1)[t].add_(1.0)
        after = call(moved, level)
        found.append(not torch.equal(before.mean, after.mean))
    return found


@pytest.mark.parametrize(
    ("config", "up", "down", "seen"),
    [
        (KINDS[0], [False, False, True], [False, False, True], [True, True, True]),
        (KINDS[1], [False, False, True], [True, False, False], [True, True, True]),
        (KINDS[2], [False, False, True], [True, False, False], [True, False, False]),
        (KINDS[3], [False, False, True], [False, False, True], [True, True, True]),
    ],
    ids=str,
)
@torch.no_grad()
def test_who_sees_whom(config, up, down, seen):
    """Of the middle of three levels: p reads what is above it, q what precedes it; x reads all,
    or in a Markov chain the bottom alone."""
    model, batch = build(config, (2, 2, 2)), rows(1)

    def prior(z: Tensor, level: int) -> LevelGaussian:
        return model.path_of(batch, z).p[level]

    def posterior(z: Tensor, level: int) -> LevelGaussian:
        return model.path_of(batch, z).q[level]

    assert changes(model, prior, 1) == up
    assert changes(model, posterior, 1) == down
    bottom = changes(model, prior, 0)
    assert bottom == ([False, True, False] if isinstance(model, MHVAE) else [False, True, True])
    z, none = torch.zeros(3, 6).double(), torch.zeros(3, 0).double()
    moved = z.clone()
    for t in model.levels:
        moved[t, 2 * t : 2 * t + 2] = 1.0
    changed = (model.params(moved, none) != model.params(z, none)).any(1)
    assert changed.tolist() == seen


def test_only_the_bottom_of_a_markov_chain_reads_the_row():
    model = build(KINDS[2], (2, 2, 2))
    z = torch.zeros(1, 2, 6).double()
    path = model.path_of(rows(2), z)
    assert not torch.equal(path.q[0].mean[0, 0], path.q[0].mean[0, 1])
    assert torch.equal(path.q[1].mean[0, 0], path.q[1].mean[0, 1])


def test_one_level_is_a_vae():
    model, batch = build(HVAE.Config(), (2,)), rows()
    z = torch.randn(5, 12, 2, generator=make_generator(0), dtype=torch.float64)
    normal = torch.distributions.Normal(0.0, 1.0)
    torch.testing.assert_close(model.log_prior(batch, z), normal.log_prob(z).sum(-1))


def test_conditions_reach_every_level():
    given = {"label": Space(kind="label", size=2)}
    model = build(HVAE.Config(), (2, 2), space=replace(BITS, given=given))
    out = [{"label": Batch(torch.tensor([code]))} for code in (0, 1)]
    first, second = (
        model.sample_prior(5, model.context(each, 5), make_generator(0)) for each in out
    )
    assert torch.equal(first[:, 2:], second[:, 2:])  # the top is N(0, I)
    assert (first[:, :2] != second[:, :2]).all()


def test_refining_and_completing_work_through_levels():
    model = build(HVAE.Config(), (2, 2))
    batch = rows(200)
    options = HVAE.LikelihoodConfig
    with torch.no_grad():
        plain, own = (
            model.likelihood(
                batch, options(samples=1, refine=steps), make_generator(0)
            ).value.mean()
            for steps in (0, 30)
        )
    assert own > plain + 0.05
    seen = torch.arange(6).expand(200, 6) < 3
    filled = model.complete(replace(batch, observed=seen), generator=make_generator(0))
    assert torch.equal(filled[seen], batch.x[seen])
    assert set(filled.unique().tolist()) == {0.0, 1.0}


def test_invalid_settings_are_refused():
    with pytest.raises(UsageError, match="latent=32,16"):
        HVAE.Config(latent=())
    with pytest.raises(UsageError, match=r"estimator=B.*estimator=A"):
        build(MHVAE.Config(estimator="B"))
    with pytest.raises(UsageError, match="latent=8"):
        build(HVAE.Config(), (5, 3))
    assert HVAE.Config().override("latent=8,4,2").latent == (8, 4, 2)
