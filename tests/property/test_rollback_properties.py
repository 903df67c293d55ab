"""Rollback by path and by hunk: for any contents and choice the result equals that of git and of a plain model."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.trees_kit import EXECUTABLE, FILE, LINK, File, files_of, make_tree
from tests.workspace_kit import WorkspaceKit

from chargehand.workspace.depot import Depot
from chargehand.workspace.hunks import Hunk, LineRange, find_hunks, keep_hunks
from chargehand.workspace.rollback import Drop, plan_rollback, write_rollback

_LINE = st.sampled_from(
    [b"a", b"b", b"c", b"", b"a\r", b"\rb", b"\\ No newline", b"@@ -1 +1 @@", b"<<<<<<<", b"\xff"]
)
_CONTENT = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(_LINE, max_size=12), st.sampled_from([b"", b"\n"])
)


@st.composite
def _edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw a content and an edited or unrelated second content."""
    old = draw(_CONTENT)
    if draw(st.booleans()):
        return old, draw(_CONTENT)
    lines = old.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(_LINE, max_size=2))
    return old, b"\n".join(lines)


def _as_patch(old: bytes, new: bytes, hunks: Sequence[Hunk], kept: set[int]) -> bytes:
    """Write the kept hunks as a patch without context, each at the position to which the earlier hunks have moved
    it.

    One hunk needs the line before it as context: a pure deletion of a last line without newline. Without it `git
    apply` takes the newline of that line too, also for a patch that `git diff -U0` made. No hunk holds that line,
    for hunks have at least one unchanged line between them.
    """
    before, after = _lines(old), _lines(new)
    out = [b"--- a/f\n+++ b/f\n"]
    moved = 0
    for index, hunk in enumerate(hunks):
        if index not in kept:
            continue
        removed = before[hunk.old : hunk.old + hunk.old_lines]
        added = after[hunk.new : hunk.new + hunk.new_lines]
        needs_context = hunk.old > 0 and not added and not removed[-1].endswith(b"\n")
        context = before[hunk.old - 1 : hunk.old] if needs_context else []
        start, old_lines, new_lines = hunk.old - len(context), *(len(context + each) for each in (removed, added))
        old_at = start + (1 if old_lines else 0)
        new_at = start + moved + (1 if new_lines else 0)
        moved += hunk.new_lines - hunk.old_lines
        out.append(b"@@ -%d,%d +%d,%d @@\n" % (old_at, old_lines, new_at, new_lines))
        out += [_marked(b" ", line) for line in context]
        out += [_marked(b"-", line) for line in removed]
        out += [_marked(b"+", line) for line in added]
    return b"".join(out)


def _lines(content: bytes) -> list[bytes]:
    return [line + b"\n" for line in content.split(b"\n")[:-1]] + [
        last for last in content.split(b"\n")[-1:] if last
    ]


def _marked(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def _apply_by_git(old: bytes, patch: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "f").write_bytes(old)
        command = ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-"]
        subprocess.run(command, cwd=place, input=patch, check=True)
        return (Path(place) / "f").read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "kept", "result"),
    [
        (b"a\nb", b"a\n", {0}, b"a\n"),
        (b"x\na\nb", b"a\n", {1}, b"x\na\n"),
        (b"b", b"", {0}, b""),
        (b"a\nb\n", b"a\n", {0}, b"a\n"),
    ],
)
def test_a_last_line_without_newline_keeps_the_preceding_newline(
    old: bytes, new: bytes, kept: set[int], result: bytes
) -> None:
    hunks = find_hunks(old, new)
    assert hunks is not None
    assert keep_hunks(old, new, hunks, kept) == _apply_by_git(old, _as_patch(old, new, hunks, kept)) == result


@given(contents=_edited(), choice=st.lists(st.booleans(), min_size=20, max_size=20))
@example(contents=(b"a\nb", b"a\n"), choice=[True] * 20)
@example(contents=(b"\nb\na\nb\nb", b"b\nb\n"), choice=[True] * 20)
@settings(max_examples=examples(150), deadline=None)
def test_any_kept_hunks_equal_the_result_of_git_apply(contents: tuple[bytes, bytes], choice: list[bool]) -> None:
    old, new = contents
    hunks = find_hunks(old, new)
    assert hunks is not None
    assert keep_hunks(old, new, hunks, range(len(hunks))) == new
    assert keep_hunks(old, new, hunks, ()) == old
    kept = {index for index in range(len(hunks)) if choice[index]}
    result = keep_hunks(old, new, hunks, kept)
    if kept:
        assert _apply_by_git(old, _as_patch(old, new, hunks, kept)) == result
    for index, hunk in enumerate(hunks):  # each line of the new content is in the hunk that put it there
        for line in range(hunk.new + 1, hunk.new + hunk.new_lines + 1):
            met = [i for i, other in enumerate(hunks) if other.meets(LineRange(first=line, last=line))]
            assert met == [index]
    put = {line for hunk in hunks for line in range(hunk.new + 1, hunk.new + hunk.new_lines + 1)}
    for line in (
        set(range(1, len(_lines(new)) + 1)) - put
    ):  # a line that stayed unchanged meets at most an adjacent deletion
        met = [hunk for hunk in hunks if hunk.meets(LineRange(first=line, last=line))]
        assert all(hunk.new_lines == 0 and line in (hunk.new, hunk.new + 1) for hunk in met)


@pytest.fixture(scope="module")
def depot(tmp_path_factory: pytest.TempPathFactory) -> Depot:
    return WorkspaceKit(tmp_path_factory.mktemp("kit")).depot()


