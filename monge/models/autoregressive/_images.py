"""Base of image models in raster order (PixelCNN, PixelRNN): one pass scores, a scan samples.

Pixels come row by row and the colours of a pixel in their order. A vector is an image of one row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import is_exporting
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import EntryStepper
from ...nn.autoregressive.pixel import RasterNet
from .._ordering import check_prefix
from ._base import AutoregressiveModel, model_name

MAX_LAYER_ELEMENTS = 1 << 22
"""Activations that a layer may hold at once in a pass without gradients."""
LARGE_IMAGE_PIXELS = 256
"""Pixels from which an image needs a larger network."""
SMALL_DATA_ROWS = 10_000
"""Rows below which a network overfits without regularisation."""


class RasterImageModel(AutoregressiveModel):
    """All conditionals come from one raster network, the `net` of the config."""

    events = {"real", "binary", "levels"}

    class Config(AutoregressiveModel.Config):
        net: RasterNet.Config
        """Network over the pixels before an entry."""

    class SamplingConfig(BaseConfig):
        cached: bool = True
        """Cache activations, so that each pixel is computed once; false recomputes the whole
        network for each entry."""

    config: Config
    completion = "sampled entry by entry, which is exact"
    uses_particles = False

    def __init__(self, config: Config, space: Space) -> None:
        self.shape = colours, rows, columns = image_shape(space)
        pixels = torch.arange(rows * columns)
        places = colours * pixels + torch.arange(colours)[:, None]  # (C, H W)
        super().__init__(config, space, places.reshape(1, -1))
        self.net: RasterNet = config.net.build(
            self.shape, self.head.width // space.dims, self.conditions.width
        )
        self.init_output_bias()

    def init_output_bias(self) -> None:
        self.net.init_output_bias(self.head.initial_params().reshape(*self.shape, -1))

    def outputs(self, batch: Batch, member: int = 0) -> Tensor:
        """The parameters of every conditional from one pass, (B, P); chunked without gradients."""
        x = self.features(batch).reshape(-1, *self.shape)  # (B, C, H, W)
        context = self.context(batch)
        if torch.is_grad_enabled() or is_exporting():  # of any number of rows
            out = self.net(x, context)  # (B, C P_i, H, W)
        else:
            parts = zip(x.split(self.chunk_size), context.split(self.chunk_size), strict=True)
            out = torch.cat([self.net(*part) for part in parts])
        return out.unflatten(1, (self.shape[0], -1)).permute(0, 1, 3, 4, 2).flatten(1)

    @property
    def chunk_size(self) -> int:
        """Rows per pass without gradients, so that activations stay in the processor's cache."""
        return max(1, MAX_LAYER_ELEMENTS // (self.space.dims * self.config.net.width))

    @torch.no_grad()
    def complete_several(
        self,
        batch: Batch,
        draws: int,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Exact; the observed pixels must come first, since particles that have to agree with
        hundreds of later pixels would all descend from one."""
        check_prefix(self.name, self.places, batch.observed_mask.reshape(len(batch), -1))
        return super().complete_several(batch, draws, options, generator)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], EntryStepper]:
        return self.net.stepper(cached)

    def blind_spot_map(self, row: int, column: int) -> Tensor:
        """Which earlier pixels (H, W) the distribution of a pixel does not depend on."""
        _, rows, columns = self.shape
        before = torch.arange(rows * columns).reshape(rows, columns) < row * columns + column
        return before & ~self.net.support(row, column).any(0).cpu()

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if len(space.shape) <= 3:
            return None
        return (
            f"{model_name(cls)} expected images (colours, rows, columns), found {space}; "
            "reshape them"
        )


def image_shape(space: Space) -> tuple[int, int, int]:
    """The shape of an event as colours, rows and columns."""
    return (*(1,) * (3 - len(space.shape)), *space.shape)  # type: ignore[return-value]
