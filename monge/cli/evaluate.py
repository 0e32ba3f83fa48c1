"""Every measure a run's model admits, on held-out rows"""

from __future__ import annotations

import click

from ._say import Voice, common


@click.command("evaluate")
@click.argument("run")
@click.argument("data", required=False)
@click.option("--split", type=click.Choice(["train", "valid", "test", "all"]),
              help="Rows to measure on: by default test where there are splits, all otherwise.")
@common
def command(voice: Voice, run: str, data: str | None, split: str | None) -> None:
    """Measure RUN on DATA, or on its own test rows, and let its doctor speak."""
    from .. import run as runs

    found = runs.load(run)
    measures = found.evaluate(data, split)
    findings = found.diagnose()
    told = {"run": str(found.folder),
            "measures": {name: score.to_dict() for name, score in measures.items()},
            "findings": [vars(finding) for finding in findings]}
    rows = [[name, score.value, score.stderr or None, score.unit, score.kind]
            for name, score in measures.items()]
    text = voice.table(("measure", "value", "±", "unit", "kind"), rows)
    for finding in findings:
        text += f"\n\n{finding.name}: {finding.sentence} {finding.remedy}"
    voice.result(told, text)
