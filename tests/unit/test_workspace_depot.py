"""The depot: objects read from the user's repository, objects kept, and refusals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.conftest import git, repository_state
from tests.trees_kit import make_tree
from tests.workspace_kit import WorkspaceKit, agent, operate, tree_paths, write

from chargehand.core.errors import NotFoundError, RepositoryError
from chargehand.workspace.bases import BaseLayers
from chargehand.workspace.depot import BASES, Depot
from chargehand.workspace.errors import RefMovedError
from chargehand.workspace.export import export_branch, export_notes


def code_of(root: Path, repository: Path) -> str:
    with pytest.raises(RepositoryError) as caught:
        Depot.open(root, repository=repository)
    assert caught.value.hint
    return caught.value.code


def test_a_recorded_base_is_resolved_without_the_repository(kit: WorkspaceKit) -> None:
    depot = kit.depot()
    base = depot.resolve_base()
    again = depot.resolve_base(base.commit, recorded=True)
    assert (again.commit, again.tree, again.revision) == (base.commit, base.tree, base.commit)
    other = git(kit.repository, "commit-tree", "-m", "x", base.tree)
    assert depot.resolve_base(other, recorded=True).commit == other  # the depot does not have this one yet
    shutil.rmtree(kit.repository / ".git")
    assert depot.resolve_base(base.commit, recorded=True) == again
    with pytest.raises(RepositoryError):
        depot.resolve_base("main", recorded=True)


def test_an_invalid_empty_or_sha256_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert code_of(tmp_path / "s", tmp_path / "plain") == "not_a_repository"
    assert code_of(tmp_path / "s", tmp_path / "absent") == "not_a_repository"
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    assert code_of(tmp_path / "s", tmp_path / "empty") == "repository_empty"
    assert code_of(tmp_path / "s", tmp_path / "empty/.git/refs") == "not_a_repository"
    (tmp_path / "new").mkdir()
    git(tmp_path / "new", "init", "-q", "--object-format=sha256")
    assert code_of(tmp_path / "s", tmp_path / "new") == "repository_format"
    assert not (tmp_path / "s").exists()


@pytest.mark.needs_root
def test_another_users_repository_is_refused(kit: WorkspaceKit) -> None:
    for path in (kit.repository / ".git", kit.repository):
        os.chown(path, 12345, 12345)
    assert code_of(kit.root, kit.repository) == "repository_owner"


def test_found_from_a_directory_inside(kit: WorkspaceKit) -> None:
    depot = Depot.open(kit.root, repository=kit.repository / "src/lib")
    assert depot.repository.path == kit.repository
    assert (depot.repository.branch, depot.repository.bare) == ("main", False)


def test_resolving_a_base_is_read_only_and_reports_its_branch_state(kit: WorkspaceKit, tmp_path: Path) -> None:
    depot = kit.depot()
    before = repository_state(kit.repository)
    base = depot.resolve_base()
    head = git(kit.repository, "rev-parse", "HEAD")
    assert (base.commit, base.branch, base.upstream, base.behind, base.dirty) == (head, "main", None, None, False)
    assert base.tree == git(kit.repository, "rev-parse", "HEAD^{tree}")
    assert repository_state(kit.repository) == before
    git(tmp_path, "clone", "-q", str(kit.repository), "clone")
    kit.commit("ahead")
    git(tmp_path / "clone", "fetch", "-q")
    (tmp_path / "clone/untracked").touch()
    behind = Depot.open(tmp_path / "other", repository=tmp_path / "clone").resolve_base("main")
    assert (behind.branch, behind.upstream, behind.behind, behind.dirty) == ("main", "origin/main", 1, True)


@pytest.mark.parametrize(
    "state",
    [
        "clean",
        "untracked",
        "staged",
        "renamed",
        "behind",
        "upstream gone",
        "a branch called HEAD",
        "bad filter",
    ],
)
def test_head_and_the_name_of_its_branch_are_the_same_base(kit: WorkspaceKit, tmp_path: Path, state: str) -> None:
    git(tmp_path, "clone", "-q", str(kit.repository), "clone")
    clone = tmp_path / "clone"
    if state == "untracked":
        (clone / "# branch.oid").touch()
    elif state == "staged":
        (clone / "README.md").write_text("other\n")
        git(clone, "add", "README.md")
    elif state == "renamed":
        git(clone, "mv", "README.md", "# branch.head other")
    elif state == "behind":
        kit.commit("ahead")
        git(clone, "fetch", "-q")
    elif state == "upstream gone":
        git(clone, "update-ref", "-d", "refs/remotes/origin/main")
    elif state == "a branch called HEAD":
        git(clone, "update-ref", "refs/heads/HEAD", "HEAD")
    elif state == "bad filter":
        git(clone, "config", "filter.x.clean", "false")
        git(clone, "config", "filter.x.required", "true")
        (clone / ".gitattributes").write_text("README.md filter=x\n")
        (clone / "README.md").write_text("hullo\n")
    depot = Depot.open(tmp_path / "other", repository=clone)
    head, branch = depot.resolve_base(), depot.resolve_base("main")
    assert replace(head, revision="main") == branch
    assert head.upstream == "origin/main"
    assert head.behind == {"behind": 1, "upstream gone": None}.get(state, 0)
    assert head.dirty is (state in ("untracked", "staged", "renamed", "bad filter"))


def test_few_git_processes_from_a_fresh_depot_to_an_exported_branch(
    kit: WorkspaceKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    run = subprocess.run

    def counted(words: Any, **how: Any) -> subprocess.CompletedProcess[Any]:
        if words[0] == "git":
            ran.append(words)
        return run(words, **how)

    monkeypatch.setattr(subprocess, "run", counted)
    workspace = kit.workspace()
    operate(workspace, [write("README.md", "changed\n")])
    made = workspace.checkpoint("end")
    depot, base = kit.depot(), kit.base()
    assert depot.merge(base.commit, made.commit).tree == made.tree
    commit = depot.commit(made.tree, (base.commit,), "done")
    depot.swap("refs/heads/chargehand/x", commit, None, durable=True)
    depot.annotate(commit, "note")
    assert export_branch(depot, commit, branch="chargehand/x", expected_old=None).state == "done"
    assert export_notes(depot, commit)
    assert len(ran) <= 11, ran  # each takes 3 to 10 ms: more than the work around it


def test_finding_a_repository_loads_no_library_for_its_objects(kit: WorkspaceKit) -> None:
    program = (
        "import sys; from pathlib import Path; from chargehand.workspace.repository import find_repository\n"
        "find_repository(Path(sys.argv[1]))\n"
        "assert not {'pygit2', 'chargehand.workspace.depot'} & set(sys.modules)\n"
        "import chargehand.workspace.depot, chargehand.workspace.workspace\n"
        "assert 'pygit2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, str(kit.repository)], check=True)


def test_detached_and_other_revisions(kit: WorkspaceKit) -> None:
    first = git(kit.repository, "rev-parse", "HEAD")
    git(kit.repository, "tag", "v1")
    second = kit.commit()
    git(kit.repository, "checkout", "-q", "--detach")
    depot = kit.depot()
    assert (depot.resolve_base().commit, depot.resolve_base().branch) == (second, None)
    assert (depot.resolve_base("v1").commit, depot.resolve_base("v1").branch) == (first, None)
    assert (depot.resolve_base("HEAD~1").commit, depot.resolve_base("main").branch) == (first, "main")
    for wrong in ("nope", "--all", "HEAD:README.md", ""):
        if wrong:
            with pytest.raises(RepositoryError) as caught:
                depot.resolve_base(wrong)
            assert caught.value.code == "base_not_found"
            assert repr(wrong) in caught.value.message
    with pytest.raises(RepositoryError) as refused:
        depot.check_can_apply()
    assert refused.value.code == "apply_detached"


def test_a_bare_repository_can_be_worked_on_but_not_applied_to(kit: WorkspaceKit, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(kit.repository), "bare.git")
    depot = Depot.open(kit.root, repository=tmp_path / "bare.git")
    assert depot.repository.bare
    assert depot.resolve_base().dirty is False
    with pytest.raises(RepositoryError) as refused:
        depot.check_can_apply()
    assert refused.value.code == "apply_bare"


def test_a_linked_worktree_is_a_repository(kit: WorkspaceKit, tmp_path: Path) -> None:
    git(kit.repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    depot = Depot.open(kit.root, repository=tmp_path / "side")
    base = depot.resolve_base()
    assert (base.branch, depot.repository.path) == ("side", tmp_path / "side")
    assert depot.base_layers(base).files == 8


def test_a_shallow_clone_works_and_is_shallow_in_the_workspace(kit: WorkspaceKit, tmp_path: Path) -> None:
    for number in range(3):
        (kit.repository / "README.md").write_text(f"{number}\n")
        kit.commit(f"c{number}")
    git(tmp_path, "clone", "-q", "--depth=2", f"file://{kit.repository}", "shallow")
    kit.repository = tmp_path / "shallow"
    workspace = kit.workspace("worktree")
    assert agent(workspace, "git log --format=%s; git status --porcelain; git fsck") == "c2\nc1\n"
    commit = kit.commit("later")
    assert kit.depot().resolve_base().commit == commit


def test_a_base_survives_garbage_collection_in_the_repository(kit: WorkspaceKit) -> None:
    depot = kit.depot()
    base = depot.resolve_base()
    git(kit.repository, "checkout", "-q", "--orphan", "other")
    git(kit.repository, "commit", "-q", "-m", "other")
    git(kit.repository, "branch", "-q", "-D", "main")
    git(kit.repository, "rm", "-q", "-r", "--cached", ".")
    git(kit.repository, "commit", "-q", "-m", "nothing")
    git(kit.repository, "reflog", "expire", "--expire=now", "--all")
    git(kit.repository, "gc", "-q", "--prune=now")
    assert kit.open().base_layers(base).files == 8
    assert subprocess.run(["git", f"--git-dir={depot.path}", "fsck", "--strict"], check=False).returncode == 0
    assert not (depot.path / "objects/info/alternates").exists()


def test_a_repository_with_borrowed_objects_is_copied(kit: WorkspaceKit, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--shared", str(kit.repository), "borrowing")
    depot = Depot.open(tmp_path / "other", repository=tmp_path / "borrowing")
    base = depot.resolve_base()
    assert not (depot.path / "objects/info/alternates").exists()
    assert depot.base_layers(base).files == 8
    assert depot.read_ref(BASES + base.commit) == base.commit


def test_base_files_are_as_a_clone_has_them_without_filters(kit: WorkspaceKit, tmp_path: Path) -> None:
    (kit.repository / ".gitattributes").write_text(
        "*.txt text eol=crlf\n*.id ident\nhidden export-ignore\n*.sub export-subst\n"
        "*.u working-tree-encoding=UTF-16\n*.bin filter=lfs diff=lfs\n"
    )
    contents = {
        "a.txt": "a\nb\n",
        "x.id": "$Id$\n",
        "hidden": "h\n",
        "v.sub": "$Format:%H$\n",
        "big.bin": "pointer\n",
    }
    for name, text in contents.items():
        (kit.repository / name).write_text(text)
    os.symlink("../outside", kit.repository / "link")
    (kit.repository / "run.sh").chmod(0o755)
    (kit.repository / os.fsdecode(b"raw-\xff")).write_text("raw\n")
    kit.commit()
    git(kit.repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git(kit.repository, "commit", "-q", "-m", "module")
    base = kit.base()
    layers = kit.depot().base_layers(base)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(kit.repository), str(clone))
    for name in contents:
        assert (layers.tree / name).read_bytes() == (clone / name).read_bytes()
    assert (layers.tree / "a.txt").read_bytes() == b"a\r\nb\r\n"
    assert os.readlink(layers.tree / "link") == "../outside"
    assert (layers.tree / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (layers.tree / os.fsdecode(b"raw-\xff")).read_text() == "raw\n"
    assert list((layers.tree / "module").iterdir()) == []
    assert (layers.submodules, layers.lfs) == (("module",), True)
    assert len({path.lstat().st_mtime for path in layers.tree.rglob("*") if not path.is_dir()}) == 1
    for driver in ("overlay", "worktree"):
        workspace = kit.workspace(driver)
        assert agent(workspace, "git status --porcelain; git diff-files") == ""
        agent(workspace, "echo x > module/inside; printf r2 > \"$(printf 'raw-\\377')\"; rm link")
        found = workspace.scan()
        assert {c.path for c in found.changes} == {"raw-\udcff", "link"}
        assert ("entry_submodule", "module") in {(f.rule, f.path) for f in found.findings}
        agent(workspace, "rm -r module")
        assert "module" in {c.path for c in workspace.scan().changes}


def test_a_base_contains_only_objects_reachable_from_its_commit(kit: WorkspaceKit) -> None:
    first = kit.base()
    (kit.repository / "secret").write_text("of another branch\n")
    git(kit.repository, "checkout", "-q", "-b", "other")
    other = kit.commit()
    git(kit.repository, "checkout", "-q", "main")
    (kit.repository / "README.md").write_text("second\n")
    kit.commit()
    depot = kit.open()
    depot.resolve_base("other")
    layers = [depot.base_layers(first), depot.base_layers(depot.resolve_base())]

    def objects(place: Path) -> set[str]:
        environment = {"GIT_OBJECT_DIRECTORY": str(place), "PATH": os.environ["PATH"]}
        listed = subprocess.run(
            ["git", f"--git-dir={depot.path}", "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"],
            env=environment,
            capture_output=True,
            check=True,
        )
        return set(listed.stdout.decode().split())

    reachable = {line.split()[0] for line in git(kit.repository, "rev-list", "--objects", "main").splitlines()}
    assert objects(layers[1].objects) == reachable
    assert objects(layers[0].objects) < reachable
    assert other not in reachable
    packs = [{(p.name, p.stat().st_ino) for p in (each.objects / "pack").glob("*.pack")} for each in layers]
    assert packs[0] < packs[1], "the later base shares the earlier one's pack and adds the difference"


def test_other_content_has_another_time_so_caches_cannot_mix_bases_up(kit: WorkspaceKit) -> None:
    one = kit.depot().base_layers(kit.base())
    (kit.repository / "README.md").write_text("# Other\n")
    kit.commit()
    two = kit.depot().base_layers(kit.base())
    times = [(each.tree / "README.md").stat().st_mtime for each in (one, two)]
    assert times[0] != times[1]


def test_a_later_base_hard_links_equal_files_and_writes_the_others(kit: WorkspaceKit, tmp_path: Path) -> None:
    place, clone = kit.repository, tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(place), str(clone))

    def shown(root: Path) -> dict[str, tuple[str, bytes]]:
        found = {}
        for path in sorted(root.rglob("*")):
            if path.is_symlink():
                kind, content = "link", os.fsencode(os.readlink(path))
            elif path.is_dir():
                kind, content = "directory", b""
            else:
                kind, content = "x" if path.stat().st_mode & 0o100 else "-", path.read_bytes()
            found[str(path.relative_to(root))] = (kind, content)
        return {name: each for name, each in found.items() if name.partition("/")[0] != ".git"}

    def base_of(what: str) -> BaseLayers:
        kit.commit()
        layers = kit.depot().base_layers(kit.base())
        git(clone, "fetch", "-q")
        git(clone, "reset", "-q", "--hard", "FETCH_HEAD")
        # A clone keeps files of which only attributes changed: reset it to a fresh clone's content.
        git(clone, "rm", "-rqf", "--cached", ".")
        git(clone, "reset", "-q", "--hard")
        assert shown(layers.tree) == shown(clone), what
        environment = {"GIT_OBJECT_DIRECTORY": str(layers.objects), "PATH": os.environ["PATH"]}
        status = ["git", f"--git-dir={layers.git / '.git'}", f"--work-tree={layers.tree}", "diff-files", "--raw"]
        dirty = subprocess.run(status, env=environment, capture_output=True, check=True).stdout
        assert dirty == b"", f"{what}: its index does not know its files"
        return layers

    def same(one: BaseLayers, other: BaseLayers, name: str) -> bool:
        return (one.tree / name).lstat().st_ino == (other.tree / name).lstat().st_ino

    for name in ("top.txt", "deep/a.txt", "deep/b.bin", "deep/down/c.txt", "tool", "turns/x"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{name}\nsecond line\n")
    (place / "link").symlink_to("top.txt")
    first = base_of("the first")
    (place / "deep/down/c.txt").write_text("other\n")
    second = base_of("one file changed")
    alike = ("top.txt", "deep/a.txt", "deep/b.bin", "link", "README.md")
    assert [same(first, second, name) for name in alike] == [True] * len(alike)
    assert not same(first, second, "deep/down/c.txt")
    (place / "deep/.gitattributes").write_text("*.txt text eol=crlf\n")
    third = base_of("attributes of a directory")
    assert b"\r\n" in (third.tree / "deep/a.txt").read_bytes()
    assert (same(second, third, "deep/b.bin"), same(second, third, "top.txt")) == (True, True)
    (place / "deep/.gitattributes").unlink()
    (place / "tool").chmod(0o755)
    shutil.rmtree(place / "turns")
    (place / "turns").write_text("a file now\n")
    (place / "link").unlink()
    (place / "link").mkdir()
    (place / "link/below").write_text("a directory now\n")
    (place / "deep/down/c.txt").write_text("deep/down/c.txt\nsecond line\n")
    fourth = base_of("kinds and modes")
    assert same(third, fourth, "top.txt")
    assert not same(third, fourth, "tool")
    shutil.rmtree(kit.root / "bases" / kit.base().commit)
    assert shown(first.tree)["deep/down/c.txt"] == ("-", b"deep/down/c.txt\nsecond line\n")


@pytest.mark.parametrize("meta", ["of another version", "damaged"])
def test_files_of_an_outdated_or_damaged_base_are_not_linked(kit: WorkspaceKit, meta: str) -> None:
    first = kit.depot().base_layers(kit.base())
    (first.tree / "README.md").write_text("as an older version wrote it\n")
    file = first.tree.parent / "meta.json"
    file.write_bytes(b"{" if meta == "damaged" else file.read_bytes().replace(b'"version":2', b'"version":1'))
    (kit.repository / "more.txt").write_text("more\n")
    kit.commit()
    second = kit.depot().base_layers(kit.base())
    assert (second.tree / "README.md").read_bytes() == (kit.repository / "README.md").read_bytes()
    assert (second.tree / "README.md").stat().st_nlink == 1


def test_a_later_base_is_complete_although_files_of_an_earlier_base_are_missing(kit: WorkspaceKit) -> None:
    (kit.repository / "deep").mkdir()
    (kit.repository / "deep/a.txt").write_text("a\n")
    kit.commit()
    first = kit.depot().base_layers(kit.base())
    shutil.rmtree(first.tree / "deep")
    (kit.repository / "more.txt").write_text("more\n")
    kit.commit()
    second = kit.depot().base_layers(kit.base())
    assert (second.tree / "deep/a.txt").read_text() == "a\n"


def test_trees_are_read_compared_and_edited(kit: WorkspaceKit) -> None:
    depot, old = kit.depot(), kit.base().tree
    (kit.repository / "README.md").write_text("changed\n")
    (kit.repository / "docs/a.md").unlink()
    (kit.repository / "bin").write_bytes(b"\0\1")
    kit.commit()
    new = kit.base().tree
    changes = {change.path: change.kind for change in depot.diff(old, new)}
    assert changes == {"README.md": "modified", "bin": "added", "docs/a.md": "deleted"}
    assert {c.path: (c.added, c.removed) for c in depot.numstat(old, new)} == {
        "README.md": (1, 1),
        "bin": (None, None),
        "docs/a.md": (0, 1),
    }
    entry = depot.lookup(new, "README.md")
    assert entry is not None
    assert depot.read_blob(entry.id) == b"changed\n"
    assert (depot.read_blob(entry.id, limit=3), depot.blob_size(entry.id)) == (b"cha", 8)
    assert depot.lookup(new, "README.md/x") is None
    assert [e.path for e in depot.entries(new, "src/lib/")] == ["src/lib/deep/data.txt", "src/lib/util.py"]
    assert depot.entries(new, "nope") == ()
    mixed = depot.replace_paths(new, ["docs", "bin", "no/such"], old)
    assert {c.path for c in depot.diff(old, mixed)} == {"README.md"}
    git(kit.repository, "checkout", "-q", "HEAD~1")
    patch = depot.patch(old, new, ["README.md", "bin"])
    subprocess.run(["git", "-C", str(kit.repository), "apply"], input=patch, check=True)
    assert (kit.repository / "bin").read_bytes() == b"\0\1"
    assert (kit.repository / "docs/a.md").exists()
    with pytest.raises(NotFoundError):
        depot.read_blob("0" * 40)


def test_a_loose_packed_or_symbolic_ref_is_read(kit: WorkspaceKit) -> None:
    depot, base = kit.depot(), kit.base()
    name = "refs/chargehand/test/kept"
    assert depot.read_ref(name) is None
    depot.swap(name, base.commit, None)
    assert depot.read_ref(name) == base.commit
    depot.git("pack-refs", "--all")
    assert not (depot.path / name).exists()
    assert depot.read_ref(name) == base.commit
    depot.git("symbolic-ref", "refs/chargehand/test/other", name)
    assert depot.read_ref("refs/chargehand/test/other") == base.commit
    depot.swap(name, None, base.commit)
    assert depot.read_ref(name) is None
    assert depot.read_ref("refs/chargehand/test") is None


def test_swapping_a_ref_with_a_wrong_old_value_raises(kit: WorkspaceKit) -> None:
    depot, base = kit.depot(), kit.base()
    depot.swap("refs/chargehand/missions/m", base.commit, None)
    later = depot.commit(base.tree, (base.commit,), "message ü")
    assert (
        git(kit.repository, "--git-dir", str(depot.path), "log", "-1", "--format=%an %s", later)
        == "Chargehand message ü"
    )
    for wrong in (None, later):
        with pytest.raises(RefMovedError) as caught:
            depot.swap("refs/chargehand/missions/m", later, wrong)
        assert (caught.value.code, caught.value.actual) == ("ref_moved", base.commit)
    depot.swap("refs/chargehand/missions/m", later, base.commit, durable=True)
    assert depot.read_ref("refs/chargehand/missions/m") == later
    depot.swap("refs/chargehand/missions/m", None, later)
    assert depot.read_ref("refs/chargehand/missions/m") is None


def _edited(depot: Depot, kit: WorkspaceKit, script: str) -> str:
    workspace = kit.workspace("worktree")
    agent(workspace, script)
    return workspace.checkpoint("edit").commit


@pytest.mark.parametrize("version", [(2, 30), (2, 39), (2, 45)])
def test_merges(kit: WorkspaceKit, version: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    import chargehand.workspace.merge as merging

    if version < merging.git_version():
        monkeypatch.setattr(merging, "git_version", lambda: version)
    depot = kit.depot()
    ours = _edited(depot, kit, "echo ours > ours; echo 1 > README.md")
    theirs = _edited(depot, kit, "echo theirs > theirs; echo t >> docs/a.md")
    clash = _edited(depot, kit, "echo 2 > README.md; echo c > clean")
    merged = depot.merge(ours, theirs)
    assert merged.conflicts == ()
    assert merged.tree is not None
    assert {"ours", "theirs"} <= tree_paths(depot, merged.tree)
    refused = depot.merge(ours, clash)
    assert (refused.tree, refused.conflicts) == (None, ("README.md",))
    assert [(found.path, found.kind) for found in refused.details] == [("README.md", "content")]
    assert depot.merge(kit.base().commit, theirs).tree == depot.tree_of(theirs)
    assert depot.merge(ours, clash, base=ours).tree is not None


def test_the_size_of_an_object_is_read_from_its_beginning(kit: WorkspaceKit) -> None:
    depot, random = kit.depot(), Random(3)
    # Words of many letters, some frequent and some rare: such a text has long tables.
    weights = [1.02**number for number in range(300)]
    words = [bytes(random.choices(range(32, 256), weights[:224], k=random.randint(2, 30))) for _ in range(300)]
    texts = [b" ".join(random.choices(words, weights, k=size)) for size in (6_000, 0, 1, 300)]
    tree = make_tree(depot, {str(number): text for number, text in enumerate(texts)})
    assert [depot.blob_size(each.id) for each in depot.entries(tree)] == [len(text) for text in texts]
