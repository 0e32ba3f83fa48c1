"""PixelRNN: pictures pixel by pixel, exact, with cells of long short-term memory

Every conditional comes from one pass of a recurrent network over the pixels that precede its entry
in raster order (van den Oord, Kalchbrenner & Kavukcuoglu 2016). Drawing keeps the states of the
row above and of the pixel before, so that a picture costs about one pass.
"""

from __future__ import annotations

from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.pixelrnn import Diagonal, Recurrent
from ._images import FEW, LARGE, Pictures, picture


class PixelRNN(Pictures):
    r"""$p(x | c) = \prod_i p(x_{i,R} | x_{<i}, c)\,p(x_{i,G} | x_{i,R}, x_{<i}, c)\,
    p(x_{i,B} | x_{i,R}, x_{i,G}, x_{<i}, c)$ over the pixels i, row by row.

    Conditions are added to the gates of every cell. A picture is completed where what is seen
    comes first, its upper rows say. A vector is a picture of one row.
    """

    class Config(Pictures.Config):
        tag = "model/autoregressive.pixelrnn"
        net: Recurrent.Config = Diagonal.Config()
        """Network: diagonal, which sees all that precedes a pixel, or row, which sees a triangle
        and takes fewer turns."""

    config: Config

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Cells reach as far as the picture goes, so that few layers do."""
        colours, rows, columns = picture(space)
        large, few = rows * columns >= LARGE, 0 < space.rows < FEW
        net = Diagonal.Config(
            width=32 if colours == 1 else 48, depth=2, dropout=0.2 if few else 0.0
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
        return cls.Config(net=Diagonal.Config(width=8, depth=1, first=3), components=2)
