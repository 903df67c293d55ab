"""`chargehand secret`: the keys of model providers, kept without ever showing them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

from chargehand.cli.terminal.options import CommandGroup, complete_secrets, json_option

# More than any secret may have: the rules of secrets refuse longer values, which are never truncated.
_LARGEST_BYTES = 64 * 1024


@click.group(cls=CommandGroup)
def secret() -> None:
    """Store the keys of model providers on this machine, out of every sandbox."""


@secret.command("set")
@click.argument("name", shell_complete=complete_secrets)
@json_option
def set_(name: str, out: Output) -> None:
    """Store a secret in the system's keyring, or without one in a file that only you can read.

    The value is asked for, or read from stdin in a pipe. It is never an argument, since other users can see those.

    \b
    Example:
      chargehand secret set OPENAI_API_KEY < key.txt
    """
    from chargehand.app.configuration import keep_secret
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        # Called once the name is known to be valid, so that no person types in vain.
        kept = keep_secret(reader, name, read=lambda: read_hidden(f"value of {name}"))
    out.document(kept)
    out.text(f"{name} is stored in {kept.kept_in}")
    if kept.warning is not None:
        out.text(f"{name} is weakly protected: {kept.warning}")
    if kept.hidden_by_environment:
        out.text(f"note: the environment variable {name} takes precedence; unset it to use the stored value")


def read_hidden(what: str) -> str:
    """Return a secret that a person types unseen, or the content of stdin in a pipe. Raises `UsageError`."""
    from chargehand.core.errors import UsageError

    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True, err=True))
    content = sys.stdin.buffer.read(_LARGEST_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError:
        # Not chained: the decoding error contains the bytes, and a traceback would show them.
        raise UsageError(
            f"the {what} is not UTF-8", code="secret_invalid", hint="give one line of text on stdin"
        ) from None


@secret.command("list")
@json_option
def list_(out: Output) -> None:
    """List the names and sources of stored secrets, never their values."""
    from chargehand.app.configuration import list_secrets
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_secrets(reader)
    out.document(listed)
    if not listed.secrets:
        out.text("No secrets are stored. To store one: chargehand secret set NAME")
        return
    rows = [(each.name, each.origin or "keyring (does not answer)") for each in listed.secrets]
    out.table(("NAME", "FROM"), rows)


@secret.command()
@click.argument("name", shell_complete=complete_secrets)
@json_option
def remove(name: str, out: Output) -> None:
    """Delete a stored secret."""
    from chargehand.app.configuration import remove_secret
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        removed = remove_secret(reader, name)
    out.document(removed)
    out.text(f"{name} is removed")
    if removed.origin is not None:
        out.text(f"note: it still comes from the {removed.origin}")
