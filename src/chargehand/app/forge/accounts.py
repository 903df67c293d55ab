"""The accounts at forges of the user's configuration, opened with their tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from chargehand.core.config import ForgeConfig
from chargehand.core.errors import NotFoundError, UsageError, nearest
from chargehand.forges.contract import Forge, ForgeKind, ForgeSetup, IssueAddress
from chargehand.forges.registries import FORGES
from chargehand.network.addresses import is_loopback
from chargehand.reports.reading import StateReader


class ForgeEntry(Struct, frozen=True, kw_only=True):
    """An entry of [forges] with its kind; `url` is the address of its pages."""

    name: str
    config: ForgeConfig
    kind: ForgeKind

    @property
    def url(self) -> str:
        """The address of its pages, without a slash at its end."""
        return (self.config.url or self.kind.url).rstrip("/")

    @property
    def token(self) -> str:
        """The name of the secret that holds its token."""
        return self.config.token or f"{self.name.upper().replace('-', '_')}_TOKEN"


class ForgeAccounts:
    """Finds and opens the accounts of the user's own configuration.

    With `keep` they stay open until `close`: unchanged answers are then known from before, and cost less.
    """

    def __init__(self, reader: StateReader, *, keep: bool = False) -> None:
        self._reader, self._keep = reader, keep
        self._kept: dict[str, tuple[ForgeEntry, str, Forge]] = {}

    def close(self) -> None:
        """Close the accounts that were kept open."""
        while self._kept:
            self._kept.popitem()[1][2].close()

    def entries(self) -> Mapping[str, ForgeEntry]:
        """Return all entries by name. Raises `ConfigError`."""
        forges = self._reader.user_configuration().config.forges
        return {
            name: ForgeEntry(name=name, config=config, kind=FORGES.find(config.kind))
            for name, config in forges.items()
        }

    def entry(self, name: str) -> ForgeEntry:
        """Return an entry. Raises `NotFoundError`."""
        known = self.entries()
        if name not in known:
            hint = f"{nearest(name, known)}; `chargehand forge login NAME` adds one"
            raise NotFoundError(f"there is no account {name!r} in [forges]", hint=hint)
        return known[name]

    @contextmanager
    def open(self, name: str) -> Iterator[Forge]:
        """Open an account for the block. Raises `NotFoundError`, and `UsageError` (`forge_token`, `forge_url`)."""
        entry = self.entry(name)
        token = self._reader.credentials.get(entry.token) or ""
        known = self._kept.get(name)
        if known is not None and known[:2] == (entry, token):
            yield known[2]
            return
        forge = open_entry(entry, token)
        if self._keep:
            if known is not None:  # its configuration has changed
                known[2].close()
            self._kept[name] = (entry, token, forge)
            yield forge
            return
        try:
            yield forge
        finally:
            forge.close()

    def find(self, address: str) -> tuple[ForgeEntry, IssueAddress]:
        """Return the account and the address of an issue, given its page or ACCOUNT:OWNER/NAME#NUMBER.

        Raises `UsageError` (`issue_unknown`), `NotFoundError`.
        """
        account, colon, rest = address.partition(":")
        if colon and not rest.startswith("//"):
            repository, mark, number = rest.rpartition("#")
            if mark and repository and number.isdecimal() and len(number) < 10:
                return self.entry(account), IssueAddress(repository, int(number))
        entries = sorted(self.entries().values(), key=lambda each: -len(each.url))
        for entry in entries:
            if address.startswith(f"{entry.url}/") and (found := entry.kind.parse(address[len(entry.url) :])):
                return entry, found
        known = ", ".join(each.url for each in entries) or "none"
        raise UsageError(
            f"{address!r} is not the address of an issue at a configured forge",
            code="issue_unknown",
            hint=f"configured: {known}; `chargehand forge login NAME` adds one. Give the address of the issue's"
            " page, or ACCOUNT:OWNER/NAME#NUMBER",
        )


def open_entry(entry: ForgeEntry, token: str) -> Forge:
    """Open an account with a token. Raises `UsageError` (`forge_token`, `forge_url`)."""
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
    if not token and entry.kind.token:
        raise UsageError(
            f"forges.{entry.name} has no token: the secret {entry.token} is not set",
            code="forge_token",
            hint=f"chargehand forge login {entry.name}",
        )
    authority = entry.config.authority
    return entry.kind.open(
        ForgeSetup(
            url=entry.url,
            api=entry.config.api or "",
            token=token,
            authority=Path(authority) if authority else None,
            sleep=time.sleep,
        )
    )
