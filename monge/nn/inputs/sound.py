r"""Sound as the input of a network: log-mel frames, and convolutions that join neighbours.

A frame every 10 ms is the power spectrum of the 25 ms around it, summed in bands that are equally
wide on the mel scale, $m(f) = 2595 \log_{10}(1 + f / 700)$ (Davis & Mermelstein 1980), as a
logarithm at most 80 dB below the loudest of the row. Its mean and scale over the row are removed,
so that loudness does not matter. In training some bands and stretches of frames are masked at
random (SpecAugment; Park et al. 2019).
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.space import Space

Count = TypeVar("Count", int, Tensor)
WINDOW, HOP = 0.025, 0.010
"""Seconds of sound in a frame, and between two frames."""
BANDS = 40
"""Bands of a frame."""
RANGE = 8.0
"""Powers of ten between the loudest and the quietest power that frames tell apart."""
HALVINGS = 2
"""Convolutions that join frames, each of which halves their number."""
MASKS = 2
"""Masks of bands and masks of frames in a row."""


class LogMel(nn.Module):
    """Sound (B, T) or (B, T, channels) as frames (B, S, BANDS), with the frames of each row."""

    window: Tensor
    bands: Tensor

    def __init__(self, space: Space, bands: int = BANDS) -> None:
        super().__init__()
        self.levels = space.size if space.kind == "levels" else 0
        self.hop = max(round(HOP * space.rate), 1)
        self.length = max(round(WINDOW * space.rate), 2)
        window = torch.hann_window(self.length)
        self.register_buffer("window", window, persistent=False)
        self.points = 2 ** math.ceil(math.log2(self.length))  # of the Fourier transform
        filters = mel_filters(space.rate, self.points, bands)
        self.register_buffer("bands", filters, persistent=False)  # (points / 2 + 1, bands)

    def frames(self, steps: Count) -> Count:
        """The number of frames of a row of `steps` samples."""
        return (steps - 1) // self.hop + 1

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, length = self.amplitudes(batch)  # (B, T)
        count = self.frames(length)
        missing = self.frames(x.shape[1]) * self.hop - x.shape[1]
        half = self.length // 2
        x = F.pad(x, (half, missing + self.length))  # frame i is centred on sample i hop
        parts = x.unfold(1, self.length, self.hop)[:, : self.frames(batch.x.shape[1])]
        power = torch.fft.rfft(parts * self.window, self.points).abs().square()  # (B, S, F)
        exist = torch.arange(power.shape[1], device=x.device) < count[:, None]  # (B, S)
        return normalise((power @ self.bands).clamp_min(1e-30).log10(), exist), count

    def amplitudes(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Samples from -1 to 1 (B, T), the mean of the channels and zero beyond the end of a row,
        and the length of each row."""
        x = batch.x.to(self.window.dtype)
        if self.levels:
            x = x / (self.levels / 2) - 1
        x = x.flatten(2).mean(2) if x.ndim > 2 else x
        if batch.length is None:
            return x, torch.full((len(x),), x.shape[1], device=x.device)
        beyond = torch.arange(x.shape[1], device=x.device) >= batch.length[:, None]
        return x.masked_fill(beyond, 0), batch.length


def normalise(log_power: Tensor, exist: Tensor) -> Tensor:
    """Frames (B, S, bands) without the loudness of the row; zero where no frame exists."""
    gone = ~exist[..., None]
    loudest = log_power.masked_fill(gone, -torch.inf).amax((1, 2), keepdim=True)
    x = log_power.maximum(loudest - RANGE).masked_fill(gone, 0)
    entries = exist.sum(1)[:, None, None] * x.shape[2]
    mean = x.sum((1, 2), keepdim=True) / entries
    x = (x - mean).masked_fill(gone, 0)
    scale = (x.square().sum((1, 2), keepdim=True) / entries).sqrt()
    return x / scale.clamp_min(0.1)


def mel_filters(rate: int, points: int, bands: int) -> Tensor:
    """Triangles that are equally wide on the mel scale, (points / 2 + 1, bands), each of sum 1."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    ends = 700 * (10 ** (torch.linspace(0, top, bands + 2).double() / 2595) - 1)  # in Hz
    hertz = torch.arange(points // 2 + 1).double()[:, None] * rate / points
    low, middle, high = ends[:-2], ends[1:-1], ends[2:]
    triangle = torch.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle))
    triangle = triangle.clamp_min(0)
    nearest = (hertz - middle).abs() <= rate / points / 2  # a band between two frequencies
    triangle = torch.where(triangle.sum(0) > 0, triangle, nearest.double())
    return (triangle / triangle.sum(0).clamp_min(1e-9)).float()


class SoundFrames(nn.Module):
    """Sound as vectors (B, S, width), one every 40 ms, and how many each row has."""

    def __init__(self, space: Space, width: int, mask: float = 0.0) -> None:
        """mask: the largest share of bands, and of frames, that a mask hides in training."""
        super().__init__()
        self.spectrum, self.mask = LogMel(space), mask
        self.joins = nn.ModuleList(
            nn.Conv1d(BANDS if not depth else width, width, 3, stride=2, padding=1)
            for depth in range(HALVINGS)
        )
        self.longest = space.shape[0]

    @property
    def max_steps(self) -> int:
        steps = int(self.spectrum.frames(self.longest))
        for _ in range(HALVINGS):
            steps = (steps + 1) // 2
        return steps

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, length = self.spectrum(batch)  # (B, S, bands)
        if self.training and self.mask:
            x = mask_stretches(x, length, self.mask)
        x = x.transpose(1, 2)  # (B, bands, S)
        for join in self.joins:
            x = F.gelu(join(x))
            length = (length + 1) // 2
            x = x * (torch.arange(x.shape[2], device=x.device) < length[:, None])[:, None]
        return x.transpose(1, 2), length


def mask_stretches(x: Tensor, length: Tensor, share: float) -> Tensor:
    """Frames (B, S, bands) of which some stretches of bands and of existing frames are zero, the
    mean; each hides up to `share` of them."""
    steps, bands = (torch.arange(side, device=x.device) for side in x.shape[1:])
    hidden = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(MASKS):
        width, place = torch.rand(2, 2, len(x), 1, device=x.device)
        long = width[0] * share * length[:, None]
        begin = place[0] * (length[:, None] - long)
        hidden |= ((steps >= begin) & (steps < begin + long))[..., None]
        wide = width[1] * share * len(bands)
        low = place[1] * (len(bands) - wide)
        hidden |= ((bands >= low) & (bands < low + wide))[:, None]
    return x.masked_fill(hidden, 0)
