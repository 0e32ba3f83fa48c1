"""The HTML report of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..comparison.leaderboard import Leaderboard, LeaderboardRow
from ..comparison.runner import Comparison, Outcome
from ..core.metric import Metric, with_error
from ..plot.learning_curves import write_race
from ..run.run import Run, load
from .html import embed_image, folded, gallery, listing, page, paragraph, part, table
from .sections import (
    data_tables,
    environment,
    figure,
    figures_of,
    findings,
    metric_meanings,
    metrics_table,
    model_description,
    plain,
    settings,
    training,
    value,
)

SHARED = {
    "Samples": "samples",
    "Densities": "density",
    "Codes": "codes",
    "Translations": "translations",
}
"""Figures that a comparison shows side by side."""
NAMES = {
    "energy_distance": "distance",
    "c2st": "C2ST accuracy",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "coverage": "coverage",
    "samples_per_second": "samples per second",
}
"""Metrics of the leaderboard; all others are in the table below it."""
EXPLAINED = {
    "log_likelihood": "Log-likelihoods are means over test rows with their standard error; higher "
    "is better, and a bound is at most the true value. Gap: nats per row below the best model, on "
    "the same rows.",
    "energy_distance": "Distances are between samples and test rows; lower is better, and they "
    "have their own rank.",
    "c2st": "A classifier two-sample test (C2ST) on perfect samples has accuracy one half. The "
    "last row shows the values for training rows in place of samples.",
}
"""What is said of the leaderboard, by the metric that it is about."""


def of_comparison(where: Path, outcomes: Sequence[Outcome]) -> str:
    comparison = Comparison.read(where)
    plan, found = comparison.plan, Leaderboard.of(comparison, outcomes)
    runs = {row.model: load(row.runs[0]) for row in found.rows}
    first = next(iter(runs.values()), None)
    families = len({row.family for row in found.rows})
    counts = (len(plan.models), "model"), (plan.seeds, "seed")
    models, seeds = (f"{n} {noun}{'s' * (n != 1)}" for n, noun in counts)
    of = f" of {families} families" if families > 1 else ""
    lead = f"{models}{of}, {seeds}, {plan.budget} of training each, the same rows for all"
    measured = {name for row in found.rows for name in row.metrics}
    data = figures_of(first).get("data") if first else None
    sections: dict[str, list[str]] = {
        "Data": [*data_tables(first), *([figure(first, data)] if data else [])] if first else [],
        "Leaderboard": [
            leaderboard_table(found.rows, found.reference),
            paragraph(" ".join(text for name, text in EXPLAINED.items() if name in measured)),
            folded("All metrics", all_metrics_table(found.rows, found.reference)),
            metric_meanings({k: score for row in found.rows for k, score in row.metrics.items()}),
        ]
        if first
        else [],
        "Failures": [listing([f"{who}: {why}" for who, why in found.failures.items()])],
        "Learning curves": [learning_curves(where, runs)] if first else [],
    }
    for title, stem in SHARED.items():
        paths = [(run, figures_of(run).get(stem)) for run in runs.values()]
        sections[title] = [
            gallery([figure(run, path, run.metadata["model"]) for run, path in paths if path])
        ]
    sections |= {
        "Models": [
            folded(row.model, *model_sections(runs[row.model], row.metrics)) for row in found.rows
        ],
        "Left out": [listing(plan.left_out)],
        "Environment": [environment(first)] if first else [],
    }
    name = first.metadata["data"]["name"] if first else plan.data
    return page(f"Models of {name}", lead, sections)


def leaderboard_table(rows: Sequence[LeaderboardRow], real: Mapping[str, Metric]) -> str:
    """The leaderboard: likelihoods, gap to the best, sample metrics and cost."""
    shown = {name: title for name, title in NAMES.items() if any(name in r.metrics for r in rows)}
    seeds = any(row.interval for row in rows)
    head = [
        "model",
        "rank",
        "family",
        "nats per row",
        "kind",
        "bits/dim",
        "gap",
        *(["95% over seeds"] if seeds else []),
        "rank by distance",
        *shown.values(),
        "parameters",
        "s per epoch",
        "memory, MB",
        "seconds",
    ]
    body: list[list[Any]] = [
        [
            row.model.partition(".")[2] or row.model,
            place,
            row.family,
            *likelihood(row.metrics),
            paired(row),
            *([spanned(row)] if seeds else []),
            row.ranks.get("distance"),
            *(value(row.metrics, name) for name in shown),
            value(row.metrics, "parameters"),
            row.cost.get("epoch"),
            megabytes(row.cost.get("memory")),
            round(row.seconds, 1),
        ]
        for place, row in enumerate(rows, 1)
    ]
    apart = any(name in real for name in shown)
    if apart:
        body.append(
            [
                "training rows",
                *[None] * (7 + seeds),
                *(value(real, name) for name in shown),
                *[None] * 4,
            ]
        )
    used = [i for i in range(len(head)) if any(row[i] not in (None, "") for row in body)]
    rows_used = [[row[i] for i in used] for row in body]
    return table("Models on test rows, the best first", [head[i] for i in used], rows_used, apart)


def likelihood(measures: Mapping[str, Metric]) -> list[Any]:
    score, bits = measures.get("log_likelihood"), measures.get("bits_per_dim")
    if score is None:
        return [None, "", None]
    found = f"{score.value:.2f}{with_error(score.stderr, 2)}"
    return [found, score.kind, bits.value if bits else None]


def paired(row: LeaderboardRow) -> str | None:
    if not row.gap_to_best:
        return None
    return f"{row.gap_to_best[0]:.2f}{with_error(row.gap_to_best[1], 2)}"


def spanned(row: LeaderboardRow) -> str | None:
    return f"{row.interval[0]:.2f} to {row.interval[1]:.2f}" if row.interval else None


def megabytes(count: float | None) -> float | None:
    return None if count is None else count / 1e6


def all_metrics_table(rows: Sequence[LeaderboardRow], real: Mapping[str, Metric]) -> str:
    """Every metric that some model has, a column for each model."""
    names = dict.fromkeys(name for row in rows for name in plain(row.metrics))
    body = [
        [name.replace("_", " "), *(value(row.metrics, name) for row in rows), value(real, name)]
        for name in names
    ]
    return table(
        "every metric on test rows",
        ["metric", *(row.model for row in rows), "training rows"],
        body,
    )


def learning_curves(where: Path, runs: Mapping[str, Run]) -> str:
    """Held-out scores of all models over training seconds."""
    path = where / "race.png"
    if not write_race(path, {model: [*run.log, run.result] for model, run in runs.items()}):
        return ""
    return embed_image(
        path, "held-out scores of all models against seconds of training", smooth=True
    )


def model_sections(run: Run, measures: Mapping[str, Metric]) -> list[str]:
    """The sections about one run of the comparison."""
    others = [
        path
        for stem, path in figures_of(run).items()
        if stem != "data" and stem not in SHARED.values()
    ]
    return [
        part("Model", model_description(run), level=4),
        part("Metrics", metrics_table(measures), level=4),
        part("Figures", *(figure(run, path) for path in others), level=4),
        part("Findings", findings(run), level=4),
        part("Training", *training(run), level=4),
        folded("Settings", settings(run), level=4),
    ]
