"""Start the server: check the runs, take the port, and run the worker processes."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from .app import PUBLIC, counters_of, guarded_app
from .listening import bind, server_config
from .security import Access, is_loopback, make_token, read_token
from .served import load


@dataclass(frozen=True)
class Prepared:
    """A server that is about to run."""

    app: Any  # makes the application, in each worker
    socket: socket.socket
    access: Access
    names: list[str]
    port: int
    workers: int
    is_local: bool


def prepare(
    runs: Sequence[str], host: str | None, port: int, token_file: Path | None, workers: int
) -> Prepared:
    """Check everything that may be wrong before a request is accepted."""
    served = load(runs)
    token = make_token() if token_file is None else read_token(token_file)
    taken = bind(host, port)
    port = taken.getsockname()[1]
    access = Access.at(host, port, token, public=PUBLIC)
    folders = [os.path.abspath(each.run.folder) for each in served]
    counters = counters_of(served, shared=True) if workers > 1 else None
    app = functools.partial(guarded_app, folders, access, counters)
    local = host is None or is_loopback(host)
    names = [each.name for each in served]
    return Prepared(app, taken, access, names, port, workers, local)


def run(prepared: Prepared) -> None:
    """Answer requests until the process is told to stop; those that were begun are answered."""
    config = server_config(prepared.app, factory=True, workers=prepared.workers)
    try:
        if prepared.workers > 1:
            Multiprocess(config, [prepared.socket]).run()
        else:
            uvicorn.Server(config).run([prepared.socket])
    finally:
        prepared.socket.close()
