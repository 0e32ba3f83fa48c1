"""The server of fitted models: HTTP routes over runs, one copy of their weights in each worker."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.responses import StreamingResponse as Streaming
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException

from .. import __version__
from ..core.errors import MongeError
from .metrics import Counters
from .queueing import SECONDS, WINDOW, Busy, Closing, JobQueue, TooSlow
from .requests import Refusal, refusal
from .security import Access, Guard
from .served import ServedRun, Task, load

FOLDER = Path(__file__).parent
PUBLIC = frozenset({"/health"})
"""Paths that need no token."""
LINES = "application/x-ndjson"
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
    for status, text in (
        (400, "A header is missing, repeated or wrong."),
        (401, "The token is missing or wrong."),
        (403, "The request comes from another site, or to another name."),
        (404, "There is no such run or task."),
        (408, "The body did not arrive in time."),
        (413, "The request asks for too much at once."),
        (422, "The request does not fit the run."),
        (429, "Too many requests are waiting; try again."),
        (503, "The answer was not there in time, or the server is being stopped."),
    )
}


GUARDED: dict[int | str, dict[str, Any]] = {code: REFUSALS[code] for code in (400, 401, 403)}
"""What the guard may answer to any request."""


def guarded_app(
    runs: Sequence[str], access: Access, counters: Counters | None = None, window: float = WINDOW
) -> Guard:
    """The server behind its guard, as each worker process builds it."""
    return Guard(make_app(load(runs), counters, window), access)


def make_app(
    runs: Sequence[ServedRun],
    counters: Counters | None = None,
    window: float = WINDOW,
    seconds: float = SECONDS,
    **queue: Any,
) -> FastAPI:
    """Routes for each task of each run."""
    counted = counters or counters_of(runs)
    queues = {run.name: JobQueue(run.name, window, seconds=seconds, **queue) for run in runs}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for each in queues.values():
            each.close()

    app = FastAPI(
        title="Monge",
        version=__version__,
        description="Fitted models: " + ", ".join(run.name for run in runs),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.state.queues = queues
    add_handlers(app)
    add_pages(app, runs, counted)
    for run in runs:
        add_health(app, run)
        for task in run.tasks.values():
            add_task(app, run, task, queues[run.name], counted)
    return app


def counters_of(runs: Sequence[ServedRun], shared: bool = False) -> Counters:
    return Counters([(run.name, task) for run in runs for task in run.tasks], shared)


def add_handlers(app: FastAPI) -> None:
    """Every error is one sentence in one form."""

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        status, sentence = refusal(error.errors())
        return refused(status, sentence)

    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = {
            404: f"there is no {request.url.path}; /docs lists what there is",
            405: f"{request.method} is not allowed here; /docs lists what is",
        }
        return refused(
            error.status_code,
            known.get(error.status_code, str(error.detail)),
            dict(error.headers or {}),
        )

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, failed)


def refused(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)


def add_pages(app: FastAPI, runs: Sequence[ServedRun], counters: Counters) -> None:
    document: dict[str, Any] = {}

    def described() -> dict[str, Any]:
        if not document:
            document.update(with_token(app.openapi()))
        return document

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(described(), [run.about for run in runs]))

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return Response((FOLDER / "docs.css").read_text(encoding="utf-8"), media_type="text/css")

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(described())

    @app.get("/health", summary="Whether the server is up")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/metrics",
        summary="Counters in the text format of Prometheus",
        response_model=None,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **GUARDED,
        },
    )
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(counters.text(), media_type="text/plain; version=0.0.4")

    @app.get(
        "/v1",
        summary="The runs and their tasks",
        responses=GUARDED,
    )
    async def listing() -> list[dict[str, Any]]:
        return [run.about for run in runs]


def add_health(app: FastAPI, run: ServedRun) -> None:
    @app.get(
        f"/v1/{run.name}/health",
        summary="What the run is",
        tags=[run.name],
        operation_id=f"{run.name} health",
        responses=GUARDED,
    )
    async def health() -> dict[str, Any]:
        return {"status": "ok", **run.about}


def add_task(
    app: FastAPI, run: ServedRun, task: Task, queue: JobQueue, counters: Counters
) -> None:
    """POST /v1/RUN/TASK."""

    labels = {"run": run.name, "task": task.name}

    def compute(bodies: Sequence[Any]) -> Sequence[Any]:
        before = run.batches
        if task.answer_many is None or task.key(bodies[0]) is None:
            found, made = [task.answer(bodies[0])], 1
        else:
            found = task.answer_many(bodies)
            made = run.batches - before
        counters.add("monge_batches_total", made, **labels)
        return found

    async def answer(body: Any) -> Response:
        start, status = time.monotonic(), 500
        counters.add("monge_in_flight", 1, **labels)
        try:
            found = await respond(task, queue, compute, body)
            status = found.status_code
            return found
        finally:
            counters.add("monge_in_flight", -1, **labels)
            rows = task.count(body) if status == 200 else 0
            counters.answered(run.name, task.name, status, time.monotonic() - start, rows)

    endpoint: Callable[..., Awaitable[Response]] = answer
    endpoint.__annotations__ = {"body": task.request, "return": Response}
    responses = dict(REFUSALS)
    responses[200] = {"model": task.response, "description": task.summary}
    if task.stream is not None:
        responses[200]["content"] = {LINES: {"schema": {"type": "string"}}}
    app.add_api_route(
        f"/v1/{run.name}/{task.name}",
        endpoint,
        methods=["POST"],
        summary=task.summary,
        tags=[run.name],
        operation_id=f"{run.name} {task.name}",
        response_class=JSONResponse,
        response_model=None,
        responses=responses,
    )


async def respond(
    task: Task, queue: JobQueue, compute: Callable[[Sequence[Any]], Sequence[Any]], body: Any
) -> Response:
    """The answer of a task, or why there is none."""
    try:
        if task.stream is not None and body.stream:
            return await stream(queue, partial(task.stream, body))
        return JSONResponse(await queue.ask(body, compute, task.key(body)))
    except MongeError as error:
        return refused(422, " ".join(str(error).split()))
    except Busy:
        return refused(
            429,
            f"expected at most {queue.waiting} waiting requests, found more; try again later",
            {"retry-after": "1"},
        )
    except TooSlow:
        return refused(
            503,
            f"expected an answer within {queue.seconds:g} seconds, found none; ask for less at "
            "once, or try again later",
            {"retry-after": "5"},
        )
    except Closing:
        return refused(503, "the server is being stopped; try again later", {"retry-after": "5"})
    except Exception as error:
        return refused(
            500, f"internal error ({type(error).__name__}: {error}); the server goes on"
        )


async def stream(queue: JobQueue, states: Callable[[], Any]) -> Response:
    """Lines of JSON; an error before the first line has its own status, a later one is a line."""
    found = queue.stream(states)
    first = await anext(found, None)

    async def lines() -> AsyncIterator[bytes]:
        try:
            if first is not None:
                yield json.dumps(first).encode() + b"\n"
            async for state in found:
                yield json.dumps(state).encode() + b"\n"
        except (MongeError, TooSlow, Closing) as error:
            sentence = str(error) or f"no answer within {queue.seconds:g} seconds; ask for less"
            yield json.dumps({"error": sentence}).encode() + b"\n"
        finally:
            await found.aclose()  # type: ignore[attr-defined]

    return Streaming(lines(), media_type=LINES)


def with_token(document: dict[str, Any]) -> dict[str, Any]:
    """The description with the token that all but the open paths need."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["token"] = {"type": "http", "scheme": "bearer"}
    for path, methods in document["paths"].items():
        for about in methods.values():
            if path == "/metrics":
                del about["responses"]["200"]["content"]["application/json"]
            about["security"] = [] if path in PUBLIC else [{"token": []}]
            about["responses"].pop("422", None) if "requestBody" not in about else None
    return document


def page(document: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str:
    """The description as a page, without scripts."""
    loader = FileSystemLoader(FOLDER)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    schemas = document.get("components", {}).get("schemas", {})
    paths = [
        {"path": path, "method": method.upper(), **about}
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    ]
    return environment.get_template("docs.html").render(
        title=document["info"]["title"],
        version=document["info"]["version"],
        runs=runs,
        paths=paths,
        schemas=schemas,
    )
