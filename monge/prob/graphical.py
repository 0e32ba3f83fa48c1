r"""Directed graphical models, $p(x_1, \ldots, x_M) = \prod_j p(x_j \mid \mathrm{pa}(x_j))$.

A node has parents and a conditional: a table of probabilities, or a function of the parents'
values that returns a distribution, such as a network that emits its parameters. Samples are drawn
parents first. Whether the graph alone makes two sets of nodes independent given a third is
d-separation (Pearl 1988), found by the paths along which information passes (Shachter 1998). If
all conditionals are tables, $p(\text{query} \mid \text{evidence})$ is exact, by variable
elimination: factors that share a node are multiplied and the node is summed out, the node with the
smallest product first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributions import Distribution

from ..core.errors import UsageError

Values = Mapping[str, Tensor]
"""The values of nodes by name, (n,) each; whole numbers for a node with a table."""

Factor = tuple[tuple[str, ...], Tensor]
"""The names of the axes of a table, and the table."""


@dataclass(frozen=True)
class Node:
    """p(x | parents): probabilities (*parents, K), each row of which sums to 1, or a function of
    the parents' values, by name, that returns a torch distribution of one value per row."""

    conditional: Tensor | Callable[..., Distribution]
    parents: Sequence[str] = ()


class BayesianNetwork:
    """Nodes by name, in any order.

    Examples
    --------
    >>> import torch
    >>> from monge.prob.graphical import BayesianNetwork, Node
    >>> rain = Node(torch.tensor([0.8, 0.2]))
    >>> wet = Node(torch.tensor([[0.9, 0.1], [0.1, 0.9]]), ["rain"])
    >>> net = BayesianNetwork({"rain": rain, "wet": wet})
    >>> net.posterior("rain", {"wet": 1}).numpy().round(3)
    array([0.308, 0.692], dtype=float32)
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = dict(nodes)
        for name, node in self.nodes.items():
            for parent in node.parents:
                self.check_known(parent, f"as a parent of {name}")
            if isinstance(node.conditional, Tensor):
                check_table(name, node, self.nodes)
        self.order = parents_first({name: node.parents for name, node in self.nodes.items()})

    def check_known(self, name: str, where: str) -> None:
        if name not in self.nodes:
            raise UsageError(
                f"expected one of the nodes {', '.join(self.nodes)}, found {name} {where}; "
                "add it, or correct the name"
            )

    def distribution(self, name: str, values: Values, count: int) -> Distribution:
        """p(x_name | parents) of each row."""
        node = self.nodes[name]
        above = [values[parent] for parent in node.parents]
        if isinstance(node.conditional, Tensor):
            table = node.conditional[tuple(above)] if above else node.conditional
            return torch.distributions.Categorical(table.expand(count, table.shape[-1]))
        found = node.conditional(**dict(zip(node.parents, above, strict=True)))
        return found if above else found.expand([count])

    @torch.no_grad()
    def sample(
        self, n: int, generator: Generator | None = None, do: Mapping[str, Any] | None = None
    ) -> dict[str, Tensor]:
        """n values of every node, parents first. Nodes in `do` are set to a value instead of
        sampled, as by an intervention. Tables draw from the generator; other distributions from
        torch's global generator, seeded by it."""
        set_to, found = do or {}, dict[str, Tensor]()
        for name in set_to:
            self.check_known(name, "in do")
        for name in self.order:
            if name in set_to:
                found[name] = torch.as_tensor(set_to[name]).expand(n)
                continue
            own = self.distribution(name, found, n)
            if isinstance(own, torch.distributions.Categorical):
                found[name] = torch.multinomial(own.probs, 1, generator=generator)[:, 0]
                continue
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                found[name] = own.sample()
        return found

    def log_prob(self, values: Values) -> Tensor:
        """log p of rows with a value of every node, (n,)."""
        for name in self.nodes:
            if name not in values:
                raise UsageError(
                    f"expected a value of every node, found none of {name}; give it, or ask "
                    "`posterior` to sum it out"
                )
        count = len(next(iter(values.values())))
        terms = [
            self.distribution(name, values, count).log_prob(values[name]) for name in self.order
        ]
        return torch.stack(terms).sum(0)

    def posterior(self, query: str | Sequence[str], evidence: Mapping[str, int]) -> Tensor:
        """p(query | evidence) exactly, one axis per node of the query."""
        names = [query] if isinstance(query, str) else list(query)
        joint = self.marginal(names, evidence)
        total = joint.sum()
        if not bool(total > 0):
            raise UsageError(
                f"expected evidence of positive probability, found {dict(evidence)}; change it"
            )
        return joint / total

    def marginal(self, names: Sequence[str], evidence: Mapping[str, int]) -> Tensor:
        """p(names, evidence), summed over all other nodes; p(evidence) if there are no names."""
        for name in (*names, *evidence):
            self.check_known(name, "in a question")
        if repeated := [name for name in names if name in evidence]:
            raise UsageError(
                f"expected nodes that are not given, found {repeated[0]} in query and evidence; "
                "leave it out of one"
            )
        factors = [self.factor(name, evidence) for name in self.order]
        hidden = [name for name in self.order if name not in names and name not in evidence]
        while hidden:
            name = min(hidden, key=lambda each: len(neighbours(factors, each)))
            hidden.remove(name)
            kept = tuple(other for other in neighbours(factors, name) if other != name)
            with_it = [factor for factor in factors if name in factor[0]]
            factors = [factor for factor in factors if name not in factor[0]]
            factors.append((kept, product(with_it, kept)))
        return product(factors, tuple(names))

    def factor(self, name: str, evidence: Mapping[str, int]) -> Factor:
        """The table of a node at the evidence, with the names of its other axes."""
        node = self.nodes[name]
        if not isinstance(node.conditional, Tensor):
            raise UsageError(
                f"expected tables for exact inference, found a distribution at {name}; give it a "
                "table, or estimate from samples"
            )
        axes = (*node.parents, name)
        sizes = dict(zip(axes, node.conditional.shape, strict=True))
        for each, value in evidence.items():
            if each in sizes and not 0 <= value < sizes[each]:
                raise UsageError(
                    f"expected a value of {each} from 0 to {sizes[each] - 1}, found {value}; "
                    "change it"
                )
        place = tuple(evidence.get(each, slice(None)) for each in axes)
        return tuple(each for each in axes if each not in evidence), node.conditional[place]

    @cached_property
    def children(self) -> dict[str, list[str]]:
        return {
            name: [other for other, node in self.nodes.items() if name in node.parents]
            for name in self.nodes
        }

    def d_separated(
        self, one: str | Iterable[str], other: str | Iterable[str], given: Iterable[str] = ()
    ) -> bool:
        """Whether the graph makes `one` and `other` independent given the nodes `given`, whatever
        the conditionals are."""
        first, second = ([each] if isinstance(each, str) else [*each] for each in (one, other))
        known = {*given}
        for name in (*first, *second, *known):
            self.check_known(name, "in a question")
        above = set[str]()  # the given nodes and their ancestors
        waiting = [*known]
        while waiting:
            name = waiting.pop()
            if name not in above:
                above.add(name)
                waiting += self.nodes[name].parents
        reached, steps = set[tuple[str, bool]](), [(name, True) for name in first]
        while steps:  # (node, whether it was reached from a child)
            name, from_child = step = steps.pop()
            if step in reached:
                continue
            reached.add(step)
            if name not in known and name in second:
                return False
            if from_child and name not in known:
                steps += [(parent, True) for parent in self.nodes[name].parents]
                steps += [(child, False) for child in self.children[name]]
            elif not from_child:
                if name not in known:
                    steps += [(child, False) for child in self.children[name]]
                if name in above:  # a collider that is known, or has a known descendant
                    steps += [(parent, True) for parent in self.nodes[name].parents]
        return True


