"""Our reading of attributes and our conversions are git's: the same blobs of files, the same files of blobs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chargehand.workspace.tree.attributes import AttributeChain
from chargehand.workspace.tree.conversion import Conversion, ConversionError
from chargehand.workspace.tree.objects import object_id

_PATHS = ("a.bat", "b.txt", "d/a.bat", "d/c d.txt", "d/e/b.txt", "x")
_PATTERNS = st.sampled_from(
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
_LINES = st.tuples(_PATTERNS, st.lists(st.one_of(_STATES, _STATES, _ENCODED), min_size=1, max_size=4)).map(
    lambda line: " ".join([line[0], *line[1]])
)
_RULES = st.lists(_LINES, max_size=5).map("\n".join)
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
_FILES = st.fixed_dictionaries(dict.fromkeys(_PATHS, _CONTENTS))
_QUICK = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def _git(place: Path, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "core.safecrlf=false", "-C", str(place), *words]
    return subprocess.run(command, env=environment, input=given, capture_output=True, check=False)


def _conversions(rules: str, inner: str) -> dict[str, Conversion | None]:
    top = AttributeChain().enter(b"", rules.encode())
    chains = {"": top, "d": top.enter(b"d/", inner.encode())}
    chains["d/e"] = chains["d"]
    return {path: chains[path.rpartition("/")[0]].conversion(path.encode()) for path in _PATHS}


def _write(place: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)


def _ids(place: Path) -> dict[str, str]:
    listed = _git(place, "ls-files", "-s", "-z").stdout.decode().split("\0")[:-1]
    return {line.split("\t")[1]: line.split()[1] for line in listed}


@_QUICK
@given(_RULES, _RULES, _FILES, _FILES)
@example("*.bat text eol=crlf", "", dict.fromkeys(_PATHS, b"a\n"), dict.fromkeys(_PATHS, b"a\r\nb\r\n"))
def test_a_file_becomes_the_blob_that_git_adds(
    rules: str, inner: str, stored: dict[str, bytes], files: dict[str, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        _git(place, "init", "-q")
        # As a base holds them, whatever its attributes say; then the rules, and the files as they were changed.
        _write(place, stored)
        _git(place, "add", "-A")
        old = {path: object_id("blob", content).hex() for path, content in stored.items()}
        assert _ids(place) == old
        _write(place, {".gitattributes": rules.encode(), "d/.gitattributes": inner.encode(), **files})
        for path, conversion in _conversions(rules, inner).items():
            done = _git(place, "-c", "core.fsmonitor=false", "add", "--", path)
            # An unchanged file is not looked at again.
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
@given(rules=_RULES, inner=_RULES, blobs=_FILES)
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
