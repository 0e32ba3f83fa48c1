"""The model card of a run: what the law is, what it saw, how it did."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.abilities import Finding
from ..core.space import Space
from .diagnostics import sentence


def card(
    about: Mapping[str, Any],
    law: str | None,
    space: Space,
    result: Mapping[str, Any],
    helpers: Mapping[str, str] | None = None,
    findings: Sequence[Finding] | None = None,
) -> str:
    """Markdown, from what run.json and the best checkpoint say; `helpers` are the titles of the
    runs it stands on, by the field that names each; `findings` are None where nobody looked."""
    held = result["held_out"]
    score = "none"
    if held:
        score = f"{held['value']:.4f} ± {held['stderr']:.4f} {held['unit']} ({held['kind']})"
    if result.get("refit"):
        score += f", before the refit\n\n{retold(result['refit'])}"
    return CARD.format(
        model=about["model"],
        data=about["data"]["name"],
        law=inspect.cleandoc(law or ""),
        space=space,
        rows=space.rows,
        fingerprint=about["data"]["fingerprint"][:16],
        score=score,
        steps=result["step"],
        seconds=result["seconds"],
        stopped=result["stopped"],
        seed=about["seed"],
        monge=about["monge"],
        torch=about["torch"],
        parts="".join(f"\nPart {field}: {title}\n" for field, title in (helpers or {}).items()),
        findings=told(findings),
        config=listed(about["config"]),
        recipe=listed(about["recipe"]),
    )


def told(findings: Sequence[Finding] | None) -> str:
    """What the doctor says."""
    if findings is None:
        return "Not examined yet; `monge evaluate` examines the fit"
    return "\n".join(f"- {sentence(finding)}" for finding in findings) or "Nothing ails the fit"


def retold(refit: Mapping[str, Any]) -> str:
    """What came of the training that was to follow the fit."""
    if refit["done"]:
        return (
            f"Refit ({refit['way']}): {refit['steps']} steps on all {refit['rows']} training "
            "and held-out rows; nothing was held out to judge these weights by"
        )
    if refit["of"] is None:
        return (
            f"Refit ({refit['way']}): not reached, since the fit did not end by patience; "
            "these are the weights of the fit"
        )
    return (
        f"Refit ({refit['way']}): cut after {refit['steps']} of {refit['of']} steps; these "
        "are the weights of the fit, and resuming goes on with the refit"
    )


def listed(config: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in config.items() if name != "is")


CARD = """# {model} on {data}

{law}

## Data

{space}; {rows} training rows; fingerprint {fingerprint}

## Fit

Held out: {score}

{steps} steps in {seconds:.1f} s, ended by {stopped}; seed {seed}; Monge {monge}, torch {torch}

## Findings

{findings}

## Model
{parts}
{config}

## Training

{recipe}
"""