def neighbours(factors: Sequence[Factor], name: str) -> list[str]:
    """The nodes that share a factor with this one, and itself."""
    return list(dict.fromkeys(each for own, _ in factors if name in own for each in own))


def product(factors: Sequence[Factor], kept: tuple[str, ...]) -> Tensor:
    """The product of factors, summed over the axes that are not kept."""
    number = {name: place for place, name in enumerate({e: 0 for own, _ in factors for e in own})}
    operands: list[Any] = []
    for own, table in factors:
        operands += [table, [number[name] for name in own]]
    return torch.einsum(*operands, [number[name] for name in kept])


def parents_first(parents: Mapping[str, Sequence[str]]) -> list[str]:
    """The nodes in an order in which parents come before children; UsageError for a cycle."""
    order: list[str] = []
    left = dict(parents)
    while left:
        ready = [name for name, above in left.items() if not any(each in left for each in above)]
        if not ready:
            raise UsageError(
                f"expected a graph without cycles, found one through {', '.join(left)}; remove an "
                "edge"
            )
        order += ready
        left = {name: above for name, above in left.items() if name not in ready}
    return order


def check_table(name: str, node: Node, nodes: Mapping[str, Node]) -> None:
    """UsageError unless the table has an axis for each parent, of its size, and rows that sum
    to 1."""
    table = node.conditional
    assert isinstance(table, Tensor)
    sizes = []
    for parent in node.parents:
        above = nodes[parent].conditional
        if not isinstance(above, Tensor):
            raise UsageError(
                f"expected parents of {name} with finitely many values, found {parent}; give "
                f"{name} a function instead of a table"
            )
        sizes.append(above.shape[-1])
    if list(table.shape[:-1]) != sizes:
        raise UsageError(
            f"expected a table of {name} with axes {[*sizes, 'K']}, found {list(table.shape)}; "
            "give an axis to each parent and the last to the node"
        )
    if bool((table < 0).any()) or float((table.sum(-1) - 1).abs().max()) > 1e-4:
        raise UsageError(
            f"expected probabilities of {name} that sum to 1 along the last axis, found "
            f"{table.sum(-1).flatten()[:4].tolist()}; normalise them"
        )
