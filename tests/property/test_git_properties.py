"""Git answers in a workspace whose tree is judged as it does in a clone of the branch that would be promoted."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples, git
from tests.trees_kit import EXECUTABLE, FILE, GITLINK, LINK, File, make_commit, make_tree
from tests.workspace_kit import WorkspaceKit, agent, cloning_disk

from chargehand.core.ports import DriverName
from chargehand.workspace.head import Head
from chargehand.workspace.workspace import Workspace

_SUBMODULE = bytes.fromhex("1234567890" * 4)
_BASE: Mapping[str, bytes | File] = {
    "README.md": b"hello\n",
    ".gitattributes": b"*.bat eol=crlf\n*.u16 working-tree-encoding=UTF-16LE\n*.id ident\n/out export-ignore\n",
    ".gitignore": b"*.log\n",
    "kept.log": b"ignored, and tracked\n",
    "run.sh": (EXECUTABLE, b"#!/bin/sh\n"),
    "src/app.py": b"print('app')\n",
    "src/lib/util.py": b"def f():\n    return 1\n",
    "src/lib/util.pyi": b"def f(): ...\n",
    "a.bat": b"echo 1\r\necho 2\n".replace(b"\r", b""),
    "a.u16": "gr\u00fc\u00df\n".encode(),
    "a.id": b"$Id$\n",
    "out/x": b"x\n",
    "link": (LINK, b"src/app.py"),
    "sub": (GITLINK, _SUBMODULE),
    ".gitmodules": b'[submodule "sub"]\n\tpath = sub\n\turl = ./sub\n',
    "\u00e9/\u00fc b": b"not ascii\n",
    "raw\udcff": b"not utf-8\n",
    f"{'deep/' * 40}x": b"a long path\n",
}
# Attributes are drawn separately: git warns if they are a link.
_NAMES = (
    *sorted(_BASE.keys() - {".gitattributes"}),
    "src/app",
    "src/lib",
    "src/new.py",
    "new.bat",
    "new.log",
    "out",
    "zz",
    "-x",
    "é",
    "run.sh/x",
    "*",
)
_CONTENT: st.SearchStrategy[File] = st.one_of(
    st.tuples(
        st.sampled_from((FILE, EXECUTABLE)),
        st.sampled_from((b"", b"hello\n", b"FIXME  \n", b"\0bin\xff", b"$Id$\n")),
    ),
    st.tuples(st.just(LINK), st.sampled_from((b"README.md", b"nowhere"))),
    st.tuples(st.just(GITLINK), st.just(_SUBMODULE[::-1])),
)
_ATTRIBUTES = st.sampled_from((b"", b"*.py eol=crlf\n", b"*.bat eol=lf\n*.id -ident\n", b"src/** export-ignore\n"))


def _can_be(edits: Mapping[str, File | None]) -> bool:
    """Return whether a scan can find such a tree: nothing replaces a submodule.

    git does not clone a `.gitmodules` that is a link, and complains of a file that it cannot encode only when it
    reads that file again.
    """
    kinds = {path: None if file is None else file[0] for path, file in edits.items()}
    encodable = edits.get("a.u16") != (kinds.get("a.u16"), b"\0bin\xff")
    return kinds.get("sub") in (None, GITLINK) and kinds.get(".gitmodules") != LINK and encodable


_EDITS = st.dictionaries(st.sampled_from(_NAMES), st.none() | _CONTENT, max_size=8).filter(_can_be)
# Output of both, command by command, exit codes included.
_READING = """
export GIT_CONFIG_GLOBAL=/dev/null; export GIT_OPTIONAL_LOCKS=0
ask() { echo "$ $*"; "$@" 2>&1 || echo "code $?"; }
ask git status --porcelain
ask git status --porcelain --ignored
ask git ls-files -s
ask git ls-files --eol
ask git ls-files -o --exclude-standard
ask git ls-files -m
ask git ls-files -d
ask git diff --exit-code --stat
ask git diff --cached --exit-code --stat
ask git diff-files
ask git diff-index HEAD
ask git diff-tree -r -M --no-commit-id HEAD
ask git diff --check HEAD^ HEAD
ask git diff --stat HEAD^
ask git show --stat --format=fuller
ask git log --format='%H %P %T %an %ae %cn %at %s%n%b'
ask git log --oneline --decorate-refs=refs/tags -- src README.md
ask git rev-list --count HEAD
ask git rev-list --objects HEAD
ask git describe --tags --long --dirty --always
ask git describe --dirty --always
ask git name-rev --tags HEAD^
ask git branch --show-current
ask git rev-parse --abbrev-ref HEAD
ask git rev-parse --show-toplevel --is-shallow-repository >/dev/null
ask git symbolic-ref HEAD
ask git merge-base HEAD HEAD^
ask git grep -n -e hello -e FIXME
ask git grep -n --cached FIXME
ask git grep -l print HEAD
ask git blame -s HEAD -- README.md
ask git cat-file -p HEAD:src
ask git submodule status
ask git check-attr -a a.bat a.id src/app.py
ask git check-ignore -v kept.log new.log
ask git shortlog -s HEAD
ask git fsck --full --strict
ask git stash list
ask git write-tree
git archive HEAD | sha1sum
git archive --format=tar HEAD src 2>&1 | sha1sum
"""


@pytest.fixture(
    scope="module", params=["overlay", "worktree", pytest.param("reflink", marks=pytest.mark.needs_root)]
)
def kit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkspaceKit, DriverName]]:
    place = tmp_path_factory.mktemp("judged")
    if request.param != "reflink":
        yield _make(place / "crashes"), request.param
        return
    with cloning_disk("btrfs", place) as disk:
        yield _make(disk / "crashes"), request.param


def _make(place: Path) -> WorkspaceKit:
    """Return a kit whose base has every kind of index entry, tags, and a history with a merge."""
    place.mkdir()
    kit = WorkspaceKit(place, {"first": "1\n"})
    git(kit.repository, "tag", "-a", "-m", "one", "v1")
    depot = kit.depot()
    first = kit.base().commit
    side = make_commit(depot, {"first": b"1\n", "side": b"2\n"}, first)
    base = make_commit(depot, _BASE, first, side)
    git(kit.repository, "fetch", "-q", str(depot.path), f"{base}:refs/heads/base")
    git(kit.repository, "symbolic-ref", "HEAD", "refs/heads/base")
    git(kit.repository, "tag", "v2-light", "base")
    kit._base = None
    return kit


def clone(kit: WorkspaceKit, commit: str, branch: str, place: Path) -> Path:
    """Fetch the commit into the person's repository as a branch, as an export does, and clone that branch."""
    git(kit.repository, "fetch", "-q", str(kit.depot().path), f"+{commit}:refs/heads/{branch}")
    git(place, "clone", "-q", "-b", branch, f"file://{kit.repository}", "clone")
    return place / "clone"


