"""Sections that reports share: data, model, metrics, figures, settings, environment."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..comparison.leaderboard import reference
from ..comparison.runner import cores
from ..core.formulas import as_text
from ..core.metric import Metric
from ..core.space import Space
from ..data import description
from ..evaluate.likelihood import row_subset
from ..evaluate.meanings import meaning
from ..run.diagnostics import sentence
from ..run.figures import write_figures
from ..run.run import Run
from ..run.session import STOP_REASONS, LossUnit
from .html import embed_image, folded, listing, paragraph, part, preformatted, table

SHOWN_TEXTS = 3
"""Texts that are shown of the data and of the samples."""
CAPTIONS = {
    "curves": "learning curves: each term of the loss, and the held-out score",
    "samples": "samples of the model",
    "forecast": "forecast after the end of the series: median, 80 % interval, some trajectories",
    "density": "the learned density",
    "codes": "latent codes of held-out rows",
    "reliability": "reliability: predicted against observed frequency",
    "ranks": "ranks of held-out rows among samples with the same conditions, flat if calibrated",
    "data": "rows of the data",
    "translations": "sources, their translations and, if paired, the targets",
    "enlargements": "small images, samples of each, the true image",
    "transfers": "images decoded under each other's conditions",
}


def value(measures: Mapping[str, Metric], name: str) -> float | None:
    return measures[name].value if name in measures else None


def plain(measures: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics without their references."""
    known = {f"{name}_of_real_rows" for name in measures}
    return {name: score for name, score in measures.items() if name not in known}


def data_tables(run: Run) -> list[str]:
    """The data: event, conditions and ranges."""
    space, origin = run.space, run.metadata["data"]
    rows = [
        ["event", str(space)],
        ["training rows", str(space.rows)],
        *(["given " + name, str(part)] for name, part in space.given.items()),
        *(["read with", f"data.{setting}"] for setting in origin["overrides"]),
        ["fingerprint", origin["fingerprint"][:16]],
    ]
    about = table(f"{origin['name']}, as the models see it", ["what", "value"], rows)
    if run.view.selection.schema.table:
        return [about, described_columns(run)]
    columns = [
        *space.columns,
        *(column for given in space.given.values() for column in given.columns),
    ] or [space]
    head = ["field", "kind", "values", "smallest", "mean", "largest", "deviation"]
    found = [spread(column) for column in columns]
    used = [i for i in range(len(head)) if any(row[i] is not None for row in found)]
    rows = [[row[i] for i in used] for row in found]
    return [about, table("values in the training rows", [head[i] for i in used], rows)]


def described_columns(run: Run) -> str:
    """The columns of a table, as `monge data` describes them."""
    columns = description.columns(run.split(None, "test", every=True).view.dataset)
    head = [name for name in columns[0] if any(row[name] is not None for row in columns)]
    rows = [[row[name] for name in head] for row in columns]
    return table("columns of all rows; means of the training rows", head, rows)


def spread(space: Space) -> list[Any]:
    """The range of a field; categories have none."""
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


def model_description(run: Run) -> str:
    return preformatted(as_text(inspect.cleandoc(run.model_class.__doc__ or "")))


def texts(run: Run) -> list[str]:
    """Test rows of text, and new ones sampled from the model."""
    rows = row_subset(run.split(None, "test"), SHOWN_TEXTS)
    pairs = {
        f"{len(rows)} rows of the data (test split)": run.view.decode(rows.x),
        f"{len(rows)} new rows, sampled from the model": run.sample(len(rows), seed=0),
    }
    return [
        part(title, *(preformatted(str(each).strip()) for each in found))
        for title, found in pairs.items()
    ]


def metrics_table(measures: Mapping[str, Metric]) -> str:
    real = reference(measures)
    rows = [
        [name.replace("_", " "), s.value, s.stderr or None, s.unit, s.kind, value(real, name)]
        for name, s in plain(measures).items()
    ]
    head = ["metric", "value", "±", "unit", "kind", "training rows"]
    if not real:
        return table("on test rows", head[:-1], [row[:-1] for row in rows])
    return table("on test rows; training rows in place of samples are the reference", head, rows)


def metric_meanings(measures: Mapping[str, Metric]) -> str:
    """What each metric of the table means, in one line."""
    found = {
        pattern: text for name in plain(measures) for pattern, text in [meaning(name)] if text
    }
    lines = [f"{pattern.replace('_', ' ')}: {text}." for pattern, text in found.items()]
    return folded("What the metrics mean", listing(lines)) if lines else ""


def findings(run: Run) -> str:
    return listing([sentence(f) for f in run.diagnose()] or ["No problems found."])


def training(run: Run) -> list[str]:
    """Steps, time and the loss terms at the end of training."""
    result = run.result
    lines = [
        paragraph(
            f"{result['step']} step{'s' * (result['step'] != 1)} in {result['seconds']:.1f} s: "
            f"{STOP_REASONS.get(result['stopped'], result['stopped'])}."
        )
    ]
    last = next((line for line in reversed(list(run.log)) if line["terms"]), None)
    if last:
        lines.append(
            table(
                "terms of the loss at the end",
                ["term", f"mean per {LossUnit.of(run).noun}"],
                [[name, mean] for name, mean in last["terms"].items()],
            )
        )
    return lines


def settings(run: Run) -> str:
    return table(
        "every setting",
        ["field", "value"],
        [
            [name, str(found)]
            for name, found in [
                *dotted(run.metadata["config"]),
                *dotted(run.metadata["train"], "train."),
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


def figures_of(run: Run) -> dict[str, Path]:
    """The figures of a run by name; a run that was fitted in Python has them made now."""
    where = run.folder / "figures"
    if not where.is_dir():
        with suppress(OSError):  # a run that cannot be written to has a report without them
            write_figures(run)
    return {path.stem: path for path in sorted(where.glob("*.png"))}


def figure(run: Run, path: Path, of: str = "") -> str:
    caption = CAPTIONS.get(path.stem, path.stem)
    smooth = not (run.space.is_image and path.stem in ("samples", "data"))
    return embed_image(path, f"{caption} ({of})" if of else caption, smooth)


def environment(run: Run) -> str:
    about = run.metadata
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
