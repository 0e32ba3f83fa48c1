"""The entry point: finds the commands, runs one and turns errors into one sentence.

Every public file of this folder but this one is a command, imported only when it is called.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ..core.errors import LostWorkerError, MongeError, nearest, shorten_words
from ..core.memory import gigabytes, is_out_of_memory, memory_limit

FOLDER = Path(__file__).parent
COLLECT_AFTER = 50_000, 5, 2
"""New objects after which cycles are searched: importing torch makes many, and none to collect."""


def commands() -> dict[str, Path]:
    """Each command with its file; nothing is imported."""
    paths = (p for p in FOLDER.glob("*.py") if p.stem != "main" and not p.stem.startswith("_"))
    return {path.stem: path for path in sorted(paths)}


def summary(path: Path) -> str:
    """The first line of a file's docstring, with which it begins."""
    with path.open(encoding="utf-8") as lines:
        return next(lines).strip().strip('"')


class Named(click.ParamType):
    """Text of which shells complete the known values."""

    name = "text"

    def __init__(self, known: Callable[[], Iterable[str]]) -> None:
        self.known = known

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(each) for each in self.known() if each.startswith(incomplete)]


def model_names() -> Iterator[str]:
    """Models as one types them, with and without their family."""
    from .. import registry

    for entry in registry.entries():
        yield entry.name.partition(".")[2]
        yield entry.name


def run_names() -> Iterator[str]:
    from ..run import storage

    return (place.name for place in storage.listing())


COMPLETIONS = {
    **dict.fromkeys(("run", "runs", "resume"), Named(run_names)),
    **dict.fromkeys(("model", "name"), Named(model_names)),
}
"""Parameters of commands whose values shells complete."""


class CommandGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in commands():
            return None
        command = importlib.import_module(f"monge.cli.{name}").command
        for parameter in command.params:
            if parameter.type is click.STRING and parameter.name in COMPLETIONS:
                parameter.type = COMPLETIONS[parameter.name]
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args[0] not in commands() and not args[0].startswith("-"):
            raise click.UsageError(
                f"there is no command {args[0]!r}{nearest(args[0], commands())}"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(path)) for name, path in commands().items()])


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(
    cls=CommandGroup, context_settings=SETTINGS, epilog="Run `monge COMMAND --help` for details."
)
@click.version_option(package_name="monge", message="monge %(version)s")
def monge() -> None:
    """Fit, sample, score and compare deep generative models.

    \b
      monge fit made digits --budget 30s
      monge sample made-digits -n 64 -o grid.png
    """


def main(args: list[str] | None = None) -> None:
    """Run one command line and exit with 0 (done), 1 (the work failed) or 2 (wrong usage)."""
    gc.set_threshold(*COLLECT_AFTER)
    args = sys.argv[1:] if args is None else args
    open_closed_streams()
    if "--debug" not in args:
        hide_warnings()
    sys.exit(flushed(attempt(args)))


def open_closed_streams() -> None:
    """Open the standard streams that were closed before the start on the null device: nothing is
    read from or written to them, and no file that is opened later takes their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115


def hide_warnings() -> None:
    """Hide the warnings of libraries, which are for programmers, unless Python is asked to show
    them."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.getLogger().addHandler(logging.NullHandler())


def flushed(code: int) -> int:
    """The exit code once everything printed has arrived; a full disk may show only here."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        pass
    except OSError as error:
        print_error(f"cannot write the output ({error.strerror}); free some space", 1, [])
    # what is left in the buffer would raise again when the interpreter ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code or 1


def attempt(args: list[str]) -> int:
    """The exit code of a command line; an error is printed as one sentence."""
    debug = "--debug" in args
    if not folder_exists():
        return print_error(
            "the current folder was deleted; change to one that exists, as with `cd ~`", 1, args
        )
    if memory_limit() < LEAST_MEMORY:
        return print_error(
            f"expected a memory limit of at least {gigabytes(LEAST_MEMORY)}, which torch needs, "
            f"found {gigabytes(memory_limit())}; raise it, as with `ulimit -v unlimited`",
            1,
            args,
        )
    try:
        return (
            monge.main(
                [arg for arg in args if arg != "--debug"], prog_name="monge", standalone_mode=False
            )
            or 0
        )
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        return print_error(with_remedy(error), 2, args)
    except click.ClickException as error:
        return print_error(error.format_message(), 2, args)
    except (click.Abort, KeyboardInterrupt):
        return print_error(
            "stopped; `monge fit --resume RUN` continues from the last checkpoint", 1, args
        )
    except BrokenPipeError:
        return 1
    except LostWorkerError as error:
        first = os.environ.get("RANK", "0") == "0"  # of several processes one speaks
        return print_error(str(error), error.code, args) if first else error.code
    except MongeError as error:
        if debug:
            raise
        return print_error(str(error), error.code, args)
    except OSError as error:
        if debug:
            raise
        return print_error(describe_os_error(error), 1, args)
    except Exception as error:
        if debug:
            raise
        if is_out_of_memory(error):
            return print_error(OUT_OF_MEMORY, 1, args)
        return print_error(internal_error(error), 1, args)


LEAST_MEMORY = 10**9
"""Bytes of addresses below which importing torch may end the process."""
OUT_OF_MEMORY = (
    "expected enough memory for this, found that the system gives no more; free some, raise the "
    "limit (`ulimit -v`), or choose a smaller train.batch_size, model or number of samples"
)


def folder_exists() -> bool:
    """Whether the current folder is still there; libraries end the process if it is not."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def with_remedy(error: click.UsageError) -> str:
    """The sentence about a wrong command line; one without a remedy gets the command's help."""
    sentence = error.format_message().rstrip(". ")
    if ";" in sentence or "?" in sentence:
        return sentence
    command = error.ctx.command_path if error.ctx else "monge"
    return f"{sentence}; `{command} --help` lists what it takes"


def internal_error(error: Exception) -> str:
    from .. import registry

    return registry.error_in_user_file(error) or (
        f"internal error ({type(error).__name__}: {error}); rerun with --debug for a traceback"
    )


def describe_os_error(error: OSError) -> str:
    """The file that the system could not open or write, and what to check."""
    what = "the output" if error.filename is None else error.filename
    return (
        f"cannot open or write {what} ({error.strerror or error}); check the path, its "
        "permissions and the free disk space, or choose another path"
    )


def print_error(sentence: str, code: int, args: list[str]) -> int:
    """Print the sentence on stderr, and with --json as JSON on stdout; returns the exit code. A
    stream that takes nothing any more changes neither."""
    sentence = shorten_words(sentence)
    if "--json" in args:
        with suppress(OSError):
            click.echo(json.dumps({"error": sentence}))
    with suppress(OSError):
        click.echo(f"monge: {sentence}", err=True)
    return code


if __name__ == "__main__":
    main()
