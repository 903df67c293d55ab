"""Our reading of `.gitignore` is git's: the same files are found untracked, whatever the rules say."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples, git

from chargehand.workspace.tree.ignore import IgnoreChain, IgnoreFile

_NAMES = st.sampled_from(
    ["a", "b", "ab", "foo", "foo.o", "b.txt", "a b", "x#", "!x", "a\\b", "[a]", "*", "é", "a]"]
)
_PIECES = st.sampled_from(
    [
        "a",
        "b",
        "foo",
        "*",
        "**",
        "?",
        "/",
        "/",
        ".o",
        "[ab]",
        "[!a]",
        "[^b]",
        "[a-c]",
        "[]a]",
        "[[:alpha:]]",
        "\\a",
        "\\",
        "[",
        "]",
        "!",
        "#",
        "é",
        "[a",
        "[[:nope:]]",
        "[a-]",
        "[-b]",
        "**/",
        "/**",
        "[\\]a]",
        "\r",
        "\t",
        " ",
        "\\ ",
    ]
)
_PATTERNS = st.lists(_PIECES, min_size=1, max_size=5).map("".join)
_STARTS = st.sampled_from(["", "", "", "!", "/", "#"])
_ENDS = st.sampled_from(["", "", "/", "/**", " "])
_RULES = st.lists(st.tuples(_STARTS, _PATTERNS, _ENDS).map("".join), max_size=5).map("\n".join)
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ignore")
    git(place, "init", "-q")
    return place


def _git_ignores(repository: Path, work: Path, paths: set[str]) -> set[str]:
    where = [f"--git-dir={repository}/.git", f"--work-tree={work}", "-c", "core.excludesFile=/dev/null"]
    asked = subprocess.run(
        ["git", *where, "check-ignore", "--stdin", "-z", "--no-index"],
        input="\0".join(sorted(paths)).encode() + b"\0",
        capture_output=True,
        cwd=work,
        check=False,
    )
    assert asked.returncode in (0, 1), asked.stderr
    return {path for path in asked.stdout.decode().split("\0") if path}


def _we_ignore(rules: dict[str, bytes], files: set[str], directories: set[str]) -> Iterator[str]:
    for path in files | directories:
        parts = path.split("/")
        chain, prefix = IgnoreChain(), ""
        for depth, name in enumerate(parts):
            if prefix in rules:
                chain = chain.enter(prefix.encode(), IgnoreFile(rules[prefix]))
            here = prefix + name
            if chain.ignores(here.encode(), directory=here in directories):
                yield path
                break
            prefix = here + "/"
            assert depth < len(parts)


def _laid_out(work: Path, paths: list[str]) -> tuple[set[str], set[str]]:
    for path in paths:
        place = work / path
        if not any(parent.is_file() for parent in place.parents) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    found = {str(path.relative_to(work)): path.is_dir() for path in work.rglob("*")}
    return {path for path, directory in found.items() if not directory}, {p for p, d in found.items() if d}


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=_RULES, nested=_RULES, paths=st.lists(_PATHS, min_size=1, max_size=8))
@example(top="*\n!foo/", nested="", paths=["foo/a", "a/foo/b", "b"])
@example(top="a**/b", nested="", paths=["ab/foo/b", "a/b", "ab/b"])
@example(top="/a\n!/a/b", nested="", paths=["a/b", "a/foo"])
@example(top="**/a\nb/**\nfoo/**/b", nested="!a", paths=["a/a", "b/a/b", "foo/b", "foo/a/a/b"])
@example(top="a\\ \nb  \nfoo\\", nested="\ufefffoo", paths=["a b", "b", "foo", "a/foo"])
@example(top="[]a]\n[!]]", nested="", paths=["a", "a]", "b"])
def test_same_files_are_ignored(repository: Path, top: str, nested: str, paths: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        files, directories = _laid_out(work, paths)
        rules = {"": top.encode()}
        (work / ".gitignore").write_bytes(rules[""])
        if "a" in directories:
            rules["a/"] = nested.encode()
            (work / "a/.gitignore").write_bytes(rules["a/"])
        expected = _git_ignores(repository, work, files | directories)
        assert set(_we_ignore(rules, files, directories)) == expected


@pytest.mark.parametrize(
    ("patterns", "path", "included"),
    [
        ("out", "a/out/b", True),
        ("/out", "a/out", False),
        ("build/*.txt", "build/a.txt", True),
        ("x\n!x", "x", False),
    ],
)
def test_includes_a_path_or_what_lies_above_it(patterns: str, path: str, included: bool) -> None:
    rules = IgnoreFile(patterns.encode())
    assert rules.includes(path.encode(), directory=False) is included


@given(pattern=_PATTERNS, path=_PATHS)
@settings(max_examples=examples(100), deadline=None)
def test_what_is_included_is_looked_for(pattern: str, path: str) -> None:
    rules = IgnoreFile(pattern.encode())
    if rules.includes(path.encode(), directory=False):
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        matched = [place for place in above if rules.includes(place.encode(), directory=True)]
        for place in above:
            assert rules.may_match_below(place.encode()) or matched
