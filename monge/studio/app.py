"""The application: its pages behind the guard, its files, its errors as pages."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from .. import registry
from ..core.errors import MongeError
from ..run import storage
from ..serve.security import Access, Guard, check_name
from . import ask, compare, data, fit, jobs, loaded, runs, uploads
from .job import cores
from .pages import HERE, error_page, failure, render

STATIC = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
ROWS_A_PAGE = 200
"""Runs that one page of the list shows."""
BODY_SECONDS = 300.0
"""Seconds in which an upload must arrive."""


def make_app() -> FastAPI:
    """All pages, without the guard."""
    app = FastAPI(title="Monge studio", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=2000)
    app.add_api_route("/", home)
    app.add_api_route("/jobs", job_list)
    app.add_api_route("/static/{name}", static)
    for module in (data, fit, compare, ask, runs):
        app.include_router(module.router)
    app.add_exception_handler(MongeError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_status)
    app.add_exception_handler(Exception, on_error)
    return app


def make_studio(access: Access) -> Guard:
    """The application behind its guard."""
    limits = {**access.body_limits, "/data/upload": uploads.MAX_UPLOAD + (1 << 20)}
    return Guard(make_app(), replace(access, body_limits=limits, body_seconds=BODY_SECONDS))


def home(request: Request, q: str = "", page: int = 1) -> Response:
    """The runs: those that train now, and all others, the newest first."""
    jobs.reap()
    known = jobs.listing()
    words = q.lower().split()
    every = [
        each
        for each in loaded.summaries()
        if all(w in f"{each.name} {each.model} {each.data} {each.error}".lower() for w in words)
    ]
    active = {job.name for job in known}
    first = (max(page, 1) - 1) * ROWS_A_PAGE
    shown = every[first : first + ROWS_A_PAGE]
    return render(
        request,
        "home.html",
        title="Runs",
        live=[(job, loaded.status(job.name, known)) for job in known],
        rows=[(each, status_of(each, active, known)) for each in shown],
        total=len(every),
        q=q,
        page=max(page, 1),
        pages=-(-len(every) // ROWS_A_PAGE),
        comparisons=loaded.comparisons(),
        cores=cores(),
        runs_folder=str(storage.home()),
        writable=is_writable(storage.home()),
    )


def status_of(row: loaded.Summary, active: set[str], known: list[jobs.Job]) -> loaded.Status:
    if row.error:
        return loaded.Status("damaged", row.error)
    if row.name in active or row.step is None or row.stopped == "asked":
        return loaded.status(row.name, known)
    folder = storage.home() / row.name
    if loaded.stamp(folder / ".lock")[0] and loaded.is_training(folder):
        return loaded.status(row.name, known)
    return loaded.Status("done")


def job_list(request: Request) -> Response:
    """The queue alone, for a page that follows it."""
    known = jobs.listing()
    return render(
        request,
        "jobs.html",
        title="Jobs",
        live=[(job, loaded.status(job.name, known)) for job in known],
        cores=cores(),
    )


def static(name: str) -> Response:
    """A file of the studio."""
    check_name(name)
    path = HERE / "static" / name
    kind = STATIC.get(Path(name).suffix)
    if kind is None or not path.is_file():
        raise HTTPException(404, f"there is no file {name!r}")
    return FileResponse(path, media_type=kind, headers={"cache-control": "private, max-age=60"})


def on_error(request: Request, error: Exception) -> Response:
    return failure(request, error)


def on_invalid(request: Request, error: Exception) -> Response:
    return error_page(request, "a part of the address is missing or wrong; go back", 422)


def on_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = error.detail
    if error.status_code in (404, 405) and sentence in ("Not Found", "Method Not Allowed"):
        sentence = "there is no such page; choose one from the top of the page"
    return error_page(request, sentence, error.status_code)


def is_writable(folder: Path) -> bool:
    there = folder if folder.exists() else folder.parent
    return os.access(there, os.W_OK)


def warm_up() -> None:
    """Import what the first pages need, while nobody waits."""

    def work() -> None:
        for entry in registry.entries():
            registry.find(entry.name)

    threading.Thread(target=work, daemon=True).start()
