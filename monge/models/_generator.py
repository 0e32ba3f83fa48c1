r"""Base of generators x = G(z, given): implicit models, known only by their samples.

Data and samples are compared in standardised coordinates, by a discriminator, a critic or a
transport cost; the inverse of the coordinates ends the generator.

The coordinates of a row of a table are its vector (`RowEmbedding`). The network gives logits of
the components of each column (names, runs of counts, states of a real); a part of z chooses the
components by these logits (Gumbel-max), and the gradient is that of the relaxed choice, a softmax
(straight-through: Jang et al. 2017). A number is $a + (1 + b)\,\epsilon$ with the outputs a and b
and a part $\epsilon$ of z. So a network of zeros has independent columns with nearly the marginals
of the training rows. On both sides a number is 0 where the state of its cell is another.

A critic sees whole rows and hardly notices that an empty cell is a little too rare. So a term of
the loss of the generator holds the shares $\pi_k$ of the components in the training rows, as the
first moments of Park et al. 2018: $\frac w2 \sum_k (p_k - \pi_k)(p'_k - \pi_k)/(\pi_k + 1/n)$ with
the mean probabilities p and p' of two halves of a batch, n rows each. Since the halves are
independent, its mean is zero at the right shares however much a component depends on z.

Truncation makes samples more typical and less diverse: they are not of the model's distribution.
With $\psi < 1$ each number of z that the network reads is normal within $\pm 2 \psi$, as if drawn
again until it lies there (Brock, Donahue & Simonyan 2019): with F(z) = erf(z / sqrt 2),
$F^{-1}(F(2 \psi) F(z))$, so that one z gives similar samples for all $\psi$.
"""

from __future__ import annotations

import abc
import math
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ..core.abilities import CanDecode, CanSample, Given
from ..core.batch import Batch, broadcast_conditions
from ..core.config import Config as BaseConfig
from ..core.config import Range
from ..core.model import Losses, Model
from ..core.space import Space
from ..nn.inputs.features import Conditions
from ..nn.inputs.standardise import Coordinates
from ..nn.mlp import MLP
from ..prob.row_embedding import TABLE_KINDS, RowEmbedding

CHOSEN_KINDS = ("binary", *TABLE_KINDS)
"""Kinds of event whose components are chosen."""
SHARE_WEIGHT = 20.0
"""Default weight of the divergence of the shares of components."""
RELAXATION = 0.5
"""Temperature of the relaxed choice of a component."""
MIN_UNIFORM = 1e-7
"""Distance to 0 and 1 at which uniforms are clamped before they become Gumbel noise."""
TRUNCATION_BOUND = 2.0
"""Where noise is cut for a truncation just below 1, in standard deviations."""


def default_share_weight(space: Space) -> float:
    """The weight of the shares of components: tables alone need it."""
    return SHARE_WEIGHT if space.kind in TABLE_KINDS else 0.0


def truncate(z: Tensor, truncation: float) -> Tensor:
    """Normal numbers as numbers with the normal distribution between -2 and 2 truncations, in
    the same order; a truncation of 1 leaves them."""
    if truncation == 1:
        return z
    share = math.erf(TRUNCATION_BOUND * truncation / math.sqrt(2))
    return math.sqrt(2) * torch.erfinv(share * torch.erf(z / math.sqrt(2)))


