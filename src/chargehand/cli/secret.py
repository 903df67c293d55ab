"""`chargehand secret`: the keys of model providers, kept without ever showing them."""

from __future__ import annotations

import sys
from pathlib import Path
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
@click.option("--source", default="", help="An encrypted file of [secrets.sources] to store it in instead.")
@json_option
def set_(name: str, source: str, out: Output) -> None:
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
        kept = keep_secret(reader, name, read=lambda: read_hidden(f"value of {name}"), source=source)
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


@secret.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_secrets)
@json_option
def check(names: tuple[str, ...], out: Output) -> int:
    """Ask the sources for secrets, and show what each has; no value is shown.

    Without NAME: all that are stored, in [secrets.keys], or named by a model. Exits 1 if one is not found.
    """
    from chargehand.app.configuration import check_secrets
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        checked = check_secrets(reader, names)
    out.document(checked)
    if checked.secrets:
        rows = [(each.name, each.entry, each.source or each.problem or each.state) for each in checked.secrets]
        out.table(("NAME", "ENTRY", "FROM"), rows)
    else:
        out.text("No secret is stored or named.")
    return 0 if all(each.state == "found" for each in checked.secrets) else 1


@secret.command()
@click.argument("name", shell_complete=complete_secrets)
@json_option
def rotate(name: str, out: Output) -> None:
    """Have running workers read a secret again before its next use, after you changed it in its source.

    It does not change the secret itself: `secret set`, or the store's own means, do.
    """
    from chargehand.app.configuration import rotate_secret
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        rotated = rotate_secret(reader, name)
    out.document(rotated)
    out.text(f"{name} is read again from {rotated.source} before its next use")


@secret.command()
@click.argument("name", shell_complete=complete_secrets)
@click.option("--role", help="The role of the use to explain; any by default.")
@click.option("--provider", help="The provider or host of the use to explain; any by default.")
@click.option("--repo", type=click.Path(path_type=Path), help="The repository of the use; by default this one.")
@json_option
def explain(name: str, role: str | None, provider: str | None, repo: Path | None, out: Output) -> int:
    """Show the sources and the scope of a secret, and the keys that name it; asks no source.

    Exits 1 if its scope refuses the use.
    """
    from chargehand.app.configuration import explain_secret
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = explain_secret(reader, name, role=role, provider=provider, repo=repo)
    out.document(found)
    for each in found.entries:
        scopes = (("projects", each.projects), ("roles", each.roles), ("providers", each.providers))
        place = "".join(f", {word} {text}" for word, text in (("path", each.path), ("field", each.field)) if text)
        out.text(
            f"entry {each.entry or '(none)'}: from {', then '.join(each.sources)}{place}; kept {each.ttl:g} s"
        )
        out.text("  for " + "; ".join(f"{word} {', '.join(allowed) or 'any'}" for word, allowed in scopes))
    out.text("named by: " + (", ".join(found.named_by) or "nothing in your configuration"))
    out.text(f"refused: {found.refusal}" if found.admitted is None else "this use is admitted")
    return 1 if found.admitted is None else 0
