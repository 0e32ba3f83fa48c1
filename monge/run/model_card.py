"""The model card of a run: model, data, fit, findings and settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.abilities import Finding
from ..core.space import Space
from . import storage
from .diagnostics import sentence
from .session import STOP_REASONS


def card(
    about: Mapping[str, Any],
    description: str | None,
    space: Space,
    result: Mapping[str, Any],
    helpers: Mapping[str, str] | None = None,
    findings: Sequence[Finding] | None = None,
) -> str:
    """Markdown from run.json and the best checkpoint; `helpers` are the titles of its submodels
    by field; `findings` is None if the fit has not been diagnosed."""
    held = result["held_out"]
    score = "none"
    if held:
        score = f"{held['value']:.4f} ± {held['stderr']:.4f} {held['unit']} ({held['kind']})"
    if result.get("refit"):
        score += f", before the refit\n\n{refit_summary(result['refit'])}"
    return CARD.format(
        model=about["model"],
        data=storage.data_name(about),
        description=inspect.cleandoc(description or ""),
        space=space,
        rows=space.rows,
        fingerprint=about["data"]["fingerprint"][:16],
        score=score,
        steps=f"{result['step']} step{'s' * (result['step'] != 1)}",
        seconds=result["seconds"],
        stopped=STOP_REASONS.get(result["stopped"], result["stopped"]),
        seed=about["seed"],
        monge=about["monge"],
        torch=about["torch"],
        parts="".join(
            f"\nSubmodel {field}: {title}\n" for field, title in (helpers or {}).items()
        ),
        findings=findings_text(findings),
        config=listed(about["config"]),
        train_config=listed(about["train"]),
    )


def findings_text(findings: Sequence[Finding] | None) -> str:
    """The findings as a list."""
    if findings is None:
        return "Not diagnosed yet; run `monge evaluate`"
    return "\n".join(f"- {sentence(finding)}" for finding in findings) or "No problems found"


def refit_summary(refit: Mapping[str, Any]) -> str:
    """The outcome of the refit in one sentence."""
    if refit["done"]:
        return (
            f"Refit ({refit['way']}): {refit['steps']} steps on all {refit['rows']} training "
            "and held-out rows; no held-out rows are left to evaluate these weights"
        )
    if refit["of"] is None:
        return (
            f"Refit ({refit['way']}): not started, because early stopping did not end the fit; "
            "these are the weights of the fit"
        )
    return (
        f"Refit ({refit['way']}): interrupted after {refit['steps']} of {refit['of']} steps; "
        "these are the weights of the fit; resume to finish the refit"
    )


def listed(config: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in config.items() if name != "is")


CARD = """# {model} on {data}

{description}

## Data

{space}; {rows} training rows; fingerprint {fingerprint}

## Fit

Held out: {score}

{steps} in {seconds:.1f} s: {stopped}; seed {seed}; Monge {monge}, torch {torch}

## Findings

{findings}

## Model
{parts}
{config}

## Training

{train_config}
"""
