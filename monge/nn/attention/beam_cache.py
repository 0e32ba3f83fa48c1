"""Key-value caches for beam search: beams share the keys and values of their common past.

A search extends some prefixes and drops others, so each of the `beams` sequences of a row is a
path through a tree of steps. Keys and values stay in place; a mask marks those on a sequence's
path, and branching copies a row of the mask. The paths of a row meet a few steps back, and keys on
no path are pruned regularly.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..fast_step import prepare_linear, prepare_residual
from ..stepwise import State
from .softmax import CrossAttention, CrossAttentionMemory, KeyValueCache, check_room

PRUNE_EVERY = 6
"""Steps between prunings of keys on no path."""


class BeamTree(State):
    """The steps of n rows of `beams` sequences each. The first `alone` steps, those of the trunk,
    are common to all; after them each step adds `beams` keys to a row."""

    def __init__(self, trunk: KeyValueCache, beams: int) -> None:
        self.trunk, self.beams, self.alone = trunk, beams, trunk.steps
        self.project = trunk.project
        self.steps, self.max_steps = trunk.steps, trunk.max_steps
        self.count = self.count_after_pruning = (
            self.alone
        )  # keys of a row, now and after the last pruning
        _, n, heads, _, size = trunk.cache.shape
        room = self.alone + beams * (self.max_steps - self.alone)
        cache = trunk.cache.new_empty(2, n, heads, room, size)
        cache[:, :, :, : self.alone] = trunk.cache[:, :, :, : self.alone]
        self.k, self.v = cache
        self.path = cache.new_full((n, beams, room), -math.inf)  # 0 on a sequence's own steps
        self.path[..., : self.alone] = 0
        self.own = self.path.new_full((beams, beams), -math.inf).fill_diagonal_(0)
        self.project.resize(n * beams)

    def find(self, x: Tensor) -> Tensor:
        """Add a step x (n beams, width) of every sequence and attend to its path: the concatenated
        outputs of the heads, (n beams, width)."""
        check_room(self.steps, self.max_steps)
        self.project(x, self.steps)
        parts = self.project.q, self.project.k, self.project.v  # (n beams, heads, d) each
        first, last = self.count, self.count + self.beams
        self.steps, self.count = self.steps + 1, last
        q, k, v = (each.unflatten(0, (-1, self.beams)).transpose(1, 2) for each in parts)
        self.k[:, :, first:last] = k  # (n, heads, beams, d)
        self.v[:, :, first:last] = v
        self.path[..., first:last] = self.own
        path = self.path[:, None, :, :last]  # (n, 1, beams, keys)
        if self.trunk.bias is not None:
            path = path + self.bias(last)
        found = F.scaled_dot_product_attention(
            q, self.k[:, :, :last], self.v[:, :, :last], path, scale=1.0
        )  # (n, heads, beams, d)
        return found.transpose(1, 2).flatten(0, 1).flatten(1)

    def bias(self, count: int) -> Tensor:
        """The relative bias of each key, (heads, 1, keys)."""
        known = self.trunk.bias
        assert known is not None, "called only if there is a bias"
        late = torch.arange(count - self.alone, device=known.device) // self.beams + self.alone
        step = torch.cat([torch.arange(self.alone, device=known.device), late])
        return known[: self.k.shape[1], :, self.max_steps - self.steps + step]

    def reorder(self, rows: Tensor, beams: int = 1) -> None:
        """Continue with `rows`; each group of `beams` neighbours, as many as before, belongs to
        one row."""
        self.path = self.path.flatten(0, 1).index_select(0, rows).unflatten(0, (-1, beams))
        groups = rows[::beams] // self.beams
        if len(groups) != len(self.k) or bool((groups.diff() != 1).any()):
            self.k, self.v = self.k.index_select(0, groups), self.v.index_select(0, groups)
            self.project.resize(len(rows))
        if (
            self.trunk.bias is None
            and self.count - self.count_after_pruning >= PRUNE_EVERY * beams
        ):  # with a bias the positions matter
            self.prune()

    def prune(self) -> None:
        """Drop keys on no path; the others keep their order."""
        live = (self.path[..., : self.count] == 0).any(1)  # (n, keys)
        self.count_after_pruning = most = int(live.sum(1).max())
        slots = live.long().argsort(dim=1, descending=True, stable=True)[:, :most]
        n, heads, room, size = self.k.shape
        base = torch.arange(n * heads, device=slots.device).reshape(n, heads, 1) * room
        places = (base + slots[:, None]).flatten()
        for cache in (self.k, self.v):
            found = cache.view(-1, size).index_select(0, places)
            cache[:, :, :most] = found.view(n, heads, most, size)
        self.path[..., :most] = self.path.gather(2, slots[:, None].expand(-1, self.beams, -1))
        self.count = most

    def separate(self) -> KeyValueCache:
        """Each sequence with its own keys and values."""
        n, heads, _, size = self.k.shape
        slots = (self.path[..., : self.count] == 0).nonzero()[:, 2].reshape(n * self.beams, -1)
        slots = slots[:, None, :, None].expand(-1, heads, -1, size)  # (n beams, heads, steps, d)
        k = self.k.repeat_interleave(self.beams, 0).gather(2, slots)
        v = self.v.repeat_interleave(self.beams, 0).gather(2, slots)
        cache = copy.copy(self.trunk)
        cache.steps = self.steps
        cache.store(n * self.beams)
        cache.cache[:, :, :, : self.steps] = torch.stack([k, v])
        if cache.bias is not None:
            cache.bias = cache.bias[:heads].repeat(n * self.beams, 1, 1)
        return cache


def branch(past: State, rows: Tensor, beams: int) -> State:
    """A state that continues with `rows`; each group of `beams` neighbours has one origin."""
    if isinstance(past, BeamTree):
        if beams == past.beams:
            past.reorder(rows, beams)
            return past
        past = past.separate()
    if (
        isinstance(past, KeyValueCache)
        and beams > 1
        and bool((rows.unflatten(0, (-1, beams)).diff() == 0).all())
    ):
        past.reorder(rows[::beams])
        return BeamTree(past, beams)
    past.reorder(rows)
    return past


class CrossAttentionState(State):
    """Cross-attention prepared for steps: the memory of a row serves all its `beams` sequences."""

    def __init__(self, layer: CrossAttention, memory: CrossAttentionMemory) -> None:
        self.layer, self.heads, self.size, self.beams = layer, layer.heads, layer.size, 1
        self.enter = prepare_linear(layer.ask, layer.size**-0.5)  # queries are scaled, not scores
        self.leave = prepare_residual(layer.leave)
        self.k, self.v, self.mask = memory.k.mT.contiguous(), memory.v.contiguous(), memory.mask
        self.short: FoldedCrossAttention | None = None

    def attend(self, x: Tensor, h: Tensor) -> Tensor:
        """x plus the attention output for h, both (n beams, width)."""
        return self.short.attend(x, h) if self.short else self.leave(x, self.find(h))

    def find(self, x: Tensor) -> Tensor:
        """The concatenated outputs of the heads for x (n beams, width)."""
        n = len(self.k)
        q = self.enter(x).view(n, self.beams, self.heads, self.size).transpose(1, 2)
        q = q.reshape(n * self.heads, self.beams, self.size)
        scores = torch.bmm(q, self.k.flatten(0, 1))  # (n heads, beams, S)
        if self.mask is not None:
            scores.view(n, self.heads, self.beams, -1).add_(self.mask)
        found = torch.bmm(scores.softmax(2), self.v.flatten(0, 1)).unflatten(0, (n, self.heads))
        return found.transpose(1, 2).reshape(x.shape)

    def reorder(self, rows: Tensor, beams: int = 1) -> None:
        groups, before, self.beams = rows[::beams] // self.beams, self.beams, beams
        if len(groups) != len(self.k) or bool((groups.diff() != 1).any()):
            self.k, self.v = self.k.index_select(0, groups), self.v.index_select(0, groups)
            self.mask = None if self.mask is None else self.mask.index_select(0, groups)
            if self.short:
                self.short.reorder(groups)
        if beams != before:
            pays = beams > 1 and 2 * self.heads * self.k.shape[3] <= self.heads * self.size
            self.short = FoldedCrossAttention(self) if pays else None


class FoldedCrossAttention(State):
    """Cross-attention to a short memory, with the query and output maps multiplied into its keys
    and values: q' k = h' (W_q' k), W_o sum_s a_s v_s = sum_s a_s (W_o v_s)."""

    def __init__(self, recall: CrossAttentionState) -> None:
        layer, k, v = recall.layer, recall.k, recall.v
        heads, size, gain = recall.heads, recall.size, recall.size**-0.5
        ask, leave = layer.ask.weight, layer.leave.weight
        self.k = torch.einsum("hdw,nhds->nwhs", ask.view(heads, size, -1) * gain, k).flatten(2)
        self.v = torch.einsum("whd,nhsd->nhsw", leave.view(-1, heads, size), v).flatten(1, 2)
        shift = torch.einsum("hd,nhds->nhs", layer.ask.bias.view(heads, size) * gain, k)[:, None]
        self.shift = (shift if recall.mask is None else shift + recall.mask).flatten(2)
        self.bias, self.heads = layer.leave.bias, heads

    def attend(self, x: Tensor, h: Tensor) -> Tensor:
        n, shape = len(self.k), x.shape
        scores = torch.baddbmm(self.shift, h.view(n, -1, shape[1]), self.k)  # (n, beams, heads S)
        weights = scores.unflatten(2, (self.heads, -1)).softmax(3).flatten(2)
        return torch.add(x, self.bias).view(n, -1, shape[1]).baddbmm_(weights, self.v).view(shape)

    def reorder(self, rows: Tensor) -> None:
        self.k, self.v, self.shift = (
            each.index_select(0, rows) for each in (self.k, self.v, self.shift)
        )
