r"""Denoising networks: each reads noisy data, the log-SNR and the encoded conditions.

The log-SNR enters as Fourier features, and so may the data: without high frequencies a network
hardly separates neighbouring levels (Kingma et al. 2021, sec. 3.1).
"""

from __future__ import annotations

import abc
import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Configured, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.space import Space
from ...nn import mlp, unet
from ...nn.attention import transformer
from ...nn.layers.init import Init
from ...nn.layers.linear import Linear
from ._conditioning import ConditionEncoder, Conditioning, map_channels, map_sides
from ._units import feature_half_period

LOG_SNR_FREQUENCIES = tuple(2 * math.pi / 64 * 2.0**octave for octave in range(6))
"""Frequencies of the Fourier features of the log-SNR."""
LOG_SNR_FEATURES = 2 * len(LOG_SNR_FREQUENCIES)
"""Number of those features: a sine and a cosine per frequency."""


class Denoiser(Configured, nn.Module, abc.ABC):
    """z (B, D), log-SNR (B,) and conditions to `outputs` numbers per entry, (B, outputs D).

    With `takes_guess` the network also reads a first estimate of each entry, (B, D). Its output is
    0 at initialisation.
    """

    class Config(BaseConfig):
        tag = "denoiser/"
        waves: Annotated[int, Range(0, 16)] = 0
        """Octaves of Fourier features of each entry that the network reads too: for discrete data
        downwards from the distance of two levels, for reals upwards from one standard
        deviation."""

    frequencies: Tensor
    entry_frequencies: Tensor

    def __init__(
        self,
        config: Config,
        space: Space,
        conditions: ConditionEncoder,
        outputs: int = 1,
        takes_guess: bool = False,
    ) -> None:
        super().__init__()
        self.sides, self.channels, self.outputs = map_sides(space), map_channels(space), outputs
        self.in_channels = self.channels * (1 + 2 * config.waves + takes_guess)
        self.in_channels += conditions.channels
        self.is_sequence = len(space.shape) == 2
        octaves = 2.0 ** torch.arange(config.waves)
        octaves = octaves if space.kind == "real" else 2 * math.pi / octaves
        entries = octaves[:, None] / feature_half_period(space)
        self.register_buffer("frequencies", torch.tensor(LOG_SNR_FREQUENCIES), persistent=False)
        self.register_buffer("entry_frequencies", entries, persistent=False)

    @abc.abstractmethod
    def forward(
        self, z: Tensor, log_snr: Tensor, conditions: Conditioning, guess: Tensor | None = None
    ) -> Tensor: ...

    def condition_vector(self, log_snr: Tensor, conditions: Conditioning) -> Tensor:
        """Features of the log-SNR beside the condition vector, (B, LOG_SNR_FEATURES + width)."""
        angles = log_snr[:, None] * self.frequencies
        return torch.cat([angles.sin(), angles.cos(), conditions.vector], 1)

    def entry_features(self, z: Tensor, guess: Tensor | None) -> Tensor:
        """z, its Fourier features and the first estimate, (B, 1 + 2 waves (+ 1), D)."""
        angles = z[:, None] * self.entry_frequencies
        guesses = [] if guess is None else [guess[:, None]]
        return torch.cat([z[:, None], angles.sin(), angles.cos(), *guesses], 1)

    def maps(self, z: Tensor, conditions: Conditioning, guess: Tensor | None) -> Tensor:
        """The features of each entry with the condition maps, (B, channels, *sides)."""
        features = self.entry_features(z, guess)
        if self.is_sequence:  # (T, C) to (C, T)
            features = features.unflatten(2, (-1, self.channels)).mT
        features = features.reshape(len(z), -1, *self.sides)
        has_maps = conditions.maps.ndim > 2
        return torch.cat([features, conditions.maps], 1) if has_maps else features

    def flatten(self, maps: Tensor) -> Tensor:
        """(B, outputs channels, *sides) -> (B, outputs D)."""
        if self.is_sequence:
            maps = maps.unflatten(1, (self.outputs, -1)).mT
        return maps.flatten(1)


class MLPDenoiser(Denoiser):
    """A multilayer perceptron of all inputs concatenated."""

    class Config(Denoiser.Config, mlp.MLP.Config):
        tag = "denoiser/mlp"
        width: Annotated[int, Range(1)] = 256
        """Units of a hidden layer."""
        depth: Annotated[int, Range(0, MAX_LAYERS)] = 4
        """Hidden layers; 0 is a linear map."""
        residual: bool = True
        """Add a skip connection to every hidden layer after the first."""
        init: Init = "he"
        """Initial weights: by the activation (he, xavier, orthogonal), small, or torch's own."""

    def __init__(
        self,
        config: Config,
        space: Space,
        conditions: ConditionEncoder,
        outputs: int = 1,
        takes_guess: bool = False,
    ) -> None:
        super().__init__(config, space, conditions, outputs, takes_guess)
        inputs = self.in_channels * math.prod(self.sides) + LOG_SNR_FEATURES + conditions.width
        self.net = mlp.MLP(config, inputs, outputs * space.dims)
        for parameter in self.net.out.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self, z: Tensor, log_snr: Tensor, conditions: Conditioning, guess: Tensor | None = None
    ) -> Tensor:
        entries = self.entry_features(z, guess).flatten(1)
        vector = self.condition_vector(log_snr, conditions)
        return self.net(torch.cat([entries, conditions.maps.flatten(1), vector], 1))


