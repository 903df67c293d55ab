"""All commands, grouped by task, and short words for commands of missions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

Place = tuple[str, str, str]
"""The module that declares a command, its attribute there, and the first sentence of its help.

The sentence is here too, so that the list of all commands imports none of them.
"""

COMMANDS: Mapping[str, Mapping[str, Place]] = {
    "Start": {
        "init": ("chargehand.cli.init", "init", "Write chargehand.toml into a repository."),
        "run": (
            "chargehand.cli.run",
            "run",
            "Let an agent do what TEXT asks for, and promote the result if it passes every check.",
        ),
        "exec": (
            "chargehand.cli.execution",
            "exec_",
            "Run one command in a sandbox on a fresh workspace, and promote nothing.",
        ),
        "demo": (
            "chargehand.cli.init",
            "demo",
            "Watch a model work on a small project: refused, promoted, forked, rolled back.",
        ),
        "doctor": (
            "chargehand.cli.doctor",
            "doctor",
            "Test the abilities of this machine, its models and agents, and say how to fix failures.",
        ),
    },
    "Follow, decide and undo": {
        "mission": ("chargehand.cli.mission", "mission", "Look at missions, and decide on them."),
        "checkpoint": (
            "chargehand.cli.checkpoint",
            "checkpoint",
            "List, compare and restore the checkpoints of a mission.",
        ),
        "artifact": (
            "chargehand.cli.storage",
            "artifact",
            "Show the artifacts of missions: reports, outputs, snapshots of failed attempts.",
        ),
        "stats": ("chargehand.cli.stats", "stats", "Show how missions end: rates, causes, times and cost."),
        "audit": ("chargehand.cli.audit", "audit", "Prove that the log has not been changed."),
        "bench": (
            "chargehand.cli.bench",
            "bench",
            "Run suites of problems with validators, and compare agents and models.",
        ),
        "decision": (
            "chargehand.cli.decisions",
            "decision",
            "Explain how agents, models and next steps were chosen.",
        ),
        "feedback": (
            "chargehand.cli.decisions",
            "feedback",
            "Say whether a result is good or bad; choices of agents and models learn from that.",
        ),
    },
    "Set up": {
        "model": ("chargehand.cli.model", "model", "List the models that agents can use, and test them."),
        "agent": ("chargehand.cli.role", "agent", "List the agents that missions can use, and test them."),
        "role": (
            "chargehand.cli.role",
            "role",
            "List the roles that agents can work in: their instructions, tools and permissions.",
        ),
        "team": (
            "chargehand.cli.role",
            "team",
            "List the teams that a request can go through: roles in order, and who reviews whose results.",
        ),
        "secret": (
            "chargehand.cli.secret",
            "secret",
            "Store the keys of model providers on this machine, out of every sandbox.",
        ),
        "config": ("chargehand.cli.config", "config", "Show and change the configuration."),
        "project": (
            "chargehand.cli.project",
            "project",
            "Show projects, trust their configuration, prepare their environment.",
        ),
        "forge": (
            "chargehand.cli.forge",
            "forge",
            "Work on issues of GitHub, GitLab, Gitea and Forgejo, and open requests to merge the results.",
        ),
        "knowledge": (
            "chargehand.cli.decisions",
            "knowledge",
            "Store belief networks, ask them for probabilities, and let them learn from cases.",
        ),
        "memory": (
            "chargehand.cli.knowledge.memory",
            "memory",
            "List, write, share and forget lessons from earlier missions.",
        ),
        "policy": ("chargehand.cli.policy", "policy", "Show and test the rules that judge what agents do."),
        "sandbox": ("chargehand.cli.doctor", "sandbox", "Prepare what a sandbox tier needs."),
        "completion": ("chargehand.cli.doctor", "completion", "Print the completion script for a shell."),
    },
    "Serve": {
        "up": (
            "chargehand.cli.serving",
            "up",
            "Start the dashboard, its API and a worker on this machine, until a signal.",
        ),
        "worker": (
            "chargehand.cli.run",
            "worker",
            "Run missions that have no active worker: detached, resumed, or left by a process that died.",
        ),
        "mcp": (
            "chargehand.cli.serving",
            "mcp",
            "Let other agents and orchestrators run missions here, over the Model Context Protocol.",
        ),
        "gateway": (
            "chargehand.cli.gateway",
            "gateway",
            "Serve models to any program: live, recorded, or from a script.",
        ),
        "user": ("chargehand.cli.account", "user", "Manage the accounts of the server."),
        "token": ("chargehand.cli.account", "token", "Manage tokens, with which programs use the server's API."),
        "login": (
            "chargehand.cli.remote.login",
            "login",
            "Store a token for a server, so that --server works with it.",
        ),
        "logout": (
            "chargehand.cli.remote.login",
            "logout",
            "Delete the stored token for a server, which accepts it until it is revoked: chargehand token revoke.",
        ),
        "alerts": (
            "chargehand.cli.serving",
            "alerts",
            "Show which thresholds are crossed, and test the channels for notices.",
        ),
    },
    "Work on the repository by hand": {
        "git": (
            "chargehand.cli.actions",
            "git",
            "Fetch branches; merge, rebase, describe and push the results of missions.",
        ),
        "format": (
            "chargehand.cli.execution",
            "format_",
            "Run the formatters that the project's configuration names, in a sandbox.",
        ),
        "action": (
            "chargehand.cli.actions",
            "action",
            "Show actions (`git …`, `exec --detach`), cancel them, answer their questions.",
        ),
        "map": (
            "chargehand.cli.knowledge.map",
            "map_",
            "Show the files that a request is likely about, or ask who uses what.",
        ),
        "library": (
            "chargehand.cli.knowledge.library",
            "library",
            "Search other people's repositories that you chose, with the licence of each file.",
        ),
    },
    "Maintain": {
        "gc": (
            "chargehand.cli.storage",
            "gc",
            "Free disk space: remove old bases, layers and workspaces that no mission needs.",
        ),
        "branch": ("chargehand.cli.storage", "branch", "Remove branches of missions from your repository."),
        "store": (
            "chargehand.cli.storage",
            "store",
            "Maintain the state directory: check it, back it up, restore it.",
        ),
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
