"""A crew as rows of a terminal, the most important first, limited to its width and height."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import get_args

from msgspec import Struct

from chargehand.core.text import printable
from chargehand.reports.progress.crew import Crew, CrewCost, CrewStanding, CrewTask, PersonNeed

_ORDER: dict[str, int] = {standing: place for place, standing in enumerate(get_args(CrewStanding))}
_ENDED = ("failed", "rolled back", "left out", "done", "merged")
_MARKS = {"needs you": "!", "works": ">", "review": ">", "merging": ">", "failed": "x", "held": "~"}
_COLOURS = {
    "needs you": "yellow",
    "works": "cyan",
    "review": "cyan",
    "merging": "cyan",
    "held": "magenta",
    "failed": "red",
    "merged": "green",
    "done": "green",
}
# The words of a count, for one task and for several.
_COUNTED = {
    "needs you": ("needs you", "need you"),
    "works": ("works", "work"),
    "review": ("in review", "in review"),
    "waits": ("waits", "wait"),
}
# Minimum columns for time and money, and for a progress bar; columns of the bar.
_WIDE_COLUMNS = 72
_FOR_BAR_COLUMNS = 64
_BAR_COLUMNS = 10
_INDENT = "    "
# Maximum lines of a question, of its choices, and of a task's details.
_MOST_LINES = 4
_MOST_CHOICES = 2
_MOST_DETAILS = 3
# Details are not wrapped in fewer columns.
_SHORTEST_COLUMNS = 12
_MOST_LATELY = 8


class CrewRow(Struct, frozen=True, kw_only=True):
    """One row, and its style on a terminal with colours."""

    text: str
    colour: str | None = None
    bold: bool = False
    dim: bool = False


def crew_rows(crew: Crew, *, now: datetime, width: int, height: int, notice: str = "") -> tuple[CrewRow, ...]:
    """Return at most `height` rows of at most `width` columns; `notice` is the last one if it fits.

    Needs for a person and the commands that settle them come first, then active, held and next tasks, and ended
    ones; tasks that do not fit are counted. Whatever its text contains, a row is one line.
    """
    if width < 1 or height < 1:
        return ()
    # Successful tasks in reverse order of ending; the others stay in the order of the plan.
    others = sorted(crew.tasks, key=lambda each: each.ended, reverse=True)
    others = sorted(
        (each for each in others if each.standing != "needs you"),
        key=lambda each: _ORDER["merged" if each.standing in _ENDED[1:] else each.standing],
    )
    status = "waits for you" if crew.needs and crew.status in ("waiting", "paused") else crew.status
    right = "  ".join(
        filter(None, (status, _duration(crew.created, crew.finished, now, crew.waited_seconds), _money(crew.cost)))
    )
    title = _beside(f"{crew.mission}  {crew.title}", right, width)
    head = [
        CrewRow(text=title, bold=True),
        *(CrewRow(text=line) for line in wrap_text(_tally(crew, width), width)[:2]),
    ]
    if crew.waits:
        head.append(CrewRow(text=f"waits: {crew.waits}", colour="yellow"))
    # A need for a person comes before the title.
    head = head[: max(0, height - bool(crew.needs))] if height < 4 else head
    foot = [CrewRow(text=notice, dim=True)] if notice and height >= len(head) + 6 else []
    room = height - len(head) - len(foot)
    needs = _need_rows(crew.needs, width, max(min(len(crew.needs), room), room - min(len(others), room // 2)))
    rows = [*head, *needs]
    room -= len(needs)
    rows += _task_rows(crew, others, now, width, room)
    left = height - len(rows) - len(foot)
    if crew.lately and left > 2:
        lately = crew.lately[-min(left - 1, _MOST_LATELY) :]
        rows += [CrewRow(text=""), *(CrewRow(text=f"  {each}", dim=True) for each in lately)]
    rows += [CrewRow(text="")] * (height - len(rows) - len(foot)) if foot else []
    return tuple(
        CrewRow(text=fit_text(row.text, width).rstrip(), colour=row.colour, bold=row.bold, dim=row.dim)
        for row in (*rows, *foot)
    )


# --- the head


def _tally(crew: Crew, width: int) -> str:
    if not crew.planned:
        return "a planner makes its plan first"
    counts = Counter(task.standing for task in crew.tasks)
    total = len(crew.tasks)
    ended = sum(task.standing in _ENDED for task in crew.tasks)
    filled = _BAR_COLUMNS * ended // total if total else 0
    bar = f"[{'#' * filled}{'.' * (_BAR_COLUMNS - filled)}]  " if width >= _FOR_BAR_COLUMNS else ""
    own = any(not need.task for need in crew.needs)
    counted = _count({each: number for each, number in counts.items() if each != "merged"})
    asks = "the mission itself needs you" if own else ""
    return f"{bar}{counts['merged']} of {total} merged" + "".join(f", {each}" for each in (asks, counted) if each)


def _count(counts: dict[CrewStanding, int]) -> str:
    """Return the numbers of tasks by standing, in words, in order of importance."""
    told = []
    for standing in sorted(counts, key=_ORDER.__getitem__):
        one, more = _COUNTED.get(standing, (standing, standing))
        told.append(f"{counts[standing]} {one if counts[standing] == 1 else more}")
    return ", ".join(told)


def _duration(since: str, until: str, now: datetime, waited: float = 0.0) -> str:
    try:
        end = datetime.fromisoformat(until) if until else now
        seconds = max(0, int((end - datetime.fromisoformat(since)).total_seconds() - waited))
    except (ValueError, TypeError):  # a damaged line
        return ""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _money(cost: CrewCost) -> str:
    # Most missions cost cents: with two digits many would look free.
    usd = f"{cost.usd:.4f} USD" if 0 < cost.usd < 1 else f"{cost.usd:.2f} USD"
    return usd if cost.known else f"up to {usd}" if cost.usd else "cost unknown"


# --- needs for a person


def _need_rows(needs: Sequence[PersonNeed], width: int, room: int) -> list[CrewRow]:
    """Return a row for each need, with as many of their commands and full texts as fit."""
    if not needs or room < 1:
        return []
    if len(needs) > room:
        rest = needs[room - 1 :]
        names = ", ".join(each.task or "the mission" for each in rest)
        more = f"! {len(rest)} {'more ' if room > 1 else ''}need you: {names}"
        heads = [_need_text(each, width) for each in needs[: room - 1]]
        return [CrewRow(text=text, colour="yellow", bold=True) for text in (*heads, more)]
    room -= len(needs)
    commands: list[list[str]] = []
    for need in needs:
        command = wrap_command(need.command, width)
        commands.append(command if len(command) <= room else [])  # a part of a command is useless
        room -= len(commands[-1])
    rows: list[CrewRow] = []
    for need, command in zip(needs, commands, strict=True):
        told = f"{_INDENT}answer: {one_line(need.choices)}" if need.choices else ""
        said = wrap_text(_need_text(need, width), width, indent=_INDENT)
        if len(said) > _MOST_LINES:
            said = [*said[: _MOST_LINES - 1], f"{said[_MOST_LINES - 1]}…"]
        whole = [*said, *wrap_text(told, width, indent=_INDENT)[:_MOST_CHOICES]]
        lines = whole if len(whole) - 1 <= room else [_need_text(need, width)]
        room -= len(lines) - 1
        rows.append(CrewRow(text=lines[0], colour="yellow", bold=True))
        rows += [CrewRow(text=line) for line in lines[1:]]
        rows += [CrewRow(text=line, bold=True) for line in command]
    return rows


def _need_text(need: PersonNeed, width: int) -> str:
    name = _shorten_name(one_line(need.task) or "the mission", max(1, width // 3))
    return f"! {name} needs you: {one_line(need.message)}"


# --- tasks


def _task_rows(crew: Crew, tasks: Sequence[CrewTask], now: datetime, width: int, room: int) -> list[CrewRow]:
    """Return a row for each task, in this order, and one that counts the omitted tasks.

    Details that do not fit into a row continue below it if there are spare rows.
    """
    from rich.cells import cell_len

    if not tasks or room < 1:
        return []
    shown = tasks if len(tasks) <= room else tasks[: room - 1]
    longest = max((cell_len(one_line(each.id)) for each in shown), default=1)
    names = max(1, min(longest, max(8, width // 4)))
    standings = max(len(each.standing) for each in shown) if shown else 0
    paid = any(each.cost.usd or not each.cost.known for each in crew.tasks)
    rows: list[CrewRow] = []
    spare = room - len(shown) if len(shown) == len(tasks) else 0
    for each in shown:
        name = fit_text(_shorten_name(one_line(each.id), names), names, pad=True)
        begin = f"{_MARKS.get(each.standing, ' ')} {name}  {each.standing:<{standings}}  "
        right, detail = "", one_line(each.detail)
        if width >= _WIDE_COLUMNS:
            spent = (each.cost.usd or not each.cost.known) and each.standing not in _ENDED
            right = f"{_duration(each.since, '', now):>7}" if each.since else ""
            right += f"{_money(each.cost) if spent else '':>12}" if paid and (right or spent) else ""
        left = width - cell_len(begin) - (cell_len(right) + 2 if right else 0)
        lines = wrap_text(detail, left) if left > _SHORTEST_COLUMNS else []
        # A task that only waits for others is explained by their rows.
        if not 1 < len(lines) <= min(_MOST_DETAILS, 1 + spare) or each.standing in ("waits", "next"):
            lines = [detail]
        spare -= len(lines) - 1
        dim = each.standing in ("waits", "next", "left out", "rolled back", "queued")
        first = _beside(f"{begin}{lines[0]}", right, width)
        rows.append(CrewRow(text=first, colour=_COLOURS.get(each.standing), dim=dim))
        rows += [CrewRow(text=f"{' ' * cell_len(begin)}{line}", dim=True) for line in lines[1:]]
    if len(shown) < len(tasks):
        rest = Counter(each.standing for each in tasks[len(shown) :])
        several = "more " if shown else ""
        rows.append(CrewRow(text=f"  and {rest.total()} {several}tasks: {_count(dict(rest))}", dim=True))
    return rows


# --- text in columns


def one_line(text: str) -> str:
    """Return a text on one line, with nothing hidden in it."""
    # A variation selector changes the form of the preceding character, and terminals disagree on its width.
    return " ".join(printable(text).replace("\ufe0e", "").replace("\ufe0f", "").split())


def fit_text(text: str, width: int, *, pad: bool = False) -> str:
    """Return a text in at most `width` columns, cut if longer; with `pad` in exactly `width` columns."""
    from rich.cells import cell_len, set_cell_size

    text = printable(text).replace("\n", " ").replace("\t", " ")
    if cell_len(text) > width:
        # A wide character may not fit into the last column, which then gets a space.
        text = set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else "…"[:width]
    return set_cell_size(text, width) if pad else text


def wrap_text(text: str, width: int, *, indent: str = "") -> list[str]:
    """Wrap a text to `width` columns, at least 2, between words if possible.

    All lines except the first begin with `indent`; the text keeps its own indentation.
    """
    from rich.cells import cell_len, chop_cells

    own = text[: len(text) - len(text.lstrip())]
    lines, line = [], own
    pieces = (piece for word in text.split() for piece in chop_cells(word, max(2, width - len(indent))))
    for piece in pieces:
        longer = f"{line} {piece}" if line.strip() else f"{line}{piece}"
        if line.strip() and cell_len(longer) > width:
            lines.append(line)
            longer = f"{indent}{piece}"
        line = longer
    return [*lines, line] if line.strip() else lines


def wrap_command(words: Sequence[str], width: int) -> list[str]:
    """Return a command as lines that a shell reads as one command, or no lines if it does not fit."""
    from rich.cells import cell_len

    lines, line = [], "  "
    for number, word in enumerate(words):
        joined = f"{line} {word}" if line.strip() else f"{line}{word}"
        # Two columns stay free for the continuation mark.
        if cell_len(joined) <= width - 2 * (number < len(words) - 1):
            line = joined
            continue
        if line.strip():
            lines.append(f"{line} \\")
        line = f"{_INDENT}{word}"
        # The id of a task may be too long by itself; quoted text cannot be broken.
        while cell_len(line) > width - 2 and not set(line) & set("'\"") and width > len(_INDENT) + 2:
            cut = min(width, len(line)) - 1  # the rest keeps a letter: the next word would join an empty line
            lines.append(f"{line[:cut]}\\")
            line = line[cut:]
    lines.append(line)
    return lines if all(cell_len(each) <= width for each in lines) else []


def _shorten_name(name: str, width: int) -> str:
    """Shorten a name to `width` columns, keeping its end, which often distinguishes it from others."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(name) <= width or width < 5:
        return name
    end = name
    for start in itertools.count(1):
        end = name[start:]
        if cell_len(end) <= (width - 1) // 2:
            break
    return f"{set_cell_size(name, width - 1 - cell_len(end))}…{end}"


def _beside(left: str, right: str, width: int) -> str:
    """Return two texts on one row, the second right-aligned; the first is cut if necessary."""
    from rich.cells import cell_len

    space = width - cell_len(right) - 2
    if not right or space < 10:
        return left if not right or cell_len(left) <= width else fit_text(left, width)
    return f"{fit_text(left, space, pad=True)}  {right}"
