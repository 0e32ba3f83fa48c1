"""Compute every metric the model supports on held-out rows"""

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
    "the Fréchet distance is biased upwards for few rows, so compare it with that of as many "
    "real rows; the kernel distance is unbiased"
)
MAX_TARGETS = 8
"""Targets whose reliability curves are plotted side by side."""


@click.command("evaluate")
@click.argument("run")
@click.argument("data", required=False)
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test", "all"]),
    help="Rows to evaluate: by default the test split if there are splits, else all.",
)
@click.option(
    "--moved",
    metavar="MOTION[,...]",
    help="Also measure how predictions from images change if the images are moved: shift2, "
    "rotate15, scale10, flip.",
)
@common
def command(
    console: Console, run: str, data: str | None, split: str | None, moved: str | None
) -> None:
    """Evaluate RUN on DATA (by default its own test rows) and print problems found in the fit."""
    from ..evaluate.bounds import tightness
    from ..evaluate.suite import flat
    from ..run import run as runs
    from ..run.diagnostics import sentence
    from ..run.feature_extractor import feature_extractor
    from ..run.metrics import run_metrics

    found = runs.load(run)
    groups = run_metrics(found, data, split)
    if moved:
        from ..run.motion import motion_metrics

        groups["moved"] = motion_metrics(found, moved.split(","), data, split)
    findings = all_findings(found, data, split)
    result: dict[str, Any] = {
        "run": str(found.folder),
        "metrics": {name: metric.to_dict() for name, metric in flat(groups).items()},
        "groups": {title: list(group) for title, group in groups.items()},
        "findings": [vars(finding) for finding in findings],
    }
    text = metrics_table(console, groups)
    if "frechet_distance" in result["metrics"] and (features := feature_extractor(found)):
        result["features"] = {"description": str(features), **features.metadata}
        text += f"\n\nfrechet_distance, kernel_distance: {features}; {BIASED}."
    text += c2st_sentence(result, groups.get("samples", {}))
    text += membership_sentence(result, groups.get("privacy", {}))
    if curve := tightness(found.model, found.split(data, split)):
        result["tightness"] = curve.to_dict()
        text += f"\n\n{format_bound_curve(console, curve)}"
    if plot := reliability(found, data, split) or ranks(found, data, split):
        result["plot"] = str(plot)
        text += f"\n{plot}"
    for finding in findings:
        text += f"\n\n{sentence(finding)}"
    for note in found.notes:
        console.note(note)
    console.result(result, text)


def all_findings(run: Run, data: str | None, split: str | None) -> list[Finding]:
    """Metrics that were left out, cautions, and the diagnostics of the fit."""
    from ..core.abilities import Finding
    from ..evaluate.suite import skipped_metrics

    found = skipped_metrics(run.model, run.split(data, split))
    if data is None and split in ("train", "all"):
        found.append(
            Finding(
                "real rows",
                "the reference column uses training rows, which are among the rows evaluated here",
                "evaluate on test rows, or on other data",
            )
        )
    return [*found, *run.diagnose()]


def metrics_table(console: Console, groups: Groups) -> str:
    """A table of metrics by group, beside the same metrics of real rows."""
    from ..evaluate.suite import paired

    pairs = {title: paired(group) for title, group in groups.items()}
    rows: list[list[Any]] = []
    for title, each in pairs.items():
        rows += [[], [title]] if rows else [[title]]
        rows += [
            [f"  {name}", *number(score), *number(ideal), score.unit, score.kind]
            for name, score, ideal in each
        ]
    head = ("metric", "value", "±", "real rows", "±", "unit", "kind")
    return console.table(head, [row + [None] * (len(head) - len(row)) for row in rows])


def number(score: Metric | None) -> tuple[float | None, float | None]:
    """A value and its standard error, if there are any."""
    return (score.value, score.stderr or None) if score else (None, None)


def c2st_sentence(result: dict[str, Any], samples: dict[str, Metric]) -> str:
    """The interval of the classifier two-sample test; it is added to `result` too."""
    from ..evaluate.c2st import interval

    if "c2st" not in samples:
        return ""
    low, high = interval(samples["c2st"])
    result["c2st_interval"] = [low, high]
    return (
        f"\n\nA classifier separates samples from data with an accuracy of {low:.3f} to "
        f"{high:.3f} (95% interval); perfect samples give 0.5."
    )


def membership_sentence(result: dict[str, Any], privacy: dict[str, Metric]) -> str:
    """The interval of the membership inference; it is added to `result` too."""
    from ..evaluate.c2st import interval

    if "membership_auc" not in privacy:
        return ""
    low, high = interval(privacy["membership_auc"])
    result["membership_auc_interval"] = [low, high]
    return (
        f"\n\nThe distance to the closest sample separates training rows from held-out rows with "
        f"an AUC of {low:.3f} to {high:.3f} (95% interval); 0.5 means that it does not. Other "
        "attacks may reveal more."
    )


def format_bound_curve(console: Console, curve: Tightness) -> str:
    """The bound for increasing numbers of importance samples, and the evidence if it is known."""
    rows = [
        [rung.samples, rung.score.value, rung.score.stderr, rung.error, rung.effective]
        for rung in curve.rungs
    ]
    head = ("samples", "nats", "± over rows", "± Monte Carlo", "effective samples")
    text = f"bound over {curve.rows} rows\n{console.table(head, rows)}"
    if curve.evidence:
        text += (
            f"\nexact evidence by quadrature {curve.evidence.value:.4f} ± "
            f"{curve.evidence.stderr:.4f} nats"
        )
    return text


def reliability(run: Run, data: str | None, split: str | None) -> Path | None:
    """Plot the reliability curve of a predictor and return its path."""
    from ..evaluate.likelihood import chunks
    from ..evaluate.predictions import predict, predicts
    from ..plot.reliability import write_reliability

    if not predicts(run.model):
        return None
    predictions = [one.known() for one in predict(run.model, chunks(run.split(data, split)))]
    path = run.folder / "figures" / "reliability.png"
    write_reliability(path, predictions[:MAX_TARGETS])
    return path


def ranks(run: Run, data: str | None, split: str | None) -> Path | None:
    """Plot the ranks of a conditional model and return the path."""
    from ..evaluate.ranks import rank_statistics
    from ..plot.ranks import write_ranks

    obeys = run.view.obeys if run.view.constraints else None
    found = rank_statistics(run.model, run.split(data, split), run.view.columns, obeys=obeys)
    if found is None:
        return None
    path = run.folder / "figures" / "ranks.png"
    write_ranks(path, found)
    return path
