"""Rows of several requests in common batches, with the answer that each has alone.

Each request has its rows read, cut and padded to sizes as on the command line. Pieces of one shape
and one padded size fill batches of that size together: a row meets the same kernels as it does
alone, its noise is keyed by its number in its own request, and so it has the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..core.batch import Batch, join_batches
from ..evaluate.likelihood import CHUNK, padded, padded_size


def cut(batch: Batch) -> list[Batch]:
    """The rows of a request in chunks, numbered within the request."""
    numbered = replace(batch, row=torch.arange(len(batch)))
    return [numbered[index] for index in torch.arange(len(batch)).split(CHUNK)]


def compute_together(
    requests: Sequence[Sequence[Batch]],
    compute: Callable[[Batch], Any],
    take: Callable[[Any, slice], Any],
) -> tuple[list[list[Any]], int]:
    """For each request the results of its chunks, and the number of batches; `compute` answers a
    batch and `take` cuts its rows out of the result."""
    found: list[list[Any]] = [[None] * len(chunks) for chunks in requests]
    groups: dict[tuple[int, Hashable], list[tuple[int, int, Batch]]] = {}
    for number, chunks in enumerate(requests):
        for place, chunk in enumerate(chunks):
            key = (padded_size(len(chunk)), shape_of(chunk))
            groups.setdefault(key, []).append((number, place, chunk))
    count = 0
    for (size, _), pieces in groups.items():
        for tile in fill(pieces, size):
            result, start = compute(padded(join_batches([p[2] for p in tile]), size)), 0
            count += 1
            for number, place, chunk in tile:
                found[number][place] = take(result, slice(start, start + len(chunk)))
                start += len(chunk)
    return found, count


def fill(
    pieces: Sequence[tuple[int, int, Batch]], size: int
) -> Iterator[list[tuple[int, int, Batch]]]:
    """Pieces in groups of at most `size` rows."""
    tile: list[tuple[int, int, Batch]] = []
    for piece in pieces:
        if tile and sum(len(each[2]) for each in tile) + len(piece[2]) > size:
            yield tile
            tile = []
        tile.append(piece)
    yield tile


def shape_of(batch: Batch) -> Hashable:
    """What the rows of two batches must share to stand in one."""
    return (
        batch.x.shape[1:],
        batch.x.dtype,
        None if batch.observed is None else batch.observed.shape[1:],
        batch.length is None,
        tuple((name, shape_of(part)) for name, part in batch.given.items()),
    )
