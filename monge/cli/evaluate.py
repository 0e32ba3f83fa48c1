"""Every measure a run's model admits, on held-out rows"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._say import Voice, common

if TYPE_CHECKING:
    from ..evaluate.tightness import Tightness
    from ..run import Run

MOST = 8
"""Targets whose curves are drawn side by side."""


@click.command("evaluate")
@click.argument("run")
@click.argument("data", required=False)
@click.option("--split", type=click.Choice(["train", "valid", "test", "all"]),
              help="Rows to measure on: by default test where there are splits, all otherwise.")
@common
def command(voice: Voice, run: str, data: str | None, split: str | None) -> None:
    """Measure RUN on DATA, or on its own test rows, and let its doctor speak."""
    from .. import run as runs
    from ..doctor import sentence
    from ..evaluate.measure import left_out
    from ..evaluate.tightness import tightness
    from ..evaluate.twosample import interval

    found = runs.load(run)
    measures = found.evaluate(data, split)
    findings = [*left_out(found.model), *found.diagnose()]
    told: dict[str, Any] = {
        "run": str(found.folder),
        "measures": {name: score.to_dict() for name, score in measures.items()},
        "findings": [vars(finding) for finding in findings]}
    rows = [[name, score.value, score.stderr or None, score.unit, score.kind]
            for name, score in measures.items()]
    text = voice.table(("measure", "value", "±", "unit", "kind"), rows)
    if "c2st" in measures:
        low, high = interval(measures["c2st"])
        told["c2st_interval"] = [low, high]
        text += (f"\n\nA classifier tells samples from data with an accuracy of {low:.3f} to "
                 f"{high:.3f} (95%); samples of the law of the data would leave it at 0.5.")
    if curve := tightness(found.model, found.rows(data, split)):
        told["tightness"] = curve.to_dict()
        text += f"\n\n{climb(voice, curve)}"
    if picture := reliability(found, data, split):
        told["picture"] = str(picture)
        text += f"\n{picture}"
    for finding in findings:
        text += f"\n\n{sentence(finding)}"
    voice.result(told, text)


def climb(voice: Voice, curve: Tightness) -> str:
    """The bound at more and more importance samples, and the evidence where it is known."""
    rows = [[rung.samples, rung.score.value, rung.score.stderr, rung.error, rung.effective]
            for rung in curve.rungs]
    head = ("samples", "nats", "± over rows", "± of draws", "effective samples")
    text = f"the bound over {curve.rows} rows\n{voice.table(head, rows)}"
    if curve.evidence:
        text += (f"\nexact evidence by quadrature {curve.evidence.value:.4f} ± "
                 f"{curve.evidence.stderr:.4f} nats")
    return text


def reliability(run: Run, data: str | None, split: str | None) -> Path | None:
    """Where the reliability curve of a model that predicts is drawn."""
    from ..evaluate.judge import chunks
    from ..evaluate.predict import predict, predicts
    from ..show.reliability import write_reliability

    if not predicts(run.model):
        return None
    said = [one.known() for one in predict(run.model, chunks(run.rows(data, split)))]
    path = run.folder / "pictures" / "reliability.png"
    write_reliability(path, said[:MOST])
    return path
