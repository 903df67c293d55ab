"""`chargehand library` as a person uses it, with changing, hostile, wrong and lost sources."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from command_line import Cli
from tests.library_kit import COMMIT, entries, git, write_repository
from tests.unit.test_library_licences import MIT, write_again

from chargehand.core.errors import ChargehandError, NotFoundError, RefusedError, RepositoryError
from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.library import Library

FILES = {"LICENSE": MIT, "README.md": "A zebra has stripes.\n", "zebra.py": "def count_stripes(zebra):\n    ...\n"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "source", FILES)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


def paths(library: Library, words: str) -> list[str]:
    hits, problems = library.search(words, most=100)
    assert not problems
    return [hit.path for hit in hits]


def test_a_repository_is_added_searched_updated_and_removed(tmp_path: Path, source: Path) -> None:
    cli = Cli(tmp_path / "cli")
    cli.place.mkdir(exist_ok=True)
    assert "is empty" in cli.say("library", "list", cwd=tmp_path, as_json=False).stdout
    added = cli.say("library", "add", f"file://{source}", cwd=tmp_path).document
    assert (added["entry"]["name"], added["entry"]["files"], added["entry"]["licence"]) == ("source", 3, "MIT")
    shown = cli.say("library", "search", "count", "stripes", "--licence", "MIT,ISC", cwd=tmp_path, as_json=False)
    assert "source:zebra.py:1  MIT" in shown.stdout
    assert "def count_stripes" in shown.stdout
    nothing = cli.say("library", "search", "stripes", "--licence", "ISC", cwd=tmp_path, as_json=False)
    assert "Nothing found" in nothing.stdout
    (hit,) = cli.say("library", "search", "stripes", "--language", "python", cwd=tmp_path).document["hits"]
    assert (hit["commit"], hit["line"]) == (git(source, "rev-parse", "HEAD"), 1)
    assert "unchanged" in cli.say("library", "update", cwd=tmp_path, as_json=False).stdout
    (source / "new.py").write_text("def gallop(): ...\n")
    write_again(source)
    (updated,) = cli.say("library", "update", "source", cwd=tmp_path).document["updated"]
    assert (updated["parsed"], updated["entry"]["files"]) == (1, 4)
    assert "source" in cli.say("library", "list", cwd=tmp_path, as_json=False).stdout
    assert len(cli.say("library", "list", "--curated", cwd=tmp_path).document["curated"]) == 20
    assert cli.say("library", "remove", "source", cwd=tmp_path).document["size"] > 0
    assert cli.refused("library_not_found", 2, "library", "remove", "source", cwd=tmp_path)["hint"]
    assert cli.refused("library_language", 2, "library", "search", "a", "--language", "klingon", cwd=tmp_path)


def test_a_rewritten_history_replaces_the_old_one(library: Library, source: Path) -> None:
    first = library.add(str(source)).entry
    size = entries(library)[0].size
    shutil.rmtree(source)
    write_repository(source, {"LICENSE": MIT, **{f"{n}.md": f"A giraffe of {n} metres.\n" for n in range(9)}})
    second = library.update("source")
    assert second.previous == first.commit != second.entry.commit
    assert paths(library, "zebra stripes") == []
    assert len(paths(library, "giraffe")) == 9
    # Back to the first commit, whose objects and tree were removed meanwhile, and on from there.
    for files in (FILES, {**FILES, "a.md": "one"}, FILES):
        shutil.rmtree(source)
        write_repository(source, files)
        assert library.update("source").entry.files == len(files)
        assert set(paths(library, "zebra stripes")) == {"README.md", "zebra.py"}
    depot = library._root / "source" / "depot.git"
    assert git(depot, "rev-list", "--all", "--count") == "1"
    # Not that of the first commit: the last one has its content, and its id too if it was made in the same second.
    gone = second.entry.commit
    assert subprocess.run(["git", "-C", str(depot), "cat-file", "-e", gone], check=False).returncode
    assert entries(library)[0].size < 2 * size + 300_000


def test_a_lost_source_leaves_the_repository_as_it_was(library: Library, source: Path) -> None:
    library.add(str(source))
    before = entries(library)
    source.rename(source.with_name("renamed"))
    with pytest.raises(ChargehandError) as caught:
        library.update("source")
    assert caught.value.code == "not_a_repository"
    assert entries(library) == before
    assert paths(library, "count stripes")


def test_two_adds_at_once_make_one_repository(library: Library, source: Path) -> None:
    problems: list[str] = []

    def add() -> None:
        try:
            library.add(str(source))
        except RefusedError as error:
            problems.append(error.code)

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == ["library_exists"] * 2
    assert [(each.name, each.files) for each in entries(library)] == [("source", 3)]
    assert sorted(each.name for each in library._root.iterdir()) == [".locks", "source"]


@pytest.mark.parametrize(
    ("given", "name", "code"),
    [
        ("SOURCE", "../out", "library_name"),
        ("SOURCE", ".hidden", "library_name"),
        ("SOURCE", "Upper", "library_name"),
        ("SOURCE", "", "library_name"),
        ("/does/not/exist", "a", "not_a_repository"),
        ("EMPTY", "a", "repository_empty"),
        ("ext::sh -c 'touch ran'", "a", "remote_protocol"),
        ("http://localhost/a.git", "a", "remote_protocol"),
        ("--upload-pack=touch", "a", "remote_protocol"),
        ("https://user:secret@localhost/a.git", "a", "remote_password"),
        ("https://secret@localhost/a.git", "a", "remote_password"),
        ("ssh://user:secret@localhost/a.git", "a", "remote_password"),
        ("ssh://-oProxyCommand=touch%20ran/a", "a", "source_failed"),
        ("https://localhost:1/a.git", "a", "source_failed"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    library: Library, source: Path, tmp_path: Path, given: str, name: str, code: str
) -> None:
    empty = tmp_path / "empty"
    subprocess.run(["git", "init", "-q", str(empty)], check=True)
    with pytest.raises(ChargehandError) as caught:
        library.add(given.replace("SOURCE", str(source)).replace("EMPTY", str(empty)), name=name)
    assert caught.value.code == code
    assert "secret" not in caught.value.message
    assert entries(library) == []
    assert not list(tmp_path.rglob("ran"))


def test_nothing_of_a_hostile_source_runs_or_is_checked_out(
    library: Library, source: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    other = write_repository(tmp_path / "other", {"private.md": "zebra secret\n"})
    (source / ".gitmodules").write_text(f'[submodule "s"]\n\tpath = sub\n\turl = {other}\n\tupdate = !{program}\n')
    (source / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (source / "big.md").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00 zebra\nsize 5\n")
    (source / "link.md").symlink_to("/etc/passwd")
    (source / "up.md").symlink_to("../other/private.md")
    git(source, "add", "--all")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{git(other, 'rev-parse', 'HEAD')},sub")
    git(source, *COMMIT)
    for hook in ("pre-receive", "post-checkout", "reference-transaction", "post-update", "pre-auto-gc"):
        shutil.copy(program, source / ".git" / "hooks" / hook)
    for key in (
        *("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "uploadpack.packObjectsHook"),
        *("filter.evil.smudge", "filter.evil.clean", "diff.evil.textconv", "credential.helper", "gpg.program"),
        *("remote.origin.uploadpack", "core.alternateRefsCommand", "core.gitProxy"),
    ):
        git(source, "config", key, str(program))
    git(source, "config", "core.hooksPath", str(tmp_path))
    git(source, "config", "remote.origin.url", f"ext::{program}")
    git(source, "config", "remote.origin.promisor", "true")
    (source / ".git" / "objects" / "info" / "alternates").write_text(f"{other}/.git/objects\n")
    library.add(str(source))
    library.update("source")
    assert not ran.exists()
    assert set(paths(library, "zebra secret passwd")) == {"README.md", "zebra.py"}
    depot = library._root / "source" / "depot.git"
    assert not (depot / "objects" / "info" / "alternates").exists()
    assert "evil" not in (depot / "config").read_text()
    assert not list((depot / "hooks").glob("*")) if (depot / "hooks").exists() else True
    # The program would run: git does run it for the same repository without these precautions.
    git(source, "config", "core.fsmonitor", str(program))
    subprocess.run(["git", "-C", str(source), "status"], check=False, capture_output=True)
    assert ran.exists()


def test_a_damaged_repository_does_not_stop_the_search_of_others(library: Library, source: Path) -> None:
    library.add(str(source), name="good")
    library.add(str(source), name="bad")
    shutil.rmtree(library._root / "bad" / "depot.git")
    hits, problems = library.search("count stripes")
    assert {hit.repository for hit in hits} == {"good"}
    assert [problem.name for problem in problems] == ["bad"]
    library.remove("bad")
    assert library.names() == ["good"]


def test_a_damaged_repository_does_not_stop_the_list_of_others(tmp_path: Path, source: Path) -> None:
    cli = Cli(tmp_path / "cli")
    cli.place.mkdir(exist_ok=True)
    for name in ("bad", "good"):
        cli.say("library", "add", str(source), "--name", name, cwd=tmp_path)
    (cli.home / "library" / "bad" / "source.json").unlink()
    (cli.home / "library" / "worse").mkdir()
    found = cli.say("library", "list", cwd=tmp_path).document
    assert [each["name"] for each in found["repositories"]] == ["good"]
    assert [(each["name"], each["code"]) for each in found["problems"]] == [
        ("bad", "snapshot_damaged"),
        ("worse", "snapshot_damaged"),
    ]
    shown = cli.say("library", "list", cwd=tmp_path, as_json=False).stdout
    assert "good" in shown
    assert "bad: " in shown


def test_a_repository_that_is_removed_during_a_search_is_named(library: Library, source: Path) -> None:
    for name in ("a", "b", "c"):
        library.add(str(source), name=name)
    for name in ("b", "c"):
        shutil.rmtree(library._root / name / "maps")  # so that both are indexed, and progress is shown
    removed = {"b": "a", "c": "c"}

    def remove(name: str, done: int, total: int) -> None:
        library.remove(removed[name])

    hits, problems = library.search("count stripes", progress=remove)
    assert {hit.repository for hit in hits} == {"b"}
    assert {problem.name for problem in problems} == {"a", "c"}
    assert library.names() == ["b"]  # nothing of the others came back
    with pytest.raises(NotFoundError):
        library.remove("a")


def test_removing_twice_at_once_removes_once(library: Library, source: Path) -> None:
    library.add(str(source))
    done: list[object] = []

    def remove() -> None:
        try:
            done.append(library.remove("source"))
        except NotFoundError as error:
            done.append(error.code)

    threads = [threading.Thread(target=remove) for _ in range(4)]
    with library._find("source").lock():
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(each, int) for each in done) == 1
    assert done.count("library_not_found") == 3
    assert library.names() == []


def test_a_file_that_cannot_be_read_is_an_error_with_a_code(library: Library, source: Path) -> None:
    library.add(str(source))
    locks = library._root / ".locks"
    shutil.rmtree(locks)
    locks.write_text("a file in the way")
    with pytest.raises(RepositoryError) as raised:
        library.update("source")
    assert raised.value.code == "library_changed"


def test_filters_come_before_the_cut(library: Library, source: Path) -> None:
    """A file that the filters leave is found, however many better ones they take away."""
    better = {f"docs/{number}.md": "<!-- SPDX-License-Identifier: ISC -->\nzebra zebra\n" for number in range(400)}
    write_repository(source, {**better, "LICENSE": MIT, "one.py": "# other words\n" * 50 + "x = 'zebra'\n"})
    library.add(str(source))
    assert len(library.search("zebra", most=1000)[0]) == 401
    assert [hit.path for hit in library.search("zebra", language="python")[0]] == ["one.py"]
    assert [hit.path for hit in library.search("zebra", licences=["MIT"])[0]] == ["one.py"]


def test_the_time_is_that_of_the_whole_search(library: Library, source: Path) -> None:
    for name in ("a", "b"):
        library.add(str(source), name=name)
        shutil.rmtree(library._root / name / "maps")
    place = library._find("a")
    with CodeIndex(place.root, place) as other, other._writing(None):  # "a" takes all the time
        hits, problems = library.search("zebra", seconds=0.2)
    assert (hits, [problem.name for problem in problems]) == ((), ["a", "b"])
    hits, problems = library.search("zebra")
    assert ({hit.repository for hit in hits}, problems) == ({"a", "b"}, ())


def test_a_tree_that_seems_to_have_billions_of_files_is_refused(library: Library, source: Path) -> None:
    below = git(source, "rev-parse", "HEAD^{tree}")
    for _ in range(10):
        lines = "".join(f"040000 tree {below}\t{number}\n" for number in range(10))
        words = ["git", "-C", str(source), "mktree"]
        below = subprocess.run(words, input=lines, capture_output=True, text=True, check=True).stdout.strip()
    commit = git(source, *COMMIT[:4], "commit-tree", "-m", "bomb", below)
    git(source, "update-ref", "HEAD", commit)
    with pytest.raises(ChargehandError) as caught:
        library.add(str(source))
    assert caught.value.code == "base_tree"
    assert entries(library) == []


def test_the_entries_of_one_directory(library: Library, source: Path) -> None:
    write_repository(source, {**FILES, "docs/a.md": "a", "docs/b/c.md": "c"})
    library.add(str(source))
    snapshot = library._find("source")
    tree = snapshot.tree_of(snapshot.head)
    assert [each.path for each in snapshot.entries(tree, "docs")] == ["docs/a.md", "docs/b/c.md"]
    assert len(snapshot.entries(tree)) == len(FILES) + 2


def test_worktrees_and_shallow_clones_are_sources_too(library: Library, source: Path, tmp_path: Path) -> None:
    git(source, *COMMIT)
    git(source, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "side")
    subprocess.run(
        ["git", "clone", "-q", "--bare", "--depth=1", f"file://{source}", str(tmp_path / "Shallow.git")],
        check=True,
    )
    for place in ("tree", "Shallow.git"):
        assert library.add(str(tmp_path / place)).entry.files == 3
    assert library.names() == ["shallow", "tree"]
