"""The drivers' contract notices a broken driver: each of these breaks it in one way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.workspace_kit import agent

from chargehand.core.registry import Registered
from chargehand.testing.workspace.driver_contract import DriverContract
from chargehand.testing.workspace.harness import DriverHarness
from chargehand.workspace.drivers import DRIVERS, Generation, WorktreeDriver


class HardLinks(WorktreeDriver):
    """Shares the base's files themselves."""

    def make(self, place: Generation, **what: Any) -> None:
        super().make(place, **what)
        for path in (self.root(place) / "README.md", self.root(place) / "docs/a.md"):
            path.unlink()
            os.link(place.layers.tree / path.relative_to(self.root(place)), path)


class NoGit(WorktreeDriver):
    """Leaves the agent without its `.git`."""

    def make(self, place: Generation, **what: Any) -> None:
        super().make(place, **what)
        shutil.rmtree(self.root(place) / ".git")


class Untimely(WorktreeDriver):
    """Does not keep the times that the agent's index knows."""

    def make(self, place: Generation, **what: Any) -> None:
        super().make(place, **what)
        os.utime(self.root(place) / "README.md")


class Leftovers(WorktreeDriver):
    """Leaves a file of the driver's in the workspace."""

    def make(self, place: Generation, **what: Any) -> None:
        super().make(place, **what)
        (self.root(place) / "own").write_text("own\n")


class NoEnvironment(WorktreeDriver):
    """Forgets the environment layer that `setup` made."""

    def make(self, place: Generation, **what: Any) -> None:
        super().make(structs.replace(place, environment=None), **what)


class Blind(WorktreeDriver):
    """Has the scan walk the base instead of the agent's files."""

    def root(self, place: Generation) -> Path:
        made = super().root(place)
        return place.layers.tree if made.exists() and place.directory.name.isdecimal() else made

    def plan(self, place: Generation) -> Any:
        return structs.replace(super().plan(place), plain=super().root(place))


class Rewinds(WorktreeDriver):
    """Shows the base's tree, whatever tree was requested."""

    def make(self, place: Generation, *, base: bytes, **what: Any) -> None:
        super().make(place, **{**what, "tree": base}, base=base)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (HardLinks, DriverContract.test_the_base_never_changes),
        (NoGit, DriverContract.test_git_inside_is_clean_and_knows_the_branch),
        (Untimely, DriverContract.test_git_inside_is_clean_and_knows_the_branch),
        (Leftovers, DriverContract.test_a_fresh_workspace_is_the_base),
        (NoEnvironment, DriverContract.test_an_environment_layer_is_below_the_work),
        (Blind, DriverContract.test_every_kind_of_change),
        (Rewinds, DriverContract.test_rollback_shows_exactly_the_tree_and_can_be_undone),
        (Rewinds, DriverContract.test_any_tree_can_be_shown_in_a_new_workspace),
    ],
)
def test_a_broken_driver_does_not_pass(
    broken: type[WorktreeDriver],
    check: Callable[[DriverContract, DriverHarness], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(DRIVERS._own, "worktree", Registered("worktree", broken))
    with pytest.raises(AssertionError):
        check(DriverContract(), DriverHarness(tmp_path, driver="worktree", run=agent))
