"""The harness of the drivers' contract: a repository, its depot, and workspaces of the driver under test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chargehand.core.ports import DriverName
from chargehand.core.records import Base
from chargehand.workspace.bases import OBJECTS_TARGET
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace

RunScript = Callable[[Workspace, str], str]
FILES = {
    "README.md": "hello\n",
    ".gitignore": "*.log\nbuild/\n/vendor\n!keep.log\n",
    "src/app.py": "print('app')\n",
    "src/lib/util.py": "def f():\n    return 1\n",
    "src/lib/deep/data.txt": "data\n",
    "docs/a.md": "a\n",
    "docs/b.md": "b\n",
    "run.sh": "#!/bin/sh\necho run\n",
}
# From a separate directory: the one in the workspace is the agent's, and may be damaged or forged. The base's tree
# comes first, so that tracked files in ignored places stay tracked.
_AS_GIT_SEES_IT = f"""
GIT_DIR=$(mktemp -d) GIT_WORK_TREE=$PWD; export GIT_DIR GIT_WORK_TREE; trap 'rm -rf "$GIT_DIR"' EXIT
git init -q --bare "$GIT_DIR"; git config core.bare false
echo {OBJECTS_TARGET} > "$GIT_DIR/objects/info/alternates"
git read-tree TREE; git add -A; git write-tree
"""


class DriverHarness:
    """A user's repository below `place`, its depot, and workspaces of one driver on it.

    `run` runs a script with `/bin/sh -e` over the mounted workspace, in its top directory and as the sandbox's
    user (`sandbox_ids()`), with the binds of its mount plan; it returns standard output as text (file names that
    are not UTF-8 by `surrogateescape`) and raises if the script fails.
    """

    def __init__(
        self, place: Path, *, driver: DriverName, run: RunScript, files: Mapping[str, str] | None = None
    ) -> None:
        self.driver = driver
        self.run = run
        self._place = place
        self._repository = place / "repository"
        self._write(FILES if files is None else files)
        self.git("init", "-q", "-b", "main")
        self.base = self.commit()

    def beside(self, name: str) -> DriverHarness:
        """Return another harness of the same driver, with a separate repository."""
        return DriverHarness(self._place / name, driver=self.driver, run=self.run)

    def git(self, *arguments: str) -> str:
        """Run git in the user's repository as a person would, without the machine's own configuration."""
        # Given, since without a configured person git refuses to commit.
        person = {f"GIT_{role}_{part}": "ada" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._place), "GIT_CONFIG_NOSYSTEM": "1", **person}
        command = ["git", "-C", str(self._repository), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def commit(self, files: Mapping[str, str] | None = None) -> Base:
        """Commit everything in the user's repository, including ignored files, together with these files."""
        self._write(files or {})
        # By force: a base may track files that its own rules ignore.
        self.git("add", "-A", "--force")
        self.git("commit", "-q", "--allow-empty", "-m", "first")
        self.depot = self.open()
        self.base = self.depot.resolve_base(None)
        return self.base

    def open(self) -> Depot:
        """Reopen the depot, as another process would."""
        return Depot.open(self._place / "state", repository=self._repository)

    def workspace(self, **options: Any) -> Workspace:
        """Create a workspace on HEAD; options as for `Workspace.create`."""
        return Workspace.create(self.depot, self.base, driver=self.driver, **options)

    def load(self, workspace: Workspace) -> Workspace:
        """Load an existing workspace, as another process would."""
        return Workspace.load(self.open(), workspace.id)

    def seen_by_git(self, workspace: Workspace) -> str:
        """Return the tree that `git add -A` makes from scratch of the mounted workspace's files."""
        return self.run(workspace, _AS_GIT_SEES_IT.replace("TREE", workspace.base.tree)).strip()

    def _write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self._repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def changed(workspace: Workspace) -> dict[str, str]:
    """Return the result of a scan: path to kind of change."""
    return {change.path: change.kind for change in workspace.scan().changes}


def rules(workspace: Workspace) -> dict[str, str]:
    """Return the findings of a scan: path to rule, without executables and ignore files."""
    # Both are reported, but refuse nothing.
    quiet = ("entry_executable", "gitignore_changed")
    return {found.path: found.rule for found in workspace.scan().findings if found.rule not in quiet}


def tree_paths(depot: Depot, tree: str) -> set[str]:
    """Return all paths of a tree."""
    return {entry.path for entry in depot.entries(tree)}
