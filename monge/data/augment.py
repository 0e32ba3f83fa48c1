"""Training rows changed at random, afresh in every batch: data.augment=shift2,rotate10.

A motion T of the plane does not change a label, M(T x) = M(x), so a model of a label given images
moves only the images. A model of an image given images moves all of them together, M(T x) = T M(x)
(invariance and equivariance: Chen, Dobriban & Lee 2020). Corruptions change inputs, never the
event. Without conditions, the model learns the distribution of the changed images. All random
numbers come from torch's global generator, which the training loop seeds at each step.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..core.errors import UsageError, nearest
from ..core.space import Space
from .augmentations import corruption, geometry
from .builtin.catalogue import listing

NONE = "none"
"""The value that turns off the augmentation a model proposes."""
EVENT = ""
"""The key of the event among the changes of a batch."""
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AugmentationSpec:
    """A function of `geometry` or `corruption` and its strength."""

    text: str
    home: ModuleType
    name: str
    amounts: tuple[float, ...]

    def __call__(self, *about: object) -> Tensor:
        return getattr(self.home, self.name)(*about, *self.amounts)


def find(text: str) -> AugmentationSpec:
    """The function behind a value such as rotate10."""
    known = {
        name.replace("_", "-"): home
        for home, module in (
            (geometry, "augmentations/geometry"),
            (corruption, "augmentations/corruption"),
        )
        for name, _ in listing(module)
    }
    parts = re.fullmatch(r"(.*?)(\d*\.?\d*)", text)
    name, digits = (parts[1], parts[2]) if parts else (text, "")
    if name not in known:
        raise UsageError(f"data.augment={text}: there is no such change{nearest(name, known)}")
    home, function = known[name], name.replace("-", "_")
    takes = "most" in inspect.signature(getattr(home, function)).parameters
    if takes != bool(digits) or digits in (".", "0"):
        raise UsageError(f"data.augment={text} must be written {name}{'5' * takes}")
    return AugmentationSpec(text, home, function, (float(digits),) if digits else ())


class Augment:
    """Random changes of the event and the conditions of a training batch."""

    def __init__(self, names: Sequence[str], space: Space) -> None:
        self.space = space
        found = [find(name) for name in names if name != NONE]
        self.motions = [spec for spec in found if spec.home is geometry]
        self.corruptions = [spec for spec in found if spec.home is corruption]
        fields = {EVENT: space} | dict(space.given)
        self.images = {name: field for name, field in fields.items() if field.is_image}
        inputs = {
            name: field
            for name, field in space.given.items()
            if field.is_image or (field.kind == "real" and not field.varies)
        }
        self.inputs = inputs or ({EVENT: space} if EVENT in self.images else {})
        for spec in found:
            self.check(spec, space)
            self.check_amount(spec)

    def check(self, spec: AugmentationSpec, space: Space) -> None:
        fields = self.images if spec.home is geometry or spec.name != "noise" else self.inputs
        if spec.name == "channels":
            fields = {name: field for name, field in fields.items() if field.shape[0] > 1}
        if not fields or any(field.missing for field in fields.values()):
            what = {
                "noise": "inputs that are real or images",
                "channels": "images of several channels",
            }.get(spec.name, "images")
            raise UsageError(
                f"data.augment={spec.text} needs {what} without missing values, but "
                f"{space.name} has none; remove it"
            )

    def check_amount(self, spec: AugmentationSpec) -> None:
        """Refuse a shift that moves images out of their frame."""
        side = min((min(field.shape[1:]) for field in self.images.values()), default=0)
        if spec.name == "shift" and side and spec.amounts[0] >= side:
            raise UsageError(
                f"data.augment={spec.text} moves images of side {side} out of their frame; "
                f"write shift{max(side // 14, 1)}"
            )

    def __bool__(self) -> bool:
        return bool(self.motions or self.corruptions)

    @property
    def notes(self) -> tuple[str, ...]:
        """How the changes affect the meaning of log-likelihoods."""
        if self and list(self.images) == [EVENT]:
            return (
                "data.augment changes the modelled distribution to that of augmented images; "
                "held-out images are not augmented",
            )
        if self.motions and EVENT not in self.images and self.space.kind != "label":
            return (f"data.augment assumes that {self.space.name} does not change with images",)
        return ()

    def sample(self, n: int) -> Mapping[str, Change]:
        """Sample the changes of n rows of the event and of each condition."""
        if not self:
            return {}
        theta = self.motion(n) if self.motions else None
        return {
            name: self.change(name, field, theta)
            for name, field in (self.images | self.inputs).items()
        }

    def motion(self, n: int) -> Tensor:
        """The product of the motions, in coordinates from -1 to 1, (n, 2, 3)."""
        product = torch.eye(3)
        for move in self.motions:
            product = product @ move(n)
        height, width = next(iter(reversed(self.images.values()))).shape[1:]
        size = torch.tensor([width / 2, height / 2, 1.0])
        return (product * size / size[:, None])[:, :2]

    def change(self, name: str, space: Space, theta: Tensor | None) -> Change:
        def apply(x: Tensor) -> Tensor:
            x = x.float()
            if theta is not None and name in self.images:
                where = affine_grid(theta, list(x.shape), align_corners=False)
                x = grid_sample(x, where, padding_mode="border", align_corners=False)
            for corrupt in self.corruptions if name in self.inputs else ():
                if corrupt.name == "noise" or name in self.images:
                    x = corrupt(x, space)
            return x if space.kind == "real" else x.round().clamp(0, max(space.size - 1, 1))

        return apply
