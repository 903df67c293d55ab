"""The index: each blob is parsed once, a tree is complete or absent, and several writers agree."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.knowledge_kit import MapKit
from tests.trees_kit import GITLINK, LINK, make_tree
from tests.unit.test_map_extraction import Stopper

from chargehand.core.errors import NotFoundError
from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.maps import RepositoryMap
from chargehand.knowledge.records import MapError
from chargehand.workspace.depot import Depot
from chargehand.workspace.space import gc

FILES = {"a.py": "def one(): ...\n", "b/c.py": "from a import one\n\ndef two():\n    one()\n"}


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[MapKit]:
    made = MapKit(tmp_path)
    yield made
    made.index.close()


def content(made: RepositoryMap) -> list[tuple[str, str, int]]:
    """Return all definitions of a map's tree."""
    with made._graph() as graph:
        files = sorted(graph.files_at(""), key=graph.path_of) if graph.files else []
        return [(row.path, row.qualified, row.line) for file in files for row in graph.definitions_in(file)]


def test_a_blob_is_parsed_once(kit: MapKit) -> None:
    tree = kit.tree(FILES)
    assert kit.index.bring(tree).parsed == 2
    assert kit.index.bring(tree).parsed == 0
    changed = kit.tree({**FILES, "a.py": "def three(): ...\n"})
    assert kit.index.bring(changed).parsed == 1
    moved = kit.tree({"d.py": FILES["a.py"], "b/e.py": FILES["b/c.py"]})
    assert kit.index.bring(moved).parsed == 0
    with CodeIndex(kit.root, kit.depot) as other:
        assert other.bring(tree).parsed == 0


# Text, for which no parser process has to start.
NAMES = st.sampled_from(["a.md", "b.md", "d/a.md", "d/e/c.toml", "e"])
TEXTS = st.sampled_from(["", "one", "two words", "three more words"])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.dictionaries(NAMES, TEXTS, max_size=5), min_size=2, max_size=8))
def test_moving_between_trees_equals_the_trees(
    tmp_path_factory: pytest.TempPathFactory, trees: list[dict[str, str]]
) -> None:
    kit = MapKit(tmp_path_factory.mktemp("map"))
    maps = [(kit.map(files), files) for files in trees]
    for made, files in maps:  # again, since slots were moved meanwhile
        made.bring()
        with made._graph() as graph:
            indexed = {graph.path_of(file) for file in graph.files_at("")}
            found = {graph.path_of(file) for file in graph.match_words(["words"], most=9)}
        assert indexed == set(files)
        assert found == {path for path, text in files.items() if "words" in text and "." in path}
        assert sorted(made.rank("three more words")) == sorted(found)
    kit.index.close()


def test_without_time_the_map_is_incomplete_and_continues_later(kit: MapKit) -> None:
    made = RepositoryMap(kit.index, kit.tree(FILES))
    assert not made.bring(seconds=0).complete
    with pytest.raises(MapError) as raised:
        made.render("one")
    assert raised.value.code == "map_not_ready"
    assert made.bring().complete
    assert content(made) == [("a.py", "one", 1), ("b/c.py", "two", 3)]


def test_another_writer_is_waited_for_until_the_time_is_up(kit: MapKit) -> None:
    tree = kit.tree(FILES)
    with CodeIndex(kit.root, kit.depot) as other, other._writing(None):
        assert not kit.index.bring(tree, seconds=0.01).complete
    assert kit.index.bring(tree).complete


def test_closing_ends_the_work_of_another_thread(kit: MapKit) -> None:
    tree = kit.tree({f"m{n}.py": f"def f{n}(): ...\n" for n in range(1000)})
    began, done = threading.Event(), list[bool]()

    class Announcing:
        """The depot, which says when its first blob is read."""

        entries, diff, blob_size = kit.depot.entries, kit.depot.diff, kit.depot.blob_size

        def read_blob(self, id: str) -> bytes:
            began.set()
            return kit.depot.read_blob(id)

    kit.index.source = Announcing()
    thread = threading.Thread(target=lambda: done.append(kit.index.bring(tree).complete))
    thread.start()
    assert began.wait(30)
    kit.index.close()
    thread.join()
    assert done == [False]
    assert 0 < kit.index.bring(tree).parsed <= 1000


