r"""Networks and recipes of diffusion laws that suit data of a kind and size.

What diffusion laws share: noise in the units of the data, one network, samplers, two scores.

$q(z_t | x) = N(\alpha_t y, \sigma_t^2 I)$ for standardised y (`_units`); a network reads z_t and
$\lambda_t$ and predicts x in one of four ways (`_prediction`); going back from
$z_1 \sim N(0, (\alpha_1^2 + \sigma_1^2) I)$ is left to a sampler (`_samplers`), the last step from
z_0 to x to `_units`, and the accounts to `_accounting`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import HasScore, HasTerms, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.rng import derive_seed, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.unet import suited
from ...solve.jacobian_trace import draw_probes, mean_and_error
from ...solve.ode import Solver
from .._ordering import check_whole
from ._conditioning import Teller, Told
from ._denoisers import MLP, TimeNet, UNet
from ._likelihood import Asked, Terms, bound, columns, flow, together
from ._parameterisation import Prediction, Target
from ._sampling import Drawing
from ._units import LEVELS, Alone, Units

SMALL = 5000
"""Rows below which a network is kept small."""


def network(space: Space, waves: int = 0) -> TimeNet.Config:
    """A U-Net for pictures and long sequences, a perceptron for the rest."""
    if space.is_picture and min(space.shape[1:]) >= 6:
        dropout = 0.1 if 0 < space.rows < SMALL else 0.0
        return suited(UNet.Config(attention=1, dropout=dropout, waves=waves), space.shape[1:])
    if len(space.shape) == 2 and space.shape[0] >= 16:
        return UNet.Config(width=32, multipliers=(1, 2, 2), blocks=1, attention=1, waves=waves)
    few = 0 < space.rows < 2000
    if space.dims <= 4:
        waves = waves or (0 if few else 3)
        return MLP.Config(width=128, depth=3, waves=waves)
    return MLP.Config(width=256 if few else 512, depth=3, waves=waves)


def aim(space: Space) -> Aim:
    """The rest of x where levels are few enough to be gone through, else its velocity."""
    return "rest" if space.kind == "binary" or 0 < space.size <= LEVELS else "velocity"


def recipe(space: Space) -> TrainConfig:
    """Averages of weights reach back a ninth of the steps, ten thousand at most."""
    few = 0 < space.rows < SMALL
    pictures = space.is_picture or len(space.shape) == 2
    if not pictures and space.dims <= 4:
        return TrainConfig(
            lr=2e-3, batch_size=512, ema_decay=0.9999, eval_every=500, grad_clip=1.0
        )
    return TrainConfig(
        lr=1e-3,
        batch_size=64 if pictures or few else 256,
        ema_decay=0.9999,
        eval_every=300 if few else 2000,
        grad_clip=1.0,
    )


Aim = Literal[Target, "rest"]
ENTRIES = 1 << 18
"""Numbers that pass the network at once when rows are scored."""
LEAST, CAP, MOST = 4, 128, 1024
"""Draws of a bound where nothing is said: between the first two, so many numbers altogether."""
FEW = 16
"""trace=auto: entries up to which the trace is exact."""


class Diffusion(Drawing, HasTerms, HasScore):
    """A law that undoes noise. A subclass sets `schedule`, and `steps` where time is a grid."""

    events = {"real", "binary", "levels"}
    givens = {"real", "binary", "levels", "label", "counts", "columns", "tokens"}

    class Config(Drawing.Config):
        net: TimeNet.Config = MLP.Config()
        """Network that denoises: mlp for vectors, unet for pictures and sequences, transformer."""
        target: Aim = "velocity"
        """What it predicts: x, the noise, the score, the velocity, or the rest of x, which no
        entry tells of itself; each says what the others do, but they begin elsewhere."""

    class LikelihoodConfig(BaseConfig):
        method: Literal["bound", "ode"] = "bound"
        """A lower bound by denoising, or an estimate by the flow of the same marginals."""
        samples: Annotated[int, Range(1)] | None = None
        """bound: draws of time and noise a row; none takes 4, and up to 128 of short rows."""
        tolerance: Annotated[float, Range(0, open=True)] = 1e-4
        """ode: error of a step, relative and absolute."""
        trace: Literal["auto", "exact", "hutchinson"] = "auto"
        """ode: the trace of the Jacobian: exact, estimated, or exact where entries are few."""
        probes: Annotated[int, Range(1)] = 2
        """ode: random directions a row of the estimated trace; more are less uncertain."""

    config: Config
    variance: str = "posterior"
    """Of the reverse step: posterior, forward or learned."""

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name = type(self).__name__.lower()
        self.units, self.teller = Units(space), Teller(space)
        outputs, rest = 2 if self.learns_variance else 1, config.target == "rest"
        self.alone = Alone(space, self.units) if rest else None
        self.net: TimeNet = config.net.build(space, self.teller, outputs, rest)

    @property
    def learns_variance(self) -> bool:
        return False

    def predict(self, z: Tensor, t: Tensor, told: Told | None = None) -> Prediction:
        return self.predict_at(z, self.schedule.log_snr(t), told)

    def predict_at(self, z: Tensor, log_snr: Tensor, told: Told | None = None) -> Prediction:
        """What is known of z (B, D) at a log-SNR (B,)."""
        told = self.teller.nothing(len(z)) if told is None else told
        alpha, sigma = columns(self.schedule, log_snr)
        guess = None if self.alone is None else self.alone(z, alpha, sigma)
        size = (alpha.square() + sigma.square()).sqrt()
        out, share = self.net(z / size, log_snr, told, guess and guess[0]), None
        if self.learns_variance:
            out, share = out.chunk(2, 1)
            share = share.sigmoid()
        if guess is not None:
            return Prediction(z, alpha, sigma, "x0", guess[0] + guess[1] * out, share)
        aim = self.config.target
        assert aim != "rest", "which has a guess"
        return Prediction(z, alpha, sigma, aim, out / sigma if aim == "score" else out, share)

    def initialise_from_data(self, batch: Batch) -> None:
        if self.alone is not None:
            self.alone.fit(self.enter(batch))

    def hint(self, batch: Batch) -> Told:
        """What training tells: all conditions of a row, or none in a share of rows."""
        told = self.tell(batch.given, len(batch))
        if not (self.space.given and self.config.drop):
            return told
        return told.hidden(torch.rand(len(batch), device=batch.x.device) >= self.config.drop)

    def shares(self, n: int) -> Tensor:
        """Numbers in [0, 1), one in each n-th of it: the times of a batch, (n,)."""
        like = self.units.scale
        start = torch.rand((), dtype=like.dtype, device=like.device)
        return (torch.arange(n, dtype=like.dtype, device=like.device) + start) / n

    def enter(self, batch: Batch) -> Tensor:
        """Rows as numbers near one, (B, D)."""
        check_whole(self.name, batch)
        return self.units.enter(batch.x)

    def look(self, y: Tensor, noise: Tensor, log_snr: Tensor, told: Told) -> Prediction:
        """What is known of z = alpha y + sigma eps at a log-SNR (B,)."""
        alpha, sigma = columns(self.schedule, log_snr)
        return self.predict_at(alpha * y + sigma * noise, log_snr, told)

    def score(self, batch: Batch | Tensor, t: Tensor | None = None) -> Tensor:
        """Of x + (sigma / alpha) noise in standardised units at times t (B,), or of x at t = 0."""
        batch = as_batch(batch)
        y = self.enter(batch)
        t = y.new_zeros(len(y)) if t is None else t.to(y)
        alpha = self.schedule.alpha(t)[:, None]
        found = self.predict(alpha * y, t, self.tell(batch.given, len(y)))
        return (alpha * found.score / self.units.scale).reshape(batch.x.shape)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, Diffusion.LikelihoodConfig), "a score is asked for with Scoring"
        found = [self.account(piece, options, seed_of(generator)) for piece in self.pieces(batch)]
        errors = [each.stderr for each in found if each.stderr is not None]
        return Likelihood(
            torch.cat([each.value for each in found]),
            found[0].kind,
            torch.cat(errors) if errors else None,
            found[0].told,
        )

    def account(self, batch: Batch, options: LikelihoodConfig, seed: int) -> Likelihood:
        if options.method == "bound":
            terms = bound(self.asked(batch, seed), self.draws(options))
            return Likelihood(terms.value, "bound", terms.stderr, self.told(options))
        dims, probes = self.space.dims, None
        if options.trace == "hutchinson" or (options.trace == "auto" and dims > FEW):
            probes = draw_probes(batch.rows, options.probes, (dims,), derive_seed(seed, "probes"))
            probes = probes.to(self.units.scale.dtype)
        solver = Solver(tolerance=options.tolerance)
        value, error = mean_and_error(flow(self.asked(batch, seed), solver, probes))
        return Likelihood(value, "estimate", error, self.told(options, probes is None))

    def told(self, options: LikelihoodConfig, exact: bool = False) -> str:
        """By what draws and to what tolerance a score comes about."""
        if options.method == "bound":
            over = f"{self.steps} steps" if self.steps else "continuous time"
            return (
                f"denoising bound over {over}, {self.draws(options)} draws of time and noise a row"
            )
        some = (
            "one random direction"
            if options.probes == 1
            else f"{options.probes} random directions"
        )
        trace = "exact trace" if exact else f"trace along {some} a row"
        return f"probability flow, error of a step {options.tolerance:g}, {trace}"

    def draws(self, options: LikelihoodConfig) -> int:
        return options.samples or min(max(MOST // max(self.space.dims, 1), LEAST), CAP)

    def terms(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """Prior, reconstruction, and the diffusion term by the log-SNR at which it arises: that
        of continuous time, and what a number of steps adds to it."""
        found = self.accounts(batch, options, generator)
        if not self.steps:
            return found.named()
        flowing = self.accounts(batch, options, generator, flowing=True)
        gap = found.diffusion - flowing.diffusion
        return {**flowing.named(), f"gap of {self.steps} steps": gap}

    def accounts(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
        flowing: bool = False,
    ) -> Terms:
        """The bound in its parts; `flowing` asks for that of continuous time."""
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, Diffusion.LikelihoodConfig), "a score is asked for with Scoring"
        asked = [self.asked(piece, seed_of(generator)) for piece in self.pieces(batch)]
        asked = [replace(each, steps=0) for each in asked] if flowing else asked
        found = [bound(each, self.draws(options)) for each in asked]
        return together(found)

    def asked(self, batch: Batch, seed: int) -> Asked:
        y, told = self.enter(batch), self.tell(batch.given, len(batch))
        return Asked(
            lambda z, log_snr: self.predict_at(z, log_snr, told),
            self.schedule,
            self.units,
            y,
            batch.rows,
            seed,
            self.steps,
            self.variance,
        )

    def pieces(self, batch: Batch) -> list[Batch]:
        """Rows in pieces that the network reads at once."""
        batch = replace(batch, row=batch.rows)
        most = max(1, ENTRIES // max(self.space.dims, 1))
        return batch.chunk(max(1, math.ceil(len(batch) / most)))
