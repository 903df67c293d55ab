"""Conflicts of a merge: each kind is named, with the conflicting lines, and no half-merged result remains."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.trees_kit import EXECUTABLE, FILE, GITLINK, LINK, File, make_commit
from tests.workspace_kit import WorkspaceKit

import chargehand.workspace.merge as merging
from chargehand.core.errors import RefusedError
from chargehand.core.records import Conflict, Excerpt
from chargehand.workspace.depot import Depot
from chargehand.workspace.merge import MergeConflictError, MergeResult, conflict_report

Files = Mapping[str, bytes | File]
TEN = b"".join(b"%d\n" % n for n in range(1, 11))
REST: Files = {"rest": b"rest\n"}


@pytest.fixture(scope="module")
def depot(tmp_path_factory: pytest.TempPathFactory) -> Depot:
    return WorkspaceKit(tmp_path_factory.mktemp("kit")).depot()


@pytest.fixture(params=[(2, 30), (2, 45)], ids=["in process", "by git"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Merge with git's merge-tree if it is new enough, and as for an older git; return whether it is git's."""
    version: tuple[int, int] = request.param
    if version < merging.git_version():
        monkeypatch.setattr(merging, "git_version", lambda: version)
    return merging.git_version() >= (2, 38)


def merged(depot: Depot, base: Files, ours: Files, theirs: Files) -> MergeResult:
    root = make_commit(depot, REST | dict(base))
    return depot.merge(make_commit(depot, REST | dict(ours), root), make_commit(depot, REST | dict(theirs), root))


def only(result: MergeResult) -> Conflict:
    assert result.tree is None
    (conflict,) = result.details
    assert result.conflicts == (conflict.path,)
    return conflict


@pytest.mark.usefixtures("engine")
def test_clashing_lines_with_their_places(depot: Depot) -> None:
    ours = b"new\n" + TEN.replace(b"3\n4\n", b"three\nfour\n").replace(b"9\n", b"nine\n")
    theirs = TEN.replace(b"4\n", b"vier\n").replace(b"10\n", b"zehn\n")
    conflict = only(merged(depot, {"f": TEN}, {"f": ours}, {"f": theirs}))
    assert (conflict.path, conflict.kind) == ("f", "content")
    first, last = conflict.hunks
    assert first.base == Excerpt(start=3, lines=2, text="3\n4\n")
    assert first.ours == Excerpt(start=4, lines=2, text="three\nfour\n")
    assert first.theirs == Excerpt(start=3, lines=2, text="3\nvier\n")
    assert last.base == Excerpt(start=9, lines=2, text="9\n10\n")  # adjacent changes conflict too
    assert last.ours == Excerpt(start=10, lines=2, text="nine\n10\n")
    assert last.theirs == Excerpt(start=9, lines=2, text="9\nzehn\n")


@pytest.mark.usefixtures("engine")
def test_text_that_holds_conflict_markers_is_text(depot: Depot) -> None:
    marked = b"<<<<<<< ours\n1\n=======\n2\n>>>>>>> theirs\n"
    ours, theirs = marked.replace(b"1", b"one"), marked.replace(b"1", b"eins")
    conflict = only(merged(depot, {"f": marked}, {"f": ours}, {"f": theirs}))
    (hunk,) = conflict.hunks
    assert (hunk.ours, hunk.theirs) == (
        Excerpt(start=2, lines=1, text="one\n"),
        Excerpt(start=2, lines=1, text="eins\n"),
    )
    whole = only(merged(depot, {"f": b""}, {"f": marked}, {"f": marked + b"\x1b[31m\r\n"}))
    report = conflict_report([whole], ours="branch", theirs="yours")
    assert "    | <<<<<<< ours\n    | 1\n    | =======\n" in report
    assert not any(line.startswith(("<", "=", ">")) for line in report.splitlines())
    assert "\x1b" not in report
    assert "\\r" in report


@pytest.mark.usefixtures("engine")
def test_both_added(depot: Depot) -> None:
    conflict = only(merged(depot, {}, {"f": b"same\nours\n"}, {"f": b"same\ntheirs\n"}))
    assert (conflict.kind, conflict.base) == ("both_added", None)
    (hunk,) = conflict.hunks
    assert hunk.base is None
    assert (hunk.ours, hunk.theirs) == (
        Excerpt(start=2, lines=1, text="ours\n"),
        Excerpt(start=2, lines=1, text="theirs\n"),
    )


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("deleted", ["ours", "theirs"])
def test_modify_delete_conflict_shows_the_modified_hunk(depot: Depot, deleted: str) -> None:
    changed: Files = {"f": TEN.replace(b"5\n", b"five\n")}
    nothing: Files = {}
    result = merged(depot, {"f": TEN}, *((nothing, changed) if deleted == "ours" else (changed, nothing)))
    conflict = only(result)
    assert (conflict.kind, getattr(conflict, deleted)) == ("modify_delete", None)
    (hunk,) = conflict.hunks
    assert hunk.base == Excerpt(start=5, lines=1, text="5\n")
    assert {hunk.ours, hunk.theirs} == {None, Excerpt(start=5, lines=1, text="five\n")}


