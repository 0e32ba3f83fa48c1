"""Text drawn from a run: told symbol by symbol in the terminal, or written to a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError
from ..core.files import replacing
from ._output import Console

if TYPE_CHECKING:
    from ..run.run import Run


BROKEN = "\ufffd"
"""What stands for a character of which only some bytes are told yet."""


def speak(
    voice: Console,
    run: Run,
    prompt: str,
    count: int | None,
    out: Path | None,
    words: Sequence[str],
    seed: int,
) -> None:
    """Texts that begin with a prompt. One is shown as it comes about; several when they are whole,
    each on a line of its own or, where a text has lines itself, with a line between them."""
    from ..run.text import codec_of, continue_text

    if out and out.suffix != ".txt":
        raise UsageError(f"text is written to a .txt, not to {out.name}; rename it")
    ends = codec_of(run).ends
    count = count or (16 if ends and not prompt else 1)
    states = continue_text(run, prompt, count, words, seed)
    shown = out is None and count == 1 and not voice.as_json
    texts = show(states) if shown else last(states)
    between = "\n" if ends else "\n\n---\n\n"
    told = {"run": str(run.folder), "n": count, "samples": texts}
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as fresh:
            fresh.write_text(between.join(texts) + "\n", encoding="utf-8")
        told |= {"file": str(out), "files": [str(out)]}
    voice.result(told, str(out) if out else None if shown else between.join(texts))


def show(states: Iterator[list[str]]) -> list[str]:
    """Print what is new of the only text at each state."""
    done, text = 0, ""
    for (text,) in states:
        whole = text.rstrip(BROKEN)
        click.echo(whole[done:], nl=False)
        done = max(done, len(whole))
    click.echo(text[done:])
    return [text]


def last(states: Iterator[list[str]]) -> list[str]:
    *_, texts = states
    return texts
