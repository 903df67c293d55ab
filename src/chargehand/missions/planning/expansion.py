"""Expands the control flow of a plan file: `sequence`, `each`, `decide`, `delegate` … become plain tasks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from chargehand.core.errors import nearest
from chargehand.core.plans import MOST_TASKS
from chargehand.core.text import late_pattern
from chargehand.missions.planning.loading import PlanTable, plan_error
from chargehand.missions.planning.problems import PlanProblems, quote_value

GROUPS = ("sequence", "parallel", "each", "decide")
_EACH_KEYS = ("in", "as", "do")
_DECIDE_KEYS = ("if", "then", "else")
# Keys of `delegate`, and the corresponding keys of a task.
_DELEGATE_KEYS = {"to": "role", "needs": "needs", "deadline": "deadline", "text": "text"}
_NAME = late_pattern(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DEFAULT_NAME = "item"
# Limits of an `each` value, and of all texts with filled-in values: a file of 1 MB could expand to gigabytes.
_LONGEST_VALUE = 500
_MOST_FILLED = 4_000_000
# Keys that contain ids, in which a filled-in path or title is turned into a valid id.
_ID_KEYS = {"id", "after"}
_TASK_FORM = "write {id: add-login, text: TASK}"


class TaskDraft(Struct, kw_only=True):
    """One task as written in the file, with its predecessors and conditions from the surrounding groups."""

    table: PlanTable
    id: str
    where: str
    after: tuple[str, ...] = ()
    when: str = ""
    decision: str = ""


class PlanExpansion:
    """Walks the items of `tasks`; `drafts` are the tasks in order, `ends` maps each group to its last tasks."""

    def __init__(self, problems: PlanProblems) -> None:
        self.drafts: list[TaskDraft] = []
        self.ends: dict[str, tuple[str, ...]] = {}
        self._problems = problems
        self._filled = 0

    def expand(self, items: Sequence[Any]) -> None:
        """Expand all items; raises `UsageError` (`plan_invalid`) for more tasks than a plan may have."""
        count = sum(map(_count_tasks, items))
        if count > MOST_TASKS:
            raise plan_error(
                self._problems.name,
                f"the plan has {count} tasks, more than {MOST_TASKS}",
                "split it into several plans, or give each task more to do",
            )
        for number, item in enumerate(items, 1):
            self._expand_item(item, f"tasks[{number}]", ())

    def _expand_item(self, item: Any, where: str, after: tuple[str, ...], when: str = "") -> tuple[str, ...]:
        """Expand one item that follows `after`; return the ids that its successor has to wait for."""
        if not isinstance(item, PlanTable):
            self._problems.add(where, f"a task must be a table, got {quote_value(item)}", _TASK_FORM)
            return after
        if "delegate" in item:
            item = self._read_delegate(item, where)
        form = next((each for each in GROUPS if each in item), None)
        if form is None:
            return self._add_draft(item, where, after, when)
        where = f"{form} {item['id']!r}" if isinstance(item.get("id"), str) else f"{where}.{form}"
        known = ("id", "after", form)
        for key in item:
            if key not in known:
                hint = f"{nearest(key, known)}; everything else belongs to its tasks"
                self._problems.add(where, f"unknown key {key!r}", hint, line=item.line)
        if when:
            hint = "put one task there; others may follow it with `after`"
            self._problems.add(where, "`decide` needs single tasks, got a group", hint, line=item.line)
        after = (*after, *self._read_after(item, where))
        before = len(self.drafts), self._problems.count
        ends = self._expand_group(form, item, where, after)
        if before == (len(self.drafts), self._problems.count):
            self._problems.add(where, "has no tasks", "put a task into it, or remove it", line=item.line)
        if isinstance(name := item.get("id"), str):
            if name in self.ends:
                self._problems.add(where, f"the id {name!r} is taken", "choose another", line=item.line)
            self.ends[name] = ends
        return ends

    def _expand_group(self, form: str, item: PlanTable, where: str, after: tuple[str, ...]) -> tuple[str, ...]:
        body = item[form]
        if form in ("sequence", "parallel"):
            if not isinstance(body, list):
                hint = f"write {form}: [task, task]"
                self._problems.add(where, f"must be a list, got {quote_value(body)}", hint, line=item.line)
                return after
            ends: tuple[str, ...] = after if form == "sequence" else ()
            for number, part in enumerate(body, 1):
                place = f"{where}[{number}]"
                if form == "sequence":
                    ends = self._expand_item(part, place, ends)
                else:
                    ends += self._expand_item(part, place, after)
            return ends
        keys, needed = (_EACH_KEYS, ("in", "do")) if form == "each" else (_DECIDE_KEYS, ("if", "then"))
        if not isinstance(body, PlanTable):
            hint = f"write {form}: {{{', '.join(f'{key}: …' for key in keys)}}}"
            self._problems.add(where, f"must be a table, got {quote_value(body)}", hint, line=item.line)
            return after
        for key in body:
            if key not in keys:
                self._problems.add(where, f"unknown key {key!r}", nearest(key, keys), line=body.line)
        missing = [key for key in needed if body.get(key) in (None, "", [])]
        for key in missing:
            self._problems.add(where, f"{key!r} is missing", f"write {key}: …", line=body.line)
        if missing:
            return after
        expand = self._expand_each if form == "each" else self._expand_decide
        return expand(body, where, after)

    def _expand_each(self, body: PlanTable, where: str, after: tuple[str, ...]) -> tuple[str, ...]:
        name = body.get("as") or _DEFAULT_NAME
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            hint = "letters, digits and '_', such as 'module'; {module} is then replaced by each value"
            self._problems.add(where, f"'as' is not a name: {quote_value(name)}", hint, line=body.line)
            return after
        ends: tuple[str, ...] = ()
        for value in body["in"] if isinstance(body["in"], list) else [body["in"]]:
            text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
            if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_VALUE:
                hint = f"write a text of at most {_LONGEST_VALUE} characters"
                self._problems.add(where, f"no value for {{{name}}}: {quote_value(value)}", hint, line=body.line)
                continue
            ends += self._expand_item(self._fill_in(body["do"], f"{{{name}}}", text), f"{where}.do", after)
        return ends

    def _expand_decide(self, body: PlanTable, where: str, after: tuple[str, ...]) -> tuple[str, ...]:
        command = body["if"]
        if not isinstance(command, str) or not command.strip():
            hint = "write a command that succeeds or fails"
            self._problems.add(where, f"'if' is not a command: {quote_value(command)}", hint, line=body.line)
            return after
        begun = len(self.drafts)
        ends = self._expand_item(body["then"], f"{where}.then", after, command)
        if body.get("else") is not None:
            # A separate shell of the kind that runs checks: negated in place, the command would run without `-e`,
            # and a command that the shell cannot parse would leave out both tasks.
            negated = f"! ${{BASH:-sh}} -e${{BASH:+o pipefail}} -c {shlex.quote(command)}"
            ends += self._expand_item(body["else"], f"{where}.else", after, negated)
            for draft in self.drafts[begun:]:
                draft.decision = self.drafts[begun].id
        return ends

    def _read_delegate(self, item: PlanTable, where: str) -> PlanTable:
        """Return the task's table for a `delegate` item: role, deadline and text; a plain text is the role."""
        body = item["delegate"]
        body = {"to": body} if isinstance(body, str) else body
        made = PlanTable({key: value for key, value in item.items() if key != "delegate"})
        made.line = item.line
        if not isinstance(body, dict) or not (body.get("to") or body.get("needs")):
            hint = "write delegate: {to: tester, deadline: 10m, text: …}, or `needs` in place of `to`"
            self._problems.add(
                where, f"`delegate` has neither `to` nor `needs`: {quote_value(body)}", hint, line=item.line
            )
            return made
        for key, value in body.items():
            name = _DELEGATE_KEYS.get(key)
            if name is None:
                self._problems.add(where, f"unknown key {key!r}", nearest(key, _DELEGATE_KEYS), line=item.line)
                continue
            if name in made:
                hint = "keep one of the two"
                self._problems.add(where, f"{name!r} is also given beside `delegate`", hint, line=item.line)
            made[name] = value
        return made

    def _add_draft(self, table: PlanTable, where: str, after: tuple[str, ...], when: str) -> tuple[str, ...]:
        name = table.get("id")
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not isinstance(name, str) or not name:
            text = table.get("text")
            proposed = to_id(text if isinstance(text, str) else "") or "add-login"
            shown = "has no id" if name in (None, "") else f"the id is not a text: {quote_value(name)}"
            self._problems.add(where, shown, f"write id: {proposed}", line=table.line)
            name = where  # not a valid id, so that no other task is mistaken for it
        else:
            where = f"task {name!r}"
        if when and table.get("when"):
            hint = "put both conditions into the command after `if`"
            self._problems.add(where, "has another `when` inside `decide`", hint, line=table.line)
        after = (*self._read_after(table, where), *after)
        self.drafts.append(TaskDraft(table=table, id=name, where=where, after=after, when=when))
        return (name,)

    def _read_after(self, table: PlanTable, where: str) -> tuple[str, ...]:
        value = table.get("after")
        names = value if isinstance(value, list) else [] if value in (None, "") else [value]
        for name in names:
            if not isinstance(name, str | int) or isinstance(name, bool):
                message, hint = (
                    f"'after' must be a list of ids, got {quote_value(name)}",
                    "write after: [add-login]",
                )
                self._problems.add(where, message, hint, line=table.line)
        return tuple(str(name) for name in names if isinstance(name, str | int))

    def _fill_in(self, value: Any, mark: str, text: str, key: str = "") -> Any:
        """Return a copy of `value` with `text` in place of `mark` in all its texts."""
        wanted = (to_id(text) or text) if key in _ID_KEYS else text
        self._filled += len(value) + value.count(mark) * len(wanted) if isinstance(value, str) else 1
        if self._filled > _MOST_FILLED:
            hint = "shorten the texts of its task, or give it fewer values"
            raise plan_error(self._problems.name, "`each` makes more text than a plan may have", hint)
        if isinstance(value, str):
            return value.replace(mark, wanted)
        if isinstance(value, list):
            return [self._fill_in(part, mark, text, key) for part in value]
        if isinstance(value, dict):
            made = PlanTable({name: self._fill_in(part, mark, text, name) for name, part in value.items()})
            made.line = getattr(value, "line", 0)
            return made
        return value


def to_id(text: str) -> str:
    """Return an id made from a text: `src/Über uns.py` becomes `src-ber-uns.py`."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:64].rstrip("._-")


def _count_tasks(item: Any) -> int:
    """Return the number of tasks that an item expands to, before any is made."""
    if not isinstance(item, dict):
        return 1
    count = 0
    for form in ("sequence", "parallel"):
        if isinstance(parts := item.get(form), list):
            count += sum(map(_count_tasks, parts))
    if isinstance(each := item.get("each"), dict):
        values = each.get("in")
        count += (len(values) if isinstance(values, list) else 1) * _count_tasks(each.get("do"))
    if isinstance(decide := item.get("decide"), dict):
        count += sum(_count_tasks(decide[key]) for key in ("then", "else") if key in decide)
    return count or 1
