"""`chargehand login` and `chargehand logout`: the token for a server, stored as other secrets are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import insecure_option, json_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

_LARGEST_BYTES = 64 * 1024


@click.command()
@click.argument("url")
@insecure_option
@json_option
def login(url: str, insecure_http: bool, out: Output) -> None:
    """Store a token for a server, so that --server works with it.

    The token is asked for, or read from stdin in a pipe; `chargehand token create` makes one on the server. It is
    tested, then stored in the system's keyring, or without a keyring in a file that only you can read.

    \b
    Example:
      chargehand login https://chargehand.example.org < token.txt
    """
    from chargehand.app.configuration import ServerLogin, keep_server_token
    from chargehand.cli.remote.connection import ServerConnection, check_url
    from chargehand.credentials.credentials import check_value
    from chargehand.reports.reading import StateReader

    server = check_url(url, insecure=insecure_http)
    if sys.stdin.isatty():
        given = str(click.prompt(f"token for {server}", hide_input=True, err=True))
    else:
        given = sys.stdin.buffer.read(_LARGEST_BYTES).decode(errors="replace")
    token = check_value("the token", given).strip()
    with ServerConnection(server, token) as connection:
        session = connection.show_session()
    with StateReader.open() as reader:
        place = keep_server_token(reader, server, token)
        hidden_by = "CHARGEHAND_TOKEN" if reader.environ.get("CHARGEHAND_TOKEN") else None
    made = ServerLogin(
        server=server, user=session["user"], role=session["role"], kept_in=place, hidden_by=hidden_by
    )
    out.document(made)
    out.text(f"{server} knows you as {made.user} ({made.role}). The token is stored in {place}.")
    out.text(f"next:     chargehand --server {server} mission list")
    if hidden_by is not None:
        out.text(f"note: the environment variable {hidden_by} takes precedence; unset it to use the stored token")


@click.command()
@click.argument("url")
@json_option
def logout(url: str, out: Output) -> None:
    """Delete the stored token for a server, which accepts it until it is revoked: chargehand token revoke."""
    from chargehand.app.configuration import remove_server_token
    from chargehand.cli.remote.connection import check_url
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        removed = remove_server_token(reader, check_url(url, insecure=True))
    out.document(removed)
    out.text(f"The token for {removed.server} is removed here. Revoke it there to let it count no more.")
