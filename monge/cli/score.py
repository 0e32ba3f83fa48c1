"""Nats of every row under a run, with what kind of number they are

Exact, a lower bound or an estimate; the mean with its standard error, and bits a dimension.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._output import Console, common
from ._writers import OUTPUT, write_table

if TYPE_CHECKING:
    from ..evaluate.likelihood import RowLikelihoods


@click.command("score")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test", "all"]),
    help="Rows to score: by default test where there are splits, all otherwise.",
)
@click.option(
    "-o",
    "--out",
    type=OUTPUT,
    help="csv with a line a row: row, nats, kind, stderr, rank (1 = least likely).",
)
@click.option("--seed", default=0, show_default=True, help="Noise of a bound.")
@common
def command(
    console: Console,
    run: str,
    data: str | None,
    settings: tuple[str, ...],
    split: str | None,
    out: Path | None,
    seed: int,
) -> None:
    """Score DATA (or the run's own test rows) under RUN. WORDS such as samples=100 say how."""
    from ..core.overrides import Overrides
    from ..run import run as runs
    from ..run.text import perplexity

    if data is not None and "=" in data and not Path(data).exists():
        settings, data = (data, *settings), None
    overrides = Overrides.parse(settings)
    found = runs.load(run)
    scores = found.score(data, *overrides.model, *overrides.score, split=split, seed=seed)
    if out:
        write(out, scores)
    mean = scores.score
    if scores.impossible:
        console.note(
            f"{scores.impossible} of {len(scores.value)} rows have no finite score: the "
            "law excludes their values, or they lie too far out to compute"
        )
    result = {
        "rows": len(scores.value),
        "mean": mean.value,
        "stderr": mean.stderr,
        "kind": mean.kind,
        "unit": mean.unit,
        "bits_per_dim": scores.bits_per_dim,
    }
    text = (
        f"{mean.value:.4f} ± {mean.stderr:.4f} nats a row ({mean.kind}), "
        f"{scores.bits_per_dim:.4f} bits/dim, {result['rows']} rows"
    )
    if scores.told:
        result["method"] = scores.told
        text += f"\n{scores.told}"
    if scores.noise is not None:
        result["noise"] = scores.noise
        text += f"\n± {scores.noise:.4f} of the mean is the noise of its own draws"
    if found.view.text:
        measured = perplexity(found, found.rows(data, split), scores)
        result |= {name: score.value for name, score in measured.items()}
        text += "".join(
            f"\n{name.replace('_', ' ')} {score.value:.4f}" for name, score in measured.items()
        )
    console.result(result, text + (f"\n{out}" if out else ""))


def write(out: Path, scores: RowLikelihoods) -> None:
    import numpy as np
    import pandas as pd

    table = pd.DataFrame(
        {"row": np.arange(1, len(scores.value) + 1), "nats": scores.value, "kind": scores.kind}
    )
    if scores.stderr is not None:
        table["stderr"] = scores.stderr
    table["rank"] = table["nats"].rank(method="first").astype(int)
    write_table(table, out)
