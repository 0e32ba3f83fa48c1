"""Log-likelihood of each row (nats), marked exact, bound or estimate

Prints the mean with its standard error and bits per dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError
from ..core.metric import with_error
from ..run.writers import PART, write_tables
from ._output import SEED, Console, Output, common, gather_files

if TYPE_CHECKING:
    import pandas as pd

    from ..evaluate.likelihood import RowLikelihoods
    from ..run.run import Run


@click.command("score")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test", "all"]),
    help="Rows to score: by default the test split if there are splits, else all.",
)
@click.option(
    "-o",
    "--out",
    type=Output(".csv", ".parquet"),
    help="File (.csv) with a line per row: row, nats, kind, stderr, rank (1 = least likely).",
)
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="Seed of the noise of a bound or estimate.",
)
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
    """Score DATA (by default the test rows of RUN). KEY=VALUE sets a scoring option such as
    samples=100."""
    from ..core.config import Overrides
    from ..run import run as runs
    from ..run.text import perplexity

    if data is not None and "=" in data and not Path(data).exists():
        settings, data = (data, *settings), None
    data, settings = gather_files(console, data, settings)
    overrides = Overrides.parse(settings)
    found = runs.load(run)
    options = (*overrides.model, *overrides.score)
    check_options(found, options)
    scores = found.log_likelihood(data, *options, split=split, seed=seed)
    if out:
        write_rows(out, scores)
    for note in found.notes:
        console.note(note)
    mean = scores.mean
    if scores.impossible:
        console.note(
            f"{scores.impossible} of {len(scores.value)} rows have no finite log-likelihood: "
            "the model excludes their values, or they are too extreme to compute"
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
        f"{mean.value:.4f}{with_error(mean.stderr)} nats per row ({mean.kind}), "
        f"{scores.bits_per_dim:.4f} bits/dim, {len(scores.value)} row"
        f"{'s' * (len(scores.value) != 1)}"
    )
    if scores.description:
        result["method"] = scores.description
        text += f"\n{scores.description}"
    if scores.noise is not None:
        result["noise"] = scores.noise
        text += f"\n± {scores.noise:.4f} is the Monte Carlo error of the mean"
    if found.view.text:
        metrics = perplexity(found, found.split(data, split), scores)
        result |= {name: score.value for name, score in metrics.items()}
        text += "".join(
            f"\n{name.replace('_', ' ')} {score.value:.4f}" for name, score in metrics.items()
        )
    console.result(result, text + (f"\n{out}" if out else ""))


def check_options(run: Run, settings: Sequence[str]) -> None:
    """Refuse a setting that the model's scoring options do not have."""
    from ..core.abilities import HasLikelihood

    known = list(run.require(HasLikelihood).LikelihoodConfig.__dataclass_fields__)
    for setting in settings:
        name = setting.removeprefix("score.").partition("=")[0]
        if name.partition(".")[0] not in known:
            options = f"expected one of {', '.join(known)}" if known else "it has none"
            raise UsageError(
                f"{run.metadata['model']} has no scoring option {name!r}; {options}, found "
                f"{setting}"
            )


def write_rows(out: Path, scores: RowLikelihoods) -> None:
    write_tables(score_tables(scores), out)


def score_tables(scores: RowLikelihoods) -> Iterator[pd.DataFrame]:
    """A line per row, some rows at a time."""
    rank = scores.rank
    for start in range(0, max(len(rank), 1), PART):
        rows = slice(start, start + PART)
        table = scores.table(rank, rows)
        table.insert(0, "row", None if scores.numbers is None else scores.numbers[rows])
        yield table
