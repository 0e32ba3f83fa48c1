"""Pages that compare runs: a leaderboard, curves over time, samples side by side, and the rows on
which two models disagree most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from ..comparison.leaderboard import (
    DISTANCE,
    LIKELIHOOD,
    SHOWN,
    LeaderboardRow,
    check_comparable,
    rank,
    with_gaps,
)
from ..comparison.leaderboard import row as saved_row
from ..comparison.runner import FILE, RESULTS, Comparison
from ..core.abilities import CanSample, HasLikelihood
from ..core.errors import MongeError, RunError, UsageError
from ..core.metric import Metric
from ..report.comparison import of_comparison
from ..run.run import Run
from ..train.budget import Budget
from . import charts, jobs, loaded, showing
from .charts import Curve
from .fit import FitRequest, supported
from .pages import link, render, texts_of, whole
from .runs import REPORT_HEADERS, held_out_title

router = APIRouter()
MAX_RUNS = 12
DISAGREE = 10
"""Rows on which two models disagree most."""
LIKELIHOODS = loaded.Cache(24)
NORMAL = 1.96
"""Half the width of a 95 % interval, in standard errors."""


@router.get("/compare")
def index(request: Request) -> Response:
    """Compare chosen runs, or choose runs or a new comparison."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))[:MAX_RUNS]
    if names:
        return comparison_page(request, names, f"Compare {len(names)} runs")
    runs = [each for each in loaded.summaries() if not each.error and each.step is not None]
    groups: dict[str, list[loaded.Summary]] = {}
    for each in runs:
        groups.setdefault(each.fingerprint, []).append(each)
    return render(
        request,
        "compare.html",
        title="Compare",
        groups=[group for group in groups.values() if len(group) > 1],
        comparisons=loaded.comparisons(),
        places=loaded.available_data(),
        running=[job for job in jobs.listing() if job.about["kind"] == "compare"],
    )


@router.get("/compare/new")
def new(request: Request, data: str) -> Response:
    """The models that can be compared on some data."""
    asked = FitRequest.of(request.query_params)
    source = loaded.open_data(data, *asked.options)
    view = source.view(None, asked.given, asked.target or None)
    entries, refused = supported(view, bool(asked.target))
    return render(
        request,
        "compare_new.html",
        title=f"Compare models on {source.name}",
        data=data,
        data_title=loaded.data_title(data),
        entries=entries,
        refused=refused,
        name=jobs.free_name(f"compare-{source.name}"),
        space=str(view.space),
    )


@router.post("/compare")
async def start(request: Request) -> Response:
    form = await request.form()
    return await run_in_threadpool(start_comparison, form)


def start_comparison(form: FormData) -> Response:
    data = loaded.check_data(str(form.get("data", "")))
    models = [str(model) for model in form.getlist("model")]
    if any(model.endswith(".py") for model in models):
        raise UsageError("expected models of the library, found a file")
    budget = str(form.get("budget") or "30s").strip()
    Budget.read(budget)
    seeds = whole(texts_of(form), "seeds", 1, 1, 20)
    name = jobs.free_name(str(form.get("name") or f"compare-{Path(data).stem}"))
    options = ["--seeds", str(seeds)] + ([] if models else ["--one"])
    jobs.submit_compare(name, data, models, budget, *options)
    return RedirectResponse(f"/comparisons/{name}", 303)


@router.get("/comparisons/{name}")
def saved(request: Request, name: str) -> Response:
    """A comparison that `monge compare` makes or has made."""
    status = loaded.status(name)
    folder = loaded.place_of(name)
    if not (folder / FILE).is_file():
        if not status.is_live and status.state not in ("failed", "lost"):
            raise RunError(f"there is no comparison {name!r}; choose one from the list")
        return comparison_page(request, [], name, None, status)
    comparison = Comparison.read(loaded.folder_of(name))
    names = [
        f"{name}:{comparison.plan.title(model, seed)}"
        for model, seed in comparison.plan.jobs
        if (comparison.run_folder(model, seed) / "run.json").exists()
    ]
    if status.state == "new":
        is_whole = len(comparison.outcomes) == len(comparison.plan.jobs)
        status = loaded.Status("done" if is_whole else "stopped")
    return comparison_page(request, names, name, comparison, status)


