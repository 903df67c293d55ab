"""Traps that an agent plants for git to run: the host does all its work on them and nothing fires.

Each vector is planted by plain file writes and would leave a canary. The control shows that git, run by a person
in the same files, does run it, so that the test can fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import GIT_IDENTITY, git, make_repository, repository_state
from tests.workspace_kit import FILES, WorkspaceKit, agent

from chargehand.core.ports import DriverName
from chargehand.workspace.checkout import fast_forward
from chargehand.workspace.depot import Depot
from chargehand.workspace.export import export_branch, export_notes
from chargehand.workspace.workspace import Workspace

DRIVERS: tuple[DriverName, ...] = ("overlay", "worktree")
HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit"),
    *("post-index-change", "post-merge", "post-receive", "post-rewrite", "post-update", "pre-applypatch"),
    *("pre-auto-gc", "pre-commit", "pre-merge-commit", "pre-push", "pre-rebase", "pre-receive"),
    *("prepare-commit-msg", "proc-receive", "push-to-checkout", "reference-transaction", "sendemail-validate"),
    *("update", "post-fetch"),
)
CHANGE = "echo changed >> README.md"


@dataclass(frozen=True, kw_only=True)
class Vector:
    """`config` goes to `.git/config`, `files` into the workspace; {run} is the program that leaves the canary.

    `naive` is a command that a person would type; None if today's git refuses to run the vector.
    """

    config: str = ""
    files: Mapping[str, str] | None = None
    naive: str | None = None
    gitdir: bool = True
    tree: bool = True

    def script(self, run: str) -> str:
        """Return the shell script that plants the vector by plain writes alone."""
        files = dict(self.files or {})
        lines = [_written(name, text.replace("{run}", run)) for name, text in files.items()]
        if self.config:
            lines.append(f"cat >> .git/config <<'END'\n{self.config.replace('{run}', run)}\nEND")
        return "\n".join(lines)


def _written(name: str, text: str) -> str:
    above = os.path.dirname(name) or "."
    executable = f"chmod +x '{name}'" if text.startswith("#!") else "true"
    clear = "if test -d .git; then rm -rf .git; fi\n" if name == ".git" else ""
    return f"{clear}mkdir -p '{above}'; cat > '{name}' <<'END'\n{text}\nEND\n{executable}"


def _hooks(directory: str, names: Iterable[str] = HOOKS) -> dict[str, str]:
    return {f"{directory}/{name}": "#!/bin/sh\nexec {run}" for name in names}


_BARE = {
    "HEAD": "ref: refs/heads/main",
    "objects/keep": "",
    "refs/keep": "",
    "config": "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = {run}",
}
_EVIL = "[core]\n\tfsmonitor = {run}"
_ATTRIBUTES = {".gitattributes": "* filter=x diff=x merge=x"}

VECTORS: dict[str, Vector] = {
    "fsmonitor": Vector(config=_EVIL, naive="git status"),
    "filter-clean": Vector(
        config='[filter "x"]\n\tclean = {run}', files=_ATTRIBUTES, naive=f"{CHANGE}; git add -A"
    ),
    "filter-smudge": Vector(
        config='[filter "x"]\n\tsmudge = {run}', files=_ATTRIBUTES, naive="rm README.md; git checkout README.md"
    ),
    "filter-process": Vector(
        config='[filter "x"]\n\tprocess = {run}', files=_ATTRIBUTES, naive=f"{CHANGE}; git status; git diff"
    ),
    "textconv": Vector(config='[diff "x"]\n\ttextconv = {run}', files=_ATTRIBUTES, naive=f"{CHANGE}; git diff"),
    "diff-command": Vector(config='[diff "x"]\n\tcommand = {run}', files=_ATTRIBUTES, naive=f"{CHANGE}; git diff"),
    "diff-external": Vector(config="[diff]\n\texternal = {run}", naive=f"{CHANGE}; git diff"),
    "nested-attributes": Vector(
        config='[filter "x"]\n\tclean = {run}',
        files={"src/.gitattributes": "*.py filter=x"},
        naive="echo x >> src/app.py; git add -A",
    ),
    "info-attributes": Vector(
        config='[filter "x"]\n\tclean = {run}',
        files={".git/info/attributes": "* filter=x"},
        naive=f"{CHANGE}; git add -A",
    ),
    "attributes-file": Vector(
        config='[core]\n\tattributesFile = ./attrs\n[filter "x"]\n\tclean = {run}',
        files={"attrs": "* filter=x"},
        naive=f"{CHANGE}; git add -A",
    ),
    "hooks": Vector(files=_hooks(".git/hooks"), naive=f"{CHANGE}; git commit -qam x"),
    "hooks-path": Vector(
        config="[core]\n\thooksPath = evil-hooks", files=_hooks("evil-hooks"), naive=f"{CHANGE}; git commit -qam x"
    ),
    "include": Vector(config="[include]\n\tpath = ../evil.cfg", files={"evil.cfg": _EVIL}, naive="git status"),
    "include-if": Vector(
        config='[includeIf "gitdir:**/"]\n\tpath = ../evil.cfg', files={"evil.cfg": _EVIL}, naive="git status"
    ),
    "git-file": Vector(
        files={**{f"evil-dir/{name}": text for name, text in _BARE.items()}, ".git": "gitdir: evil-dir"},
        naive="git status",
        gitdir=False,
        tree=False,
    ),
    "planted-bare": Vector(
        files={f"bare/{name}": text for name, text in _BARE.items()},
        naive="cd bare && git status",
        tree=False,
    ),
    "nested-git": Vector(
        files={f"sub/.git/{name}": text for name, text in _BARE.items()},
        naive="cd sub && git status",
        tree=False,
    ),
    "commondir": Vector(
        files={".git/commondir": "../evil-common", **{f"evil-common/{n}": text for n, text in _BARE.items()}},
        naive="git status",
        tree=False,
    ),
    "worktree-config": Vector(
        config="[extensions]\n\tworktreeConfig = true",
        files={".git/config.worktree": _EVIL},
        naive="git status",
    ),
    "core-worktree": Vector(config=f"[core]\n\tworktree = ..\n{_EVIL}", naive="git status"),
    "gpg": Vector(
        config="[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = {run}", naive=f"{CHANGE}; git commit -qam x"
    ),
    "gpg-ssh": Vector(
        config='[commit]\n\tgpgSign = true\n[gpg]\n\tformat = ssh\n[gpg "ssh"]\n\tdefaultKeyCommand = {run}',
        naive=f"{CHANGE}; git commit -qam x",
    ),
    "ssh-command": Vector(
        config='[core]\n\tsshCommand = {run}\n[remote "origin"]\n\turl = ssh://h.invalid/x\n'
        "\tfetch = +refs/heads/*:refs/remotes/origin/*",
        naive="git fetch",
    ),
    "ext-remote": Vector(
        config='[protocol "ext"]\n\tallow = always\n[remote "origin"]\n\turl = ext::{run}', naive="git fetch"
    ),
    "instead-of": Vector(
        config='[protocol "ext"]\n\tallow = always\n[url "ext::{run} "]\n\tinsteadOf = /', naive="git fetch /x"
    ),
    "uploadpack": Vector(
        config='[remote "origin"]\n\turl = /\n\tuploadpack = {run}\n\treceivepack = {run}', naive="git fetch"
    ),
    "pack-objects-hook": Vector(config="[uploadpack]\n\tpackObjectsHook = {run}"),
    "git-proxy": Vector(
        config='[core]\n\tgitProxy = {run}\n[remote "origin"]\n\turl = git://h.invalid/x', naive="git fetch"
    ),
    "alternate-refs": Vector(
        config="[core]\n\talternateRefsCommand = {run}", files={".git/objects/info/alternates": "/evil/objects"}
    ),
    "submodule-update": Vector(
        config='[submodule "m"]\n\tactive = true\n\turl = /\n\tupdate = !{run}',
        files={".gitmodules": '[submodule "m"]\n\tpath = module\n\turl = -u./evil\n\tupdate = !{run}'},
    ),
    "credential": Vector(
        config="[credential]\n\thelper = {run}\n", naive="echo url=https://h.invalid | git credential fill"
    ),
    "ask-pass": Vector(
        config="[core]\n\taskPass = {run}", naive="echo url=https://h.invalid | git credential fill"
    ),
    "alias": Vector(config="[alias]\n\tst = !{run}", naive="git st"),
    "pager": Vector(
        config="[core]\n\tpager = {run}\n[pager]\n\tdiff = {run}",
    ),
    "editor": Vector(
        config="[core]\n\teditor = {run}\n[sequence]\n\teditor = {run}", naive=f"{CHANGE}; git add -A; git commit"
    ),
    "merge-driver": Vector(
        config='[merge "x"]\n\tdriver = {run} %O %A %B',
        files=_ATTRIBUTES,
        naive="git checkout -q -b side; echo 1 > README.md; git commit -qam 1; git checkout -q main;"
        "echo 2 > README.md; git commit -qam 2; git merge side",
    ),
    "diff-filter": Vector(config="[interactive]\n\tdiffFilter = {run}"),
    "lfs-config": Vector(
        files={".lfsconfig": '[lfs "customtransfer.x"]\n\tpath = {run}', ".gitattributes": "* filter=lfs"}
    ),
    "planted-refs": Vector(
        files={
            ".git/HEAD": "ref: refs/../../../evil",
            ".git/packed-refs": f"{'1' * 40} refs/chargehand/bases/{'1' * 40}",
            ".git/refs/notes/chargehand": "ref: refs/heads/main",
            ".git/refs/replace/0": "1" * 40,
            ".git/shallow": "1" * 40,
            ".git/info/grafts": "1" * 40,
        }
    ),
    "broken-index": Vector(config=_EVIL, files={".git/index": "DIRC"}, naive="rm .git/index; git status"),
}
FIRES_IN_THE_USERS_OWN = {
    *("filter-clean", "filter-smudge", "filter-process"),
    *("nested-attributes", "info-attributes", "attributes-file"),
}

REFUSED = {"critical": {"bare", "sub/.git", "evil-common"}, "no-gitdir": {"evil-dir"}}


class Canary:
    """A directory of programs, each of which leaves its name when it runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "bin").mkdir(parents=True)
        for name in VECTORS:
            self.run(name)

    def run(self, name: str) -> str:
        """Return the program of a vector."""
        program = self.place / "bin" / name
        if not program.exists():
            program.write_text(f"#!/bin/sh\ntouch '{self.place}/fired-{name}'\n")
            program.chmod(0o755)
        return str(program)

    def fired(self) -> set[str]:
        """Return the vectors that have run since the last call."""
        found = {path.name.removeprefix("fired-") for path in self.place.glob("fired-*")}
        for name in found:
            (self.place / f"fired-{name}").unlink()
        return found


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path / "canary")


