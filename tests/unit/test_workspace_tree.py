"""Parts of trees: names and link targets that agents may not use, objects, sizes on disk."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.trees_kit import make_tree
from tests.workspace_kit import WorkspaceKit

from chargehand.workspace.host.files import tree_bytes
from chargehand.workspace.tree import objects
from chargehand.workspace.tree.history import Author
from chargehand.workspace.tree.names import is_git_disguise, link_problem, name_problem, passes_for_repository
from chargehand.workspace.tree.objects import ObjectWriter


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".GIT",
        ".gIt",
        "git~1",
        "GIT~1",
        ".git ",
        ".git.",
        ".git . .",
        ".git::$INDEX_ALLOCATION",
        ".git:x",
        "x\\.git",
        ".git\\x",
        ".g\u200cit",
        "\u200d.git",
        ".git\ufeff",
        ".g\u202eit",
        ".git\u206f",
    ],
)
def test_disguises_of_the_git_directory(name: str) -> None:
    assert is_git_disguise(name.encode())


@pytest.mark.parametrize("name", [".gitignore", ".gitmodules", "git", "git~2", ".gi", "x.git", ".git-x", "..git"])
def test_names_that_only_resemble_dot_git_are_accepted(name: str) -> None:
    assert not is_git_disguise(name.encode())


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b".",
        b"..",
        b"a/b",
        b"a\nb",
        b"a\tb",
        b"a\x1bb",
        b"a\x7f",
        b"\xff",
        b"\xc3",
        b"x" * 256,
        b"a\\..\\b",
        "a\u202eb".encode(),
        "a\u2066b".encode(),
        "a\x85b".encode(),
    ],
)
def test_names_that_are_refused(name: bytes) -> None:
    assert name_problem(name)


@pytest.mark.parametrize(
    "name", ["a", "a b", "ü", "日本", "a\\b", "-x", "~", "...", "x" * 255, ":x", "*", "a'\"b"]
)
def test_names_that_are_let_in(name: str) -> None:
    assert name_problem(name.encode()) == ""


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("l", "/etc/passwd"),
        ("l", "/workspace/README.md"),
        ("l", ".."),
        ("l", "../workspace/x"),
        ("a/l", "../.."),
        ("a/l", "../../repo-evil/x"),
        ("a/b/l", "../../../x"),
        ("l", "a/../x"),
        ("l", "a/../../x"),
        ("l", "./../x"),
        ("l", ".git/hooks"),
        ("a/l", "../.GIT/config"),
    ],
)
def test_targets_that_are_refused(path: str, target: str) -> None:
    assert link_problem(path.encode(), target.encode())


@pytest.mark.parametrize(
    ("path", "target"),
    [("l", "x"), ("l", "./x//y"), ("a/l", "../x"), ("a/b/l", "../../x"), ("l", "."), ("a/l", "..")],
)
def test_link_targets_inside_the_tree_are_accepted(path: str, target: str) -> None:
    assert link_problem(path.encode(), target.encode()) == ""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({b"HEAD", b"objects", b"refs"}, True),
        ({b"HEAD", b"commondir"}, True),
        ({b"HEAD", b"objects", b"refs", b"config", b"x"}, True),
        ({b"objects", b"refs", b"config"}, False),
        ({b"HEAD", b"refs"}, False),
        ({b"head", b"objects", b"refs"}, False),
    ],
)
def test_bare_repositories_are_detected_as_by_git(names: set[bytes], expected: bool, tmp_path: Path) -> None:
    assert passes_for_repository(names) == expected
    if b"commondir" in names:
        return
    for name in names:
        place = tmp_path / os.fsdecode(name)
        if name in (b"objects", b"refs"):
            place.mkdir()
        else:
            place.write_text("ref: refs/heads/main\n" if name == b"HEAD" else "")
    asked = subprocess.run(
        ["git", "rev-parse", "--git-dir"], cwd=tmp_path, capture_output=True, env={"PATH": os.environ["PATH"]}
    )
    assert (asked.returncode == 0) == expected


def test_no_name_breaks_the_line_of_an_author() -> None:
    written = Author(name="A <b>\n\0", email="a@b>\n", when=datetime(2026, 1, 1, tzinfo=UTC))
    assert written.line() == "A b <a@b> 1767225600 +0000"


def test_objects_of_a_failed_block_are_not_written(tmp_path: Path) -> None:
    depot = WorkspaceKit(tmp_path).depot()
    with suppress(RuntimeError), ObjectWriter(depot.path / "objects") as writer:
        raw = writer.add("blob", b"never kept")
        raise RuntimeError
    assert depot.git.run("cat-file", "-e", raw.hex()).code != 0


def test_a_recently_read_tree_stays_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depot = WorkspaceKit(tmp_path).depot()
    found = [bytes.fromhex(make_tree(depot, {"number": b"%d" % number})) for number in range(4)]
    monkeypatch.setattr(objects, "_CACHED_TREES", 2)
    reader, read = depot.reader, []
    original = reader.read
    monkeypatch.setattr(reader, "read", lambda raw: (read.append(raw), original(raw))[1])
    for tree in found[1:]:
        reader.tree(found[0])
        reader.tree(tree)
    assert read.count(found[0]) == 1


def test_blocks_count_and_not_sizes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "whole").write_bytes(os.urandom(100_000))
    os.link(tmp_path / "whole", tmp_path / "again")
    assert tree_bytes(tmp_path) == (3, (tmp_path / "whole").stat().st_blocks * 512)
    assert tree_bytes(tmp_path, shared=False)[1] == 0
    assert tree_bytes(tmp_path, stop=(1, 1 << 50))[0] == 2, "no more is looked at than is asked for"
