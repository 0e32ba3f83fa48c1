r"""How the discriminator of an image GAN reads the conditions y.

concat      They are channels beside the image (Mirza & Osindero 2014).
projection  $a(x, y) = \psi(h) + \langle V y, h \rangle$ with the last feature map h of x and a
            linear $\psi$ (Miyato & Koyama 2018). The best logit is $\log p_d(x|y) / p_g(x|y)$,
            where the conditions of samples are those of the data; between two classes only the
            second term differs. Where both class conditionals are of one exponential family of
            statistics h, that difference is linear in h, as here.
auxiliary   a(x) alone, and a class head C(y | x) beside it: both players minimise
            $-\log C(y|x)$, the discriminator of real and of fake rows (Odena, Olah & Shlens 2017).
            a(x) is the ratio of the distributions of x without y. The generator gains by samples
            whose class is certain, so that it avoids the borders of classes also where the data
            have some (Shu, Bui & Ermon 2017).

The last convolution of the discriminator has one output for the logit, and further ones for the
rows of V or for the logits of classes.
"""

from __future__ import annotations

import abc
from typing import Annotated

from torch import Tensor

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.errors import UsageError
from ...core.space import Space
from ...nn.inputs.features import Conditions
from ._convnets import ConditionMaps


class DiscriminatorConditioning(Configured, abc.ABC):
    """How a discriminator of images reads conditions, given as features (B, C)."""

    class Config(BaseConfig):
        """The choices of one way."""

        tag = "discriminator_conditioning/"

    channels = 0
    """Channels beside the image at the input of the discriminator."""
    outputs = 0
    """Outputs of its last convolution beside the logit."""

    def __init__(self, config: Config, conditions: Conditions, space: Space) -> None:
        self.config = config

    def inputs(self, image: Tensor, context: Tensor) -> Tensor:
        """What the discriminator reads, (B, C + channels, *sides)."""
        return image

    @abc.abstractmethod
    def logit(self, out: Tensor, context: Tensor) -> Tensor:
        """The logit that a row is real, (B,), from the outputs (B, 1 + outputs)."""

    def class_loss(self, out: Tensor, context: Tensor) -> Tensor | None:
        """What both players add to their losses for a row, (B,)."""
        return None


class ConcatConditioning(DiscriminatorConditioning):
    """Conditions are channels beside the image, numbers and names constant ones."""

    class Config(DiscriminatorConditioning.Config):
        tag = "discriminator_conditioning/concat"

    def __init__(self, config: Config, conditions: Conditions, space: Space) -> None:
        super().__init__(config, conditions, space)
        self.maps = ConditionMaps(conditions, space)
        self.channels = self.maps.channels

    def inputs(self, image: Tensor, context: Tensor) -> Tensor:
        return self.maps.beside(image, context)

    def logit(self, out: Tensor, context: Tensor) -> Tensor:
        return out[:, 0]


class ProjectionConditioning(DiscriminatorConditioning):
    """The logit has a term that is linear in the conditions and in the last feature map."""

    class Config(DiscriminatorConditioning.Config):
        tag = "discriminator_conditioning/projection"

    def __init__(self, config: Config, conditions: Conditions, space: Space) -> None:
        super().__init__(config, conditions, space)
        require_conditions("projection", space)
        for name, part in space.given.items():
            if part.is_image:
                raise UsageError(
                    f"conditioning=projection expected labels, names or numbers, found the image "
                    f"{name}; set conditioning=concat"
                )
        self.outputs = conditions.width

    def logit(self, out: Tensor, context: Tensor) -> Tensor:
        return out[:, 0] + (out[:, 1:] * context).sum(1)


class AuxiliaryConditioning(DiscriminatorConditioning):
    """The discriminator predicts the labels instead of reading them."""

    class Config(DiscriminatorConditioning.Config):
        tag = "discriminator_conditioning/auxiliary"
        weight: Annotated[float, Range(0, open=True)] = 1.0
        """Weight of the loss of the class head, in both players."""

    config: Config

    def __init__(self, config: Config, conditions: Conditions, space: Space) -> None:
        super().__init__(config, conditions, space)
        require_conditions("auxiliary", space)
        for name, part in space.given.items():
            if part.kind != "label":
                raise UsageError(
                    f"conditioning=auxiliary expected labels, found {name}, which holds {part}; "
                    "set conditioning=projection or concat"
                )
        self.outputs = conditions.width
        self.sizes = [part.size for part in space.given.values() for _ in range(part.dims)]

    def logit(self, out: Tensor, context: Tensor) -> Tensor:
        return out[:, 0]

    def class_loss(self, out: Tensor, context: Tensor) -> Tensor | None:
        """-weight / 2 log C(y | x), summed over labels; an unknown label, whose features are 0,
        costs nothing."""
        parts = zip(out[:, 1:].split(self.sizes, 1), context.split(self.sizes, 1), strict=True)
        log_share = sum((y * logits.log_softmax(1)).sum(1) for logits, y in parts)
        return -self.config.weight / 2 * log_share


def require_conditions(name: str, space: Space) -> None:
    if not space.given:
        raise UsageError(
            f"conditioning={name} expected a condition, found none; add such as --given label"
        )
