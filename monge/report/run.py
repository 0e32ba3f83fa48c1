"""The HTML report of a run, or of the comparison in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..comparison.runner import FILE, RESULTS, Comparison, Outcome, read_results
from ..core.abilities import CanSample
from ..core.metric import Metric
from ..run import storage
from ..run.run import Run, load
from ..run.session import held_out
from .comparison import of_comparison
from .html import page
from .sections import (
    data_tables,
    environment,
    figure,
    figures_of,
    findings,
    metric_meanings,
    metrics_table,
    model_description,
    settings,
    texts,
    training,
)
from .table import table_sections


def write_report(what: str | Path | Run, out: str | Path | None = None) -> Path:
    """Write one HTML page about a run, a comparison or a folder of either, as `monge report` does.

    Parameters
    ----------
    what : str, Path, Run or Leaderboard
        A run, the name or folder of one, or that of a comparison.
    out : str or Path, optional
        The file; by default report.html in the folder.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import monge
    >>> run = monge.fit("gaussian", "iris", progress=False)
    >>> monge.write_report(run).name
    'report.html'
    """
    out = None if out is None else storage.check_output_path(Path(out))
    name: Any = getattr(what, "folder", what)
    for where in (Path(name), storage.home() / name):
        if (where / FILE).exists():
            return report(where, Comparison.read(where).outcomes, out)
    run = what if isinstance(what, Run) else load(name)
    return written(out or run.folder / "report.html", of_run(run))


def report(where: Path, outcomes: Sequence[Outcome], out: Path | None = None) -> Path:
    """The page of a comparison."""
    return written(out or where / "report.html", of_comparison(where, outcomes))


def written(path: Path, text: str) -> Path:
    storage.write(path, text)
    return path


def of_run(run: Run) -> str:
    lead = f"{run.space}; {run.space.rows} training rows"
    if score := run.result["held_out"]:
        lead += f". Held out: {held_out(run, score)}"
    is_text = (
        run.view.text is not None and not run.space.given and isinstance(run.model, CanSample)
    )
    paths, measures = figures_of(run), metrics_of(run)
    return page(
        run.title,
        lead,
        {
            "Data": [
                *data_tables(run),
                *([figure(run, paths["data"])] if "data" in paths else []),
            ],
            "Model": [model_description(run)],
            **table_sections(run),
            **({"Texts": texts(run)} if is_text and isinstance(run.model, CanSample) else {}),
            "Metrics": [metrics_table(measures), metric_meanings(measures)],
            "Figures": [figure(run, path) for stem, path in paths.items() if stem != "data"],
            "Findings": [findings(run)],
            "Training": training(run),
            "Settings": [settings(run)],
            "Environment": [environment(run)],
        },
    )


def metrics_of(run: Run) -> dict[str, Metric]:
    """The stored metrics of a comparison, or computed now."""
    if (run.folder / RESULTS).exists():
        return read_results(run.folder)["metrics"]
    return run.evaluate()
