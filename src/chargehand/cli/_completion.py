"""The completion scripts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from chargehand.cli.options import PROGRAM
from chargehand.cli.output import Output

_VARIABLE = "_CHARGEHAND_COMPLETE"


def completion(out: Output, root: click.Command, shell: str) -> int:
    """Print the script that lets a shell complete our commands and options."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(root, {}, PROGRAM, _VARIABLE).source()
    out.document({"shell": shell, "script": script})
    out.text(script)
    return 0
