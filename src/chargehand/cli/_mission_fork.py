"""`chargehand mission fork`: another way from one of a mission's replies on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from chargehand.app.composition import App
from chargehand.app.providers.served import model_config
from chargehand.app.worker import ensure_worker
from chargehand.cli._prepare import find_mission
from chargehand.cli._run import answered, go_on, show_ended
from chargehand.cli.output import Output
from chargehand.cli.rendering import result_document
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.missions._fork import Edit, ForkPoint, fork

_AT = re.compile(r"(?:([1-9][0-9]{0,5})\.)?([1-9][0-9]{0,5})")


def fork_mission(
    out: Output, mission: str, *, at: str | None, model: str | None, reply: str | None, detach: bool
) -> int:
    """Record the fork and let it go on here, or in a worker."""
    with App.open() as app:
        source = app.look.state(find_mission(app, mission))
        point = _point(at, attempts=len(source.attempts))
        edit = _edit(reply) if reply is not None else None
        if model is not None:
            model_config((source.config or app.user_configuration().config), model)
        depot = app.depot(app.project(Path(source.repository)))
        made = fork(app.store, depot, source.id, point, model=model, edit=edit, user=app.user)
        state = app.look.state(made)
        out.notice(f"mission {made} goes on from {source.id} at reply {_forked_at(app, made)}")
        if not detach:
            return show_ended(out, answered(app, out, go_on(app, out, made)))
        ensure_worker(app)
        out.document(result_document(state))
        out.text(f"mission   {made}")
        out.text(f"a worker goes on with it; chargehand mission watch {made} shows how")
    return 0


def _forked_at(app: App, mission: str) -> str:
    payload = json.loads(app.store.log.read(mission)[0].payload or b"{}")
    return str(payload.get("forked_at", ""))


def _point(at: str | None, *, attempts: int) -> ForkPoint | None:
    if at is None:
        return None
    match = _AT.fullmatch(at)
    if match is None:
        hint = "write TURN or ATTEMPT.TURN, as in `mission log --transcript`"
        raise UsageError(f"--at: {at!r} is no reply", hint=hint)
    return ForkPoint(attempt=int(match[1] or max(1, attempts)), turn=int(match[2]))


def _edit(given: str) -> Edit:
    """Return a reply from the option's value: a text, or `@FILE` with a text or a JSON document."""
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            hint = "name a file of UTF-8 text, with @ before its path"
            raise NotFoundError(f"--reply: {given[1:]!r} cannot be read: {error}", hint=hint) from error
    if not text.lstrip().startswith("{"):
        return Edit(text=text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--reply: no JSON document: {error}", hint=_FORM) from error
    tools = document.get("tools", [])
    if not isinstance(tools, list) or not all(_is_call(tool) for tool in tools):
        raise UsageError("--reply: `tools` is not a list of calls", hint=_FORM)
    said = document.get("text", "")
    if not isinstance(said, str):
        raise UsageError(f"--reply: `text` is no text: {said!r:.100}", hint=_FORM)
    return Edit(text=said, tools=tuple(tools))


_FORM = '{"text": "…", "tools": [{"name": "bash", "arguments": {"command": "ls"}}]}'


def _is_call(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and isinstance(tool.get("name"), str)
        and isinstance(tool.get("arguments", {}), dict)
    )
