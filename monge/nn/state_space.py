r"""State-space networks: a linear recurrence in each layer, so that a sequence is read at once.

A layer is the solution of $h' = A h + B u$, $y = C h + D u$ with an input that is constant over
steps of size $\Delta$ (zero-order hold): $h_t = \bar A h_{t-1} + \bar B u_t$ with $\bar A =
e^{\Delta A}$, $\bar B = A^{-1} (e^{\Delta A} - I) B$. As it is linear, $h$ needs no loop over
steps. A sequence is cut into chunks: within one, outputs are a product with a triangular matrix,
and what a chunk leaves to the next is a state. Without FFT, whose rounding would let the future
into the past.

S4D    A is complex and diagonal, the same at every step: a convolution of each channel with
       $K_l = 2 \mathrm{Re} \sum_n C_n \bar B_n \bar A_n^l$ (Gu et al. 2022)
Mamba  $\Delta$, B and C are functions of the input, so that a layer selects what it keeps (Gu &
       Dao 2023); A is a number per head, $\bar A_t = e^{\Delta_t A}$ and $\bar B_t = \Delta_t
       B_t$, which makes the map within a chunk a masked product (Dao & Gu 2024)

Step by step, the state of a layer has a constant size.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.config import MAX_LAYERS, Configured, Range
from ..core.config import Config as BaseConfig
from .attention.softmax import check_heads
from .fast_step import StepMap, prepare, prepare_residual
from .layers.dropout import Dropout
from .layers.linear import Linear
from .stepwise import State, Stepwise

CHUNK = 32
"""Steps of a chunk."""
FIRST_STEPS = 1e-3, 1e-1
"""Lowest and highest initial step size Delta: a layer remembers from ten to a thousand steps."""
LayerStep = Callable[[list[Tensor], Tensor], Tensor]
"""One step of a block: the state, which it changes, and the input (n, width) to the output."""


@dataclass
class StateSpaceState(State):
    """The state of each block, its prepared step, and the prepared output map."""

    layers: list[list[Tensor]]
    steps: list[LayerStep]
    leave: StepMap

    def reorder(self, rows: Tensor) -> None:
        self.layers = [[part[rows] for part in layer] for layer in self.layers]


class StateSpaceBlock(nn.Module, abc.ABC):
    """A layer with a norm before it, and a residual connection."""

    @abc.abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width)."""

    @abc.abstractmethod
    def start(self, n: int) -> list[Tensor]:
        """The state before the first step, (n, ...) each."""

    @abc.abstractmethod
    def stepper(self) -> LayerStep:
        """A function for one step with prepared weights."""


class StateSpaceNet(Configured, Stepwise[StateSpaceState], abc.ABC):
    """(B, T, width) -> (B, T, outputs): a stack of blocks, a norm and a linear map."""

    class Config(BaseConfig):
        tag = "state_space/"
        width: Annotated[int, Range(1)] = 128
        """Width of the vectors that pass from block to block."""
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 4
        """Number of blocks."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Dropout rate of the output of each block."""

    config: Config

    def __init__(self, config: Config, outputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.outputs = config, config.width, outputs
        blocks = [self.block() for _ in range(config.depth)]
        self.blocks: Sequence[StateSpaceBlock] = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.norm, self.leave = nn.LayerNorm(config.width), Linear(config.width, outputs)
        nn.init.zeros_(self.leave.bias)

    @abc.abstractmethod
    def block(self) -> StateSpaceBlock: ...

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.leave(self.norm(x))

    def start(self, n: int, max_steps: int) -> StateSpaceState:
        return StateSpaceState(
            [block.start(n) for block in self.blocks],
            [block.stepper() for block in self.blocks],
            prepare(self.norm, self.leave),
        )

    def step(self, state: StateSpaceState, x: Tensor) -> Tensor:
        for own, step in zip(state.layers, state.steps, strict=True):
            x = step(own, x)
        return state.leave(x)


def into_chunks(x: Tensor, chunk: int) -> Tensor:
    """(B, T, ...) -> (B, K, chunk, ...), zeros after the last step."""
    rest = -x.shape[1] % chunk
    x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, rest)) if rest else x
    return x.unflatten(1, (-1, chunk))


def carry(
    decay: Sequence[Tensor],
    left: Sequence[Tensor],
    multiply: Callable[[Tensor, Tensor], Tensor] = torch.mul,
) -> Tensor:
    """The states h_{k-1} before each chunk k, (K, ...), where h_k = decay_k h_{k-1} + left_k and
    h_{-1} = 0. A sum for each chunk: sums over 1, 2, 4, ... chunks take longer on a processor."""
    states = [torch.zeros_like(left[0])]
    for kept, new in zip(decay[:-1], left[:-1], strict=True):
        states.append(multiply(kept, states[-1]) + new)
    return torch.stack(states)


