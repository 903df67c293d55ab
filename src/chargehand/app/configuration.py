"""Use cases of what a person sets: configuration, secrets, tokens of servers, the rules for what agents do."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from chargehand.app.config.edit import check_user_value, set_user_value, set_user_values
from chargehand.app.config.keys import find_key, format_key_value, format_value
from chargehand.app.config.locations import user_config_path
from chargehand.app.config.policy_files import add_override
from chargehand.app.config.records import UntrustedKey
from chargehand.app.reading import StateReader, server_secret
from chargehand.core.attempt_events import ActionJudged
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.events import read_payload
from chargehand.credentials.credentials import Origin
from chargehand.policy.actions import (
    LARGEST_SCRIPT,
    Action,
    Command,
    FileRead,
    FileWrite,
    Judgement,
    McpCall,
    Shell,
    Surroundings,
)
from chargehand.policy.judgement import judge
from chargehand.policy.rules import Rule, Rules, facts_schema
from chargehand.sandbox.contract import WORKSPACE

if TYPE_CHECKING:
    from chargehand.app.composition import App

__all__ = ["check_user_value", "set_user_values"]


class ConfigurationView(msgspec.Struct, frozen=True, kw_only=True):
    """Every key with its value. `origins` is absent unless it was asked for; `untrusted` keys are not in force."""

    values: dict[str, Any]
    origins: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    untrusted: tuple[UntrustedKey, ...]
    notes: tuple[str, ...]


class ConfigurationChange(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was set, its value as it was given, and the file it stands in."""

    key: str
    value: str
    path: str


def show_configuration(app: App, repo: Path | None, *, with_origins: bool) -> ConfigurationView:
    """Return every key with its value in force. Raises `ConfigError` for anything wrong in any source."""
    resolved = app.configuration_here(repo)
    values: dict[str, Any] = {}
    for dotted in resolved.origins:
        owner: object = resolved.config
        for part in dotted.split("."):
            owner = owner.get(part) if isinstance(owner, dict) else getattr(owner, part, None)
        values[dotted] = owner
    return ConfigurationView(
        values=values,
        origins=dict(resolved.origins) if with_origins else msgspec.UNSET,
        untrusted=resolved.untrusted,
        notes=resolved.notes,
    )


def set_configuration(reader: StateReader, key: str, value: str) -> ConfigurationChange:
    """Set one key in the user's own file, with everything else in it left as it is; raises `ConfigError`."""
    path = user_config_path(reader.environ)
    set_user_value(path, key, value)
    return ConfigurationChange(key=key, value=value, path=str(path))


def format_setting(name: str, value: object) -> str:
    """Return the value of a dotted key as a person writes it: durations as `30m`, `-` for nothing."""
    key = find_key(name)
    return str(value) if key is None else format_key_value(key, value)


class SecretEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that is kept; `origin` is where it would come from now, null where its keyring does not answer."""

    name: str
    origin: Origin | None


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """All secrets that are kept."""

    secrets: tuple[SecretEntry, ...]


class SecretKept(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was kept; `hidden_by_environment`: a variable of that name takes its place.

    `warning` says how far it is protected where that is less than for most keys, else null.
    """

    name: str
    kept_in: str
    hidden_by_environment: bool
    warning: str | None = None


class SecretRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was removed; `origin` is where it still comes from, null for nowhere."""

    name: str
    removed: bool
    origin: Origin | None


def keep_secret(reader: StateReader, name: str, *, read: Callable[[], str]) -> SecretKept:
    """Keep a secret whose value `read` returns.

    `read` is called only once the name and the file are known to be right, so that nobody types in vain. Raises
    `UsageError` (`secret_invalid`), `ConfigError`.
    """
    # Called for its errors alone, before anybody types.
    reader.credentials.describe(name)
    from chargehand.models.key_filter import explain_weak_key

    value = read()
    place = reader.credentials.set(name, value)
    hidden = reader.credentials.describe(name) == "environment"
    weak = explain_weak_key(value) or None
    return SecretKept(name=name, kept_in=place, hidden_by_environment=hidden, warning=weak)


def list_secrets(reader: StateReader) -> SecretList:
    """Return the names of the secrets that are kept, and where each would come from."""
    names = reader.credentials.names()
    return SecretList(secrets=tuple(SecretEntry(name=each.name, origin=each.origin) for each in names))


def remove_secret(reader: StateReader, name: str) -> SecretRemoved:
    """Remove a secret from where it is kept; raises `NotFoundError`."""
    reader.credentials.remove(name)
    return SecretRemoved(name=name, removed=True, origin=reader.credentials.describe(name))


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


def keep_server_token(reader: StateReader, server: str, token: str) -> str:
    """Keep a token for a server in place of an earlier one, and return where; raises as `Credentials.set`."""
    return reader.credentials.set(server_secret(server), token)


def remove_server_token(reader: StateReader, server: str) -> ServerLogout:
    """Forget the token for a server; raises `NotFoundError` (`not_logged_in`)."""
    try:
        reader.credentials.remove(server_secret(server))
    except NotFoundError as error:
        raise NotFoundError(
            f"no token for {server} is kept here",
            code="not_logged_in",
            hint="`chargehand secret list` names what is kept",
        ) from error
    return ServerLogout(server=server, removed=True)


class RuleSource(msgspec.Struct, frozen=True, kw_only=True):
    """One file of rules as it is written."""

    origin: str
    name: str
    text: str


class RuleList(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force; `digest` changes when any of them does."""

    digest: str
    rules: tuple[Rule, ...]
    sources: tuple[RuleSource, ...]


class RuleSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What rules may ask about, as a Cedar schema."""

    schema: str


class LoggedJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """One judgement of a mission, as it stands in its log."""

    mission: str
    seq: int
    time: str
    judged: ActionJudged


class JudgementPage(msgspec.Struct, frozen=True, kw_only=True):
    """What was judged in a mission; `counts` are over all of its log, by effect.

    `next` is the line to go on after, null at the end.
    """

    mission: str
    judgements: list[LoggedJudgement]
    counts: dict[str, int]
    next: int | None


class RuleOverride(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was set aside, why and when, and the file that says so."""

    rule: str
    reason: str
    when: str
    path: str


def _rules_here(app: App, repo: Path | None) -> tuple[Rules, Callable[[str], str | None] | None]:
    """Return the rules of a repository at its HEAD and what reads its scripts, or those outside of any."""
    if app.current_project(repo) is None:
        return app.rules(), None
    found = app.find(repo, only_reads=True)

    # A script is named by its path in a sandbox; links are not followed.
    def read(path: str) -> str | None:
        if not path.startswith(f"{WORKSPACE}/"):
            return None
        entry = found.depot.lookup(found.base.tree, path.removeprefix(f"{WORKSPACE}/"))
        if entry is None or entry.mode not in (0o100644, 0o100755):
            return None
        # One byte more than is allowed tells a script that is too long.
        content = found.depot.read_blob(entry.id, limit=LARGEST_SCRIPT + 1)
        fits = len(content) <= LARGEST_SCRIPT and b"\0" not in content
        return content.decode("utf-8", "surrogateescape") if fits else None

    return app.rules(found.depot, found.base), read


def list_rules(app: App, repo: Path | None) -> RuleList:
    """Return the rules in force; raises `ConfigError` (`policy_invalid`) where a file is wrong."""
    rules, _ = _rules_here(app, repo)
    sources = tuple(RuleSource(origin=each.origin, name=each.name, text=each.text) for each in rules.sources)
    return RuleList(digest=rules.digest, rules=tuple(rules.all), sources=sources)


def rule_schema() -> RuleSchema:
    """Return what rules may ask about."""
    return RuleSchema(schema=facts_schema())


