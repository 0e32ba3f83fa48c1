"""The multilayer perceptron."""

from __future__ import annotations

from typing import Annotated, cast

from torch import Tensor, nn

from ..core.config import MAX_LAYERS, Configured, Range
from ..core.config import Config as BaseConfig
from .layers.activation import Activation, activation
from .layers.dropout import Dropout
from .layers.init import SHALLOW, UNSTABLE, Init, initialise_chain, rescale_chain

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
        activation: Activation = "silu"
        """Function after each hidden layer."""
        residual: bool = False
        """Hidden layers after the first add to their input."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of hidden units dropped in training."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, torch's own, or
        auto: torch's, he if deep."""

    def __init__(self, config: Config, inputs: int, outputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.outputs = config, inputs, outputs
        sizes = [inputs, *(config.widths or [config.width] * config.depth)]
        self.hidden = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))
        self.out = nn.Linear(sizes[-1], outputs)
        self.act = activation(config.activation, inplace=config.activation in INPLACE_ACTIVATIONS)
        self.drop = Dropout(config.dropout)
        initialise_chain(self.linears, config.init, config.activation, config.residual)
        deep = len(self.hidden) >= SHALLOW and not config.residual
        if deep and config.init in ("auto", "he") and config.activation in UNSTABLE:
            rescale_chain(self.linears, self.act)

    @property
    def linears(self) -> list[nn.Linear]:
        """Its linear maps, first to last."""
        return [*(cast(nn.Linear, layer) for layer in self.hidden), self.out]

    def forward(self, x: Tensor) -> Tensor:  # (..., inputs) -> (..., outputs)
        for place, layer in enumerate(self.hidden):
            h = self.drop(self.act(layer(x)))
            x = x + h if self.config.residual and place and x.shape == h.shape else h
        return self.out(x)
