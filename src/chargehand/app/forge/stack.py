"""A stack: each task of a plan as a request, on top of that of the task merged before it.

The last task's request is that of the issue. It has the whole report and closes the issue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from chargehand.app.forge.texts import mark
from chargehand.core.events import read_payload
from chargehand.core.mission_events import ForgeActed
from chargehand.core.plan_events import TaskMerged
from chargehand.core.records import IssueLink, Verdict
from chargehand.core.state import MissionState
from chargehand.reports.markdown import block, code, words
from chargehand.reports.reading import StateReader


class StackPart(Struct, frozen=True, kw_only=True):
    """A task of a stack below the last one: its place from 1, its branch, and its merged commit with the tree."""

    place: int
    task: str
    text: str
    branch: str
    commit: str
    tree: str

    @property
    def key(self) -> str:
        """The key of the act by which its request was opened."""
        return f"part/{self.place}"


def lower_parts(reader: StateReader, state: MissionState, link: IssueLink, commit: str) -> tuple[StackPart, ...]:
    """Return the merged tasks below `commit`, in the order of their merges; none without a stack.

    Tasks that were rolled back are not among them: the last request takes their changes back.
    """
    if not link.settings.stack or state.plan is None:
        return ()
    log = reader.store.log.read(state.id, types=(TaskMerged.type,))
    merged = [each for each in map(read_payload, log) if isinstance(each, TaskMerged) and each.commit != commit]
    kept = [each for each in merged if not state.plan.tasks[each.task].rolled_back]
    tasks = {each.id: each.text for each in state.plan.plan.tasks}
    return tuple(
        StackPart(
            place=place,
            task=each.task,
            text=tasks.get(each.task, each.task),
            branch=f"{link.branch}-part-{place}",
            commit=each.commit,
            tree=each.tree,
        )
        for place, each in enumerate(kept, 1)
    )


def opened_parts(acts: Iterable[ForgeActed]) -> dict[str, int]:
    """Return the requests below the last one that acts opened, by the keys of their parts, in their order."""
    return {each.key: each.number for each in acts if each.key.startswith("part/")}


def order_lines(link: IssueLink, parts: Sequence[StackPart], own: int) -> Iterator[str]:
    """Yield the order in which the requests of a stack are merged; the text is for that at place `own`."""
    yield f"Part {own} of {len(parts) + 1}. Merge them in this order, each is made on the one before it:"
    yield ""
    for part in parts:
        this = " (this one)" if part.place == own else ""
        yield f"{part.place}. {code(part.branch)}: {words(_title(part))}{this}"
    whole = len(parts) + 1
    yield f"{whole}. {code(link.branch)}, which closes the issue{' (this one)' if whole == own else ''}"


def part_title(link: IssueLink, parts: Sequence[StackPart], part: StackPart) -> str:
    """Return the title of the request of a part."""
    return f"{_title(part)} (#{link.number}, part {part.place} of {len(parts) + 1})"


def part_body(
    mission: str, link: IssueLink, parts: Sequence[StackPart], part: StackPart, verdict: Verdict | None
) -> str:
    """Return the description of the request of a part."""
    lines = [
        f"For #{link.number}, made by **Chargehand**, mission {code(mission)}.",
        "",
        *order_lines(link, parts, part.place),
        "",
        "What was asked of this part:",
        "",
        *block(part.text[:10_000]),
        "",
        f"The tree {code(part.tree)} of this request was judged as a whole:",
        "",
    ]
    if verdict is None:
        lines += ["- no check judged it; a person decided"]
    else:
        lines += [f"- verdict: **{verdict.status}**"]
        lines += [f"- {each.status}: {words(each.name)}" for each in verdict.checks]
    return "\n".join((*lines, "", mark("part", f"{mission}/{part.place}")))


def _title(part: StackPart) -> str:
    # It must mention no person, and close no issue.
    line = next(filter(None, (line.strip() for line in part.text.splitlines())), part.task)
    return "".join(each for each in line if each not in "#@!")[:120].strip() or part.task
