"""Hunks applied to a text: found exactly, or but for white space at line ends; never by guessing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chargehand.agents._patch_model import Hunk, Line, PatchProblem
from chargehand.agents._patch_show import nearest_region, whitespace_hint

_SHOWN_PLACES = 8
Match = Callable[[str, str], bool]


@dataclass(slots=True)
class Text:
    """A text as lines without their line feeds; `ended` is false where the last line has none."""

    lines: list[str]
    ended: bool = True

    @classmethod
    def of(cls, text: str) -> Text:
        """Split a text."""
        if not text:
            return cls([])
        lines = text.split("\n")
        return cls(lines[:-1]) if not lines[-1] else cls(lines, ended=False)

    def join(self) -> str:
        """Return the text."""
        return "\n".join(self.lines) + ("\n" if self.lines and self.ended else "")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the old lines of a hunk begin, and whether the patch is right there to the letter."""

    start: int
    exact: bool


def apply_hunks(text: str, hunks: Sequence[Hunk], *, path: str) -> str:
    """Return `text` changed; raises `PatchProblem` naming `path`, the hunk and the nearest region."""
    old = Text.of(text)
    new = Text([], old.ended)
    cursor = 0
    for number, hunk in enumerate(hunks, 1):
        place = _place(old, hunk, cursor, title=f"{path}, hunk {number} of {len(hunks)}")
        new.lines += old.lines[cursor : place.start]
        cursor = place.start + len(hunk.old)
        new.lines += _result(old, hunk, place)
        new.ended = _ended(hunk, new.ended)
    new.lines += old.lines[cursor:]
    return new.join()


def _result(old: Text, hunk: Hunk, place: _Place) -> list[str]:
    """Kept lines stay as the file has them; added ones take the file's line ends when the patch lacks them."""
    change = _unchanged if place.exact else _line_ends(old)
    made, at = [], place.start
    for line in hunk.lines:
        if line.sign == " ":
            made.append(old.lines[at])
        elif line.sign == "+":
            made.append(change(line.text))
        at += line.sign != "+"
    return made


def _unchanged(text: str) -> str:
    return text


def _line_ends(old: Text) -> Callable[[str], str]:
    with_return = sum(line.endswith("\r") for line in old.lines)
    if not old.lines:
        return _unchanged
    if with_return * 2 > len(old.lines):
        return lambda text: text if text.endswith("\r") else text + "\r"
    return lambda text: text.removesuffix("\r")


def _ended(hunk: Hunk, before: bool) -> bool:
    """Say whether the text ends in a line feed: only marks on the hunk's last lines change that."""
    news = [line for line in hunk.lines if line.sign != "-"]
    olds = [line for line in hunk.lines if line.sign != "+"]
    if news and not news[-1].ended:
        return False
    return True if olds and not olds[-1].ended else before


def _place(old: Text, hunk: Hunk, cursor: int, *, title: str) -> _Place:
    wanted = hunk.old
    from_anchor, unsure = _after_anchors(old.lines, hunk, cursor, title)
    if not wanted:
        return _Place(_insertion(old, hunk, cursor, from_anchor, title), exact=hunk.near is not None)
    at_end = hunk.at_end or any(not line.ended for line in hunk.lines if line.sign != "+")
    for exact, same in ((True, _same), (False, _same_but_for_ends)):
        places = _places(old.lines, wanted, cursor, same)
        if at_end:
            places = [start for start in places if start + len(wanted) == len(old.lines)] or places
        if places:
            return _Place(_choose(places, hunk, from_anchor, unsure, title), exact)
    raise PatchProblem(_not_found(old.lines, wanted, title, cursor))


def _same(one: str, other: str) -> bool:
    return one == other


def _same_but_for_ends(one: str, other: str) -> bool:
    return one.rstrip() == other.rstrip()


def _places(lines: Sequence[str], wanted: Sequence[str], cursor: int, same: Match) -> list[int]:
    last = len(lines) - len(wanted)
    return [
        start
        for start in range(cursor, last + 1)
        if same(lines[start], wanted[0]) and all(map(same, lines[start : start + len(wanted)], wanted))
    ]


def _choose(places: list[int], hunk: Hunk, from_anchor: int, unsure: bool, title: str) -> int:
    if len(places) == 1:
        return places[0]
    if hunk.near in places:
        return hunk.near
    after = [start for start in places if start >= from_anchor]
    if hunk.anchors and after and not unsure:
        return after[0]
    raise PatchProblem(
        f"{title}: its lines stand in several places (lines {_listed(places)}): give more lines around the "
        "change, or an '@@' line with a line that stands above it and nowhere else"
    )


def _insertion(old: Text, hunk: Hunk, cursor: int, from_anchor: int, title: str) -> int:
    if not old.lines:
        return 0
    if hunk.at_end:
        return len(old.lines)
    if hunk.anchors:
        return max(from_anchor, cursor)
    if hunk.near is not None and cursor <= hunk.near <= len(old.lines):
        return hunk.near
    raise PatchProblem(f"{title}: it only adds lines: give the lines around the place where they go")


def _after_anchors(lines: Sequence[str], hunk: Hunk, cursor: int, title: str) -> tuple[int, bool]:
    """Return the line below the anchors, and whether one of them stands in several places."""
    unsure = False
    for anchor in hunk.anchors:
        places = _anchor_places(lines, anchor, cursor)
        if not places:
            near = nearest_region(lines, [anchor])
            raise PatchProblem(
                f"{title}: the file has no line {anchor!r} to start from" + (f"\n{near}" if near else "")
            )
        unsure = unsure or len(places) > 1
        cursor = places[0] + 1
    if unsure and not hunk.old:
        raise PatchProblem(
            f"{title}: {hunk.anchors[-1]!r} stands in several places: give the lines around the change"
        )
    return cursor, unsure


def _anchor_places(lines: Sequence[str], anchor: str, cursor: int) -> list[int]:
    """An anchor is a whole line, or the beginning of one up to the end of a word (`class A` for `class A:`)."""
    whole = [at for at in range(cursor, len(lines)) if lines[at].strip() == anchor]
    if whole:
        return whole
    begun = [at for at in range(cursor, len(lines)) if lines[at].strip().startswith(anchor)]
    return [at for at in begun if not (lines[at].strip()[len(anchor)].isalnum() and anchor[-1].isalnum())]


def _not_found(lines: Sequence[str], wanted: Sequence[str], title: str, cursor: int) -> str:
    if _places(lines, wanted, 0, _same_but_for_ends):
        return f"{title}: its lines stand above the hunk before it: write the hunks in the order of the file"
    region = nearest_region(lines, wanted)
    if region is None:
        return f"{title}: the file has nothing like its lines: read the file again"
    hint = whitespace_hint(region.lines, wanted)
    return f"{title}: its lines are not in the file as written.{hint} The nearest place is:\n{region}"


def _listed(places: Sequence[int]) -> str:
    shown = ", ".join(str(start + 1) for start in places[:_SHOWN_PLACES])
    return shown + (", ..." if len(places) > _SHOWN_PLACES else "")


def added_text(hunks: Sequence[Hunk], *, path: str) -> str:
    """Return the content of a new file; raises `PatchProblem` when its hunks expect something to be there."""
    lines: list[Line] = [line for hunk in hunks for line in hunk.lines]
    if any(line.sign != "+" for line in lines):
        raise PatchProblem(f"{path}: every line of a new file begins with '+'")
    return Text([line.text for line in lines], all(line.ended for line in lines)).join()
