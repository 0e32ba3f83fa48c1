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
class Word:
    """A function of `geometry` or `corruption` and its strength."""

    word: str
    home: ModuleType
    name: str
    amounts: tuple[float, ...]

    def __call__(self, *about: object) -> Tensor:
        return getattr(self.home, self.name)(*about, *self.amounts)


def find(word: str) -> Word:
    """The function behind a value such as rotate10."""
    known = {
        name.replace("_", "-"): home
        for home, module in (
            (geometry, "augmentations/geometry"),
            (corruption, "augmentations/corruption"),
        )
        for name, _ in listing(module)
    }
    parts = re.fullmatch(r"(.*?)(\d*\.?\d*)", word)
    name, digits = (parts[1], parts[2]) if parts else (word, "")
    if name not in known:
        raise UsageError(f"data.augment={word}: there is no such change{nearest(name, known)}")
    home, function = known[name], name.replace("-", "_")
    takes = "most" in inspect.signature(getattr(home, function)).parameters
    if takes != bool(digits) or digits in (".", "0"):
        raise UsageError(f"data.augment={word} must be written {name}{'5' * takes}")
    return Word(word, home, function, (float(digits),) if digits else ())


class Augment:
    """Random changes of the event and the conditions of a training batch."""

    def __init__(self, names: Sequence[str], space: Space) -> None:
        self.space = space
        found = [find(word) for word in names if word != NONE]
        self.moves = [word for word in found if word.home is geometry]
        self.spoils = [word for word in found if word.home is corruption]
        fields = {EVENT: space} | dict(space.given)
        self.pictures = {name: field for name, field in fields.items() if field.is_image}
        inputs = {
            name: field
            for name, field in space.given.items()
            if field.is_image or (field.kind == "real" and not field.varies)
        }
        self.inputs = inputs or ({EVENT: space} if EVENT in self.pictures else {})
        for word in found:
            self.check(word, space)

    def check(self, word: Word, space: Space) -> None:
        fields = self.pictures if word.home is geometry or word.name != "noise" else self.inputs
        if word.name == "channels":
            fields = {name: field for name, field in fields.items() if field.shape[0] > 1}
        if not fields or any(field.missing for field in fields.values()):
            what = {
                "noise": "inputs that are real or images",
                "channels": "images of several channels",
            }.get(word.name, "images")
            raise UsageError(
                f"data.augment={word.word} needs {what} without missing values, but "
                f"{space.name} has none; remove it"
            )

    def __bool__(self) -> bool:
        return bool(self.moves or self.spoils)

    @property
    def notes(self) -> tuple[str, ...]:
        """How the changes affect the meaning of log-likelihoods."""
        if self and list(self.pictures) == [EVENT]:
            return (
                "data.augment changes the modelled distribution to that of augmented images; "
                "held-out images are not augmented",
            )
        if self.moves and EVENT not in self.pictures and self.space.kind != "label":
            return (f"data.augment assumes that {self.space.name} does not change with images",)
        return ()

    def draw(self, n: int) -> Mapping[str, Change]:
        """Sample the changes of n rows of the event and of each condition."""
        if not self:
            return {}
        theta = self.motion(n) if self.moves else None
        return {
            name: self.change(name, field, theta)
            for name, field in (self.pictures | self.inputs).items()
        }

    def motion(self, n: int) -> Tensor:
        """The product of the motions, in coordinates from -1 to 1, (n, 2, 3)."""
        product = torch.eye(3)
        for word in self.moves:
            product = product @ word(n)
        height, width = next(iter(reversed(self.pictures.values()))).shape[1:]
        size = torch.tensor([width / 2, height / 2, 1.0])
        return (product * size / size[:, None])[:, :2]

    def change(self, name: str, space: Space, theta: Tensor | None) -> Change:
        def apply(x: Tensor) -> Tensor:
            x = x.float()
            if theta is not None and name in self.pictures:
                where = affine_grid(theta, list(x.shape), align_corners=False)
                x = grid_sample(x, where, padding_mode="border", align_corners=False)
            for word in self.spoils if name in self.inputs else ():
                if word.name == "noise" or name in self.pictures:
                    x = word(x, space)
            return x if space.kind == "real" else x.round().clamp(0, max(space.size - 1, 1))

        return apply
