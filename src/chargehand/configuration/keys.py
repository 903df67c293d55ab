"""The table of configuration keys, and how their values are parsed and shown."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import tomllib
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict

from chargehand.core.config import (
    ActionsConfig,
    AgentConfig,
    DecisionsConfig,
    EngineConfig,
    ExtensionsConfig,
    ForgeConfig,
    KnowledgeConfig,
    LimitsConfig,
    McpConfig,
    ModelConfig,
    ProjectConfig,
    RepositoryConfig,
    RequestsConfig,
    RoleConfig,
    RolloutConfig,
    SandboxConfig,
)
from chargehand.core.errors import ConfigError, nearest
from chargehand.core.own_config import (
    AlertsConfig,
    LogConfig,
    SecretKeyConfig,
    SecretsConfig,
    SecretSourceConfig,
    ServerConfig,
    SignInConfig,
    TracesConfig,
)
from chargehand.core.registry import registry_of
from chargehand.core.text import (
    LARGEST_AMOUNT,
    LONGEST_SECONDS,
    format_seconds,
    parse_number,
    parse_seconds,
    printable,
)
from chargehand.network.allow_list import parse_rule

Shape = Literal["text", "list", "integer", "number", "flag", "seconds", "choice"]
SECTIONS: tuple[tuple[str, type[Struct]], ...] = (
    ("project", ProjectConfig),
    ("limits", LimitsConfig),
    ("sandbox", SandboxConfig),
    ("engine", EngineConfig),
    ("actions", ActionsConfig),
    ("server", ServerConfig),
    ("alerts", AlertsConfig),
    ("log", LogConfig),
    ("traces", TracesConfig),
    ("decisions", DecisionsConfig),
    ("knowledge", KnowledgeConfig),
    ("extensions", ExtensionsConfig),
    ("requests", RequestsConfig),
    ("secrets", SecretsConfig),
)
AGENTS = "agents"
MODELS = "models"
ROLES = "roles"
MCP = "mcp"
ROLLOUTS = "rollouts"
FORGES = "forges"
REPOSITORIES = "repositories"
SIGN_IN = "sign_in"
# Tables inside of [secrets].
SECRET_SOURCES = "secrets.sources"
SECRET_KEYS = "secrets.keys"
# The tables of tables: `[agents.NAME]`, `[models.NAME]` and so on.
NAMED: dict[str, type] = {
    AGENTS: AgentConfig,
    MODELS: ModelConfig,
    ROLES: RoleConfig,
    MCP: McpConfig,
    ROLLOUTS: RolloutConfig,
    FORGES: ForgeConfig,
    REPOSITORIES: RepositoryConfig,
    SIGN_IN: SignInConfig,
    SECRET_SOURCES: SecretSourceConfig,
    SECRET_KEYS: SecretKeyConfig,
}
ENTRY_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Placeholder for an entry's name in the table.
NAME = "NAME"


class ConfigKey(Struct, frozen=True, kw_only=True):
    """One row of the table; `section` is `agents.NAME` and the like for the keys of entries."""

    section: str
    field: str
    doc: str
    meet: str
    form: str
    empty: str
    host: bool
    names: str
    words: tuple[str, ...]
    shape: Shape
    default: Any

    @property
    def name(self) -> str:
        """The dotted name."""
        return f"{self.section}.{self.field}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted values of the shape `choice`: registered names and fixed words."""
        return (*(registry_of(self.names).names() if self.names else ()), *self.words)


_PLAIN: dict[type, Shape] = {str: "text", bool: "flag", int: "integer", float: "number"}


