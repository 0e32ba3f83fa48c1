"""Sequences that branch: what they have in common is kept once.

A search goes on with some beginnings and leaves others, so that each of the `kin` sequences of a
row has a path through the steps of all. Keys and values stay where they are; a mask tells which of
them lie on a sequence's own path, and to branch is to copy a row of the mask.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from ..core.error import WordError
from .attention import Cache, CrossAttention, Memory
from .ready import affine
from .stepwise import State


class Tree(State):
    """The steps of n rows of `kin` sequences each. The first `alone` steps, those of the trunk,
    are common to all; after them each step adds `kin` keys to a row."""

    def __init__(self, trunk: Cache, kin: int) -> None:
        self.trunk, self.kin, self.alone = trunk, kin, trunk.steps
        self.enter, self.angles = trunk.enter, trunk.angles
        self.steps, self.most = trunk.steps, trunk.most
        n, heads, size, _ = trunk.k.shape
        room = self.alone + kin * (self.most - self.alone)
        self.k, self.v = trunk.k.new_empty(n, heads, size, room), trunk.v.new_empty(
            n, heads, room, size)
        self.k[..., :self.alone] = trunk.k[..., :self.alone]
        self.v[:, :, :self.alone] = trunk.v[:, :, :self.alone]
        self.path = trunk.k.new_full((n, kin, room), -math.inf)  # 0 on a sequence's own steps
        self.path[..., :self.alone] = 0
        self.own = self.path.new_full((kin, kin), -math.inf).fill_diagonal_(0)

    @property
    def count(self) -> int:
        """Keys of a row so far."""
        return self.alone + self.kin * (self.steps - self.alone)

    def look(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Add a step of every sequence and attend to its path: (n kin, heads, d) each -> (n kin,
        heads d)."""
        if self.steps == self.most:
            raise WordError(f"the state was started for {self.most} steps and all are taken; "
                            "start it with more")
        n, heads, size, _ = self.k.shape
        first, self.steps = self.count, self.steps + 1
        last = self.count
        q, k, v = (each.unflatten(0, (n, self.kin)) for each in (q, k, v))  # (n, kin, heads, d)
        self.k[..., first:last] = k.permute(0, 2, 3, 1)
        self.v[:, :, first:last] = v.transpose(1, 2)
        self.path[..., first:last] = self.own
        path = self.path[:, None, :, :last].expand(-1, heads, -1, -1)  # (n, heads, kin, keys)
        if self.trunk.bias is not None:
            path = path + self.bias(last)
        keys, values = self.k[..., :last].flatten(0, 1), self.v[:, :, :last].flatten(0, 1)
        asks = q.transpose(1, 2).reshape(n * heads, self.kin, size)
        weights = torch.baddbmm(path.flatten(0, 1), asks, keys).softmax(2)
        found = torch.bmm(weights, values).unflatten(0, (n, heads))  # (n, heads, kin, d)
        return found.transpose(1, 2).reshape(n * self.kin, heads * size)

    def bias(self, count: int) -> Tensor:
        """What the distance of each key adds to its score, (heads, 1, keys)."""
        known = self.trunk.bias
        assert known is not None, "asked for only where there is one"
        late = torch.arange(count - self.alone, device=known.device) // self.kin + self.alone
        step = torch.cat([torch.arange(self.alone, device=known.device), late])
        return known[:self.k.shape[1], :, self.most - self.steps + step]

    def take(self, rows: Tensor, kin: int = 1) -> None:
        """Go on with `rows`, of which every `kin` neighbours, as many as before, are of one
        row."""
        self.path = self.path.flatten(0, 1).index_select(0, rows).unflatten(0, (-1, kin))
        groups = rows[::kin] // self.kin
        if len(groups) != len(self.k) or bool((groups.diff() != 1).any()):
            self.k, self.v = self.k.index_select(0, groups), self.v.index_select(0, groups)

    def apart(self) -> Cache:
        """Every sequence with keys and values of its own."""
        n, heads, size, _ = self.k.shape
        slots = (self.path[..., :self.count] == 0).nonzero()[:, 2].reshape(n * self.kin, -1)
        slots = slots[:, None, :, None].expand(-1, heads, -1, size)  # (n kin, heads, steps, d)
        k = self.k.mT.repeat_interleave(self.kin, 0).gather(2, slots).mT
        v = self.v.repeat_interleave(self.kin, 0).gather(2, slots)
        cache = copy.copy(self.trunk)
        cache.steps = self.steps
        keys = k.new_empty(n * self.kin, heads, size, self.most)
        values = v.new_empty(n * self.kin, heads, self.most, size)
        keys[..., :self.steps], values[:, :, :self.steps] = k, v
        cache.keep(keys, values)
        if cache.bias is not None:
            cache.bias = cache.bias[:heads].repeat(n * self.kin, 1, 1)
        return cache


def branched(past: State, rows: Tensor, kin: int) -> State:
    """A state that goes on with `rows`, every `kin` neighbours of which have the same origin."""
    if isinstance(past, Tree):
        if kin == past.kin:
            past.take(rows, kin)
            return past
        past = past.apart()
    if isinstance(past, Cache) and kin > 1 and bool((rows.unflatten(0, (-1, kin)).diff() == 0
                                                     ).all()):
        past.take(rows[::kin])
        return Tree(past, kin)
    past.take(rows)
    return past


class Recall(State):
    """Cross-attention made ready: the memory of a row serves all its `kin` sequences."""

    def __init__(self, layer: CrossAttention, memory: Memory) -> None:
        self.heads, self.size, self.kin = layer.heads, layer.size, 1
        self.enter = affine(layer.ask, layer.size**-0.5)  # queries are scaled, not scores
        self.k, self.v, self.mask = memory.k.mT.contiguous(), memory.v.contiguous(), memory.mask

    def find(self, x: Tensor) -> Tensor:
        """What the heads find for x (n kin, width), side by side."""
        n = len(self.k)
        q = self.enter(x).view(n, self.kin, self.heads, self.size).transpose(1, 2)
        q = q.reshape(n * self.heads, self.kin, self.size)
        scores = torch.bmm(q, self.k.flatten(0, 1))  # (n heads, kin, S)
        if self.mask is not None:
            scores = (scores.unflatten(0, (n, self.heads)) + self.mask).flatten(0, 1)
        found = torch.bmm(scores.softmax(2), self.v.flatten(0, 1)).unflatten(0, (n, self.heads))
        return found.transpose(1, 2).reshape(x.shape)

    def take(self, rows: Tensor, kin: int = 1) -> None:
        groups, self.kin = rows[::kin] // self.kin, kin
        if len(groups) != len(self.k) or bool((groups.diff() != 1).any()):
            self.k, self.v = self.k.index_select(0, groups), self.v.index_select(0, groups)
            self.mask = None if self.mask is None else self.mask.index_select(0, groups)
