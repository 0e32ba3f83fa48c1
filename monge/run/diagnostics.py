"""Diagnostics of a fit, stored with the run.

Three sources: the log (over-fitting, a budget that ended too early, oscillation), the model's own
findings on held-out rows and samples, and gradient norms from layer to layer. A finding names the
problem, its evidence and a remedy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import registry
from ..core.abilities import CanDiagnose, CanSample, Finding, HasLikelihood
from ..core.errors import DataError, RunError
from ..core.gaussian_modes import GaussianModes
from ..core.model import Model, device_of
from ..core.rng import make_generator
from ..core.space import Space
from ..data.batches import Split
from ..evaluate.c2st import MIN_TEST_ROWS
from ..evaluate.coverage import duplicates, memorised, modes, prdc
from ..evaluate.likelihood import HeldOutRows, row_subset
from ..evaluate.samples import COPIED_FROM, Density, SampleComparison, spread
from ..evaluate.suite import is_point
from ..train.gradient_profile import alarms, profile
from .storage import with_format, write

FILE = "findings.json"
GRADIENT_ROWS = 64
"""Rows over which gradient norms are computed."""
MIN_GRADIENT_STEPS = 20
"""Steps before gradients are informative: layers initialised at zero pass none on."""
MIN_LATER_SCORES = 3
"""Held-out scores after the best that must all be worse for a fit to count as over-fitted."""
MIN_FALL, MIN_RISE = 0.5, 0.1
"""Standard errors by which a score must fall, or rise, to be reported."""
LIKELIHOOD_KINDS = ("exact", "bound", "estimate")
DIAGNOSED_SAMPLES = 1000
"""Samples that are compared with rows."""
MIN_RELATIVE_SHARE = 0.5
"""Share of the training rows' value below which a metric of samples is reported."""
MAX_COPIED_SHARE = 0.2
"""Share of copied samples above which it is reported."""
FEW_EPOCHS, MANY_STEPS = 3, 2000
"""Epochs below which training barely began, unless it had this many steps."""
BASELINE = "baseline.independent"
"""The model that ignores how entries depend on one another: every fit should beat it."""
BASELINE_ROWS, BASELINE_ENTRIES = 5000, 2**22
"""Most training rows, and entries of them, that the baseline is fitted to."""
OSCILLATION, MIN_OSCILLATION_SCORES = 0.5, 8
"""Relative change between held-out scores that counts as oscillation, and the least number of
scores."""


def diagnose(
    model: Model,
    rows: HeldOutRows,
    log: Iterable[Mapping[str, Any]],
    result: Mapping[str, Any],
    train: Split | None = None,
) -> list[Finding]:
    """All findings: of the log and result, the model on held-out rows, and its samples compared
    with training rows."""
    history = list(log)
    early = barely_began(history, result)
    found = early + diagnose_log(history, result)
    if not len(rows):
        return found
    if train is not None:
        found += worse_than_trivial(model, rows, None if early else train, result)
    few = rows.batch(torch.arange(min(len(rows), GRADIENT_ROWS))).to(device_of(model))
    informative = result.get("step", MIN_GRADIENT_STEPS) >= MIN_GRADIENT_STEPS
    with torch.no_grad():
        if isinstance(model, CanDiagnose):
            found += model.diagnose(row_subset(rows).to(device_of(model)))
        if train is not None:
            found += diagnose_samples(model, rows, train, train.density)
    return found + (alarms(profile(model, few)) if informative else [])


