r"""Networks that denoise: each reads a noisy datum, its log-SNR and what is told besides.

The log-SNR is told by sines and cosines of it, and so may the datum be: without high waves a
network hardly tells neighbouring levels apart (Kingma et al. 2021, sec. 3.1).
"""

from __future__ import annotations

import abc
import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.errors import UsageError
from ...core.space import Space
from ...nn import mlp, unet
from ...nn.attention import transformer
from ._conditioning import Teller, Told, channels, sides
from ._units import coarseness

TONES = 2 * math.pi / 64 * 2.0 ** torch.arange(6)
"""Frequencies of the log-SNR that a network is told."""


class TimeNet(Configured, nn.Module, abc.ABC):
    """(B, D), log-SNR (B,) and what is told to `outputs` numbers an entry, (B, outputs D).

    `hinted`: each entry comes with a first guess at it, (B, D). What is put out begins at 0.
    """

    class Config(BaseConfig):
        tag = "denoiser/"
        waves: Annotated[int, Range(0, 16)] = 0
        """Octaves of sines and cosines of each number that are read too: of whole numbers
        downwards from the step between levels, of reals upwards from one deviation."""

    tones: Tensor
    pitches: Tensor

    def __init__(
        self, config: Config, space: Space, teller: Teller, outputs: int = 1, hinted: bool = False
    ) -> None:
        super().__init__()
        self.sides, self.channels, self.outputs = sides(space), channels(space), outputs
        self.entering = self.channels * (1 + 2 * config.waves + hinted) + teller.channels
        self.series = len(space.shape) == 2
        octaves = 2.0 ** torch.arange(config.waves)
        octaves = octaves if space.kind == "real" else 2 * math.pi / octaves
        self.register_buffer("tones", TONES.clone(), persistent=False)
        self.register_buffer("pitches", octaves[:, None] / coarseness(space), persistent=False)

    @abc.abstractmethod
    def forward(
        self, z: Tensor, log_snr: Tensor, told: Told, hint: Tensor | None = None
    ) -> Tensor: ...

    def tell(self, log_snr: Tensor, told: Told) -> Tensor:
        """The log-SNR and the vector, (B, TOLD + width)."""
        angles = log_snr[:, None] * self.tones
        return torch.cat([angles.sin(), angles.cos(), told.vector], 1)

    def lift(self, z: Tensor, hint: Tensor | None) -> Tensor:
        """z, its waves and the guess, (B, 1 + 2 waves (+ 1), D)."""
        angles = z[:, None] * self.pitches
        guess = [] if hint is None else [hint[:, None]]
        return torch.cat([z[:, None], angles.sin(), angles.cos(), *guess], 1)

    def maps(self, z: Tensor, told: Told, hint: Tensor | None) -> Tensor:
        """What is read of each entry with the maps that are told, (B, channels, *sides)."""
        lifted = self.lift(z, hint)
        if self.series:  # (T, C) to (C, T)
            lifted = lifted.unflatten(2, (-1, self.channels)).mT
        lifted = lifted.reshape(len(z), -1, *self.sides)
        return torch.cat([lifted, told.maps], 1) if told.maps.ndim > 2 else lifted

    def flat(self, maps: Tensor) -> Tensor:
        """(B, outputs channels, *sides) -> (B, outputs D)."""
        if self.series:
            maps = maps.unflatten(1, (self.outputs, -1)).mT
        return maps.flatten(1)


TOLD = 2 * len(TONES)


