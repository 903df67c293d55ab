"""A plan as a graph that other programs draw."""

from __future__ import annotations

from collections.abc import Iterator

from chargehand.app.documents import PlanDocument, TaskDocument
from chargehand.core.plans import order_tasks
from chargehand.core.text import printable

_LONGEST = 60
# A longer chain goes on at this depth: what is further right is read by nobody.
_DEEPEST = 8


def plan_graph(plan: PlanDocument, *, mermaid: bool) -> str:
    """Return the graph of a plan's tasks in Mermaid or DOT; no text of a task breaks out of its label."""
    numbers = {task.id: f"t{number}" for number, task in enumerate(plan.tasks, 1)}
    lines = ["flowchart TD"] if mermaid else ["digraph plan {", "  node [shape=box];"]
    for task in plan.tasks:
        words = " ".join(printable(task.text).split())[:_LONGEST]
        label = f"{task.id}: {words} ({task.status.replace('_', ' ')})"
        if mermaid:
            # By number, as Mermaid reads entities and has no other escape; letters of any language stay readable.
            safe = "".join(each if each.isalnum() or each in " .,:()-" else f"#{ord(each)};" for each in label)
            lines.append(f'  {numbers[task.id]}["{safe}"]')
        else:
            safe = label.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {numbers[task.id]} [label="{safe}"];')
    arrow, end = ("-->", "") if mermaid else ("->", ";")
    for task in plan.tasks:
        lines += [f"  {numbers[before]} {arrow} {numbers[task.id]}{end}" for before in task.after]
    return "\n".join(lines if mermaid else [*lines, "}"])


def plan_tree(plan: PlanDocument) -> Iterator[tuple[str, TaskDocument, tuple[str, ...]]]:
    """Yield the tasks, each below the last one that it waits for, with its indent and what else it waits for."""
    order = {name: place for place, name in enumerate(order_tasks(plan.plan))}
    below: dict[str, list[TaskDocument]] = {}
    for task in plan.tasks:
        below.setdefault(max(task.after, key=order.__getitem__, default=""), []).append(task)
    left = [(0, task) for task in reversed(below.get("", []))]
    while left:
        depth, task = left.pop()
        last = max(task.after, key=order.__getitem__, default="")
        yield "  " * min(depth, _DEEPEST), task, tuple(name for name in task.after if name != last)
        left += [(depth + 1, each) for each in reversed(below.get(task.id, []))]