class RowCoordinates(nn.Module):
    """The vectors of rows of a table, in which generators and critics meet."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.rows = RowEmbedding(space)
        self.width, self.numbers = self.rows.width, len(self.rows.reals)
        self.choices = self.rows.components + self.numbers
        self.outputs = self.choices + self.numbers

    @property
    def shift(self) -> Tensor:
        """A tensor of the type and the device of the coordinates."""
        return self.rows.points

    def fit(self, x: Tensor) -> None:
        """Lay the coordinates over training rows (B, *event)."""
        self.rows.fit(x.reshape(len(x), -1))

    def to_network(self, x: Tensor, dequantise: bool) -> Tensor:  # (B, *event) -> (B, D)
        y: Tensor = self.rows(x.reshape(len(x), -1))
        return y

    def share_divergence(self, out: Tensor) -> Tensor:
        """How far the shares of the components in a batch of network outputs are from those in
        the training rows, summed over columns, ()."""
        rows, share = self.rows, self.rows.log_share.exp()
        probability = rows.softmax(rows.log_share + out[:, : rows.components])
        n = max(len(out) // 2, 1)
        first, second = probability[:n].mean(0) - share, probability[-n:].mean(0) - share
        return (first * second / (share + 1 / n)).sum() / 2

    def from_network(self, out: Tensor, noise: Tensor) -> Tensor:
        """Vectors (B, width) of network outputs, chosen by normal noise (B, choices)."""
        rows = self.rows
        logits, start, slope = out.split([rows.components, self.numbers, self.numbers], 1)
        chance, noise = noise.split([rows.components, self.numbers], 1)
        numbers = start + (1 + slope) * noise
        uniform = torch.special.ndtr(chance).clamp(MIN_UNIFORM, 1 - MIN_UNIFORM)
        logits = rows.log_share + logits - (-uniform.log()).log()
        relaxed = rows.softmax(logits / RELAXATION)
        hard = (logits >= rows.largest(logits)[:, rows.column]).to(relaxed)
        weight = hard + relaxed - relaxed.detach()
        y = weight @ rows.points
        return y.index_add(1, rows.number_axes, weight[:, rows.number_components] * numbers)

    def places(self, n: int, generator: Generator | None) -> Tensor:
        """Random places of counts in their runs, (n, columns)."""
        like = self.rows.points
        shape = n, len(self.rows.parts)
        return torch.rand(*shape, generator=generator, dtype=like.dtype, device=like.device)

    def to_data(self, y: Tensor, places: Tensor | None = None) -> Tensor:
        """x in the support of the data, (B, columns); counts are at these places of their runs,
        by default in the middle."""
        cells = self.rows.nearest(y)
        middle = torch.full_like(cells, 0.5, dtype=y.dtype)
        return self.rows.decode(cells, y, middle if places is None else places)


class GeneratorModel(Model, CanSample, CanDecode):
    """x = G(z, given) with z ~ N(0, I): a distribution without a tractable density."""

    events = {"real", "levels"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        latent: Annotated[int, Range(1)] = 64
        """Dimension of the noise that the network reads; for tables z holds one number more for
        each name, state and run of counts, which choose among them, and for each real column."""

    class SamplingConfig(CanSample.SamplingConfig):
        neutral = {"truncation": (1.0,)}
        truncation: Annotated[float, Range(0, 1, open=True)] = 1.0
        """Below 1: more typical and less diverse samples, which are not of the model's
        distribution; noise beyond twice this value is drawn again."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.coordinates: Coordinates | RowCoordinates = (
            RowCoordinates(space) if space.kind in CHOSEN_KINDS else Coordinates(space)
        )
        self.conditions = Conditions(space)
        self.latent = Space(kind="real", shape=(config.latent + self.coordinates.choices,))

    def initialise_from_data(self, batch: Batch) -> None:
        self.coordinates.fit(batch.x)

    @abc.abstractmethod
    def generate(self, z: Tensor, context: Tensor, truncation: float = 1.0) -> Tensor:
        """Points (n, D) in standardised coordinates."""

    def truncation(self, options: BaseConfig | None) -> float:
        return options.truncation if isinstance(options, GeneratorModel.SamplingConfig) else 1.0

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        return self.to_event(self.generate(z, self.context(given or {}, len(z))))

    def to_event(self, y: Tensor, places: Tensor | None = None) -> Tensor:
        """Points (n, D) in the units and the shape of the data."""
        x = self.coordinates.to_data(y, places).reshape(len(y), *self.space.shape)
        return x.long() if self.space.kind == "label" else x

    def sample_event(self, y: Tensor, generator: Generator | None) -> Tensor:
        """The same, with what points leave open of counts sampled."""
        return self.to_event(y, self.coordinates.places(len(y), generator))

    def noise(self, n: int, generator: Generator | None = None) -> Tensor:
        like = self.coordinates.shift
        return torch.randn(
            n, *self.latent.shape, generator=generator, dtype=like.dtype, device=like.device
        )

    def context(self, given: Given, n: int) -> Tensor:
        return self.conditions(broadcast_conditions(given, self.space, n), n)  # (n, C)

    def real(self, batch: Batch) -> Tensor:
        """The rows in standardised coordinates; levels are dequantised with uniform noise."""
        x = batch.x.to(self.coordinates.shift.dtype)
        return self.coordinates.to_network(x, dequantise=True)  # (B, D)


class MLPGeneratorModel(GeneratorModel):
    """A generator whose network is an MLP: every entry of an event is one of its outputs."""

    class Config(GeneratorModel.Config):
        generator: MLP.Config = MLP.Config(width=256, depth=3, activation="relu")
        """Network from the noise z to an event."""
        share_weight: Annotated[float, Range(0)] = 0.0
        """Tables: weight of the divergence of the shares of names, of runs of counts and of empty
        cells in samples from those in the training rows."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.generator = self.build_generator(config.latent + self.conditions.width)

    def build_generator(self, inputs: int) -> nn.Module:
        """The network from noise and conditions, (n, inputs), to an event."""
        return self.config.generator.build(inputs, self.coordinates.outputs)

    def outputs(self, z: Tensor, context: Tensor) -> Tensor:
        """What the network gives for noise z."""
        return self.generator(torch.cat([z[:, : self.config.latent], context], 1))

    def generate(self, z: Tensor, context: Tensor, truncation: float = 1.0) -> Tensor:
        seed, choice = z[:, : self.config.latent], z[:, self.config.latent :]
        out = self.outputs(truncate(seed, truncation), context)
        return self.coordinates.from_network(out, choice)  # (n, D)

    def share_losses(self, z: Tensor, context: Tensor) -> Losses:
        """The term that holds the shares of the components of tables."""
        if not self.config.share_weight or isinstance(self.coordinates, Coordinates):
            return {}
        divergence = self.coordinates.share_divergence(self.outputs(z, context))
        return {"shares": self.config.share_weight * divergence.expand(len(z))}
