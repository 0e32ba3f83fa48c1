"""Answer requests over HTTP: sample, score, predict and more from fitted runs

Needs the extra `serve`: pip install 'monge[serve]'.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import UsageError
from ._output import Console, common


@click.command("serve")
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN]...")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--host",
    help="Address to listen on, instead of this machine's own 127.0.0.1. Requests are not "
    "encrypted: put a proxy with TLS before it.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the token that requests must send; made with a new token if it is not there. "
    "By default a new token is printed.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes, each with its own copy of the weights.",
)
@common
def command(
    console: Console,
    runs: tuple[str, ...],
    port: int,
    host: str | None,
    token_file: Path | None,
    workers: int,
) -> None:
    """Serve RUNs over HTTP until Ctrl-C: POST /v1/RUN/sample, score, predict, complete, encode,
    decode, forecast and translate, as far as each run can. /docs describes them."""
    try:
        from ..serve import server
    except ImportError as error:
        raise UsageError(
            f"`monge serve` needs {error.name or 'a package'}, which is not installed; run "
            "pip install 'monge[serve]'"
        ) from error

    prepared = server.prepare(runs, host, port, token_file, workers)
    address = prepared.access.address(host)
    shown = address if token_file is None else address.partition("?")[0]
    console.note(f"serving {', '.join(prepared.names)}; stop with Ctrl-C")
    if host is not None and not prepared.is_local:
        console.note("requests are not encrypted; put a proxy with TLS before this address")
    console.result({"address": shown, "runs": prepared.names, "port": prepared.port}, shown)
    server.run(prepared)
