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
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from chargehand.app.forge.entries import ForgeEntry
from chargehand.core.errors import UsageError
from chargehand.forges.contract import ForgeAccount, ForgeError, ForgeSetup
from chargehand.forges.grants import FIRST_PAUSE, OauthGrant, RenewalFailure, read_grant, write_grant
from chargehand.network.addresses import is_loopback
from chargehand.reports.reading import StateReader

if TYPE_CHECKING:
    from chargehand.forges.oauth import DeviceCode, DeviceFlow, OauthSetup

# Before a token expires: longer than a visit or a push takes.
_EARLY_SECONDS = 900.0
_LARGEST_KEY = 64 * 1024


class ForgeToken(Struct, frozen=True):
    """A token that is valid now, and its account if the sign-in says so."""

    value: str
    account: ForgeAccount | None = None

    def __repr__(self) -> str:
        return "ForgeToken(…)"


class InstalledToken(NamedTuple):
    """A token of an App's installation, with the times at which it is replaced and at which it expires."""

    token: ForgeToken
    replaced: float
    expires: float


class SignIns:
    """Finds the tokens of accounts and renews them before they expire; for one thread.

    Several processes may renew the same token: one of them does, and the others find its result. A failure is
    stored with the grant, so that all of them wait before the next try. `connect` opens an OAuth client.
    """

    def __init__(
        self,
        reader: StateReader,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        connect: Callable[[OauthSetup], DeviceFlow] | None = None,
    ) -> None:
        self._reader, self._now, self._sleep, self._connect = reader, now, sleep, connect
        # By account and repository.
        self._installed: dict[tuple[ForgeEntry, str], InstalledToken] = {}

    def token(self, entry: ForgeEntry, repository: str = "") -> ForgeToken:
        """Return the token of an account; it is used for `repository`, "" for several.

        Raises `UsageError` (`forge_token`, `forge_key`), `ForgeError`.
        """
        require_encrypted(entry)
        if entry.config.app:
            return self._installation(entry, repository)
        while True:
            value = self._reader.credentials.get(entry.token) or ""
            grant = self._read(entry, value)
            if grant is None:
                return ForgeToken(value)
            now = self._now()
            is_due = grant.expires is not None and now >= grant.expires - _EARLY_SECONDS
            if is_due and (why := self._why_not_renewable(entry, grant)):
                grant = grant.after_failure(ForgeError("denied", why), now)
            elif is_due and grant.may_renew(now):
                made = self._renew(entry, value, grant)
                if made is None:
                    continue
                grant = made
            if grant.failure is None or now < (grant.expires or 0.0):
                return ForgeToken(grant.access)
            raise self._renewal_error(entry, grant.failure)

    def _read(self, entry: ForgeEntry, value: str) -> OauthGrant | None:
        """Return the grant in an account's secret, `None` for a plain token. Refuses those of another forge."""
        if not value and entry.kind.token:
            raise UsageError(
                f"forges.{entry.name} has no token: the secret {entry.token} is not set",
                code="forge_token",
                hint=self.how_to_sign_in(entry),
            )
        grant = read_grant(value)
        if grant is None:
            refuse_foreign(entry, value)
        elif grant.url != entry.url:
            raise UsageError(
                f"forges.{entry.name}: its sign-in is one of {grant.url}, not of {entry.url}",
                code="forge_token",
                hint=f"it was not sent; {self.how_to_sign_in(entry)}",
            )
        return grant

    def how_to_sign_in(self, entry: ForgeEntry) -> str:
        """Return the command by which an account signs in again, in the way that it signed in before."""
        credentials, config = self._reader.credentials, entry.config
        words = ["chargehand", "forge", "login", entry.name]
        if config.app and entry.kind.has_apps:
            words += ["--app", config.app, "--key", config.app_key or "FILE"]
            words += ["--installation", str(config.installation)] if config.installation else []
            return shlex.join(words)
        if grant := read_grant(credentials.get(entry.token) or ""):
            words += ["--device", "--client-id", grant.client]
        # The variable would hide what the command stores.
        is_variable = credentials.describe(entry.token) == "environment"
        return (f"unset {entry.token}, then " if is_variable else "") + shlex.join(words)

    def explain(self, entry: ForgeEntry, error: ForgeError) -> ForgeError:
        """Return the error of a refused token with a hint how to sign in again."""
        what = "App or its key was replaced" if entry.config.app else "token expired or was revoked"
        hint = error.hint or f"if its {what}, sign in again: {self.how_to_sign_in(entry)}"
        return ForgeError("denied", error.message, hint=hint, may_have_acted=error.may_have_acted)

    def forget(self, entry: ForgeEntry) -> None:
        """Forget the tokens of a GitHub App's account, since the forge has refused one."""
        self._installed = {key: kept for key, kept in self._installed.items() if key[0] != entry}

    def _installation(self, entry: ForgeEntry, repository: str) -> ForgeToken:
        from chargehand.forges.github_app import AppSignIn

        kept, now = self._installed.get((entry, repository)), self._now()
        if kept is not None and now < kept.replaced:
            return kept.token
        config = entry.config
        if not (entry.kind.has_apps and config.app and config.app_key):
            raise UsageError(
                f"forges.{entry.name}: only an account at GitHub signs in as an App, with its private key",
                code="forge_key",
                hint=self.how_to_sign_in(entry),
            )
        key = read_private_key(Path(config.app_key), f"forges.{entry.name}.app_key")
        app = AppSignIn(forge_setup(entry, sleep=self._sleep), config.app, key, now=self._now)
        try:
            made = app.request_token(repository, installation=config.installation)
        except ForgeError as error:
            if kept is None or now >= kept.expires or not error.is_transient:
                raise
            kept = kept._replace(replaced=now + FIRST_PAUSE)
        else:
            expires = self._now() + made.seconds
            kept = InstalledToken(ForgeToken(made.token, made.account), expires - _EARLY_SECONDS, expires)
        self._installed[entry, repository] = kept
        return kept.token

    def _why_not_renewable(self, entry: ForgeEntry, grant: OauthGrant) -> str:
        if self._reader.credentials.describe(entry.token) == "environment":
            # The variable would still have the old one, which is worth nothing after its use.
            return f"the sign-in in the variable {entry.token} cannot be renewed"
        can_renew = grant.refresh and entry.kind.device is not None
        return "" if can_renew else f"the sign-in of forges.{entry.name} ends, and cannot be renewed"

    def _renew(self, entry: ForgeEntry, value: str, grant: OauthGrant) -> OauthGrant | None:
        """Return the renewed grant, or the grant with its failure; `None` if the secret is no longer `value`."""
        credentials = self._reader.credentials
        # A forge accepts a refresh token once, so two processes that send the same one would sign the account out.
        with _lock(self._reader.home / "forges" / f"{entry.token}.lock"):
            if credentials.get(entry.token) != value:
                return None
            try:
                made = self._client(entry, grant.client).refresh(grant)
            except ForgeError as error:
                made = grant.after_failure(error, self._now())
            # First stored, then used: the old refresh token is worth nothing any more. After a login or logout
            # during the renewal, the secret is another one or missing, and stays so.
            return made if credentials.replace(entry.token, value, write_grant(made)) else None

    def _renewal_error(self, entry: ForgeEntry, failure: RenewalFailure) -> ForgeError:
        if failure.is_final:
            return ForgeError("denied", failure.message, hint=f"sign in again: {self.how_to_sign_in(entry)}")
        pause = failure.pause(self._now())
        hint = "; ".join(filter(None, (failure.hint, f"the renewal is tried again in {pause:.0f} s")))
        return ForgeError(failure.problem, failure.message, hint=hint, retry_seconds=pause)

    def _client(self, entry: ForgeEntry, client: str) -> DeviceFlow:
        # Imported for accounts with a grant alone: an HTTP client takes long to import.
        from chargehand.forges.oauth import OauthClient, OauthSetup

        assert entry.kind.device is not None
        authority = entry.config.authority
        setup = OauthSetup(
            url=entry.url,
            endpoints=entry.kind.device,
            client=client,
            authority=Path(authority) if authority else None,
            sleep=self._sleep,
            now=self._now,
        )
        return (self._connect or OauthClient)(setup)

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
    # The first command of a new state directory may be this one, and the mode counts for the last directory alone.
    for place in (path.parent.parent, path.parent):
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
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
