"""Diagnostics of a fit, stored with the run.

Three sources: the log (over-fitting, a budget that ended too early, oscillation), the model's own
findings on held-out rows and samples, and gradient norms from layer to layer. A finding names the
problem, its evidence and a remedy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import data
from ..core.abilities import Finding
from ..core.errors import RunError
from ..core.model import Model
from ..evaluate.held_out import HeldOutRows
from ..evaluate.likelihood import home
from ..evaluate.samples import oscillation
from ..evaluate.suite import findings
from ..train.gradient_profile import alarms, profile
from .storage import with_format, write

FILE = "findings.json"
GRADIENT_ROWS = 64
"""Rows over which gradient norms are computed."""
MIN_GRADIENT_STEPS = 20
"""Steps before gradients are informative: layers initialised at zero pass none on."""
CHECKS = 3
"""Held-out scores after the best that must all be worse for a fit to count as over-fitted."""
WORSE, BETTER = 0.5, 0.1
"""Standard errors by which a score must fall, or rise, to be reported."""
NATS = ("exact", "bound", "estimate")


def diagnose(
    model: Model,
    rows: HeldOutRows,
    log: Iterable[Mapping[str, Any]],
    result: Mapping[str, Any],
    train: data.Split | None = None,
) -> list[Finding]:
    """All findings: of the log and result, the model on held-out rows, and its samples compared
    with training rows."""
    if not len(rows):
        return diagnose_log(list(log), result)
    few = rows.batch(torch.arange(min(len(rows), GRADIENT_ROWS))).to(home(model))
    begun = result.get("step", MIN_GRADIENT_STEPS) >= MIN_GRADIENT_STEPS
    density = None if train is None else train.density
    return [
        *diagnose_log(list(log), result),
        *findings(model, rows, train, density),
        *(alarms(profile(model, few)) if begun else []),
    ]


def diagnose_log(log: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[Finding]:
    """Findings of the training log."""
    checks = [
        line
        for line in log
        if line["held_out"]
        and line["held_out"]["kind"] in NATS
        and line["held_out"]["value"] is not None
    ]
    found = [over_fitted(checks), cut_short(checks, result)] if len(checks) > CHECKS else []
    return [finding for finding in found if finding] + oscillation(log)


def over_fitted(checks: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Held-out rows got steadily worse after the best while the training loss fell."""
    values = [line["held_out"]["value"] for line in checks]
    best = max(range(len(values)), key=values.__getitem__)
    later = values[best + 1 :]
    least = WORSE * checks[best]["held_out"]["stderr"]
    if len(later) < CHECKS or not values[best] - max(later[-CHECKS:]) > least:
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
    recent = values[-CHECKS:]
    rising = recent == sorted(set(recent)) and recent[-1] == max(values)
    gain = recent[-1] - values[-CHECKS - 1]
    least = BETTER * checks[-1]["held_out"]["stderr"]
    if result["stopped"] != "budget" or not (rising and gain > least):
        return None
    return Finding(
        "stopped early",
        f"the held-out score was still rising, by {gain:.4g} nats per row "
        f"over the last {CHECKS} evaluations, when the budget ended",
        "resume with `monge fit --resume RUN --budget +2m`",
    )


def loss(line: Mapping[str, Any]) -> float:
    return sum(line["terms"].values())


def save_findings(folder: Path, found: Sequence[Finding], step: int) -> None:
    """Write the findings about the weights of this step."""
    told = with_format({"step": step, "findings": [vars(finding) for finding in found]})
    write(folder / FILE, json.dumps(told, indent=1) + "\n")


def saved_findings(folder: Path, step: int) -> list[Finding] | None:
    """The stored findings about the weights of this step, or None."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return [Finding(**each) for each in told["findings"]] if told["step"] == step else None
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path} cannot be read ({error}); delete it to diagnose the run again"
        ) from error


def sentence(finding: Finding) -> str:
    """One finding as a sentence."""
    return f"{finding.name}: {finding.sentence.rstrip('.')}; {finding.remedy.rstrip('.')}."