def naive(place: Path, command: str) -> None:
    """Run a command as a person would in a directory; its output does not matter."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), **GIT_IDENTITY, "GIT_TERMINAL_PROMPT": "0"}
    subprocess.run(
        ["sh", "-c", command],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )


def plant(names: Iterable[str], canary: Canary) -> str:
    return "\n".join(VECTORS[name].script(canary.run(name)) for name in names)


def test_a_person_in_the_same_files_is_hit(canary: Canary, tmp_path: Path) -> None:
    """The control: each vector that has a naive command is run by it."""
    template = make_repository(tmp_path / "template", FILES)
    quiet = set()
    for name, vector in VECTORS.items():
        place = tmp_path / name
        shutil.copytree(template, place)
        subprocess.run(["sh", "-ec", vector.script(canary.run(name))], cwd=place, check=True)
        assert canary.fired() == set(), f"{name} is planted by plain writes"
        if vector.naive is not None:
            naive(place, vector.naive)
            if canary.fired() != {name}:
                quiet.add(name)
        shutil.rmtree(place)
    assert quiet == set()
    assert len(VECTORS) >= 30


def work_through(depot: Depot, workspace: Workspace, *, branch: str) -> str:
    """Do everything that the host does with a workspace; return the final commit."""
    base = workspace.base
    kept = workspace.checkpoint("planted")
    depot.patch(base.tree, kept.tree)
    depot.numstat(base.tree, kept.tree)
    depot.diff(base.tree, kept.tree)
    workspace.usage()
    workspace.reset(base.tree, "rollback")
    workspace.reset(kept.tree, "undo")
    workspace.reset_paths(["src"], base.tree)
    Workspace.create(depot, base, driver=workspace.driver, tree=kept.tree).scan()
    other = depot.commit(depot.replace_paths(base.tree, ["README.md"], kept.tree), (base.commit,), "other\n")
    merged = depot.merge(depot.commit(kept.tree, (base.commit,), "kept\n"), other)
    assert merged.tree == kept.tree
    commit = depot.commit(kept.tree, (base.commit,), "promoted\n")
    depot.swap(f"refs/chargehand/missions/{branch}", commit, None, durable=True)
    depot.annotate(commit, "head")
    assert export_branch(depot, commit, branch=f"chargehand/{branch}", expected_old=None).state == "done"
    export_notes(depot, commit)
    return commit


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("part", ["config", "tree", "critical", "no-gitdir"])
def test_no_planted_vector_runs_on_the_host(
    canary: Canary, tmp_path: Path, driver: DriverName, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: dict[str, Callable[[Vector], bool]] = {
        "config": lambda vector: bool(vector.config) and vector.tree,
        "tree": lambda vector: vector.tree,
        "critical": lambda vector: not vector.tree and vector.gitdir,
        "no-gitdir": lambda vector: not vector.gitdir,
    }
    monkeypatch.chdir(tmp_path)
    kit = WorkspaceKit(tmp_path / "crashes")
    depot, before = kit.depot(), repository_state(kit.repository)
    workspace = kit.workspace(driver)
    names = [name for name, vector in VECTORS.items() if chosen[part](vector)]
    agent(workspace, f"{CHANGE}\n{plant(names, canary)}\n{CHANGE}")
    refused = {found.path for found in workspace.scan(trust_cache=False).findings if found.severity == "critical"}
    commit = work_through(depot, workspace, branch="x")
    assert canary.fired() == set()
    assert repository_state(kit.repository) == before
    assert not list(tmp_path.glob("fired-*"))
    assert refused == REFUSED.get(part, set())
    if part != "config":
        return
    assert fast_forward(depot, commit, branch="main", at=kit.base().commit).state == "done"
    back = depot.commit(kit.base().tree, (commit,), "rolled back\n")
    assert export_branch(depot, back, branch="chargehand/x", expected_old=commit).state == "done"
    assert fast_forward(depot, back, branch="main", at=commit).state == "done"
    assert git(kit.repository, "status", "--porcelain") == ""
    assert canary.fired() == set()


def test_only_filters_of_the_user_configuration_run(canary: Canary, tmp_path: Path) -> None:
    """The users' own configuration counts: filters, which `git status` and a checkout need, run; nothing else
    does.
    """
    quiet = [name for name, vector in VECTORS.items() if vector.config and name not in FIRES_IN_THE_USERS_OWN]
    quiet.remove("instead-of")
    for number, names in enumerate(({name} for name in sorted(FIRES_IN_THE_USERS_OWN)), start=1):
        assert _worked_on_as_the_users_own(tmp_path / str(number), canary, names) == "done"
        assert canary.fired() == names
    assert _worked_on_as_the_users_own(tmp_path / "quiet", canary, quiet) == "done"
    assert _worked_on_as_the_users_own(tmp_path / "url", canary, ["instead-of"]) == "blocked"
    assert canary.fired() == set()


def _worked_on_as_the_users_own(place: Path, canary: Canary, names: Iterable[str]) -> str:
    """Export and apply a change in a repository whose owner configured these vectors; return how that ended."""
    kit = WorkspaceKit(place)
    subprocess.run(["sh", "-ec", plant(names, canary)], cwd=kit.repository, check=True)
    (kit.repository / "README.md").write_text("HELLO\n")  # of the same size, so that git reads the content
    (kit.repository / "src/app.py").write_text("print('APP')\n")
    depot = kit.depot()
    base = depot.resolve_base()
    assert base.dirty
    workspace = Workspace.create(depot, base, driver="worktree")
    agent(workspace, "echo more >> docs/a.md")
    commit = depot.commit(workspace.scan().tree, (base.commit,), "more\n")
    exported = export_branch(depot, commit, branch="chargehand/x", expected_old=None)
    if exported.state == "blocked":
        return "blocked"
    fast_forward(depot, commit, branch="main", at=base.commit)
    return exported.state