def barely_began(log: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[Finding]:
    """The budget ended, or training was interrupted, within the first epochs."""
    epochs = max((line["epoch"] for line in log), default=math.inf)
    step = result.get("step", MANY_STEPS)
    if result["stopped"] not in ("budget", "asked") or epochs >= FEW_EPOCHS or step >= MANY_STEPS:
        return []
    return [
        Finding(
            "barely trained",
            f"training ended after {epochs:.2g} epoch{'s' * (epochs != 1)} "
            f"({step} step{'s' * (step != 1)}): the model has hardly begun to learn",
            "resume with `monge fit --resume RUN --budget +5m`",
        )
    ]


def worse_than_trivial(
    model: Model, rows: HeldOutRows, train: Split | None, result: Mapping[str, Any]
) -> list[Finding]:
    """A held-out log-likelihood below that of the uniform code, or of independent entries that
    are fitted to training rows, if there are some."""
    held = result.get("held_out") or {}
    value, space = held.get("value"), model.space
    if held.get("kind") not in LIKELIHOOD_KINDS or value is None or not math.isfinite(value):
        return []
    uniform = uniform_code(space)
    more = "train longer: resume with `monge fit --resume RUN --budget +5m`"
    if uniform is not None and value < uniform:
        bits, least = (-nats / (space.dims * math.log(2)) for nats in (value, uniform))
        return [
            Finding(
                "worse than the uniform code",
                f"{bits:.3g} bits/dim on held-out rows, where guessing every value with equal "
                f"probability takes {least:.3g}",
                more,
            )
        ]
    base = None if train is None else independent_baseline(model, rows, train)
    if base is None or not value < base - 2 * (held.get("stderr") or 0.0):
        return []
    return [
        Finding(
            "worse than independent entries",
            f"the held-out log-likelihood is {value:.4g} nats per row, where {BASELINE}, which "
            f"ignores how entries depend on one another, has {base:.4g}",
            f"{more}, or start with that model or baseline.chow_liu",
        )
    ]


def uniform_code(space: Space) -> float | None:
    """The log-likelihood of a row under equal probabilities; None if values are not finitely
    many or rows differ in length."""
    sizes = [2 if part.kind == "binary" else part.size for part in space.columns or (space,)]
    if space.varies or not all(sizes):
        return None
    times = 1 if space.columns else space.dims
    return -times * sum(math.log(size) for size in sizes)


def independent_baseline(model: Model, rows: HeldOutRows, train: Split) -> float | None:
    """The held-out log-likelihood of independent entries; None for models without gradients and
    for data that the baseline does not take."""
    space = model.space
    if not any(param.requires_grad for param in model.parameters()) or space.varies:
        return None
    owner = registry.find(BASELINE)
    try:
        registry.check_compatible(BASELINE, owner, space)
    except DataError:
        return None
    count = min(len(train), BASELINE_ROWS, max(BASELINE_ENTRIES // max(space.dims, 1), 100))
    index = torch.linspace(0, len(train) - 1, count).long()
    base = owner.defaults(space).config.build(space)
    base.updates()[0].loss(train.batch(index))
    return float(base.likelihood(row_subset(rows)).value.mean())


def diagnose_log(log: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[Finding]:
    """Findings of the training log."""
    checks = [
        line
        for line in log
        if line["held_out"]
        and line["held_out"]["kind"] in LIKELIHOOD_KINDS
        and line["held_out"]["value"] is not None
    ]
    found = (
        [over_fitted(checks), cut_short(checks, result)] if len(checks) > MIN_LATER_SCORES else []
    )
    return [finding for finding in found if finding] + oscillation(log)


def over_fitted(checks: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Held-out rows got steadily worse after the best while the training loss fell."""
    values = [line["held_out"]["value"] for line in checks]
    best = max(range(len(values)), key=values.__getitem__)
    later = values[best + 1 :]
    least = MIN_FALL * checks[best]["held_out"]["stderr"]
    if len(later) < MIN_LATER_SCORES or not values[best] - max(later[-MIN_LATER_SCORES:]) > least:
        return None
    then, now = loss(checks[best]), loss(checks[-1])
    if not now < then:
        return None
    return Finding(
        "over-fitting",
        f"after step {checks[best]['step']} the held-out score fell from "
        f"{values[best]:.4g} to {later[-1]:.4g} nats per row while the training loss fell from "
        f"{then:.4g} to {now:.4g}; the weights of step {checks[best]['step']} are used",
        "use more rows, data.augment, dropout, train.weight_decay or a smaller network",
    )


def cut_short(checks: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> Finding | None:
    """The budget ended while the held-out score was still rising."""
    values = [line["held_out"]["value"] for line in checks]
    recent = values[-MIN_LATER_SCORES:]
    rising = recent == sorted(set(recent)) and recent[-1] == max(values)
    gain = recent[-1] - values[-MIN_LATER_SCORES - 1]
    least = MIN_RISE * checks[-1]["held_out"]["stderr"]
    if result["stopped"] != "budget" or not (rising and gain > least):
        return None
    return Finding(
        "stopped early",
        f"the held-out score was still rising, by {gain:.4g} nats per row "
        f"over the last {MIN_LATER_SCORES} evaluations, when the budget ended",
        "resume with `monge fit --resume RUN --budget +2m`",
    )


def oscillation(log: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """A held-out distance that oscillates and no longer improves."""
    checks = [
        line["held_out"]
        for line in log
        if line["held_out"] and line["held_out"]["kind"] == "distance"
    ]
    if len(checks) < MIN_OSCILLATION_SCORES:
        return []
    late = torch.tensor([check["value"] for check in checks[len(checks) // 2 :]])
    error = max(check["stderr"] or 0.0 for check in checks)
    jump = float(late.diff().abs().median())
    before = min(check["value"] for check in checks[: len(checks) // 2])
    if not (
        jump > OSCILLATION * float(late.median().abs())
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
            "lower train.lr, raise train.ema_decay towards 1, or set critic_steps=5",
        )
    ]


def diagnose_samples(
    model: Model, rows: HeldOutRows, train: HeldOutRows, density: Density | None
) -> list[Finding]:
    """Mode collapse, poor samples, duplicates and memorisation of a model without likelihood, by
    comparing its samples with held-out and training rows."""
    if (
        isinstance(model, HasLikelihood)
        or not isinstance(model, CanSample)
        or not is_point(model.space)
        or min(len(rows), len(train)) < MIN_TEST_ROWS
    ):
        return []
    few, others = row_subset(rows)[:DIAGNOSED_SAMPLES], row_subset(train, COPIED_FROM)
    every, device = few[torch.arange(DIAGNOSED_SAMPLES) % len(few)], device_of(model)
    given = every.to(device).given
    x = model.sample(len(every), given, generator=make_generator(0, device)).cpu()
    compared = SampleComparison.at(model, x, every, others)
    return sample_findings(compared, density, SampleComparison.at(model, few.x, few, others).real)


def sample_findings(
    compared: SampleComparison, density: Density | None, held_out: Tensor
) -> list[Finding]:
    """Findings of metrics that fall far short of those of training rows."""
    n = min(len(held_out), len(compared.train))
    held = spread(held_out, n)
    found, ideal = (prdc(held, spread(side, n)) for side in (compared.fake, compared.train))
    part = {name: found[name].value / max(ideal[name].value, 1e-9) for name in found}
    seen = (
        modes(compared.x, density)["modes_found"] if isinstance(density, GaussianModes) else None
    )
    double = duplicates(compared.fake, held_out).value
    copied = memorised(compared.fake, held_out, compared.train).value
    few = max(part["coverage"], part["recall"]) < MIN_RELATIVE_SHARE or (
        seen is not None and f"of {int(seen.value)}" != seen.unit
    )
    count = f", {int(seen.value)} {seen.unit} modes found" if seen else ""
    return [
        finding
        for applies, finding in (
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
                part["precision"] < MIN_RELATIVE_SHARE,
                Finding(
                    "implausible samples",
                    f"{found['precision'].value:.0%} of samples lie where "
                    f"held-out rows do, of training rows {ideal['precision'].value:.0%}",
                    "train longer, or give a larger network",
                ),
            ),
            (
                double > MAX_COPIED_SHARE,
                Finding(
                    "duplicates",
                    f"{double:.0%} of samples are nearer to another sample than 99% of real "
                    "rows are to one another",
                    "give a larger latent, or train with adversarial.wgan",
                ),
            ),
            (
                copied > MAX_COPIED_SHARE,
                Finding(
                    "memorisation",
                    f"{copied:.0%} of samples are nearer to a training row than 99% of "
                    "held-out rows are",
                    "give more rows or data.augment, or a smaller generator",
                ),
            ),
        )
        if applies
    ]


def loss(line: Mapping[str, Any]) -> float:
    return sum(line["terms"].values())


def save_findings(folder: Path, found: Sequence[Finding], step: int) -> None:
    """Write the findings about the weights of this step."""
    stored = with_format({"step": step, "findings": [vars(finding) for finding in found]})
    write(folder / FILE, json.dumps(stored, indent=1) + "\n")


def saved_findings(folder: Path, step: int) -> list[Finding] | None:
    """The stored findings about the weights of this step, or None."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = [Finding(**each) for each in stored["findings"]]
        if not all(isinstance(text, str) for each in found for text in vars(each).values()):
            raise ValueError("expected text in every finding")
        return found if stored["step"] == step else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(
            f"{path} cannot be read ({error}); delete it to diagnose the run again"
        ) from error


def sentence(finding: Finding) -> str:
    """One finding as a sentence."""
    parts = (finding.sentence.rstrip("."), finding.remedy.rstrip("."))
    return f"{finding.name}: {'; '.join(filter(None, parts))}."
