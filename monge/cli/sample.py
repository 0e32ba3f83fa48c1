"""Sample from a run as images, a table, text, audio or arrays

The suffix of -o decides: .png a grid of images, points or waveforms, .csv rows, .npz arrays, .gif
an animation, .wav audio (several: out-1.wav, out-2.wav and so on), .txt text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import UsageError
from ..run.writers import PART, check_format, frame, table, write, write_tables
from ._output import SEED, Console, Output, common
from ._stream_text import sample_text

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.batch import Batch
    from ..run.run import Run


@click.command("sample")
@click.argument("run")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1),
    help="Number of samples: by default 16, or 1 per row of --given FILE.",
)
@click.option(
    "-o",
    "--out",
    type=Output(".png", ".csv", ".npz", ".txt", ".gif", ".wav"),
    help="File: .png, .csv, .npz, .txt, .gif or .wav (several: out-1.wav, out-2.wav and so on).",
)
@click.option("--prompt", help="Prompt; the text is streamed as it is generated.")
@click.option(
    "--stream",
    is_flag=True,
    help="Show samples as they are generated: in the terminal, or animated with -o NAME.gif.",
)
@click.option(
    "--given",
    multiple=True,
    metavar="NAME=VALUE|FILE",
    help="Condition for all samples, or a file with one condition per sample.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Keep rows of a table that satisfy this: sex=female, pclass=1,2, 'age>60', '20<=age<30'. "
    "Repeatable.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Same seed, same samples.")
@common
def command(
    console: Console,
    run: str,
    settings: tuple[str, ...],
    count: int | None,
    out: Path | None,
    prompt: str | None,
    stream: bool,
    given: tuple[str, ...],
    where: tuple[str, ...],
    seed: int,
) -> None:
    """Generate -n samples from RUN. KEY=VALUE sets a sampling option such as temperature=0.8;
    range=observed samples anew what lies outside the range of the training rows.

    Without -o a table is printed as csv and text as text; images and audio are saved in the
    run's figures/.
    """
    from ..core.config import Overrides
    from ..run import run as runs

    found, overrides = runs.load(run), Overrides.parse(settings)
    options = (*overrides.model, *overrides.sample)
    as_text = out is None or out.suffix == ".txt"
    if prompt is not None or (found.view.text and not found.space.given and as_text):
        sample_text(console, found, prompt or "", count, out, options, seed)
        return
    count, conditions = sample_conditions(found, count, given, options)
    for note in (*found.notes, *found.departures(*options)):
        console.note(note)
    found.notes = ()
    if stream or (out and out.suffix == ".gif"):
        states = found.stream(count, conditions, *options, seed=seed)
        show_stream(console, found, states, out)
        return
    outs = [out] if out else []
    if out is None and (found.space.is_image or found.view.sound):
        suffixes = (".wav", ".png") if found.view.sound else (".png",)
        outs = [found.folder / "figures" / f"samples{suffix}" for suffix in suffixes]
    for path in outs:
        check_format(found, path)
    if streams(found, count, out, where, options):
        write_tables(sampled_tables(found, count, conditions, options, seed), outs[0])
        result = {"run": str(found.folder), "n": count, "file": str(out), "files": [str(out)]}
        console.result(result, str(out))
        return
    if where:
        x = found.sample_where(count, where, conditions, *options, seed=seed).x
    else:
        x = found.sample_tensor(count, conditions, *options, seed=seed)
    for note in found.notes:
        console.note(note)
    if not outs:
        text = frame(found, x).to_csv(index=False).rstrip()
        console.result({"run": str(found.folder), "n": count, "samples": x.tolist()}, text)
        return
    files = [str(path) for out in outs for path in write(found, x, out)]
    result = {"run": str(found.folder), "n": count, "file": files[0], "files": files}
    console.result(result, "\n".join(files))


def streams(
    run: Run, count: int, out: Path | None, where: tuple[str, ...], options: tuple[str, ...]
) -> bool:
    """Whether samples are written while others are drawn: many rows of a table, none of which is
    thrown away."""
    rejects = where or run.view.constraints or any("range=" in word for word in options)
    return out is not None and out.suffix == ".csv" and count > PART and not rejects


def sampled_tables(
    run: Run, count: int, conditions: dict[str, Batch], options: tuple[str, ...], seed: int
) -> Iterator[Any]:
    """Samples as tables, some rows at a time, with keys that go on from one to the next."""
    schema = run.view.selection.schema
    keys = {each.name: each.fresh(count) for each in schema.row_keys}
    start = 0
    for x in run.sample_parts(count, conditions, *options, seed=seed):
        rows = slice(start, start := start + len(x))
        yield table(run, x, {name: cells[rows] for name, cells in keys.items()})


def sample_conditions(
    run: Run, count: int | None, given: tuple[str, ...], options: tuple[str, ...]
) -> tuple[int, dict[str, Batch]]:
    """The number of samples, and the conditions of each."""
    import torch

    from ..run.run import encode_conditions

    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        rows = run.split(given[0], "all", every=True).whole()
        every = rows[torch.arange(len(rows)).repeat_interleave(count or 1)]
        return len(every), dict(every.to(run.compute.torch_device()).given)
    return count or 16, encode_conditions(run, dict(map(parse_pair, given)), options) or {}


def show_stream(console: Console, run: Run, states: Iterator[Tensor], out: Path | None) -> None:
    """Show samples as they are generated, as an animation or in the terminal."""
    from ..plot import animation

    if not (run.space.is_image or animation.is_plane(run.space)):
        raise UsageError(
            f"--stream needs images or rows of two numbers, found {run.space}; remove --stream"
        )
    if out is None:
        for text in animation.frames(states, run.space):
            click.clear()
            click.echo(text)
        return
    if out.suffix != ".gif":
        raise UsageError(
            f"expected a .gif file for an animation, found {out.name}; use -o NAME.gif"
        )
    count = animation.write(out, states, run.space)
    result = {"run": str(run.folder), "frames": count, "file": str(out)}
    console.result(result, str(out))


def parse_pair(setting: str) -> tuple[str, str]:
    name, equals, text = setting.partition("=")
    if not equals:
        raise UsageError(f"--given: expected NAME=VALUE or a file, found {setting!r}")
    return name, text
