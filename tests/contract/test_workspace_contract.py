"""What every workspace driver promises, proven with a real agent over the mounted workspace.

For a driver of your own: add its name to `DRIVERS` in `tests/workspace_kit.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.conftest import git
from tests.workspace_kit import DRIVERS, Yard, agent, changed, operate, oracle, rules, tree_paths, write

from chargehand.core import DriverName, NotFoundError
from chargehand.workspace import EnvironmentLayers, Workspace, WorkspaceLimits


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return Yard(tmp_path_factory.mktemp("yard"))


def test_fresh_workspace_is_the_base(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    assert agent(workspace, "cat README.md src/lib/util.py; test ! -e .git/hooks/pre-commit") == (
        "hello\ndef f():\n    return 1\n"
    )
    found = workspace.scan()
    assert (found.tree, found.changes, found.findings, found.files) == (workspace.base.tree, (), (), 0)


def test_git_inside_is_clean_and_knows_the_branch(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    said = agent(
        workspace, "git status --porcelain; git diff-files; git log --format=%s; git branch --show-current"
    )
    assert said == "first\nmain\n"
    assert agent(workspace, "git fsck 2>&1 | grep -v dangling || true") == ""


def test_every_kind_of_change(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(
        workspace,
        "echo more >> README.md; rm docs/a.md; mkdir -p new/dir; echo n > new/dir/file; chmod +x src/app.py;"
        "rm src/lib/util.py; ln -s app.py src/lib/util.py; touch docs/b.md; cp docs/b.md t; mv t docs/b.md;"
        "mkdir empty",
    )
    assert changed(workspace) == {
        "README.md": "modified",
        "docs/a.md": "deleted",
        "new/dir/file": "added",
        "src/app.py": "modified",
        "src/lib/util.py": "type_changed",
    }
    assert workspace.scan().tree == oracle(workspace, yard.depot())


@pytest.mark.parametrize(
    "script",
    [
        "rm -r src; echo x > src",
        "rm README.md; mkdir README.md; echo x > README.md/f",
        "rm -r docs; ln -s src docs",
        "rm -r docs; mkdir docs; echo c > docs/c.md",
        "mv src/lib src/moved",
        "mv src other; mkdir src; echo n > src/app.py",
        "rm -rf src/lib/deep; mkdir -p src/lib/deep/deeper; echo x > src/lib/deep/deeper/x",
        "rm -rf docs src run.sh README.md .gitignore",
        "echo x > 'a b'; mkdir -p 'd\\e'; echo y > 'd\\e/f'; echo z > -- ; echo w > :x; echo 1 > 'ü'",
    ],
)
def test_replacements_agree_with_git(yard: Yard, driver: DriverName, script: str) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, script)
    found = workspace.scan()
    assert found.tree == oracle(workspace, yard.depot())
    assert found.tree != workspace.base.tree
    assert not [f for f in found.findings if f.severity == "critical"]


def test_git_commands_inside_hide_nothing(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(
        workspace,
        "echo one > committed; git add committed; git commit -qm c1;"
        "echo two >> committed; git commit -qa --amend -m c2;"
        "git rm -q docs/a.md; git mv docs/b.md docs/moved.md; git commit -qm c3;"
        "echo stashed > stashed; git add stashed; git stash -q; echo after > after;"
        "echo staged > staged; git add staged;"
        "echo assumed >> README.md; git update-index --assume-unchanged README.md",
    )
    assert changed(workspace) == {
        "after": "added",
        "staged": "added",
        "committed": "added",
        "docs/a.md": "deleted",
        "docs/b.md": "deleted",
        "docs/moved.md": "added",
        "README.md": "modified",
    }


def test_stashed_and_popped(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "echo s > stashed; git add stashed; git stash -q; git stash pop -q")
    assert changed(workspace) == {"stashed": "added"}


def test_five_hundred_files_in_a_new_directory(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "mkdir many; for i in $(seq 500); do echo $i > many/$i; done")
    found = workspace.scan()
    assert len(found.changes) == found.files == 500
    assert found.tree == oracle(workspace, yard.depot())


def test_ignored_files_stay_outside(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(
        workspace,
        "echo x > a.log; echo x > keep.log; mkdir -p build/x vendor src/vendor; touch build/x/y vendor/z",
    )
    agent(workspace, "echo x > src/vendor/in; mkfifo build/pipe; git init -q build/sub")
    assert changed(workspace) == {"keep.log": "added", "src/vendor/in": "added"}
    assert rules(workspace) == {}
    assert workspace.scan().tree == oracle(workspace, yard.depot())


def test_included_files_belong_to_the_tree(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver, include=("build/out/*.txt", "trace.log"))
    agent(workspace, "mkdir -p build/out build/other; touch build/out/a.txt build/out/b.bin build/other/a.txt")
    agent(workspace, "echo x > trace.log; echo x > other.log; mkdir d; echo x > d/trace.log")
    assert set(changed(workspace)) == {"build/out/a.txt", "trace.log", "d/trace.log"}


def test_tracked_files_in_ignored_places_stay_tracked(tmp_path: Path, driver: DriverName) -> None:
    yard = Yard(tmp_path)
    (yard.repository / "build").mkdir()
    (yard.repository / "build/kept.txt").write_text("kept\n")
    git(yard.repository, "add", "-f", "build/kept.txt")
    yard.commit()
    workspace = yard.workspace(driver)
    agent(workspace, "echo more >> build/kept.txt; echo x > build/new.txt")
    assert changed(workspace) == {"build/kept.txt": "modified"}
    agent(workspace, "rm -r build; mkdir build; echo x > build/new.txt")
    assert changed(workspace) == {"build/kept.txt": "deleted"}


def test_changed_ignore_rules_wait_for_promotion(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(
        workspace,
        "echo '*.py' > .gitignore; echo x > a.py; echo y > b.log; mkdir n; echo '*' > n/.gitignore; echo z > n/f",
    )
    found = workspace.scan()
    assert {c.path for c in found.changes} == {".gitignore", "a.py", "n/.gitignore", "n/f"}
    assert {(f.rule, f.severity, f.path) for f in found.findings} == {
        ("gitignore_changed", "info", ".gitignore"),
        ("gitignore_changed", "info", "n/.gitignore"),
    }


@pytest.mark.parametrize(
    ("script", "path", "rule", "severity"),
    [
        ("mkfifo pipe", "pipe", "entry_special", "critical"),
        ("rm README.md; mkfifo README.md", "README.md", "entry_special", "critical"),
        (
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
            "sock",
            "entry_special",
            "critical",
        ),
        ("echo x > s; chmod u+s s", "s", "entry_setuid", "critical"),
        ("echo x > s; chmod g+s s", "s", "entry_setuid", "critical"),
        ("chmod u+s README.md", "README.md", "entry_setuid", "critical"),
        ("ln -s /etc/passwd l", "l", "entry_link_out", "critical"),
        ("ln -s ../up l", "l", "entry_link_out", "critical"),
        ("ln -s lib/../../../x src/l", "src/l", "entry_link_out", "critical"),
        ("ln -s ../../repository-evil/x src/l", "src/l", "entry_link_out", "critical"),
        ("ln -s .git/config l", "l", "entry_link_out", "critical"),
        ("rm README.md; ln -s /etc/passwd README.md", "README.md", "entry_link_out", "critical"),
        ("git init -q sub; echo x > sub/f", "sub/.git", "entry_nested_git", "critical"),
        ("mkdir src/.GIT", "src/.GIT", "entry_nested_git", "critical"),
        ("mkdir .Git", ".Git", "entry_nested_git", "critical"),
        ("echo x > git~1", "git~1", "entry_nested_git", "critical"),
        ("mkdir '.git '", ".git ", "entry_nested_git", "critical"),
        ("mkdir .git.", ".git.", "entry_nested_git", "critical"),
        ("mkdir \"$(printf '.g\\342\\200\\214it')\"", ".g\u200cit", "entry_nested_git", "critical"),
        ("touch \"$(printf 'a\\nb')\"", "a\nb", "entry_name", "critical"),
        ("touch \"$(printf 'a\\033[31mb')\"", "a\x1b[31mb", "entry_name", "critical"),
        ("touch \"$(printf 'a\\377b')\"", "a\udcffb", "entry_name", "critical"),
        ("touch \"$(printf 'a\\342\\200\\256b')\"", "a\u202eb", "entry_name", "critical"),
        ("touch 'a\\..\\b'", "a\\..\\b", "entry_name", "critical"),
        ("echo x > closed; chmod 0 closed", "closed", "entry_unreadable", "error"),
        ("mkdir shut; touch shut/f; chmod 0 shut", "shut", "entry_unreadable", "error"),
        ("truncate -s 1T huge", "huge", "quota", "critical"),
        ("echo x > tool; chmod +x tool", "tool", "entry_executable", "warning"),
        ("chmod +x run.sh", "run.sh", "entry_executable", "warning"),
    ],
)
def test_entry_rules(yard: Yard, driver: DriverName, script: str, path: str, rule: str, severity: str) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, f"echo fine > fine; {script}")
    found = workspace.scan()
    assert (path, rule, severity) in {(f.path, f.rule, f.severity) for f in found.findings}
    kept = {c.path for c in found.changes}
    assert "fine" in kept
    assert (path in kept) == (severity == "warning"), "an offending entry leaves the base's version at its path"
    assert {"README.md", "fine"} <= tree_paths(yard.depot(), found.tree)
    workspace.discard()


def test_links_that_stay_inside_are_kept_as_text(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "ln -s ../README.md src/l; ln -s nowhere dangling; ln -s . dot; ln -s ./src/app.py s")
    assert set(changed(workspace)) == {"src/l", "dangling", "dot", "s"}
    assert rules(workspace) == {}


def test_limits_of_count_and_disk(yard: Yard, driver: DriverName) -> None:
    few = yard.workspace(driver, limits=WorkspaceLimits(files=3))
    agent(few, "for i in 1 2 3 4 5; do echo $i > f$i; done")
    assert set(rules(few).values()) == {"quota"}
    assert few.scan().files == 3
    small = yard.workspace(driver, limits=WorkspaceLimits(disk_bytes=20_000))
    agent(small, "for i in 1 2 3; do head -c 9000 /dev/urandom > f$i; done")
    assert set(rules(small).values()) == {"quota"}
    deep = yard.workspace(driver)
    agent(deep, "p=.; for i in $(seq 300); do mkdir $p/d; p=$p/d; done; touch $p/f")
    assert set(rules(deep).values()) == {"quota"}
    deep.discard()


def test_content_that_looks_like_a_patch(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    content = "--- a/secret\n+++ b/secret\n@@ -1 +1 @@\ndiff --git a/other b/other\ndeleted file mode 100644\n"
    operate(workspace, [write("notes.txt", content), write("b/diff --git a", content)])
    assert changed(workspace) == {"notes.txt": "added", "b/diff --git a": "added"}
    found = workspace.scan()
    counts = yard.depot().numstat(workspace.base.tree, found.tree)
    assert {count.path for count in counts} == {"notes.txt", "b/diff --git a"}


def test_checkpoints_are_chained_and_not_repeated(yard: Yard, driver: DriverName) -> None:
    depot = yard.depot()
    workspace = yard.workspace(driver)
    assert workspace.last() is None
    first = workspace.checkpoint("start")
    assert (first.tree, first.parent, first.changed) == (workspace.base.tree, workspace.base.commit, 0)
    assert workspace.checkpoint("again") == first
    agent(workspace, "echo x > x; echo y > y")
    second = workspace.checkpoint("after\na command")
    assert (second.parent, second.changed, second.trigger) == (first.commit, 2, "after a command")
    loaded = Workspace.load(yard.open(), workspace.id)
    assert loaded.last() == second
    assert list(loaded.checkpoints()) == [second, first]
    assert depot.read_ref(workspace.ref) == second.commit
    assert depot.read_commit(second.commit).parents == (first.commit,)


def test_rollback_shows_exactly_the_tree_and_can_be_undone(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "rm -r docs; echo x > docs; echo 2 >> README.md; rm run.sh; mkdir -p n/m; echo y > n/m/y")
    edited = workspace.checkpoint("edited")
    agent(workspace, "rm docs; mkdir docs; echo z > docs/z; echo i > ignored.log; rm -r n src")
    old_plan = workspace.mount_plan()
    back = workspace.reset(edited.tree, "rollback")
    assert workspace.mount_plan() != old_plan
    assert agent(workspace, "cat docs n/m/y; ls src; test ! -e ignored.log; test ! -e run.sh") == (
        "x\ny\napp.py\nlib\n"
    )
    assert workspace.scan().tree == edited.tree == back.tree == oracle(workspace, yard.depot())
    before = yard.depot().read_commit(back.commit).parents[0]
    undone = workspace.reset(yard.depot().tree_of(before), "undo")
    assert agent(workspace, "cat docs/z; test ! -e src; test ! -e n") == "z\n"
    assert undone.parent == back.commit
    workspace.reset(workspace.base.tree, "base")
    assert changed(workspace) == {}
    assert agent(workspace, "git status --porcelain") == ""


def test_rollback_by_file(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(
        workspace,
        "echo 1 > a; echo 1 > README.md; rm docs/a.md; mkdir n; touch n/1 n/2; rm -r src/lib; echo f > src/lib",
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
    assert workspace.scan().tree == oracle(workspace, yard.depot())


def test_rollback_to_no_tree_changes_nothing(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "echo x > x")
    for nothing in ("0" * 40, "no tree", workspace.base.commit):
        with pytest.raises(NotFoundError) as caught:
            workspace.reset(nothing, "rollback")
        assert caught.value.code == "tree_not_found"
    assert changed(workspace) == {"x": "added"}


def test_any_tree_can_be_shown_in_a_new_workspace(yard: Yard, driver: DriverName) -> None:
    worked = yard.workspace(driver)
    agent(worked, "mv docs moved; echo x > src/x; chmod +x run.sh; ln -s src/x l; rm README.md; echo t > tmp.log")
    tree = worked.checkpoint("done").tree
    fresh = yard.workspace(driver, tree=tree)
    assert fresh.scan().tree == tree
    assert agent(fresh, "cat l moved/a.md; test -x run.sh; test ! -e tmp.log; test ! -e README.md") == "x\na\n"
    agent(fresh, "echo more > more")
    assert len(fresh.scan().changes) == len(worked.scan().changes) + 1


def test_the_base_never_changes(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "echo x >> README.md; rm -rf src docs; chmod 700 run.sh; git gc -q; rm -rf .git")
    assert yard.workspace(driver).scan().tree == workspace.base.tree
    assert agent(yard.workspace(driver), "git status --porcelain; cat README.md") == "hello\n"


def test_a_hostile_git_directory_is_nothing_to_us(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(
        workspace,
        "printf '[core]\\nfsmonitor = touch /run/pwned\\nhooksPath = .git/hooks\\n' >> .git/config;"
        "printf '#!/bin/sh\\ntouch pwned\\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout;"
        "echo '* filter=x diff=x' > .git/info/attributes; git config filter.x.clean 'touch pwned';"
        "echo '* filter=x' > .gitattributes; rm -rf .git; echo 'gitdir: /etc' > .git; echo x > x",
    )
    assert set(changed(workspace)) == {".gitattributes", "x"}
    workspace.checkpoint("x")
    assert "pwned" not in tree_paths(yard.depot(), workspace.scan().tree)


def test_discard_keeps_the_checkpoints(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "echo x > x; mkdir -p shut/in; touch shut/in/f; chmod 0 shut/in shut")
    kept = workspace.checkpoint("x")
    workspace.discard()
    workspace.discard()
    assert not workspace.directory.exists()
    depot = yard.depot()
    assert depot.read_ref(workspace.ref) == kept.commit
    with pytest.raises(NotFoundError) as caught:
        Workspace.load(depot, workspace.id)
    assert caught.value.code == "workspace_not_found"
    assert yard.workspace(driver, tree=kept.tree).scan().tree == kept.tree
    workspace.destroy()
    assert depot.read_ref(workspace.ref) is None


def test_old_generations_can_be_tidied(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "echo x > x")
    tree = workspace.checkpoint("x").tree
    workspace.reset(workspace.base.tree, "a")
    workspace.reset(tree, "b")
    workspace.tidy()
    assert len(list((workspace.directory / "generations").iterdir())) == 1
    assert agent(workspace, "cat x") == "x\n"


def test_environment_layer(yard: Yard, driver: DriverName) -> None:
    depot = yard.depot()
    layers = EnvironmentLayers(depot)
    key = layers.key(yard.base(), command="make env", toolchain="t", tier=driver)
    assert layers.find(key) is None
    setup = yard.workspace(driver)
    agent(
        setup,
        "mkdir -p .venv/bin build src/app.egg-info; echo tool > .venv/bin/tool; chmod +x .venv/bin/tool;"
        "echo changed > README.md; rm docs/a.md; echo info > src/app.egg-info/PKG; echo o > build/o;"
        "ln -s /usr/bin/env .venv/bin/env; git config user.name x; mkfifo .venv/fifo",
    )
    frozen = layers.freeze(setup, key)
    assert frozen.dropped == ("README.md", "docs/a.md")
    assert layers.find(key) == frozen.path
    workspace = yard.workspace(driver, environment=frozen.path)
    assert agent(
        workspace, ".venv/bin/env cat .venv/bin/tool README.md docs/a.md src/app.egg-info/PKG build/o"
    ) == ("tool\nhello\na\ninfo\no\n")
    assert agent(workspace, "ls .venv; git log --format=%an") == "bin\nAda\n"
    agent(
        workspace, "echo x > .venv/new; rm .venv/bin/tool; echo y > src/app.egg-info/PKG; echo z > z; rm -r build"
    )
    assert changed(workspace) == {"z": "added"}
    workspace.reset(workspace.base.tree, "back")
    assert agent(workspace, "cat .venv/bin/tool build/o") == "tool\no\n"


def test_what_base_tracks_wins_over_the_environment(tmp_path: Path, driver: DriverName) -> None:
    yard = Yard(tmp_path)
    layers = EnvironmentLayers(yard.depot())
    setup = yard.workspace(driver)
    agent(setup, "mkdir -p gen vendor; echo old > gen/made.py; echo v > vendor/v; mkdir clash; echo c > clash/c")
    environment = layers.freeze(setup, "k").path
    (yard.repository / "gen").mkdir()
    (yard.repository / "gen/made.py").write_text("tracked now\n")
    (yard.repository / "clash").write_text("a file now\n")
    yard.commit()
    workspace = yard.workspace(driver, environment=environment)
    assert agent(workspace, "cat gen/made.py clash vendor/v") == "tracked now\na file now\nv\n"
    assert changed(workspace) == {}
    agent(workspace, "rm -r gen; rm clash")
    tree = workspace.checkpoint("x").tree
    assert changed(workspace) == {"gen/made.py": "deleted", "clash": "deleted"}
    shown = yard.workspace(driver, environment=environment, tree=tree)
    assert shown.scan().tree == tree
    assert agent(shown, "test ! -e gen/made.py; test ! -f clash; cat vendor/v") == "v\n"


def test_usage_counts_what_is_ignored_too(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    before = workspace.usage()
    agent(workspace, "mkdir build; head -c 100000 /dev/urandom > build/big")
    assert workspace.scan().bytes == 0
    assert workspace.usage()[1] - before[1] >= 100_000


def test_two_threads_checkpoint_one_chain(yard: Yard, driver: DriverName) -> None:
    workspace = yard.workspace(driver)
    agent(workspace, "echo x > x")
    same = [workspace, Workspace.load(yard.open(), workspace.id), Workspace.load(yard.open(), workspace.id)]
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda each: each.checkpoint("t").commit, same))
    assert len(set(made)) == 1
    assert len(list(workspace.checkpoints())) == 1