class MLP(TimeNet):
    """A perceptron of everything side by side."""

    class Config(TimeNet.Config, mlp.MLP.Config):
        tag = "denoiser/mlp"
        width: Annotated[int, Range(1)] = 256
        """Units of a hidden layer."""
        depth: Annotated[int, Range(0)] = 4
        """Hidden layers; 0 is a linear map."""
        residual: bool = True
        """Hidden layers after the first add to what enters them."""

    def __init__(
        self, config: Config, space: Space, teller: Teller, outputs: int = 1, hinted: bool = False
    ) -> None:
        super().__init__(config, space, teller, outputs, hinted)
        inputs = self.entering * math.prod(self.sides) + TOLD + teller.width
        self.net = mlp.MLP(config, inputs, outputs * space.dims)
        for parameter in self.net.out.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self, z: Tensor, log_snr: Tensor, told: Told, hint: Tensor | None = None
    ) -> Tensor:
        entries = [self.lift(z, hint).flatten(1), told.maps.flatten(1), self.tell(log_snr, told)]
        return self.net(torch.cat(entries, 1))


class UNet(TimeNet):
    """A U-Net over the sides of a picture, of a sequence or of a vector, which are padded with 0
    where they cannot be halved."""

    class Config(TimeNet.Config, unet.UNet.Config):
        tag = "denoiser/unet"

    def __init__(
        self, config: Config, space: Space, teller: Teller, outputs: int = 1, hinted: bool = False
    ) -> None:
        super().__init__(config, space, teller, outputs, hinted)
        width = 4 * config.width
        padded = [-(-side // config.factor) * config.factor for side in self.sides]
        self.beyond = [
            extra
            for side, full in zip(self.sides[::-1], padded[::-1], strict=True)
            for extra in (0, full - side)
        ]
        self.told = nn.Sequential(
            nn.Linear(TOLD + teller.width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.net = unet.UNet(
            config, (self.entering, *padded), outputs * self.channels, width, teller.words
        )

    def forward(
        self, z: Tensor, log_snr: Tensor, told: Told, hint: Tensor | None = None
    ) -> Tensor:
        maps = F.pad(self.maps(z, told, hint), self.beyond)
        out = self.net(maps, self.told(self.tell(log_snr, told)), told.words)
        return self.flat(out[(..., *(slice(side) for side in self.sides))])


class Transformer(TimeNet):
    """A transformer over the steps of a sequence, the entries of a vector or the patches of a
    picture; the log-SNR and what is told are a step of their own before them, and the symbols of
    texts steps after them (Bao et al. 2023)."""

    class Config(TimeNet.Config, transformer.Encoder.Config):
        tag = "denoiser/transformer"
        patch: Annotated[int, Range(1)] = 2
        """Side of a patch of a picture; steps and entries are read one by one."""

    def __init__(
        self, config: Config, space: Space, teller: Teller, outputs: int = 1, hinted: bool = False
    ) -> None:
        super().__init__(config, space, teller, outputs, hinted)
        self.patch = config.patch if len(self.sides) == 2 else 1
        if any(side % self.patch for side in self.sides):
            raise UsageError(
                f"patch={self.patch} does not divide the sides "
                f"{'x'.join(map(str, self.sides))}; give one that does"
            )
        self.cells = [side // self.patch for side in self.sides]
        area = self.patch ** len(self.sides)
        self.net: transformer.Encoder = transformer.Encoder(
            config, config.width, 1 + math.prod(self.cells) + teller.most
        )
        self.enter = nn.Linear(self.entering * area, config.width)
        self.told = nn.Linear(TOLD + teller.width, config.width)
        self.words = nn.Linear(teller.words, config.width) if teller.words else None
        self.leave = nn.Linear(config.width, outputs * self.channels * area)
        for parameter in self.leave.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self, z: Tensor, log_snr: Tensor, told: Told, hint: Tensor | None = None
    ) -> Tensor:
        steps = self.enter(self.cut(self.maps(z, told, hint)))  # (B, cells, width)
        first = self.told(self.tell(log_snr, told))[:, None]
        steps, length = torch.cat([first, steps], 1), None
        own = steps.shape[1]
        if self.words is not None and told.words is not None:
            steps = torch.cat([steps, self.words(told.words.steps)], 1)
            length = None if told.words.length is None else own + told.words.length
        seen = self.net(steps, length)[:, 1:own]
        return self.flat(self.join(self.leave(seen)))

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
