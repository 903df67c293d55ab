"""What a text must look like, by the form of its key: the problem and the way out, both empty where it fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from chargehand.core.errors import ConfigError
from chargehand.models.redaction import Redactor
from chargehand.network.allow_list import parse_rule

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
