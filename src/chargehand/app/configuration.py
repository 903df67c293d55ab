"""Use cases of settings: configuration, secrets, tokens of servers, rules for agents' actions."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from chargehand.app.providers.secrets import check_secrets as check_secrets  # these three are parts of this face
from chargehand.app.providers.secrets import explain_secret as explain_secret
from chargehand.app.providers.secrets import rotate_secret as rotate_secret
from chargehand.app.wiring.policy_files import add_override
from chargehand.configuration.edit import (
    check_user_text,
    check_user_value,
    set_user_value,
    set_user_values,
    unknown_key,
    unset_user_value,
    write_user_file,
)
from chargehand.configuration.keys import (
    NAMED,
    entry_keys,
    find_key,
    format_key_value,
    format_value,
    section_keys,
)
from chargehand.configuration.locations import load_user_file, user_config_path
from chargehand.configuration.records import UntrustedKey
from chargehand.core.attempt_events import ActionJudged
from chargehand.core.errors import ConfigError, InfrastructureError, NotFoundError, RefusedError, UsageError
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
from chargehand.reports.reading import StateReader, server_secret
from chargehand.sandbox.contract import WORKSPACE

if TYPE_CHECKING:
    from chargehand.app.composition import App

__all__ = ["check_user_value", "set_user_values"]
_EMPTY_FILE = "# Your own configuration. `chargehand config list --all` lists every key.\n"


class ConfigurationView(msgspec.Struct, frozen=True, kw_only=True):
    """Every key with its value. `origins` is absent unless requested; `untrusted` keys are not in force."""

    values: dict[str, Any]
    origins: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    untrusted: tuple[UntrustedKey, ...]
    notes: tuple[str, ...]


class ConfigurationValue(msgspec.Struct, frozen=True, kw_only=True):
    """One key with its value in force, and its origin."""

    key: str
    value: Any
    origin: str


class ConfigurationKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that the configuration may have; NAME in it is the name of an entry."""

    key: str
    default: Any
    meaning: str


class ConfigurationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """All keys that the configuration may have."""

    keys: tuple[ConfigurationKey, ...]


class ConfigurationRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was removed from a file, or was not in it."""

    key: str
    path: str
    removed: bool


class ConfigurationPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The user's own file, whether it exists, and whether an editor has just changed it."""

    path: str
    exists: bool
    changed: bool = False


