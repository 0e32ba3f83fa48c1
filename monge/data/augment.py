"""Training rows changed at random, afresh in every batch: data.augment=shift2,rotate10.

A motion T of the plane does not change a label, M(T x) = M(x), so a model of a label given images
moves only the images. A model of an image given images moves all of them together, M(T x) = T M(x)
(invariance and equivariance: Chen, Dobriban & Lee 2020). Targets that are the position of a point
(data.points) move with the image too. Corruptions change inputs, never the
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
from .options import NO_CHANGE

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

    def __init__(self, names: Sequence[str], space: Space, points: tuple[int, ...] = ()) -> None:
        """points: the entries of the event that are the position of a point of the image."""
        self.space, self.points = space, list(points)
        found = [find(name) for name in names if name != NO_CHANGE]
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
        still = self.space.dims > len(self.points)  # some target stays where it is
        if self.motions and EVENT not in self.images and self.space.kind != "label" and still:
            return (f"data.augment assumes that {self.space.name} does not change with images",)
        return ()

    def sample(self, n: int) -> Mapping[str, Change]:
        """Sample the changes of n rows of the event and of each condition."""
        if not self:
            return {}
        product = self.motion(n) if self.motions else None
        theta = None
        if product is not None:
            size = torch.tensor([*(side / 2 for side in self.sides), 1.0])
            theta = (product * size / size[:, None])[:, :2]
        changes = {
            name: self.change(name, field, theta)
            for name, field in (self.images | self.inputs).items()
        }
        if self.points and product is not None:
            changes[EVENT] = self.move_points(product)
        return changes

    @property
    def sides(self) -> tuple[int, int]:
        """Width and height of the images that move."""
        height, width = next(iter(reversed(self.images.values()))).shape[1:]
        return width, height

    def motion(self, n: int) -> Tensor:
        """The product of the motions, from new to old pixels, (n, 3, 3) or (1, 3, 3)."""
        product = torch.eye(3)[None]
        for move in self.motions:
            product = product @ move(n)
        return product

    def move_points(self, product: Tensor) -> Change:
        """Positions in the old image, in pixels, become those in the new one."""
        inverse = torch.linalg.inv(product)
        centre = (torch.tensor(self.sides) - 1) / 2

        def apply(x: Tensor) -> Tensor:
            x = x.float().clone()
            place = x[:, self.points] - centre  # (n, 2)
            moved = torch.einsum("nij,nj->ni", inverse[:, :2, :2], place) + inverse[:, :2, 2]
            x[:, self.points] = moved + centre
            return x

        return apply

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
