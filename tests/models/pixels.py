"""Spaces of small images, and what they may be given."""

from __future__ import annotations

from monge.core.space import Space

BINARY = Space(kind="binary", shape=(1, 2, 3), mean=(0.3,))
COLOUR = Space(kind="binary", shape=(3, 1, 2), mean=(0.3, 0.5, 0.6))
LEVELS = Space(kind="levels", shape=(1, 2, 2), size=3, mean=(1.0,))
RGB = Space(
    kind="levels",
    shape=(3, 3, 4),
    size=256,
    mean=(100.0, 120.0, 90.0),
    scale=(50.0, 60.0, 40.0),
    high=(255.0,),
)
REAL = Space(kind="real", shape=(1, 4, 3), mean=(2.0,), scale=(3.0,))
ROW = Space(kind="binary", shape=(7,), mean=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7))
GIVEN = {"label": Space(kind="label", size=3)}


def space_id(space: Space) -> str:
    return f"{space.kind}-{'x'.join(map(str, space.shape))}"
