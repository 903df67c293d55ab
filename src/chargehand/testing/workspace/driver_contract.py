"""The promises of every workspace driver, as checks that its author runs.

The checks are plain methods with asserts; pytest collects them from a subclass. They see a driver only through
`Workspace` and through scripts that run over the mounted workspace, and compare the results of a scan with git.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from chargehand.core.errors import NotFoundError
from chargehand.testing.workspace.attribute_contract import AttributeContract
from chargehand.testing.workspace.entry_contract import EntryContract
from chargehand.testing.workspace.harness import DriverHarness, changed, tree_paths
from chargehand.workspace.environment import EnvironmentLayers


class DriverContract(AttributeContract, EntryContract):
    """All promises of a workspace driver; subclass it and give its methods a `DriverHarness` as `harness`."""

    # --- fresh workspaces and git inside

    def test_a_fresh_workspace_is_the_base(self, harness: DriverHarness) -> None:
        """A fresh workspace contains only the base, nothing of the user's `.git`, and a scan finds no change."""
        workspace = harness.workspace()
        shown = harness.run(workspace, "cat README.md src/lib/util.py; test ! -e .git/hooks/pre-commit")
        assert shown == "hello\ndef f():\n    return 1\n"
        found = workspace.scan()
        assert (found.tree, found.changes, found.findings, found.files) == (workspace.base.tree, (), (), 0)

    def test_git_inside_is_clean_and_knows_the_branch(self, harness: DriverHarness) -> None:
        """An agent's git works, and knows from times alone (`diff-files` reads no file) that nothing changed."""
        workspace = harness.workspace()
        said = harness.run(
            workspace, "git diff-files; git status --porcelain; git log --format=%s; git branch --show-current"
        )
        assert said == "first\nmain\n"
        assert harness.run(workspace, "git fsck 2>&1 | grep -v dangling || true") == ""

    def test_git_commands_inside_hide_no_changes(self, harness: DriverHarness) -> None:
        """Changes that an agent commits, amends, stages, stashes or hides from git are scanned as on disk."""
        workspace = harness.workspace()
        harness.run(
            workspace,
            "echo one > committed; git add committed; git commit -qm c1;"
            "echo two >> committed; git commit -qa --amend -m c2;"
            "git rm -q docs/a.md; git mv docs/b.md docs/moved.md; git commit -qm c3;"
            "echo stashed > stashed; git add stashed; git stash -q; echo after > after;"
            "echo popped > popped; git add popped; git stash -q; git stash pop -q;"
            "echo staged > staged; git add staged;"
            "echo assumed >> README.md; git update-index --assume-unchanged README.md",
        )
        assert changed(workspace) == {
            "after": "added",
            "popped": "added",
            "staged": "added",
            "committed": "added",
            "docs/a.md": "deleted",
            "docs/b.md": "deleted",
            "docs/moved.md": "added",
            "README.md": "modified",
        }

    def test_a_hostile_git_directory_is_ignored(self, harness: DriverHarness) -> None:
        """The host neither runs nor trusts anything that an agent writes into `.git`."""
        workspace = harness.workspace()
        harness.run(
            workspace,
            "printf '[core]\\nfsmonitor = touch /run/pwned\\nhooksPath = .git/hooks\\n' >> .git/config;"
            "printf '#!/bin/sh\\ntouch pwned\\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout;"
            "echo '* filter=x diff=x' > .git/info/attributes; git config filter.x.clean 'touch pwned';"
            "echo '* filter=x' > .gitattributes; rm -rf .git; echo 'gitdir: /etc' > .git; echo x > x",
        )
        assert set(changed(workspace)) == {".gitattributes", "x"}
        workspace.checkpoint("x")
        assert "pwned" not in tree_paths(harness.depot, workspace.scan().tree)

    def test_the_base_never_changes(self, harness: DriverHarness) -> None:
        """Changes in one workspace do not appear in the next one on the same base."""
        workspace = harness.workspace()
        harness.run(
            workspace,
            "echo x >> README.md; printf X | dd of=docs/a.md conv=notrunc status=none; truncate -s 0 docs/b.md;"
            "chmod 700 run.sh; git gc -q; rm -rf src .git",
        )
        fresh = harness.workspace()
        # From the files: a cache would report earlier knowledge about the base.
        assert fresh.scan(trust_cache=False).tree == workspace.base.tree
        assert harness.run(fresh, "git status --porcelain; cat README.md docs/a.md docs/b.md") == "hello\na\nb\n"

    # --- checkpoints

    def test_checkpoints_are_chained_and_not_repeated(self, harness: DriverHarness) -> None:
        """Each checkpoint follows the last; the same tree makes no new one; another process sees them all."""
        workspace = harness.workspace()
        assert workspace.last() is None
        first = workspace.checkpoint("start")
        assert (first.tree, first.parent, first.changed) == (workspace.base.tree, workspace.base.commit, 0)
        assert workspace.checkpoint("again") == first
        harness.run(workspace, "echo x > x; echo y > y")
        second = workspace.checkpoint("after\na command")
        assert (second.parent, second.changed, second.trigger) == (first.commit, 2, "after a command")
        loaded = harness.load(workspace)
        assert loaded.last() == second
        assert list(loaded.checkpoints()) == [second, first]
        assert harness.depot.read_ref(workspace.ref) == second.commit
        assert harness.depot.read_commit(second.commit).parents == (first.commit,)

    def test_threads_that_checkpoint_make_one_chain(self, harness: DriverHarness) -> None:
        """Concurrent checkpoint requests run one after the other."""
        workspace = harness.workspace()
        harness.run(workspace, "echo x > x")
        # Three objects, as in three processes: a lock inside one of them would not suffice.
        same = [workspace, harness.load(workspace), harness.load(workspace)]
        with ThreadPoolExecutor(3) as pool:
            made = list(pool.map(lambda each: each.checkpoint("t").commit, same))
        assert len(set(made)) == 1
        assert len(list(workspace.checkpoints())) == 1

    def test_any_tree_can_be_shown_in_a_new_workspace(self, harness: DriverHarness) -> None:
        """A workspace can begin at a checkpoint instead of the base, and shows it exactly."""
        worked = harness.workspace()
        harness.run(
            worked, "mv docs moved; echo x > src/x; chmod +x run.sh; ln -s src/x l; rm README.md; echo t > tmp.log"
        )
        tree = worked.checkpoint("done").tree
        fresh = harness.workspace(tree=tree)
        assert fresh.scan().tree == tree
        shown = harness.run(fresh, "cat l moved/a.md; test -x run.sh; test ! -e tmp.log; test ! -e README.md")
        assert shown == "x\na\n"
        harness.run(fresh, "echo more > more")
        assert len(fresh.scan().changes) == len(worked.scan().changes) + 1

    # --- roll-back

    def test_rollback_shows_exactly_the_tree_and_can_be_undone(self, harness: DriverHarness) -> None:
        """A new mount shows exactly the tree; the previous content is a checkpoint."""
        workspace = harness.workspace()
        harness.run(
            workspace, "rm -r docs; echo x > docs; echo 2 >> README.md; rm run.sh; mkdir -p n/m; echo y > n/m/y"
        )
        edited = workspace.checkpoint("edited")
        harness.run(workspace, "rm docs; mkdir docs; echo z > docs/z; echo i > ignored.log; rm -r n src")
        old_plan = workspace.mount_plan()
        back = workspace.reset(edited.tree, "rollback")
        # A new generation: below a live mount, removed files can still be read.
        assert workspace.mount_plan() != old_plan
        shown = harness.run(workspace, "cat docs n/m/y; ls src; test ! -e ignored.log; test ! -e run.sh")
        assert shown == "x\ny\napp.py\nlib\n"
        assert workspace.scan().tree == edited.tree == back.tree == harness.seen_by_git(workspace)
        before = harness.depot.read_commit(back.commit).parents[0]
        undone = workspace.reset(harness.depot.tree_of(before), "undo")
        assert harness.run(workspace, "cat docs/z; test ! -e src; test ! -e n") == "z\n"
        assert undone.parent == back.commit
        workspace.reset(workspace.base.tree, "base")
        assert changed(workspace) == {}
        assert harness.run(workspace, "git status --porcelain") == ""

    def test_rollback_by_file(self, harness: DriverHarness) -> None:
        """Only the named paths go back; a directory goes back whole, and a file makes way for one."""
        workspace = harness.workspace()
        harness.run(
            workspace,
            "echo 1 > a; echo 1 > README.md; rm docs/a.md; mkdir n; touch n/1 n/2;rm -r src/lib; echo f > src/lib",
        )
        workspace.reset_paths(["README.md", "docs/a.md", "n", "no/such/path"], workspace.base.tree)
        assert changed(workspace) == {
            "a": "added",
            "src/lib": "added",
            "src/lib/util.py": "deleted",
            "src/lib/deep/data.txt": "deleted",
        }
        workspace.reset_paths(["src/lib/util.py"], workspace.base.tree)
        assert changed(workspace) == {"a": "added", "src/lib/deep/data.txt": "deleted"}
        assert workspace.scan().tree == harness.seen_by_git(workspace)

    def test_a_rollback_to_a_missing_tree_leaves_files_unchanged(self, harness: DriverHarness) -> None:
        """An unknown tree is refused before anything is touched."""
        workspace = harness.workspace()
        harness.run(workspace, "echo x > x")
        # A commit is refused too: the caller means a tree, and git would accept either.
        for nothing in ("0" * 40, "no tree", workspace.base.commit):
            assert _not_found(partial(workspace.reset, nothing, "rollback")) == "tree_not_found"
        assert changed(workspace) == {"x": "added"}

    def test_old_generations_can_be_tidied(self, harness: DriverHarness) -> None:
        """The remains of a roll-back are removed, and the present files stay."""
        workspace = harness.workspace()
        harness.run(workspace, "echo x > x")
        tree = workspace.checkpoint("x").tree
        workspace.reset(workspace.base.tree, "a")
        workspace.reset(tree, "b")
        workspace.tidy()
        assert len(list((workspace.directory / "generations").iterdir())) == 1
        assert harness.run(workspace, "cat x") == "x\n"

    # --- its end

    def test_discard_keeps_the_checkpoints(self, harness: DriverHarness) -> None:
        """All files are removed, whatever their modes; every checkpoint can be shown again."""
        workspace = harness.workspace()
        harness.run(workspace, "echo x > x; mkdir -p shut/in; touch shut/in/f; chmod 0 shut/in shut")
        kept = workspace.checkpoint("x")
        workspace.discard()
        workspace.discard()
        assert not workspace.directory.exists()
        assert harness.depot.read_ref(workspace.ref) == kept.commit
        assert _not_found(partial(harness.load, workspace)) == "workspace_not_found"
        assert harness.workspace(tree=kept.tree).scan().tree == kept.tree

    def test_usage_counts_ignored_files(self, harness: DriverHarness) -> None:
        """A disk limit covers everything that an agent writes anywhere in its workspace."""
        workspace = harness.workspace()
        before = workspace.usage()
        # Synced: blocks are counted, and some file systems allocate them only when a file is written out.
        harness.run(workspace, "mkdir build; head -c 100000 /dev/urandom > build/big; sync build/big")
        assert workspace.scan().bytes == 0
        assert workspace.usage()[1] - before[1] >= 100_000

    # --- environments

    def test_an_environment_layer_is_below_the_work(self, harness: DriverHarness) -> None:
        """The results of `setup` are present, are not part of the tree, and come back with a roll-back."""
        layers = EnvironmentLayers(harness.depot)
        key = layers.key(harness.base, command="make env", tier=harness.driver)
        assert layers.find(key) is None
        setup = harness.workspace()
        harness.run(
            setup,
            "mkdir -p .venv/bin build src/app.egg-info; echo tool > .venv/bin/tool; chmod +x .venv/bin/tool;"
            "echo changed > README.md; rm docs/a.md; echo info > src/app.egg-info/PKG; echo o > build/o;"
            # Unlike a tree a layer may contain outside links, as virtual environments do.
            "ln -s /usr/bin/env .venv/bin/env; git config user.name x; mkfifo .venv/fifo",
        )
        frozen = layers.freeze(setup, key)
        assert frozen.dropped == ("README.md", "docs/a.md")
        assert layers.find(key) == frozen.path
        workspace = harness.workspace(environment=frozen.path)
        shown = harness.run(
            workspace, ".venv/bin/env cat .venv/bin/tool README.md docs/a.md src/app.egg-info/PKG build/o"
        )
        assert shown == "tool\nhello\na\ninfo\no\n"
        assert harness.run(workspace, "ls .venv; git log --format=%an") == "bin\nada\n"
        harness.run(
            workspace,
            "echo x > .venv/new; rm .venv/bin/tool; echo y > src/app.egg-info/PKG; echo z > z; rm -r build;"
            "echo f > src/fresh.py; mkdir src/sub; echo f > src/sub/fresh.py",
        )
        assert changed(workspace) == {"z": "added", "src/fresh.py": "added", "src/sub/fresh.py": "added"}
        workspace.reset(workspace.base.tree, "back")
        assert harness.run(workspace, "cat .venv/bin/tool build/o src/app.egg-info/PKG") == "tool\no\ninfo\n"

    def test_tracked_files_of_the_base_hide_those_of_the_environment(self, harness: DriverHarness) -> None:
        """An environment made on another base hides nothing of this one."""
        # A separate repository: the harness is shared, and this commit would be the base of all later tests.
        harness = harness.beside("tracked-wins")
        setup = harness.workspace()
        harness.run(
            setup, "mkdir -p gen vendor; echo old > gen/made.py; echo v > vendor/v; mkdir clash; echo c > clash/c"
        )
        environment = EnvironmentLayers(harness.depot).freeze(setup, "k").path
        harness.commit({"gen/made.py": "tracked now\n", "clash": "a file now\n"})
        workspace = harness.workspace(environment=environment)
        assert harness.run(workspace, "cat gen/made.py clash vendor/v") == "tracked now\na file now\nv\n"
        assert changed(workspace) == {}
        harness.run(workspace, "rm -r gen; rm clash")
        tree = workspace.checkpoint("x").tree
        assert changed(workspace) == {"gen/made.py": "deleted", "clash": "deleted"}
        shown = harness.workspace(environment=environment, tree=tree)
        assert shown.scan().tree == tree
        assert harness.run(shown, "test ! -e gen/made.py; test ! -f clash; cat vendor/v") == "v\n"


def _not_found(work: Callable[[], object]) -> str:
    """Return the code of the `NotFoundError` that the work raises, or "found"."""
    try:
        work()
    except NotFoundError as problem:
        return problem.code
    return "found"
