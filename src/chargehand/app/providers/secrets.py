"""Use cases of secrets that ask their sources: check, rotate and explain. No result contains a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from chargehand.core.errors import ChargehandError, NotFoundError, RefusedError
from chargehand.core.ports import KeyUse
from chargehand.credentials.credentials import check_name
from chargehand.models.registries import key_name

if TYPE_CHECKING:
    from chargehand.core.config import Config
    from chargehand.reports.reading import StateReader

State = Literal["found", "missing", "failed"]


class CheckedSecret(Struct, frozen=True, kw_only=True):
    """A secret as its sources give it now, by one entry of [secrets.keys] ("" if no entry names it).

    `source` has it, null unless it is found; `code` and `problem` say why it failed, else they are "".
    """

    name: str
    entry: str
    state: State
    source: str | None = None
    code: str = ""
    problem: str = ""


class SecretCheck(Struct, frozen=True, kw_only=True):
    """The checked secrets."""

    secrets: tuple[CheckedSecret, ...]


class SecretRotation(Struct, frozen=True, kw_only=True):
    """A secret that all running processes read again before its next use; `source` has it now."""

    name: str
    source: str


class SecretEntryView(Struct, frozen=True, kw_only=True):
    """An entry of [secrets.keys]: the sources of the secret, in order, and its scope.

    An empty list of projects, roles or providers admits any; `entry` is "" if no entry names the secret.
    """

    entry: str
    sources: tuple[str, ...]
    path: str | None
    field: str | None
    projects: tuple[str, ...]
    roles: tuple[str, ...]
    providers: tuple[str, ...]
    ttl: float


class SecretExplanation(Struct, frozen=True, kw_only=True):
    """The entries of a secret, the keys of the configuration that name it, and the entry that admits a use.

    `admitted` is null without such an entry, and `refusal` says so.
    """

    name: str
    entries: tuple[SecretEntryView, ...]
    named_by: tuple[str, ...]
    admitted: str | None
    refusal: str = ""


def check_secrets(reader: StateReader, names: Iterable[str]) -> SecretCheck:
    """Ask the sources for secrets, by default for all that are stored, configured or named by a model.

    Kept values are not used. Raises `UsageError` (`secret_invalid`), `ConfigError`.
    """
    keys = reader.credentials
    wanted = [check_name(name) for name in names]
    if not wanted:
        config = reader.user_configuration().config
        named = (each.rpartition(" ")[2] for each in _model_keys(config))
        wanted = sorted({*named, *keys.named(), *(each.name for each in keys.names())})
    checked = []
    for name in wanted:
        for entry in keys.entries(name) or ("",):
            try:
                found = keys.read(name, entry)
            except ChargehandError as error:
                failed = CheckedSecret(
                    name=name, entry=entry, state="failed", code=error.code, problem=error.message
                )
                checked.append(failed)
                continue
            source = found.origin if found else None
            checked.append(
                CheckedSecret(name=name, entry=entry, state="found" if found else "missing", source=source)
            )
    return SecretCheck(secrets=tuple(checked))


def rotate_secret(reader: StateReader, name: str) -> SecretRotation:
    """Have every process of this user read a secret again before its next use; check that its source has it.

    Raises `NotFoundError` if no source has it, and the errors of its sources.
    """
    keys = reader.credentials
    keys.rotate(name)
    sources = [found.origin for entry in keys.entries(name) or ("",) if (found := keys.read(name, entry))]
    if not sources:
        raise NotFoundError(f"no source has {name}", hint=f"chargehand secret explain {name}")
    return SecretRotation(name=name, source=", ".join(dict.fromkeys(sources)))


def explain_secret(
    reader: StateReader, name: str, *, role: str | None, provider: str | None, repo: Path | None
) -> SecretExplanation:
    """Explain the sources of a secret and whether a use is admitted; asks no source.

    Without a role or provider any is admitted. The project is that of `repo`, by default of the working directory.
    """
    keys = reader.credentials
    project = reader.projects.current(repo)
    projects = (project.id, str(project.path)) if project else None
    admitted, refusal = None, ""
    try:
        admitted, _ = keys.entry(name, KeyUse(projects=projects, role=role, provider=provider))
    except RefusedError as error:
        refusal = error.message
    views = [
        SecretEntryView(
            entry=entry,
            sources=keys.order(config),
            path=config.path,
            field=config.field,
            projects=config.projects,
            roles=config.roles,
            providers=config.providers,
            ttl=config.ttl,
        )
        for entry, config in keys.entries(name, usual=True).items()
    ]
    config = reader.user_configuration().config
    named = [each.rpartition(" ")[0] for each in _all_names(config) if each.endswith(f" {name}")]
    return SecretExplanation(
        name=name, entries=tuple(views), named_by=tuple(named), admitted=admitted, refusal=refusal
    )


def _model_keys(config: Config) -> Iterator[str]:
    """Yield the key of the configuration, a blank and the name of the secret, for each model with a key."""
    for model, entry in config.models.items():
        with suppress(ChargehandError):  # its provider is of an extension that is not installed any more
            if name := key_name(entry):
                yield f"models.{model}.key {name}"


def _all_names(config: Config) -> Iterator[str]:
    """Yield the same for each key of the configuration that names a secret."""
    yield from _model_keys(config)
    for forge, account in config.forges.items():
        yield from (
            f"forges.{forge}.token {account.token}",
            f"forges.{forge}.webhook_secret {account.webhook_secret}",
        )
    for source, store in config.secrets.sources.items():
        yield f"secrets.sources.{source}.secret {store.secret}"
    alerts = config.alerts
    yield from (f"alerts.webhook_secret {alerts.webhook_secret}", f"alerts.mail_password {alerts.mail_password}")
    yield f"traces.secret {config.traces.secret}"
