"""Latent-variable models of tables with empty cells, atoms and bounds, and cells that hide
themselves."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from mixed_table import (
    DISCRETE,
    REALS,
    completion_error,
    discrete_rows,
    questions,
    real_rows,
    states,
    table,
    total,
)

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.latent._encoder_decoder import DenseEncoderDecoder
from monge.models.latent._self_masking import LEARNING_SPEED
from monge.models.latent.hvae import HVAE
from monge.models.latent.mhvae import MHVAE
from monge.models.latent.vae import VAE
from monge.nn.mlp import MLP

NET = DenseEncoderDecoder.Config(width=8, depth=1)
LEVELS = {"latent": (1, 1), "summary": 4, "net": NET, "level_net": MLP.Config(width=4, depth=1)}
CONFIGS = {
    "vae": VAE.Config(latent=1, net=NET),
    "hvae": HVAE.Config(**LEVELS),
    "mhvae": MHVAE.Config(**LEVELS),
}
every = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
HIDDEN = Space(kind="real", optional=True, mean=(-0.6,), scale=(0.7,), rows=600)
SEEN = Space(kind="real", mean=(0.0,), scale=(1.0,), rows=600)


def built(config, space: Space, x: torch.Tensor, strength: float = 1.5):
    """A model with strong dependence on its codes, in double precision."""
    torch.manual_seed(3)
    model = config.build(space)
    model.initialise_from_data(Batch(x.float()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(strength * torch.randn_like(parameter) / max(parameter.shape) ** 0.5)
    return model.double().eval()


class Quadrature:
    """A VAE of one latent unit whose likelihood is an integral over it."""

    def __init__(self, model: VAE) -> None:
        self.model, self.z = model, torch.linspace(-8, 8, 801, dtype=torch.float64)

    @torch.no_grad()
    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        batch, z = Batch(x), self.z[:, None, None].expand(-1, len(x), 1)
        return self.model.log_joint(batch, z).logsumexp(0) + (16 / 800 * torch.ones(())).log()

    def complete(self, *question):
        return self.model.complete(*question)

    def complete_several(self, *question):
        return self.model.complete_several(*question)


@every
def test_the_bound_of_discrete_tables_sums_to_at_most_one(config):
    model = built(config, DISCRETE, discrete_rows(), strength=0.7)
    options, rows = model.LikelihoodConfig(samples=1), states(DISCRETE)
    with torch.no_grad():
        each = [model.likelihood(rows, options, make_generator(k)).value for k in range(100)]
    assert 0.005 < float(torch.stack(each).mean(0).exp().sum()) <= 1  # the mean is a bound


def test_the_likelihood_itself_sums_to_one():
    model = Quadrature(built(CONFIGS["vae"], DISCRETE, discrete_rows()))
    assert total(model, DISCRETE) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("draws", "samples"), [(1, 200), (25, 400)])
def test_completions_follow_the_conditional_given_present(draws, samples):
    model = Quadrature(built(CONFIGS["vae"], DISCRETE, discrete_rows()))
    options = model.model.SamplingConfig(samples=samples, sweeps=2)
    for row, hidden in islice(questions(), 0, None, 2):
        assert completion_error(model, DISCRETE, row, hidden, 500, options, draws) < 5


@every
def test_completions_stay_within_bounds_and_are_never_empty(config):
    model = built(config, REALS, real_rows(), strength=0.3)
    for seen in ([False, True], [True, False], [False, False]):
        observed, x = torch.tensor(seen).expand(60, 2), real_rows(60, 5)
        done = model.complete(Batch(x, observed=observed), generator=make_generator(0))
        assert not bool((done.isnan() & ~observed).any())
        assert torch.equal(done.isnan() & observed, x.isnan() & observed)
        share = done[:, 0][~done[:, 0].isnan()]
        assert bool(((share >= 0) & (share <= 1)).all())


def self_masked_rows(n: int = 600, seed: int = 0) -> torch.Tensor:
    """Two correlated numbers, the first of which is empty above 0."""
    z = torch.randn(n, 2, generator=make_generator(seed), dtype=torch.float64)
    first = 0.8 * z[:, 0] + 0.6 * z[:, 1]
    return torch.stack([torch.where(first > 0, torch.nan, first), z[:, 0]], 1)


def masked(components: int = 1, slope: float = -1.5, strength: float = 0.7) -> VAE:
    config = VAE.Config(latent=1, net=NET, missing_mechanism="self", components=components)
    model = built(config, table(HIDDEN, SEEN), self_masked_rows(), strength)
    with torch.no_grad():
        model.masking.slope.fill_(slope / LEARNING_SPEED)
        model.masking.offset.fill_(0.3 / LEARNING_SPEED)
        model.nets.encoder.out.weight.zero_()  # q is the prior, which covers every posterior
        model.nets.encoder.out.bias.zero_()
    return model


@pytest.mark.parametrize("components", [1, 3])
def test_values_that_hide_themselves_integrate_to_one(components):
    """Over the first number and its empty cell, given the second and the code."""
    model, n = masked(components), 4001
    first = torch.linspace(-20, 20, n, dtype=torch.float64)
    first = torch.cat([first, torch.full_like(first[:1], torch.nan)])
    x = torch.stack([first, torch.full_like(first, 0.3)], 1)
    z = torch.tensor([[-1.2], [0.4]], dtype=torch.float64)[:, None].expand(-1, n + 1, -1)
    with torch.no_grad():
        log_p = model.log_given_code(Batch(x), z, model.context({}, n + 1))
        alone = Batch(x[-1:], observed=torch.tensor([[False, True]]))
        second = model.log_given_code(alone, z[:, :1], model.context({}, 1))
    width = torch.full((n + 1,), 40 / (n - 1), dtype=torch.float64)
    width[-1] = 1
    ratio = (log_p.exp() * width).sum(1) / second[:, 0].exp()
    assert ratio.tolist() == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.parametrize("empty", [True, False])
def test_a_hidden_value_is_sampled_by_what_its_flag_says(empty):
    """NaN at an unknown cell is an empty cell; another value was there and is hidden by us."""
    model = masked(slope=-6.0)
    n, held = 2000, torch.nan if empty else 5.0
    x = torch.tensor([held, 0.3], dtype=torch.float64).expand(n, 2)
    batch = Batch(x, observed=torch.tensor([False, True]).expand(n, 2))
    options = model.SamplingConfig(samples=100, sweeps=2)
    done = model.complete(batch, options, make_generator(0))
    assert torch.equal(done[:, 1], x[:, 1])
    grid = torch.linspace(-12, 12, 2401, dtype=torch.float64)
    rows = torch.stack([grid, torch.full_like(grid, 0.3)], 1)
    with torch.no_grad():
        log_p = Quadrature(model).log_prob(rows)
        logit = model.masking.logit(grid[:, None])[:, 0]
        log_p = log_p - logit if empty else log_p  # P(empty) / P(present) = exp(-logit)
    due = log_p.softmax(0)
    mean = float((due * grid).sum())
    error = float(((due * grid.square()).sum() - mean**2).sqrt()) / n**0.5
    assert done[:, 0].mean().item() == pytest.approx(mean, abs=5 * error)


def test_samples_hide_themselves():
    model = masked(slope=-6.0)
    x = model.sample(4000, generator=make_generator(0))
    with torch.no_grad():
        z = torch.linspace(-6, 6, 601, dtype=torch.float64)[:, None]
        params = model.params(z, model.context({}, 601))
        row = torch.tensor([[torch.nan, 0.0]], dtype=torch.float64).expand(601, 2)
        known = torch.zeros(601, 2, dtype=torch.bool)
        flag = model.masking.log_flags(params, row, known, False).exp()
        due = (flag * torch.exp(-z[:, 0].square() / 2)).sum() / torch.exp(-z.square() / 2).sum()
    assert x[:, 0].isnan().double().mean().item() == pytest.approx(float(due), abs=0.03)
    assert not bool(x[:, 1].isnan().any())
    with torch.no_grad():
        logit = model.masking.logit(x[:, :1])[~x[:, 0].isnan()]
    assert float((logit > -3).double().mean()) > 0.95  # what is unlikely to be present is empty


def test_a_threshold_is_learned():
    """Values above 0 hide themselves: their mean is 0.8, that of the others -0.8."""
    x = self_masked_rows(4000).float()
    torch.manual_seed(0)
    config = VAE.Config(latent=2, net=DenseEncoderDecoder.Config(width=32, depth=1),
                        missing_mechanism="self", samples=5, importance_weighted=True)  # fmt: skip
    model = config.build(table(HIDDEN, SEEN))
    model.initialise_from_data(Batch(x))
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(600):
        rows = Batch(x[torch.randint(len(x), (128,))], step=step)
        loss = model.loss(rows)["bound"].mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert bool((model.masking.slope * LEARNING_SPEED < -3).all())
    empty = x[x[:, 0].isnan()][:500]
    batch = Batch(empty, observed=~empty.isnan())
    done = model.eval().complete(batch, model.SamplingConfig(sweeps=1), make_generator(0))
    assert done[:, 0].mean().item() > 0.4


def test_self_masking_needs_numbers_that_may_be_empty():
    with pytest.raises(UsageError, match="missing_mechanism=self"):
        VAE.Config(latent=1, missing_mechanism="self").build(DISCRETE)