@pytest.mark.usefixtures("engine")
def test_binary(depot: Depot) -> None:
    conflict = only(merged(depot, {"f": b"\0"}, {"f": b"\0o"}, {"f": b"\0t"}))
    assert (conflict.kind, conflict.hunks, conflict.left_out) == ("binary", (), 0)


def test_modes_and_types(depot: Depot, engine: bool) -> None:
    both = merged(depot, {}, {"f": (EXECUTABLE, TEN)}, {"f": (FILE, TEN)})
    if engine:  # with an older git the executable one wins
        conflict = only(both)
        assert (conflict.kind, conflict.hunks) == ("mode", ())
        assert conflict.ours is not None
        assert conflict.theirs is not None
        assert (conflict.ours.mode, conflict.theirs.mode) == (EXECUTABLE, FILE)
    linked = merged(depot, {"f": TEN}, {"f": TEN + b"more\n"}, {"f": (LINK, b"rest")})
    assert linked.conflicts == ("f",)  # under its own name, even though git renamed it
    assert linked.details[0].kind == "mode"


@pytest.mark.usefixtures("engine")
def test_links_that_point_elsewhere(depot: Depot) -> None:
    conflict = only(merged(depot, {"l": (LINK, b"a")}, {"l": (LINK, b"b")}, {"l": (LINK, b"c")}))
    (hunk,) = conflict.hunks
    assert (hunk.ours, hunk.theirs) == (Excerpt(start=1, lines=1, text="b"), Excerpt(start=1, lines=1, text="c"))


def test_renames(depot: Depot, engine: bool) -> None:
    two = merged(depot, {"f": TEN}, {"ours": TEN}, {"theirs": TEN})
    assert two.conflicts == ("f", "ours", "theirs")
    assert {conflict.kind for conflict in two.details} == {"rename"}
    gone = merged(depot, {"f": TEN}, {"new": TEN + b"more\n"}, {})
    if engine:
        assert {conflict.others for conflict in two.details} == {
            ("ours", "theirs"),
            ("f", "theirs"),
            ("f", "ours"),
        }
        conflict = only(gone)
        assert (conflict.path, conflict.kind, conflict.others) == ("new", "rename", ("f",))
        moved_in = merged(depot, {"d/x": TEN}, {"e/x": TEN}, {"d/x": TEN, "d/new": b"n"})
        assert [(c.path, c.kind) for c in moved_in.details] == [("e/new", "rename")]
    else:
        assert gone.tree is None
        assert set(gone.conflicts) <= {"f", "new"}


def test_a_file_directory_conflict_is_reported_at_the_file_path(depot: Depot, engine: bool) -> None:
    result = merged(depot, {"f": TEN}, {"f": TEN + b"more\n"}, {"f/below": b"b"})
    assert "f" in result.conflicts
    assert not any("~" in path for path in result.conflicts)
    if engine:
        assert only(result).kind == "file_directory"


@pytest.mark.usefixtures("engine")
def test_submodules(depot: Depot) -> None:
    modules = [(GITLINK, bytes([n]) * 20) for n in (1, 2, 3)]
    conflict = only(merged(depot, {"m": modules[0]}, {"m": modules[1]}, {"m": modules[2]}))
    assert (conflict.kind, conflict.hunks) == ("submodule", ())


@pytest.mark.usefixtures("engine")
def test_hostile_names(depot: Depot) -> None:
    names = ["a\nCONFLICT (contents)\nb", "tab\there", "\udcff", "f~1", "2", "-z", "\x1b[31m"]
    result = merged(depot, {}, dict.fromkeys(names, b"o\n"), dict.fromkeys(names, b"t\n"))
    assert set(result.conflicts) == set(names)
    assert {conflict.kind for conflict in result.details} == {"both_added"}
    report = conflict_report(result.details)
    assert "\x1b" not in report
    assert sum("both_added" in line for line in report.splitlines()) == len(names)


@pytest.mark.usefixtures("engine")
def test_conflict_details_are_limited_in_number_and_size(depot: Depot) -> None:
    many = {f"f{n:03}": b"x" * 5000 + b"\n" for n in range(60)}
    result = merged(depot, {}, {p: b"o" + c for p, c in many.items()}, {p: b"t" + c for p, c in many.items()})
    assert (len(result.conflicts), len(result.details)) == (60, 50)
    assert len(msgspec.json.encode(result.details)) < 100_000
    assert result.details[0].hunks[0].ours is not None
    assert result.details[0].hunks[0].ours.cut
    assert result.details[-1].left_out == 1
    wide = [b"".join(b"%d\n%s" % (n, side) for n in range(1000)) for side in (b"", b"o\n", b"t\n")]
    conflict = only(merged(depot, {"f": wide[0]}, {"f": wide[1]}, {"f": wide[2]}))
    assert len(conflict.hunks) + conflict.left_out == 1000