def _make_rows(section: str, cls: type[Struct]) -> tuple[ConfigKey, ...]:
    hints = get_type_hints(cls, include_extras=True)
    rows = []
    # Every key needs a default: with one missing the two tuples differ in length.
    for name, default in zip(cls.__struct_fields__, cls.__struct_defaults__, strict=True):
        if f"{section}.{name}" in NAMED:
            continue
        hint, spec = get_args(hints[name])
        kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
        kind = kinds[0]
        registry, *words = spec.names.split() or [""]
        shape: Shape
        if get_origin(kind) is Literal:
            shape, words = "choice", list(get_args(kind))
        elif registry:
            shape = "choice"
        elif get_origin(kind) is tuple:
            shape = "list"
        else:
            shape = "seconds" if spec.form == "seconds" else _PLAIN[kind]
        about = {**asdict(spec), "names": registry, "words": tuple(words)}
        rows.append(ConfigKey(section=section, field=name, shape=shape, default=default, **about))
    return tuple(rows)


# Not at import: evaluating the annotations takes time that most commands need not spend.
@cache
def section_keys() -> dict[str, ConfigKey]:
    """Return the keys of the plain sections by dotted name, in the order of the documentation."""
    return {key.name: key for section, cls in SECTIONS for key in _make_rows(section, cls)}


@cache
def entry_keys(table: str) -> dict[str, ConfigKey]:
    """Return the keys of the entries of a table of tables by field."""
    return {key.field: key for key in _make_rows(f"{table}.{NAME}", NAMED[table])}


def agent_keys() -> dict[str, ConfigKey]:
    """Return the keys of `[agents.NAME]` by field."""
    return entry_keys(AGENTS)


def section_names() -> tuple[str, ...]:
    """Return the names of all top-level tables."""
    return (*(name for name, _ in SECTIONS), *(table for table in NAMED if "." not in table))


def find_key(dotted: str) -> ConfigKey | None:
    """Return the row of a dotted name such as `limits.time` or `agents.fixer.command`."""
    if dotted in section_keys():
        return section_keys()[dotted]
    table, _, field = dotted.rpartition(".")
    section, _, name = table.rpartition(".")
    if section in NAMED and ENTRY_NAME.fullmatch(name):
        return entry_keys(section).get(field)
    return None


def known_names() -> tuple[str, ...]:
    """Return every dotted name, with NAME in place of an entry's name."""
    return (*section_keys(), *(key.name for table in NAMED for key in entry_keys(table).values()))


LARGEST_TOKENS = 100_000_000
_FLAGS = {"true": True, "false": False}
_IN_RANGE = "choose a number in that range"


def config_error(place: str, message: str, hint: str = "") -> ConfigError:
    """Return the error for something wrong at `place`: a file and line, a variable or an option."""
    return ConfigError(f"{place}: {message}", hint=hint)


def format_value(value: object) -> str:
    """Return `value` in a notation close to TOML and Python, at most 100 characters and safe to print."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, thousands of levels
        text = f"<{type(value).__name__}>"
    return printable(text if len(text) <= 100 else text[:97] + "…")


def format_key_value(key: ConfigKey, value: object) -> str:
    """Return a key's value as a person writes it: durations as `30m`, `-` for `None`."""
    if value is None:
        return "-"
    if key.shape == "seconds" and isinstance(value, int | float):
        return format_seconds(value)
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_value(key: ConfigKey, value: object, place: str) -> Any:
    """Return the parsed value of `key` for a typed value, from TOML or a caller.

    Raises `ConfigError` with the expected form and the value.
    """
    match key.shape:
        case "text":
            if not isinstance(value, str):
                raise _wrong_value(key, "a string", value, place, 'put it in quotes: "…"')
            _check_form(key, value, place)
            return value
        case "choice":
            return _parse_choice(key, value, place)
        case "integer" | "number":
            return _parse_number(key, value, place)
        case "flag":
            if not isinstance(value, bool):
                raise _wrong_value(key, "true or false", value, place, "write it without quotes")
            return value
        case "seconds":
            seconds = parse_seconds(value)
            if seconds is None:
                raise _wrong_value(
                    key, "a duration", value, place, "write '90s', '30m', '2h', '1h30m' or a number of seconds"
                )
            if not 0 < seconds <= LONGEST_SECONDS:
                bound = f"at most {format_seconds(LONGEST_SECONDS)}" if seconds > 0 else "greater than 0"
                raise _wrong_value(key, bound, value, place, _IN_RANGE)
            return seconds
    return _parse_list(key, value, place)


