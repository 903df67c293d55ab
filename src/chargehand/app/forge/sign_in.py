"""The tokens of accounts at forges: stored ones, granted ones that are renewed, and those of GitHub Apps.

A token is sent only to the forge that issued it, and never to a sandbox.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from chargehand.app.forge.entries import ForgeEntry
from chargehand.core.errors import UsageError
from chargehand.forges.contract import ForgeAccount, ForgeError, ForgeSetup
from chargehand.forges.grants import OauthGrant, read_grant, write_grant
from chargehand.network.addresses import is_loopback
from chargehand.reports.reading import StateReader

if TYPE_CHECKING:
    from chargehand.forges.oauth import DeviceCode, OauthClient

# Before a token expires: longer than a visit or a push takes.
_EARLY_SECONDS = 900.0
_LARGEST_KEY = 64 * 1024


class ForgeToken(Struct, frozen=True):
    """A token that is valid now, and its account if the sign-in says so."""

    value: str
    account: ForgeAccount | None = None

    def __repr__(self) -> str:
        return "ForgeToken(…)"


class SignIns:
    """Finds the tokens of accounts and renews them before they expire; for one thread.

    Several processes may renew the same token: one of them does, and the others find its result.
    """

    def __init__(
        self,
        reader: StateReader,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reader, self._now, self._sleep = reader, now, sleep
        # By account and repository, with the time until which each is used.
        self._installed: dict[tuple[ForgeEntry, str], tuple[ForgeToken, float]] = {}

    def token(self, entry: ForgeEntry, repository: str = "") -> ForgeToken:
        """Return the token of an account; it is used for `repository`, "" for several.

        Raises `UsageError` (`forge_token`, `forge_key`), `ForgeError`.
        """
        require_encrypted(entry)
        if entry.config.app:
            return self._installation(entry, repository)
        value = self._reader.credentials.get(entry.token) or ""
        if not value and entry.kind.token:
            raise _no_token(entry)
        grant = read_grant(value)
        if grant is None:
            refuse_foreign(entry, value)
            return ForgeToken(value)
        _refuse_moved(entry, grant)
        return ForgeToken((grant if self._is_fresh(grant) else self._renew(entry)).access)

    def forget(self, entry: ForgeEntry) -> None:
        """Forget the tokens of a GitHub App's account, since the forge has refused one."""
        self._installed = {key: kept for key, kept in self._installed.items() if key[0] != entry}

    def _installation(self, entry: ForgeEntry, repository: str) -> ForgeToken:
        from chargehand.forges.github_app import AppSignIn

        kept = self._installed.get((entry, repository))
        if kept is not None and self._now() < kept[1]:
            return kept[0]
        config = entry.config
        if not (entry.kind.has_apps and config.app and config.app_key):
            raise UsageError(
                f"forges.{entry.name}: only an account at GitHub signs in as an App, with its private key",
                code="forge_key",
                hint=f"chargehand forge login {entry.name} --app ID --key FILE",
            )
        key = read_private_key(Path(config.app_key), f"forges.{entry.name}.app_key")
        app = AppSignIn(forge_setup(entry, sleep=self._sleep), config.app, key, now=self._now)
        made = app.request_token(repository, installation=config.installation)
        token = ForgeToken(made.token, made.account)
        self._installed[entry, repository] = (token, self._now() + made.seconds - _EARLY_SECONDS)
        return token

    def _is_fresh(self, grant: OauthGrant) -> bool:
        return grant.expires is None or self._now() < grant.expires - _EARLY_SECONDS

    def _renew(self, entry: ForgeEntry) -> OauthGrant:
        # A forge accepts a refresh token once, so two processes that send the same one would sign the account out.
        with _lock(self._reader.home / "forges" / f"{entry.token}.lock"):
            grant = read_grant(self._reader.credentials.get(entry.token) or "")
            if grant is None:
                raise _no_token(entry)
            _refuse_moved(entry, grant)
            if self._is_fresh(grant):
                return grant
            is_valid = grant.expires is not None and self._now() < grant.expires
            how = f"chargehand forge login {entry.name} --device --client-id {grant.client}"
            try:
                if self._reader.credentials.describe(entry.token) == "environment":
                    # The variable would still have the old one, which is worth nothing after its use.
                    raise ForgeError("denied", f"the sign-in in the variable {entry.token} cannot be renewed")
                if not grant.refresh:
                    raise ForgeError("denied", f"the sign-in of forges.{entry.name} ends, and cannot be renewed")
                made = self._client(entry, grant.client).refresh(grant)
            except ForgeError as error:
                if is_valid:  # it ends soon, and until then there is time to try again
                    return grant
                if error.problem != "denied":
                    raise
                raise ForgeError("denied", error.message, hint=f"sign in again: {how}") from None
            # First stored, then used: the old refresh token is worth nothing any more.
            self._reader.credentials.set(entry.token, write_grant(made))
            return made

    def _client(self, entry: ForgeEntry, client: str) -> OauthClient:
        # Imported for accounts with a grant alone: an HTTP client takes long to import.
        from chargehand.forges.oauth import OauthClient, OauthSetup

        assert entry.kind.device is not None
        authority = entry.config.authority
        return OauthClient(
            OauthSetup(
                url=entry.url,
                endpoints=entry.kind.device,
                client=client,
                authority=Path(authority) if authority else None,
                sleep=self._sleep,
                now=self._now,
            )
        )

    def sign_in(self, entry: ForgeEntry, client: str, show: Callable[[DeviceCode], None]) -> str:
        """Return the secret of an account that a person grants by typing the code that `show` gets.

        Raises `UsageError` (`forge_token`) for a forge without the device flow, `ForgeError`.
        """
        require_encrypted(entry)
        if entry.kind.device is None:
            raise UsageError(
                f"a forge of kind {entry.config.kind} has no device flow",
                code="forge_token",
                hint=f"create a token at {entry.url}{entry.kind.token_page}, then leave out --device",
            )
        oauth = self._client(entry, client)
        code = oauth.request_code()
        show(code)
        return write_grant(oauth.await_grant(code))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # of the open file, so it excludes other threads too
        yield
    finally:
        os.close(held)


