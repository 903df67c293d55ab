"""`chargehand policy …`."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from chargehand.app._app import App
from chargehand.app._policy import add_override
from chargehand.cli._output import Output
from chargehand.cli._prepare import current_project, find_mission
from chargehand.core.attempt_events import ActionJudged
from chargehand.core.errors import UsageError
from chargehand.core.events import decode
from chargehand.core.text import shown_path
from chargehand.policy.actions import (
    LARGEST_SCRIPT,
    Action,
    Command,
    Effect,
    FileRead,
    FileWrite,
    Judgement,
    McpCall,
    Shell,
    Surroundings,
)
from chargehand.policy.judgement import judge
from chargehand.policy.rules import Rules, facts_schema
from chargehand.sandbox.contract import WORKSPACE
from chargehand.workspace.depot import Depot

_EXITS: dict[Effect, int] = {"allow": 0, "deny": 1, "ask": 3}
_COLOURS: dict[str, str] = {"allow": "green", "deny": "red", "ask": "yellow"}


def rules_here(app: App, repo: Path | None) -> Rules:
    """Return the rules in force: of a repository at its HEAD, or outside of any."""
    if current_project(app, repo) is None:
        return app.rules()
    found = app.find(repo)
    return app.rules(found.depot, found.base)


def show_rules(out: Output, *, repo: Path | None, facts: bool, cedar: bool) -> int:
    """Write the rules in force with their origin, or what they may ask."""
    if facts:
        out.document({"schema": facts_schema()})
        out.text(facts_schema().rstrip("\n"))
        return 0
    with App.open() as app:
        rules = rules_here(app, repo)
    rows = rules.all
    out.document({"digest": rules.digest, "rules": rows, "sources": [_source(each) for each in rules.sources]})
    if cedar:
        for source in rules.sources:
            out.text(f"// {source.origin}: {source.name}", bold=True)
            out.text(source.text.rstrip("\n"))
        return 0
    out.table(
        ("RULE", "EFFECT", "FROM", "WHY"),
        [(rule.id, rule.effect, rule.place, _why(rule.overrides, rule.reason)) for rule in rows],
    )
    out.text("deny is stronger than ask, ask than allow; what no rule knows is denied")
    return 0


def _why(overrides: str, reason: str) -> str:
    return f"sets {overrides} aside: {reason}" if overrides else reason


def _source(source: object) -> dict[str, str]:
    return {name: getattr(source, name) for name in ("origin", "name", "text")}


def judge_action(out: Output, wanted: Mapping[str, object], *, cwd: str | None, repo: Path | None) -> int:
    """Write how an action is judged and what it was taken apart into; the exit code tells the effect."""
    given = {name: value for name, value in wanted.items() if value is not None}
    if len(given) != 1:
        raise UsageError(
            f"{len(given)} actions were given",
            hint="give one: `chargehand policy test -- CMD…`, --shell, --read, --write or --mcp",
        )
    ((name, value),) = given.items()
    where = None if cwd is None else posixpath.normpath(posixpath.join(WORKSPACE, cwd))
    with App.open() as app:
        rules = rules_here(app, repo)
        found = None if current_project(app, repo) is None else app.find(repo)
        around = Surroundings(
            cwd=where, script=None if found is None else scripts_at(found.depot, found.base.tree)
        )
        judgement = judge(_action(name, value), around, rules)
    out.document(judgement)
    show_judgement(out, judgement)
    return _EXITS[judgement.effect]


def scripts_at(depot: Depot, tree: str) -> Callable[[str], str | None]:
    """Return what reads the scripts of a tree by their paths in a sandbox; links are not followed."""

    def read(path: str) -> str | None:
        if not path.startswith(f"{WORKSPACE}/"):
            return None
        entry = depot.lookup(tree, path.removeprefix(f"{WORKSPACE}/"))
        if entry is None or entry.mode not in (0o100644, 0o100755):
            return None
        content = depot.read_blob(entry.id, limit=LARGEST_SCRIPT + 1)
        fits = len(content) <= LARGEST_SCRIPT and b"\0" not in content
        return content.decode("utf-8", "surrogateescape") if fits else None

    return read


def _action(name: str, value: object) -> Action:
    if name == "command" and isinstance(value, tuple):
        return Command(argv=value)
    text = str(value)
    match name:
        case "shell":
            return Shell(text=text)
        case "read":
            return FileRead(path=text)
        case "mcp":
            return _mcp_call(text)
        case _:
            return FileWrite(path=text)


def _mcp_call(text: str) -> McpCall:
    """Return the call that `SERVER/TOOL` and the JSON of its arguments name."""
    name, _, arguments = text.strip().partition(" ")
    server, slash, tool = name.partition("/")
    try:
        given = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        given = None
    if not (server and slash and tool) or not isinstance(given, dict):
        raise UsageError(
            f"{text!r} names no call of a tool",
            hint="write --mcp SERVER/TOOL, or --mcp 'SERVER/TOOL {\"argument\": 1}'",
        )
    return McpCall(server=server, tool=tool, arguments=msgspec.json.encode(given, order="sorted").decode())


def show_judgement(out: Output, judgement: Judgement) -> None:
    """Write a judgement and its parts."""
    out.text(f"{judgement.effect}: {judgement.reason} (rule {judgement.rule})", fg=_COLOURS[judgement.effect])
    rows = [
        (part.effect, part.rule, part.kind, _indented(part.text, part.via), _aside(part.overridden))
        for part in judgement.parts
    ]
    if rows:
        out.table(("EFFECT", "RULE", "KIND", "WHAT", ""), rows)


def _indented(text: str, via: tuple[str, ...]) -> str:
    return f"{text}  [{' > '.join(via)}]" if via else text


def _aside(overridden: tuple[str, ...]) -> str:
    return f"{', '.join(overridden)} set aside" if overridden else ""


def show_judgements(out: Output, mission: str, *, every: bool) -> int:
    """Write what was judged in a mission, line by line of its log."""
    counted: dict[str, int] = {}
    with App.open() as app:
        found = find_mission(app, mission)
        for event in app.store.log.read(found):
            if event.type != ActionJudged.type or event.payload is None:
                continue
            judged = decode(event.type, event.payload)
            assert isinstance(judged, ActionJudged)
            counted[judged.effect] = counted.get(judged.effect, 0) + 1
            if every or judged.effect != "allow" or judged.overridden or judged.answer:
                out.document({"mission": found, "seq": event.seq, "time": event.time, "judged": judged})
                _show_judged(out, event.seq, judged)
    told = ", ".join(f"{count} {effect}" for effect, count in sorted(counted.items()))
    out.text(f"{found}: {told or 'nothing was judged'}")
    return 0


def _show_judged(out: Output, seq: int, judged: ActionJudged) -> None:
    out.text(
        f"{seq:>4}  {judged.effect:<5}  {judged.kind}: {shown_path(judged.text)}", fg=_COLOURS.get(judged.effect)
    )
    about = f" ({shown_path(judged.subject)})" if judged.subject not in ("", judged.text) else ""
    out.text(f"      rule {judged.rule}{about}: {judged.reason}")
    if judged.overridden:
        out.text(f"      set aside by it: {', '.join(judged.overridden)}")
    if judged.answer:
        out.text(f"      a person said: {judged.answer}")


def override(out: Output, rule: str, *, reason: str, when: str) -> int:
    """Set a rule aside in the user's own file."""
    with App.open() as app:
        path = add_override(app.environ, rule, reason=reason, when=when)
    out.document({"rule": rule, "reason": reason, "when": when, "path": str(path)})
    out.text(f"{rule} is set aside by a rule in {shown_path(str(path))}; remove the rule there to undo it")
    return 0