def parse_text(key: ConfigKey, text: str, place: str) -> Any:
    """Return the parsed value of `key` for a text from the environment or the command line.

    Lists are TOML (`["a", "b"]`) or separated by commas; numbers and durations are plain.
    """
    stripped = text.strip()
    value: object = text
    if key.shape == "list" and stripped.startswith("["):
        try:
            value = tomllib.loads(f"value = {stripped}")["value"]
        except (ValueError, RecursionError) as error:
            message = f"{key.name} starts like a TOML list but is not one: {format_value(stripped)}"
            raise config_error(place, message, 'write ["a", "b"] or a,b') from error
    elif key.shape == "list" and key.form == "argv" and "," not in stripped:
        # One word is a program; several words are a command line, which is refused with a hint.
        value = stripped if len(stripped.split()) > 1 else [stripped]
    elif key.shape == "list":
        value = [part.strip() for part in stripped.split(",") if part.strip()]
    elif key.shape == "integer":
        # A longer number stays text and is refused below: Python does not parse thousands of digits.
        value = int(stripped) if re.fullmatch(r"-?[0-9]{1,18}", stripped) else text
    elif key.shape == "number":
        number = parse_number(stripped.removeprefix("-"))
        if number is not None and stripped.startswith("-"):  # refused below, by its value
            number = -int(number) if number.is_integer() else -number
        value = text if number is None else number
    elif key.shape == "flag":
        value = _FLAGS.get(stripped.lower(), text)
    return parse_value(key, value, place)


def _wrong_value(key: ConfigKey, what: str, value: object, place: str, hint: str = "") -> ConfigError:
    return config_error(place, f"{key.field} must be {what}, got {format_value(value)}", hint)


def _parse_choice(key: ConfigKey, value: object, place: str) -> str:
    if not isinstance(value, str):
        raise _wrong_value(key, "a string", value, place, "one of: " + ", ".join(key.choices))
    if key.field == "tier" and value == "isolate":
        raise config_error(
            place,
            "the tier 'isolate' runs snippets, not agents or commands",
            "use --sandbox process or container; `chargehand exec --snippet FILE` runs a snippet",
        )
    if value not in key.choices:
        what = f"unknown agent {key.field}" if key.section.startswith("agents.") else f"unknown {key.field}"
        guess = nearest(value, key.choices)
        hint = guess if guess.startswith("known") else f"{guess} known: {', '.join(key.choices)}"
        offered = registry_of(key.names).explain(value) if key.names else ""
        raise config_error(place, f"{what} {format_value(value)}", offered or hint)
    return value


