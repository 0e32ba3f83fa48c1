"""Pages about one run: its state, curves, samples, log-likelihoods, findings, card and report."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from ..core.abilities import HasLikelihood
from ..core.config import apply_overrides
from ..core.errors import DataError, MongeError, RunError, UsageError
from ..evaluate.likelihood import RowLikelihoods, chunks, row_likelihoods
from ..report.run import of_run
from ..report.sections import dotted
from ..run import storage
from ..run.run import Run
from ..run.where import given_constraints
from ..train.budget import Budget
from . import ask, charts, forms, jobs, loaded, sampling, showing
from .charts import Curve
from .pages import link, render, settings_of, texts_of, whole
from .run_state import page_state, sample_form

router = APIRouter()
TICK = 0.5
"""Seconds between two looks at a log that a page follows."""
BEAT = 15.0
"""Seconds after which something is sent even if nothing happens."""
MAX_SCORED = 2000
"""Rows that a page scores."""
UNLIKELY = 12
"""Most unlikely rows that a page shows."""
SPLITS = {"test": "test rows", "valid": "validation rows", "train": "training rows"}
REPORT_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
}
"""A report holds its style and pictures itself, and no script."""


@router.get("/runs/{name}")
def show(request: Request, name: str) -> Response:
    """One run: what happens, its curves, its samples and findings."""
    state = page_state(name)
    job = jobs.find(name)
    if job is not None and job.about["kind"] == "compare":
        return RedirectResponse(f"/comparisons/{name}", 303)
    folder: Path = state["folder"]
    form = None
    if state["there"] and state["has_weights"]:
        form = sample_form(name, request.query_params)
    return render(
        request,
        "run.html",
        **state,
        curves=curve_charts(folder) if state["there"] else [],
        findings=loaded.findings(folder),
        output=job.output[-4000:] if job else "",
        form=form,
        section="run",
    )


def curve_charts(folder: Path, by: str = "step") -> list[dict[str, Any]]:
    """The held-out metric, and the terms of each update, as charts with a table."""
    lines = loaded.log_of(folder)
    if not lines:
        return []
    x = [float(line.get(by) or 0) for line in lines]
    held = [line["held_out"] or {} for line in lines]
    found = []
    scored = [(a, h) for a, h in zip(x, held, strict=True) if h.get("value") is not None]
    if scored:
        found.append(
            chart(
                held_out_title(scored[0][1]),
                [
                    Curve(
                        "held out",
                        [a for a, _ in scored],
                        [h["value"] for _, h in scored],
                        [float(h.get("stderr") or 0) for _, h in scored],
                    )
                ],
                by,
            )
        )
    updates: dict[str, list[Curve]] = {}
    names = dict.fromkeys(name for line in lines for name in line["terms"])
    for name in names:
        update, _, term = name.rpartition("/")
        values = [line["terms"].get(name) for line in lines]
        updates.setdefault(update or "model", []).append(Curve(term, x, values))
    found += [
        chart(f"Loss of {update}" if len(updates) > 1 else "Loss", terms, by)
        for update, terms in updates.items()
    ]
    norms = dict.fromkeys(name for line in lines for name in line.get("norms") or {})
    if norms:
        rows = [
            Curve(name, x, [(line.get("norms") or {}).get(name) for line in lines])
            for name in norms
        ]
        found.append(chart("Gradient norm", rows, by))
    return found


def held_out_title(held: Mapping[str, Any]) -> str:
    """What the held-out metric of a log is, with its unit."""
    is_likelihood = held["kind"] not in ("distance", "loss")
    return f"Held-out {'log-likelihood' if is_likelihood else held['kind']} ({held['unit']})"


def chart(title: str, lines: Sequence[Curve], by: str) -> dict[str, Any]:
    keep = sorted(set(np.linspace(0, len(lines[0].x) - 1, 12).round().astype(int)))
    return {
        "title": title,
        "svg": charts.curves(lines, by, title),
        "head": [by, *(line.name for line in lines)],
        "rows": [
            [lines[0].x[k], *(line.y[k] if k < len(line.y) else None for line in lines)]
            for k in keep
        ],
    }


@router.get("/runs/{name}/curves")
def curves(request: Request, name: str, by: str = "step") -> Response:
    """The curves alone, for a page that follows a fit."""
    state = page_state(name)
    if by not in ("step", "seconds", "epoch"):
        raise UsageError(f"expected step, seconds or epoch, found {by!r}")
    return render(
        request, "run_curves.html", **state, curves=curve_charts(state["folder"], by), by=by
    )


@router.get("/runs/{name}/state")
def state_part(request: Request, name: str) -> Response:
    """The head of the page alone."""
    return render(request, "run_state.html", **page_state(name))


@router.get("/runs/{name}/events")
async def events(request: Request, name: str) -> Response:
    """Server-sent events of a run: a line of its log, a checkpoint, a change of its state."""
    await run_in_threadpool(page_state, name)

    async def stream() -> AsyncIterator[str]:
        folder = loaded.place_of(name)
        log, last, quiet = folder / "log.jsonl", folder / "last.safetensors", 0.0
        before: Any = None
        while not await request.is_disconnected():
            status = await run_in_threadpool(loaded.status, name)
            now = (loaded.stamp(log), loaded.stamp(last), status.state)
            if before is None or now != before:
                told = {
                    "state": status.state,
                    "log": before is not None and now[0] != before[0],
                    "checkpoint": before is not None and now[1] != before[1],
                    "fraction": status.fraction,
                    "left": status.left,
                }
                yield f"data: {json.dumps(told)}\n\n"
                before, quiet = now, 0.0
            elif status.fraction is not None and quiet % 1.0 < TICK:
                told = {"state": status.state, "fraction": status.fraction, "left": status.left}
                yield f"data: {json.dumps(told)}\n\n"
            elif quiet > BEAT:
                yield ": still here\n\n"
                quiet = 0.0
            if not status.is_live:
                yield "event: end\ndata: {}\n\n"
                return
            await asyncio.sleep(TICK)
            quiet += TICK

    return StreamingResponse(stream(), media_type="text/event-stream")


@router.post("/runs/{name}/{action}")
async def act(request: Request, name: str, action: str) -> Response:
    """Pause, stop, resume or dismiss a fit; score rows."""
    texts = texts_of(await request.form())
    if action == "score":
        return await run_in_threadpool(score_page, request, name, texts)
    return await run_in_threadpool(do, name, action, texts)


def do(name: str, action: str, form: dict[str, str]) -> Response:
    job = jobs.find(name)
    if action == "resume":
        budget = form.get("budget", "").strip()
        Budget.read(budget)
        folder = loaded.folder_of(name)
        if loaded.is_training(folder):
            raise RunError(f"{name} is in training already; wait for it")
        jobs.submit_resume(folder, budget, "--threads", "1")
    elif action in ("pause", "stop"):
        if job is None:
            raise RunError(f"{name} is not being fitted by a studio; stop it where it was started")
        job.ask("pause" if action == "pause" else "stop")
    elif action == "diagnose":
        run = loaded.load(name)
        with loaded.computing():
            loaded.with_data(run).diagnose()
        return RedirectResponse(f"/runs/{name}#findings", 303)
    elif action == "dismiss":
        if job is not None and not job.is_alive:
            job.forget()
        return RedirectResponse("/", 303)
    else:
        raise UsageError(f"expected pause, stop, resume, diagnose or dismiss, found {action!r}")
    there = loaded.place_of(name).exists() or jobs.find(name) is not None
    return RedirectResponse(f"/runs/{name}" if there else "/", 303)


@router.get("/runs/{name}/samples")
def samples(request: Request, name: str) -> Response:
    """Samples as rows, or where their picture is."""
    query = dict(request.query_params)
    run = loaded.load(name)
    form = sample_form(name, request.query_params)
    if form is None or "error" in form:
        raise UsageError(form["error"] if form else f"{name} does not sample")
    found, note = sampling.shown(run, form["asked"])
    return render(
        request,
        "samples.html",
        **page_state(name),
        shown=found,
        note=note,
        picture=link(f"/runs/{name}/samples.png", **query),
        sounds=[link(f"/runs/{name}/sample.wav", **query, number=k) for k in range(found.count)]
        if found.form == "sounds"
        else [],
        step=run.__dict__.get("latest_step"),
    )


@router.get("/runs/{name}/samples.png")
def samples_png(request: Request, name: str) -> Response:
    run = loaded.load(name)
    asked = sampling.Asked.of(request.query_params, 32)
    if not run.space.is_image:
        raise UsageError(f"expected a run on pictures, found {run.space}; look at its rows")
    x, _ = sampling.draw(run, asked)
    assert isinstance(x, torch.Tensor)
    columns = whole(request.query_params, "columns", 8 if len(x) <= 32 else 16, 1, 64)
    return Response(showing.pictures(x, run.space, columns), media_type="image/png")


@router.get("/runs/{name}/sample.wav")
def sample_wav(request: Request, name: str, number: int = 0) -> Response:
    run = loaded.load(name)
    content = sampling.sound(run, sampling.Asked.of(request.query_params, 4), number)
    return Response(content, media_type="audio/wav")


@router.get("/runs/{name}/download/{suffix}")
def download(request: Request, name: str, suffix: str) -> Response:
    """Samples as a file in the form of the data."""
    run = loaded.load(name)
    content, file = sampling.download(run, sampling.Asked.of(request.query_params, 100), suffix)
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{ascii_name(file)}"'},
    )


def ascii_name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._+-") else "_" for c in name)


@router.get("/runs/{name}/score")
def score(request: Request, name: str) -> Response:
    return score_page(request, name, dict(request.query_params))


def score_page(request: Request, name: str, form: dict[str, str]) -> Response:
    """Log-likelihoods of rows that one gives, of an upload, or of a split of the run's data."""
    state = page_state(name)
    run = loaded.load(name)
    text, of = form.get("rows", "").strip(), form.get("of", "")
    inputs = list(forms.inputs(run.require(HasLikelihood).LikelihoodConfig()))
    accepts = typed_form(run)
    return render(
        request,
        "score.html",
        **state,
        inputs=inputs,
        values=form,
        result=scored(run, text, of, settings_of(form)) if text or of else None,
        accepts=accepts,
        example=example_rows(run, accepts) if accepts and not text else "",
        splits=SPLITS,
        uploads=loaded.available_data().get("Uploads", []),
        of=of or "test",
        section="score",
    )


