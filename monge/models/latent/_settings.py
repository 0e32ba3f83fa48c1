"""What may be chosen of a law with codes: how it is trained, completed and scored."""

from __future__ import annotations

from typing import Annotated, Literal

from ...core.config import Config, Range
from ...core.error import WordError
from ._nets import Dense, Networks


class Training(Config):
    """The bound that training raises, and the networks it moves."""

    net: Networks.Config = Dense.Config(width=256)
    """Networks from a datum to its posterior and back: dense, or convolution for pictures."""
    beta: Annotated[float, Range(0)] = 1.0
    """Weight of the rate in training; above 1 the codes get simpler and more disentangled."""
    anneal: Annotated[int, Range(0)] = 0
    """Steps over which the weight of the rate rises from 0 to beta."""
    free: Annotated[float, Range(0)] = 0.0
    """Nats of each latent unit that training does not charge for, which keeps it in use."""
    estimator: Literal["auto", "A", "B"] = "auto"
    """Of the bound: A draws all of it, B has the rate in closed form; auto is B where it can
    be had."""
    samples: Annotated[int, Range(1)] = 1
    """Codes drawn for each row in training."""
    weighted: bool = False
    """Train the importance-weighted bound of all samples instead of the mean of bounds."""
    scale: Literal["shared", "network"] = "network"
    """Scales of Gaussians and logistics: one learned for each entry, or a function of z."""
    levels: Literal["logistic", "categorical"] = "logistic"
    """Law of ordered levels: a discretised logistic, or a free probability for each."""
    components: Annotated[int, Range(1)] = 1
    """Components of the mixture that a Gaussian or logistic law is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighted and self.free:
            raise WordError(f"free={self.free} spares a rate, and weighted=true trains a bound "
                            "that has none; use one of them")


class Drawing(Config):
    """How `complete` draws what was not seen; `sample` has nothing to choose."""

    method: Literal["importance", "gibbs"] = "importance"
    """Completion: weigh codes by what was seen and draw one of them, or fill and encode back
    and forth, which is quick and only near the law."""
    samples: Annotated[int, Range(1)] = 64
    """Completion: codes that are weighed."""
    sweeps: Annotated[int, Range(1)] = 10
    """Completion: fillings before codes are weighed, so that they fit the whole row."""


class Bounding(Config):
    """How tight the bound is."""

    samples: Annotated[int, Range(1)] = 8
    """Importance samples: more are tighter and slower; 1 is the evidence lower bound."""
    refine: Annotated[int, Range(0)] = 0
    """Steps by which each row's own posterior climbs the bound from what the encoder says."""