# S4D


class DiagonalStateSpace(nn.Module):
    r"""One input and one output per channel, with `state` / 2 complex states and their conjugates:
    $y_t = \sum_{l \ge 0} K_l u_{t-l} + D u_t$. B is 1, as only its product with C matters.

    A_n = -1/2 + i pi n (lin), whose kernels are damped Fourier waves, or -1/2 + i (N/pi) (N/(2n+1)
    - 1) (inv), N the number of states, whose frequencies are those of HiPPO (Gu et al. 2022)."""

    def __init__(self, width: int, state: int, spectrum: Literal["lin", "inv"]) -> None:
        super().__init__()
        n = torch.arange(max(state // 2, 1)).double()  # (M,)
        count = 2 * len(n)
        turn = math.pi * n if spectrum == "lin" else count / math.pi * (count / (2 * n + 1) - 1)
        self.log_rate = nn.Parameter(torch.full((width, len(n)), math.log(0.5)))
        self.turn = nn.Parameter(turn.to(self.log_rate.dtype).repeat(width, 1))
        self.c = nn.Parameter(torch.randn(2, width, len(n)) * math.sqrt(0.5))
        self.log_step = nn.Parameter(first_log_steps(width))
        self.skip = nn.Parameter(torch.randn(width))

    def discretise(self) -> tuple[Tensor, Tensor]:
        """log of A-bar and B-bar, real and imaginary parts, (2, D, M) each."""
        step = self.log_step.exp()[:, None]  # (D, 1)
        a = torch.stack([-self.log_rate.exp(), self.turn])
        fades, turns = log_a = a * step
        real = fades.expm1() * turns.cos() - 2 * (turns / 2).sin().square()  # of e^(Delta A) - 1
        held = torch.stack([real, fades.exp() * turns.sin()])
        return log_a, times(held, torch.stack([a[0], -a[1]])) / a.square().sum(0)

    def weights(self) -> tuple[Tensor, Tensor]:
        """log of A-bar, and 2 C B-bar, (2, D, M) each."""
        log_a, b = self.discretise()
        return log_a, 2 * times(self.c, b)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        steps = x.shape[1]
        size = min(CHUNK, steps)
        pieces = into_chunks(x, size)  # (B, K, Q, D)
        u = pieces.permute(3, 2, 0, 1).flatten(2)  # (D, Q, B K)
        log_a, weight = self.weights()
        lags = torch.arange(size + 1, device=x.device)
        powers = power(log_a[..., None], lags)  # (2, D, M, Q + 1)
        reads = times(weight[..., None], powers)  # of a state that is l steps old
        y = toeplitz(reads[0, ..., :-1].sum(1)) @ u  # (D, Q, B K)
        if pieces.shape[1] > 1:
            ages = powers[..., :-1].flip(-1)  # of an input at the end of its chunk
            left = ages.transpose(0, 1).flatten(1, 2) @ u  # (D, 2 M, B K)
            left = left.unflatten(2, pieces.shape[:2]).unflatten(1, (2, -1)).transpose(0, 1)
            before = carry([powers[..., -1:]] * pieces.shape[1], left.unbind(-1), times)
            before = before.permute(2, 1, 3, 4, 0).flatten(3).flatten(1, 2)  # (D, 2 M, B K)
            later = torch.stack([reads[0], -reads[1]], 1)[..., 1:]  # (D, 2, M, Q)
            y = y + later.flatten(1, 2).mT @ before
        y = y.unflatten(2, pieces.shape[:2]).permute(2, 3, 1, 0).flatten(1, 2)[:, :steps]
        return y + self.skip * x


def power(log_a: Tensor, exponent: Tensor | float) -> Tensor:
    """a^exponent of complex numbers (2, ...), real and imaginary parts."""
    turn = log_a[1] * exponent
    return torch.stack([turn.cos(), turn.sin()]) * (log_a[0] * exponent).exp()


def times(a: Tensor, b: Tensor) -> Tensor:
    """The product of complex numbers (2, ...), real and imaginary parts."""
    return torch.stack([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])


def toeplitz(kernel: Tensor) -> Tensor:
    """The lower triangular matrices (D, Q, Q) with kernel (D, Q) at the distances 0, 1, ..."""
    size = kernel.shape[1]
    return F.pad(kernel.flip(1), (0, size - 1)).unfold(1, size, 1).flip(1)


def first_log_steps(count: int) -> Tensor:
    """log of step sizes whose logarithms are uniform, (count,)."""
    low, high = map(math.log, FIRST_STEPS)
    return low + (high - low) * torch.rand(count)


class S4DBlock(StateSpaceBlock):
    """x + GLU(W gelu(S4D(norm x)) + b)."""

    def __init__(self, config: S4D.Config) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(config.width), Dropout(config.dropout)
        self.space = DiagonalStateSpace(config.width, config.state, config.spectrum)
        self.leave = Linear(config.width, 2 * config.width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(F.glu(self.leave(F.gelu(self.space(self.norm(x)))), -1))

    def start(self, n: int) -> list[Tensor]:
        re, im = self.space.c.new_zeros(2, n, *self.space.c.shape[1:])  # (n, D, M) each
        return [re, im]

    def stepper(self) -> LayerStep:
        log_a, weight = self.space.weights()
        (re, im), (own_re, own_im) = power(log_a, 1), weight
        skip, norm, leave = self.space.skip, prepare(self.norm), prepare(self.leave)

        def step(state: list[Tensor], x: Tensor) -> Tensor:
            u = norm(x)
            a, b = state
            state[0] = a * re - b * im + u[..., None]
            state[1] = a * im + b * re
            y = (state[0] * own_re - state[1] * own_im).sum(-1) + skip * u
            return x + F.glu(leave(F.gelu(y)), -1)

        return step


class S4D(StateSpaceNet):
    """Convolutions with the kernels of diagonal state spaces, each followed by a gate."""

    class Config(StateSpaceNet.Config):
        tag = "state_space/s4d"
        state: Annotated[int, Range(2)] = 32
        """States of each channel; pairs of them are complex numbers with their conjugates."""
        spectrum: Literal["lin", "inv"] = "lin"
        """Initial frequencies of the states: equally spaced (lin), or more of the low ones
        (inv)."""

    config: Config

    def block(self) -> StateSpaceBlock:
        return S4DBlock(self.config)


# Mamba


def selective_scan(
    u: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, chunk: int = CHUNK
) -> Tensor:
    r"""$y_t = c_t^\top h_t$ with $h_t = e^{a_t} h_{t-1} + b_t u_t^\top$ in each head:
    u (B, T, H, P), log_decay a (B, T, H), b and c (B, T, N) -> (B, T, H, P).

    Within a chunk $y_t = \sum_{s \le t} e^{a_{s+1} + ... + a_t} (c_t \cdot b_s) u_s$."""
    steps, heads = u.shape[1:3]
    size = min(chunk, steps)
    u, log_decay, b, c = (into_chunks(each, size) for each in (u, log_decay, b, c))
    since = log_decay.cumsum(2)  # (B, K, Q, H): of the chunk's start, up to each step
    along = since.transpose(2, 3)  # (B, K, H, Q)
    apart = along[..., None] - along[..., None, :] + causal_mask(size, u)
    scores = (c @ b.mT)[:, :, None] * apart.exp()  # (B, K, H, Q, Q)
    y = (scores @ u.transpose(2, 3)).transpose(2, 3)  # (B, K, Q, H, P)
    if u.shape[1] > 1:
        end = since[:, :, -1:]  # (B, K, 1, H)
        kept = u * (end - since).exp()[..., None]
        left = b.mT @ kept.flatten(3)  # (B, K, N, H P)
        decay = end.exp()[..., None].unbind(1)  # (B, 1, H, 1) each
        before = carry(decay, left.unflatten(3, (heads, -1)).unbind(1))  # (K, B, N, H, P)
        old = c @ before.transpose(0, 1).flatten(3)  # (B, K, Q, H P)
        y = y + old.unflatten(3, (heads, -1)) * since.exp()[..., None]
    return y.flatten(1, 2)[:, :steps]


def causal_mask(size: int, like: Tensor) -> Tensor:
    """Minus infinity in columns that come after the row, else 0, (size, size)."""
    return torch.full((size, size), -math.inf, dtype=like.dtype, device=like.device).triu(1)


class MambaBlock(StateSpaceBlock):
    r"""x + W norm(y silu(z)), where [z, v, b, c, d] is a linear map of norm x, [v, b, c] pass a
    short causal convolution of each channel and silu, $\Delta = \mathrm{softplus}(d)$, and y = D v
    + the selective scan of $\Delta v$, $\Delta A$, b and c."""

    def __init__(self, config: Mamba.Config) -> None:
        super().__init__()
        inner, heads = config.expand * config.width, config.heads
        check_heads(inner, heads)
        self.heads, self.parts = heads, [inner, inner + 2 * config.state, heads]
        self.inner = [inner, config.state, config.state]
        self.norm, self.drop = nn.LayerNorm(config.width), Dropout(config.dropout)
        self.enter = Linear(config.width, sum(self.parts), bias=False)
        bound = config.kernel**-0.5
        channels = self.parts[1]
        self.taps = nn.Parameter(torch.empty(config.kernel, channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(channels))
        first = first_log_steps(heads).exp()
        self.step_bias = nn.Parameter(first.expm1().log())  # the inverse of softplus
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(inner))
        self.gated = nn.LayerNorm(inner)
        self.leave = Linear(inner, config.width)
        with torch.no_grad():
            self.leave.weight.mul_(config.depth**-0.5)
            self.leave.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        z, mixed, d = self.enter(self.norm(x)).split(self.parts, -1)
        v, b, c = F.silu(causal_taps(mixed, self.taps, self.bias)).split(self.inner, -1)
        step = F.softplus(d + self.step_bias)  # (B, T, H)
        u = v.unflatten(2, (self.heads, -1)) * step[..., None]  # (B, T, H, P)
        y = selective_scan(u, -step * self.log_rate.exp(), b, c)
        y = torch.addcmul(y.flatten(2), v, self.skip)
        return x + self.drop(self.leave(self.gated(y * F.silu(z))))

    def start(self, n: int) -> list[Tensor]:
        inner, state, _ = self.inner
        sums = self.bias.expand(
            n, len(self.taps), -1
        )  # of the next convolutions, (n, k, channels)
        return [sums, self.bias.new_zeros(n, state, self.heads, inner // self.heads)]

    def stepper(self) -> LayerStep:
        norm, gated, leave = prepare(self.norm), prepare(self.gated), prepare_residual(self.leave)
        weight, sizes = self.enter.weight.t().contiguous(), self.parts
        offset = F.pad(self.step_bias, (sum(sizes[:2]), 0))
        taps, rate, skip = self.taps.flip(0), -self.log_rate.exp(), self.skip

        def step(state: list[Tensor], x: Tensor) -> Tensor:
            z, mixed, d = torch.addmm(offset, norm(x), weight).split(sizes, 1)
            sums, h = state
            sums = torch.addcmul(sums, mixed[:, None], taps)
            state[0] = torch.cat([sums[:, 1:], self.bias.expand(len(x), 1, -1)], 1)
            v, b, c = F.silu(sums[:, 0]).split(self.inner, 1)
            delta = F.softplus(d)  # (n, H)
            u = v.unflatten(1, (self.heads, -1)) * delta[..., None]  # (n, H, P)
            h = h * (delta * rate).exp()[:, None, :, None]
            h = state[1] = h.addcmul_(b[..., None, None], u[:, None])
            y = torch.addcmul(torch.bmm(c[:, None], h.flatten(2))[:, 0], skip, v)
            return leave(x, gated(y.mul_(F.silu(z))))

        return step


def causal_taps(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """bias + sum_i taps_i x_{t - k + 1 + i} of each channel: x (B, T, C), taps (k, C)."""
    return CausalTaps.apply(x, taps.to(x.dtype), bias.to(x.dtype))


class CausalTaps(torch.autograd.Function):
    """Twice as fast as torch's convolution of each channel, whose layout is another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, taps)
        steps = x.shape[1]
        y = torch.addcmul(bias, x, taps[-1])
        for lag in range(1, min(len(taps), steps)):
            y[:, lag:].addcmul_(x[:, : steps - lag], taps[-1 - lag])
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (x, taps), (slope,) = ctx.saved_tensors, slopes
        steps, of_x = x.shape[1], slope * taps[-1]
        of_taps = torch.zeros_like(taps)
        of_taps[-1] = (slope * x).sum((0, 1))
        for lag in range(1, min(len(taps), steps)):
            late, early = slope[:, lag:], x[:, : steps - lag]
            of_x[:, : steps - lag].addcmul_(late, taps[-1 - lag])
            of_taps[-1 - lag] = (late * early).sum((0, 1))
        return of_x, of_taps, slope.sum((0, 1))


class Mamba(StateSpaceNet):
    """Selective state spaces with a gate, and a short convolution before them."""

    class Config(StateSpaceNet.Config):
        tag = "state_space/mamba"
        state: Annotated[int, Range(1)] = 32
        """States of each channel."""
        expand: Annotated[int, Range(1)] = 2
        """Channels of a layer, as a multiple of the width."""
        heads: Annotated[int, Range(1)] = 4
        """Heads, which share the channels; each has its own decay and step size."""
        kernel: Annotated[int, Range(1)] = 4
        """Steps that the short convolution before the state space reads."""

    config: Config

    def block(self) -> StateSpaceBlock:
        return MambaBlock(self.config)
