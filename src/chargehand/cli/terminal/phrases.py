"""Explains words that are no command, and arguments that are missing, by the command that does what is meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from chargehand.cli.terminal.commands import quoted

# A request of fewer words is more probably a command with an argument.
_REQUEST_WORDS = 3
# The similarity of a slip of the keyboard, and that of a word which, as the first of several, begins a request.
_SLIP, _ALIKE = 0.8, 0.7
# What a person means by other programs' words, as a purpose and a command.
_MEANT: Mapping[str, tuple[str, str]] = {
    "undo revert unmerge": ("to undo a promotion", "chargehand rollback last"),
    "stop abort kill end quit exit": ("to stop a mission", "chargehand cancel last"),
    "what why explain info details happened": ("to see what a mission did, and why", "chargehand show last"),
    "logs history events": ("to see each event of a mission", "chargehand log last"),
    "ls ps missions tasks jobs": ("to list the missions", "chargehand list"),
    "accept approve confirm yes": ("to approve a result that waits for you", "chargehand promote last"),
    "reject decline deny": ("to settle a mission as not wanted", "chargehand discard last"),
    "retry again redo repeat rerun": ("to give an ended mission another try", 'chargehand continue last "TEXT"'),
    "review": ("to see a change before you decide", "chargehand diff last"),
    "cost costs spend money price bill": ("to see what missions cost", "chargehand stats"),
    "usage": ("to see what missions cost and use", "chargehand stats"),
    "setup configure onboard": ("to set up a repository", "chargehand init"),
    "install check-install": ("to see what this machine lacks", "chargehand doctor"),
    "start new ask do work go fix add make create": ("to give a task to an agent", 'chargehand run "TEXT"'),
    "chat message tell say": ("to send a message to a running agent", 'chargehand send last "TEXT"'),
    "update upgrade": ("to install a newer version", "pip install --upgrade chargehand"),
    "uninstall": ("to remove the program", "pip uninstall chargehand"),
    "ui gui web dashboard serve server browser": ("to open the dashboard", "chargehand up"),
    "clean cleanup clear delete prune remove rm": ("to free disk space", "chargehand gc --dry-run"),
    "auth signin key keys apikey api-key": ("to store a key of a model provider", "chargehand model add"),
    "models providers": ("to list the models", "chargehand model list"),
    "agents": ("to list the agents", "chargehand agent list"),
    "settings preferences options set": ("to change your configuration", "chargehand config edit"),
    "test check verify shell bash": ("to run a command in a sandbox", "chargehand exec -- COMMAND"),
    "merge apply": ("to merge a branch that `chargehand show last` names", "git merge BRANCH"),
    "push": ("to push a promoted branch", "chargehand git push --mission last"),
    "pull fetch": ("to fetch the branches of a remote", "chargehand git fetch"),
    "plan": ("to see the tasks of a plan", "chargehand mission plan last"),
    "fork branch-off": ("to fork a mission at a reply of its model", "chargehand mission fork last"),
    "report summary": ("to get a report of a mission", "chargehand mission report last"),
    "backup": ("to copy the state directory", "chargehand store backup DIRECTORY"),
}
_HINTS = {word: meant for words, meant in _MEANT.items() for word in words.split()}
# Missing arguments whose meaning a newcomer may not know, by the path of the command.
_MISSING = {
    "chargehand login": "for a server: chargehand login URL\nfor the key of a model provider: chargehand model add"
}


def unknown_command(word: str, others: Sequence[str], known: Iterable[str], group: str = "") -> tuple[str, str]:
    """Return message and hint for a word that is no command; `others` follow it on the command line.

    `known` are the commands that exist, of the `group` if one is named.
    """
    message = f"there is no command {' '.join(filter(None, (group, word)))!r}"
    said = " ".join([word, *others]).partition(" -")[0].split()
    hints = []
    if word.lower() in _HINTS and len(said) <= _REQUEST_WORDS:
        purpose, command = _HINTS[word.lower()]
        hints.append(f"{purpose}: {command}")
    is_request = len(said) >= _REQUEST_WORDS and not group
    near = difflib.get_close_matches(word, [*known], 1, _SLIP if is_request else _ALIKE)
    if near and not hints:
        hints.append(f"did you mean {' '.join(filter(None, (group, near[0])))!r}?")
    elif is_request:
        hints.append(f"to give a task to an agent: chargehand run {quoted(' '.join(said))}")
    path = " ".join(filter(None, ("chargehand", group)))
    return message, "\n".join(hints) or f"{path} --help lists the commands"


def missing_argument(path: str, name: str) -> str:
    """Return the hint for an argument that a command line lacks, by the path of its command."""
    if name == "mission":
        return f"the newest one is `last`: {path} last\nchargehand list shows all"
    return _MISSING.get(path, f"see {path} --help")