def typed_form(run: Run) -> str:
    """In which form rows of a run can be typed; empty if they cannot."""
    if run.view.selection.schema.table:
        return "table"
    if sampling.is_text(run):
        return "texts"
    typed = len(run.space.shape) == 1 and run.space.dims <= showing.MAX_CELLS
    return "numbers" if typed and not run.space.given and not run.space.varies else ""


def example_rows(run: Run, accepts: str, count: int = 3) -> str:
    """The first test rows as one types them."""
    try:
        found = ask.test_table(run, count)
    except MongeError:
        return ""
    if accepts == "texts":
        return "\n".join(str(text).replace("\n", " ") for text in found)
    if accepts == "numbers":
        return "\n".join(",".join(f"{value:.6g}" for value in row) for row in found)
    return found.to_csv(index=False)


def scored(run: Run, text: str, of: str, settings: Sequence[str]) -> dict[str, Any]:
    """Log-likelihoods of rows as a page shows them, with the most unlikely rows."""
    what: Any = read_rows(run, text) if text else None
    if not text and of not in SPLITS:
        what = loaded.check_data(of)
    with loaded.computing():
        rows = loaded.with_data(run).split(what, of if what is None else None)
        total = len(rows)
        rows.index = rows.index[:MAX_SCORED]
        found = likelihoods(run, rows, settings)
        order = np.argsort(found.value, kind="stable")[:UNLIKELY]
        numbers = rows.numbers.tolist()
        lead = {
            "row": [numbers[k] for k in order],
            "nats": [float(found.value[k]) for k in order],
        }
        batch = rows.batch(torch.as_tensor(order.copy()))
        shown = showing.show(run.view, batch.x, batch.length, lead)
    address = f"/runs/{loaded.name_of(run.folder)}/rows.png"
    return {
        "mean": found.mean,
        "bits": found.bits_per_dim,
        "rows": len(found.value),
        "total": total,
        "impossible": found.impossible,
        "description": found.description,
        "shown": shown,
        "lead": lead,
        "pictures": [link(address, row=int(k), of=of) for k in order],
        "histogram": charts.distribution(
            found.value[np.isfinite(found.value)], "Log-likelihood of the rows", "nats"
        ),
    }


