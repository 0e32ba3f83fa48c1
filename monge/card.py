"""The model card of a run: what the law is, what it saw, how it did."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from .core.space import Space


def card(about: Mapping[str, Any], law: str | None, space: Space,
         result: Mapping[str, Any]) -> str:
    """Markdown, from what run.json and the best checkpoint say."""
    held = result["held_out"]
    score = "none"
    if held:
        score = f"{held['value']:.4f} ± {held['stderr']:.4f} {held['unit']} ({held['kind']})"
    return CARD.format(
        model=about["model"], data=about["data"]["name"], law=inspect.cleandoc(law or ""),
        space=space, rows=space.rows, fingerprint=about["data"]["fingerprint"][:16], score=score,
        steps=result["step"], seconds=result["seconds"], stopped=result["stopped"],
        seed=about["seed"], monge=about["monge"], torch=about["torch"],
        config=listed(about["config"]), recipe=listed(about["recipe"]))


def listed(config: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in config.items() if name != "is")


CARD = """# {model} on {data}

{law}

## Data

{space}; {rows} training rows; fingerprint {fingerprint}

## Fit

Held out: {score}

{steps} steps in {seconds:.1f} s, ended by {stopped}; seed {seed}; Monge {monge}, torch {torch}

## Model

{config}

## Training

{recipe}
"""
