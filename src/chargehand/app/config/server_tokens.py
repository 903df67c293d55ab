"""The tokens for servers elsewhere, which are kept as other secrets are."""

from __future__ import annotations

import hashlib
import re

import msgspec

from chargehand.app.reading import StateReader
from chargehand.core.errors import NotFoundError

_TOKEN = "CHARGEHAND_TOKEN"


class ServerLogin(msgspec.Struct, frozen=True, kw_only=True):
    """`login`: who a token is for a server, and where it is kept; with `hidden_by` a variable goes before it."""

    server: str
    user: str
    role: str
    kept_in: str
    hidden_by: str | None


class ServerLogout(msgspec.Struct, frozen=True, kw_only=True):
    """`logout`: the server whose token is not kept any more; there it counts until it is revoked."""

    server: str
    removed: bool


def find_server_token(reader: StateReader, server: str) -> str | None:
    """Return the token for a server: of `CHARGEHAND_TOKEN`, else the one that is kept, `None` without any."""
    return reader.environ.get(_TOKEN, "").strip() or reader.credentials.get(_server_secret(server))


def keep_server_token(reader: StateReader, server: str, token: str) -> str:
    """Keep a token for a server in place of an earlier one, and return where; raises as `Credentials.set`."""
    return reader.credentials.set(_server_secret(server), token)


def remove_server_token(reader: StateReader, server: str) -> ServerLogout:
    """Forget the token for a server; raises `NotFoundError` (`not_logged_in`)."""
    try:
        reader.credentials.remove(_server_secret(server))
    except NotFoundError as error:
        raise NotFoundError(
            f"no token for {server} is kept here",
            code="not_logged_in",
            hint="`chargehand secret list` names what is kept",
        ) from error
    return ServerLogout(server=server, removed=True)


def _server_secret(server: str) -> str:
    """Return the name of a server's token among secrets: readable, and another one for every server."""
    words = re.sub(r"[^A-Z0-9]+", "_", server.partition("://")[2].upper()).strip("_")[:32]
    return f"{_TOKEN}_{words}_{hashlib.sha256(server.encode()).hexdigest()[:8].upper()}"
