"""Names and link targets that agents may not bring in."""

from __future__ import annotations

import pytest

from chargehand.workspace.tree.names import is_git_disguise, link_problem, name_problem


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
def test_names_that_only_look_alike(name: str) -> None:
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
def test_targets_that_stay_inside(path: str, target: str) -> None:
    assert link_problem(path.encode(), target.encode()) == ""
