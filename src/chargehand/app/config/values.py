"""Parsing and showing one value of one key: from TOML, an environment variable or an option."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from chargehand.app.config.keys import ConfigKey
from chargehand.core.errors import ConfigError, nearest
from chargehand.core.text import printable
from chargehand.models._redact import Redactor
from chargehand.sandbox._egress_rules import parse_rule

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NOT_IN_HTTP = re.compile(r"[?#@\s\\\x00-\x1f\x7f\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_MODEL = re.compile(r"[!-~]{1,256}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SECRET = re.compile(r"[A-Z][A-Z0-9_]{1,63}")


def _command(item: str) -> tuple[str, str]:
    if not item.strip():
        return "holds an empty command", ""
    return ("holds a character no command can have", "") if re.search(r"[\x00\ud800-\udfff]", item) else ("", "")


def _area(item: str) -> tuple[str, str]:
    if not item or item != item.strip():
        return "holds a pattern that is empty or has blanks at its ends", ""
    if item.startswith("!"):
        return "holds a negated pattern", "say what is not allowed in project.forbid"
    if item.startswith("#"):
        return "holds a pattern that starts with '#'", "write '\\#…' for a name that starts so"
    if _CONTROL.search(item):
        return "holds a pattern with a control character", ""
    if set(item.strip("/").split("/")) & {"", ".", ".."} or item.startswith("//") or item.endswith("//"):
        return (
            "holds a pattern that is not a plain path below the repository",
            "write 'src/**', '/Makefile', '*.md'",
        )
    return "", ""


def _path(item: str) -> tuple[str, str]:
    if not item.startswith("/") or _CONTROL.search(item):
        return "holds a path that is not absolute", "write the whole path, such as '/opt/tools/bin'"
    return "", ""


def _host(item: str) -> tuple[str, str]:
    try:
        parse_rule(item)
    except ConfigError as error:
        return f"holds no rule for hosts ({error.message.rpartition(': ')[2]})", error.hint
    return "", ""


def _url(item: str) -> tuple[str, str]:
    if not item.startswith(("postgresql://", "postgres://")) or _CONTROL.search(item):
        return "holds no address of a PostgreSQL database", "write 'postgresql://user@host/database'"
    return "", ""


def _http(item: str) -> tuple[str, str]:
    hint = "write 'https://example.org/v1', without user, password, '?' and '#'; key names what holds the key"
    try:
        parts = urlsplit(item)
        plain = parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        plain = False
    if not plain or parts.scheme not in {"http", "https"} or _NOT_IN_HTTP.search(item):
        return "holds no plain http address", hint
    return "", ""


def _name(item: str) -> tuple[str, str]:
    if not _NAME.fullmatch(item):
        return "holds no name", "letters, digits and '_.:/-', at most 128"
    return "", ""


def _secret(item: str) -> tuple[str, str]:
    if not _SECRET.fullmatch(item):
        hint = "the key itself never stands here: `chargehand secret set OPENAI_API_KEY` keeps it under that name"
        return "holds no name of a secret", hint
    return "", ""


def _model(item: str) -> tuple[str, str]:
    return ("holds no name of a model", "") if not _MODEL.fullmatch(item) else ("", "")


def _variable(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals or not _VARIABLE.fullmatch(name) or re.search(r"[\x00\ud800-\udfff]", value):
        return "holds no variable", "write 'NAME=value'"
    if Redactor().text(value) != value:
        return "holds what looks like a secret", "what runs in a sandbox is given none: the agent can read it"
    return "", ""


def _modality(item: str) -> tuple[str, str]:
    known = ("text", "image", "pdf", "audio", "video")
    return ("", "") if item in known else (f"holds no kind of content: {item!r:.40}", f"known: {', '.join(known)}")


UNSEEN = frozenset({"http", "secret", "variable"})
"""Forms whose wrong values are not repeated: they may hold a password or a key."""
FORMS: dict[str, Callable[[str], tuple[str, str]]] = {
    "": lambda _: ("", ""),
    "command": _command,
    "area": _area,
    "path": _path,
    "host": _host,
    "url": _url,
    "http": _http,
    "name": _name,
    "secret": _secret,
    "variable": _variable,
    "model": _model,
    "agent": _command,
    "modality": _modality,
}


LARGEST = 1_000_000
"""The largest integer a key takes: far beyond any use, far below any overflow."""
LARGEST_TOKENS = 100_000_000
"""The largest number of tokens."""
LONGEST = 366 * 86400.0
"""The longest duration, in seconds."""
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_AMOUNT = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_DURATION = re.compile("".join(f"(?:{_AMOUNT}{unit})?" for unit in _UNITS))
_NUMBER = re.compile(_AMOUNT)
_FLAGS = {"true": True, "false": False}

_RANGE = "give a number in that range"
_LIST = 'write ["a", "b"]'


def config_error(place: str, message: str, hint: str = "") -> ConfigError:
    """Return the error for something wrong at `place`."""
    return ConfigError(f"{place}: {message}", hint=hint)


def format_value(value: object) -> str:
    """Return `value` as TOML and Python both nearly write it, short and safe to print."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, thousands of levels
        text = f"<{type(value).__name__}>"
    return printable(text if len(text) <= 100 else text[:97] + "…")


