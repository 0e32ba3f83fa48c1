"""The entry point: finds the commands, runs one and turns errors into one sentence.

Every public file of this folder but this one is a command, imported only when it is called.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from .. import registry
from ..core.errors import MongeError, nearest, shorten_words

FOLDER = Path(__file__).parent


def commands() -> dict[str, str]:
    """Each command with the first line of its file's docstring; nothing is imported."""
    paths = [p for p in FOLDER.glob("*.py") if p.stem != "main" and not p.stem.startswith("_")]
    docs = {p.stem: ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) for p in paths}
    return {name: (doc or "").partition("\n")[0] for name, doc in sorted(docs.items())}


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
            formatter.write_dl(list(commands().items()))


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
    args = sys.argv[1:] if args is None else args
    sys.exit(flushed(attempt(args), args))


def flushed(code: int, args: list[str]) -> int:
    """The exit code once everything printed has arrived; a full disk may show only here."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        failed = 1
    except OSError as error:
        click.echo(f"monge: cannot write the output ({error.strerror}); free some space", err=True)
        failed = 1
    # what is left in the buffer would raise again when the interpreter ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return failed


def attempt(args: list[str]) -> int:
    """The exit code of a command line; an error is printed as one sentence."""
    debug = "--debug" in args
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
        return print_error(internal_error(error), 1, args)


def with_remedy(error: click.UsageError) -> str:
    """The sentence about a wrong command line; one without a remedy gets the command's help."""
    sentence = error.format_message().rstrip(". ")
    if ";" in sentence or "?" in sentence:
        return sentence
    command = error.ctx.command_path if error.ctx else "monge"
    return f"{sentence}; `{command} --help` lists what it takes"


def internal_error(error: Exception) -> str:
    return registry.error_in_user_file(error) or (
        f"internal error ({type(error).__name__}: {error}); rerun with --debug for a traceback"
    )


def describe_os_error(error: OSError) -> str:
    """The file that the system could not open or write, and what to check."""
    if error.filename is None:
        return f"system error: {error}; rerun with --debug for a traceback"
    return (
        f"cannot open or write {error.filename} ({error.strerror}); check the path, its "
        "permissions and the free disk space, or choose another path"
    )


def print_error(sentence: str, code: int, args: list[str]) -> int:
    """Print the sentence on stderr, and with --json as JSON on stdout; returns the exit code."""
    sentence = shorten_words(sentence)
    if "--json" in args:
        click.echo(json.dumps({"error": sentence}))
    click.echo(f"monge: {sentence}", err=True)
    return code


if __name__ == "__main__":
    main()
