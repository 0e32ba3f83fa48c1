"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, cast

from torch import Tensor, nn

from ..core.config import MAX_LAYERS, Configured, Range
from ..core.config import Config as BaseConfig
from .layers.activation import LEAKY_SLOPE, Activation, Maxout, activation
from .layers.dropout import Dropout, GaussianNoise
from .layers.init import (
    SHALLOW,
    UNSTABLE,
    Init,
    initialise_chain,
    leaky_gain,
    maxout_gain,
    rescale_chain,
)
from .layers.linear import Linear, StackedLinear

INPLACE_ACTIVATIONS = ("relu", "leaky", "elu")
"""Functions whose derivative follows from their value, so that they can work in place."""


class MLP(Configured, nn.Module):
    """h_0 = x, h_l = a(W_l h_{l-1} + b_l) for l = 1..depth, and a linear map of h_depth.

    With `residual`, layers of equal width add to their input: h_l = h_{l-1} + a(...).
    """

    class Config(BaseConfig):
        tag = "net/mlp"
        width: Annotated[int, Range(1)] = 128
        """Units of a hidden layer."""
        depth: Annotated[int, Range(0, MAX_LAYERS)] = 2
        """Hidden layers; 0 is a linear map."""
        widths: tuple[int, ...] = ()
        """Units of each hidden layer, first to last, instead of `depth` times `width`."""
        activation: Literal[Activation, "maxout"] = "silu"
        """Function after each hidden layer; a unit of maxout is the largest of `pieces` maps."""
        slope: Annotated[float, Range(0, 1)] = LEAKY_SLOPE
        """Slope of activation=leaky below 0."""
        pieces: Annotated[int, Range(2, MAX_LAYERS)] = 2
        """Linear maps of a unit of activation=maxout."""
        residual: bool = False
        """Hidden layers after the first add to their input."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of hidden units dropped in training."""
        noise: Annotated[float, Range(0)] = 0.0
        """Standard deviation of Gaussian noise added to hidden units in training."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, torch's own, or
        auto: torch's, he if deep."""

        @property
        def maps(self) -> int:
            """Linear maps of a hidden unit."""
            return self.pieces if self.activation == "maxout" else 1

        @property
        def gain(self) -> float | None:
            """alpha of the activation with its setting; None is the usual one (`layers.init`)."""
            if self.activation == "maxout":
                return maxout_gain(self.pieces)
            return leaky_gain(self.slope) if self.activation == "leaky" else None

        def function(self) -> nn.Module:
            """From the maps of a layer to its units."""
            if self.activation == "maxout":
                return Maxout(self.pieces)
            inplace = self.activation in INPLACE_ACTIVATIONS
            return activation(self.activation, inplace, slope=self.slope)

    def __init__(self, config: Config, inputs: int, outputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.outputs = config, inputs, outputs
        sizes = [inputs, *(config.widths or [config.width] * config.depth)]
        self.hidden = nn.ModuleList(
            Linear(below, config.maps * above) for below, above in pairwise(sizes)
        )
        self.out = Linear(sizes[-1], outputs)
        self.drop, self.noise = Dropout(config.dropout), GaussianNoise(config.noise)
        self.act, name = config.function(), config.activation
        like: Activation = "identity" if name == "maxout" else name
        initialise_chain(self.linears, config.init, like, config.residual, config.gain)
        deep = len(self.hidden) >= SHALLOW and not config.residual
        if deep and config.init in ("auto", "he") and name in UNSTABLE:
            rescale_chain(self.linears, self.act)

    @property
    def linears(self) -> list[nn.Linear]:
        """Its linear maps, first to last."""
        return [*(cast(nn.Linear, layer) for layer in self.hidden), self.out]

    def forward(self, x: Tensor) -> Tensor:  # (..., inputs) -> (..., outputs)
        for place, layer in enumerate(self.hidden):
            h = self.drop(self.noise(self.act(layer(x))))
            x = x + h if self.config.residual and place and x.shape == h.shape else h
        return self.out(x)


def side_by_side(nets: Sequence[MLP]) -> MLP:
    """Networks of one shape as one, which maps (K, B, inputs) to (K, B, outputs)."""
    whole = nets[0]
    whole.hidden = nn.ModuleList(
        StackedLinear([cast(nn.Linear, layer) for layer in layers])
        for layers in zip(*(net.hidden for net in nets), strict=True)
    )
    whole.out = cast(Linear, StackedLinear([net.out for net in nets]))
    return whole
