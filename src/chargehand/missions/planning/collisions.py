"""Collisions: tasks that must not work side by side, by their declarations and their changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, product

from msgspec import Struct

from chargehand.core.plans import Plan, Task, predecessors
from chargehand.core.records import Reason
from chargehand.core.text import shown_path
from chargehand.missions.planning.patterns import (
    CompiledPattern,
    compile_path,
    compile_pattern,
    is_plain,
    patterns_meet,
)


class Footprint(Struct, frozen=True, kw_only=True):
    """The paths and contracts that a task touches: `paths` it intends to change, and those it has `written`.

    `areas` are set only if it names no path: its permitted areas then replace its intentions.
    """

    task: str
    paths: tuple[str, ...] = ()
    areas: tuple[str, ...] = ()
    contracts: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


def footprint(task: Task, written: Sequence[str] = ()) -> Footprint:
    """Return a task's footprint, from its plan and from the paths that it has written so far."""
    paths = tuple(dict.fromkeys((*task.make, *task.change, *task.delete)))
    return Footprint(
        task=task.id,
        paths=paths,
        areas=() if paths else task.areas,
        contracts=task.contracts,
        written=tuple(written),
    )


def collision(a: Footprint, b: Footprint, *, between: str = "") -> Reason | None:
    """Return why two tasks must not work side by side, `None` if they may; their order does not matter.

    `between` describes the two if they are not tasks of one plan. Codes: `collision_file` for a path that both
    name or wrote, `collision_area` if at least one names areas only, `collision_contract` for a contract of both.
    """
    first, second = (a, b) if a.task <= b.task else (b, a)
    tasks = between or f"the tasks {first.task!r} and {second.task!r}"
    files, areas = _files(first), _areas(first)
    other_files, other_areas = _files(second), _areas(second)
    if shared := _find_shared(files, other_files):
        return Reason(code="collision_file", message=f"{tasks} may both change {shared}")
    shared = (
        _find_shared(areas, other_areas) or _find_shared(areas, other_files) or _find_shared(files, other_areas)
    )
    if shared:
        return Reason(code="collision_area", message=f"{tasks} have an area in common: {shared}")
    contract = next((name for name in first.contracts if name in second.contracts), None)
    if contract is not None:
        return Reason(code="collision_contract", message=f"{tasks} both change the contract {contract!r}")
    return None


def planned_collisions(plan: Plan) -> Iterator[tuple[str, str, Reason]]:
    """Yield each pair of unordered tasks that collide by plan, in the order of the plan."""
    before = predecessors(plan)
    prints = [footprint(task) for task in plan.tasks]
    touching = [each for each in prints if each.paths or each.areas or each.contracts]
    for number, one in enumerate(touching):
        for other in touching[number + 1 :]:
            if one.task in before[other.task] or other.task in before[one.task]:
                continue
            reason = collision(one, other)
            if reason is not None:
                yield one.task, other.task, reason


class _PatternIndex(Struct, frozen=True):
    """Patterns by kind: plain paths can be looked up, and so can the directories `above` them."""

    plain: dict[CompiledPattern, str]
    above: dict[CompiledPattern, str]
    globs: list[tuple[CompiledPattern, str]]


def _files(footprint: Footprint) -> _PatternIndex:
    return _index_patterns(footprint.paths, footprint.written)


def _areas(footprint: Footprint) -> _PatternIndex:
    return _index_patterns(footprint.areas, (), floating=True)


@lru_cache(maxsize=1024)
def _index_patterns(patterns: tuple[str, ...], paths: tuple[str, ...], *, floating: bool = False) -> _PatternIndex:
    index = _PatternIndex({}, {}, [])
    named = [(compile_pattern(text, floating=floating), text) for text in patterns]
    for compiled, text in (*named, *((compile_path(path), shown_path(path)) for path in paths)):
        if is_plain(compiled):
            index.plain.setdefault(compiled, text)
            for depth in range(1, len(compiled)):
                index.above.setdefault((*compiled[:depth], compiled[-1]), text)
        else:
            index.globs.append((compiled, text))
    return index


def _find_shared(left: _PatternIndex, right: _PatternIndex) -> str:
    """Return the display form of a pattern shared by two lists, or ""."""
    for one, other in ((left, right), (right, left)):
        if not one.plain.keys().isdisjoint(other.above):
            return next(
                _show_both(text, other.above[path]) for path, text in one.plain.items() if path in other.above
            )
    pairs = chain(
        product(left.globs, (*right.globs, *right.plain.items())),
        product(left.plain.items(), right.globs),
    )
    return next((_show_both(text, other) for (one, text), (two, other) in pairs if patterns_meet(one, two)), "")


def _show_both(one: str, other: str) -> str:
    return repr(one) if one == other else f"{one!r} ({other!r})"
