r"""Codes in levels $z_1, ..., z_T$, the bottom one nearest to the data.

$p(x, z) = p(z_T) \prod_{t<T} p(z_t | \text{levels above}) \, p(x | z)$ with Gaussian factors, and
$\log p(x) \ge E_q [\log p(x | z)] - KL(q(z | x) \| p(z))$, where the rate is a sum over levels:

$KL(q(z | x) \| p(z)) = \sum_t E_q [\log q(z_t | \cdot) - \log p(z_t | \cdot)]$.

Where q goes from the top down as p does, both know the same levels when they come to $z_t$, and
each term is a divergence of Gaussians in closed form.
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
from ...prob.distributions import log_normals
from ._elbo import Variational
from ._encoder_decoder import Dense, beside
from ._posterior import Code, bounded


@dataclass(frozen=True)
class Gaussian:
    """N(mean, diag(e^{2 log_scale})) of one level."""

    mean: Tensor  # (*S, B, units)
    log_scale: Tensor

    def draw(self, noise: Tensor) -> Tensor:
        return self.mean + self.log_scale.exp() * noise

    def log_prob(self, z: Tensor) -> Tensor:
        """Of each unit."""
        return log_normals((z - self.mean) * (-self.log_scale).exp()) - self.log_scale

    def divergence(self, other: Gaussian) -> Tensor:
        """KL(self || other) of each unit."""
        gap = (self.mean - other.mean) * (-other.log_scale).exp()
        narrower = self.log_scale - other.log_scale
        return 0.5 * (gap.square() + (2 * narrower).exp() - 1) - narrower


@dataclass(frozen=True)
class Walk:
    """A way through the levels: codes, and the laws they met, from the bottom up."""

    z: Sequence[Tensor]  # (S, B, units) each
    q: Sequence[Gaussian]
    p: Sequence[Gaussian]


class Hierarchy(Variational, HasLevels):
    """p(x, z) with levels numbered from 0, the bottom, to T - 1, whose law is N(0, I)."""

    class Config(Variational.Config):
        latent: tuple[Annotated[int, Range(1)], ...] = (32, 16)
        """Dimension of each level of the code, bottom first."""
        summary: Annotated[int, Range(1)] = 256
        """Numbers that the encoder says of a row to all levels, besides a mean and a scale to
        each."""
        between: MLP.Config = MLP.Config(depth=1)
        """Network from what a level depends on to its mean and scale."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.latent:
                raise UsageError("latent is empty, so that there is no code; give latent=32,16")

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        self.widths = list(config.latent)
        self.levels = range(len(self.widths))
        self.direct = [2 * self.widths[t] if self.reads_row(t) else 0 for t in self.levels]
        spoken = sum(self.widths[t] for t in self.spoken_levels())
        super().__init__(
            config, space, sum(self.direct) + config.summary, sum(self.widths), spoken
        )
        if config.estimator == "B" and not self.downward:
            raise UsageError(
                "estimator=B needs a rate in closed form, which only inference from "
                "the top down has; take estimator=A"
            )
        rows = [config.summary if self.direct[t] else 0 for t in self.levels]
        self.priors = nn.ModuleList(self.between(self.above(t), t, 0) for t in self.levels[:-1])
        self.posteriors = nn.ModuleList(
            self.between(self.before(t), t, rows[t]) for t in self.levels
        )

    def between(self, others: Sequence[int], level: int, row: int) -> MLP:
        """What a level is told; it begins by saying nothing, so that p is N(0, I) and q is what
        the encoder says of the level directly, as in a law without levels."""
        inputs = row + sum(self.widths[t] for t in others) + self.conditions.width
        net: MLP = self.config.between.build(inputs, 2 * self.widths[level])
        nn.init.zeros_(net.out.weight)
        nn.init.zeros_(net.out.bias)
        return net

    @property
    @abc.abstractmethod
    def downward(self) -> bool:
        """Whether q goes from the top down, as p does."""

    @abc.abstractmethod
    def above(self, level: int) -> Sequence[int]:
        """The levels that p(z_t | .) reads."""

    @abc.abstractmethod
    def before(self, level: int) -> Sequence[int]:
        """The levels that q(z_t | ., x) reads."""

    @abc.abstractmethod
    def reads_row(self, level: int) -> bool:
        """Whether q(z_t | .) reads what the encoder says of x."""

    @abc.abstractmethod
    def spoken_levels(self) -> Sequence[int]:
        """The levels that p(x | .) reads."""

    def spoken(self, z: Tensor) -> Tensor:
        parts = z.split(self.widths, -1)
        return torch.cat([parts[t] for t in self.spoken_levels()], -1)

    def walk(self, h: Tensor, context: Tensor, pick: Callable[[int, Gaussian], Tensor]) -> Walk:
        """The levels in the order of q; `pick` says the code of a level whose law is known."""
        z: dict[int, Tensor] = {}
        q: dict[int, Gaussian] = {}
        for t in reversed(self.levels) if self.downward else self.levels:
            q[t] = self.posterior_of(t, z, h, context)
            z[t] = pick(t, q[t])
        return Walk(
            [z[t] for t in self.levels],
            [q[t] for t in self.levels],
            [self.prior_of(t, z, h, context) for t in self.levels],
        )

    def prior_of(
        self, level: int, z: dict[int, Tensor], like: Tensor, context: Tensor
    ) -> Gaussian:
        if level == self.levels[-1]:
            zero = like.new_zeros(self.widths[-1])
            return Gaussian(zero, zero)
        others = torch.cat([z[t] for t in self.above(level)], -1)
        mean, raw = self.priors[level](beside(others, context)).chunk(2, -1)
        return Gaussian(mean, bounded(raw))

    def posterior_of(
        self, level: int, z: dict[int, Tensor], h: Tensor, context: Tensor
    ) -> Gaussian:
        known = [z[t] for t in self.before(level)]
        *direct, row = h.split([*self.direct, self.config.summary], -1)
        if self.direct[level]:
            known.append(row.expand(*known[0].shape[:-1], -1) if known else row[None])
        told = self.posteriors[level](beside(torch.cat(known, -1), context))
        mean, raw = (told + direct[level] if self.direct[level] else told).chunk(2, -1)
        return Gaussian(mean, bounded(raw))

    def code(self, h: Tensor, context: Tensor, noise: Tensor) -> Code:
        parts = noise.split(self.widths, -1)
        walk = self.walk(h, context, lambda t, law: law.draw(parts[t]))
        rates = self.divergences(walk) if self.downward else self.steadied(walk)
        return Code(torch.cat(list(walk.z), -1), self.ratios(walk), rates)

    def ratios(self, walk: Walk) -> Tensor:
        """log q - log p of each unit, (S, B, units)."""
        terms = zip(walk.z, walk.q, walk.p, strict=True)
        return torch.cat([q.log_prob(z) - p.log_prob(z) for z, q, p in terms], -1)

    def divergences(self, walk: Walk) -> Tensor:
        """Their means over the unit itself, (S, B, units)."""
        terms = zip(walk.z, walk.q, walk.p, strict=True)
        return torch.cat([q.divergence(p).expand_as(z) for z, q, p in terms], -1)

    def steadied(self, walk: Walk) -> Tensor:
        """The ratios with less noise, (S, B, units): of each, log q - log N(0, I) is taken in the
        mean over the unit itself, which leaves nothing to chance at the top."""
        zero = walk.z[0].new_zeros(())
        normal = Gaussian(zero, zero)
        parts = [
            q.divergence(normal).expand_as(z) + normal.log_prob(z) - p.log_prob(z)
            for z, q, p in zip(walk.z, walk.q, walk.p, strict=True)
        ]
        return torch.cat(parts, -1)

    def named(self, rates: Tensor) -> dict[str, Tensor]:
        parts = rates.split(self.widths, -1)
        return {f"rate_{t + 1}": part.sum(-1) for t, part in enumerate(parts)}

    def known(self, batch: Batch, z: Tensor) -> Walk:
        """The laws that given codes (S, B, latent) meet."""
        parts = z.split(self.widths, -1)
        return self.walk(*self.summary(batch), lambda t, law: parts[t])

    def level_rates(self, batch: Batch, z: Tensor) -> Tensor:
        walk = self.known(batch, z)
        each = self.divergences(walk) if self.downward else self.ratios(walk)
        return torch.stack([part.sum(-1) for part in each.split(self.widths, -1)], -1)

    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        walk = self.known(batch, z)
        return torch.cat(
            [p.log_prob(part) for part, p in zip(walk.z, walk.p, strict=True)], -1
        ).sum(-1)

    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        walk = self.known(batch, z)
        return torch.cat(
            [q.log_prob(part) for part, q in zip(walk.z, walk.q, strict=True)], -1
        ).sum(-1)

    def prior_draw(self, n: int, context: Tensor, generator: Generator | None) -> Tensor:
        z: dict[int, Tensor] = {}
        for t in reversed(self.levels):
            law = self.prior_of(t, z, context, context)
            noise = torch.randn(
                n, self.widths[t], generator=generator, dtype=context.dtype, device=context.device
            )
            z[t] = law.draw(noise)
        return torch.cat([z[t] for t in self.levels], -1)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few = 0 < space.rows < 10_000
        latent = (
            (40, 16)
            if space.dims > 256
            else (min(16, -(-space.dims // 2)), min(8, space.dims // 4))
        )
        dropout = 0.1 if few and space.kind in ("binary", "levels") else 0.0
        net = Dense.Config(width=512 if space.dims > 256 else 256, residual=True, dropout=dropout)
        recipe = TrainConfig(batch_size=64 if few else 128, ema_decay=0.995 if few else 0.9998)
        return Defaults(cls.Config(latent=tuple(filter(None, latent)), net=net), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=(1, 1)[: space.dims],
            summary=8,
            net=Dense.Config(width=16, depth=1),
            between=MLP.Config(width=8, depth=1),
        )
