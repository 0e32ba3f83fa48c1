"""What a run or a comparison has to say for itself, as one page of HTML."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..comparison.leaderboard import Leaderboard, LeaderboardRow, reference
from ..comparison.runner import FILE, RESULTS, Comparison, Outcome, cores
from ..core.metric import Metric
from ..core.space import Space
from ..plot.learning_curves import write_race
from ..run import storage
from ..run.diagnostics import sentence
from ..run.run import Run, load
from .html import folded, gallery, listing, page, paragraph, part, picture, preformatted, table

CAPTIONS = {
    "curves": "learning curves: each term of the loss, and the held-out score",
    "samples": "samples, as the law draws them",
    "density": "the learned density",
    "codes": "codes of held-out rows",
    "reliability": "how often what is said comes true",
    "data": "rows of the data",
    "translations": "sources, what is made of each, and the truth where it is known",
    "enlargements": "small pictures, draws of each, the truth",
    "transfers": "pictures under each other's conditions",
}
SHARED = {
    "Samples": "samples",
    "Densities": "density",
    "Codes": "codes",
    "Translations": "translations",
}
"""Pictures that a comparison shows side by side."""
NAMES = {
    "energy_distance": "distance",
    "c2st": "C2ST accuracy",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "coverage": "coverage",
    "samples_per_second": "samples a second",
}
"""Measures of the leaderboard; all others stand in a table below it."""
EXPLAINED = (
    "Log-likelihoods are means over test rows with their standard error, the higher the better; a "
    "bound is at most the value. Behind: nats a row below the first, on the same rows. Distances "
    "are of samples from test rows, the lower the better, and have their own places; a classifier "
    "that tells samples from test rows (C2ST) would be right half the time on perfect ones. The "
    "last row is what training rows reach in place of samples."
)


def write_report(name: str, out: Path | None = None) -> Path:
    """The report of a run, or of the comparison in a folder."""
    out = out and storage.apart(out)
    for where in (Path(name), storage.home() / name):
        if (where / FILE).exists():
            return report(where, Comparison.read(where).outcomes, out)
    run = load(name)
    return written(out or run.folder / "report.html", of_run(run))


def report(where: Path, outcomes: Sequence[Outcome], out: Path | None = None) -> Path:
    """The page of a comparison."""
    return written(out or where / "report.html", of_comparison(where, outcomes))


def written(path: Path, text: str) -> Path:
    storage.write(path, text)
    return path


def of_run(run: Run) -> str:
    score = run.result["held_out"]
    lead = f"{run.space}; {run.space.rows} training rows"
    if score:
        lead += (
            f". Held out: {score['value']:.4f} ± {score['stderr']:.4f} {score['unit']} "
            f"({score['kind']})"
        )
    paths = pictures(run)
    return page(
        run.title,
        lead,
        {
            "Data": [*described(run), *([shot(run, paths["data"])] if "data" in paths else [])],
            "Law": [law(run)],
            "Measures": [measured(measures_of(run))],
            "Pictures": [shot(run, path) for stem, path in paths.items() if stem != "data"],
            "Findings": [findings(run)],
            "Training": training(run),
            "Settings": [settings(run)],
            "Environment": [environment(run)],
        },
    )


def of_comparison(where: Path, outcomes: Sequence[Outcome]) -> str:
    comparison = Comparison.read(where)
    plan, found = comparison.plan, Leaderboard.of(comparison, outcomes)
    runs = {row.model: load(row.runs[0]) for row in found.rows}
    first = next(iter(runs.values()), None)
    families = len({row.family for row in found.rows})
    lead = (
        f"{len(plan.models)} models of {families} families, {plan.seeds} "
        f"seed{'s' * (plan.seeds > 1)}, {plan.budget} of training each, the same rows for all"
    )
    data = pictures(first).get("data") if first else None
    sections: dict[str, list[str]] = {
        "Data": [*described(first), *([shot(first, data)] if data else [])] if first else [],
        "Leaderboard": [
            board(found.rows, found.reference),
            paragraph(EXPLAINED),
            folded("Every measure", every(found.rows, found.reference)),
        ]
        if first
        else [],
        "Failures": [listing([f"{who}: {why}" for who, why in found.failures.items()])],
        "Learning curves": [raced(where, runs)] if first else [],
    }
    for title, stem in SHARED.items():
        paths = [(run, pictures(run).get(stem)) for run in runs.values()]
        sections[title] = [
            gallery([shot(run, path, run.about["model"]) for run, path in paths if path])
        ]
    sections |= {
        "Models": [
            folded(row.model, *told_of(runs[row.model], row.measures)) for row in found.rows
        ],
        "Left out": [listing([f"{name}: {why}" for name, why in plan.refused.items()])],
        "Environment": [environment(first)] if first else [],
    }
    return page(f"Laws of {plan.data}", lead, sections)


def board(rows: Sequence[LeaderboardRow], real: Mapping[str, Metric]) -> str:
    """The leaderboard: likelihoods, how far behind, a few measures of samples, and the cost."""
    shown = {name: title for name, title in NAMES.items() if any(name in r.measures for r in rows)}
    seeds = any(row.interval for row in rows)
    head = [
        "model",
        "place",
        "family",
        "nats a row",
        "kind",
        "bits/dim",
        "behind",
        *(["95% over seeds"] if seeds else []),
        "place by distance",
        *shown.values(),
        "parameters",
        "s an epoch",
        "memory, MB",
        "seconds",
    ]
    body: list[list[Any]] = [
        [
            row.model.partition(".")[2] or row.model,
            place,
            row.family,
            *likelihood(row.measures),
            paired(row),
            *([spanned(row)] if seeds else []),
            row.places.get("distance"),
            *(value(row.measures, name) for name in shown),
            value(row.measures, "parameters"),
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
    return table("Models on test rows, the best first", head, body, apart)


def value(measures: Mapping[str, Metric], name: str) -> float | None:
    return measures[name].value if name in measures else None


def likelihood(measures: Mapping[str, Metric]) -> list[Any]:
    score, bits = measures.get("log_likelihood"), measures.get("bits_per_dim")
    if score is None:
        return [None, "", None]
    return [f"{score.value:.2f} ± {score.stderr:.2g}", score.kind, bits.value if bits else None]


def paired(row: LeaderboardRow) -> str | None:
    return f"{row.behind[0]:.2f} ± {row.behind[1]:.2g}" if row.behind else None


def spanned(row: LeaderboardRow) -> str | None:
    return f"{row.interval[0]:.2f} to {row.interval[1]:.2f}" if row.interval else None


def megabytes(count: float | None) -> float | None:
    return None if count is None else count / 1e6


def every(rows: Sequence[LeaderboardRow], real: Mapping[str, Metric]) -> str:
    """Every measure that some model has, a column for each model."""
    names = dict.fromkeys(name for row in rows for name in plain(row.measures))
    body = [
        [name.replace("_", " "), *(value(row.measures, name) for row in rows), value(real, name)]
        for name in names
    ]
    return table(
        "every measure on test rows",
        ["measure", *(row.model for row in rows), "training rows"],
        body,
    )


def plain(measures: Mapping[str, Metric]) -> dict[str, Metric]:
    """The measures without their references."""
    known = {f"{name}_of_real_rows" for name in measures}
    return {name: score for name, score in measures.items() if name not in known}


def raced(where: Path, runs: Mapping[str, Run]) -> str:
    """The held-out score of all over the seconds they were trained."""
    path = where / "race.png"
    if not write_race(path, {model: [*run.log, run.result] for model, run in runs.items()}):
        return ""
    return picture(path, "held-out scores of all models against seconds of training", smooth=True)


def described(run: Run) -> list[str]:
    """What the data are."""
    space, origin = run.space, run.about["data"]
    rows = [
        ["event", str(space)],
        ["training rows", str(space.rows)],
        *(["given " + name, str(part)] for name, part in space.given.items()),
        *(["read with", f"data.{word}"] for word in origin["words"]),
        ["fingerprint", origin["fingerprint"][:16]],
    ]
    columns = [
        *space.columns,
        *(column for given in space.given.values() for column in given.columns),
    ] or [space]
    return [
        table(f"{origin['name']}, as the models see it", ["what", "value"], rows),
        table(
            "values in the training rows",
            ["field", "kind", "values", "smallest", "mean", "largest", "deviation"],
            [spread(column) for column in columns],
        ),
    ]


def spread(space: Space) -> list[Any]:
    """The range of a field; names have none."""
    size = space.size or None
    if space.kind in ("label", "tokens"):
        return [space.name or "event", space.kind, size, None, None, None, None]
    middle = [sum(found) / len(found) for found in (space.mean, space.scale)]
    return [
        space.name or "event",
        space.kind,
        size,
        min(space.low),
        middle[0],
        max(space.high),
        middle[1],
    ]


def told_of(run: Run, measures: Mapping[str, Metric]) -> list[str]:
    """The parts of a page about one run among others."""
    others = [
        path
        for stem, path in pictures(run).items()
        if stem != "data" and stem not in SHARED.values()
    ]
    return [
        part("Law", law(run), level=4),
        part("Measures", measured(measures), level=4),
        part("Pictures", *(shot(run, path) for path in others), level=4),
        part("Findings", findings(run), level=4),
        part("Training", *training(run), level=4),
        folded("Settings", settings(run), level=4),
    ]


def law(run: Run) -> str:
    return preformatted(inspect.cleandoc(run.model_class.__doc__ or ""))


def measured(measures: Mapping[str, Metric]) -> str:
    real = reference(measures)
    rows = [
        [name.replace("_", " "), s.value, s.stderr or None, s.unit, s.kind, value(real, name)]
        for name, s in plain(measures).items()
    ]
    return table(
        "on test rows; training rows in place of samples are the reference",
        ["measure", "value", "±", "unit", "kind", "training rows"],
        rows,
    )


def findings(run: Run) -> str:
    return listing([sentence(f) for f in run.diagnose()] or ["Nothing ails the fit."])


def training(run: Run) -> list[str]:
    """How it went, and each term of the loss where training ended."""
    result = run.result
    told = [
        paragraph(
            f"{result['step']} steps in {result['seconds']:.1f} s, ended by {result['stopped']}."
        )
    ]
    last = next((line for line in reversed(list(run.log)) if line["terms"]), None)
    if last:
        told.append(
            table(
                "terms of the loss at the end",
                ["term", "mean a row"],
                [[name, mean] for name, mean in last["terms"].items()],
            )
        )
    return told


def settings(run: Run) -> str:
    return table(
        "every setting",
        ["field", "value"],
        [
            [name, str(found)]
            for name, found in [
                *dotted(run.about["config"]),
                *dotted(run.about["recipe"], "train."),
            ]
        ],
    )


def dotted(tree: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested settings by their full names."""
    for name, found in tree.items():
        if isinstance(found, Mapping) and found:
            yield from dotted(found, f"{head}{name}.")
        elif name != "is":
            yield head + name, found


def pictures(run: Run) -> dict[str, Path]:
    """Every picture the run keeps."""
    where = run.folder / "pictures"
    return {path.stem: path for path in sorted(where.glob("*.png"))} if where.is_dir() else {}


def shot(run: Run, path: Path, of: str = "") -> str:
    told = CAPTIONS.get(path.stem, path.stem)
    smooth = not (run.space.is_picture and path.stem in ("samples", "data"))
    return picture(path, f"{told} ({of})" if of else told, smooth)


def measures_of(run: Run) -> dict[str, Metric]:
    """As they were judged, or judged now."""
    if (run.folder / RESULTS).exists():
        told = storage.read(run.folder, RESULTS)["measures"]
        return {name: Metric(**score) for name, score in told.items()}
    return run.evaluate()


def environment(run: Run) -> str:
    about = run.about
    return table(
        "what it was computed with",
        ["what", "version"],
        [
            ["Monge", about["monge"]],
            ["torch", about["torch"]],
            ["Python", about["python"]],
            ["machine", f"{platform.machine()}, {cores()} cores"],
            ["system", platform.system()],
            ["device", str(run.compute.torch_device())],
            ["seed", str(about["seed"])],
        ],
    )