def likelihoods(run: Run, rows: Any, settings: Sequence[str]) -> RowLikelihoods:
    """As `monge score` computes them."""
    model = run.require(HasLikelihood)
    options = apply_overrides(model.LikelihoodConfig(), settings, "score")
    found = row_likelihoods(model, chunks(rows), run.space.dims, options, pad=True)
    return given_constraints(found, run.acceptance) if run.view.constraints else found


def read_rows(run: Run, text: str) -> Any:
    """Rows that a person typed: csv for a table, numbers or a text in each line."""
    import pandas as pd

    accepts = typed_form(run)
    if accepts == "texts":
        return [line for line in text.splitlines() if line.strip()]
    if not accepts:
        raise DataError(
            f"expected an upload or a split, found typed rows; rows of {run.space} are not typed"
        )
    try:
        if accepts == "table":
            return pd.read_csv(io.StringIO(text), dtype=object, keep_default_na=True)
        return pd.read_csv(io.StringIO(text), header=None).to_numpy(np.float64)
    except ValueError as error:
        wanted = "csv with a header" if accepts == "table" else "numbers, a line for each row"
        raise DataError(f"expected rows as {wanted}, found {error}; change them") from error


@router.get("/runs/{name}/rows.png")
def rows_png(name: str, row: int = 0, of: str = "test") -> Response:
    """One row, of a split of the run's data or of an upload, as a picture."""
    run = loaded.with_data(loaded.load(name))
    if not run.space.is_image:
        raise UsageError(f"expected a run on pictures, found {run.space}; look at its rows")
    own = run.split(None if of in SPLITS else loaded.check_data(of), of if of in SPLITS else None)
    if not 0 <= row < len(own):
        raise UsageError(f"row: expected 0 to {len(own) - 1}, found {row}; reload the page")
    batch = own.batch(torch.tensor([row]))
    return Response(showing.pictures(batch.x, run.space, 1), media_type="image/png")


@router.get("/runs/{name}/about")
def about(request: Request, name: str) -> Response:
    """The card, the settings and the report."""
    state = page_state(name)
    metadata = storage.read_metadata(state["folder"]) if state["there"] else {}
    settings = [
        *dotted(metadata.get("config", {})),
        *dotted(metadata.get("train", {}), "train."),
    ]
    return render(
        request,
        "about.html",
        **state,
        card=loaded.card_text(state["folder"]),
        settings=settings,
        metadata=metadata,
        figures=[path.stem for path in sorted((state["folder"] / "figures").glob("*.png"))],
        section="about",
    )


@router.get("/runs/{name}/figures/{figure}")
def figure(name: str, figure: str) -> Response:
    folder = loaded.folder_of(name)
    path = loaded.resolve_below(folder, "figures", f"{figure}.png")
    return Response(path.read_bytes(), media_type="image/png")


@router.get("/runs/{name}/report")
def report(name: str) -> Response:
    """The report of a run, made now; the page holds all it shows and runs no script."""
    run = loaded.load(name)
    with loaded.computing():
        text = of_run(loaded.with_data(run))
    return HTMLResponse(text, headers=REPORT_HEADERS)
