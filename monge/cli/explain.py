"""Explain a formula step by step with numbers: attention

`monge explain attention "the cat sat"` prints the six steps of self-attention and plots them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError, nearest
from ._output import SEED, Console, Output, common

if TYPE_CHECKING:
    from ._attention_steps import AttentionStep


TOPICS = ("attention",)
MAX_TOKENS = 12
"""Tokens whose matrices fit a screen."""


@click.command("explain")
@click.argument("topic")
@click.argument("text", default="the cat sat on the mat")
@click.option(
    "--causal", is_flag=True, help="Let each token attend to itself and earlier tokens only."
)
@click.option(
    "-o",
    "--out",
    type=Output(".png"),
    default="attention.png",
    show_default=True,
    help="File of the plot.",
)
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Seed of the vectors and weights."
)
@common
def command(console: Console, topic: str, text: str, causal: bool, out: Path, seed: int) -> None:
    """Explain TOPIC (attention) on the words of TEXT."""
    if topic not in TOPICS:
        raise UsageError(f"there is no topic {topic!r}{nearest(topic, TOPICS)}")
    from ..data.codecs.tokens import WORDS
    from ..plot.attention import write_steps
    from ._attention_steps import attention_steps

    tokens = [word.strip() for word in WORDS.findall(text) if word.strip()]
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise UsageError(
            f"expected a text of 1 to {MAX_TOKENS} words, found {len(tokens)}; shorten it"
        )
    steps = attention_steps(tokens, causal, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_steps(
        out,
        tokens,
        {name: values.numpy() for step in steps for name, values in step.values.items()},
    )
    result = {
        "tokens": tokens,
        "file": str(out),
        "steps": [
            {
                "name": step.name,
                "formula": step.formula,
                **{name: values.tolist() for name, values in step.values.items()},
            }
            for step in steps
        ],
    }
    console.result(
        result, "\n\n".join([*(format_step(console, step, tokens) for step in steps), str(out)])
    )


def format_step(console: Console, step: AttentionStep, tokens: list[str]) -> str:
    """The matrices of a step as tables."""
    parts = [f"{step.name}:  {step.formula}"]
    for name, values in step.values.items():
        wide = name[0] in "SA"  # scores and weights have a column for each token
        head = [name, *(tokens if wide else map(str, range(1, values.shape[1] + 1)))]
        rows = [
            [token, *(f"{float(value):.3f}" for value in row)]
            for token, row in zip(tokens, values, strict=True)
        ]
        parts.append(console.table(head, rows))
    return "\n".join(parts)