def format_seconds(seconds: float) -> str:
    """Return a duration the way a person writes it: `30m`, `1h30m`, `0.5s`."""
    rest, out = seconds, ""
    for unit, size in (("h", 3600), ("m", 60)):
        if rest >= size:
            out += f"{int(rest // size)}{unit}"
            rest %= size
    return out + (f"{rest:g}s" if rest or not out else "")


def format_key_value(key: ConfigKey, value: object) -> str:
    """Return what a key holds the way a person reads it: durations as `30m`, `-` for nothing."""
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
    """Return what `key` holds for a typed value, as TOML or a caller gives it.

    Raises `ConfigError` with what was expected and the value.
    """
    return _PARSERS[key.shape](key, value, place)


def parse_text(key: ConfigKey, text: str, place: str) -> Any:
    """Return what `key` holds for a text from the environment or the command line.

    Lists are TOML (`["a", "b"]`) or separated by commas; numbers and durations are written plainly.
    """
    if key.shape == "list":
        return parse_value(key, _listed(key, text.strip(), place), place)
    if key.shape == "integer":
        stripped = text.strip()
        number = re.fullmatch(r"-?[0-9]{1,18}", stripped)
        return parse_value(key, int(stripped) if number else text, place)
    if key.shape == "number":
        stripped = text.strip()
        return parse_value(key, float(stripped) if _NUMBER.fullmatch(stripped) else text, place)
    if key.shape == "flag":
        return parse_value(key, _FLAGS.get(text.strip().lower(), text), place)
    return parse_value(key, text, place)


