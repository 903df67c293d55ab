"""`chargehand secret …`: what is kept, without ever showing it."""

from __future__ import annotations

import sys

import click

from chargehand.app.composition import App
from chargehand.cli._output import Output
from chargehand.core.errors import UsageError

_MOST_BYTES = 64 * 1024  # more than any secret may have: what is longer is refused, not cut


def keep_secret(out: Output, name: str) -> int:
    """Ask for a secret, or read it from stdin, and keep it."""
    with App.open() as app:
        app.credentials.describe(name)  # a name that is none, or a file that is not right, before anyone types
        where = app.credentials.set(name, _asked(name))
        hidden = app.credentials.describe(name) == "environment"
    out.document({"name": name, "kept_in": where, "hidden_by_environment": hidden})
    out.text(f"{name} is kept in {where}")
    if hidden:
        out.text(f"note: the environment variable {name} goes before it; unset it to use what is kept")
    return 0


def show_secrets(out: Output) -> int:
    """Write the names of what is kept and where each would come from."""
    with App.open() as app:
        names = app.credentials.names()
    out.document({"secrets": [each._asdict() for each in names]})
    if not names:
        out.text("no secret is kept; keep one with  chargehand secret set NAME")
        return 0
    out.table(("NAME", "FROM"), [(each.name, each.origin or "keyring, which does not answer") for each in names])
    return 0


def forget_secret(out: Output, name: str) -> int:
    """Remove a secret from where it is kept."""
    with App.open() as app:
        app.credentials.remove(name)
        origin = app.credentials.describe(name)
    out.document({"name": name, "removed": True, "origin": origin})
    out.text(f"{name} is removed")
    if origin is not None:
        out.text(f"note: it still comes from the {origin}")
    return 0


def _asked(name: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"value of {name}", hide_input=True, err=True))
    content = sys.stdin.buffer.read(_MOST_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError:
        # Not chained: the error holds the bytes.
        raise UsageError(
            f"the value of {name} is not UTF-8", code="secret_invalid", hint="give one line of text on stdin"
        ) from None
