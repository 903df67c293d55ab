"""A plan as a graph that other programs draw."""

from __future__ import annotations

from chargehand.app.documents import PlanDocument
from chargehand.core.text import printable

_LONGEST = 60


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