def read_clone(place: Path) -> str:
    """Return the output of the read-only commands in a clone, with its path replaced by the agent's."""
    script = ["/bin/sh", "-c", f"umask 022; {_READING}"]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    done = subprocess.run(script, cwd=place, env=environment, capture_output=True, check=True)
    return done.stdout.decode(errors="surrogateescape").replace(str(place), "/run/ws")


def edit(files: Mapping[str, bytes | File], edits: Mapping[str, File | None]) -> dict[str, bytes | File]:
    """Return the files with the edits applied; a file may replace a directory and the other way round."""
    out = dict(files)
    for path, content in edits.items():
        for other in [each for each in out if each.startswith(f"{path}/") or path.startswith(f"{each}/")]:
            del out[other]
        out.pop(path, None)
        if content is not None:
            out[path] = content
    return out


# An example starts a hundred git processes with each driver.
@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@example(edits={}, attributes=None)
@example(edits={"src/app.py": None, "src/new.py": (FILE, b"print('app')\n")}, attributes=None)
@example(edits={"README.md": (FILE, b"hullo\n"), "run.sh": (FILE, b"#!/bin/sh\n")}, attributes=b"*.md eol=crlf\n")
@example(edits={"src/lib": (FILE, b"now a file\n"), "link": (FILE, b"x")}, attributes=None)
@given(edits=_EDITS, attributes=st.none() | _ATTRIBUTES)
def test_git_answers_as_in_a_clone_of_the_branch(
    kit: tuple[WorkspaceKit, DriverName], edits: dict[str, File | None], attributes: bytes | None
) -> None:
    there, driver = kit
    depot, base = there.depot(), there.base()
    wanted = edits if attributes is None else {**edits, ".gitattributes": (FILE, attributes)}
    tree = make_tree(depot, edit(_BASE, wanted))
    commit = depot.commit(tree, (base.commit,), "The change\n\nMission: m-1\n")
    workspace = Workspace.create(
        depot, base, driver=driver, tree=tree, head=Head(commit=commit, branch="chargehand/x")
    )
    try:
        answers = agent(workspace, _READING)
        objects = agent(workspace, "git cat-file --batch-all-objects --batch-check | cut -d' ' -f1").split()
        scanned = workspace.scan().tree
    finally:
        workspace.discard()
    assert scanned == tree or any(each and each[0] == GITLINK for each in edits.values())
    with tempfile.TemporaryDirectory() as place:
        plain = clone(there, commit, "chargehand/x", Path(place))
        assert answers.split("$ ") == read_clone(plain).split("$ ")
        reachable = git(plain, "rev-list", "--objects", "--no-object-names", "HEAD", "--tags").split()
    assert {*objects} <= {*reachable, *_tags(there)}


def _tags(kit: WorkspaceKit) -> list[str]:
    return git(kit.repository, "for-each-ref", "--format=%(objectname)", "refs/tags").split()
