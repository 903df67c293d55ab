"""Parses plan files: YAML or JSON becomes tables, lists and texts.

YAML's scalars stay texts, and each key decides how its text is read: `id: no` is not a boolean, `id: 1.10` not a
number. The parser's events are assembled here and not by PyYAML's own loaders, which make objects by tag, take the
last of two equal keys, expand aliases into trees of any size and nest as deeply as the file says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from chargehand.core.errors import UsageError

if TYPE_CHECKING:
    from yaml.events import Event as YamlEvent
    from yaml.events import ScalarEvent

LARGEST_PLAN = 1_000_000
DEEPEST_PLAN = 40
_NULLS = {"", "~", "null", "Null", "NULL"}
_FORM = "write YAML or JSON such as `tasks: [{id: add-login, text: add a login page}]`"


class PlanTable(dict[str, Any]):
    """A mapping of the file, with the line on which it begins; 0 if unknown."""

    line: int = 0


def load_plan(content: bytes, name: str) -> Any:
    """Return the content of the file: `PlanTable`, `list`, `str`, `None`, and other JSON values.

    Raises `UsageError` (`plan_invalid`) for a file that is too large or too deep, is not UTF-8, YAML or JSON, or
    repeats a key.
    """
    if len(content) > LARGEST_PLAN:
        raise plan_error(
            name, f"the plan has {len(content)} bytes, more than {LARGEST_PLAN}", "split it into several plans"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise plan_error(name, f"byte {error.start} is not UTF-8", "save the file as UTF-8") from error
    if name.lower().endswith(".json"):
        return _load_json(text, name)
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _load_json(text, name)
        except _NotJsonError:
            pass  # YAML's own lists and tables begin like this too
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml it is only slower
    try:
        return _Builder(name).build(yaml.parse(text, Loader=loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        place = f"{name}:{mark.line + 1}" if mark is not None else name
        hint = "quote texts that contain ': ', ' #' or begin with one of [ ] { } & * ! | > % @ `"
        raise plan_error(place, f"not valid YAML: {problem}", hint) from error


def plan_error(place: str, message: str, hint: str) -> UsageError:
    """Return the error for a plan that cannot be read at all."""
    return UsageError(f"{place}: {message}", code="plan_invalid", hint=hint)


class _NotJsonError(UsageError):
    """The text is not JSON at all, as opposed to JSON that is not a plan."""

    default_code = "plan_not_json"


def _load_json(text: str, name: str) -> Any:
    def table(pairs: list[tuple[str, Any]]) -> PlanTable:
        made = PlanTable(pairs)
        if len(made) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise plan_error(name, f"the key {twice!r} appears twice in one object", "remove one of them")
        return made

    def constant(text: str) -> Any:
        raise plan_error(name, f"{text} is not a JSON number", "write a number")

    try:
        data = json.loads(text, object_pairs_hook=table, parse_constant=constant)
    except RecursionError as error:
        raise plan_error(name, "the plan is nested too deeply", _FORM) from error
    except UsageError:
        raise
    except ValueError as error:  # a number of thousands of digits, too
        line = getattr(error, "lineno", 0)
        what = getattr(error, "msg", "a number has too many digits")
        place = f"{name}:{line}" if line else name
        raise _NotJsonError(f"{place}: not valid JSON: {what}", code="plan_invalid", hint=_FORM) from error
    level = [data]
    for _ in range(DEEPEST_PLAN):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise plan_error(name, f"the plan is nested more than {DEEPEST_PLAN} levels deep", _FORM)
    return data


class _Builder:
    """Assembles the events of one document, with an explicit stack in place of recursion."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Each open list or table, and in a table the key whose value comes next.
        self._open: list[tuple[PlanTable | list[Any], str | None]] = []
        self._whole: list[Any] = []

    def build(self, events: Iterator[YamlEvent]) -> Any:
        import yaml

        for event in events:
            line = event.start_mark.line + 1 if event.start_mark is not None else 0
            if isinstance(event, yaml.AliasEvent):
                raise self._error(line, f"the alias *{event.anchor}", "write its value instead")
            tag = getattr(event, "tag", None)
            if tag not in (None, "!"):
                raise self._error(line, f"the tag {tag}", "remove it")
            if isinstance(event, yaml.DocumentStartEvent) and self._whole:
                raise self._error(line, "a second document", "remove the line '---' and all lines after it")
            if isinstance(event, yaml.ScalarEvent):
                self._take_scalar(event, line)
            elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
                made: PlanTable | list[Any] = [] if isinstance(event, yaml.SequenceStartEvent) else PlanTable()
                if isinstance(made, PlanTable):
                    made.line = line
                self._put(made, line)
                self._open.append((made, None))
                if len(self._open) > DEEPEST_PLAN:
                    raise plan_error(
                        f"{self._name}:{line}", f"the plan is nested more than {DEEPEST_PLAN} levels deep", _FORM
                    )
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self._open.pop()
        return self._whole[0] if self._whole else None

    def _take_scalar(self, event: ScalarEvent, line: int) -> None:
        holder, key = self._open[-1] if self._open else (None, None)
        if not isinstance(holder, PlanTable) or key is not None:
            # A quoted text is a text: only a plain scalar can be null.
            self._put(None if not event.style and event.value in _NULLS else event.value, line)
            return
        if event.value in holder:
            hint = f"remove one of them; the table begins on line {holder.line}"
            raise plan_error(f"{self._name}:{line}", f"the key {event.value!r} appears twice in one table", hint)
        self._open[-1] = (holder, event.value)

    def _put(self, value: Any, line: int) -> None:
        if not self._open:
            self._whole.append(value)
            return
        holder, key = self._open[-1]
        if isinstance(holder, list):
            holder.append(value)
        elif key is None:
            raise self._error(line, "a list or a table as a key", "write the key as a text")
        else:
            holder[key] = value
            self._open[-1] = (holder, None)

    def _error(self, line: int, what: str, hint: str) -> UsageError:
        return plan_error(f"{self._name}:{line}", f"a plan cannot contain {what}", hint)
