"""How data were understood, a line for each field: what `monge data FILE` shows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .codec import MISSING, Names
from .offset import Offset
from .ragged import Ragged
from .sequence import Sequence
from .shaped import Array
from .source import Field, Source


def summary(source: Source) -> list[dict[str, Any]]:
    return [entry(field, source) for field in source.schema.fields]


def entry(field: Field, source: Source) -> dict[str, Any]:
    """kind, shape, size; low, high and mean of the training rows; cells not seen in any row."""
    space, codec = field.space, field.codec
    told: dict[str, Any] = {"name": field.name, "kind": space.kind, "shape": list(space.shape),
                            "size": space.size or None}
    parts = space.columns or (space,)
    low, high = ([v for part in parts for v in getattr(part, end)] for end in ("low", "high"))
    if space.kind == "label":
        told |= {"low": None, "high": None, "mean": None}
    else:
        means = [mean for part in parts for mean in part.mean]
        base = codec.offset if isinstance(codec, Offset) else 0
        told |= {"low": base + min(low), "high": base + max(high),
                 "mean": base + sum(means) / len(means)}
    return told | {"missing": source.missing(field.name), "constant": is_constant(field, source),
                   "example": example(field, source), "rows": space.rows,
                   "dropped": source.dropped,
                   "names": list(codec.names) if isinstance(codec, Names) else None}


def is_constant(field: Field, source: Source) -> bool:
    """Whether training rows never vary: the field, or some entry of a vector."""
    space = field.space
    if space.kind == "label":
        train = source.tensors[field.name][source.splits["train"]]
        return isinstance(train, Tensor) and len(train.unique()) <= 1
    same = [low == high for part in space.columns or (space,)
            for low, high in zip(part.low, part.high, strict=True)]
    return all(same) if len(space.shape) == 3 else any(same)


def example(field: Field, source: Source) -> Any:
    """The first value of a single, the form of anything larger."""
    codec, kept = field.codec, source.tensors[field.name]
    if isinstance(codec, Sequence) and isinstance(kept, Ragged):
        return codec.tell(kept)
    if isinstance(codec, Array) or isinstance(kept, Ragged):
        return "x".join(map(str, field.space.shape))
    value = codec.decode(kept[:1].numpy())[0]
    return MISSING if value is None or value != value else getattr(value, "item", lambda: value)()
