"""Documents of a server as text for a person."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chargehand.core.codec import convert_to
from chargehand.core.text import shown_path

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

_COLUMNS, _LONGEST_CELL = 7, 60
# The most informative columns, first; others follow in the order of the document.
_FIRST = ("id", "mission", "action", "task", "name", "status", "effect", "kind", "user", "role")
_COLOURS = {"promoted": "green", "allow": "green", "waiting": "yellow", "ask": "yellow", "refused": "red",
            "failed": "red", "deny": "red", "running": "cyan", "planned": "cyan"}  # fmt: skip


def show_document(out: Output, document: Any) -> None:
    """Write a document: one fact per line, lists of records as tables."""
    if isinstance(document, list):
        _show_table(out, "", document)
        return
    facts = {name: value for name, value in document.items() if not _is_table(value)}
    for name, text in _facts(facts):
        lines = text.splitlines() or [""]
        out.text(f"{name:<13}  {lines[0]}")
        for line in lines[1:]:
            out.text(f"{'':<13}  {line}")
    for name, value in document.items():
        if _is_table(value):
            _show_table(out, name if len(document) > 1 else "", value)


def show_mission(out: Output, document: Mapping[str, Any]) -> None:
    """Write a mission's status and the commands that a person can use next."""
    status = "rolled-back" if document["rolled_back"] else document["status"]
    out.text(f"{status}  {document['mission']}", fg=_COLOURS.get(status, "red"), bold=True)
    for reason in document["reasons"]:
        out.text(f"  {reason['code']}: {reason['message']}")
    if document["cause"] is not None:
        out.text(f"  cause     {document['cause']['class']}: {document['cause']['remedy']}")
    if document["report"] is not None:
        out.text(document["report"]["text"])
    for failure in document["failures"]:
        out.text(f"  failed    {failure['check']}" if "check" in failure else f"  failed    {_cell(failure)}")
    cost = "unknown" if document["cost_usd"] is None else f"{document['cost_usd']:.4f} USD"
    for name, value in (("branch", document["branch"]), ("commit", document["commit"]), ("cost", cost)):
        if value:
            out.text(f"  {name:<9} {value}")
    if document["question"] is not None:
        out.text(f"  asks      {document['question']['text']}")
    for command in document["next"]:
        out.text(f"next:     {command}")


def show_difference(out: Output, document: Mapping[str, Any]) -> None:
    """Write a patch in git's format, or the numbers of lines that each file gained and lost."""
    if "patch" in document:
        patch = document["patch"]
        encoded = document.get("patch_encoding", "utf-8") == "base64"
        out.patch(base64.b64decode(patch) if encoded else patch.encode("utf-8", "surrogateescape"))
    else:
        _show_table(out, "", document["files"]) if document["files"] else out.text("no difference")


def show_rules(out: Output, document: Mapping[str, Any], *, cedar: bool) -> None:
    """Write rules as a table, or in their Cedar source."""
    if "schema" in document:
        out.text(document["schema"].rstrip("\n"))
    elif cedar:
        for source in document["sources"]:
            out.text(f"// {source['origin']}: {source['name']}", bold=True)
            out.text(source["text"].rstrip("\n"))
    else:
        _show_table(out, "", document["rules"])


def show_plan(out: Output, document: Mapping[str, Any], *, form: str | None) -> None:
    """Write the tasks of a mission, as a table or as a graph."""
    from chargehand.cli.plan import show_plan_document
    from chargehand.reports.story import PlanDocument

    show_plan_document(out, convert_to(document, PlanDocument), form)


def show_secret(out: Output, document: Mapping[str, Any]) -> None:
    """Write a new token's secret, which is shown only once."""
    out.notice("Keep its secret now: it is not shown again.")
    out.text(document["secret"])


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _facts(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return facts with dotted names for nested ones; nested null or empty values are omitted."""
    found: list[tuple[str, str]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            found += _facts(value, f"{prefix}{name}.")
        elif value not in (None, "", []) or not prefix:
            found.append((f"{prefix}{name}", _text(value)))
    return found


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list():
            return ", ".join(_text(each) for each in value) or "-"
        case dict():
            return ", ".join(f"{name} {_text(each)}" for name, each in value.items() if each not in (None, "", []))
    return str(value)


def _cell(value: Any) -> str:
    text = shown_path(_text(value).strip().partition("\n")[0])
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def _show_table(out: Output, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records as a table, with at most seven columns that contain values."""
    if not rows:
        out.text("none")
        return
    if title:
        out.text()
        out.text(title.replace("_", " "), bold=True)
    known = {name for row in rows for name, value in row.items() if value not in (None, "", [], {}, False)}
    names = [name for row in rows[:1] for name in row if name in known]
    names = sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))[:_COLUMNS]
    out.table(
        [name.replace("_", " ").upper() for name in names],
        [[_cell(row.get(name)) for name in names] for row in rows],
    )
