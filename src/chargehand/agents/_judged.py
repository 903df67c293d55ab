"""What a native agent's call does, in the words of policy, and what the model is told where it may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chargehand.agents._patch import parse_patch
from chargehand.agents._patch_model import PatchProblem
from chargehand.agents._roles import Role
from chargehand.agents._tools import ToolResult, checked_call
from chargehand.core.events import encode_json
from chargehand.core.message_payloads import Denied
from chargehand.core.text import printable
from chargehand.policy.actions import Action, FileRead, FileWrite, Judgement, Several, Shell, Snippet


def action_of(name: str, arguments: object) -> Action | None:
    """Return what a call would do, `None` for one that does nothing: its tool tells what is wrong with it."""
    checked = checked_call(name, arguments)
    if isinstance(checked, ToolResult):
        return None
    match name:
        case "bash":
            return Shell(text=checked["command"])
        case "snippet":
            return Snippet(language=checked["language"], source=checked["code"])
        case "edit":
            return FileWrite(path=checked["path"])
        case "apply_patch":
            return _patch(checked["patch"])
        case _:
            return FileRead(path=_path(checked))


def refusal(judgement: Judgement) -> str:
    """Return what the model is told of a call that is denied."""
    denied = Denied(action=judgement.subject[:300], rule=judgement.rule, reason=judgement.reason)
    message = {"type": "checkpoint_violation", "status": "failure", "payload": {"denied": [denied]}}
    return (
        f"not done: {judgement.subject[:300]!r} is denied by rule {judgement.rule}: {judgement.reason}. "
        "Nothing of this call was carried out. Take another way, or say in your summary what is missing.\n"
        f"{encode_json(message).decode()}"
    )


def not_in_role(role: Role, tool: str, tools: Sequence[str]) -> str:
    """Return why a call to a tool that is not in the role's list was not carried out."""
    return f"the role {role.name} has no tool {printable(tool)[:80]!r}; its tools are {', '.join(tools)}"


def _path(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("path") or ".")


def _patch(text: str) -> Action | None:
    try:
        changes = parse_patch(text)
    except PatchProblem:
        return None
    actions: list[FileWrite] = []
    for change in changes:
        moved = change.move_to is not None
        actions.append(FileWrite(path=change.path, removal=moved or change.action == "delete"))
        if change.move_to is not None:
            actions.append(FileWrite(path=change.move_to))
    return Several(actions=tuple(actions))