_NAMES = ["a", "b", "d", "a/x", "d/x", "d/e/y", "d/e", "é", "ab"]
_FILES = st.dictionaries(
    st.sampled_from(_NAMES),
    st.tuples(
        st.sampled_from([FILE, FILE, EXECUTABLE]),
        st.sampled_from([b"", b"1\n", b"1\n2\n3\n", b"1\nX\n3", b"\0\1"]),
    )
    | st.tuples(st.just(LINK), st.sampled_from([b"a", b"nowhere"])),
    max_size=6,
).map(
    lambda files: {path: file for path, file in files.items() if not any(o.startswith(f"{path}/") for o in files)}
)


def _model(source: dict[str, File], target: dict[str, File], chosen: Sequence[str]) -> dict[str, File]:
    """Set paths and all below them to the target's state; a file that blocks a directory is removed."""
    out = dict(source)
    for root in chosen:
        for path in [path for path in out if _within(path, root)]:
            del out[path]
    for root in chosen:
        for path, file in target.items():
            if _within(path, root):
                for parent in [other for other in out if path.startswith(f"{other}/")]:
                    del out[parent]
                out[path] = file
    return out


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


@given(source=_FILES, target=_FILES, data=st.data())
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_path_plan_predicts_the_result_exactly(
    depot: Depot, source: dict[str, File], target: dict[str, File], data: st.DataObject
) -> None:
    known = sorted({"/".join(p.split("/")[: n + 1]) for p in (*source, *target) for n in range(p.count("/") + 1)})
    chosen = data.draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
    _check_plan(depot, source, target, chosen)


@pytest.mark.parametrize("chosen", [["a/x"], ["a"], ["b"], ["b/y"], ["a/x", "b/y"]])
def test_restore_of_a_file_and_a_directory_of_the_same_name(depot: Depot, chosen: list[str]) -> None:
    source: dict[str, File] = {"a": (FILE, b"a"), "b/y": (FILE, b"y"), "b/z": (FILE, b"z")}
    target: dict[str, File] = {"a/x": (FILE, b"x"), "a/w": (FILE, b"w"), "b": (FILE, b"b")}
    _check_plan(depot, source, target, chosen)


def _check_plan(depot: Depot, source: dict[str, File], target: dict[str, File], chosen: list[str]) -> None:
    one, other = make_tree(depot, source), make_tree(depot, target)
    objects = _objects(depot)
    full = plan_rollback(depot, one, other)
    plan = plan_rollback(depot, one, other, drops=[Drop(path=path) for path in chosen])
    assert _objects(depot) == objects  # a plan writes nothing
    assert (full.result, write_rollback(depot, full)) == (other, other)
    assert write_rollback(depot, plan) == plan.result
    left = files_of(depot, plan.result)
    assert left == _model(source, target, chosen)
    differs = {path for path in {*source, *left} if source.get(path) != left.get(path)}
    assert {
        path.path for path in plan.reverted
    } == differs  # every reported change happened, and every change is reported
    for path in plan.paths:
        now = left.get(path.path)
        if path.action == "kept":
            assert now == source.get(path.path)
        else:
            assert now == target.get(path.path)
            assert (path.action == "deleted") == (path.path not in left)
    assert {path.path for path in full.paths} == {p for p in {*source, *target} if source.get(p) != target.get(p)}


def _objects(depot: Depot) -> set[Path]:
    return {path for path in depot.reader.objects.rglob("*") if path.is_file()}


@given(contents=_edited(), mode=st.sampled_from([FILE, EXECUTABLE]), data=st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_smart_plan_drops_the_hunks_of_the_lines_and_no_other(
    depot: Depot, contents: tuple[bytes, bytes], mode: int, data: st.DataObject
) -> None:
    old, new = contents
    hunks = find_hunks(old, new)
    if not hunks:
        return
    dropped = data.draw(st.sets(st.sampled_from(range(len(hunks))), min_size=1))
    ranges = [_lines_of(hunks[index]) for index in sorted(dropped)]
    touched = {i for i, hunk in enumerate(hunks) if any(hunk.meets(lines) for lines in ranges)}
    renamed = data.draw(st.booleans())
    source = {("moved" if renamed else "f"): (mode, new), "other": (FILE, b"kept\n")}
    target = {"f": (FILE, old)}
    one, other = make_tree(depot, source), make_tree(depot, target)
    path = "moved" if renamed else "f"
    plan = plan_rollback(depot, one, other, drops=[Drop(path=path, lines=tuple(ranges))])
    by_path = {each.path: each for each in plan.paths}
    left = files_of(depot, write_rollback(depot, plan))
    assert left["other"] == (FILE, b"kept\n")
    if renamed and by_path[path].renamed_from is None:  # too unlike for git to see a rename: a new file is dropped
        assert (path in left, by_path[path].action, by_path[path].why) == (
            False,
            "deleted",
            "is new, which is one hunk",
        )
        return
    result = keep_hunks(old, new, hunks, set(range(len(hunks))) - touched)
    assert left[path] == (mode, result)
    if result != new and by_path[path].action == "partly":
        assert [hunk.kept for hunk in by_path[path].hunks] == [i not in touched for i in range(len(hunks))]


def _lines_of(hunk: Hunk) -> LineRange:
    if hunk.new_lines:
        return LineRange(first=hunk.new + 1, last=hunk.new + 1)
    return LineRange(first=max(hunk.new, 1), last=max(hunk.new, 1))
