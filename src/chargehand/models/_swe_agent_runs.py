"""Converts recorded runs of SWE-agent (`.traj`) into scripts whose tools every client has.

The format is described at https://swe-agent.com/latest/usage/trajectories/: one JSON document whose `trajectory`
lists the actions (`action`), the reasons (`thought`) and the results (`observation`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from chargehand.core.errors import UsageError
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script, ScriptLine

SUFFIX = ".traj"
_PLACE = re.compile(r"""working_dir['"]: *['"]([^'"]+)""")
_LINES = re.compile(r"edit (\d+):(\d+)\n(.*?)\n?end_of_edit\s*\Z", re.DOTALL)
# Phrases in the observation of an edit that changed nothing.
_UNDONE = ("NOT been applied", "has not been applied", "Text not found", "No replacement was performed", "Error: ")
_LOOKS = frozenset({"goto", "scroll_up", "scroll_down"})


def load_swe_agent_run(content: bytes, name: str) -> Script:
    """Return a script that repeats a recorded run; raises `UsageError` (`script_invalid`)."""
    try:
        document = json.loads(content)
        steps = [(str(step["action"]), step) for step in document["trajectory"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{name} is not a trajectory: {error!r}",
            code="script_invalid",
            hint="give one JSON document whose `trajectory` lists `action` and `observation`",
        ) from error
    # The directory in which the run began, if its first step names it.
    root = _PLACE.search(str(steps[0][1].get("state", ""))) if steps else None
    editor = _Editor(root[1].rstrip("/") if root else "")
    lines = [
        ScriptLine(reply=ScriptedReply(text=str(step.get("thought", "")).strip(), tools=(call,)), line=number)
        for number, (action, step) in enumerate(steps, start=1)
        for call in [editor.call(action.strip("\n"), str(step.get("observation", "")), number=number, name=name)]
    ]
    if not lines or lines[-1].reply.tools[0].name != "finish":
        lines.append(ScriptLine(reply=ScriptedReply(tools=(_finish(),)), line=len(lines) + 1))
    return Script(lines=tuple(lines), note=f"what {name} did", name=name, neutral=True)


class _Editor:
    """The editor of those runs, which keeps one file open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open = ""

    def call(self, action: str, observation: str, *, number: int, name: str) -> ScriptedCall:
        """Return the call that repeats an action; raises `UsageError` if the action cannot be read."""
        try:
            return self._call(action, undone=any(words in observation for words in _UNDONE))
        except (ValueError, IndexError) as error:
            message = f"{name}: step {number} cannot be read: {action[:80]!r} ({error})"
            raise UsageError(
                message, code="script_invalid", hint="write that step into a script yourself"
            ) from error

    def _call(self, action: str, *, undone: bool) -> ScriptedCall:
        verb = action.split(None, 1)[0] if action.strip() else ""
        if verb in ("edit", "insert", "str_replace_editor") and undone:
            return _bash("true")
        if (lines := _LINES.match(action)) is not None:
            return self._put(int(lines[1]) - 1, int(lines[2]), lines[3])
        if verb in _LOOKS:
            return _call("read", path=self._open)
        if verb in _VERBS:
            return _VERBS[verb](self, shlex.split(action)[1:])
        if self._root:
            action = re.sub(rf"{re.escape(self._root)}(?=[/\s]|\Z)", "/workspace", action)
        return _bash(action or "true")

    def create(self, words: Sequence[str]) -> ScriptedCall:
        """Create a file with one empty line."""
        self._open = self._path(words[0])
        return _call("write", path=self._open, content="\n")

    def open(self, words: Sequence[str]) -> ScriptedCall:
        """Show a file and keep it open."""
        self._open = self._path(words[0])
        return _call("read", path=self._open)

    def edit(self, words: Sequence[str]) -> ScriptedCall:
        """Replace a text in the open file."""
        return _call("edit", path=self._open, old=words[0], new=words[1])

    def insert(self, words: Sequence[str]) -> ScriptedCall:
        """Insert lines after a line of the open file, or at its end."""
        if len(words) == 1:
            return _bash(f"printf '%s\\n' {shlex.quote(words[0])} >> {shlex.quote(self._open)}")
        return self._put(int(words[1]), int(words[1]), words[0])

    def find(self, words: Sequence[str]) -> ScriptedCall:
        """Find files by name."""
        place = self._path(words[1]) if len(words) > 1 else "."
        return _bash(f"find {shlex.quote(place)} -name {shlex.quote(words[0])}")

    def search(self, words: Sequence[str]) -> ScriptedCall:
        """Find a text in files."""
        place = self._path(words[1]) if len(words) > 1 else "."
        return _bash(f"grep -rnF -e {shlex.quote(words[0])} -- {shlex.quote(place)} || true")

    def search_open(self, words: Sequence[str]) -> ScriptedCall:
        """Find a text in one file."""
        return self.search([words[0], words[1] if len(words) > 1 else self._open])

    def other(self, words: Sequence[str]) -> ScriptedCall:
        """Run a command of the newer editor: `str_replace_editor COMMAND PATH --option value …`."""
        command = words[0]
        path = self._path(words[1])
        named = dict(zip(words[2::2], words[3::2], strict=False))
        self._open = path
        match command:
            case "view":
                return _call("read", path=path)
            case "create":
                return _call("write", path=path, content=named["--file_text"])
            case "str_replace":
                return _call("edit", path=path, old=named["--old_str"], new=named.get("--new_str", ""))
            case "insert":
                line = int(named["--insert_line"])
                return self._put(line, line, named["--new_str"])
        raise ValueError(f"it does not know {command!r}")

    def submit(self, words: Sequence[str]) -> ScriptedCall:
        """Finish the run."""
        return _finish()

    def _put(self, before: int, after: int, text: str) -> ScriptedCall:
        """Replace the lines after line `before`, up to line `after`, with `text`."""
        path = shlex.quote(self._open)
        parts = f"head -n {before} {path}; printf '%s\\n' {shlex.quote(text)}; tail -n +{after + 1} {path}"
        return _bash(f'new=$(mktemp) && {{ {parts}; }} > "$new" && cat "$new" > {path} && rm "$new"')

    def _path(self, written: str) -> str:
        return written.removeprefix(f"{self._root}/") if self._root else written


_VERBS = {
    "create": _Editor.create,
    "open": _Editor.open,
    "edit": _Editor.edit,
    "insert": _Editor.insert,
    "find_file": _Editor.find,
    "search_dir": _Editor.search,
    "search_file": _Editor.search_open,
    "str_replace_editor": _Editor.other,
    "submit": _Editor.submit,
    "exit": _Editor.submit,
}


def _call(name: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def _bash(command: str) -> ScriptedCall:
    return _call("bash", command=command)


def _finish() -> ScriptedCall:
    return _call("finish", summary="All that was recorded is done.", evidence=["the recorded run"])
