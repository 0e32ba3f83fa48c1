"""A socket for a server on this machine, and uvicorn on it."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..core.errors import UsageError

HEADER_SECONDS = 10.0
"""Seconds in which the head of a request must arrive."""
STOP_SECONDS = 10
"""Seconds that requests get to finish when the server is stopped."""
START_SECONDS = 300
"""Seconds in which a worker process must have loaded its runs."""
TRIED_PORTS = 100


def bind(host: str | None, port: int) -> socket.socket:
    """A socket that listens; a sentence that names a free port if this one is taken."""
    name = host or "127.0.0.1"
    try:
        return listen(name, port)
    except OverflowError:
        raise UsageError(f"--port: expected a number up to 65535, found {port}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"--port: port {port} of {name} is taken by another process; use --port "
                f"{free_port(name, port + 1)}, which is free"
            ) from error
        if error.errno == errno.EACCES:
            raise UsageError(
                f"--port: you may not use port {port} ({error.strerror}); use --port "
                f"{free_port(name, 8000)}, which is free"
            ) from error
        raise UsageError(
            f"--host: cannot listen on {name} ({error.strerror}); use an address of this machine"
        ) from error


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except BaseException:
        found.close()
        raise
    found.set_inheritable(True)
    return found


def free_port(host: str, first: int) -> int:
    """A port from `first` on that nothing listens on, else any."""
    for port in [*range(first, min(first + TRIED_PORTS, 65536)), 0]:
        try:
            with listen(host, port) as found:
                return found.getsockname()[1]
        except OSError:
            continue
    raise UsageError(f"--port: no port of {host} is free; end a process that listens")


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on a connection that must send the head of each request in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.wait_for_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.head_timer.cancel()
        self.wait_for_head()

    def wait_for_head(self) -> None:
        self.head_timer = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.give_up)

    def give_up(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if waits and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.head_timer.cancel()
        super().connection_lost(exc)


def server_config(app: Any, **settings: Any) -> uvicorn.Config:
    """uvicorn without colours, proxies, web sockets and its own access log."""
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_worker_healthcheck=START_SECONDS,
        h11_max_incomplete_event_size=64 << 10,
        **settings,
    )
