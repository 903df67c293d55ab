"""`chargehand completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

from chargehand.cli.terminal.options import PROGRAM, json_option

# The name that click derives from the program's: the script and the program must agree on it.
_VARIABLE = "_CHARGEHAND_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, out: Output) -> None:
    """Print the completion script for a shell.

    \b
    Example:
      chargehand completion bash \\
        > ~/.local/share/bash-completion/completions/chargehand
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, PROGRAM, _VARIABLE).source()
    out.document({"shell": shell, "script": script})
    out.text(script)
