"""PixelCNN: images pixel by pixel with masked or gated convolutions, exact likelihood

All conditionals come from one pass of a convolutional network that only reads the entries before
each in raster order (van den Oord, Kalchbrenner & Kavukcuoglu 2016; van den Oord et al. 2016).
Sampling caches the activations of each pixel, so that an image costs about one pass.
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
from ...nn.autoregressive.pixelcnn import GatedPixelCNN, PixelCNNStack
from ._images import LARGE_IMAGE_PIXELS, SMALL_DATA_ROWS, RasterImageModel, image_shape


class PixelCNN(RasterImageModel):
    r"""$p(x | c) = \prod_i p(x_{i,R} | x_{<i}, c)\,p(x_{i,G} | x_{i,R}, x_{<i}, c)\,
    p(x_{i,B} | x_{i,R}, x_{i,G}, x_{<i}, c)$ over the pixels i, row by row.

    Conditions are added to the input of every gate. An image can be completed if its observed
    pixels come first, such as its upper rows. A vector is an image of one row.
    """

    family_priority = 3

    class Config(RasterImageModel.Config):
        tag = "model/autoregressive.pixelcnn"
        net: PixelCNNStack.Config = GatedPixelCNN.Config()
        """Network: gated (two stacks), or one plain masked stack, which has a blind spot."""

    config: Config

    def loss(self, batch: Batch) -> Losses:
        """-sum_i log p(x_i | x_<i, c): one pass of the convolutions gives all conditionals."""
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
        """x_i ~ p(x_i | x_<i, c), pixel after pixel in raster order, from cached activations."""
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
        """Wide kernels and few layers: on a CPU a wide receptive field beats depth. Large colour
        images, of which minutes show thousands, have smaller batches, so that there are more
        steps, and are not regularised: a few thousand of them hold millions of pixels."""
        colours, rows, columns = image_shape(space)
        large, few = rows * columns >= LARGE_IMAGE_PIXELS, 0 < space.rows < SMALL_DATA_ROWS
        large_colour = large and colours > 1
        overfits = few and not large_colour
        net = GatedPixelCNN.Config(
            width=32 if colours == 1 else 48,
            depth=5 if large else 3,
            kernel=5,
            dropout=0.2 if overfits else 0.0,
        )
        train_config = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1 if overfits else 0.0,
            lr=3e-3,
            batch_size=8 if large_colour else 16,
            ema_decay=0.998,
            eval_every=2000 if large and not few else 0,
        )
        return Defaults(cls.Config(net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=GatedPixelCNN.Config(width=8, depth=2, first=3), components=2)
