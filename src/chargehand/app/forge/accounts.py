"""The accounts at forges of the user's configuration, opened with their tokens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from chargehand.app.forge.entries import ForgeEntry
from chargehand.app.forge.sign_in import (
    ForgeToken,
    SignIns,
    forge_setup,
    read_private_key,
    refuse_foreign,
    require_encrypted,
)
from chargehand.core.errors import NotFoundError, UsageError, nearest
from chargehand.forges.contract import Forge, ForgeAccount, ForgeError, ForgeRepository, GitKey, IssueAddress
from chargehand.forges.grants import read_grant
from chargehand.forges.registries import FORGES
from chargehand.reports.reading import StateReader


class ForgeAccounts:
    """Finds and opens the accounts of the user's own configuration.

    With `keep` they stay open until `close`: unchanged answers are then known from before, and cost less.
    """

    def __init__(self, reader: StateReader, *, keep: bool = False) -> None:
        self._reader, self._keep = reader, keep
        self._sign_ins = SignIns(reader)
        # By name, and by repository if the account is a GitHub App, whose tokens are for one repository.
        self._kept: dict[tuple[str, str], tuple[ForgeEntry, ForgeToken, Forge]] = {}

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
    def open(self, name: str, repository: str = "") -> Iterator[Forge]:
        """Open an account for the block, to work on a repository; "" if it is not known.

        Raises `NotFoundError`, `UsageError` (`forge_token`, `forge_url`, `forge_key`), and `ForgeError`.
        """
        entry = self.entry(name)
        try:
            with self._open_known(entry, repository) as forge:
                forge.start_visit()
                yield forge
        except ForgeError as error:
            if error.problem == "denied":
                self._sign_ins.forget(entry)  # it was revoked before its time
                raise self._sign_ins.explain(entry, error) from None
            raise

    @contextmanager
    def _open_known(self, entry: ForgeEntry, repository: str) -> Iterator[Forge]:
        token = self._sign_ins.token(entry, repository)
        key = (entry.name, repository if entry.config.app else "")
        known = self._kept.get(key)
        if known is not None and known[:2] == (entry, token):
            yield known[2]
            return
        forge = open_entry(entry, token)
        if self._keep:
            if known is not None:  # its configuration or its token has changed
                known[2].close()
            self._kept[key] = (entry, token, forge)
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
            if found := entry.find(address):
                return entry, found
        known = ", ".join(each.url for each in entries) or "none"
        raise UsageError(
            f"{address!r} is not the address of an issue at a configured forge",
            code="issue_unknown",
            hint=f"configured: {known}; `chargehand forge login NAME` adds one. Give the address of the issue's"
            " page, or ACCOUNT:OWNER/NAME#NUMBER",
        )


def try_sign_in(reader: StateReader, entry: ForgeEntry, secret: str) -> ForgeAccount:
    """Return the account of a token or grant that is not stored yet, or of a GitHub App. Raises `ForgeError`."""
    repository = next(iter(entry.config.repositories), "")
    if entry.config.app:
        token = SignIns(reader).token(entry, repository)
    else:
        grant = read_grant(secret)
        refuse_foreign(entry, secret)
        token = ForgeToken(grant.access if grant else secret)
        if entry.kind.token and not token.value:
            raise UsageError(f"forges.{entry.name}: no token was given", code="forge_token")
    with contextlib.closing(open_entry(entry, token)) as forge:
        return forge.account()


def open_entry(entry: ForgeEntry, token: ForgeToken) -> Forge:
    """Open an account with a token. Raises `UsageError` (`forge_token`, `forge_url`, `forge_key`)."""
    require_encrypted(entry)
    config, key = entry.config, None
    if config.git_key:
        # ssh would refuse it too, in words that name neither the setting nor a way out.
        read_private_key(Path(config.git_key), f"forges.{entry.name}.git_key")
        key = GitKey(Path(config.git_key), Path(config.git_known_hosts) if config.git_known_hosts else None)
    setup = forge_setup(entry, sleep=time.sleep)
    return entry.kind.open(replace(setup, token=token.value, account=token.account, git_key=key))


def require_writable(repository: ForgeRepository) -> str:
    """Return the default branch of a repository that the account may push to. Raises `ForgeError`."""
    if repository.archived:
        raise ForgeError("refused", f"{repository.name} is archived", hint="unarchive it at the forge")
    if repository.right not in ("write", "admin"):
        raise ForgeError(
            "forbidden",
            f"the account may only {repository.right or 'read'} {repository.name}",
            hint="give it write right there, for its branch and its request; or run `chargehand run TEXT`"
            " in a checkout of your fork, push the branch, and open the request by hand",
        )
    if repository.default_branch is None:
        raise ForgeError("refused", f"{repository.name} has no commit", hint="push a first commit")
    return repository.default_branch