def judge_action(app: App, wanted: Mapping[str, object], *, cwd: str | None, repo: Path | None) -> Judgement:
    """Judge one action without running it.

    `wanted` has exactly one value that is not `None`, by its kind: `command` (a tuple), `shell`, `read`, `write`
    or `mcp`. `cwd` is relative to the workspace. Raises `UsageError`.
    """
    given = {name: value for name, value in wanted.items() if value is not None}
    if len(given) != 1:
        raise UsageError(
            f"exactly one action is needed, got {len(given)}",
            hint="give one: `chargehand policy test -- CMD…`, --shell, --read, --write or --mcp",
        )
    ((kind, value),) = given.items()
    # One word with spaces is a quoted line: judged as a program's name it would always be allowed.
    if kind == "command" and isinstance(value, tuple) and len(value) == 1 and len(str(value[0]).split()) > 1:
        kind, value = "shell", value[0]
    where = None if cwd is None else posixpath.normpath(posixpath.join(WORKSPACE, cwd))
    rules, script = _rules_here(app, repo)
    action: Action
    match kind:
        case "command":
            action = Command(argv=tuple(cast("tuple[str, ...]", value)))
        case "shell":
            action = Shell(text=str(value))
        case "read":
            action = FileRead(path=str(value))
        case "mcp":
            text = str(value)
            name, _, arguments = text.strip().partition(" ")
            server, slash, tool = name.partition("/")
            try:
                decoded = msgspec.json.decode(arguments or "{}")
            except (msgspec.DecodeError, RecursionError):
                decoded = None
            if not (server and slash and tool) or not isinstance(decoded, dict):
                raise UsageError(
                    f"{format_value(text)} is not a tool call",
                    hint="write --mcp SERVER/TOOL, or --mcp 'SERVER/TOOL {\"argument\": 1}'",
                )
            action = McpCall(
                server=server, tool=tool, arguments=msgspec.json.encode(decoded, order="sorted").decode()
            )
        case _:
            action = FileWrite(path=str(value))
    return judge(action, Surroundings(cwd=where, script=script), rules)


def mission_judgements(reader: StateReader, mission: str) -> Iterator[LoggedJudgement]:
    """Yield what was judged in a mission of this exact id, in the order of its log."""
    for event in reader.store.log.read(mission):
        if isinstance(judged := read_payload(event), ActionJudged):
            yield LoggedJudgement(mission=mission, seq=event.seq, time=event.time, judged=judged)


def page_judgements(
    reader: StateReader, name: str, *, everything: bool = False, after: int = 0, limit: int = 200
) -> JudgementPage:
    """Return a page of what was judged in a mission; with `everything` also what was simply allowed."""
    mission = reader.find_mission(name)
    counts: dict[str, int] = {}
    found: list[LoggedJudgement] = []
    for logged in mission_judgements(reader, mission):
        counts[logged.judged.effect] = counts.get(logged.judged.effect, 0) + 1
        if logged.seq > after and (everything or is_notable(logged)):
            found.append(logged)
    more = len(found) > limit
    return JudgementPage(
        mission=mission, judgements=found[:limit], counts=counts, next=found[limit - 1].seq if more else None
    )


def is_notable(logged: LoggedJudgement) -> bool:
    """Tell whether a judgement was more than a plain yes: what only an override or an answer allowed is, too."""
    judged = logged.judged
    return judged.effect != "allow" or bool(judged.overridden) or bool(judged.answer)


def override_rule(reader: StateReader, rule: str, *, reason: str, when: str) -> RuleOverride:
    """Set aside a rule that asks or denies, in the user's own policy.cedar; `when` is in Cedar, "" for always.

    Raises `NotFoundError`, `UsageError`, `ConfigError`; the file is then as it was.
    """
    path = add_override(reader.environ, rule, reason=reason, when=when)
    return RuleOverride(rule=rule, reason=reason, when=when, path=str(path))