class ConfigurationChange(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was set, its value as given, and the file that contains it."""

    key: str
    value: str
    path: str


def show_configuration(app: App, repo: Path | None, *, with_origins: bool) -> ConfigurationView:
    """Return every key with its value in force. Raises `ConfigError` for any error in any source."""
    resolved = app.preparation.configuration_here(repo)
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
    """Set one key in the user's own file, keeping everything else in it; raise `ConfigError`."""
    path = user_config_path(reader.environ)
    set_user_value(path, key, value)
    return ConfigurationChange(key=key, value=value, path=str(path))


def get_configuration(app: App, key: str, repo: Path | None) -> ConfigurationValue:
    """Return one key with its value in force. Raises `ConfigError`, `NotFoundError` if no entry sets it."""
    known = find_key(key)
    if known is None:
        raise unknown_key(key)
    view = show_configuration(app, repo, with_origins=True)
    if key not in view.values:
        raise NotFoundError(f"{key} is not set", code="not_found", hint=f"chargehand config set {key} VALUE")
    origins = view.origins if isinstance(view.origins, dict) else {}
    return ConfigurationValue(key=key, value=view.values[key], origin=origins.get(key, ""))


def list_configuration(app: App, repo: Path | None) -> ConfigurationView:
    """Return the keys that a person set, here or for all projects, with their origins."""
    view = show_configuration(app, repo, with_origins=True)
    origins = view.origins if isinstance(view.origins, dict) else {}
    told = {key: origin for key, origin in origins.items() if not origin.startswith(("default", "profile "))}
    return msgspec.structs.replace(view, values={key: view.values[key] for key in told}, origins=told)


def list_configuration_keys() -> ConfigurationKeys:
    """Return all keys that the configuration may have, in the order of the documentation."""
    rows = (*section_keys().values(), *(key for table in NAMED for key in entry_keys(table).values()))
    return ConfigurationKeys(
        keys=tuple(ConfigurationKey(key=row.name, default=row.default, meaning=row.doc) for row in rows)
    )


def unset_configuration(reader: StateReader, key: str) -> ConfigurationRemoval:
    """Remove one key from the user's own file, keeping everything else in it; raise `ConfigError`."""
    path = user_config_path(reader.environ)
    return ConfigurationRemoval(key=key, path=str(path), removed=unset_user_value(path, key))


def find_configuration(reader: StateReader) -> ConfigurationPlace:
    """Return the place of the user's own file, which need not exist or be valid."""
    path = user_config_path(reader.environ)
    return ConfigurationPlace(path=str(path), exists=path.is_file())


def edit_configuration(
    reader: StateReader, *, edit: Callable[[Path], None], ask_again: Callable[[ConfigError], bool]
) -> ConfigurationPlace:
    """Let a person change their whole file, which may be invalid now; it is never half-written.

    `edit` changes a copy and returns once the person is done. `ask_again` is called with each error in the copy:
    `False` leaves the file as it was. Raises `ConfigError`, also if the file was changed meanwhile.
    """
    path = user_config_path(reader.environ)
    before = load_user_file(path)
    with tempfile.TemporaryDirectory(prefix="chargehand-") as directory:
        copy = Path(directory) / path.name
        copy.touch(mode=0o600)
        copy.write_text(_EMPTY_FILE if before is None else before.text, encoding="utf-8", newline="")
        while True:
            edit(copy)
            try:
                edited = load_user_file(copy)
                if edited is None or edited.text == (_EMPTY_FILE if before is None else before.text):
                    return find_configuration(reader)
                check_user_text(path, edited.text)
                break
            except ConfigError as error:
                if not ask_again(error):
                    return find_configuration(reader)
    now = load_user_file(path)
    if now != before:
        raise ConfigError(f"{path}: another program changed it meanwhile", hint="edit it again")
    write_user_file(path, edited.text)
    return ConfigurationPlace(path=str(path), exists=True, changed=True)


def format_setting(name: str, value: object) -> str:
    """Return the value of a dotted key as a person writes it: durations as `30m`, `-` for `None`."""
    key = find_key(name)
    return str(value) if key is None else format_key_value(key, value)


class SecretEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A stored secret; `origin` is the source it would be read from now, null if its keyring does not answer."""

    name: str
    origin: Origin | None


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """All stored secrets."""

    secrets: tuple[SecretEntry, ...]


class SecretKept(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was stored; `hidden_by_environment`: a variable of the same name takes precedence.

    `warning` describes its protection if that is weaker than for most keys, otherwise null.
    """

    name: str
    kept_in: str
    hidden_by_environment: bool
    warning: str | None = None


class SecretRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was removed; `origin` is a source that still has it, null if there is none."""

    name: str
    removed: bool
    origin: Origin | None


def keep_secret(reader: StateReader, name: str, *, read: Callable[[], str], source: Origin = "") -> SecretKept:
    """Store a secret whose value `read` returns, in an encrypted file if `source` names one.

    `read` is called only once the name and the file are known to be valid, so that a person does not type in vain.
    Raises `UsageError` (`secret_invalid`), `ConfigError`.
    """
    # Called only for its errors, before a person types.
    _describe_secret(reader, name)
    from chargehand.models.key_filter import explain_weak_key

    value = read()
    place = reader.credentials.set(name, value, source)
    hidden = _describe_secret(reader, name) == "environment"
    weak = explain_weak_key(value) or None
    return SecretKept(name=name, kept_in=place, hidden_by_environment=hidden, warning=weak)


def list_secrets(reader: StateReader) -> SecretList:
    """Return the names of the stored secrets, and the source of each."""
    names = reader.credentials.names()
    return SecretList(secrets=tuple(SecretEntry(name=each.name, origin=each.origin) for each in names))


def remove_secret(reader: StateReader, name: str) -> SecretRemoved:
    """Remove a stored secret; raise `NotFoundError`."""
    reader.credentials.remove(name)
    return SecretRemoved(name=name, removed=True, origin=_describe_secret(reader, name))


def _describe_secret(reader: StateReader, name: str) -> Origin | None:
    try:
        return reader.credentials.describe(name)
    except (RefusedError, InfrastructureError):  # of a store, which does not matter for stored secrets
        return None


class ServerLogin(msgspec.Struct, frozen=True, kw_only=True):
    """`login`: the account of a server's token, and its location; the variable `hidden_by` takes precedence."""

    server: str
    user: str
    role: str
    kept_in: str
    hidden_by: str | None


class ServerLogout(msgspec.Struct, frozen=True, kw_only=True):
    """`logout`: the server whose token was removed here; the server accepts it until it is revoked."""

    server: str
    removed: bool


def keep_server_token(reader: StateReader, server: str, token: str) -> str:
    """Store a token for a server, replacing an earlier one; return its location. Raises as `Credentials.set`."""
    return reader.credentials.set(server_secret(server), token)


def remove_server_token(reader: StateReader, server: str) -> ServerLogout:
    """Remove the token for a server; raise `NotFoundError` (`not_logged_in`)."""
    try:
        reader.credentials.remove(server_secret(server))
    except NotFoundError as error:
        raise NotFoundError(
            f"no token for {server} is stored here",
            code="not_logged_in",
            hint="`chargehand secret list` lists stored secrets",
        ) from error
    return ServerLogout(server=server, removed=True)


class RuleSource(msgspec.Struct, frozen=True, kw_only=True):
    """One file of rules with its text."""

    origin: str
    name: str
    text: str


class RuleList(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force; `digest` changes when any of them changes."""

    digest: str
    rules: tuple[Rule, ...]
    sources: tuple[RuleSource, ...]


class RuleSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The facts available to rules, as a Cedar schema."""

    schema: str


class LoggedJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """One judgement of a mission, as recorded in its log."""

    mission: str
    seq: int
    time: str
    judged: ActionJudged


class JudgementPage(msgspec.Struct, frozen=True, kw_only=True):
    """The judgements of a mission; `counts` are over its whole log, by effect.

    `next` is the line after which to continue, null at the end.
    """

    mission: str
    judgements: list[LoggedJudgement]
    counts: dict[str, int]
    next: int | None


class RuleOverride(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was overridden, with reason and condition, and the file with the override."""

    rule: str
    reason: str
    when: str
    path: str


def _rules_here(app: App, repo: Path | None) -> tuple[Rules, Callable[[str], str | None] | None]:
    """Return the rules of a repository at its HEAD and a reader of its scripts, or those outside any."""
    if app.projects.current(repo) is None:
        return app.preparation.rules(), None
    found = app.preparation.find(repo, only_reads=True)

    # A script is named by its path in a sandbox; links are not followed.
    def read(path: str) -> str | None:
        if not path.startswith(f"{WORKSPACE}/"):
            return None
        entry = found.depot.lookup(found.base.tree, path.removeprefix(f"{WORKSPACE}/"))
        if entry is None or entry.mode not in (0o100644, 0o100755):
            return None
        # One byte more than allowed reveals a script that is too long.
        content = found.depot.read_blob(entry.id, limit=LARGEST_SCRIPT + 1)
        fits = len(content) <= LARGEST_SCRIPT and b"\0" not in content
        return content.decode("utf-8", "surrogateescape") if fits else None

    return app.preparation.rules(found.depot, found.base), read


def list_rules(app: App, repo: Path | None) -> RuleList:
    """Return the rules in force; raise `ConfigError` (`policy_invalid`) if a file is invalid."""
    rules, _ = _rules_here(app, repo)
    sources = tuple(RuleSource(origin=each.origin, name=each.name, text=each.text) for each in rules.sources)
    return RuleList(digest=rules.digest, rules=tuple(rules.all), sources=sources)


def rule_schema() -> RuleSchema:
    """Return the facts available to rules."""
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
    """Yield the judgements of a mission with this exact id, in the order of its log."""
    for event in reader.store.log.read(mission):
        if isinstance(judged := read_payload(event), ActionJudged):
            yield LoggedJudgement(mission=mission, seq=event.seq, time=event.time, judged=judged)


def page_judgements(
    reader: StateReader, name: str, *, everything: bool = False, after: int = 0, limit: int = 200
) -> JudgementPage:
    """Return a page of a mission's judgements; with `everything` also plain permissions."""
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
    """Return whether a judgement was more than a plain permission: also if an override or an answer allowed it."""
    judged = logged.judged
    return judged.effect != "allow" or bool(judged.overridden) or bool(judged.answer)


def override_rule(reader: StateReader, rule: str, *, reason: str, when: str) -> RuleOverride:
    """Override a rule that asks or denies, in the user's own policy.cedar; `when` is in Cedar, "" for always.

    Raises `NotFoundError`, `UsageError`, `ConfigError`; the file is then unchanged.
    """
    path = add_override(reader.environ, rule, reason=reason, when=when)
    return RuleOverride(rule=rule, reason=reason, when=when, path=str(path))