def refuse_foreign(entry: ForgeEntry, token: str) -> None:
    """Raise `UsageError` (`forge_token`) for a token that another kind of forge issued."""
    from chargehand.forges.registries import FORGES

    for name in FORGES.built_in():
        if name != entry.config.kind and token.startswith(FORGES.find(name).prefixes or ("\0",)):
            raise UsageError(
                f"forges.{entry.name} is of kind {entry.config.kind}, and its token is one of {name}",
                code="forge_token",
                hint="it was not sent; store the right one, and revoke this one if others have seen it",
            )


def read_private_key(file: Path, key: str) -> bytes:
    """Return the content of a file that only its owner may read. Raises `UsageError` (`forge_key`)."""
    problem = hint = ""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                problem = "is not a regular file"
            elif found.st_mode & 0o077:
                problem = f"is open to others (mode {stat.S_IMODE(found.st_mode):04o})"
                hint = f"chmod 600 {shlex.quote(str(file))}; if others could read it, make a new key"
            else:
                content = opened.read(_LARGEST_KEY + 1)
                if len(content) <= _LARGEST_KEY:
                    return content
                problem = "is far too large for a key"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise UsageError(f"{key}: {str(file)!r} {problem}", code="forge_key", hint=hint or "name the key's file")


def require_encrypted(entry: ForgeEntry) -> None:
    """Raise `UsageError` (`forge_url`) if tokens would travel in the clear, or without an address."""
    if not entry.url:
        raise UsageError(
            f"forges.{entry.name}: a forge of kind {entry.config.kind} needs an address",
            code="forge_url",
            hint=f"chargehand config set forges.{entry.name}.url https://…",
        )
    addresses = (entry.url, entry.config.api or entry.url)
    if any(urlsplit(each).scheme == "http" and not is_loopback(each) for each in addresses):
        raise UsageError(
            f"forges.{entry.name}: its address is not encrypted, and the token would travel in the clear",
            code="forge_url",
            hint="use https://",
        )


def forge_setup(entry: ForgeEntry, *, sleep: Callable[[float], None]) -> ForgeSetup:
    """Return the parameters of opening an account, still without a token."""
    authority = entry.config.authority
    return ForgeSetup(
        url=entry.url,
        api=entry.config.api or "",
        authority=Path(authority) if authority else None,
        sleep=sleep,
    )


def with_sign_in_hint(entry: ForgeEntry, error: ForgeError) -> ForgeError:
    """Return an error of a refused token that says how to sign in again."""
    if error.problem != "denied":
        return error
    how = f"if its token expired or was revoked, sign in again: chargehand forge login {entry.name}"
    return ForgeError("denied", error.message, hint=error.hint or how, may_have_acted=error.may_have_acted)


def _no_token(entry: ForgeEntry) -> UsageError:
    return UsageError(
        f"forges.{entry.name} has no token: the secret {entry.token} is not set",
        code="forge_token",
        hint=f"chargehand forge login {entry.name}",
    )


def _refuse_moved(entry: ForgeEntry, grant: OauthGrant) -> None:
    if grant.url != entry.url:
        raise UsageError(
            f"forges.{entry.name}: its sign-in is one of {grant.url}, not of {entry.url}",
            code="forge_token",
            hint=f"it was not sent; chargehand forge login {entry.name}",
        )
