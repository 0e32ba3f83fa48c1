"""Small datasets for tests: a space of every kind with rows that a model can learn."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.space import Space

LABEL = Space(kind="label", size=3, name="label", rows=1000)
CONDITIONS = {
    "label": LABEL,
    "picture": Space(
        kind="real", shape=(1, 4, 4), name="picture", rows=1000, mean=(0.25,), scale=(0.4,)
    ),
    "small": Space(
        kind="levels",
        shape=(1, 1, 1),
        size=4,
        name="small",
        rows=1000,
        mean=(1.5,),
        scale=(0.8,),
        high=(3.0,),
    ),
    "past": Space(kind="real", shape=(4,), name="past", rows=1000, mean=(0.5,), scale=(0.6,)),
    "text": Space(kind="tokens", shape=(4,), size=3, varies=True, name="text", rows=1000),
}
"""Conditions for any event; `small` is the mean of an event that is a 2x2 image."""


class Rows:
    """A split of a dataset, as the training loop and the evaluation read it."""

    def __init__(self, batch: Batch) -> None:
        self.all = batch

    def __len__(self) -> int:
        return len(self.all)

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        return replace(self.all[index], row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))

    @property
    def lengths(self) -> Tensor | None:
        parts = [
            part.length for part in (self.all, *self.all.given.values()) if part.length is not None
        ]
        return torch.stack(parts, 1) if parts else None

    @property
    def row_bytes(self) -> int:
        return 0


def fitted(space: Space, x: Tensor) -> Space:
    """The space with the statistics of its rows, one for each entry of a vector."""
    rows = x.double()
    axes = (0, 2, 3) if len(space.shape) == 3 else (0,)
    scale = rows.std(axes).reshape(-1)

    def values(t: Tensor) -> tuple[float, ...]:
        return tuple(t.reshape(-1).tolist())

    return replace(
        space,
        rows=len(x),
        mean=values(rows.mean(axes)),
        scale=values(torch.where(scale > 0, scale, 1.0)),
        low=values(rows.amin(axes)),
        high=values(rows.amax(axes)),
    )


def make(kind: str, n: int = 1000, seed: int = 0) -> tuple[Space, Batch]:
    """A space of this kind and n rows whose entries depend on a common cause."""
    g = torch.Generator().manual_seed(seed)
    cause = torch.rand(n, generator=g)

    def noise(*shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=g)

    if kind == "real":
        x = torch.stack([5 + 2 * cause + 0.2 * noise(), -cause + 0.1 * noise()], 1)
        return fitted(Space(kind="real", shape=(2,), name="x"), x), Batch(x)
    if kind == "binary":
        x = (noise(5) < (0.1 + 0.8 * (cause > 0.8))[:, None]).float()
        return fitted(Space(kind="binary", shape=(5,), size=2, name="x"), x), Batch(x)
    if kind == "levels":
        x = (4 * (0.6 * cause[:, None] + 0.4 * noise(4))).floor().clamp(0, 3).reshape(n, 1, 2, 2)
        return fitted(Space(kind="levels", shape=(1, 2, 2), size=4, name="x"), x), Batch(x)
    if kind == "label":
        x = (3 * cause**4).long().clamp(max=2)
        return Space(kind="label", size=3, name="x", rows=n), Batch(x)
    if kind == "counts":
        x = torch.stack([(10 * cause + 3 * noise()).floor(), (4 * noise()).floor()], 1)
        return fitted(Space(kind="counts", shape=(2,), name="x"), x), Batch(x)
    if kind == "columns":
        return table(cause, noise)
    raise KeyError(kind)


def table(cause: Tensor, noise) -> tuple[Space, Batch]:
    """A table of a flag, a category with three values and a number."""
    flag = (noise() < cause).float()
    name = (3 * (0.7 * cause + 0.3 * noise())).floor().clamp(max=2)
    number = 10 * cause + noise()
    columns = (
        fitted(Space(kind="binary", size=2, name="flag"), flag),
        Space(kind="label", size=3, name="name", rows=len(cause)),
        fitted(Space(kind="real", name="number"), number),
    )
    x = torch.stack([flag, name, number], 1)
    return Space(kind="columns", shape=(3,), columns=columns, name="row", rows=len(x)), Batch(x)


def conditions(space: Space) -> dict[str, Space]:
    """Possible conditions of an event; a model is tested with the first that it supports. The last
    is the event itself, coarse and half as large."""
    own = replace(
        space,
        name="own",
        mean=tuple(m / 2 for m in space.mean),
        scale=tuple(s / 2 for s in space.scale),
    )
    return CONDITIONS | ({"own": own} if space.kind in ("real", "levels") else {})


def conditioned(space: Space, batch: Batch, name: str = "label") -> tuple[Space, Batch]:
    """The same event with a condition that depends on its first entry."""
    given = replace(space, given={name: conditions(space)[name]})
    if name == "small" and space.shape == (1, 2, 2):
        means = Batch(batch.x.mean((2, 3), keepdim=True).round())
        return given, replace(batch, given={name: means})
    if name == "own":
        return given, replace(batch, given={name: Batch((batch.x / 2).floor())})
    first = batch.x.reshape(len(batch), -1)[:, 0].double()
    code = (3 * first.argsort().argsort() // len(first)).clamp(max=2)
    return given, replace(batch, given=conditions_of(given, code))


def conditions_of(space: Space, code: Tensor) -> dict[str, Batch]:
    """The conditions of the space that encode these classes, each one of three."""
    return {name: condition(name, code, space.shape) for name in space.given}


def condition(name: str, code: Tensor, shape: tuple[int, ...]) -> Batch:
    """One of three classes, as a label, one pixel, a series, a text of two to four symbols,
    an image of a bar, or an event of this shape whose entries are equal."""
    if name == "label":
        return Batch(code)
    if name == "own":
        return Batch(code.float().reshape(-1, *(1,) * len(shape)).expand(-1, *shape).contiguous())
    if name == "small":
        return Batch(code.float().reshape(-1, 1, 1, 1))
    if name == "past":
        return Batch(code[:, None] * torch.tensor([0.1, 0.3, 0.6, 1.0]))
    if name == "text":
        exist = torch.arange(4) < 2 + code[:, None]
        return Batch(torch.where(exist, code[:, None], 77), length=2 + code)
    bars = torch.nn.functional.one_hot(code, 4).float()
    return Batch(bars[:, None, :, None].expand(-1, 1, 4, 4).contiguous())


def states(space: Space) -> Tensor:
    """Every event of a finite space, (S, *event)."""
    sizes = [2 if part.kind == "binary" else part.size for part in space.parts]
    rows = torch.tensor(list(itertools.product(*map(range, sizes))))
    rows = rows.reshape(-1, *space.shape)
    return rows if space.kind == "label" else rows.double()


def is_finite(space: Space) -> bool:
    return all(part.kind in ("binary", "levels", "label") for part in space.parts)


SEQUENCES = ("levels", "real", "tokens", "channels")
LONGEST = 12


def sequence(kind: str, n: int = 600, seed: int = 0) -> tuple[Space, Batch]:
    """Rows of 1 to 12 steps, each near the one before it: levels, reals, tokens that may end, or
    two levels per step. Values beyond the length of a row are meaningless."""
    g = torch.Generator().manual_seed(seed)
    channels = 2 if kind == "channels" else 1
    start = 3 * torch.rand(n, 1, channels, generator=g)
    x = start + (torch.randn(n, LONGEST, channels, generator=g) * 0.4).cumsum(1)
    length = torch.randint(1, LONGEST + 1, (n,), generator=g)
    x = x if kind == "real" else x.round().clamp(0, 3)
    x = x if kind == "channels" else x[..., 0]  # (n, T) or (n, T, 2)
    name = "levels" if kind == "channels" else kind
    space = Space(
        kind=name,
        shape=x.shape[1:],
        size=0 if kind == "real" else 4,
        varies=True,
        end=3 if kind == "tokens" else None,
        name="x",
        rows=n,
        mean=(1.5,),
        scale=(1.2,),
        low=(-2.0 if kind == "real" else 0.0,),
        high=(5.0 if kind == "real" else 3.0,),
    )
    beyond = torch.arange(LONGEST) >= length[:, None]
    x[beyond] = 1e9 if kind == "real" else 77.0
    return space, Batch(x.long() if kind == "tokens" else x, length=length)


def sentences(n: int = 600, seed: int = 0) -> tuple[Space, Batch]:
    """Sentences of up to 5 symbols out of 4, each conditioned on a sentence of 1 to 4 symbols that
    it mostly reverses. Values beyond the length of a row are meaningless."""
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 5, (n,), generator=g)
    x = torch.randint(0, 3, (n, 4), generator=g)
    places = (length[:, None] - 1 - torch.arange(4)).clamp(min=0)
    y = torch.where(
        torch.rand(n, 4, generator=g) < 0.8,
        x.gather(1, places),
        torch.randint(0, 3, (n, 4), generator=g),
    )
    y = torch.cat([y, torch.full((n, 1), 3)], 1)
    y.scatter_(1, length[:, None], 3)  # the symbol that ends a row
    y[torch.arange(5) > length[:, None]], x[torch.arange(4) >= length[:, None]] = 77, 77
    source = Space(kind="tokens", shape=(4,), size=3, varies=True, name="source", rows=n)
    space = Space(
        kind="tokens",
        shape=(5,),
        size=4,
        varies=True,
        end=3,
        name="target",
        rows=n,
        given={"source": source},
    )
    return space, Batch(y, {"source": Batch(x, length=length)}, length=length + 1)
