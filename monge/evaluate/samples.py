"""Metrics and diagnostics that need only samples, with training rows as the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.abilities import CanSample, Finding, HasLikelihood
from ..core.batch import Batch
from ..core.gaussian_modes import GaussianModes
from ..core.metric import Metric
from ..core.model import Model
from ..core.rng import make_generator
from .c2st import MIN_TEST_ROWS, c2st
from .coverage import LEVEL, duplicates, memorised, modes, prdc
from .energy_distance import FeatureMap
from .likelihood import home
from .two_sample import large_sample_distances

Density = Callable[[Tensor], Tensor]
REAL = "_of_real_rows"
"""Suffix of a reference metric: training rows in place of samples."""
CLOSE, NUMBERS = 500, 1 << 20
"""Most rows, and elements, of each side of a jackknifed distance."""
DRAWN = 1000
"""Samples that are diagnosed."""
FAR = 0.5
"""Share of the training rows' value below which a metric of samples is reported."""
COPIED = 0.2
"""Share of copied samples above which it is reported."""
SWINGS, CHECKS = 0.5, 8
"""Relative change between held-out scores that counts as oscillation, and the least number of
scores."""


@dataclass(frozen=True)
class SampleComparison:
    """Samples beside held-out rows and training rows, all as points (n, F)."""

    fake: Tensor
    real: Tensor
    train: Tensor
    x: Tensor  # the samples as they are, (n, *event)
    truth: Tensor  # the held-out rows as they are

    @classmethod
    def at(cls, model: Model, x: Tensor, rows: Batch, train: Batch) -> SampleComparison:
        eye = FeatureMap.of(model, model.space)
        return cls(eye(Batch(x, given=rows.given)), eye(rows), eye(train), x, rows.x)


def sample_metrics(
    look: SampleComparison, density: Density | None, seed: int = 0
) -> dict[str, Metric]:
    """Metrics of samples, followed by their references if they have one."""
    n, found = min(len(look.real), len(look.fake)), dict[str, Metric]()
    real, fake, train = (spread(side, n) for side in (look.real, look.fake, look.train))
    if min(len(real), len(train)) >= MIN_TEST_ROWS:
        few = min(CLOSE, max(NUMBERS // real.shape[1], MIN_TEST_ROWS))
        near = spread(real, few)
        found |= with_references(
            *(large_sample_distances(spread(side, few), near, seed) for side in (fake, train))
        )
        found |= with_references(*({"c2st": c2st(side, real, seed)} for side in (fake, train)))
        found |= with_references(*(prdc(real, side) for side in (fake, train)))
        copied = {
            "memorised": memorised(look.fake, look.real, look.train),
            "duplicates": duplicates(look.fake, look.real),
        }
        found |= with_references(
            copied, dict.fromkeys(copied, Metric(LEVEL, "exact", 0.0, "share"))
        )
    if isinstance(density, GaussianModes):
        found |= with_references(*(modes(side, density) for side in (look.x, look.truth)))
    return found


def with_references(found: Mapping[str, Metric], ideal: Mapping[str, Metric]) -> dict[str, Metric]:
    """Each metric of samples, followed by its reference."""
    return {
        key: score
        for name in found
        for key, score in ((name, found[name]), (name + REAL, ideal[name]))
    }


def spread(rows: Tensor, n: int) -> Tensor:
    """At most n rows, evenly spaced, since neighbouring rows may be related."""
    return rows[torch.linspace(0, len(rows) - 1, min(n, len(rows))).long()]


def diagnose_samples(
    model: Model, rows: Batch, train: Batch, density: Density | None
) -> list[Finding]:
    """Mode collapse, poor samples, duplicates and memorisation of a model without likelihood."""
    if (
        isinstance(model, HasLikelihood)
        or not isinstance(model, CanSample)
        or min(len(rows), len(train)) < MIN_TEST_ROWS
    ):
        return []
    few = rows[:DRAWN]
    every = few[torch.arange(DRAWN) % len(few)]
    x = model.sample(
        len(every), every.to(home(model)).given, generator=make_generator(0, home(model))
    ).cpu()
    look = SampleComparison.at(model, x, every, train)
    return sample_findings(look, density, SampleComparison.at(model, few.x, few, train).real)


def sample_findings(
    look: SampleComparison, density: Density | None, held_out: Tensor
) -> list[Finding]:
    n = min(len(held_out), len(look.train))
    held = spread(held_out, n)
    found, ideal = (prdc(held, spread(side, n)) for side in (look.fake, look.train))
    part = {name: found[name].value / max(ideal[name].value, 1e-9) for name in found}
    seen = modes(look.x, density)["modes_found"] if isinstance(density, GaussianModes) else None
    double = duplicates(look.fake, held_out).value
    copied = memorised(look.fake, held_out, look.train).value
    few = max(part["coverage"], part["recall"]) < FAR or (
        seen is not None and f"of {int(seen.value)}" != seen.unit
    )
    count = f", {int(seen.value)} {seen.unit} modes found" if seen else ""
    return [
        finding
        for ill, finding in (
            (
                few,
                Finding(
                    "mode collapse",
                    f"samples cover {found['coverage'].value:.0%} of held-out rows, where"
                    f" training rows cover {ideal['coverage'].value:.0%}{count}",
                    "train longer, with a larger train.batch_size, or with adversarial.wgan, "
                    "whose critic penalises missing modes",
                ),
            ),
            (
                part["precision"] < FAR,
                Finding(
                    "implausible samples",
                    f"{found['precision'].value:.0%} of samples lie where "
                    f"held-out rows do, of training rows {ideal['precision'].value:.0%}",
                    "train longer, or give a larger network",
                ),
            ),
            (
                double > COPIED,
                Finding(
                    "duplicates",
                    f"{double:.0%} of samples are nearer to another sample than 99% of real "
                    "rows are to one another",
                    "give a larger latent, or train with adversarial.wgan",
                ),
            ),
            (
                copied > COPIED,
                Finding(
                    "memorisation",
                    f"{copied:.0%} of samples are nearer to a training row than 99% of "
                    "held-out rows are",
                    "give more rows or data.augment, or a smaller generator",
                ),
            ),
        )
        if ill
    ]


def oscillation(log: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """A held-out distance that oscillates and no longer improves."""
    checks = [
        line["held_out"]
        for line in log
        if line["held_out"] and line["held_out"]["kind"] == "distance"
    ]
    if len(checks) < CHECKS:
        return []
    late = torch.tensor([check["value"] for check in checks[len(checks) // 2 :]])
    error = max(check["stderr"] or 0.0 for check in checks)
    jump = float(late.diff().abs().median())
    before = min(check["value"] for check in checks[: len(checks) // 2])
    if not (
        jump > SWINGS * float(late.median().abs())
        and jump > 3 * error
        and float(late.min()) >= before
    ):
        return []
    return [
        Finding(
            "oscillation",
            f"the held-out distance changes by {jump:.3g} from one evaluation to "
            f"the next and has not improved on {before:.3g} in the second half of the "
            "fit; the best weights are kept",
            "lower train.lr, raise train.ema_decay towards 1, or set rounds=5",
        )
    ]