def test_two_writers_at_once_make_one_index(kit: MapKit) -> None:
    trees = [kit.tree({f"m{n}.py": f"def f{n + shift}(): ...\n" for n in range(30)}) for shift in (0, 5)]
    problems: list[Exception] = []

    def bring(tree: str) -> None:
        try:
            with CodeIndex(kit.root, kit.depot) as own:
                for _ in range(3):
                    assert own.bring(tree).complete
                    assert len(content(RepositoryMap(own, tree))) == 30
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=bring, args=(tree,)) for tree in trees * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    (blobs,) = kit.index.connection.execute("SELECT count(*) FROM blob").fetchone()
    assert blobs == 35


@pytest.mark.parametrize("content", [None, b"not a database" * 100])
def test_many_processes_open_a_new_file_at_once(tmp_path: Path, content: bytes | None) -> None:
    """Each of several processes opens the same files, which are missing or damaged, with several threads."""
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from chargehand.knowledge._database import open_database\n"
        "barrier = threading.Barrier(3)\n"
        "def open_all():\n"
        "    for number in range(40):\n"
        "        barrier.wait(60)\n"
        "        made = open_database(Path(sys.argv[1], str(number), 'index.sqlite'), Path(sys.argv[1], 'lock'))\n"
        "        made.execute('INSERT INTO name (text) VALUES (?)', (f'{sys.argv[2]}-{threading.get_ident()}',))\n"
        "        made.close()\n"
        "threading.excepthook = lambda found: (print(found.exc_value, flush=True), barrier.abort())\n"
        "sys.stdin.read()\n"  # until all processes have started
        "threads = [threading.Thread(target=open_all) for _ in range(3)]\n"
        "[each.start() for each in threads]\n"
        "[each.join() for each in threads]\n"
    )
    if content is not None:
        for number in range(40):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "index.sqlite").write_bytes(content)
    words = [sys.executable, "-c", program, str(tmp_path)]
    pipe = subprocess.PIPE
    children = [subprocess.Popen([*words, str(number)], stdin=pipe, stdout=pipe) for number in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
        child.stdin = None
    assert [(child.communicate()[0], child.returncode) for child in children] == [(b"", 0)] * 4
    for number in range(40):
        with closing(sqlite3.connect(tmp_path / str(number) / "index.sqlite")) as made:
            assert made.execute("SELECT count(*) FROM name").fetchone() == (12,)


def test_a_damaged_file_is_made_again(kit: MapKit) -> None:
    tree = kit.tree(FILES)
    kit.index.bring(tree)
    kit.index.close()
    kit.index.path.write_bytes(b"not a database" * 100)
    kit.index.path.with_name(kit.index.path.name + "-wal").unlink(missing_ok=True)
    assert kit.index.bring(tree).parsed == 2


def test_gc_removes_an_old_index_which_is_then_made_again(kit: MapKit) -> None:
    tree = kit.tree(FILES)
    kit.index.bring(tree)
    size = kit.index.path.stat().st_size
    kept = gc([kit.root], pack=False)
    assert kept.projects[0].layers == ()
    removed = gc([kit.root], now=10**12, pack=False)
    assert removed.projects[0].layers == (kit.index.directory.name,)
    assert removed.bytes >= size
    assert not kit.index.directory.exists()
    other = kit.tree({"z.py": "def z(): ...\n"})
    assert kit.index.bring(other).complete
    assert content(RepositoryMap(kit.index, other)) == [("z.py", "z", 1)]


def test_links_and_submodules_are_not_counted(kit: MapKit) -> None:
    files = {f"{number}.md": "one" for number in range(3)}
    others = {f"link{n}": (LINK, b"0.md") for n in range(4)} | {
        f"module{n}": (GITLINK, bytes(20)) for n in range(4)
    }
    for tree, count in (({**files, **others}, 3), (files, 3), (others, 0), ({**files, **others}, 3), (files, 3)):
        assert kit.index.bring(kit.tree(tree)).files == count


def test_a_failure_of_the_machine_is_named_and_tried_again(kit: MapKit) -> None:
    """A file whose parser was killed is parsed by a later call; after three calls the failure is final."""
    slow = {"a.py": "(\n" * 100_000, "b.py": "def b(): ...\n"}
    tree = kit.tree(slow)
    kit.index.close()
    kit.index = CodeIndex(kit.root, kit.depot, seconds=2)
    kit.index.bring(kit.tree({"c.py": "def c(): ...\n"}))  # its parser process goes on
    with Stopper(kit.index._parsers[0], signal.SIGSTOP):
        first = kit.index.bring(tree)
        assert first.complete
        assert [(each.path, "tried again" in each.reason) for each in first.skipped] == [("a.py", True)]
        second = kit.index.bring(tree)
        assert (second.parsed, second.complete, [each.path for each in second.skipped]) == (1, True, ["a.py"])
        third = kit.index.bring(tree)
        assert [(each.path, "tried again" in each.reason) for each in third.skipped] == [("a.py", False)]
    assert kit.index.bring(tree).parsed == 0
    assert content(RepositoryMap(kit.index, tree)) == [("b.py", "b", 1)]


def test_a_file_that_failed_once_is_read_later(kit: MapKit) -> None:
    source = "def f(): ...\n" + "f(1)\n" * 30_000
    tree = kit.tree({"a.py": source})
    kit.index.bring(kit.tree({"c.py": "def c(): ...\n"}))
    with Stopper(kit.index._parsers[0], signal.SIGKILL):
        assert [each.path for each in kit.index.bring(tree).skipped] == ["a.py"]
        assert content(RepositoryMap(kit.index, tree)) == []
    assert (kit.index.bring(tree).parsed, kit.index.bring(tree).skipped) == (1, ())
    assert content(RepositoryMap(kit.index, tree)) == [("a.py", "f", 1)]


def test_the_list_of_skipped_files_says_how_many_it_lacks(kit: MapKit) -> None:
    summary = kit.index.bring(kit.tree({f"{number}.py": b"\0" + str(number).encode() for number in range(130)}))
    assert (len(summary.skipped), summary.skipped_left_out) == (100, 30)


def test_a_tree_whose_objects_were_erased_stops_no_later_one(kit: MapKit) -> None:
    kit.index.bring(kit.tree(FILES))
    kit.index.close()
    kit.depot.git("gc", "--quiet", "--prune=now")  # as after the erasure of checkpoints: no ref names the tree
    depot = Depot.open(kit.root, repository=kit.depot.repository)  # without cached trees
    other = make_tree(depot, {"z.py": b"def z(): ...\n"})
    with CodeIndex(kit.root, depot) as index:
        assert index.bring(other).complete
        assert content(RepositoryMap(index, other)) == [("z.py", "z", 1)]


def test_unused_blobs_are_removed_once_there_are_many(kit: MapKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.knowledge.index._MOST_UNUSED", 4)
    for number in range(12):
        kit.index.bring(kit.tree({"a.py": f"def f{number}(): ...\n"}))
    (blobs,) = kit.index.connection.execute("SELECT count(*) FROM blob").fetchone()
    assert blobs <= 6
    (definitions,) = kit.index.connection.execute("SELECT count(*) FROM definition").fetchone()
    assert definitions <= 6


def test_fifty_thousand_files(kit: MapKit) -> None:
    blobs = [f"def f{number}(): ...\n" for number in range(50)]
    made = kit.map({f"d{number % 97}/m{number}.py": blobs[number % 50] for number in range(50_000)})
    summary = made.bring()
    assert (summary.files, summary.complete) == (50_000, True)
    assert len(made.render("f7 m7").encode()) <= 8000


@pytest.mark.parametrize("place", ["maps", "locks", "locks/layer-{name}.lock", "maps/{name}/meta.json"])
def test_a_disk_that_refuses_is_an_error_with_a_code(kit: MapKit, place: str) -> None:
    """Whichever of its files the index cannot write; a full disk refuses all of them."""
    tree = kit.tree(FILES)
    obstacle = kit.root / place.format(name=kit.index.directory.name)
    shutil.rmtree(obstacle, ignore_errors=True)
    if "/" in place:
        obstacle.mkdir(parents=True)
    else:
        obstacle.write_text("a file in the way")
    with pytest.raises(MapError) as raised:
        kit.index.bring(tree)
    assert raised.value.code == "map_failed"


def test_an_unknown_tree_is_an_error_and_leaves_the_index_usable(kit: MapKit) -> None:
    with pytest.raises(NotFoundError):
        kit.index.bring("1" * 40)
    assert kit.index.bring(kit.tree(FILES)).complete
    assert os.path.exists(kit.index.path)