def comparison_page(
    request: Request,
    names: Sequence[str],
    title: str,
    comparison: Comparison | None = None,
    status: loaded.Status | None = None,
) -> Response:
    """Runs side by side: chosen ones, or those of a comparison, which has a status."""
    folders = [loaded.folder_of(each) for each in names]
    summaries = [loaded.summary(folder) for folder in folders]
    compute = comparison is not None or request.query_params.get("compute") == "1"
    problem = ""
    try:
        good = [f for f, s in zip(folders, summaries, strict=True) if not s.error]
        check_comparable(good)
    except MongeError as error:
        problem = str(error)
    return render(
        request,
        "comparison.html",
        title=title,
        names=names,
        comparison=comparison,
        status=status or loaded.Status("done"),
        problem=problem,
        board=board(names, comparison) if compute and not problem else None,
        board_address=link("/compare/board", run=list(names))
        if names and not compute and not problem
        else None,
        curves=curves(names, summaries),
        pictures=picture_runs(names, summaries),
        pairs=pairs(names, summaries),
        name=title if status else "",
    )


@router.get("/compare/board")
def board_part(request: Request) -> Response:
    """The leaderboard of chosen runs, computed now."""
    names = request.query_params.getlist("run")[:MAX_RUNS]
    return render(request, "comparison_board.html", title="Leaderboard", board=board(names, None))


def board(names: Sequence[str], comparison: Comparison | None) -> dict[str, Any]:
    """The leaderboard with intervals, kinds and paired differences to the best."""
    rows: list[LeaderboardRow] = []
    failures: dict[str, str] = {}
    if comparison is not None:
        models = dict.fromkeys(model for model, _ in comparison.plan.jobs)
        for model in models:
            own = [
                comparison.run_folder(model, seed)
                for one, seed in comparison.plan.jobs
                if one == model and (comparison.run_folder(model, seed) / RESULTS).exists()
            ]
            if own:
                rows.append(saved_row(own, model))
    else:
        for name in names:
            try:
                rows.append(computed_row(name))
            except MongeError as error:
                failures[name] = str(error)
    rows = rank(with_gaps(sorted(rows, key=lambda row: row.order)))
    extra = [key for key in SHOWN if any(key in row.metrics for row in rows)]
    shown: list[dict[str, Any]] = [
        {
            "model": row.model,
            "name": loaded.name_of(row.runs[0]),
            "likelihood": row.metrics.get(LIKELIHOOD),
            "interval": interval(row),
            "gap": row.gap_to_best,
            "seconds": row.seconds,
            "seeds": len(row.runs),
            "extra": [row.metrics.get(key) for key in extra],
        }
        for row in rows
    ]
    ends = [
        (str(row["model"]), row["likelihood"].value, *row["interval"])
        for row in shown
        if row["likelihood"] is not None and row["interval"] is not None
    ]
    return {
        "rows": shown,
        "chart": charts.intervals(ends, "Log-likelihood of the test rows", "nats per row")
        if len(ends) > 1
        else None,
        "extra": [key.replace("_", " ") for key in extra],
        "failures": failures,
        "refused": comparison.plan.refused if comparison else {},
        "waiting": [] if comparison is None else [
            model
            for model, seed in comparison.plan.jobs
            if not (comparison.run_folder(model, seed) / RESULTS).exists()
        ],
    }  # fmt: skip


def interval(row: LeaderboardRow) -> tuple[float, float] | None:
    """The 95 % interval of the mean log-likelihood: over seeds if there are several, else over the
    test rows."""
    mean = row.metrics.get(LIKELIHOOD)
    if mean is None or not np.isfinite(mean.value):
        return None
    half = NORMAL * mean.stderr
    return row.interval or (mean.value - half, mean.value + half)


def row_likelihoods(name: str) -> tuple[np.ndarray, Metric]:
    """log p of every test row of a run, computed once, and their mean."""
    folder = loaded.folder_of(name)
    key = (folder, loaded.stamp(folder / "best.safetensors"))

    def make() -> tuple[np.ndarray, Metric]:
        run = loaded.with_data(loaded.load(name))
        with loaded.computing():
            found = run.log_likelihood()
        return found.value, found.mean

    return LIKELIHOODS.get(key, make)


def computed_row(name: str) -> LeaderboardRow:
    """A row of the leaderboard for one run."""
    folder = loaded.folder_of(name)
    if (folder / RESULTS).exists():
        found = saved_row([folder], loaded.summary(folder).model)
        return LeaderboardRow(name, found.runs, found.seconds, found.metrics, found.rows)
    run, about = loaded.load(name), loaded.summary(folder)
    metrics: dict[str, Metric] = {}
    rows = None
    if isinstance(run.model, HasLikelihood):
        values, mean = row_likelihoods(name)
        metrics[LIKELIHOOD], rows = mean, values[None]
    elif about.held_out is not None and about.kind == "distance":
        metrics[DISTANCE] = Metric(about.held_out, "distance", about.stderr or 0.0, about.unit)
    return LeaderboardRow(name, (folder,), about.seconds or 0.0, metrics, rows)


