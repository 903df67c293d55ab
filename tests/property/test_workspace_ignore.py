"""Our reading of .gitignore and of attributes equals git's: the same untracked files, blobs and written files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples, git

from chargehand.workspace.tree.attributes import AttributeChain
from chargehand.workspace.tree.conversion import Conversion, ConversionError
from chargehand.workspace.tree.ignore import IgnoreChain, IgnoreFile
from chargehand.workspace.tree.objects import object_id

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
@example(top="*a*b\n**/a*/**/b*\n/foo**b\n", nested="**/**/b", paths=["aab", "a/ab/foo/b", "foo.o/b", "a/a/b"])
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


_HOSTILE = """
import sys
from chargehand.workspace.tree.ignore import IgnoreFile
pattern, path = (text.encode() for text in sys.argv[1:])
print(IgnoreFile(pattern).decides(path, directory=False))
"""


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*a*a*a*b", "a" * 200),
        ("a*a*a*a*a*a*a*a*b", "a" * 200),
        ("x/*a*a*a*a*a*a*a*a*b", "x/" + "a" * 200),
        ("*[a]*?*[!b]*a*a*a*a*b", "a" * 200),
        ("**/a/**/a/**/a/**/a/**/a/**/a/**/b", "a/" * 200 + "a"),
        ("**/*a*a*a*a/**/*a*a*a*a/**/*a*a*a*a/b", ("a" * 40 + "/") * 40 + "a"),
        ("a/**\\/a/**\\/a/**\\/a/**\\/b", "a/" * 200 + "a"),
    ],
)
def test_no_pattern_blocks_the_process(pattern: str, path: str) -> None:
    # In a separate process: a match that backtracks for hours could not be interrupted.
    done = subprocess.run(
        [sys.executable, "-c", _HOSTILE, pattern, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("None\n", 0), done.stderr


@pytest.mark.parametrize(
    ("patterns", "path", "included"),
    [
        ("out", "a/out/b", True),
        ("/out", "a/out", False),
        ("build/*.txt", "build/a.txt", True),
        ("x\n!x", "x", False),
    ],
)
def test_rules_include_a_path_by_itself_or_its_parents(patterns: str, path: str, included: bool) -> None:
    rules = IgnoreFile(patterns.encode())
    assert rules.includes(path.encode(), directory=False) is included


@given(pattern=_PATTERNS, path=_PATHS)
@settings(max_examples=examples(100), deadline=None)
def test_parents_of_included_paths_may_match_below(pattern: str, path: str) -> None:
    rules = IgnoreFile(pattern.encode())
    if rules.includes(path.encode(), directory=False):
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        matched = [place for place in above if rules.includes(place.encode(), directory=True)]
        for place in above:
            assert rules.may_match_below(place.encode()) or matched


_FILES_AT = ("a.bat", "b.txt", "d/a.bat", "d/c d.txt", "d/e/b.txt", "x")
_ATTRIBUTE_PATTERNS = st.sampled_from(
    [
        *(
            "*",
            "*.bat",
            "*.txt",
            "a.bat",
            "/a.bat",
            "d/*",
            "d/**",
            "d/",
            "**/b.txt",
            "e/b.txt",
            "!x",
            "[ab].*",
            "x",
        ),
        *('"d/c d.txt"', '"c\\040d.txt"', '"open', "\\x", "#x"),
        *("[attr]mine", "[attr]binary", "[attr]bad/name", "[attr]"),
    ]
)
_STATES = st.sampled_from(
    [
        *(
            "text",
            "-text",
            "!text",
            "text=auto",
            "text=input",
            "text=yes",
            "crlf",
            "-crlf",
            "crlf=input",
            "eol=lf",
        ),
        *("eol=crlf", "-eol", "eol", "ident", "-ident", "binary", "-binary", "!binary", "mine", "-mine", "mine=1"),
        *("diff", "linguist-generated", "-te.xt=5", "bad/name", "-", "=", "text=auto\r", "\t"),
    ]
)
_ENCODINGS = (
    "UTF-8",
    "utf8",
    "UTF-16",
    "UTF-16LE",
    "utf16be",
    "UTF-16LE-BOM",
    "UTF-16BE-BOM",
    "utf-32",
    "UTF-32LE",
)
_OTHERS = ("latin-1", "ISO-8859-15", "SHIFT-JIS", "cp932", "nope", "")
_ENCODED = st.sampled_from(
    ["!working-tree-encoding", *(f"working-tree-encoding={name}" for name in (*_ENCODINGS, *_OTHERS))]
)
_LINES = st.tuples(
    _ATTRIBUTE_PATTERNS, st.lists(st.one_of(_STATES, _STATES, _ENCODED), min_size=1, max_size=4)
).map(lambda line: " ".join([line[0], *line[1]]))
_ATTRIBUTES = st.lists(_LINES, max_size=5).map("\n".join)
_TEXTS = st.lists(
    st.sampled_from(
        ["\n", "\r\n", "\r", "a", "é", "$Id$", "$Id: x $", "$Id:$", "$Id: a b $", "$I", "$Id:\n$", "\0"]
    )
    | st.sampled_from(["\x1a", "\x07", "\x7f", "\ufeff", "日本", "\\~", " text" * 30]),
    max_size=8,
).map("".join)
_CONTENTS = st.one_of(
    _TEXTS.map(str.encode),
    st.tuples(_TEXTS, st.sampled_from(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "shift-jis", "latin-1"])).map(
        lambda text: text[0].encode(text[1], "replace")
    ),
    st.binary(max_size=12),
)
_FILES = st.fixed_dictionaries(dict.fromkeys(_FILES_AT, _CONTENTS))
_QUICK = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def _git(place: Path, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "core.safecrlf=false", "-C", str(place), *words]
    return subprocess.run(command, env=environment, input=given, capture_output=True, check=False)


def _conversions(rules: str, inner: str) -> dict[str, Conversion | None]:
    top = AttributeChain().enter(b"", rules.encode())
    chains = {"": top, "d": top.enter(b"d/", inner.encode())}
    chains["d/e"] = chains["d"]
    return {path: chains[path.rpartition("/")[0]].conversion(path.encode()) for path in _FILES_AT}


def _write(place: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)


def _ids(place: Path) -> dict[str, str]:
    listed = _git(place, "ls-files", "-s", "-z").stdout.decode().split("\0")[:-1]
    return {line.split("\t")[1]: line.split()[1] for line in listed}


@_QUICK
@given(_ATTRIBUTES, _ATTRIBUTES, _FILES, _FILES)
@example("*.bat text eol=crlf", "", dict.fromkeys(_FILES_AT, b"a\n"), dict.fromkeys(_FILES_AT, b"a\r\nb\r\n"))
def test_a_file_becomes_the_blob_that_git_adds(
    rules: str, inner: str, stored: dict[str, bytes], files: dict[str, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        _git(place, "init", "-q")
        # As a base holds them, whatever its attributes say; then the rules, and the changed files.
        _write(place, stored)
        _git(place, "add", "-A")
        old = {path: object_id("blob", content).hex() for path, content in stored.items()}
        assert _ids(place) == old
        _write(place, {".gitattributes": rules.encode(), "d/.gitattributes": inner.encode(), **files})
        for path, conversion in _conversions(rules, inner).items():
            done = _git(place, "-c", "core.fsmonitor=false", "add", "--", path)
            # git does not read an unchanged file again.
            if files[path] == stored[path] or b"are no valid working-tree-encodings" in done.stderr:
                continue
            try:
                was = stored[path]
                made = files[path] if conversion is None else conversion.to_blob(files[path], lambda was=was: was)
            except ConversionError:
                assert done.returncode, (path, conversion)
                continue
            assert not done.returncode, (path, conversion, done.stderr)
            assert _ids(place)[path] == object_id("blob", made).hex(), (path, conversion)


@_QUICK
@given(rules=_ATTRIBUTES, inner=_ATTRIBUTES, blobs=_FILES)
def test_a_blob_becomes_the_file_that_git_checks_out(rules: str, inner: str, blobs: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        _git(place, "init", "-q")
        _write(place, blobs)
        _git(place, "add", "-A")
        _write(place, {".gitattributes": rules.encode(), "d/.gitattributes": inner.encode()})
        done = _git(place, "checkout-index", "--all", "--prefix=out/")
        if b"are no valid working-tree-encodings" in done.stderr:
            return
        for path, conversion in _conversions(rules, inner).items():
            blob = blobs[path]
            made = blob if conversion is None else conversion.to_file(blob, object_id("blob", blob))
            assert (place / "out" / path).read_bytes() == made, (path, conversion)