def test_a_conflicting_merge_writes_only_objects_to_the_depot(depot: Depot) -> None:
    def seen() -> set[str]:
        return {str(p) for p in depot.path.rglob("*") if "objects" not in p.relative_to(depot.path).parts}

    before = seen()
    assert merged(depot, {"f": TEN}, {"f": b"o\n"}, {"f": b"t\n"}).tree is None
    assert seen() == before


def test_the_error_is_a_refusal_that_carries_them(depot: Depot) -> None:
    details = merged(depot, {"f": TEN}, {"f": b"o\n"}, {"f": b"t\n"}).details
    with pytest.raises(RefusedError) as caught:
        raise MergeConflictError("the changes conflict in f", details, hint="roll back")
    assert caught.value.code == "merge_conflict"
    assert isinstance(caught.value, MergeConflictError)
    assert caught.value.conflicts == details


_TEXT = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"e\n"]), max_size=10).map(b"".join)


@given(base=_TEXT, ours=_TEXT, theirs=_TEXT)
@example(base=b"b\nb\n", ours=b"b\na\nb\n", theirs=b"b\na\nb\nb\na\n")  # git sees a conflict, plain diff does not
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_conflict_hunks_have_the_right_line_ranges(depot: Depot, base: bytes, ours: bytes, theirs: bytes) -> None:
    result = merged(depot, {"f": base}, {"f": ours}, {"f": theirs})
    if result.tree is not None:
        return
    conflict = only(result)
    assert conflict.kind == "content"
    assert conflict.hunks
    for hunk in conflict.hunks:
        for content, side in ((base, hunk.base), (ours, hunk.ours), (theirs, hunk.theirs)):
            assert side is not None
            lines = content.splitlines(keepends=True)
            at = side.start - (1 if side.lines else 0)
            assert b"".join(lines[at : at + side.lines]).decode() == side.text
        assert hunk.ours != hunk.theirs


def united(depot: Depot, base: Files, ours: Files, theirs: Files) -> MergeResult:
    root = make_commit(depot, REST | dict(base))
    sides = [make_commit(depot, REST | dict(side), root) for side in (ours, theirs)]
    return depot.merge(*sides, union=lambda path: path.endswith("CHANGES"))


def content(depot: Depot, result: MergeResult, path: str) -> bytes:
    assert result.tree is not None, result
    return depot.git.run("cat-file", "blob", f"{result.tree}:{path}").out


@pytest.mark.usefixtures("engine")
def test_both_sides_of_a_union_file_are_kept(depot: Depot) -> None:
    result = united(depot, {"d/CHANGES": TEN}, {"d/CHANGES": TEN + b"ours\n"}, {"d/CHANGES": TEN + b"theirs\n"})
    assert content(depot, result, "d/CHANGES") == TEN + b"ours\ntheirs\n"
    assert content(depot, result, "rest") == REST["rest"]
    result = united(depot, {}, {"CHANGES": b"ours\n"}, {"CHANGES": b"theirs\n", "more": b"m"})
    assert content(depot, result, "CHANGES") == b"ours\ntheirs\n"
    assert content(depot, result, "more") == b"m"


@pytest.mark.usefixtures("engine")
def test_union_merge_resolves_only_content_conflicts_of_union_files(depot: Depot) -> None:
    base: Files = {"CHANGES": b"1\n", "f": b"1\n"}
    ours: Files = {"CHANGES": b"1\no\n", "f": b"o\n"}
    conflict = only(united(depot, base, ours, {"CHANGES": b"1\nt\n", "f": b"t\n"}))
    assert (conflict.path, conflict.kind) == ("f", "content")
    for kind, theirs in (("binary", b"\0"), ("mode", (LINK, b"rest")), ("modify_delete", None)):
        sides = ({"CHANGES": b"1\n"}, {"CHANGES": b"2\n"}, {} if theirs is None else {"CHANGES": theirs})
        assert only(united(depot, *sides)).kind == kind


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*[st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n"]), max_size=8)] * 3))
def test_a_union_merge_equals_that_of_git_merge_file(
    depot: Depot, tmp_path: Path, three: tuple[list[bytes], ...]
) -> None:
    base, ours, theirs = (b"".join(lines) + b"end\n" for lines in three)
    for name, text in (("base", base), ("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_bytes(text)
    words = ("git", "merge-file", "-p", "--union", *(str(tmp_path / name) for name in ("ours", "base", "theirs")))
    expected = subprocess.run(words, capture_output=True, check=True).stdout
    result = united(depot, {"CHANGES": base}, {"CHANGES": ours}, {"CHANGES": theirs})
    assert content(depot, result, "CHANGES") == expected
