"""Changes to the user's file: single keys, keeping comments and layout, or its whole text."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chargehand.configuration.keys import config_error, find_key, format_value, known_names, parse_text
from chargehand.configuration.lines import TomlEntry, scan
from chargehand.configuration.locations import UserFile, load_user_file
from chargehand.configuration.resolve import resolve
from chargehand.configuration.sources import parse_toml
from chargehand.core.errors import ConfigError, nearest


def set_user_value(path: Path, key: str, value: str) -> None:
    """Set one dotted key in the user's file, as `set_user_values` does."""
    set_user_values(path, {key: value})


def set_user_values(path: Path, values: Mapping[str, str]) -> None:
    """Set dotted keys in the user's file, creating it if missing; the file is replaced atomically.

    Values are written as after an option: lists as TOML or separated by commas, durations as `30m`. Raises
    `ConfigError` for an unknown key, a bad value, a file that would still be invalid or cannot be written; the
    file is then unchanged.
    """
    text = (load_user_file(path) or UserFile(path=path, text="")).text
    data = parse_toml(text, name=str(path))
    for key, value in values.items():
        written = check_user_value(key, value)
        parts = tuple(key.split("."))
        text = _insert(text, parts, _format_toml(written))
        data = _with_value(data, parts, written)
        # Whatever the scanner understood, only an edit that parses to the old values plus the new one is written.
        try:
            as_meant = parse_toml(text, name=str(path)) == data
        except ConfigError:
            as_meant = False
        if not as_meant:
            raise _cannot_edit(path)
    write_user_file(path, text)


def unset_user_value(path: Path, key: str) -> bool:
    """Remove one dotted key from the user's file; return whether it was there.

    A table that has no other key is removed as well. Raises as `set_user_values`.
    """
    if find_key(key) is None:
        raise unknown_key(key)
    parts = tuple(key.split("."))
    text = (load_user_file(path) or UserFile(path=path, text="")).text
    data = parse_toml(text, name=str(path))
    if not _has_value(data, parts):
        return False
    text = _remove(text, parts)
    if _without_empty(parse_toml(text, name=str(path))) != _without_empty(_without_value(data, parts)):
        raise _cannot_edit(path)
    write_user_file(path, text)
    return True


def check_user_text(path: Path, text: str) -> None:
    """Raise `ConfigError` if this cannot be the text of the user's file at `path`."""
    parse_toml(text, name=str(path))
    # The whole file: a valid value may contradict another key, as with `kind` and `command`.
    resolve(user=UserFile(path=path, text=text))


def unknown_key(key: str) -> ConfigError:
    """Return the error for a key that does not exist."""
    return ConfigError(f"unknown key {format_value(key)}", hint=nearest(key, known_names()))


def _cannot_edit(path: Path) -> ConfigError:
    message = "the file is laid out in a way that cannot be edited safely"
    return config_error(str(path), message, "change it by hand: chargehand config edit")


def write_user_file(path: Path, text: str) -> None:
    """Replace the user's file atomically by a valid text. Raises `ConfigError`; the file is then unchanged."""
    check_user_text(path, text)
    # The file is replaced atomically; a link stays a link, and the mode is kept (0600 for a new file).
    try:
        target = path.resolve()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        # In the target's directory, since a rename does not cross file systems.
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode("utf-8"))
                os.fchmod(file.fileno(), mode)
                file.flush()
                # Some file systems write a rename before the data: a power cut would leave an empty file.
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    # Up to Python 3.12 a circle of links is a RuntimeError; a zero byte in a path is a ValueError.
    except (OSError, RuntimeError, ValueError) as error:
        message = f"cannot be written: {error}"
        raise config_error(str(path), message, "check the directory's permissions") from error


def check_user_value(key: str, value: str) -> Any:
    """Return the value to write in the file: a duration stays as the person wrote it.

    Raises `ConfigError` for an unknown key or a bad value.
    """
    known = find_key(key)
    if known is None:
        raise unknown_key(key)
    parsed = parse_text(known, value, known.name)
    if known.shape != "seconds":
        return list(parsed) if isinstance(parsed, tuple) else parsed
    return int(value) if re.fullmatch(r"[0-9]+", value.strip()) else value.strip()


