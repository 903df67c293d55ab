"""Webhooks of the watched repositories: set up at the forge with a secret that is made here, and removed again.

The note has each hook before the forge does, so that a hook whose answer was lost is still removed.
"""

from __future__ import annotations

import contextlib
import secrets

from msgspec import Struct
from msgspec.structs import replace

from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.memo import ForgeMemos
from chargehand.configuration.edit import set_user_value, unset_user_value
from chargehand.configuration.locations import user_config_path
from chargehand.core.errors import ChargehandError, NotFoundError, UsageError
from chargehand.network.addresses import is_loopback, is_plain_web_url
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader


class RepositoryHook(Struct, frozen=True, kw_only=True):
    """A webhook of a repository that posts to `address`; `problem` is why the last change of it failed."""

    account: str
    repository: str
    address: str
    problem: str | None = None


class HookList(Document, frozen=True):
    """`forge hook`: webhooks that were added, were removed, or exist."""

    hooks: tuple[RepositoryHook, ...]


def list_hooks(reader: StateReader) -> HookList:
    """Return the webhooks that were set up here, without asking any forge."""
    known = ForgeMemos(reader.store.followers).load().hooks
    return HookList(hooks=tuple(_hook(key, address) for key, address in sorted(known.items())))


def add_hooks(reader: StateReader, name: str, url: str) -> HookList:
    """Have the watched repositories of an account post to the server at `url`; may be repeated.

    A failure is the `problem` of its repository. Raises `NotFoundError`, `UsageError` (`forge_hook`).
    """
    entry = ForgeAccounts(reader).entry(name)
    if not entry.config.repositories:
        raise UsageError(
            f"forges.{name} watches no repository",
            code="forge_hook",
            hint=f"chargehand config set forges.{name}.repositories '[\"OWNER/NAME\"]'",
        )
    address = _hook_address(name, url)
    secret = _secret(reader, name, entry.config.webhook_secret)
    accounts, memos = ForgeAccounts(reader), ForgeMemos(reader.store.followers)
    made = []
    for repository in entry.config.repositories:
        key = f"{name}:{repository}"
        before = memos.load().hooks.get(key, address)
        problem = None
        try:
            with accounts.open(name, repository) as forge:
                if before != address:
                    forge.remove_hook(repository, before)
                memos.put_hook(key, address)
                forge.ensure_hook(repository, address, secret)
        except ChargehandError as error:
            problem = _problem(error)
        made.append(replace(_hook(key, address), problem=problem))
    return HookList(hooks=tuple(made))


def remove_hooks(reader: StateReader, name: str) -> HookList:
    """Remove the webhooks that were set up for an account, then their secret; those with a `problem` stay.

    Raises `NotFoundError`, `ConfigError`.
    """
    accounts, memos = ForgeAccounts(reader), ForgeMemos(reader.store.followers)
    entry = accounts.entry(name)
    made = []
    for key, address in memos.load().hooks.items():
        account, _, repository = key.partition(":")
        if account != name:
            continue
        problem = None
        try:
            with accounts.open(name, repository) as forge:
                forge.remove_hook(repository, address)
            memos.remove_hook(key)
        except ChargehandError as error:
            problem = _problem(error)
        made.append(replace(_hook(key, address), problem=problem))
    usual = _usual_secret(name)
    if made and entry.config.webhook_secret == usual and not any(each.problem for each in made):
        unset_user_value(user_config_path(reader.environ), f"forges.{name}.webhook_secret")
        with contextlib.suppress(NotFoundError):
            reader.credentials.remove(usual)
    return HookList(hooks=tuple(made))


def _hook(key: str, address: str) -> RepositoryHook:
    account, _, repository = key.partition(":")
    return RepositoryHook(account=account, repository=repository, address=address)


def _problem(error: ChargehandError) -> str:
    return ": ".join(filter(None, (error.message, error.hint)))


def _usual_secret(name: str) -> str:
    return f"{name.upper().replace('-', '_')}_HOOK"


def _secret(reader: StateReader, name: str, configured: str | None) -> str:
    """Return the secret of webhooks, made and stored if it is missing: before any forge signs with it."""
    wanted = configured or _usual_secret(name)
    known = reader.credentials.get(wanted)
    if known is None:
        known = secrets.token_hex(32)
        reader.credentials.set(wanted, known)
    if configured is None:
        set_user_value(user_config_path(reader.environ), f"forges.{name}.webhook_secret", wanted)
    return known


def _hook_address(name: str, url: str) -> str:
    if not (is_plain_web_url(url) and (url.lower().startswith("https:") or is_loopback(url))):
        raise UsageError(
            f"{url.rpartition('@')[2]!r} is not the address of a server for webhooks",
            code="forge_hook",
            hint="give the https:// address at which the forge reaches `chargehand up`, without '?' and '#'",
        )
    path = f"/api/v1/forges/{name}/hook"
    return url if url.endswith(path) else url.rstrip("/") + path