def _parse_number(key: ConfigKey, value: object, place: str) -> float:
    """Return a count from 1, a share or an amount of USD; a budget of 0 would forbid every call."""
    if key.shape == "integer":
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_value(key, "a whole number", value, place, "write it in digits, such as 3")
        largest = {"tokens": LARGEST_TOKENS, "percent": 100}.get(key.form, LARGEST_AMOUNT)
        if not 1 <= value <= largest:
            raise _wrong_value(key, f"from 1 to {largest}", value, place, _IN_RANGE)
        return value
    share = {"percent": "from 0 to 100", "share": "greater than 0 and less than 1"}.get(key.form, "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = _IN_RANGE if share else "write an amount in USD, such as 2.5"
        raise _wrong_value(key, share or "a number", value, place, hint)
    if share:
        if not (0 <= value <= 100 if key.form == "percent" else 0 < value < 1):
            raise _wrong_value(key, share, value, place, _IN_RANGE)
        return float(value)
    budget = key.form == "budget"
    if not (0 <= value <= LARGEST_AMOUNT and math.isfinite(value)) or (budget and value == 0):
        bound = "greater than 0" if budget else "0 or more"
        what = bound if not value > 0 else f"at most {LARGEST_AMOUNT} USD"
        raise _wrong_value(key, what, value, place, _IN_RANGE)
    return float(value)


def _parse_list(key: ConfigKey, value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong_value(key, "a list of strings", value, place, _list_hint(key, value))
    for item in value:
        if not isinstance(item, str):
            message = f"{key.field} must be a list of strings, but contains {format_value(item)}"
            raise config_error(place, message, 'write ["a", "b"]')
    if key.form == "argv":
        if not value or not value[0].strip():
            hint = 'write ["program", "argument", …]'
            raise config_error(place, f"{key.field} names no program: {format_value(value)}", hint)
        for item in value:
            if not re.fullmatch(r"[^\x00\ud800-\udfff]*", item):
                message = f"{key.field} contains a character that no argument can have: {format_value(item)}"
                raise config_error(place, message, "remove it")
        return tuple(value)
    items: dict[str, None] = {}
    for item in value:
        if key.form == "host":
            # Normalised, as rules are compared in that form; an invalid rule is kept for the error message.
            with contextlib.suppress(ConfigError):
                item = str(parse_rule(item))
        _check_form(key, item, place)
        items[item] = None
    return tuple(items)


def _list_hint(key: ConfigKey, value: object) -> str:
    """Return a hint that shows a string as the list that was expected."""

    def quoted(text: str) -> str:
        return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'

    if not isinstance(value, str):
        return ""
    if key.form != "argv":
        return f"write [{quoted(value)}]"
    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    return "a command does not go through a shell: write [" + ", ".join(map(quoted, words)) + "]"


def _check_form(key: ConfigKey, item: str, place: str) -> None:
    """Raise `ConfigError` if a text does not match the key's form."""
    # Not loaded for a configuration without texts.
    from chargehand.configuration._forms import FORMS
    from chargehand.network.addresses import is_plain_web_url

    rows = (row for row in FORMS if key.form in row[0].split() and not row[1].fullmatch(item))
    _, _, problem, hint = next(rows, ("", None, "", ""))
    if key.form == "host":
        try:
            parse_rule(item)
        except ConfigError as error:
            problem, hint = f"not a rule for hosts ({error.message.rpartition(': ')[2]})", error.hint
    elif key.form == "http" and not is_plain_web_url(item):
        problem = "not a plain http address"
        hint = "write 'https://example.org/v1', without user, password, '?' and '#'; 'key' names the secret"
    elif key.form == "forge" and not (is_plain_web_url(item) or item.startswith("file:///")):
        problem = "not the address of a forge"
        hint = "write 'https://git.example.org', without user and password"
    elif key.form == "variable" and not problem and _has_secret(item.partition("=")[2]):
        problem = "a variable that seems to contain a secret"
        hint = "sandboxes get no secrets: the agent could read them"
    if not problem:
        return
    # A wrong address, key or variable may hold a password: it is not repeated.
    hidden = key.form in {"http", "forge", "secret", "variable"}
    if key.shape == "list":
        subject = "an entry" if hidden else format_value(item)
        raise config_error(place, f"{key.field}: {subject} is {problem}", hint)
    raise config_error(place, f"{key.field} is {problem}" + ("" if hidden else f": {format_value(item)}"), hint)


def _has_secret(text: str) -> bool:
    from chargehand.core.redaction import Redactor

    return Redactor().text(text) != text


def is_short_form(model: str) -> bool:
    """Return whether a text has the form `PROVIDER:MODEL`, such as `ollama:qwen3:8b`."""
    provider, colon, rest = model.partition(":")
    if not (colon and rest):
        return False
    providers = registry_of("providers")
    return provider in providers and bool(providers.find(provider).address)


def model_hint(model: str, names: list[str]) -> str:
    """Return a hint with the nearest known model name, and the ways to name a model."""
    providers = registry_of("providers")
    forms = "or write " + " or ".join(
        f"{name}:MODEL" for name in providers.built_in() if providers.find(name).address
    )
    guess = nearest(model, names)
    known = f"{guess} known: {', '.join(sorted(names))}" if guess.startswith("did") else guess
    return f"{known}; configure one with [{MODELS}.NAME], {forms}"
