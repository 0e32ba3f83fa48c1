r"""Standardised units of the data, and the last step from z_0 to what is observed.

Noise is added to $y = (x - \text{mean}) / \text{scale}$, and for tables to the vector y(x) of a
row (`RowEmbedding`). At t = 0 a normal distribution with mean m and standard deviation
$s = \sigma_0/\alpha_0$ is left:

reals    $\log p(x | z_0) = \log N(y; m, s^2) - \log \text{scale}$;
levels   $P(x | z_0) = \Phi((y + h - m)/s) - \Phi((y - h - m)/s)$ with h half the distance of two
         levels; the first and the last level take the tails, so that it sums to one;
tables   $P(k | z_0) \propto \pi_k\, N(z_0; \alpha e_k, \sigma^2 I)$ over the components of a
         column with points $e_k$ (names, runs of counts, states of a real), times the density
         $N(g(x); m, s^2)\, g'(x)$ of a number, and the probability of a count in its run.

A cell without a number has y = 0 in the dimension of its number, whose density does not count
there: $p(x | z_0)$ still sums and integrates to one over x, so that the bound holds, and a
denoiser that knows the state predicts 0 there at no cost.

The entrywise denoiser estimates each entry from its own noisy value alone. With frequencies
$\pi_k$ of its levels $y_k$ in the training rows, the posterior
$p_k \propto \pi_k\, N(z; \alpha y_k, \sigma^2)$ has the mean m(z) and the standard deviation
s(z); for reals, taken as N(0, 1), these are $\alpha z / (\alpha^2 + \sigma^2)$ and
$\sigma / \sqrt{\alpha^2 + \sigma^2}$. A network that predicts the residual,
$\hat x = m(z) + s(z) f$, is the distribution of independent entries at initialisation, learns
only their dependence, and has no effect where an entry is certain.

Many levels are taken in runs of neighbours, each $N(y_k, v_k)$ with the variance of even levels:
$p_k \propto \pi_k\, N(z; \alpha y_k, \alpha^2 v_k + \sigma^2)$. Their network moves the noisy
value, $\hat x = m(z + \frac{\sigma}{\alpha} f)$, which multiplies the posterior by
$e^{f y / \sigma}$:
evidence from the other entries does that too, and a multiple of s(z) would have to be large where
an entry is nearly certain of a wrong level. After 120 seconds on MNIST the squared error of the
velocity at a log-SNR of -1 is 0.144 so (1653 steps) and 0.157 with the multiple (1930); at others
both are within 6 %.

For tables the residual is that of the logits:
$p_k \propto \pi_k\, N(z; \alpha e_k, \sigma^2 I)\, e^{f_k}$ and $\hat x = \sum_k p_k e_k$. Since
$p(k | z) \propto p(z_{own} | k)\, p(k | z_{others})$, the network learns how a cell depends on the
other columns. A number has $p_{number}\, (m(z) + s(z) f)$; as it is N(0, 1), and 0 where there is
none, its dimension is evidence of the state too.

Optional columns first: whether a cell is empty is resolved at more noise than names are, since its
point is farther away, and in such columns $f_k$ is multiplied by
$\alpha / \sqrt{\alpha^2 + \sigma^2}$, the order of all that z says of other columns. So where only
noise is left the rate of empty cells is that of the training rows, which a loss that weighs errors
by the SNR learns late, and other cells are sampled given what is empty. Without it a cell that is
mostly empty is so too often, since the columns of samples depend on one another a little less than
those of rows (titanic's deck after 800 steps, two seeds: 3.0 and 2.3 points; with both 0.8 and
2.6, and a bound 0.04 nats higher; farther points alone 2.5 and 3.3, the factor alone 3.5).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...core.space import Space
from ...prob.row_embedding import NAME_DISTANCE, TABLE_KINDS, RowEmbedding
from .._ordering import check_codes

MIN_LEVEL_SCALE = 0.3
"""Smallest scale of discrete data, so that a rare level is not blown up."""
NOISE_STDS_PER_LEVEL = 8.0
"""Distance of two levels in standard deviations of the noise at t = 0."""
REAL_MAX_LOG_SNR = 10.0
"""Log-SNR at t = 0 for reals."""
MAX_ENUMERATED_LEVELS, MIN_RUNS = 64, 8
"""Number of levels up to which the posterior over all of them is computed; a run of neighbours
holds at most this part of more levels."""
PSEUDO_ROWS = 2.0
"""Weight of the frequencies over all entries in those of one entry, in rows."""
CLUSTER_PSEUDO_ROWS = 10.0
"""Weight of the frequencies over all rows in those of a cluster, in rows."""
EMPTY_DISTANCE = 12.0
"""Distance of the point of an empty cell from those of values, if such cells are decided first: so
far that they are where names have a 36th of the SNR that they need."""
MIN_SHARE = 1e-3
"""Smallest probability of a number by which its mean is divided."""
MIN_VARIANCE = 1e-12
"""Smallest variance, so that the gradient of its square root is finite."""


class EventUnits(nn.Module, abc.ABC):
    """x (B, *event) to y (B, width) and back."""

    continuous: Tensor  # (width,): which dimensions hold numbers with a density
    width: int
    discrete: bool  # whether none of them does

    def fit(self, x: Tensor) -> None:
        """Fit what is learned of training rows (B, *event) before the first step."""

    @property
    @abc.abstractmethod
    def like(self) -> Tensor:
        """A tensor of the type and the device of the units."""

    @abc.abstractmethod
    def to_units(self, x: Tensor) -> Tensor:
        """y (B, width) of x (B, *event)."""

    def detail(self, x: Tensor) -> Tensor:
        """log p(x | y) (B,) of what y does not hold of x."""
        return self.like.new_zeros(len(x))

    @abc.abstractmethod
    def to_data(self, y: Tensor) -> Tensor:
        """The event (B, *event) nearest to y (B, width)."""

    @abc.abstractmethod
    def sample(
        self, mean: Tensor, deviation: Tensor, noise: Tensor, allowed: Tensor | None = None
    ) -> Tensor:
        """x ~ p(x | z_0) (B, *event) from normal noise, for mean and noise (B, width) and
        deviation (B, 1); of the components of tables, only those that are `allowed`."""

    @abc.abstractmethod
    def clamp(self, y: Tensor) -> Tensor:
        """y clamped to the range of discrete data; numbers with a density are unchanged."""

    @abc.abstractmethod
    def log_prob(self, y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """log p(x | z_0) - detail(x) in the units of the data, (B,), for y and mean (B, width),
        deviation (B, 1) or ()."""

    def numbers_in(self, y: Tensor) -> Tensor:
        """Which dimensions of y (B, width) hold a number with a density."""
        return self.continuous.expand_as(y)

    @abc.abstractmethod
    def expand_mask(self, observed: Tensor) -> Tensor:
        """The mask of the entries (B, *event) as one of the dimensions, (B, width)."""

    def allowed(self, observed: Tensor) -> Tensor | None:
        """The components (B, components) of rows whose unknown cells are not empty; None where
        no cell can be."""
        return None

    @property
    @abc.abstractmethod
    def typical(self) -> Tensor:
        """An event inside the data, (1, *event)."""

    @abc.abstractmethod
    def denoiser(self, clusters: int = 0) -> OwnDenoiser:
        """The estimate of each entry by its own noisy value, and of levels by the cluster."""

    @abc.abstractmethod
    def network_space(self, residual: bool) -> Space:
        """The space of what the network reads and writes."""


def units_of(space: Space, optional_first: bool) -> EventUnits:
    """The units of the data: embedded rows for tables, else standardised numbers."""
    return EmbeddedRowUnits(space, optional_first) if space.kind in TABLE_KINDS else Units(space)


@dataclass(frozen=True)
class FirstEstimate:
    """What the network reads of an estimate by the own values, and how it refines it."""

    z: Tensor  # (B, W): its first input
    guess: Tensor | None  # (B, W): its second input
    refine: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    """Network output (B, W) to x (B, width), and to the probabilities of the components of tables,
    (B, components)."""


class OwnDenoiser(nn.Module, abc.ABC):
    """An estimate of each entry from its own noisy value."""

    gives_guess = True
    """Whether the network reads its estimate as a second input."""

    @abc.abstractmethod
    def fit(self, y: Tensor) -> None:
        """Set frequencies from training rows (B, width)."""

    def count(self, rows: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Set frequencies in each cluster from chunks of training rows (B, width) and their
        clusters (B,); all are read."""
        for _ in rows:
            pass

    @abc.abstractmethod
    def estimate(
        self,
        z: Tensor,
        alpha: Tensor,
        sigma: Tensor,
        allowed: Tensor | None = None,
        cluster: Tensor | None = None,
    ) -> FirstEstimate:
        """For z (B, width), alpha and sigma (B, 1), the components that the cells of tables may
        have, and the clusters of the rows (B,), below 0 of rows without one."""