def _listed(key: ConfigKey, text: str, place: str) -> object:
    if text.startswith("["):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError) as error:
            message = f"{key.name} starts like a TOML list and is none: {format_value(text)}"
            raise config_error(place, message, 'write ["a", "b"] or a,b') from error
    if key.form == "argv" and "," not in text:
        return text if len(text.split()) > 1 else [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def _expected(key: ConfigKey, what: str, value: object, place: str, hint: str = "") -> ConfigError:
    return config_error(place, f"{key.field} is {what}, not {format_value(value)}", hint)


def _text(key: ConfigKey, value: object, place: str) -> str:
    if not isinstance(value, str):
        raise _expected(key, "a string", value, place, 'write "…"')
    _item(key, value, place)
    return value


_SNIPPETS = "use --sandbox process or container; `chargehand exec --snippet FILE` runs a snippet"


def _choice(key: ConfigKey, value: object, place: str) -> str:
    if not isinstance(value, str):
        raise _expected(key, "a string", value, place, "one of: " + ", ".join(key.choices))
    if key.field == "tier" and value == "isolate":
        raise config_error(place, "the tier 'isolate' runs snippets, not agents or commands", _SNIPPETS)
    if value not in key.choices:
        what = f"unknown agent {key.field}" if key.section.startswith("agents.") else f"unknown {key.field}"
        guess = nearest(value, key.choices)
        hint = guess if guess.startswith("known") else f"{guess} known: {', '.join(key.choices)}"
        raise config_error(place, f"{what} {format_value(value)}", hint)
    return value


def _integer(key: ConfigKey, value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _expected(key, "a whole number", value, place, _RANGE)
    largest = LARGEST_TOKENS if key.form == "tokens" else LARGEST
    if not 1 <= value <= largest:
        raise config_error(place, f"{key.field} is from 1 to {largest}, not {format_value(value)}", _RANGE)
    return value


def _amount(key: ConfigKey, value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _expected(key, "a number", value, place, "write an amount of USD, such as 2.5")
    budget = key.form == "budget"
    if not (0 <= value <= LARGEST and math.isfinite(value)) or (budget and value == 0):
        lowest = "more than 0" if budget else "from 0"
        raise config_error(place, f"{key.field} is {lowest} to {LARGEST} USD, not {format_value(value)}", _RANGE)
    return float(value)


def _flag(key: ConfigKey, value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise _expected(key, "true or false", value, place, "write it without quotes")
    return value


def _seconds(key: ConfigKey, value: object, place: str) -> float:
    seconds = _duration(value)
    if seconds is None:
        raise _expected(
            key, "a duration", value, place, "write '90s', '30m', '2h', '1h30m' or a number of seconds"
        )
    if not 0 < seconds <= LONGEST:
        what = f"{key.field} is more than 0 and at most {format_seconds(LONGEST)}"
        raise config_error(place, f"{what}, not {format_value(value)}", _RANGE)
    return seconds


def _duration(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        # Clipped first: an integer may have more digits than a float can hold. What is not a number becomes -1.
        return float(max(-1, min(value, 2 * LONGEST)))
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return None
    return sum(float(part) * size for part, size in zip(match.groups(), _UNITS.values(), strict=True) if part)


def _list(key: ConfigKey, value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _expected(key, "a list of strings", value, place, _list_hint(key, value))
    for item in value:
        if not isinstance(item, str):
            raise config_error(place, f"{key.field} is a list of strings, and holds {format_value(item)}", _LIST)
    if key.form == "argv":
        return _argv(key, tuple(value), place)
    items = [_rule(item) if key.form == "host" else item for item in value]
    for item in items:
        _item(key, item, place)
    return tuple(dict.fromkeys(items))


def _rule(item: str) -> str:
    """Return a rule for the network as it is compared; what is none is left for the complaint."""
    try:
        return str(parse_rule(item))
    except ConfigError:
        return item


def _list_hint(key: ConfigKey, value: object) -> str:
    if not isinstance(value, str):
        return ""
    if key.form != "argv":
        return f"write [{_quoted(value)}]"
    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    return "a command is never given to a shell: write [" + ", ".join(map(_quoted, words)) + "]"


def _quoted(text: str) -> str:
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _argv(key: ConfigKey, value: tuple[str, ...], place: str) -> tuple[str, ...]:
    if not value or not value[0].strip():
        raise config_error(
            place, f"{key.field} names no program: {format_value(value)}", 'write ["program", "argument", …]'
        )
    for item in value:
        if "\0" in item or re.search(r"[\ud800-\udfff]", item):
            message = f"{key.field} holds a character no program can be given: {format_value(item)}"
            raise config_error(place, message, "take it out")
    return value


def _item(key: ConfigKey, item: str, place: str) -> None:
    problem, hint = FORMS[key.form](item)
    if problem:
        said = "" if key.form in UNSEEN else f": {format_value(item)}"
        raise config_error(place, f"{key.field} {problem}{said}", hint)


_PARSERS: dict[str, Callable[[ConfigKey, object, str], Any]] = {
    "text": _text,
    "choice": _choice,
    "integer": _integer,
    "number": _amount,
    "flag": _flag,
    "seconds": _seconds,
    "list": _list,
}