def _format_toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_format_toml(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are a subset of TOML's; TOML wants DEL escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_value(data: dict[str, Any], parts: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = parts
    if not rest:
        return data | {head: value}
    table = data.get(head, {})
    return data | {head: _with_value(table if isinstance(table, dict) else {}, tuple(rest), value)}


def _has_value(data: Any, parts: tuple[str, ...]) -> bool:
    for part in parts:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


def _without_value(data: dict[str, Any], parts: tuple[str, ...]) -> dict[str, Any]:
    head, *rest = parts
    if not rest:
        return {key: value for key, value in data.items() if key != head}
    return data | {head: _without_value(data[head], tuple(rest))}


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables without those that contain nothing."""
    cleaned = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in data.items()}
    return {key: value for key, value in cleaned.items() if value != {}}


def _remove(text: str, parts: tuple[str, ...]) -> str:
    """Return the text without a key, and without the header of its table if nothing is left in that."""
    for entry in scan(text):
        if entry.path == parts and entry.kind == "line":
            text = _remove_lines(text, entry)
            break
        if entry.path == parts and entry.kind == "inline":
            after = re.match(r"[ \t]*,[ \t]*", text[entry.end :])
            before = text[: entry.start] if after else re.sub(r",?[ \t]*$", "", text[: entry.start])
            text = before + text[entry.end + (after.end() if after else 0) :]
            break
    table, entries = parts[:-1], scan(text)
    if any(entry.path[: len(table)] == table and entry.path != table for entry in entries):
        return text
    header = next((entry for entry in entries if entry.kind == "table" and entry.path == table), None)
    return text if header is None else _remove_lines(text, header)


def _remove_lines(text: str, entry: TomlEntry) -> str:
    end = text.find("\n", entry.end)
    return text[: text.rfind("\n", 0, entry.start) + 1] + ("" if end < 0 else text[end + 1 :])


def _insert(text: str, parts: tuple[str, ...], value: str) -> str:
    """Return the text with a key set: in place, in its table, after its dotted neighbours, or in a new table."""
    newline = "\r\n" if "\r\n" in text else "\n"
    entries = scan(text)
    table = parts[:-1]
    key = parts[-1]
    # The nearest place first, a new header last: TOML forbids a table to be defined twice.
    for entry in entries:
        if entry.kind in {"line", "inline"} and entry.path == parts:
            return text[: entry.value] + value + text[entry.end :]
    for entry in entries:
        if entry.kind in {"line", "inline"} and entry.path == table:
            item = f"{key} = {value}"
            if not text.startswith("{", entry.value):
                return text  # only a table can hold the key: the comparison in `set_user_values` refuses the edit
            inner = text[entry.value + 1 : entry.end - 1].strip()
            joined = f"{inner}, {item}" if inner else item
            return f"{text[: entry.value]}{{ {joined} }}{text[entry.end :]}"
    for at, entry in enumerate(entries, 1):
        if entry.kind == "table" and entry.path == table:
            below = itertools.takewhile(lambda each: each.kind not in {"table", "array"}, entries[at:])
            last = [entry, *(each for each in below if each.kind == "line")][-1]
            return _insert_line(text, last, f"{key} = {value}", newline)
    dotted = [entry for entry in entries if entry.kind == "line" and entry.path[:-1] == table]
    if dotted:
        relative = ".".join(parts[len(dotted[-1].header) :])
        return _insert_line(text, dotted[-1], f"{relative} = {value}", newline)
    if text and not text.endswith("\n"):
        text += newline
    gap = newline if text.strip() else ""
    return f"{text}{gap}[{'.'.join(table)}]{newline}{key} = {value}{newline}"


def _insert_line(text: str, entry: TomlEntry, line: str, newline: str) -> str:
    at = text.find("\n", entry.end)
    if at < 0:
        return f"{text}{newline}{line}{newline}"
    indent = re.match(r"[ \t]*", text[text.rfind("\n", 0, entry.start) + 1 :])
    return text[: at + 1] + (indent.group() if indent else "") + line + newline + text[at + 1 :]
