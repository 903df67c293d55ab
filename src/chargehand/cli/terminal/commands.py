"""All commands, grouped by task, and short words for commands of missions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

Place = tuple[str, str]
"""The module that declares a command, and its attribute there."""

COMMANDS: Mapping[str, Mapping[str, Place]] = {
    "Start": {
        "init": ("chargehand.cli.init", "init"),
        "run": ("chargehand.cli.run", "run"),
        "exec": ("chargehand.cli.execution", "exec_"),
        "demo": ("chargehand.cli.init", "demo"),
        "doctor": ("chargehand.cli.doctor", "doctor"),
    },
    "Follow, decide and undo": {
        "mission": ("chargehand.cli.mission", "mission"),
        "checkpoint": ("chargehand.cli.checkpoint", "checkpoint"),
        "artifact": ("chargehand.cli.storage", "artifact"),
        "stats": ("chargehand.cli.stats", "stats"),
        "audit": ("chargehand.cli.audit", "audit"),
        "bench": ("chargehand.cli.bench", "bench"),
        "decision": ("chargehand.cli.decisions", "decision"),
        "feedback": ("chargehand.cli.decisions", "feedback"),
    },
    "Set up": {
        "model": ("chargehand.cli.model", "model"),
        "agent": ("chargehand.cli.role", "agent"),
        "role": ("chargehand.cli.role", "role"),
        "team": ("chargehand.cli.role", "team"),
        "secret": ("chargehand.cli.secret", "secret"),
        "config": ("chargehand.cli.config", "config"),
        "project": ("chargehand.cli.project", "project"),
        "forge": ("chargehand.cli.forge", "forge"),
        "knowledge": ("chargehand.cli.decisions", "knowledge"),
        "memory": ("chargehand.cli.knowledge.memory", "memory"),
        "policy": ("chargehand.cli.policy", "policy"),
        "sandbox": ("chargehand.cli.doctor", "sandbox"),
        "completion": ("chargehand.cli.doctor", "completion"),
    },
    "Serve": {
        "up": ("chargehand.cli.serving", "up"),
        "worker": ("chargehand.cli.run", "worker"),
        "mcp": ("chargehand.cli.serving", "mcp"),
        "gateway": ("chargehand.cli.gateway", "gateway"),
        "user": ("chargehand.cli.account", "user"),
        "token": ("chargehand.cli.account", "token"),
        "login": ("chargehand.cli.remote.login", "login"),
        "logout": ("chargehand.cli.remote.login", "logout"),
        "alerts": ("chargehand.cli.serving", "alerts"),
    },
    "Work on the repository by hand": {
        "git": ("chargehand.cli.actions", "git"),
        "format": ("chargehand.cli.execution", "format_"),
        "action": ("chargehand.cli.actions", "action"),
        "map": ("chargehand.cli.execution", "map_"),
        "library": ("chargehand.cli.execution", "library"),
    },
    "Maintain": {
        "gc": ("chargehand.cli.storage", "gc"),
        "branch": ("chargehand.cli.storage", "branch"),
        "store": ("chargehand.cli.storage", "store"),
    },
}
PLACES: Mapping[str, Place] = {name: place for group in COMMANDS.values() for name, place in group.items()}
_DECIDE = ("answer", "send", "promote", "continue", "pause", "resume", "cancel", "discard", "rollback")
SHORT: Mapping[str, tuple[str, ...]] = {
    name: ("mission", name) for name in ("list", "show", "log", "watch", "diff", *_DECIDE)
} | {"status": ("mission", "show")}
"""Words that may be given without the group of their command."""
_WITH_VALUE = {"--server"}


def expand_words(words: Sequence[str]) -> list[str]:
    """Return a command line with short words replaced by their commands, and `help` and `version` by options."""
    place = _first_word(words)
    if place is None:
        return list(words)
    before, word, after = words[:place], words[place], words[place + 1 :]
    if word == "version":
        return [*before, "--version", *after]
    if word == "help":
        topic = [each for each in after if not each.startswith("-")]
        return [*before, *expand_words(topic), *(each for each in after if each.startswith("-")), "--help"]
    return [*before, *SHORT.get(word, (word,)), *after]


def _first_word(words: Sequence[str]) -> int | None:
    """Return the place of the command: the first word that is neither an option nor the value of one."""
    is_value = False
    for place, word in enumerate(words):
        if not word.startswith("-") and not is_value:
            return place
        is_value = word in _WITH_VALUE
    return None


def quoted(text: str) -> str:
    """Return a text as one word of a shell, in the quotes that people use for sentences where they suffice."""
    return f'"{text}"' if not set(text) & set('"$`\\!') else shlex.quote(text)
