r"""Base of hierarchical VAEs: codes in levels $z_1, ..., z_T$, the bottom one next to the data.

$p(x, z) = p(z_T) \prod_{t<T} p(z_t | \text{levels above}) \, p(x | z)$ with Gaussian factors, and
$\log p(x) \ge E_q [\log p(x | z)] - KL(q(z | x) \| p(z))$, where the KL term is a sum over levels:

$KL(q(z | x) \| p(z)) = \sum_t E_q [\log q(z_t | \cdot) - \log p(z_t | \cdot)]$.

If q is top-down like p, both condition $z_t$ on the same levels, and each term is an analytic
divergence of Gaussians.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import HasLevels
from ...core.batch import Batch
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...prob.distributions import normal_log_prob
from ._elbo import LatentVariableModel
from ._encoder_decoder import DenseEncoderDecoder, concat_context
from ._posterior import PosteriorSample, bound_log_scale


@dataclass(frozen=True)
class LevelGaussian:
    """N(mean, diag(e^{2 log_scale})) of one level."""

    mean: Tensor  # (*S, B, units)
    log_scale: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + self.log_scale.exp() * noise

    def log_prob(self, z: Tensor) -> Tensor:
        """Of each unit."""
        return normal_log_prob((z - self.mean) * (-self.log_scale).exp()) - self.log_scale

    def kl(self, other: LevelGaussian) -> Tensor:
        """KL(self || other) of each unit."""
        gap = (self.mean - other.mean) * (-other.log_scale).exp()
        narrower = self.log_scale - other.log_scale
        return 0.5 * (gap.square() + (2 * narrower).exp() - 1) - narrower

    def times(self, other: LevelGaussian) -> LevelGaussian:
        """The normalised product of both densities: precisions add, means are weighted by them."""
        log_precision = torch.logaddexp(-2 * self.log_scale, -2 * other.log_scale)
        share = (-2 * self.log_scale - log_precision).exp()
        return LevelGaussian(torch.lerp(other.mean, self.mean, share), -log_precision / 2)


@dataclass(frozen=True)
class LevelPath:
    """Codes of all levels with their posteriors and priors, bottom first."""

    z: Sequence[Tensor]  # (S, B, units) each
    q: Sequence[LevelGaussian]
    p: Sequence[LevelGaussian]


class HierarchicalModel(LatentVariableModel, HasLevels):
    """p(x, z) with levels numbered from 0, the bottom, to T - 1, whose prior is N(0, I)."""

    class Config(LatentVariableModel.Config):
        latent: tuple[Annotated[int, Range(1)], ...] = (32, 16)
        """Dimension of each latent level, bottom first."""
        summary: Annotated[int, Range(1)] = 256
        """Encoder outputs that all levels read, besides a mean and a scale for each level."""
        level_net: MLP.Config = MLP.Config(depth=1)
        """Network from the parents of a level to its mean and scale."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.latent:
                raise UsageError(
                    "expected at least one level, found latent empty; give latent=32,16"
                )

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        self.widths = list(config.latent)
        self.levels = range(len(self.widths))
        self.direct = [
            2 * self.widths[t] if self.posterior_reads_data(t) else 0 for t in self.levels
        ]
        decoder_inputs = sum(self.widths[t] for t in self.decoder_levels())
        super().__init__(
            config, space, sum(self.direct) + config.summary, sum(self.widths), decoder_inputs
        )
        if config.estimator == "B" and not self.top_down:
            raise UsageError(
                "estimator=B needs an analytic KL term, which only top-down inference has; "
                "use estimator=A"
            )
        rows = [config.summary if self.direct[t] else 0 for t in self.levels]
        self.priors = nn.ModuleList(
            self.build_level_net(self.prior_parents(t), t, 0) for t in self.levels[:-1]
        )
        self.posteriors = nn.ModuleList(
            self.build_level_net(self.posterior_parents(t), t, rows[t]) for t in self.levels
        )

    def build_level_net(self, others: Sequence[int], level: int, row: int) -> MLP:
        """Network for one level. Its output layer starts at 0, so that p is N(0, I) and q is what
        the encoder outputs for the level, as in a VAE."""
        inputs = row + sum(self.widths[t] for t in others) + self.conditions.width
        net: MLP = self.config.level_net.build(inputs, 2 * self.widths[level])
        nn.init.zeros_(net.out.weight)
        nn.init.zeros_(net.out.bias)
        return net

    @property
    @abc.abstractmethod
    def top_down(self) -> bool:
        """Whether q samples from the top down, as p does."""

    @abc.abstractmethod
    def prior_parents(self, level: int) -> Sequence[int]:
        """The levels that p(z_t | .) reads."""

    @abc.abstractmethod
    def posterior_parents(self, level: int) -> Sequence[int]:
        """The levels that q(z_t | ., x) reads."""

    @abc.abstractmethod
    def posterior_reads_data(self, level: int) -> bool:
        """Whether q(z_t | .) reads the encoder outputs of x."""

    @abc.abstractmethod
    def decoder_levels(self) -> Sequence[int]:
        """The levels that p(x | .) reads."""

    def decoder_input(self, z: Tensor) -> Tensor:
        parts = z.split(self.widths, -1)
        return torch.cat([parts[t] for t in self.decoder_levels()], -1)

    def traverse(
        self, h: Tensor, context: Tensor, choose: Callable[[int, LevelGaussian], Tensor]
    ) -> LevelPath:
        """The levels in the order of q; `choose` returns the code of a level."""
        z: dict[int, Tensor] = {}
        q: dict[int, LevelGaussian] = {}
        p: dict[int, LevelGaussian] = {}
        for t in reversed(self.levels) if self.top_down else self.levels:
            if self.top_down:
                p[t] = self.level_prior(t, z, h, context)
            q[t] = self.with_prior(t, self.level_posterior(t, z, h, context), p.get(t))
            z[t] = choose(t, q[t])
        if not self.top_down:
            p = {t: self.level_prior(t, z, h, context) for t in self.levels}
        return LevelPath(
            [z[t] for t in self.levels], [q[t] for t in self.levels], [p[t] for t in self.levels]
        )

    def level_prior(
        self, level: int, z: dict[int, Tensor], like: Tensor, context: Tensor
    ) -> LevelGaussian:
        if level == self.levels[-1]:
            zero = like.new_zeros(self.widths[-1])
            return LevelGaussian(zero, zero)
        others = torch.cat([z[t] for t in self.prior_parents(level)], -1)
        mean, raw = self.priors[level](concat_context(others, context)).chunk(2, -1)
        return LevelGaussian(mean, bound_log_scale(raw))

    def with_prior(
        self, level: int, q: LevelGaussian, prior: LevelGaussian | None
    ) -> LevelGaussian:
        """q(z_t | ., x) by the network and by p(z_t | levels above), if that is known."""
        return q

    def level_posterior(
        self, level: int, z: dict[int, Tensor], h: Tensor, context: Tensor
    ) -> LevelGaussian:
        """The Gaussian that the network of a level gives."""
        known = [z[t] for t in self.posterior_parents(level)]
        *direct, row = h.split([*self.direct, self.config.summary], -1)
        if self.direct[level]:
            known.append(row.expand(*known[0].shape[:-1], -1) if known else row[None])
        out = self.posteriors[level](concat_context(torch.cat(known, -1), context))
        mean, raw = (out + direct[level] if self.direct[level] else out).chunk(2, -1)
        return LevelGaussian(mean, bound_log_scale(raw))

    def sample_posterior(self, h: Tensor, context: Tensor, noise: Tensor) -> PosteriorSample:
        parts = noise.split(self.widths, -1)
        path = self.traverse(h, context, lambda t, level: level.sample(parts[t]))
        kl = self.analytic_level_kls(path) if self.top_down else self.kl_with_control_variate(path)
        return PosteriorSample(torch.cat(list(path.z), -1), self.log_ratios(path), kl)

    def log_ratios(self, path: LevelPath) -> Tensor:
        """log q - log p of each unit, (S, B, units)."""
        terms = zip(path.z, path.q, path.p, strict=True)
        return torch.cat([q.log_prob(z) - p.log_prob(z) for z, q, p in terms], -1)

    def analytic_level_kls(self, path: LevelPath) -> Tensor:
        """KL(q || p) of each unit given the levels before it, (S, B, units)."""
        terms = zip(path.z, path.q, path.p, strict=True)
        return torch.cat([q.kl(p).expand_as(z) for z, q, p in terms], -1)

    def kl_with_control_variate(self, path: LevelPath) -> Tensor:
        """The ratios with less variance, (S, B, units): log q - log N(0, I) of each unit is
        replaced by its expectation over the unit, which is exact at the top level."""
        zero = path.z[0].new_zeros(())
        normal = LevelGaussian(zero, zero)
        parts = [
            q.kl(normal).expand_as(z) + normal.log_prob(z) - p.log_prob(z)
            for z, q, p in zip(path.z, path.q, path.p, strict=True)
        ]
        return torch.cat(parts, -1)

    def name_kl_terms(self, kl: Tensor) -> dict[str, Tensor]:
        parts = kl.split(self.widths, -1)
        return {f"kl_{t + 1}": part.sum(-1) for t, part in enumerate(parts)}

    def path_of(self, batch: Batch, z: Tensor) -> LevelPath:
        """The path of given codes (S, B, latent)."""
        parts = z.split(self.widths, -1)
        return self.traverse(*self.encoder_outputs(batch), lambda t, level: parts[t])

    def level_kls(self, batch: Batch, z: Tensor) -> Tensor:
        path = self.path_of(batch, z)
        each = self.analytic_level_kls(path) if self.top_down else self.log_ratios(path)
        return torch.stack([part.sum(-1) for part in each.split(self.widths, -1)], -1)

    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        path = self.path_of(batch, z)
        return torch.cat(
            [p.log_prob(part) for part, p in zip(path.z, path.p, strict=True)], -1
        ).sum(-1)

    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        path = self.path_of(batch, z)
        return torch.cat(
            [q.log_prob(part) for part, q in zip(path.z, path.q, strict=True)], -1
        ).sum(-1)

    def sample_prior(self, n: int, context: Tensor, generator: Generator | None) -> Tensor:
        z: dict[int, Tensor] = {}
        for t in reversed(self.levels):
            level = self.level_prior(t, z, context, context)
            noise = torch.randn(
                n, self.widths[t], generator=generator, dtype=context.dtype, device=context.device
            )
            z[t] = level.sample(noise)
        return torch.cat([z[t] for t in self.levels], -1)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few_rows = 0 < space.rows < 10_000
        latent = (
            (40, 16)
            if space.dims > 256
            else (min(16, -(-space.dims // 2)), min(8, space.dims // 4))
        )
        dropout = 0.1 if few_rows and space.kind in ("binary", "levels") else 0.0
        net = DenseEncoderDecoder.Config(
            width=512 if space.dims > 256 else 256, residual=True, dropout=dropout
        )
        train_config = TrainConfig(
            batch_size=64 if few_rows else 128, ema_decay=0.995 if few_rows else 0.9998
        )
        return Defaults(cls.Config(latent=tuple(filter(None, latent)), net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=(1, 1)[: space.dims],
            summary=8,
            net=DenseEncoderDecoder.Config(width=16, depth=1),
            level_net=MLP.Config(width=8, depth=1),
        )
