"""Output heads: the distributions of the entries of an event given the outputs of a network.

Entries are independent given their parameters; scales may be learned instead of computed.

Binary entries are Bernoulli; labels and up to 64 levels categorical; more levels are mixtures of
logistics discretised to them; counts have a probability for each bin of integers; reals are
mixtures of Gaussians. Numbers that may be empty, have atoms or bounds are mixed numbers around
these. Entries of one kind and size form a group that is computed at once, so a table costs a pass
for each kind of column and an image costs one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor, nn

from ..core.errors import DataError
from ..core.marginals import Marginals
from ..core.space import Kind, Space
from .bins import BinnedCounts
from .distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiscretisedLogisticMixture,
    Distribution,
    GaussianMixture,
    MixtureDistribution,
)
from .mixed_number import MixedNumber


class LearnedScales(nn.Module):
    """Inserts learned log-scales, one per entry, into the outputs of a network.

    If the network computes the scales, or there are none, it is the identity.
    """

    places: Tensor
    log_scale: nn.Parameter | None

    def __init__(self, head: Head, shared: bool) -> None:
        super().__init__()
        mine = log_scale_mask(head) if shared else torch.zeros(head.width, dtype=torch.bool)
        self.inputs = int((~mine).sum())
        order = torch.cat([(~mine).nonzero()[:, 0], mine.nonzero()[:, 0]])
        self.register_buffer("places", order.argsort(), persistent=False)
        start = nn.Parameter(head.initial_params()[mine]) if mine.any() else None
        self.register_parameter("log_scale", start)

    def forward(self, out: Tensor) -> Tensor:  # (*S, inputs) -> (*S, P)
        if self.log_scale is None:
            return out
        scales = self.log_scale.expand(*out.shape[:-1], -1)
        return torch.cat([out, scales], -1).index_select(-1, self.places)

    def without(self, params: Tensor) -> Tensor:
        """The network outputs (inputs,) that give these parameters (P,)."""
        return params[self.places.argsort()[: self.inputs]]


def log_scale_mask(head: Head) -> Tensor:
    """Which parameters of a head are log-scales, (P,)."""
    found = torch.zeros(head.width, dtype=torch.bool)
    for (distribution, _), own in zip(head.homes, head.slices, strict=True):
        number = distribution.number if isinstance(distribution, MixedNumber) else distribution
        if isinstance(number, MixtureDistribution):
            found[own.stop - number.components : own.stop] = True
    return found


LevelsDistribution = Literal["auto", "categorical", "logistic"]
MAX_CATEGORICAL_LEVELS = 64
"""Entries with at most this many levels are categorical by default."""
COUNT_BINS = 64
"""Bins per count."""


@dataclass(frozen=True)
class EntryGroup:
    """Entries of one kind and size, with their training statistics."""

    kind: Kind
    size: int
    entries: Tensor  # (d,)
    mean: Tensor  # (d,)
    scale: Tensor  # (d,)
    parts: tuple[Space, ...] = ()  # the space of each; of columns only


class Head(nn.Module):
    """p(x | params) = prod_i p_i(x_i | params_i) over the D entries of a flattened event.

    There are `width` parameters; `owner[p]` is the entry that parameter p belongs to, and
    `slices[i]` are the parameters of entry i. Only statistics of the data are held, no weights.
    """

    owner: Tensor
    order: Tensor
    inverse: Tensor
    places: Tensor
    zero: Tensor

    def __init__(
        self, space: Space, components: int = 5, levels: LevelsDistribution = "auto"
    ) -> None:
        super().__init__()
        groups = group_entries(space)
        self.by_group = nn.ModuleList(
            distribution_of(group, components, levels) for group in groups
        )
        self.is_one_group = len(groups) == 1  # entries and parameters are in its order
        self.sizes = [len(group.entries) for group in groups]
        self.dims = sum(self.sizes)
        order = torch.cat([group.entries for group in groups])  # (D,): entries, group by group
        inverse = order.argsort()
        homes = [
            (distribution, place)
            for distribution, size in zip(self.distributions(), self.sizes, strict=True)
            for place in range(size)
        ]
        self.ranks = inverse.numpy().tolist()  # where each entry stands, group by group
        self.homes = [homes[i] for i in self.ranks]  # distribution and index of each entry
        counts = torch.tensor([distribution.count for distribution, _ in self.homes])
        ends = counts.cumsum(0)
        self.width = int(ends[-1])
        # arrays, whose values are read at once where shapes alone are traced
        self.slices = list(map(slice, (ends - counts).numpy().tolist(), ends.numpy().tolist()))
        owner = torch.arange(self.dims).repeat_interleave(counts)
        places = inverse[owner].argsort(stable=True)  # parameters, group by group
        indices = {"owner": owner, "order": order, "inverse": inverse, "places": places}
        for name, index in indices.items():
            self.register_buffer(name, index, persistent=False)
        self.register_buffer("zero", torch.zeros(()), persistent=False)  # holds the dtype

    def distributions(self) -> Sequence[Distribution]:
        return [cast(Distribution, distribution) for distribution in self.by_group]

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Fit the initial parameters to training values (B, D)."""
        parts = zip(self.distributions(), self.split(x, -1), self.split(seen, -1), strict=True)
        for distribution, values, here in parts:
            distribution.fit(values, here)

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """log p of each entry, (*S, D), for params (*S, P) and x (*S, D) in the units of the
        data."""
        parts = zip(self.distributions(), self.params_of(params), self.split(x, -1), strict=True)
        return self.concat(
            [distribution.log_prob(own, value) for distribution, own, value in parts]
        )

    def noise(self, n: int, generator: Generator | None = None) -> Tensor:
        """Noise for `sample`: a uniform and a normal per entry (0 if no distribution uses it),
        (n, D, 2), with rows adjacent in memory."""
        noise = self.zero.new_empty(2, self.dims, n)
        noise[0].uniform_(generator=generator)
        if any(distribution.normal for distribution in self.distributions()):
            noise[1].normal_(generator=generator)
        else:
            noise[1].zero_()
        return noise.permute(2, 1, 0)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """x (*S, D) from params (*S, P) and noise (*S, D, 2)."""
        parts = zip(
            self.distributions(), self.params_of(params), self.split(noise, -2), strict=True
        )
        return self.concat(
            [distribution.sample(own, chance) for distribution, own, chance in parts]
        )

    def sample_entry(self, i: int, params: Tensor, noise: Tensor) -> Tensor:
        """x_i (B,) from its own parameters (B, P_i) and noise (B, 2)."""
        distribution, place = self.homes[i]
        return distribution.sample(params, noise, place)

    def entry_distribution(self, i: int) -> Distribution:
        """The distribution of entry i alone, as it is now: params (*S, 1, P_i), x (*S, 1)."""
        distribution, place = self.homes[i]
        single = copy.deepcopy(distribution)
        for module in single.modules():  # the entries are the first axis of all buffers
            for name, value in module.named_buffers(recurse=False):
                setattr(module, name, value[place : place + 1].clone())
        return single

    def mean(self, params: Tensor) -> Tensor:
        """E[x_i] of each entry, (*S, D); of a label, its most probable code."""
        pairs = zip(self.distributions(), self.params_of(params), strict=True)
        return self.concat([distribution.mean(own) for distribution, own in pairs])

    def mode(self, params: Tensor) -> Tensor:
        """The most probable value of each entry, (*S, D)."""
        pairs = zip(self.distributions(), self.params_of(params), strict=True)
        return self.concat([distribution.mode(own) for distribution, own in pairs])

    def cumulative(self, params: Tensor, t: Tensor) -> Tensor:
        """P(x_i <= t_i) of each entry, (*S, D), for t (*S, D)."""
        parts = zip(self.distributions(), self.params_of(params), self.split(t, -1), strict=True)
        return self.concat(
            [distribution.cumulative(own, value) for distribution, own, value in parts]
        )

    def values(self, params: Tensor) -> list[Tensor]:
        """log P(x_i = 0, 1, ...) of each entry, (*S, K_i); K_i is 0 for unbounded values."""
        pairs = zip(self.distributions(), self.params_of(params), strict=True)
        found = [one for distribution, own in pairs for one in distribution.values(own).unbind(-2)]
        return [found[i] for i in self.ranks]

    def present(self, params: Tensor) -> Tensor:
        """The parameters of the same distributions given that no cell is empty."""
        groups = zip(self.distributions(), self.params_of(params), strict=True)
        parts = [distribution.present(own).flatten(-2) for distribution, own in groups]
        return torch.cat(parts, -1)[..., self.places.argsort()]

    def log_present(self, params: Tensor) -> Tensor:
        """The log-probability that each entry is not empty, (*S, D)."""
        groups = zip(self.distributions(), self.params_of(params), strict=True)
        return self.concat([distribution.log_present(own) for distribution, own in groups])

    def initial_params(self) -> Tensor:
        """Parameters (P,) that match the training marginals: the initial output bias."""
        values = torch.cat(
            [
                distribution.initial_params().flatten().to(self.zero)
                for distribution in self.distributions()
            ]
        )
        return values[self.places.argsort()]

    def padded(self, params: Tensor) -> Tensor:
        """The parameters (B, P) of each entry, padded with zeros to equal number, (B, D, most)."""
        parts = [params[:, own].T for own in self.slices]  # (P_i, B)
        return nn.utils.rnn.pad_sequence(parts).permute(2, 1, 0)

    def params_of(self, params: Tensor) -> list[Tensor]:
        """The parameters of each group, (*S, d, count)."""
        if not self.is_one_group:
            params = params[..., self.places]
        lengths = [
            distribution.count * size
            for distribution, size in zip(self.distributions(), self.sizes, strict=True)
        ]
        parts = zip(params.split(lengths, -1), self.sizes, strict=True)
        return [part.unflatten(-1, (size, -1)) for part, size in parts]

    def split(self, x: Tensor, axis: int) -> Sequence[Tensor]:
        """The entries of each group."""
        if self.is_one_group:
            return [x]
        return x.index_select(axis, self.order).split(self.sizes, axis)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate groups in the order of the entries, (*S, D)."""
        if self.is_one_group:
            return parts[0]
        return torch.cat(list(parts), -1)[..., self.inverse]


class HeadMarginals(Marginals):
    """Marginals of the entries for head parameters (B, P)."""

    def __init__(self, space: Space, head: Head, params: Tensor) -> None:
        self.space, self.head, self.params = space, head, params

    @property
    def probabilities(self) -> Sequence[Tensor]:
        return [values.exp() for values in self.head.values(self.params)]

    def cumulative(self, t: Tensor) -> Tensor:
        return self.head.cumulative(self.params, t)


def group_entries(space: Space) -> list[EntryGroup]:
    """The entries of an event by kind, size and support."""
    mean, scale = space.spread("mean").flatten(), space.spread("scale").flatten()
    if space.kind != "columns":
        parts = () if space.is_plain else tuple(space.parts)
        return [EntryGroup(space.kind, space.size, torch.arange(space.dims), mean, scale, parts)]
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, column in enumerate(space.columns):
        bounds = column.lower is not None, column.upper is not None
        support = column.optional, len(column.atoms), bounds
        found.setdefault((column.kind, column.size, support), []).append(place)
    return [
        EntryGroup(
            kind,
            size,
            torch.tensor(entries),
            mean[entries],
            scale[entries],
            tuple(space.columns[place] for place in entries),
        )
        for (kind, size, _), entries in found.items()
    ]


def distribution_of(
    group: EntryGroup, components: int, levels: LevelsDistribution
) -> Distribution:
    """The distribution of a group of entries."""
    few = group.size <= MAX_CATEGORICAL_LEVELS if levels == "auto" else levels == "categorical"
    mixed = bool(group.parts) and not group.parts[0].is_plain
    match group.kind:
        case "binary":
            return BernoulliDistribution(group.mean)
        case "label":
            return CategoricalDistribution(
                len(group.entries), group.size, ordered=False, optional=mixed
            )
        case "levels" if few:
            return CategoricalDistribution(len(group.entries), group.size, ordered=True)
        case "levels":
            return DiscretisedLogisticMixture(
                components, group.mean, group.scale, top=group.size - 1
            )
        case "counts":
            numbers = zip(group.mean.tolist(), group.scale.tolist(), strict=True)
            plain = [Space(kind="counts", mean=(m,), scale=(s,)) for m, s in numbers]
            counts = BinnedCounts(group.parts or plain, COUNT_BINS)
            optional = mixed and group.parts[0].optional  # bins know of bounds themselves
            return MixedNumber(group.parts, counts, components) if optional else counts
        case "real":
            if mixed:
                return MixedNumber(group.parts, None, components)
            return GaussianMixture(components, group.mean, group.scale)
    raise DataError(
        f"expected binary, label, levels, counts or real entries, found {group.kind}; "
        "choose a sequence model"
    )