class Units(EventUnits):
    """y = (x - mean) / scale of reals, levels and binary values."""

    shift: Tensor
    scale: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, self.discrete, self.width = space, space.kind != "real", space.dims
        self.top = (1 if space.kind == "binary" else space.size - 1) if self.discrete else 0
        scale = space.spread("scale").flatten()
        scale = scale.clamp_min(MIN_LEVEL_SCALE) if self.discrete else scale
        self.register_buffer("shift", space.spread("mean").flatten().clone(), persistent=False)
        self.register_buffer("scale", scale.clone(), persistent=False)  # (D,)
        continuous = torch.full((space.dims,), not self.discrete)
        self.register_buffer("continuous", continuous, persistent=False)

    @property
    def like(self) -> Tensor:
        return self.scale

    def to_units(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), -1).to(self.scale.dtype)
        check_codes("diffusion", self.space, x)
        return (x - self.shift) / self.scale

    def to_data(self, y: Tensor) -> Tensor:
        x = self.shift + self.scale * y
        if self.discrete:
            x = x.round().clamp(0, self.top) + 0.0  # turns -0 into 0
        return x.reshape(len(y), *self.space.shape)

    def sample(
        self, mean: Tensor, deviation: Tensor, noise: Tensor, allowed: Tensor | None = None
    ) -> Tensor:
        return self.to_data(mean + deviation * noise)

    def clamp(self, y: Tensor) -> Tensor:
        if not self.discrete:
            return y
        low, high = -self.shift / self.scale, (self.top - self.shift) / self.scale
        return y.clamp(low, high)

    def log_prob(self, y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        if not self.discrete:
            normal = -0.5 * ((y - mean) / deviation).square() - deviation.log() - self.scale.log()
            return (normal - 0.5 * math.log(2 * math.pi)).sum(1)
        half, x = 0.5 / self.scale, (self.shift + self.scale * y).round()
        below = torch.where(x <= 0, -torch.inf, (y - half - mean) / deviation)
        above = torch.where(x >= self.top, torch.inf, (y + half - mean) / deviation)
        return log_normal_interval(below, above).sum(1)

    def expand_mask(self, observed: Tensor) -> Tensor:
        return observed.reshape(len(observed), -1)

    @property
    def typical(self) -> Tensor:
        return self.to_data(torch.zeros_like(self.scale)[None])

    def denoiser(self, clusters: int = 0) -> OwnDenoiser:
        return EntrywiseDenoiser(self.space, self, clusters)

    def network_space(self, residual: bool) -> Space:
        return self.space


class EmbeddedRowUnits(EventUnits):
    """The vectors of rows of a table; `rows.components` components in all."""

    damped: Tensor  # (components,): whose residuals vanish where there is only noise

    def __init__(self, space: Space, optional_first: bool = False) -> None:
        super().__init__()
        distance = EMPTY_DISTANCE if optional_first else NAME_DISTANCE
        self.space, self.rows = space, RowEmbedding(space, distance)
        damped = self.rows.in_optional & optional_first
        self.register_buffer("damped", damped, persistent=False)
        self.width, self.discrete = self.rows.width, not self.rows.reals
        continuous = torch.zeros(self.width, dtype=torch.bool)
        continuous[self.rows.number_axes] = True
        self.register_buffer("continuous", continuous, persistent=False)

    @property
    def like(self) -> Tensor:
        return self.rows.points

    def fit(self, x: Tensor) -> None:
        self.rows.fit(self.flat(x))

    def flat(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1).to(self.like.dtype)

    def event(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), *self.space.shape)
        return x.long() if self.space.kind == "label" else x

    def to_units(self, x: Tensor) -> Tensor:
        y: Tensor = self.rows(self.flat(x))
        return y

    def detail(self, x: Tensor) -> Tensor:
        return self.rows.detail(self.flat(x))

    def to_data(self, y: Tensor) -> Tensor:
        cells = self.rows.nearest(y)
        return self.event(self.rows.decode(cells, y, torch.full_like(cells, 0.5, dtype=y.dtype)))

    def sample(
        self, mean: Tensor, deviation: Tensor, noise: Tensor, allowed: Tensor | None = None
    ) -> Tensor:
        logits = self.rows.evidence(mean, torch.ones_like(deviation), deviation)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        uniform = torch.special.ndtr(noise)[:, self.choice_axes]
        cells, left = self.rows.choose(self.rows.softmax(logits), uniform)
        return self.event(self.rows.decode(cells, mean + deviation * noise, left))

    def draw(self, x0: Tensor, components: Tensor, noise: Tensor) -> Tensor:
        """y (B, width) of rows whose components have these probabilities (B, components), columns
        apart, and whose numbers are those of the estimate x0, from normal noise (B, width)."""
        uniform, rows = torch.special.ndtr(noise)[:, self.choice_axes], self.rows
        cells, left = rows.choose(components, uniform)
        share = components[:, rows.number_components].clamp_min(MIN_SHARE)
        numbers = x0[:, rows.number_axes] / share
        y: Tensor = rows(rows.decode(cells, x0.index_copy(1, rows.number_axes, numbers), left))
        return y

    @property
    def choice_axes(self) -> Tensor:
        """The dimension of each column whose noise chooses its component, (D,): not that of a
        number, unless there is nothing to choose."""
        sizes = torch.tensor(self.rows.sizes, device=self.rows.first_axis.device)
        first = self.rows.first_axis
        return first + (self.continuous[first] & (sizes > 1)).long()

    def clamp(self, y: Tensor) -> Tensor:
        own = self.rows.column[:, None] == self.rows.axis_column
        low = torch.where(own, self.rows.points, torch.inf).amin(0)
        high = torch.where(own, self.rows.points, -torch.inf).amax(0)
        return torch.where(self.continuous, y, y.clamp(low, high))

    def log_prob(self, y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        deviation = deviation.expand(len(y), 1)
        cells = self.rows.nearest(y)
        logits = self.rows.evidence(mean, torch.ones_like(deviation), deviation)
        total = self.rows.log_softmax(logits).gather(1, cells).sum(1)
        apart = (y - mean) / deviation
        normal = -0.5 * apart.square() - deviation.log() - 0.5 * math.log(2 * math.pi)
        return total + torch.where(self.numbers_in(y), normal, 0.0).sum(1)

    def numbers_in(self, y: Tensor) -> Tensor:
        here = self.rows.nearest(y)[:, self.rows.axis_column] == self.rows.first_component
        return here & self.continuous

    def expand_mask(self, observed: Tensor) -> Tensor:
        return observed.reshape(len(observed), -1)[:, self.rows.axis_column]

    @property
    def typical(self) -> Tensor:
        return self.event(self.rows.typical)

    def allowed(self, observed: Tensor) -> Tensor | None:
        if not bool(self.rows.empty.any()):
            return None
        known = observed.reshape(len(observed), -1)[:, self.rows.column]
        return known | ~self.rows.empty

    def denoiser(self, clusters: int = 0) -> OwnDenoiser:
        return ColumnDenoiser(self)

    def network_space(self, residual: bool) -> Space:
        """Vectors of the noisy row, with the probability of each component beside it."""
        more = self.rows.components if residual else 0
        return Space(
            kind="real",
            shape=(self.width + more,),
            name=self.space.name,
            rows=self.space.rows,
            given=self.space.given,
        )


def log_normal_interval(a: Tensor, b: Tensor) -> Tensor:
    """log(Phi(b) - Phi(a)) for a < b, accurate in both tails."""
    flipped = a > 0
    low, high = torch.where(flipped, -b, a), torch.where(flipped, -a, b)
    upper, lower = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    # Clamped at the smallest difference, so that its gradient stays finite.
    gap = (lower - upper).clamp(max=-torch.finfo(a.dtype).eps)
    return upper + torch.log(-torch.expm1(gap))


def max_log_snr(space: Space) -> float:
    """The log-SNR at t = 0 at which neighbouring levels are separated; a constant for reals."""
    if space.kind in TABLE_KINDS:
        named = all(part.kind in ("binary", "label") for part in space.parts)
        apart = 2 * math.log(NOISE_STDS_PER_LEVEL / NAME_DISTANCE)
        return round(apart, 1) if named else REAL_MAX_LOG_SNR
    if space.kind == "real":
        return REAL_MAX_LOG_SNR
    scale = space.spread("scale").clamp_min(MIN_LEVEL_SCALE).max().item()
    return round(2 * math.log(NOISE_STDS_PER_LEVEL * scale), 1)


def feature_half_period(space: Space) -> Tensor:
    """Half the period of the slowest Fourier feature, (D,): one level for discrete data, one
    standard deviation for reals."""
    if space.kind == "real":
        return torch.ones(space.dims)
    return 1 / space.spread("scale").flatten().clamp_min(MIN_LEVEL_SCALE)


class EntrywiseDenoiser(OwnDenoiser):
    """Mean and standard deviation of each entry given its own noisy value, each (B, D)."""

    log_frequencies: Tensor
    cluster_log_frequencies: Tensor
    run: Tensor
    points: Tensor
    variances: Tensor

    def __init__(self, space: Space, units: Units, clusters: int = 0) -> None:
        super().__init__()
        self.units, self.in_runs, self.clusters = units, False, clusters
        if not units.discrete:
            return
        run = runs_of_levels(units.top)  # (levels,)
        self.in_runs = len(run) > int(run[-1]) + 1
        size = torch.bincount(run)  # (K,)
        centre = torch.bincount(run, torch.arange(units.top + 1.0)) / size
        uniform = (size / size.sum()).log().expand(space.dims, -1)
        scale = units.scale if (units.scale != units.scale[0]).any() else units.scale[:1]
        variances = (size.square() - 1)[:, None] / (12 * scale.square())  # (K, D) or (K, 1)
        self.register_buffer("log_frequencies", uniform.clone())  # (D, K)
        if clusters:
            each = uniform.T.expand(clusters, -1, -1)
            self.register_buffer("cluster_log_frequencies", each.clone())  # (clusters, K, D)
        self.register_buffer("run", run, persistent=False)
        self.register_buffer(
            "points", (centre[:, None] - units.shift) / units.scale, persistent=False
        )
        self.register_buffer("variances", variances, persistent=False)

    @torch.no_grad()
    def fit(self, y: Tensor) -> None:
        if not self.units.discrete:
            return
        codes = self.codes(y)
        counts = torch.zeros_like(self.log_frequencies)
        counts.scatter_add_(1, codes.T, torch.ones_like(codes.T, dtype=counts.dtype))
        overall = counts.sum(0) + torch.bincount(self.run)
        counts += PSEUDO_ROWS * overall / overall.sum()
        share = counts / counts.sum(1, keepdim=True)
        self.log_frequencies.copy_(share.log())

    @torch.no_grad()
    def count(self, rows: Iterable[tuple[Tensor, Tensor]]) -> None:
        if not self.units.discrete:
            return super().count(rows)
        counts = CLUSTER_PSEUDO_ROWS * self.log_frequencies.exp().T.repeat(self.clusters, 1, 1)
        entry, flat = torch.arange(counts.shape[2], device=counts.device), counts.view(-1)
        for y, cluster in rows:
            place = cluster[:, None] * counts.shape[1] + self.codes(y)  # (B, D)
            place = (place * counts.shape[2] + entry).flatten()
            flat.index_add_(0, place, torch.ones_like(place, dtype=counts.dtype))
        self.cluster_log_frequencies.copy_((counts / counts.sum(1, keepdim=True)).log())

    def codes(self, y: Tensor) -> Tensor:
        """The run of each entry of rows (B, D)."""
        return self.run[(self.units.shift + self.units.scale * y).round().long()]

    def estimate(
        self,
        z: Tensor,
        alpha: Tensor,
        sigma: Tensor,
        allowed: Tensor | None = None,
        cluster: Tensor | None = None,
    ) -> FirstEstimate:
        spread = (alpha.square() + sigma.square()).sqrt()
        if self.in_runs:
            mean, shift = self.posterior(z, alpha, sigma, cluster).mean, sigma / alpha
            return FirstEstimate(
                z / spread,
                mean,
                lambda out: (
                    self.posterior(z + shift * out, alpha, sigma, cluster).mean,
                    None,
                ),
            )
        mean, deviation = self(z, alpha, sigma, cluster)
        return FirstEstimate(z / spread, mean, lambda out: (mean + deviation * out, None))

    def forward(
        self, z: Tensor, alpha: Tensor, sigma: Tensor, cluster: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if not self.units.discrete:
            square = alpha.square() + sigma.square()
            return alpha * z / square, (sigma / square.sqrt()).expand_as(z)
        found = self.posterior(z, alpha, sigma, cluster)
        spread = (found.means - found.mean[:, None]).square() + found.variances
        return found.mean, (found.weights * spread).sum(1).clamp_min(MIN_VARIANCE).sqrt()

    def prior(self, cluster: Tensor | None) -> Tensor:
        """The log-frequencies of the runs, of the rows' clusters if they have some, (K, D) or
        (B, K, D)."""
        if cluster is None:
            return self.log_frequencies.T
        own = self.cluster_log_frequencies[cluster.clamp_min(0)]
        return torch.where((cluster < 0)[:, None, None], self.log_frequencies.T, own)

    def posterior(
        self, z: Tensor, alpha: Tensor, sigma: Tensor, cluster: Tensor | None = None
    ) -> RunPosterior:
        """The runs of each level given its noisy value, and the cluster of its row."""
        alpha, sigma = alpha[..., None], sigma[..., None]  # (B, 1, 1)
        noisy = alpha.square() * self.variances + sigma.square()  # (B, K, D) or (B, K, 1)
        apart = z[:, None] - alpha * self.points  # (B, K, D)
        evidence = (self.prior(cluster) - 0.5 * noisy.log()) - apart.square() * (0.5 / noisy)
        weights = torch.softmax(evidence, 1)
        means = self.points + (alpha * self.variances / noisy) * apart
        return RunPosterior(
            weights, means, sigma.square() * self.variances / noisy, (weights * means).sum(1)
        )


class RunPosterior(NamedTuple):
    """Probabilities, means and variances of the runs of levels, and the mean over them."""

    weights: Tensor  # (B, K, D)
    means: Tensor  # (B, K, D)
    variances: Tensor  # (B, K, D) or (B, K, 1)
    mean: Tensor  # (B, D)


def runs_of_levels(top: int) -> Tensor:
    """The run of each level from 0 to top, (top + 1,): up to MAX_ENUMERATED_LEVELS of them are
    runs of their own. Of more, runs double in length from either end, 1, 1, 2, 4, ..., since the
    first and the last level are often those of a background or of what is saturated."""
    level = torch.arange(top + 1)
    if top < MAX_ENUMERATED_LEVELS:
        return level
    starts, length = [0], 1
    while starts[-1] + length <= top // 2:
        starts.append(starts[-1] + length)
        length = min(starts[-1], (top + 1) // MIN_RUNS)
    place = torch.bucketize(torch.minimum(level, top - level), torch.tensor(starts), right=True)
    run = torch.where(level <= top - level, place - 1, 2 * len(starts) - place)
    return run.unique(return_inverse=True)[1]


class ColumnDenoiser(OwnDenoiser):
    """The components of each column given its own noisy point, and the mean of its number."""

    gives_guess = False

    def __init__(self, units: EmbeddedRowUnits) -> None:
        super().__init__()
        self.owner = (units,)  # a tuple, since the model has the units as a part already

    def fit(self, y: Tensor) -> None:
        """The embedding, which is fitted before, holds the shares."""

    def estimate(
        self,
        z: Tensor,
        alpha: Tensor,
        sigma: Tensor,
        allowed: Tensor | None = None,
        cluster: Tensor | None = None,
    ) -> FirstEstimate:
        rows, damped = self.owner[0].rows, self.owner[0].damped
        square = alpha.square() + sigma.square()
        logits = rows.evidence(z, alpha, sigma)
        number = z[:, rows.number_axes]
        # N(z; 0, alpha^2 + sigma^2) of a number over N(z; 0, sigma^2) of none
        ratio = 0.5 * number.square() * (1 / sigma.square() - 1 / square)
        ratio = ratio + (sigma.square() / square).log() / 2
        logits = logits.index_add(1, rows.number_components, ratio)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)

        def refine(out: Tensor) -> tuple[Tensor, Tensor]:
            residual, more = out.split([rows.width, rows.components], 1)
            more = torch.where(damped, alpha / square.sqrt() * more, more)
            weight = rows.softmax(logits + more)
            mean = alpha * number / square + sigma / square.sqrt() * residual[:, rows.number_axes]
            mean = weight[:, rows.number_components] * mean
            return (weight @ rows.points).index_add(1, rows.number_axes, mean), weight

        inputs = torch.cat([z / square.sqrt(), rows.softmax(logits)], 1)
        return FirstEstimate(inputs, None, refine)