class UNetDenoiser(Denoiser):
    """A U-Net over the sides of an image, a sequence or a vector, zero-padded to sides that can
    be halved."""

    class Config(Denoiser.Config, unet.UNet.Config):
        tag = "denoiser/unet"

    def __init__(
        self,
        config: Config,
        space: Space,
        conditions: ConditionEncoder,
        outputs: int = 1,
        takes_guess: bool = False,
    ) -> None:
        super().__init__(config, space, conditions, outputs, takes_guess)
        width = 4 * config.width
        padded = [-(-side // config.factor) * config.factor for side in self.sides]
        self.padding = [
            extra
            for side, full in zip(self.sides[::-1], padded[::-1], strict=True)
            for extra in (0, full - side)
        ]
        self.embed_condition = nn.Sequential(
            Linear(LOG_SNR_FEATURES + conditions.width, width),
            nn.SiLU(),
            Linear(width, width),
        )
        self.net = unet.UNet(
            config,
            (self.in_channels, *padded),
            outputs * self.channels,
            width,
            conditions.token_width,
        )

    def forward(
        self, z: Tensor, log_snr: Tensor, conditions: Conditioning, guess: Tensor | None = None
    ) -> Tensor:
        maps = F.pad(self.maps(z, conditions, guess), self.padding)
        vector = self.embed_condition(self.condition_vector(log_snr, conditions))
        out = self.net(maps, vector, conditions.tokens)
        return self.flatten(out[(..., *(slice(side) for side in self.sides))])


class TransformerDenoiser(Denoiser):
    """A transformer over the steps of a sequence, the entries of a vector or the patches of an
    image; one token before them holds the log-SNR and the condition vector, and the tokens of
    texts come after them (Bao et al. 2023)."""

    class Config(Denoiser.Config, transformer.TransformerEncoder.Config):
        tag = "denoiser/transformer"
        patch: Annotated[int, Range(1)] = 2
        """Images: side of a patch; sequences and vectors have one token per step or entry."""

    def __init__(
        self,
        config: Config,
        space: Space,
        conditions: ConditionEncoder,
        outputs: int = 1,
        takes_guess: bool = False,
    ) -> None:
        super().__init__(config, space, conditions, outputs, takes_guess)
        self.patch = config.patch if len(self.sides) == 2 else 1
        if any(side % self.patch for side in self.sides):
            raise UsageError(
                f"expected a patch that divides the sides {'x'.join(map(str, self.sides))}, "
                f"found patch={self.patch}; choose a common divisor of the sides"
            )
        self.cells = [side // self.patch for side in self.sides]
        area = self.patch ** len(self.sides)
        self.net: transformer.TransformerEncoder = transformer.TransformerEncoder(
            config, config.width, 1 + math.prod(self.cells) + conditions.max_tokens
        )
        self.embed_patch = Linear(self.in_channels * area, config.width)
        self.embed_condition = Linear(LOG_SNR_FEATURES + conditions.width, config.width)
        self.embed_token = (
            Linear(conditions.token_width, config.width) if conditions.token_width else None
        )
        self.out = Linear(config.width, outputs * self.channels * area)
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self, z: Tensor, log_snr: Tensor, conditions: Conditioning, guess: Tensor | None = None
    ) -> Tensor:
        steps = self.embed_patch(self.cut(self.maps(z, conditions, guess)))  # (B, cells, width)
        first = self.embed_condition(self.condition_vector(log_snr, conditions))[:, None]
        steps, length = torch.cat([first, steps], 1), None
        own, tokens = steps.shape[1], conditions.tokens
        if self.embed_token is not None and tokens is not None:
            steps = torch.cat([steps, self.embed_token(tokens.steps)], 1)
            length = None if tokens.length is None else own + tokens.length
        hidden = self.net(steps, length)[:, 1:own]
        return self.flatten(self.join(self.out(hidden)))

    def cut(self, maps: Tensor) -> Tensor:
        """(B, C, *sides) -> (B, cells, C area)."""
        if len(self.sides) == 1:
            return maps.mT
        return F.unfold(maps, self.patch, stride=self.patch).mT

    def join(self, steps: Tensor) -> Tensor:
        """(B, cells, C area) -> (B, C, *sides)."""
        if len(self.sides) == 1:
            return steps.mT
        return F.fold(steps.mT, self.sides, self.patch, stride=self.patch)
