r"""Discrete diffusion (D3PM): symbols, names and bits are masked or replaced, and restored

At time t each entry still has its value with probability $\alpha_t = 1 - t$; otherwise it is
masked (absorbing) or uniform over its values (Austin et al. 2021):
$q(x_t | x) = \alpha_t \delta_x + (1 - \alpha_t) \pi$. A network predicts x from x_t, and a step
back to $s < t$ samples $p(x_s | x_t) = \sum_x p(x | x_t)\, q(x_s | x_t, x)$. Everything is
forgotten at t = 1 and nothing at t = 0, so that over T steps

$-\log p(x) \le \sum_t E\, KL(q(x_s | x_t, x) \| p(x_s | x_t))$.

Masked entries are restored to x or stay masked, with chances that no network decides, and the
divergence is $\frac{\alpha_s - \alpha_t}{1 - \alpha_t} \sum_{i \in M} -\log p(x_i | x_{\notin M})$
with M the masked entries (Sahoo et al. 2024; Shi et al. 2024). With one of the D entries masked
for sure and each other with probability t, for T steps and in continuous time alike,

$\log p(x) \ge D\, E_{t, M} \frac{1}{|M|} \sum_{i \in M} \log p(x_i | x_{\notin M})$.

In continuous time entries are restored one by one, in any order: |M| is uniform in 1..D, and the
bound is the mean over all D! orders of an autoregressive log-likelihood (Uria, Murray & Larochelle
2014; Hoogeboom et al. 2022). Uniform noise has no such form: its bound is the sum of divergences,
or in continuous time, with $\beta = -\alpha' / \alpha$ and ratios $r(y) = q(x_t = y | x) /
q(x_t | x)$, $\hat r(y) = \sum_x p(x | x_t)\, r(y)$, the integral of (Campbell et al. 2022)

$\beta\, \pi(x_t) \sum_{y \ne x_t} [\hat r(y) - r(y) + r(y) \log \frac{r(y)}{\hat r(y)}]$,

and the network's part of $p(x_i | x_t)$ is a factor beside $q(x_{t,i} | x_i)$.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import CanComplete, CanSample, CanStream, Given, HasLikelihood, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import MAX_STEPS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import DataError, UsageError
from ...core.model import Defaults, Losses, Model
from ...core.rng import keyed_uniform, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.decoding import SymbolSampling, truncate_logits
from ...prob.distributions import sample_categorical, smoothed_counts
from .._ordering import MAX_SEPARATE_PLACES, check_no_missing
from .._sequence_sampling import check_prompt
from ._base import default_network
from ._conditioning import ConditionEncoder, Conditioning
from ._denoisers import Denoiser, MLPDenoiser, TransformerDenoiser, UNetDenoiser

NEVER = -1e4
"""Logit of a value that an entry cannot have."""
MIN_SHARE = 1e-6
"""Continuous time, uniform noise: least share of values that are kept, and that are replaced."""
MIN_SAMPLES, MAX_SAMPLES, SAMPLED_ENTRIES = 4, 64, 512
"""Default samples of a bound: as many as make SAMPLED_ENTRIES per row, between the first two."""
ELEMENTS_PER_PASS = 1 << 21
"""Entries times values that a network predicts at once without gradients."""
DEFAULT_CHAIN = 128
"""Steps that sample from uniform noise in continuous time."""
LARGE_TEXT_TOKENS = 200_000
"""Tokens of text from which a wide network pays off."""
SHORT_TEXT_TOKENS = 8
"""Tokens of the longest row below which no convolutions are used."""


class Corruption(nn.Module):
    """q(x_t | x) = alpha delta_x + (1 - alpha) rest, for each of D entries over S states."""

    rest: Tensor  # (D, S)

    def __init__(self, rest: Tensor) -> None:
        super().__init__()
        self.register_buffer("rest", rest, persistent=False)

    def marginal(self, x: Tensor, alpha: Tensor) -> Tensor:
        """q(x_t = y | x) for every y: x (B, D) and alpha (B, 1) to (B, D, S)."""
        share = alpha[..., None].to(self.rest)
        return share * self.indicator(x) + (1 - share) * self.rest

    def arrival(self, z: Tensor, alpha: Tensor) -> Tensor:
        """q(x_t = z | y) for every y, (B, D, S)."""
        share = alpha[..., None].to(self.rest)
        fresh = of_state(self.rest.expand(len(z), -1, -1), z)
        return share * self.indicator(z) + (1 - share) * fresh

    def posterior(self, z: Tensor, x: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """q(x_s = y | x_t = z, x) for every y, (B, D, S), alpha_t = here and alpha_s = there."""
        joint = self.arrival(z, here / there) * self.marginal(x, there)
        return joint / of_state(self.marginal(x, here), z)

    def reverse(self, p: Tensor, z: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """sum_x p(x) q(x_s = y | x_t = z, x) for every y, of probabilities p (B, D, S)."""
        return self.arrival(z, here / there) * self.mixed(p, z, here, there)

    def mixed(self, p: Tensor, z: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """sum_x p(x) q(x_s = y | x) / q(x_t = z | x) for every y, (B, D, S)."""
        arrival, share = self.arrival(z, here), there[..., None].to(self.rest)
        w = torch.where(arrival > 0, p / arrival.clamp_min(torch.finfo(p.dtype).tiny), 0.0)
        return share * w + (1 - share) * self.rest * w.sum(-1, keepdim=True)

    def divergence(self, p: Tensor, z: Tensor, x: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """KL(q(x_s | z, x) || p(x_s | z)) of each entry, (B, D)."""
        q, tiny = self.posterior(z, x, here, there), torch.finfo(p.dtype).tiny
        log_p = self.reverse(p, z, here, there).clamp_min(tiny).log()
        return (torch.xlogy(q, q) - q * log_p).sum(-1)

    def divergence_rate(self, p: Tensor, z: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
        """The same per unit of time in the limit of small steps, (B, D), of alpha = 1 - t."""
        here, tiny = self.marginal(x, alpha), torch.finfo(p.dtype).tiny
        r = here / of_state(here, z)
        model = self.mixed(p, z, alpha, alpha)
        gap = model - r + torch.xlogy(r, r) - r * model.clamp_min(tiny).log()
        others = gap * (1 - self.indicator(z)) * of_state(self.rest.expand_as(r), z)
        return others.sum(-1) / alpha

    def indicator(self, x: Tensor) -> Tensor:
        return F.one_hot(x, self.rest.shape[-1]).to(self.rest)


def of_state(table: Tensor, z: Tensor) -> Tensor:
    """The entries of a table (B, D, S) at states z (B, D), (B, D, 1)."""
    return table.gather(-1, z[..., None])


@dataclass(frozen=True)
class CodedRows:
    """Rows as states of their entries."""

    codes: Tensor  # (B, D)
    exist: Tensor  # (B, D): which entries are part of the row, from the first to the last of it
    conditions: Conditioning

    @property
    def count(self) -> Tensor:
        """Entries of each row, (B,)."""
        return self.exist.sum(1)


class ReverseChain(BaseConfig):
    """The chain that restores an event."""

    steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
    """Steps from noise to data, each of one pass of the network: by default those of the model; in
    continuous time one for each entry, or 128 if noise is uniform. Fewer are faster and sample
    the coarser chain that `score.steps` scores."""


class D3PM(Model, HasLikelihood, CanSample, CanStream, CanComplete):
    r"""$p(x) = \sum_{x_{t > 0}} p(x_1) \prod_t p(x_s | x_t)$ over states of finite entries."""

    events = {"binary", "levels", "label", "columns", "tokens"}
    givens = {"real", "binary", "levels", "label", "counts", "columns", "tokens"}
    supports_variable_length = True

    class Config(Model.Config):
        tag = "model/diffusion.d3pm"
        transition: Literal["absorbing", "uniform"] = "absorbing"
        """What becomes of a value: it is masked (absorbing), or another value takes its place
        (uniform)."""
        steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
        """Time steps T of the model; none is continuous time."""
        net: Denoiser.Config = MLPDenoiser.Config()
        """Network that predicts values from noisy ones: mlp for tables, unet for text and
        images, or transformer."""

    class SamplingConfig(SymbolSampling):
        sampler: ReverseChain = ReverseChain()
        """The chain that restores an event."""
        steps: Annotated[int, Range(0)] = 0
        """Symbols or steps of a row if rows vary in length; 0 takes the median of the training
        rows, or the longest if an end symbol exists."""
        prompt: tuple[int, ...] = ()
        """Tokens that every row starts with."""

    class LikelihoodConfig(BaseConfig):
        samples: Annotated[int, Range(1)] | None = None
        """Samples of noise per row; by default 4, up to 64 for short rows, and for the shortest
        a sum over all masks instead."""
        steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
        """Steps of the chain that is scored; by default those of the model."""

    config: Config
    sizes: Tensor
    valid: Tensor
    typical: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        sizes = value_counts(space)  # (D,)
        self.values, dims = int(sizes.max()), space.dims  # the state after the last is masked
        valid = torch.arange(self.values + 1) < sizes[:, None]  # (D, S)
        rest = valid / sizes[:, None]
        if config.transition == "absorbing":
            rest = F.one_hot(torch.full((dims,), self.values), self.values + 1).float()
        self.corruption = Corruption(rest)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("valid", valid[:, : self.values], persistent=False)
        self.register_buffer("typical", torch.tensor((space.shape or (1,))[0]))
        self.condition_encoder = ConditionEncoder(space)
        self.net: Denoiser = config.net.build(
            network_space(space, self.values + 1), self.condition_encoder
        )
        separate = not space.varies and dims <= MAX_SEPARATE_PLACES
        self.offset = nn.Parameter(torch.zeros(dims if separate else 1, self.values))

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        """Predictions start at the marginal distribution of each entry, or of all."""
        rows = self.read(batch)
        codes, exist = rows.codes, rows.exist
        if len(self.offset) == 1:
            codes, exist = codes.reshape(-1, 1), exist.reshape(-1, 1)
        self.offset.copy_(smoothed_counts(codes, exist, self.values + 1)[:, :-1].log())
        if batch.length is not None:
            self.typical.copy_(batch.length.median())

    def loss(self, batch: Batch) -> Losses:
        """Minus one sample of the bound; times are spread evenly over the batch."""
        rows, n = self.read(batch), len(batch)
        noise = torch.rand(n, self.space.dims + 1, device=self.offset.device)
        start, places = torch.rand((), device=noise.device), torch.arange(n, device=noise.device)
        return {"bound": -self.estimate(rows, (start + places / n) % 1, noise, self.config.steps)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Start from masked or uniform entries and restore them along the chain."""
        chosen = self.sampling_options(options)
        rows, known = self.unknown_rows(n, given, chosen)
        for states in self.restore(rows, known, chosen, generator):  # noqa: B007 - the last
            pass
        return self.to_event(states, chosen)

    # Events and states

    @property
    def is_absorbing(self) -> bool:
        return self.config.transition == "absorbing"

    def read(self, batch: Batch) -> CodedRows:
        """The states of complete rows."""
        check_no_missing("d3pm", batch)
        codes, exist = self.encode_rows(batch)
        return CodedRows(codes, exist, self.condition_encoder(batch.given, len(batch)))

    def encode_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """States and which of them exist, (B, D) each. An empty cell has the last value. After its
        end symbol a text has only end symbols; rows that have none end with their length."""
        x = batch.x.reshape(len(batch), -1)
        if x.is_floating_point():
            x = torch.where(x.isnan(), self.sizes[: x.shape[1]] - 1.0, x)
        x = F.pad(x.long(), (0, self.space.dims - x.shape[1]))  # rows may be cut to their length
        exist = self.within(batch)
        if (end := self.space.end) is not None:
            ended = ((x == end) & exist).long()
            x = torch.where(exist & (ended.cumsum(1) == ended), x, end)
            exist = torch.ones_like(exist)
        x = torch.where(exist, x, 0)
        wrong = (x < 0) | (x >= self.sizes)
        if not torch.compiler.is_compiling() and bool(wrong.any()):
            row, entry = wrong.nonzero()[0].tolist()
            raise DataError(
                f"expected codes from 0 to {int(self.sizes[entry]) - 1} in entry {entry}, found "
                f"{int(x[row, entry])} in row {row}; score data of the same values"
            )
        return x, exist

    def within(self, batch: Batch) -> Tensor:
        """Which entries lie within the length of their row, (B, D)."""
        dims = self.space.dims
        places = torch.arange(dims, device=batch.x.device).expand(len(batch), dims)
        if batch.length is None:
            return places < math.prod(batch.x.shape[1:])
        return places < batch.length[:, None] * (dims // self.space.shape[0])

    def to_event(self, states: Tensor, options: SamplingConfig | None = None) -> Tensor:
        """States (n, D) as events; rows of variable length have their sampled steps."""
        space, states = self.space, states.masked_fill(states == self.values, 0)
        if (end := space.end) is not None:
            ended = (states == end).long()
            states = torch.where(ended.cumsum(1) > ended, end, states)
        if space.kind in ("tokens", "label"):
            x = states
        else:
            empty = [part.optional and part.kind != "label" for part in space.columns or (space,)]
            hole = torch.tensor(empty, device=states.device) & (states == self.sizes - 1)
            x = states.to(self.offset.dtype).masked_fill(hole, torch.nan)
        x = x.reshape(len(x), *space.shape)
        return x[:, : self.row_steps(options)] if space.varies and options else x

    def row_steps(self, options: SamplingConfig) -> int:
        """Steps of sampled rows of variable length."""
        longest = self.space.shape[0]
        return options.steps or (longest if self.space.end is not None else int(self.typical))

    def unknown_rows(
        self, n: int, given: Given | None, options: SamplingConfig
    ) -> tuple[CodedRows, Tensor]:
        """n rows to sample, and which of their entries the prompt gives, (n, D)."""
        space, device = self.space, self.offset.device
        limit = space.shape[0] if space.varies else 0
        if options.steps > limit:
            raise UsageError(
                f"expected steps up to {limit}, found {options.steps} for {space}; "
                + ("give fewer" if limit else "leave steps out: rows have one length")
            )
        codes = torch.zeros(n, space.dims, dtype=torch.long, device=device)
        exist, known = torch.ones_like(codes).bool(), torch.zeros_like(codes).bool()
        if space.varies and space.end is None:
            channels = space.dims // space.shape[0]
            exist[:, self.row_steps(options) * channels :] = False
        if prompt := options.prompt:
            check_prompt(space, prompt, int(exist[:1].sum()) if n else space.dims)
            codes[:, : len(prompt)] = torch.tensor(prompt, device=device)
            known[:, : len(prompt)] = True
        return CodedRows(codes, exist, self.condition_encoder(given or {}, n)), known

    # The network

    def predict(self, states: Tensor, alpha: Tensor, conditions: Conditioning) -> Tensor:
        """log p(x_i | x_t) of all values: states (B, D) at alpha (B, 1) to (B, D, K). A masked
        row shows by itself how much of it is masked. Of other noise the network reads alpha, and
        its logits count besides q(x_t | x_i), without which small steps would cost without end."""
        log_snr = torch.zeros_like(alpha) if self.is_absorbing else alpha.logit(MIN_SHARE)
        z = self.as_maps(self.corruption.indicator(states))
        out = self.net(z, log_snr[:, 0].to(z), conditions)
        logits = self.as_entries(out)[..., : self.values] + self.offset
        if not self.is_absorbing:
            chance = self.corruption.arrival(states, alpha)[..., : self.values]
            logits = logits + chance.clamp_min(torch.finfo(chance.dtype).tiny).log()
        return logits.masked_fill(~self.valid, NEVER).log_softmax(-1)

    def as_maps(self, entries: Tensor) -> Tensor:
        """(B, D, S) as the network reads it, flat; in images states are channels."""
        if self.space.is_image:
            entries = entries.unflatten(1, self.space.shape).movedim(-1, 2)
        return entries.flatten(1)

    def as_entries(self, out: Tensor) -> Tensor:
        """The inverse of `as_maps`, (B, D, S)."""
        states = self.values + 1
        if not self.space.is_image:
            return out.unflatten(1, (-1, states))
        channels, height, width = self.space.shape
        maps = out.reshape(len(out), channels, states, height, width)
        return maps.movedim(2, -1).flatten(1, 3)

    def predict_some(self, states: Tensor, alpha: Tensor, conditions: Conditioning) -> Tensor:
        """`predict` of any number of rows, as many at once as memory holds."""
        size = max(1, ELEMENTS_PER_PASS // (self.space.dims * (self.values + 1)))
        if len(states) <= size:
            return self.predict(states, alpha, conditions)
        parts = torch.arange(len(states), device=states.device).split(size)
        found = [self.predict(states[own], alpha[own], conditions.take(own)) for own in parts]
        return torch.cat(found)

    # The bound

    def estimate(self, rows: CodedRows, u: Tensor, noise: Tensor, steps: int | None) -> Tensor:
        """One sample of the bound of each row, (B,), from uniforms u (B,) and noise (B, D + 1)."""
        t = (u * steps).ceil().clamp_min(1) / steps if steps else u
        if self.is_absorbing:
            return self.masked_estimate(rows, self.random_masks(rows, t, noise))
        low = 0.0 if steps else MIN_SHARE
        here = (1 - t).clamp(low, 1 - low)[:, None].to(self.offset)  # (B, 1)
        chances = self.corruption.marginal(rows.codes, here)
        z = sample_categorical(chances.log(), noise[:, :-1].to(chances))
        p = self.predict(z.where(rows.exist, self.values), here, rows.conditions).exp()
        p = F.pad(p, (0, 1))  # nothing is predicted to be masked
        if steps is None:
            loss = self.corruption.divergence_rate(p, z, rows.codes, here)
        else:
            loss = steps * self.corruption.divergence(p, z, rows.codes, here, here + 1 / steps)
        return -(loss * rows.exist).sum(1)

    def random_masks(self, rows: CodedRows, t: Tensor, noise: Tensor) -> Tensor:
        """One entry of each row and each other with probability t (B,), (B, D)."""
        sure = (noise[:, -1] * rows.count).long().clamp(max=rows.exist.shape[1] - 1)
        masked = (noise[:, :-1] < t[:, None]) & rows.exist
        return masked.scatter(1, sure[:, None], True)

    def masked_estimate(self, rows: CodedRows, masked: Tensor) -> Tensor:
        """D / |M| sum over M of log p(x_i | the entries that are not in M), (B,)."""
        log_p = self.masked_log_prob(rows, masked) * masked
        return rows.count * log_p.sum(1) / masked.sum(1)

    def masked_log_prob(self, rows: CodedRows, masked: Tensor) -> Tensor:
        """log p(x_i | the entries that are not masked) of every entry i that is, (B, D)."""
        states = torch.where(masked | ~rows.exist, self.values, rows.codes)
        none = self.offset.new_zeros(len(states), 1)
        return of_state(self.predict(states, none, rows.conditions), rows.codes)[..., 0]

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, chosen = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(chosen, self.LikelihoodConfig), "expected a LikelihoodConfig"
        steps, samples = chosen.steps or self.config.steps, self.bound_samples(chosen)
        over = f"{steps} steps" if steps else "continuous time"
        batch = replace(batch, row=batch.rows)
        size = max(1, ELEMENTS_PER_PASS // (self.space.dims * (self.values + 1)))
        parts = batch.chunk(max(1, math.ceil(len(batch) / size)))
        if self.is_absorbing and 1 in (self.space.dims, steps):  # all entries are masked at once
            each = [self.masked_estimate(rows, rows.exist) for rows in map(self.read, parts)]
            return Likelihood(torch.cat(each), "exact")
        if not samples:
            found = torch.cat([self.summed_bound(self.read(part), steps) for part in parts])
            return Likelihood(found, "bound", None, f"bound over {over}, a sum over all masks")
        seed = seed_of(generator)
        several = [self.sampled_bound(part, steps, samples, seed) for part in parts]
        value = torch.cat(several, 1)  # (samples, B)
        error = value.std(0) / samples**0.5 if samples > 1 else None
        about = f"bound over {over}, {samples} samples of noise per row"
        return Likelihood(value.mean(0), "bound", error, about)

    def bound_samples(self, options: LikelihoodConfig) -> int:
        """Samples of noise per row; 0 sums over all masks."""
        usual = min(max(SAMPLED_ENTRIES // self.space.dims, MIN_SAMPLES), MAX_SAMPLES)
        summed = self.is_absorbing and not self.space.varies and 2**self.space.dims <= usual
        return options.samples or (0 if summed else usual)

    @property
    def evals_per_score(self) -> int:
        return self.bound_samples(self.LikelihoodConfig()) or 2**self.space.dims - 1

    def sampled_bound(self, batch: Batch, steps: int | None, samples: int, seed: int) -> Tensor:
        """Samples of the bound, (samples, B), at times that are spread evenly over each row's."""
        rows, width = self.read(batch), self.space.dims + 1
        uniforms = keyed_uniform(batch.rows, (1 + samples * width,), seed)
        start, noise = uniforms[:, 0], uniforms[:, 1:].unflatten(1, (samples, width)).unbind(1)
        return torch.stack(
            [
                self.estimate(rows, (start + k / samples) % 1, noise[k], steps)
                for k in range(samples)
            ]
        )

    def summed_bound(self, rows: CodedRows, steps: int | None) -> Tensor:
        """The bound of masked entries, (B,): over every set M of m masked entries the sum of its
        log-probabilities, times the integral of t^(m-1) (1-t)^(D-m) or its sum over steps."""
        dims, total = self.space.dims, self.offset.new_zeros(len(rows.codes))
        weights = mask_weights(dims, steps)
        for size in range(1, dims + 1):
            for entries in itertools.combinations(range(dims), size):
                masked = torch.zeros_like(rows.exist)
                masked[:, entries] = True
                log_p = self.masked_log_prob(rows, masked) * masked
                total = total + weights[size] * log_p.sum(1)
        return total

    # Sampling

    def sampling_options(self, options: BaseConfig | None) -> SamplingConfig:
        options = options or self.SamplingConfig()
        assert isinstance(options, self.SamplingConfig), "expected sampling options"
        return options

    @torch.no_grad()
    def restore(
        self,
        rows: CodedRows,
        known: Tensor,
        options: SamplingConfig,
        generator: Generator | None,
        excluded: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """The states (n, D) from noise to data, of which `known` (n, D) are given; values that are
        excluded (D, K) are not sampled."""
        steps = options.sampler.steps or self.config.steps
        hidden = rows.exist & ~known

        def predict(states: Tensor, alpha: Tensor, own: Tensor) -> Tensor:
            log_p = self.predict_some(states, alpha, rows.conditions.take(own))
            log_p = log_p if excluded is None else log_p.masked_fill(excluded, NEVER)
            return truncate_logits(log_p, options)

        if self.is_absorbing:
            yield from self.unmask(rows.codes, hidden, known, steps, predict, generator)
        else:
            chain = steps or DEFAULT_CHAIN
            yield from self.replace_noise(rows, hidden, chain, predict, generator)

    def unmask(
        self,
        codes: Tensor,
        hidden: Tensor,
        known: Tensor,
        steps: int | None,
        predict: Predict,
        generator: Generator | None,
    ) -> Iterator[Tensor]:
        """Each entry is restored at a step of its own, uniform over the steps; in continuous time
        one after the other in a random order."""
        order, noise = self.uniform(codes, generator), self.uniform(codes, generator)
        rank = order.masked_fill(~hidden, torch.inf).argsort(1).argsort(1)
        when = ((order * steps).long() if steps else rank).masked_fill(~hidden, -1)
        states = torch.where(known, codes, self.values)
        yield states
        for step in range(int(when.max()) + 1 if when.numel() else 0):
            rows = (when == step).any(1).nonzero()[:, 0]
            if not len(rows):
                continue
            now, part = when[rows] == step, states[rows]
            logits = predict(part, noise.new_zeros(len(rows), 1), rows)
            part[now] = sample_categorical(logits[now], noise[rows][now])
            states = states.index_copy(0, rows, part)
            yield states

    def replace_noise(
        self,
        rows: CodedRows,
        hidden: Tensor,
        steps: int,
        predict: Predict,
        generator: Generator | None,
    ) -> Iterator[Tensor]:
        """x_s ~ p(x_s | x_t) from uniform states; known entries are put in place at the noise of
        each step."""
        codes, n = rows.codes, len(rows.codes)
        every = torch.arange(n, device=codes.device)
        here, states = self.offset.new_zeros(n, 1), codes
        for step in range(steps):
            noisy = self.corruption.marginal(codes, here)  # at first they are all uniform
            noisy = sample_categorical(noisy.log(), self.uniform(codes, generator))
            states = torch.where(hidden, states, noisy) if step else noisy
            shown = torch.where(rows.exist, states, self.values)
            yield shown
            p = F.pad(predict(shown, here, every).softmax(-1), (0, 1))
            there = here + 1 / steps if step + 1 < steps else torch.ones_like(here)
            chances = self.corruption.reverse(p, states, here, there)
            states, here = sample_categorical(chances.log(), self.uniform(codes, generator)), there
        yield torch.where(hidden, states, torch.where(rows.exist, codes, self.values))

    def uniform(self, like: Tensor, generator: Generator | None) -> Tensor:
        return self.offset.new_empty(like.shape).uniform_(generator=generator)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The states of each step, with the first value where an entry is masked; rows of variable
        length when they are whole, as they do not come about from left to right."""
        chosen = self.sampling_options(options)
        rows, known = self.unknown_rows(n, given, chosen)
        for states in self.restore(rows, known, chosen, generator):
            if not self.space.varies:
                yield self.to_event(states)
        if self.space.varies:
            yield self.to_event(states, chosen)

    @property
    def completion(self) -> str:
        if self.is_absorbing:
            return "restored after the observed entries in random orders, exact if orders agree"
        return "sampled with the observed entries put in place at every noise level, approximate"

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """Unknown entries are restored given the observed ones, and never to empty cells."""
        seen, end, n = batch.observed_mask, self.space.end, len(batch)
        x = torch.where(seen, batch.x, 1 if end == 0 else 0)  # no unknown symbol ends a text
        codes, exist = self.encode_rows(replace(batch, x=x))
        shown = seen.reshape(n, -1)
        known = F.pad(shown, (0, self.space.dims - shown.shape[1])) & exist
        known = known if end is None else known | (codes == end)
        rows = CodedRows(codes, exist, self.condition_encoder(batch.given, n))
        optional = torch.tensor([part.optional for part in self.space.columns or (self.space,)])
        last = torch.arange(self.values, device=codes.device) == self.sizes[:, None] - 1
        excluded = last & optional.to(codes.device)[:, None]
        chosen = self.sampling_options(options)
        for states in self.restore(rows, known, chosen, generator, excluded):  # noqa: B007
            pass
        found = self.to_event(states).reshape(n, -1)[:, : shown.shape[1]].reshape(batch.x.shape)
        within = self.within(batch)[:, : shown.shape[1]].reshape(batch.x.shape)
        return torch.where(within & ~seen, found, batch.x.to(found))

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        for column in space.columns:
            if column.kind not in ("binary", "levels", "label"):
                return (
                    f"d3pm expected columns of names and flags, found {column} in "
                    f"{column.name!r}; leave it out, or choose ddpm or made"
                )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Convolutions find the neighbours of a symbol at once, which attention alone takes long
        to find where most of them are masked."""
        few = 0 < space.rows < 2000
        if space.kind == "tokens":
            wide = space.rows * space.dims >= LARGE_TEXT_TOKENS and space.dims >= 32
            net: Denoiser.Config = UNetDenoiser.Config(
                width=64 if wide else 32, multipliers=(1, 2, 2), blocks=1, attention=1
            )
            if space.dims < SHORT_TEXT_TOKENS:
                net = TransformerDenoiser.Config(width=64, depth=4, heads=4, positions="rotary")
            train = TrainConfig(
                optimiser="adamw",
                weight_decay=0.1,
                betas=(0.9, 0.99),
                lr=3e-3,
                grad_clip=1.0,
                batch_size=min(max(4096 // space.dims, 4), 256),
                warmup=100,
                ema_decay=0.998,
            )
            return Defaults(cls.Config(net=net), train)
        if space.is_image and min(space.shape[1:]) >= 6:
            states = space.dims * max(space.size, 2)
            batch = min(64, max(ELEMENTS_PER_PASS // states, 4))
            train = TrainConfig(lr=1e-3, batch_size=batch, ema_decay=0.998, grad_clip=1.0)
            return Defaults(cls.Config(net=default_network(space)), train)
        table = MLPDenoiser.Config(width=256 if few else 512, depth=3, dropout=0.3 if few else 0.0)
        train = TrainConfig(lr=1e-3, batch_size=128 if few else 256, ema_decay=0.998)
        return Defaults(cls.Config(net=table), train)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        if space.kind == "tokens":
            net = TransformerDenoiser.Config(width=8, depth=1, heads=2, expand=2)
            return cls.Config(net=net)
        return cls.Config(net=MLPDenoiser.Config(width=16, depth=1))


Predict = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits (m, D, K) of some rows (m,) from their states (m, D) at alpha (m, 1)."""


def value_counts(space: Space) -> Tensor:
    """The number of values of each entry, (D,); empty cells are one of them."""

    def values(part: Space) -> int:
        count = 2 if part.kind == "binary" else part.size
        return count + (part.optional and part.kind != "label")

    if space.columns:
        return torch.tensor([values(column) for column in space.columns])
    return torch.full((space.dims,), values(space))


def network_space(space: Space, states: int) -> Space:
    """What the network reads: an indicator of each state of each entry; of images as channels."""
    shape = space.shape or (1,)
    if space.is_image:
        shape = (shape[0] * states, *shape[1:])
    else:
        shape = (shape[0], math.prod(shape[1:]) * states)
    return Space(kind="real", shape=shape, rows=space.rows)


def mask_weights(dims: int, steps: int | None) -> list[float]:
    """The weight of -log p of each masked entry in the bound, by the number m of masked entries:
    the integral of t^(m-1) (1-t)^(D-m), or the sum over T steps of (1/T) of it."""
    sizes = range(1, dims + 1)
    if steps is None:
        return [0.0, *(1 / (m * math.comb(dims, m)) for m in sizes)]
    times = [k / steps for k in range(1, steps + 1)]
    return [
        0.0,
        *(sum(t ** (m - 1) * (1 - t) ** (dims - m) for t in times) / steps for m in sizes),
    ]
