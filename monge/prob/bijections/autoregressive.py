r"""Autoregressive maps: each entry is transformed by a network of the entries before it.

$x_i = h(z_i; \beta_i(x_{<i}))$ (masked autoregressive flow, Papamakarios et al. 2017): the
Jacobian is triangular; x -> z is one pass, z -> x is sequential. Its `Inverse` is the inverse
autoregressive flow (Kingma et al. 2016) with the same network.

The sequential direction computes each unit of the network once (degree-sorted caches) and stores
no graph. If a gradient is needed, x is the root of $g(x) = z$ with g the one-pass map, so $dx =
J^{-1}(dz - \partial_\theta g\, d\theta)$, J = dg/dx: a gradient v is pulled back through the
triangular J by $u \leftarrow u + (v - J^T u) / \mathrm{diag} J$, which is exact after at most D
iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...core.model import is_exporting
from .base import Bijection, Mapped, sum_log_det
from .coupling import MAX_NET_INPUT
from .univariate import UnivariateMap

MAX_STEP_ROWS = 1024
"""Rows of a sequential pass at once, so that the caches fit into the processor's cache."""


class EntrySteps(Protocol):
    """A sequential pass over n rows, one position of the order at a time, from 0."""

    def parameters(self, place: int) -> Tensor: ...

    def feed(self, place: int, features: Tensor) -> None: ...


class AutoregressiveBijection(Bijection):
    """x_i = h(z_i; beta_i(x_<i)) for entries (B, D) in an order.

    net: called with x and the context, it returns `count` parameters per entry, which depend only
    on the entries before it; `stepper` returns them one entry at a time.
    places: (D,), the position of each entry in the order.
    """

    def __init__(self, net: nn.Module, warp: UnivariateMap, places: Tensor) -> None:
        super().__init__()
        self.net, self.warp, self.entries = net, warp, places.argsort().tolist()

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        z, log_slopes = self.reverse(x, context)
        return z, sum_log_det(log_slopes)

    def reverse(self, x: Tensor, context: Tensor | None) -> Mapped:
        """z and the diagonal of log dz/dx, each (B, D)."""
        out = self.net(x.clamp(-MAX_NET_INPUT, MAX_NET_INPUT), context)
        return self.warp.inverse(out.unflatten(1, (-1, self.warp.count)), x)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        context = z.new_zeros(len(z), 0) if context is None else context
        if not torch.is_grad_enabled():
            return self.step(z, context)
        with torch.no_grad():
            root, _ = self.step(z, context)
        leaf = root.requires_grad_()
        reached, log_slopes = self.reverse(leaf, context)

        def pull(u: Tensor) -> Tensor:  # J^T u
            return torch.autograd.grad(reached, leaf, u, retain_graph=True)[0]

        x = root.detach() - _ImplicitInverse.apply(reached - z, log_slopes.detach().exp(), pull)
        return x, -sum_log_det(self.reverse(x, context)[1])

    @torch.no_grad()
    def step(self, z: Tensor, context: Tensor, cached: bool = True) -> Mapped:
        """z -> x sequentially; uncached: with the whole network for each entry."""
        if is_exporting():
            return self.passes(z, context)
        start: Callable[[Tensor], EntrySteps] = self.net.stepper(cached=cached)  # type: ignore
        parts = [
            self.walk(start(c), rows.T)
            for rows, c in zip(z.split(MAX_STEP_ROWS), context.split(MAX_STEP_ROWS), strict=True)
        ]
        x, log_slopes = zip(*parts, strict=True)
        return torch.cat(x), sum_log_det(torch.cat(log_slopes))

    def passes(self, z: Tensor, context: Tensor) -> Mapped:
        """z -> x by one pass of the network for each entry, each of which makes at least one more
        entry exact, in operators that can be exported."""
        x = log_slopes = torch.zeros_like(z)
        for _ in self.entries:
            out = self.net(x.clamp(-MAX_NET_INPUT, MAX_NET_INPUT), context)
            x, log_slopes = self.warp(out.unflatten(1, (-1, self.warp.count)), z)
        return x, sum_log_det(log_slopes)

    def walk(self, steps: EntrySteps, z: Tensor) -> Mapped:
        """z: (D, n); x and log dx/dz, each (n, D)."""
        slots = z.unbind()
        moves: list[Mapped] = [(z, z)] * len(slots)
        for place, entry in enumerate(self.entries):
            moves[entry] = moved = self.warp(steps.parameters(place), slots[entry])
            steps.feed(place, moved[0][:, None].clamp(-MAX_NET_INPUT, MAX_NET_INPUT))
        x, log_slopes = zip(*moves, strict=True)
        return torch.stack(x, 1), torch.stack(log_slopes, 1)


class _ImplicitInverse(torch.autograd.Function):
    """J^-1 r for the residual r of a root: its value is 0, its derivative is not."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, slopes: Tensor, pull: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.save_for_backward(slopes)
        ctx.pull = pull
        return torch.zeros_like(residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        least = 10 * torch.finfo(gradient.dtype).eps * gradient.abs().amax()
        u = gradient / slopes
        for _ in range(gradient.shape[1] - 1):
            missing = gradient - ctx.pull(u)
            if missing.abs().amax() <= least:
                break
            u = u + missing / slopes
        return u, None, None
