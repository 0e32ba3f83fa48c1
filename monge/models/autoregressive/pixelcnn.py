"""PixelCNN: pictures pixel by pixel, exact, with masked or gated convolutions

Every conditional comes from one pass of a convolutional network that sees only what precedes its
entry in raster order (van den Oord, Kalchbrenner & Kavukcuoglu 2016; van den Oord et al. 2016).
Drawing keeps what each layer made of each pixel, so that a picture costs about one pass.
"""

from __future__ import annotations

from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.pixelcnn import Gated, Stack
from ._images import FEW, LARGE, Pictures, picture


class PixelCNN(Pictures):
    r"""$p(x | c) = \prod_i p(x_{i,R} | x_{<i}, c)\,p(x_{i,G} | x_{i,R}, x_{<i}, c)\,
    p(x_{i,B} | x_{i,R}, x_{i,G}, x_{<i}, c)$ over the pixels i, row by row.

    Conditions are added to what enters every gate. A picture is completed where what is seen comes
    first, its upper rows say. A vector is a picture of one row.
    """

    family_priority = 3

    class Config(Pictures.Config):
        tag = "model/autoregressive.pixelcnn"
        net: Stack.Config = Gated.Config()
        """Network: gated with two stacks, or one plain masked stack, which has a blind spot."""

    config: Config

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Wide kernels and few layers: on one processor a long reach is worth more than depth."""
        colours, rows, columns = picture(space)
        large, few = rows * columns >= LARGE, 0 < space.rows < FEW
        net = Gated.Config(
            width=32 if colours == 1 else 48,
            depth=5 if large else 3,
            kernel=5,
            dropout=0.2 if few else 0.0,
        )
        recipe = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1 if few else 0.0,
            lr=3e-3,
            batch_size=16,
            ema_decay=0.998,
            eval_every=2000 if large and not few else 0,
        )
        return Defaults(cls.Config(net=net), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=Gated.Config(width=8, depth=2, first=3), components=2)