def curves(names: Sequence[str], summaries: Sequence[loaded.Summary]) -> dict[str, Markup]:
    """Held-out metrics over the seconds of training: a chart of log-likelihoods, and others for
    what cannot be compared with them."""
    found: dict[str, list[Curve]] = {}
    for name, about in zip(names, summaries, strict=True):
        if about.error:
            continue
        points = [
            (float(line["seconds"]), line["held_out"])
            for line in loaded.log_of(loaded.folder_of(name))
            if line["held_out"] and line["held_out"].get("value") is not None
        ]
        if not points and about.held_out is not None:  # evaluated at the end alone
            held = {"value": about.held_out, "kind": about.kind, "unit": about.unit}
            points = [(about.seconds or 0.0, held)]
        if not points:
            continue
        found.setdefault(held_out_title(points[0][1]), []).append(
            Curve(
                name.rpartition(":")[2],
                [seconds for seconds, _ in points],
                [held["value"] for _, held in points],
            )
        )
    return {title: charts.curves(lines, "seconds", title) for title, lines in found.items()}


def fitted(names: Sequence[str], summaries: Sequence[loaded.Summary]) -> Iterator[tuple[str, Run]]:
    """The runs that can be asked."""
    for name, about in zip(names, summaries, strict=True):
        if about.error or about.step is None:
            continue
        try:
            yield name, loaded.load(name)
        except MongeError:
            continue


def picture_runs(names: Sequence[str], summaries: Sequence[loaded.Summary]) -> list[str]:
    """The runs whose samples are pictures."""
    return [
        name
        for name, run in fitted(names, summaries)
        if run.space.is_image and issubclass(run.model_class, CanSample)
    ]


def pairs(names: Sequence[str], summaries: Sequence[loaded.Summary]) -> list[str]:
    """The runs whose rows can be compared."""
    return [
        name
        for name, run in fitted(names, summaries)
        if issubclass(run.model_class, HasLikelihood)
    ]


@router.get("/compare/rows")
def rows(request: Request, a: str, b: str) -> Response:
    """The test rows on which two models disagree most."""
    if a == b:
        raise UsageError(f"expected two runs, found {a} twice; choose another")
    first, second = row_likelihoods(a)[0], row_likelihoods(b)[0]
    if len(first) != len(second):
        raise RunError(
            f"expected as many test rows in both runs, found {len(first)} and {len(second)}; "
            "compare runs on the same data"
        )
    gap = first - second
    order = np.argsort(-np.abs(np.nan_to_num(gap)), kind="stable")[:DISAGREE]
    run = loaded.with_data(loaded.load(a))
    batch = run.split(None, "test").batch(torch.as_tensor(order.copy()))
    names = [each.rpartition(":")[2] for each in (a, b)]
    names = [a, b] if names[0] == names[1] else names
    lead = {
        "row": [int(k) + 1 for k in order],
        names[0]: [float(first[k]) for k in order],
        names[1]: [float(second[k]) for k in order],
        "difference": [float(gap[k]) for k in order],
    }
    finite = gap[np.isfinite(gap)]
    error = float(finite.std(ddof=1) / len(finite) ** 0.5) if len(finite) > 1 else 0.0
    return render(
        request,
        "comparison_rows.html",
        title=" and ".join(names),
        names=names,
        lead=lead,
        mean=float(finite.mean()) if len(finite) else 0.0,
        error=error,
        count=len(gap),
        wins=int((gap > 0).sum()),
        chart=charts.distribution(finite, "Paired differences of the rows", "nats"),
        shown=showing.show(run.view, batch.x, batch.length, lead),
        pictures=[link(f"/runs/{a}/rows.png", row=int(k)) for k in order],
    )


@router.get("/comparisons/{name}/report")
def report(name: str) -> Response:
    comparison = Comparison.read(loaded.folder_of(name))
    with loaded.computing():
        text = of_comparison(comparison.folder, comparison.outcomes)
    return Response(text, media_type="text/html", headers=REPORT_HEADERS)


@router.post("/comparisons/{name}/{action}")
def act(name: str, action: str) -> Response:
    """Stop a comparison, or go on with one that was stopped."""
    job = jobs.find(name)
    if action == "stop" and job is not None:
        job.ask("stop")
    elif action == "dismiss" and job is not None and not job.is_alive:
        job.forget()
        return RedirectResponse("/compare", 303)
    elif action == "resume":
        plan = Comparison.read(loaded.folder_of(name)).plan
        jobs.submit_compare(
            name,
            plan.data,
            [*plan.models, *plan.settings],
            plan.budget,
            "--seeds",
            str(plan.seeds),
            *(part for field in plan.given for part in ("--given", field)),
            *(part for field in plan.target for part in ("--target", field)),
        )
    else:
        raise UsageError(f"expected stop, resume or dismiss, found {action!r}; reload the page")
    return RedirectResponse(f"/comparisons/{name}", 303)
