"""Print the script that completes commands, options, models and runs in a shell"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ..core.errors import UsageError
from ._output import Console, common

SHELLS = {
    "bash": 'add to ~/.bashrc: eval "$(monge completion bash)"',
    "zsh": 'add to ~/.zshrc: eval "$(monge completion zsh)"',
    "fish": "write it to ~/.config/fish/completions/monge.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
@common
@click.pass_context
def command(context: click.Context, console: Console, shell: str) -> None:
    """Print the completion script of SHELL; Tab then completes commands, options, models and runs.

    \b
      eval "$(monge completion bash)"        in ~/.bashrc
      eval "$(monge completion zsh)"         in ~/.zshrc
      monge completion fish > ~/.config/fish/completions/monge.fish
    """
    found = get_completion_class(shell)
    if found is None or context.parent is None:
        raise UsageError(f"expected {', '.join(SHELLS)}, found {shell}; name one of them")
    try:
        script = found(context.parent.command, {}, "monge", "_MONGE_COMPLETE").source()
    except RuntimeError as error:  # click asks the installed bash for its version
        raise UsageError(
            f"expected bash 4.4 or newer, found another ({error}); install it, or use zsh or fish"
        ) from error
    console.result({"shell": shell, "script": script}, script)
    console.note(SHELLS[shell])
