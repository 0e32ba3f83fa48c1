"""The table of verbs: every public file of this folder but this one, imported when called."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import click

from ..core.errors import MongeError, nearest

FOLDER = Path(__file__).parent


def verbs() -> dict[str, str]:
    """Each verb with the first line of its file's docstring; nothing is imported."""
    paths = [p for p in FOLDER.glob("*.py") if p.stem != "main" and not p.stem.startswith("_")]
    docs = {p.stem: ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) for p in paths}
    return {name: (doc or "").partition("\n")[0] for name, doc in sorted(docs.items())}


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(verbs())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in verbs():
            return None
        return importlib.import_module(f"monge.cli.{name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args[0] not in verbs() and not args[0].startswith("-"):
            raise click.UsageError(f"there is no verb {args[0]!r}{nearest(args[0], verbs())}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(verbs().items()))


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Verbs, context_settings=SETTINGS, epilog="`monge VERB --help` tells more.")
@click.version_option(package_name="monge", message="monge %(version)s")
def monge() -> None:
    """Fit, sample, score and compare deep generative models.

    \b
      monge fit made digits --budget 30s
      monge sample made-digits -n 64 -o grid.png
    """


def main(words: list[str] | None = None) -> None:
    """Run one command line and leave with 0 (done), 1 (the work failed) or 2 (wrong words)."""
    sys.exit(attempt(sys.argv[1:] if words is None else words))


def attempt(words: list[str]) -> int:
    """The exit code of a command line; errors are told in one sentence."""
    debug = "--debug" in words
    try:
        return (
            monge.main(
                [w for w in words if w != "--debug"], prog_name="monge", standalone_mode=False
            )
            or 0
        )
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        return tell(error.format_message(), 2, words)
    except (click.Abort, KeyboardInterrupt):
        return tell("stopped at once; the last checkpoint can be resumed", 1, words)
    except BrokenPipeError:
        return 1
    except MongeError as error:
        if debug:
            raise
        return tell(str(error), error.code, words)
    except OSError as error:
        if debug:
            raise
        return tell(refused(error), 1, words)
    except Exception as error:
        if debug:
            raise
        return tell(f"unforeseen {type(error).__name__}: {error}; --debug shows where", 1, words)


def refused(error: OSError) -> str:
    """What the system would not do, to which file, and what to try."""
    if error.filename is None:
        return f"the system refused: {error}"
    return (
        f"{error.filename} cannot be opened or written ({error.strerror}); check the path, "
        "who may write there and the space left, or choose another place"
    )


def tell(sentence: str, code: int, words: list[str]) -> int:
    """The sentence on stderr, and as JSON on stdout where JSON was asked for."""
    if "--json" in words:
        click.echo(json.dumps({"error": sentence}))
    click.echo(f"monge: {' '.join(sentence.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
