"""Every measure a run's model admits, on held-out rows"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._output import Console, common

if TYPE_CHECKING:
    from ..core.abilities import Finding
    from ..core.metric import Metric
    from ..evaluate.bounds import Tightness
    from ..evaluate.suite import Groups
    from ..run.run import Run


BIASED = (
    "a Fréchet distance of few rows is too large, so that it is read beside that of as many "
    "real rows, while a kernel distance is right in the mean"
)
MOST = 8
"""Targets whose curves are drawn side by side."""


@click.command("evaluate")
@click.argument("run")
@click.argument("data", required=False)
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test", "all"]),
    help="Rows to measure on: by default test where there are splits, all otherwise.",
)
@common
def command(console: Console, run: str, data: str | None, split: str | None) -> None:
    """Measure RUN on DATA, or on its own test rows, and tell what ails its fit."""
    from ..evaluate.bounds import tightness
    from ..evaluate.suite import flat
    from ..run import run as runs
    from ..run.diagnostics import sentence
    from ..run.feature_extractor import feature_extractor
    from ..run.metrics import run_metrics

    found = runs.load(run)
    groups = run_metrics(found, data, split)
    findings = remarks(found, data, split)
    result: dict[str, Any] = {
        "run": str(found.folder),
        "measures": {name: score.to_dict() for name, score in flat(groups).items()},
        "groups": {title: list(group) for title, group in groups.items()},
        "findings": [vars(finding) for finding in findings],
    }
    text = shown(console, groups)
    if "frechet_distance" in result["measures"] and (eyes := feature_extractor(found)):
        result["features"] = {"told": str(eyes), **eyes.about}
        text += f"\n\nfrechet_distance, kernel_distance: {eyes}; {BIASED}."
    text += told_apart(result, groups.get("samples", {}))
    if curve := tightness(found.model, found.rows(data, split)):
        result["tightness"] = curve.to_dict()
        text += f"\n\n{climb(console, curve)}"
    if picture := reliability(found, data, split):
        result["picture"] = str(picture)
        text += f"\n{picture}"
    for finding in findings:
        text += f"\n\n{sentence(finding)}"
    console.result(result, text)


def remarks(run: Run, data: str | None, split: str | None) -> list[Finding]:
    """What was not measured, what to read with care, and what ails the fit."""
    from ..core.abilities import Finding
    from ..evaluate.suite import left_out

    found = left_out(run.model, run.rows(data, split))
    if data is None and split in ("train", "all"):
        found.append(
            Finding(
                "real rows",
                "those of this table are training rows, which are among the rows measured here",
                "read them on test rows, or on other data",
            )
        )
    return [*found, *run.diagnose()]


def shown(console: Console, groups: Groups) -> str:
    """A table with a line for each measure, what real rows reach beside it, group by group."""
    from ..evaluate.suite import paired

    pairs = {title: paired(group) for title, group in groups.items()}
    rows: list[list[Any]] = []
    for title, each in pairs.items():
        rows += [[], [title]] if rows else [[title]]
        rows += [
            [f"  {name}", *number(score), *number(ideal), score.unit, score.kind]
            for name, score, ideal in each
        ]
    head = ("measure", "value", "±", "real rows", "±", "unit", "kind")
    return console.table(head, [row + [None] * (len(head) - len(row)) for row in rows])


def number(score: Metric | None) -> tuple[float | None, float | None]:
    """A value and its error, where there are such."""
    return (score.value, score.stderr or None) if score else (None, None)


def told_apart(result: dict[str, Any], samples: dict[str, Metric]) -> str:
    """The interval of the two-sample test, which goes into what is told too."""
    from ..evaluate.c2st import interval

    if "c2st" not in samples:
        return ""
    low, high = interval(samples["c2st"])
    result["c2st_interval"] = [low, high]
    return (
        f"\n\nA classifier tells samples from data with an accuracy of {low:.3f} to "
        f"{high:.3f} (95%); samples of the law of the data would leave it at 0.5."
    )


def climb(console: Console, curve: Tightness) -> str:
    """The bound at more and more importance samples, and the evidence where it is known."""
    rows = [
        [rung.samples, rung.score.value, rung.score.stderr, rung.error, rung.effective]
        for rung in curve.rungs
    ]
    head = ("samples", "nats", "± over rows", "± of draws", "effective samples")
    text = f"the bound over {curve.rows} rows\n{console.table(head, rows)}"
    if curve.evidence:
        text += (
            f"\nexact evidence by quadrature {curve.evidence.value:.4f} ± "
            f"{curve.evidence.stderr:.4f} nats"
        )
    return text


def reliability(run: Run, data: str | None, split: str | None) -> Path | None:
    """Where the reliability curve of a model that predicts is drawn."""
    from ..evaluate.held_out import chunks
    from ..evaluate.predictions import predict, predicts
    from ..plot.reliability import write_reliability

    if not predicts(run.model):
        return None
    said = [one.known() for one in predict(run.model, chunks(run.rows(data, split)))]
    path = run.folder / "pictures" / "reliability.png"
    write_reliability(path, said[:MOST])
    return path
