"""A formula walked through with numbers: attention

`monge explain attention "the cat sat"` prints the six steps of self-attention and draws them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError, nearest
from ._output import Console, common
from ._writers import OUTPUT

if TYPE_CHECKING:
    from ._attention_steps import Step


TOPICS = ("attention",)
MOST = 12
"""Tokens whose matrices still fit a screen."""


@click.command("explain")
@click.argument("topic")
@click.argument("text", default="the cat sat on the mat")
@click.option("--causal", is_flag=True, help="Let each token look at itself and those before it.")
@click.option(
    "-o",
    "--out",
    type=OUTPUT,
    default="attention.png",
    show_default=True,
    help="Where the steps are drawn.",
)
@click.option("--seed", default=0, show_default=True, help="Of vectors and weights.")
@common
def command(voice: Console, topic: str, text: str, causal: bool, out: Path, seed: int) -> None:
    """Walk through TOPIC (attention) on the words of TEXT."""
    if topic not in TOPICS:
        raise UsageError(f"there is no topic {topic!r}{nearest(topic, TOPICS)}")
    from ..data.codecs.tokens import WORDS
    from ..plot.attention import write_steps
    from ._attention_steps import attention

    tokens = [word.strip() for word in WORDS.findall(text) if word.strip()]
    if not 0 < len(tokens) <= MOST:
        raise UsageError(
            f"the text has {len(tokens)} words, and what is shown has 1 to {MOST}; give another"
        )
    if out.suffix != ".png":
        raise UsageError(f"the steps are drawn as a .png, not {out.suffix or 'without a suffix'}")
    steps = attention(tokens, causal, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_steps(
        out,
        tokens,
        {name: values.numpy() for step in steps for name, values in step.values.items()},
    )
    told = {
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
    voice.result(told, "\n\n".join([*(printed(voice, step, tokens) for step in steps), str(out)]))


def printed(voice: Console, step: Step, tokens: list[str]) -> str:
    """The step's matrices as tables."""
    parts = [f"{step.name}:  {step.formula}"]
    for name, values in step.values.items():
        wide = name[0] in "SA"  # scores and weights have a column for each token
        head = [name, *(tokens if wide else map(str, range(1, values.shape[1] + 1)))]
        rows = [
            [token, *(f"{float(value):.3f}" for value in row)]
            for token, row in zip(tokens, values, strict=True)
        ]
        parts.append(voice.table(head, rows))
    return "\n".join(parts)
