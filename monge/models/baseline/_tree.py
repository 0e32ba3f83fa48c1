r"""Trees of codes, $\prod_i P(c_i \mid c_{\pi(i)})$: fitted by counting pairs, with messages from
the leaves to the root that sum out missing entries."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.space import Space
from ...prob.bins import EntryCodes, finite_log
from ...prob.graphical import BayesianNetwork, Node
from ._base import FlatRows

MAX_CODES = 4096
"""Codes of all entries together; pairs of them are counted."""


class TreeOfCodes(nn.Module):
    """What `build_tree` registers, and what can be done with it; a base of models and modules."""

    codes: EntryCodes
    pseudo: float
    width: int
    log_p: Tensor  # (C, M): code of an entry, code of its parent; rows of roots are constant
    parent: Tensor  # (D,): -1 for a root
    order: Tensor  # (D,): parents before children

    def build_tree(self, space: Space, bins: int, pseudo: float) -> None:
        """Entries without edges; pseudo: mean pseudo-count of a code in conditional tables."""
        self.codes, self.pseudo = EntryCodes(space, bins), pseudo
        self.width = self.codes.total
        start = finite_log(self.codes.even()).to(torch.get_default_dtype())
        self.register_buffer("log_p", start[:, None].repeat(1, int(self.codes.sizes.max())))
        self.register_buffer("parent", torch.full((space.dims,), -1))
        self.register_buffer("order", torch.arange(space.dims))

    def fit_tree(self, rows: FlatRows) -> None:
        codes = self.codes
        codes.fit(rows.x, rows.seen)
        pairs = torch.zeros(codes.total, codes.total, dtype=torch.float64, device=rows.x.device)
        for piece in rows.split(self.width):
            hot = codes.one_hot(codes.encode(piece.x)[0], piece.seen)
            pairs += hot.T @ hot
        parent, order = spanning_forest(self.information(pairs))
        self.parent.copy_(parent)
        self.order.copy_(order)
        self.tabulate(pairs)

    def information(self, pairs: Tensor) -> Tensor:
        """The gain of an edge between two entries, (D, D), from the rows that observe both."""
        codes = self.codes
        single = codes.sums(pairs)  # (C, D): counts of a code where the other entry is observed
        both = codes.sums(single.T)  # (D, D)
        entropy = codes.sums(torch.xlogy(single, single).T)  # (D, D)
        joint = codes.sums(codes.sums(torch.xlogy(pairs, pairs)).T)
        n = both.clamp_min(1)
        mutual = (joint - entropy - entropy.T + torch.xlogy(both, both)) / n
        free = codes.sums((codes.even() > 0).double()) - 1  # (D,)
        return mutual - free[:, None] * free / n

    def tabulate(self, pairs: Tensor) -> None:
        """Fit the tables of the current tree to the counts of pairs of codes (C, C)."""
        codes, even = self.codes, self.codes.even()
        rows = self.pseudo * codes.sums((even > 0).double())  # (D,)
        p = codes.shrink(pairs.diagonal(), even, rows)  # (C,)
        self.log_p.copy_(finite_log(p)[:, None])
        for i, above in enumerate(self.parent.tolist()):
            if above >= 0:
                here, there = self.place(i), self.place(above)
                joint = pairs[here, there] + rows[i] * p[here, None]  # (C_i, C_parent)
                self.log_p[here, : joint.shape[1]] = finite_log(joint / joint.sum(0)).to(
                    self.log_p
                )

    def place(self, i: int) -> slice:
        """The codes of entry i."""
        return slice(int(self.codes.offset[i]), int(self.codes.offset[i] + self.codes.sizes[i]))

    def log_density(self, rows: FlatRows) -> Tensor:
        code, inside = self.codes.encode(rows.x)
        value = torch.where(rows.seen, inside, 0).sum(1)
        whole = rows.seen.all(1)
        if bool(whole.all()):
            return value + self.known(code)
        value[whole] += self.known(code[whole])
        value[~whole] += self.collect(code[~whole], rows.seen[~whole], rows.present)[1]
        return value

    def known(self, code: Tensor) -> Tensor:
        """log P of rows of codes without missing entries, (B,)."""
        above = code[:, self.parent.clamp_min(0)]
        return self.log_p[code + self.codes.offset, above].sum(1)

    def edges(self) -> Iterator[tuple[int, int, slice, Tensor]]:
        """Entry, parent, codes and table (C_i, C_parent) of each, parents before children."""
        parent = self.parent.tolist()
        for i in self.order.tolist():
            size = int(self.codes.sizes[max(parent[i], 0)])
            yield i, parent[i], self.place(i), self.log_p[self.place(i), :size]

    def network(self) -> BayesianNetwork:
        """The tree of codes as a directed graphical model, whose nodes are x0, x1, ..."""
        nodes = {}
        for i, above, _, table in self.edges():
            p = table.double().exp()  # (C_i, C_parent)
            p = p / p.sum(0)
            nodes[f"x{i}"] = Node(p[:, 0]) if above < 0 else Node(p.T.contiguous(), [f"x{above}"])
        return BayesianNetwork(nodes)

    def collect(self, code: Tensor, seen: Tensor, present: bool) -> tuple[Tensor, Tensor]:
        r"""Messages to the root: log-beliefs of each code (B, C), and log P of the observed.

        $m_i(c) = \log \sum_{c_i} P(c_i \mid c) \exp b_i(c_i)$, where $b_i$ is the evidence of
        entry i plus the messages of its children. If `present`, no missing entry is empty.
        """
        belief = torch.zeros(
            len(code), self.codes.total, dtype=self.log_p.dtype, device=code.device
        )
        hidden = ~seen[:, self.codes.owner]  # (B, C)
        hidden = hidden & ~self.codes.is_empty if present else hidden
        belief.masked_fill_(~(hidden | self.codes.one_hot(code, seen).bool()), -torch.inf)
        value = torch.zeros_like(belief[:, 0])
        for _, above, here, table in reversed(list(self.edges())):
            top = belief[:, here].amax(1, keepdim=True)
            message = ((belief[:, here] - top).exp() @ table.exp()).log() + top  # (B, C_parent)
            if above < 0:
                value += message[:, 0]
            else:
                belief[:, self.place(above)] += message
        return belief, value

    def sample_missing(
        self, rows: FlatRows, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        code, _ = self.codes.encode(rows.x)
        belief, _ = self.collect(code, rows.seen, rows.present)
        u = torch.rand(belief.shape, generator=generator, dtype=belief.dtype, device=code.device)
        score = belief - (-u.log()).log()  # Gumbel noise: the argmax is a sample
        for i, above, here, table in self.edges():
            code[:, i] = (score[:, here] + table.T[code[:, max(above, 0)]]).argmax(1)
        return self.codes.sample(code, generator)


def spanning_forest(gain: Tensor) -> tuple[Tensor, Tensor]:
    """The spanning forest of largest total gain (Prim's algorithm, only edges of positive gain):
    parent of each node, -1 for a root, and an order in which parents come first."""
    gain = gain.cpu()
    parent, order = torch.zeros(len(gain), dtype=torch.long), [0]
    best, outside = gain[0].clone(), torch.ones(len(gain), dtype=torch.bool)
    parent[0], outside[0] = -1, False
    while len(order) < len(gain):
        node = int(best.where(outside, -torch.inf).argmax())
        outside[node] = False
        order.append(node)
        better = outside & (gain[node] > best)
        best[better], parent[better] = gain[node, better], node
    return parent.masked_fill(best <= 0, -1), torch.tensor(order)
