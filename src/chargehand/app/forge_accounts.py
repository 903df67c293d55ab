"""Use cases of accounts at forges: list, try, sign in and out, and the webhooks of their watched repositories."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.app.forge.accounts import ForgeAccounts, require_writable, try_sign_in
from chargehand.app.forge.entries import ForgeEntry
from chargehand.app.forge.memo import ForgeMemos, Story
from chargehand.app.forge.sign_in import SignIns
from chargehand.configuration.edit import set_user_value, unset_user_value
from chargehand.configuration.locations import user_config_path
from chargehand.core.errors import ChargehandError, ConfigError, NotFoundError, UsageError
from chargehand.network.addresses import is_loopback, is_plain_web_url
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader

if TYPE_CHECKING:
    from chargehand.forges.oauth import DeviceCode


class AppLogin(Struct, frozen=True, kw_only=True):
    """The settings of an account that signs in as a GitHub App; all `None` for another."""

    app: str | None = None
    app_key: str | None = None
    installation: int | None = None


class DeviceLogin(Struct, frozen=True):
    """A sign-in by a code that a person types at the forge: `show` gets the code, `client` is the public id."""

    client: str
    show: Callable[[DeviceCode], None]


class AccountDocument(Document, frozen=True):
    """An account of [forges]; `login` and `lacks` if it was tried, else its `problem`. `lacks` null: unknown.

    `token` is the name of the secret, null for a forge without tokens and for an `app`, the GitHub App's id.
    """

    name: str
    kind: str
    url: str
    token: str | None
    stored: bool
    repositories: tuple[str, ...]
    login: str | None = None
    lacks: tuple[str, ...] | None = None
    problem: str | None = None
    app: str | None = None


class AccountList(Document, frozen=True):
    """`forge list`: all accounts, and the issues that are worked on."""

    accounts: tuple[AccountDocument, ...]
    issues: tuple[Story, ...]


def list_forges(reader: StateReader) -> AccountList:
    """Return the configured accounts, without asking any forge. Raises `ConfigError`."""
    entries = ForgeAccounts(reader).entries().values()
    stories = ForgeMemos(reader.store.followers).load().stories
    return AccountList(accounts=tuple(_account(reader, each) for each in entries), issues=tuple(stories.values()))


def _account(reader: StateReader, entry: ForgeEntry) -> AccountDocument:
    return AccountDocument(
        name=entry.name,
        kind=entry.config.kind,
        url=entry.url,
        token=entry.token if entry.kind.token and not entry.config.app else None,
        app=entry.config.app,
        stored=reader.credentials.describe(entry.token) is not None,
        repositories=entry.config.repositories,
    )


def test_forge(reader: StateReader, name: str) -> AccountDocument:
    """Ask a forge for the account of the token, and for each watched repository.

    A failure is the document's `problem`. Raises `NotFoundError`.
    """
    accounts = ForgeAccounts(reader)
    entry = accounts.entry(name)
    made = _account(reader, entry)
    try:
        for repository in entry.config.repositories or ("",):
            with accounts.open(name, repository) as forge:
                account = forge.account()
                made = replace(made, login=account.login, lacks=account.lacks)
                if repository:
                    require_writable(forge.repository(repository))
    except ChargehandError as error:
        return replace(made, problem=_problem(error))
    return made


def log_in(
    reader: StateReader,
    name: str,
    *,
    kind: str | None,
    url: str | None,
    read: Callable[[], str],
    device: DeviceLogin | None = None,
    app: AppLogin | None = None,
) -> AccountDocument:
    """Store a token that the forge accepts, and add the account to the user's configuration.

    `read` returns the token; a person grants one to a `device`, and an `app` signs in with its key. Raises
    `UsageError`, `ForgeError`, `NotFoundError` for an unknown kind.
    """
    from chargehand.core.config import ForgeConfig
    from chargehand.forges.registries import FORGES

    if url is not None:
        _check_url(url)  # before anything is sent there
    known = reader.user_configuration().config.forges.get(name, ForgeConfig())
    app = app or AppLogin()
    config = replace(known, kind=kind or known.kind, url=url or known.url, **msgspec.structs.asdict(app))
    entry = ForgeEntry(name=name, config=config, kind=FORGES.find(config.kind))
    if config.url is None and not entry.kind.url:
        raise UsageError(
            f"a forge of kind {config.kind} needs an address", code="forge_url", hint="give --url https://…"
        )
    secret = ""
    if device is not None:
        secret = SignIns(reader).sign_in(entry, device.client, device.show)
    elif entry.kind.token and not app.app:
        secret = read()
    account = try_sign_in(reader, entry, secret)
    file = user_config_path(reader.environ)
    # The file first: it refuses names and addresses that are not valid.
    set_user_value(file, f"forges.{name}.kind", config.kind)
    if config.url is not None:
        set_user_value(file, f"forges.{name}.url", config.url)
    for key, value in msgspec.structs.asdict(app).items():
        if value is not None:
            set_user_value(file, f"forges.{name}.{key}", str(value))
        elif getattr(known, key) is not None:
            unset_user_value(file, f"forges.{name}.{key}")
    if secret:
        reader.credentials.set(entry.token, secret)
    return replace(_account(reader, entry), login=account.login, lacks=account.lacks)


def _check_url(url: str) -> None:
    from chargehand.configuration.keys import entry_keys, parse_value

    try:
        parse_value(entry_keys("forges")["url"], url, "--url")
    except ConfigError as error:
        message = f"--url: {url.rpartition('@')[2]!r} is not the address of a forge"
        raise UsageError(message, code="forge_url", hint=error.hint) from None


def log_out(reader: StateReader, name: str) -> AccountDocument:
    """Remove the webhooks and the stored token of an account, and the App that it signs in as.

    The other settings stay. `problem` says what stays in use. Raises `NotFoundError`.
    """
    entry = ForgeAccounts(reader).entry(name)
    failed = [each for each in remove_hooks(reader, name).hooks if each.problem]
    problems = [f"the webhook of {each.repository} stays: {each.problem}" for each in failed]
    for key in AppLogin.__struct_fields__ if entry.config.app else ():
        unset_user_value(user_config_path(reader.environ), f"forges.{name}.{key}")
    # Without the App, a token of an earlier sign-in would be used again.
    with contextlib.suppress(NotFoundError) if entry.config.app else contextlib.nullcontext():
        reader.credentials.remove(entry.token)
    if origin := reader.credentials.describe(entry.token):
        problems.append(f"{entry.token} is still set, in {origin!r}, and is used: remove it there")
    return replace(_account(reader, entry), problem="; ".join(problems) or None)


# --- webhooks
# The note has each hook before the forge does, so that a hook whose answer was lost is still removed.


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
