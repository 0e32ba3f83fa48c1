r"""Base of sequence models with a latent code at every step, such as vrnn and stcn.

A step here is a frame of an event: `frame` consecutive steps of a series with their channels, or
pixels with their colours. Before it a causal network has summarised the past as $h_{t-1}$; then

$p(x, z | c) = \prod_t p(z_t | h_{t-1})\, p(x_t | z_t, h_{t-1})$,
$q(z | x, c) = \prod_t q(z_t | x_t, h_{t-1})$,

with Gaussian codes in levels that are sampled one after the other. The posterior is parameterised
relative to the prior, $N(\mu + \sigma \delta, (\sigma \rho)^2)$ for the prior $N(\mu, \sigma^2)$,
so that the KL of a code is $\frac12 (\delta^2 + \rho^2 - 1) - \log \rho$ whatever the prior is.
Padding beyond the length of a row is not modelled.

The entries of $x_t$ are independent given $z_t$ and the past, so codes hold what they share. Of a
single number they share nothing, and a mixture given the past alone is as good: such a model
learns to leave its codes unused. In frames of several numbers (200 samples of sound in Chung et
al. 2015) codes are what makes the numbers of a frame agree.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanComplete,
    CanDiagnose,
    CanSample,
    CanStream,
    Finding,
    Given,
    HasLevels,
    HasLikelihood,
    Likelihood,
)
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.rng import derive_seed, keyed_normal, seed_of
from ...core.space import Space
from ...nn.mlp import MLP
from ...nn.stepwise import ConditionedStepwise
from .._annealing import SAMPLES_PER_BLOCK, AnnealedLikelihoodConfig, RowNoise, annealed_bound
from .._ordering import frame
from ._diagnostics import MIN_ACTIVE_KL, find_degenerate_scale
from ._frames import FrameModel, Frames, GaussianNet, StepCodes
from ._particle_filter import complete_prefix, sample_step_noise, start_sampling
from ._posterior import check_latent_size

MAX_BATCH_ELEMENTS = 1 << 23
"""Elements of hidden layers that a likelihood computes at once."""
FRAME_VALUES, FRAMES = 8, 64
"""By default a frame has at least so many numbers, and a row at most so many frames."""
ANNEALED_STEPS = 300
"""KL annealing by default: without it the network of the past, which learns faster than the codes
do, has made them useless by the time that they could help (Bowman et al. 2016)."""


class SequentialLatentModel(
    FrameModel, HasLikelihood, HasLevels, CanSample, CanComplete, CanStream, CanDiagnose
):
    """A sequence of codes and events, one of each per step."""

    loss_per_step = True
    carries_codes: bool
    """Whether the summary of the past depends on codes, so that a particle filter is needed."""

    class Config(FrameModel.Config):
        latent: Annotated[int, Range(1)] = 16
        """Dimension of the code of a frame, per level."""
        step_net: MLP.Config = MLP.Config(width=128, depth=1)
        """Networks of the prior, the posterior and p(x | z) at a step."""
        beta: Annotated[float, Range(0)] = 1.0
        """Weight of the KL term; above 1 favours simpler codes."""
        anneal: Annotated[int, Range(0)] = 0
        """KL annealing: steps over which the weight of the KL term rises from 0 to beta."""

    class SamplingConfig(BaseConfig):
        steps: Annotated[int, Range(0)] = 0
        """Steps to sample if rows vary in length; 0 is the median of the training rows."""
        particles: Annotated[int, Range(1)] = 32
        """Completion: particles that represent the codes of the observed steps."""
        cached: bool = True
        """Cache the network state; false recomputes the whole past at each step."""

    class LikelihoodConfig(AnnealedLikelihoodConfig):
        """How tight the bound is."""

        filter: bool = True
        """importance: resample particles step by step (particle filter); false weights whole
        sequences."""

    config: Config
    net: ConditionedStepwise[Any]

    def __init__(self, config: Config, space: Space) -> None:
        """Subclasses build `net` and then call `build_step_nets`."""
        super().__init__(config, space)
        check_latent_size(config.latent, 0, space)

    def build_step_nets(self, befores: Sequence[int], afters: Sequence[int], past: int) -> None:
        """Prior and posterior networks of each level, top first, with inputs of these sizes before
        and after a step is observed; p(x | z) reads all codes and `past` more numbers."""
        part, latent, count = self.config.step_net, self.config.latent, len(befores)
        frames = -(-self.count(self.space) // self.config.frame)
        self.latent = Space(kind="real", shape=(frames, count * latent))
        above = [latent * (place > 0) for place in range(count)]
        self.priors = nn.ModuleList(
            GaussianNet(part, size + over, latent)
            for size, over in zip(befores, above, strict=True)
        )
        self.posteriors = nn.ModuleList(
            GaussianNet(part, size + over, latent)
            for size, over in zip(afters, above, strict=True)
        )
        self.decoder: MLP = part.build(count * latent + past, self.head.width)
        self.first = nn.Parameter(0.1 * torch.randn(self.net.inputs))
        self.init_output_bias()

    @torch.no_grad()
    def init_output_bias(self) -> None:
        """Start p(x | z) near the marginal distribution of a step."""
        self.decoder.out.weight.mul_(0.1)
        self.decoder.out.bias.copy_(self.head.initial_params())

    def initialise_from_data(self, batch: Batch) -> None:
        rows = self.to_frames(batch)
        self.head.fit(rows.x[rows.exist], rows.present[rows.exist])
        with torch.no_grad():
            self.decoder.out.bias.copy_(self.head.initial_params())
        if batch.length is not None:
            self.typical.copy_(batch.length.median())

    @classmethod
    def frame_defaults(cls, space: Space) -> dict[str, Any]:
        """Settings of frames and codes: lines of an image, or a few steps of a sequence."""
        steps, channels = cls.count(space), max(frame(space).dims, 1)
        size = max(-(-FRAME_VALUES // channels), -(-steps // FRAMES))
        if space.is_image and not space.varies:
            size = space.shape[-1]
        size = min(size, steps)
        return {
            "frame": size,
            "latent": min(16, size * channels),
            "components": 1 if size * channels > 1 else 3,
            "anneal": ANNEALED_STEPS,
        }

    @abc.abstractmethod
    def infer_steps(
        self, rows: Frames, noise: Tensor | None, z: Tensor | None = None
    ) -> tuple[StepCodes, Tensor]:
        """Codes of every step from noise (S, B, T, Z), or given as z (S, B, T, Z), and the
        summaries of the past that p(x | z) reads, (S, B, T, past)."""

    @abc.abstractmethod
    def importance_weighted(
        self, rows: Frames, options: LikelihoodConfig, seed: int
    ) -> tuple[Tensor, Tensor]:
        """The importance-weighted bound and its Monte-Carlo error, (B,) each."""

    @abc.abstractmethod
    def prior_inputs(self, summary: Tensor) -> Sequence[Tensor]:
        """Inputs of the prior of each level, from the summary (..., outputs) of the past."""

    def posterior_inputs(self, summary: Tensor, features: Tensor) -> Sequence[Tensor]:
        """Inputs of the posterior of each level, from the past and the features of a step."""
        return [torch.cat([part, features], -1) for part in self.prior_inputs(summary)]

    @abc.abstractmethod
    def net_input(self, features: Tensor, z: Tensor) -> Tensor:
        """Input of the network: features (..., F) and codes (..., Z) to (..., inputs)."""

    @abc.abstractmethod
    def decoder_context(self, summary: Tensor) -> Tensor:
        """Inputs of p(x | z) from the summary, besides codes, (..., past)."""

    def step_codes(
        self,
        before: Sequence[Tensor],
        after: Sequence[Tensor] | None,
        noise: Tensor | None,
        z: Tensor | None = None,
    ) -> StepCodes:
        """Codes level by level, from the posterior, or from the prior if `after` is None."""
        parts, latent = [], self.config.latent
        above: tuple[Tensor, ...] = ()
        for place, prior in enumerate(self.priors):
            own = slice(place * latent, (place + 1) * latent)
            mean, log_scale = prior(before[place], *above)
            shift = stretch = torch.zeros_like(mean)
            if after is not None:
                shift, stretch = self.posteriors[place](after[place], *above)
            if z is not None:
                here = z[..., own]
            else:
                assert noise is not None, "expected codes or noise"
                white = shift + stretch.exp() * noise[..., own]
                here = mean + log_scale.exp() * white
            parts.append(StepCodes(here, mean, log_scale, shift, stretch))
            above = (here,)
        return StepCodes.concat(parts, -1) if len(parts) > 1 else parts[0]

    def params(self, z: Tensor, past: Tensor) -> Tensor:
        """Of p(x_t | z_t, h_{t-1}), (..., P)."""
        return self.decoder(torch.cat([z, past], -1))

    def log_given_codes(self, rows: Frames, z: Tensor, past: Tensor) -> Tensor:
        """log p(x_t | z_t, h_{t-1}) of every frame, (S, B, T); 0 beyond the length of a row."""
        params = self.params(z, past)
        log_p = self.head.log_prob(params, rows.x.expand(*params.shape[:-1], -1))
        return (log_p * rows.present).sum(-1)

    def kl_weight(self, step: int) -> float:
        """beta, annealed from 0 over the first `anneal` steps."""
        anneal = self.config.anneal
        return self.config.beta * (min(1.0, (step + 1) / anneal) if anneal else 1.0)

    def loss_share(self, rows: Frames) -> Tensor:
        """What turns sums over rows into means over the steps of the batch."""
        return len(rows.x) * len(self.blank) / rows.present.sum().to(rows.x.dtype)

    def sample_noise(self, rows: Frames) -> Tensor:
        """Standard normal noise of one code per step, (1, B, T, Z)."""
        return torch.randn(
            1, *rows.exist.shape, self.latent.shape[1], dtype=rows.x.dtype, device=rows.x.device
        )

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        options, seed = options or self.LikelihoodConfig(), seed_of(generator)
        assert isinstance(options, SequentialLatentModel.LikelihoodConfig), (
            "expected a LikelihoodConfig"
        )
        rows, text = self.to_frames(as_batch(batch)), ""
        values, errors = [], []
        for own in self.chunks(rows, options.samples):
            if options.method == "ais":
                found = self.annealed_bound(own, options, seed)
                value, error, text = found.value, found.stderr, found.description
            elif options.samples == 1:
                noise = self.keyed_noise(own, 1, derive_seed(seed, "codes", 0))
                codes, past = self.infer_steps(own, noise)
                bound = self.log_given_codes(own, codes.z, past) - codes.kl.sum(-1) * own.exist
                value, error = bound[0].sum(1), None
            else:
                value, error = self.importance_weighted(own, options, seed)
            values.append(value)
            errors += [] if error is None else [error]
        return Likelihood(torch.cat(values), "bound", torch.cat(errors) if errors else None, text)

    def annealed_bound(self, rows: Frames, options: LikelihoodConfig, seed: int) -> Likelihood:
        """Annealed importance sampling of log p(x) in the noise of the codes of all steps."""

        def energy(noise: Tensor) -> Tensor:  # (S B, T Z) -> (S B,)
            own = noise.reshape(-1, *rows.exist.shape, self.latent.shape[1])
            log_weights = self.log_weights(rows, own)
            return -log_weights.sum(2).flatten()

        noise = RowNoise(rows.row, seed, partial(self.keyed_noise, rows))
        return annealed_bound(energy, noise, options, SAMPLES_PER_BLOCK * len(rows.row))

    def log_weights(self, rows: Frames, noise: Tensor) -> Tensor:
        """log p(x_t, z_t | past) / q(z_t | x_t, past) of every step for codes from noise
        (S, B, T, Z), (S, B, T); 0 beyond the length of a row."""
        codes, past = self.infer_steps(rows, noise)
        ratio = (codes.log_prior - codes.log_posterior) * rows.exist
        return self.log_given_codes(rows, codes.z, past) + ratio

    def chunks(self, rows: Frames, samples: int) -> Iterator[Frames]:
        """Rows in chunks of bounded memory."""
        count = max(rows.exist.shape[1] * min(samples, SAMPLES_PER_BLOCK), samples)
        each = count * max(self.net.outputs, self.head.width)
        for own in torch.arange(len(rows.x), device=rows.x.device).split(
            max(MAX_BATCH_ELEMENTS // each, 1)
        ):
            yield rows.take(own)

    def keyed_noise(self, rows: Frames, samples: int, seed: int) -> Tensor:
        """Standard normal noise keyed by row and step, independent of padding, (S, B, T, Z)."""
        steps = [self.step_noise(rows, samples, seed, t) for t in range(rows.x.shape[1])]
        return torch.stack(steps, 2)

    def step_noise(self, rows: Frames, samples: int, seed: int, step: int) -> Tensor:
        """The noise of one step, (S, B, Z)."""
        shape = (samples, self.latent.shape[1])
        noise = keyed_normal(rows.row, shape, derive_seed(seed, "step", step))
        return noise.transpose(0, 1).to(rows.x.dtype)

    def log_joint(self, batch: Batch, z: Tensor) -> Tensor:
        rows = self.to_frames(batch)
        codes, past = self.infer_steps(rows, None, z)
        return self.log_given_codes(rows, z, past).sum(-1) + (codes.log_prior * rows.exist).sum(-1)

    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        rows = self.to_frames(batch)
        return (self.infer_steps(rows, None, z)[0].log_prior * rows.exist).sum(-1)

    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        rows = self.to_frames(batch)
        return (self.infer_steps(rows, None, z)[0].log_posterior * rows.exist).sum(-1)

    def infer(self, batch: Batch, noise: Tensor) -> Tensor:
        return self.infer_steps(self.to_frames(batch), noise)[0].z

    def level_kls(self, batch: Batch, z: Tensor) -> Tensor:
        """One per level of each step."""
        rows = self.to_frames(batch)
        kl = self.infer_steps(rows, None, z)[0].kl * rows.exist[..., None]  # (S, B, T, Z)
        return kl.unflatten(-1, (-1, self.config.latent)).sum(-1).flatten(-2)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """One yield per frame; later steps hold their training mean or lowest value."""
        state = start_sampling(self, n, given, options)
        x = state.rows.x
        for step in range(x.shape[1]):
            state.advance(step, *sample_step_noise(self, 1, n, x, generator))
            yield self.from_frames(state.rows).clone()

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """The observed steps must come first; padding is left as it is."""
        return complete_prefix(self, batch, options, generator)

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        rows = self.to_frames(replace(batch, row=batch.rows))
        codes, past = self.infer_steps(rows, self.keyed_noise(rows, 1, 0))
        kl = codes.kl[0][rows.exist]  # (N, Z)
        active, units = int((kl.mean(0) > MIN_ACTIVE_KL).sum()), kl.shape[1]
        found = [find_degenerate_scale(self.head, self.params(codes.z, past)[0][rows.exist])]
        if 4 * active < units:
            remedy = (
                f"latent={active} is enough"
                if active
                else "if a step is simple given its past, wavenet is as good and faster; "
                "otherwise try larger frames (frame=8) or anneal=2000"
            )
            found.append(
                Finding(
                    "posterior collapse",
                    f"{active} of {units} latent units of a step are active; the KL term is "
                    f"{float(kl.sum(1).mean()):.2f} nats per step",
                    remedy,
                )
            )
        return [finding for finding in found if finding]
