"""The rules in force: the shipped ones, the user's `policy.cedar`, and restrictions by a repository."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from chargehand.configuration.locations import user_config_path
from chargehand.core.errors import ConfigError, NotFoundError, UsageError, nearest
from chargehand.policy.rules import Rules, Source
from chargehand.workspace.depot import Depot

USER_RULES = "policy.cedar"
REPOSITORY_RULES = "chargehand.cedar"


def user_rules_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's rules, in the directory of their configuration; the file need not exist."""
    return user_config_path(environ).parent / USER_RULES


def load_rules(environ: Mapping[str, str], depot: Depot | None = None, tree: str | None = None) -> Rules:
    """Return the rules in force, with those of a base tree's `chargehand.cedar` if `depot` and `tree` are given.

    The rules are parsed at first use. Raises `ConfigError` for an unreadable file.
    """
    sources = [_user_source(user_rules_path(environ))]
    if depot is not None and tree is not None:
        entry = depot.lookup(tree, REPOSITORY_RULES)
        if entry is not None:
            text = _decode_rules(REPOSITORY_RULES, depot.read_blob(entry.id))
            sources.append(Source(origin="repository", name=REPOSITORY_RULES, text=text))
    return Rules(source for source in sources if source is not None)


def _user_source(path: Path) -> Source | None:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", hint="fix or remove the file") from error
    return Source(origin="user", name=str(path), text=_decode_rules(str(path), content))


def _decode_rules(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{name}:{line}: the file is not UTF-8", code="policy_invalid", hint="save it as UTF-8"
        ) from error


def add_override(environ: Mapping[str, str], rule: str, *, reason: str, when: str = "") -> Path:
    """Write a rule to the user's file that overrides one of the shipped rules; return the file.

    `when` is a condition in Cedar, "" for always. The file is unchanged if the new rule would be invalid: raises
    `NotFoundError` for a rule that cannot be overridden, `UsageError` without a reason, `ConfigError`.
    """
    if not reason.strip():
        raise UsageError("an override needs a reason", hint='--reason "why this is acceptable here"')
    known = {each.id for each in Rules().all if each.effect != "allow"}
    if rule not in known:
        raise NotFoundError(f"there is no rule {rule!r} that asks or denies", hint=nearest(rule, known))
    path = user_rules_path(environ)
    source = _user_source(path)
    before = source.text if source is not None else ""
    own = Rules([Source(origin="user", name=str(path), text=before)]).all
    taken = {each.key for each in own}
    name = f"allow-{rule}"
    number = 2
    while f"user:{name}" in taken:
        name = f"allow-{rule}-{number}"
        number += 1
    condition = f"\nwhen {{ {when} }}" if when.strip() else ""
    said = json.dumps(" ".join(reason.split()), ensure_ascii=False)
    text = before + ("\n" if before and not before.endswith("\n") else "")
    text += f'@id("{name}") @overrides("{rule}")\n@reason({said})\n'
    text += f"permit (principal, action, resource){condition};\n"
    # An invalid file would stop every command that evaluates the rules.
    Rules([Source(origin="user", name=str(path), text=text)]).check()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: a concurrent reader gets the old file or the new one.
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, "utf-8")
    partial.replace(path)
    return path
