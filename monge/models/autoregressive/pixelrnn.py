"""PixelRNN: images pixel by pixel with LSTM cells, exact likelihood

All conditionals come from one pass of a recurrent network over the pixels before each entry in
raster order (van den Oord, Kalchbrenner & Kavukcuoglu 2016). Sampling caches the states of the row
above and of the previous pixel, so that an image costs about one pass.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.pixelrnn import DiagonalBiLSTM, PixelRNNStack
from ._images import LARGE_IMAGE_PIXELS, SMALL_DATA_ROWS, RasterImageModel, image_shape


class PixelRNN(RasterImageModel):
    r"""$p(x | c) = \prod_i p(x_{i,R} | x_{<i}, c)\,p(x_{i,G} | x_{i,R}, x_{<i}, c)\,
    p(x_{i,B} | x_{i,R}, x_{i,G}, x_{<i}, c)$ over the pixels i, row by row.

    Conditions are added to the gates of every cell. An image can be completed if its observed
    pixels come first, such as its upper rows. A vector is an image of one row.
    """

    class Config(RasterImageModel.Config):
        tag = "model/autoregressive.pixelrnn"
        net: PixelRNNStack.Config = DiagonalBiLSTM.Config()
        """Network: diagonal (diagonal BiLSTM, reads all earlier pixels), or row (row LSTM, reads a
        triangle above the pixel, fewer sequential steps)."""

    config: Config

    def loss(self, batch: Batch) -> Losses:
        """-sum_i log p(x_i | x_<i, c): one pass of the recurrent layers gives all conditionals."""
        self.check_no_missing(batch)
        params = self.outputs(batch)  # (B, P)
        return {"nll": -self.head.log_prob(params, self.flat(batch.x)).sum(1)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_i ~ p(x_i | x_<i, c), pixel after pixel in raster order, from cached states."""
        batch = self.unobserved_rows(n, given)
        with torch.inference_mode():
            for rows in self.row_groups(batch, options, generator):
                for place in range(self.space.dims):
                    params = rows.steps.parameters(place)  # (m, P_i)
                    rows.steps.feed(place, rows.sample_entry(place, params))
                batch.x[rows.index] = rows.x.T
        return self.to_event(batch.x)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """LSTM cells read the whole image, so that few layers suffice."""
        colours, rows, columns = image_shape(space)
        large, few = rows * columns >= LARGE_IMAGE_PIXELS, 0 < space.rows < SMALL_DATA_ROWS
        net = DiagonalBiLSTM.Config(
            width=32 if colours == 1 else 48, depth=2, dropout=0.2 if few else 0.0
        )
        train_config = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1 if few else 0.0,
            lr=3e-3,
            batch_size=16,
            ema_decay=0.998,
            eval_every=2000 if large and not few else 0,
        )
        return Defaults(cls.Config(net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=DiagonalBiLSTM.Config(width=8, depth=1, first=3), components=2)
