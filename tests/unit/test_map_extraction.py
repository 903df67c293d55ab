"""Definitions and references of each language, and of odd files; the parser process keeps faults to itself."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.knowledge_kit import MapKit
from tests.trees_kit import EXECUTABLE, GITLINK, LINK

from chargehand.knowledge._parser_process import ParserProcess
from chargehand.knowledge.records import MapError

SOURCES = {
    "a.py": (
        "class Shelf:\n    size = 3\n    def put(self, book):\n        return check(book)\n\n"
        "def check(book): ...\n",
        {"class Shelf", "field Shelf.size", "method Shelf.put", "function check"},
        ("check", "Shelf.put"),
    ),
    "a.js": (
        "class Shelf { put(book) { return check(book) } }\nconst check = (book) => true\n"
        "export function open() {}\n",
        {"class Shelf", "method Shelf.put", "function check", "function open"},
        ("check", "Shelf.put"),
    ),
    "a.ts": (
        "interface Book { id: number }\nexport class Shelf { put(b: Book) { return check(b) } }\n"
        "enum Kind { A }\n"
        "function check(b: Book): boolean { return true }\ntype Id = number\n",
        {"interface Book", "class Shelf", "method Shelf.put", "enum Kind", "function check", "type Id"},
        ("check", "Shelf.put"),
    ),
    "a.tsx": ("export function Page() { return <div>{title()}</div> }\n", {"function Page"}, ("title", "Page")),
    "a.go": (
        "package a\ntype Shelf struct{}\nfunc (s *Shelf) Put(b int) bool { return check(b) }\n"
        "func check(b int) bool { return true }\nconst Most = 3\n",
        {"type Shelf", "method Shelf.Put", "function check", "constant Most"},
        ("check", "Shelf.Put"),
    ),
    "a.rs": (
        "struct Shelf;\nimpl Shelf { fn put(&self) -> bool { check() } }\nfn check() -> bool { true }\n"
        "#[test]\nfn holds() { check(); }\n",
        {"struct Shelf", "method Shelf.put", "function check", "test holds"},
        ("check", "Shelf.put"),
    ),
    "A.java": (
        "class Shelf {\n  int size;\n  boolean put(int b) { return check(b); }\n  @Test void holds() {}\n}\n",
        {"class Shelf", "field Shelf.size", "method Shelf.put", "test Shelf.holds"},
        ("check", "Shelf.put"),
    ),
    "a.c": (
        "#define MOST 3\nstruct shelf { int size; };\nstatic int *put(int b)\n{\n  return check(b);\n}\n",
        {"macro MOST", "struct shelf", "function put"},
        ("check", "put"),
    ),
    "a.cpp": (
        "namespace lib {\nclass Shelf { void put(); int size() { return 1; } };\n"
        "void Shelf::put() { check(); }\n}\n",
        {"class lib.Shelf", "method lib.Shelf.size", "method lib.Shelf.put"},
        ("check", "lib.Shelf.put"),
    ),
    "a.rb": (
        "module Lib\n  class Shelf\n    def put(book)\n      check(book)\n    end\n  end\nend\n",
        {"module Lib", "class Lib.Shelf", "method Lib.Shelf.put"},
        ("check", "Lib.Shelf.put"),
    ),
    "a.php": (
        "<?php\nclass Shelf { function put($b) { return check($b); } }\nfunction check($b) { return true; }\n",
        {"class Shelf", "method Shelf.put", "function check"},
        ("check", "Shelf.put"),
    ),
    "a.cs": (
        "namespace Lib { class Shelf { bool Put(int b) { return Check(b); } } }\n",
        {"class Lib.Shelf", "method Lib.Shelf.Put"},
        ("Check", "Lib.Shelf.Put"),
    ),
    "a.sh": ("put() {\n  check one\n}\n", {"function put"}, ("check", "put")),
}


@pytest.fixture
def parser() -> Iterator[ParserProcess]:
    made = ParserProcess()
    yield made
    made.close()


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[MapKit]:
    made = MapKit(tmp_path)
    yield made
    made.index.close()


def test_each_language_has_its_definitions_and_calls(kit: MapKit) -> None:
    made = kit.map({path: text for path, (text, _, _) in SOURCES.items()})
    with made._graph() as graph:
        for path, (_, definitions, _) in SOURCES.items():
            (file,) = graph.files_at(path)
            assert {f"{row.kind} {row.qualified}" for row in graph.definitions_in(file)} == definitions, path
    for path, (_, _, (callee, caller)) in SOURCES.items():
        assert (path, caller) in {(hit.path, hit.name) for hit in made.who_calls(callee).hits}, path


def _defined(source: str) -> set[tuple[str, int]]:
    """Return the classes and functions of a Python file by `ast`: names with lines."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {(node.name, node.lineno) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def _called(source: str) -> set[tuple[str, int]]:
    """Return the called names with the lines of the names, for calls by name or attribute."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add((node.func.id, node.func.lineno))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found.add((node.func.attr, node.func.end_lineno or 0))
    return found


@pytest.mark.parametrize("package", ["click", "httpx"])
def test_an_installed_package_agrees_with_ast(package: str, parser: ParserProcess) -> None:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    counts = dict.fromkeys(("definitions", "found", "right", "calls", "found calls", "right calls"), 0)
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        source = path.read_text()
        parsed = parser.parse("python", source.encode())
        # A decorated definition begins at its decorators for `ast` before 3.8 only: lines are those of `def`.
        ours = {(d.name, d.line) for d in parsed.definitions if d.kind not in ("constant", "field", "type")}
        theirs = _defined(source)
        calls = {(r.name, r.line) for r in parsed.references if r.kind == "call"}
        decorators = {(name, line) for name, line in calls if source.split("\n")[line - 1].strip().startswith("@")}
        counts["definitions"] += len(theirs)
        counts["found"] += len(ours)
        counts["right"] += len(ours & theirs)
        counts["calls"] += len(_called(source))
        counts["found calls"] += len(calls - decorators | calls & _called(source))
        counts["right calls"] += len(calls & _called(source))
    assert counts["definitions"] > 300
    assert counts["right"] >= 0.99 * counts["definitions"]
    assert counts["right"] >= 0.99 * counts["found"]
    assert counts["right calls"] >= 0.95 * counts["calls"]
    assert counts["right calls"] >= 0.95 * counts["found calls"]


def test_odd_files_are_skipped_with_a_reason_or_read_as_far_as_possible(kit: MapKit) -> None:
    files = {
        "huge.py": b"x = 1\n" * 400_000,
        "minified.js": b"function a(){return 1};" * 2_000,
        "binary.py": b"\0\1\2" * 100,
        "broken.py": "def kept(): ...\n\ndef half(:\n  (((\n\ndef later(): ...\n",
        "latin.py": "# caf\xe9\ndef latin(): ...\n".encode("latin-1"),
        "wide.py": "def wide(): ...\n".encode("utf-16"),
        "marked.py": "\ufeffdef marked(): ...\n",
        "empty.py": b"",
        "tool": (EXECUTABLE, b"#!/usr/bin/env python3\ndef script(): ...\n"),
        "link.py": (LINK, b"broken.py"),
        "module": (GITLINK, bytes(20)),
        os.fsdecode(b"odd\xff\n.py"): "def odd(): ...\n",
    }
    made = kit.map(files)
    skipped = {each.path: each.reason for each in kit.index.skipped(made.tree)}
    assert skipped.keys() == {"huge.py", "minified.js", "binary.py"}
    assert all(skipped.values())
    for name in ("kept", "latin", "wide", "marked", "script", "odd"):
        assert [hit.name for hit in made.search_code(name).hits][:1] == [name]
    assert made.search_code("odd").hits[0].path == os.fsdecode(b"odd\xff\n.py")
    assert made.rank("link") == []


def test_a_hundred_megabytes_are_not_read(kit: MapKit, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class Large:
        """A source with one file of 100 MB."""

        entries, diff = kit.depot.entries, kit.depot.diff

        def blob_size(self, id: str) -> int:
            return 100_000_000

        def read_blob(self, id: str) -> bytes:
            read.append(id)
            return b""

    kit.index.source = Large()
    made = kit.map({"a.py": "x = 1\n"})
    assert [each.path for each in kit.index.skipped(made.tree)] == ["a.py"]
    assert read == []


def test_a_crash_or_a_hang_of_the_parser_costs_one_file(parser: ParserProcess) -> None:
    assert "ended at it" in parser.parse("no such language", b"x").skipped
    assert parser.parse("python", b"def f(): ...\n").definitions
    os.kill(parser.pid, signal.SIGKILL)  # as the kernel does when memory is short
    assert parser.parse("python", b"def g(): ...\n").definitions
    slow = ParserProcess(seconds=0.5)
    assert "took longer" in slow.parse("python", b"(" * 200_000).skipped  # the grammar takes minutes for it
    slow.close()


def test_a_parser_that_is_killed_or_starved_may_be_tried_again(parser: ParserProcess) -> None:
    """Only a fault of the file itself is final: not one of the machine."""
    assert not parser.parse("no such language", b"x").transient
    slow = ParserProcess(seconds=2)
    slow.parse("python", b"")
    stopped, killed = Stopper(slow, signal.SIGSTOP), Stopper(slow, signal.SIGKILL)
    with stopped:  # it gets nothing of the processor, as under a heavy load
        found = slow.parse("python", b"(" * 200_000)
        assert ("took longer" in found.skipped, found.transient) == (True, True)
    with killed:
        found = slow.parse("python", b"(" * 200_000)
        assert ("killed" in found.skipped, found.transient) == (True, True)
    slow.close()


class Stopper:
    """Sends a signal to each process of a parser as soon as it parses."""

    def __init__(self, parser: ParserProcess, number: signal.Signals) -> None:
        self._parser, self._number = parser, number
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        began: dict[int, float] = {}
        while not self._done.wait(0.001):
            child = self._parser._child
            with contextlib.suppress(OSError):
                # Once it may call nothing, it only waits or parses.
                if child is not None and "Seccomp:\t2" in Path(f"/proc/{child.pid}/status").read_text():
                    used = time.clock_gettime(~child.pid << 3 | 2)
                    if used - began.setdefault(child.pid, used) > 0.05:
                        os.kill(child.pid, self._number)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="the packages are those of the system")
def test_packages_of_the_user_are_found(tmp_path: Path) -> None:
    """The interpreter outside the environment has all packages as those of `pip install --user`."""
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    words = [str(python), "-c", "import site; print(site.getusersitepackages())"]
    place = Path(subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout.strip())
    place.mkdir(parents=True)
    (place / "all.pth").write_text("".join(f"{each}\n" for each in sys.path if Path(each).is_dir()))
    program = (
        "from chargehand.knowledge._parser_process import ParserProcess\n"
        "parser = ParserProcess()\n"
        "print(parser.parse('python', b'def f(): ...').definitions[0].name)\n"
        "parser.close()\n"
    )
    done = subprocess.run([str(python), "-c", program], env=environ, capture_output=True, text=True, cwd="/")
    assert (done.stdout, done.stderr) == ("f\n", "")


def test_the_parser_process_is_bounded(parser: ParserProcess) -> None:
    parser.parse("python", b"")
    limits = Path(f"/proc/{parser.pid}/limits").read_text()
    assert "1073741824" in next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert Path(f"/proc/{parser.pid}/environ").read_bytes() == b""
    status = Path(f"/proc/{parser.pid}/status").read_text()
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status


def test_a_parser_that_does_not_start_skips_no_file(kit: MapKit, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = kit.tree({"a.py": "def f(): ...\n"})
    with monkeypatch.context() as broken:
        broken.setattr("sys.executable", "/bin/false")
        with pytest.raises(MapError, match="does not start"):
            kit.index.bring(tree)
    assert kit.index.bring(tree).skipped == ()
