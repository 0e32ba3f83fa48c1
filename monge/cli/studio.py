"""Look at data, fit, ask and compare in a browser

Prints one address with its token and opens it. Ctrl-C ends the studio; fits go on unless
--stop-fits is given.
"""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Any

import click

from ..core.errors import UsageError
from ..run import storage
from ._output import Console, common


@click.command("studio")
@click.option("--port", default=8700, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    help="Directory of the runs.  [default: MONGE_RUNS, or ./runs]",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option(
    "--stop-fits",
    is_flag=True,
    help="Ctrl-C also stops the fits that this studio started; they save a checkpoint.",
)
@common
def command(
    console: Console, port: int, runs: Path | None, no_browser: bool, stop_fits: bool
) -> None:
    """Start the studio on this machine: data, fits, runs and comparisons in a browser."""
    use_runs(runs)
    try:
        import uvicorn

        from ..serve.listening import bind, server_config
        from ..serve.security import Access, make_token
        from ..studio import app, jobs
    except ImportError as error:
        raise UsageError(
            f"the studio needs {error.name}, which is not installed; run `pip install "
            "'monge[studio]'`"
        ) from error
    socket = bind(None, port)
    access = Access.at(None, socket.getsockname()[1], make_token())
    address = access.address()
    server = uvicorn.Server(server_config(app.make_studio(access)))
    console.result(
        {"address": address, "runs": str(storage.home())},
        f"studio on {storage.home()}: {address}\nCtrl-C ends it",
    )
    app.warm_up()
    if not no_browser:
        webbrowser.open(address)
    try:
        server.run(sockets=[socket])
    except KeyboardInterrupt:
        pass
    finally:
        console.note(end_fits(jobs, stop_fits))


def use_runs(runs: Path | None) -> None:
    """Make this the folder of runs, if it can be; what is started here uses it too."""
    if runs is not None:
        if not runs.is_dir():
            raise UsageError(
                f"--runs: expected a directory, found {'a file' if runs.exists() else 'nothing'} "
                f"at {runs}; make it with `mkdir -p {runs}`, or name another"
            )
        os.environ["MONGE_RUNS"] = str(runs)
    home = Path(os.path.abspath(storage.home()))
    above = next(place for place in (home, *home.parents) if place.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(
            f"--runs: expected a directory in which you may write, found {home}; change its "
            "permissions, or name another"
        )
    os.environ["MONGE_RUNS"] = str(home)


def end_fits(jobs: Any, stop_fits: bool) -> str:
    """Stop the fits if that is asked, and say what goes on."""
    own = jobs.mine()
    if not own:
        return "the studio ended"
    names = ", ".join(job.name for job in own)
    if not stop_fits:
        return f"the studio ended; still running: {names}"
    for job in own:
        job.ask("stop")
    return f"the studio ended; asked to save and stop: {names}"
