"""Repositories of every shape: each behaviour stated in docs/reference/trees.md is tested here.

The tests through the command line are in tests/integration/test_bad_input_repository.py.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import git, make_repository, write_files
from tests.workspace_kit import FILES, WorkspaceKit, agent, changed, oracle, rules

from chargehand.core.errors import RepositoryError
from chargehand.core.ports import DriverName
from chargehand.workspace.checkout import _content_ids, fast_forward
from chargehand.workspace.depot import Depot
from chargehand.workspace.export import export_branch
from chargehand.workspace.repository import find_repository
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.workspace import Workspace

DRIVERS: tuple[DriverName, ...] = ("overlay", "worktree")
PIN = "1" * 40


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name


@pytest.fixture
def kit(tmp_path: Path) -> WorkspaceKit:
    return WorkspaceKit(tmp_path / "crashes")


def work(repository: Path, root: Path, script: str = "echo x > new", driver: DriverName = "overlay") -> Workspace:
    """Let an agent work on HEAD of a repository; the fresh workspace must equal the base."""
    depot = Depot.open(root, repository=repository)
    workspace = Workspace.create(depot, depot.resolve_base(), driver=driver)
    assert workspace.scan().tree == workspace.base.tree
    agent(workspace, script)
    return workspace


def promoted(depot: Depot, workspace: Workspace) -> str:
    """Commit the tree of a workspace and export it; return the commit."""
    tree = workspace.checkpoint("done").tree
    commit = depot.commit(tree, (workspace.base.commit,), "done\n")
    assert export_branch(depot, commit, branch="chargehand/x", expected_old=None).state == "done"
    return commit


def refused(path: Path, code: str) -> RepositoryError:
    with pytest.raises(RepositoryError) as caught:
        find_repository(path)
    assert caught.value.code == code
    assert caught.value.hint
    return caught.value


# --- formats that git itself must understand


def test_formats_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    git(repository, "config", "core.repositoryformatversion", "1")
    git(repository, "config", "extensions.nosuchthing", "x")
    assert "nosuchthing" in refused(repository, "repository_format").message
    (repository / ".git/config").write_text("[core\n")
    assert "config" in refused(repository, "repository_format").message
    sha256 = tmp_path / "sha256"
    sha256.mkdir()
    git(sha256, "init", "-q", "--object-format=sha256")
    write_files(sha256, FILES)
    git(sha256, "add", "-A")
    git(sha256, "commit", "-qm", "x")
    assert "SHA-256" in refused(sha256, "repository_format").message


def test_reftable_works_if_git_supports_the_format_and_is_rejected_otherwise(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    try:
        git(repository, "init", "-q", "--ref-format=reftable")
    except subprocess.CalledProcessError:
        repository = make_repository(tmp_path / "other", FILES)
        git(repository, "config", "core.repositoryformatversion", "1")
        git(repository, "config", "extensions.refstorage", "reftable")
        assert "refstorage" in refused(repository, "repository_format").message
        return
    write_files(repository, FILES)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "x")
    assert changed(work(repository, tmp_path / "state")) == {"new": "added"}


def test_branch_names_that_are_not_utf8(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    run = ["git", "-C", os.fsencode(repository)]
    subprocess.run([*run, "branch", b"caf\xe9"], check=True)
    subprocess.run([*run, "branch", "-q", "-u", b"caf\xe9"], check=True)
    workspace = work(repository, tmp_path / "state")
    assert workspace.base.upstream == "caf\\xe9"
    assert Workspace.load(Depot.open(tmp_path / "state", repository=repository), workspace.id).id == workspace.id
    with pytest.raises(RepositoryError) as caught:
        Depot.open(tmp_path / "state", repository=repository).resolve_base(os.fsdecode(b"caf\xe9"))
    assert caught.value.code == "base_not_found"
    subprocess.run([*run, "checkout", "-q", b"caf\xe9"], check=True)
    assert "'caf\\udce9'" in refused(repository, "repository_format").message


def test_replaced_objects_are_not_believed(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    first = git(repository, "rev-parse", "HEAD")
    (repository / "second").write_text("second\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    git(repository, "replace", "HEAD", first)
    depot = Depot.open(tmp_path / "state", repository=repository)
    assert depot.lookup(depot.resolve_base().tree, "second") is not None


def test_packed_refs_only(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    git(repository, "gc", "-q", "--prune=now")
    assert not (repository / ".git/refs/heads/main").exists()
    depot = Depot.open(tmp_path / "state", repository=repository)
    commit = promoted(depot, work(repository, tmp_path / "state"))
    assert git(repository, "rev-parse", "chargehand/x") == commit


def test_an_undeterminable_status_counts_as_dirty(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", {**FILES, ".gitattributes": "* filter=x\n"})
    assert not Depot.open(tmp_path / "state", repository=repository).resolve_base().dirty
    for key, value in (("clean", "false"), ("required", "true")):
        git(repository, "config", f"filter.x.{key}", value)
    (repository / "README.md").write_text("HELLO\n")
    assert Depot.open(tmp_path / "state", repository=repository).resolve_base().dirty


# --- content of the tree


@pytest.mark.parametrize(
    ("script", "changes", "finding"),
    [
        ("rmdir module", {"module": "deleted"}, None),
        ("mv module elsewhere", {"module": "deleted"}, None),
        ("rmdir module; mkdir module", {}, None),
        ("echo x > module/f", {}, "entry_submodule"),
        ("rmdir module; echo x > module", {}, "entry_submodule"),
        ("rmdir module; ln -s src module", {}, "entry_submodule"),
    ],
)
def test_submodules_are_links_that_may_only_go(
    kit: WorkspaceKit, driver: DriverName, script: str, changes: dict[str, str], finding: str | None
) -> None:
    git(kit.repository, "update-index", "--add", "--cacheinfo", f"160000,{PIN},module")
    git(kit.repository, "commit", "-qm", "module")
    workspace = kit.workspace(driver)
    agent(workspace, script)
    assert changed(workspace) == changes
    assert rules(workspace).get("module") == finding
    entry = kit.depot().lookup(workspace.scan().tree, "module")
    assert (entry.id if entry else None) == (None if changes else PIN)


@pytest.mark.parametrize("place", ["src", "src/lib/deep", "README.md", "new"])
def test_a_submodule_replacing_another_entry_is_an_empty_directory(
    kit: WorkspaceKit, driver: DriverName, place: str
) -> None:
    base = kit.base()
    git(kit.repository, "rm", "-rq", "--cached", "--ignore-unmatch", place)
    git(kit.repository, "update-index", "--add", "--cacheinfo", f"160000,{PIN},{place}")
    git(kit.repository, "commit", "-qm", "module")
    tree = kit.depot().resolve_base().tree
    workspace = Workspace.create(kit.depot(), base, driver=driver, tree=tree)
    found = workspace.scan()
    assert (found.tree, found.findings) == (tree, ())
    assert agent(workspace, f"find {place}").split() == [place]
    agent(workspace, f"echo x > {place}/f")
    assert rules(workspace) == {place: "entry_submodule"}


def test_a_submodule_cannot_be_added(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    agent(
        workspace,
        "printf '[submodule \"m\"]\\n\\tpath = m\\n\\turl = -u./evil\\n' > .gitmodules;"
        "mkdir m; printf 'gitdir: ../evil\\n' > m/.git; echo x > m/f;"
        f"git update-index --add --cacheinfo 160000,{PIN},n",
    )
    assert rules(workspace) == {"m/.git": "entry_nested_git"}
    assert set(changed(workspace)) == {".gitmodules", "m/f"}


def test_export_is_blocked_with_the_reason_if_git_rejects_the_objects(kit: WorkspaceKit) -> None:
    """With `fetch.fsckObjects` git refuses a hostile `.gitmodules`, each time: no branch, and no object of it."""
    git(kit.repository, "config", "fetch.fsckObjects", "true")
    workspace = kit.workspace()
    agent(workspace, "printf '[submodule \"m\"]\\n\\tpath = m\\n\\turl = -u./evil\\n' > .gitmodules")
    depot = kit.depot()
    commit = depot.commit(workspace.scan().tree, (kit.base().commit,), "x\n")
    for branch in ("chargehand/x", "chargehand/x", "chargehand/y"):
        done = export_branch(depot, commit, branch=branch, expected_old=None)
        assert (done.state, "gitmodules" in done.reason, "\n" in done.reason) == ("blocked", True, False)
        assert git(kit.repository, "branch", "--format=%(refname:short)") == "main"
        held = git(kit.repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
        assert not {commit, depot.tree_of(commit)} & set(held)
    assert not list((kit.repository / ".git/objects").glob("tmp_objdir-*"))
    applied = fast_forward(depot, commit, branch="main", at=kit.base().commit)
    assert (applied.state, "gitmodules" in applied.reason) == ("blocked", True)


def test_a_name_that_makes_an_old_blob_hostile_is_refused_each_time(kit: WorkspaceKit) -> None:
    """The repository already has the blob, so git checks it only after it accepted the tree."""
    (kit.repository / "notes").write_text('[submodule "m"]\n\tpath = m\n\turl = -u./evil\n')
    kit.commit()
    git(kit.repository, "config", "fetch.fsckObjects", "true")
    workspace = kit.workspace()
    agent(workspace, "mv notes .gitmodules")
    depot = kit.depot()
    commit = depot.commit(workspace.scan().tree, (kit.base().commit,), "x\n")
    states = [export_branch(depot, commit, branch="chargehand/x", expected_old=None).state for _ in range(2)]
    assert states == ["blocked", "blocked"]


def test_outward_links_of_the_base_are_kept_and_changed_targets_rejected(
    kit: WorkspaceKit, driver: DriverName
) -> None:
    for name, target in (("out", "/etc"), ("up", "../../x"), ("dir", "src")):
        os.symlink(target, kit.repository / name)
    kit.commit()
    workspace = kit.workspace(driver)
    agent(workspace, "rm dir; ln -s docs dir; echo x > src/new")
    assert changed(workspace) == {"dir": "modified", "src/new": "added"}
    assert rules(workspace) == {}
    agent(workspace, "rm out; ln -s /usr out")
    assert rules(workspace) == {"out": "entry_link_out"}
    assert "out" not in changed(workspace)


def test_case_twins_are_two_files(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path / "crashes", {"a": "small\n", "A": "large\n", "dir/x": "x\n", "DIR/x": "X\n"})
    workspace = kit.workspace(driver)
    agent(workspace, "echo more >> A; echo more >> DIR/x; mkdir Dir; echo x > Dir/x")
    assert changed(workspace) == {"A": "modified", "DIR/x": "modified", "Dir/x": "added"}
    assert workspace.scan().tree == oracle(workspace, kit.depot())


def test_filter_and_export_attributes_are_ignored_and_conversions_applied(
    kit: WorkspaceKit, driver: DriverName
) -> None:
    attributes = (
        "*.txt text=auto eol=crlf\n*.id ident\n*.u working-tree-encoding=UTF-16\n"
        "hidden export-ignore\n*.sub export-subst\n*.bin filter=lfs\n"
    )
    (kit.repository / ".gitattributes").write_text(attributes)
    kit.commit()
    workspace = kit.workspace(driver)
    contents = {
        "a.txt": b"a\r\nb\n",
        "b.id": b"$Id: x $\n",
        "c.u": b"\xff\xfea\0",
        "hidden": b"h",
        "v.sub": b"$Format:%H$",
    }
    contents["big.bin"] = b"\0whole, and no pointer"
    for name, content in contents.items():
        octal = "".join(f"\\{byte:03o}" for byte in content)
        agent(workspace, f"printf '{octal}' > {name}")
    found = workspace.scan()
    assert set(changed(workspace)) == set(contents)
    assert rules(workspace) == {"big.bin": "entry_filter"}
    contents |= {"a.txt": b"a\nb\n", "b.id": b"$Id$\n", "c.u": b"a"}
    for name, content in contents.items():
        entry = kit.depot().lookup(found.tree, name)
        assert entry is not None
        assert kit.depot().read_blob(entry.id) == content


def test_only_the_owners_execute_bit_counts(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    agent(workspace, "chmod 600 README.md; chmod 677 docs/a.md; chmod 711 src/app.py")
    assert changed(workspace) == {"src/app.py": "modified"}
    assert workspace.scan().tree == oracle(workspace, kit.depot())


def test_names_of_255_bytes_and_paths_of_4000(tmp_path: Path, driver: DriverName) -> None:
    name = "n" * 250
    deep = "/".join([name] * 15)
    kit = WorkspaceKit(tmp_path / "y", {**FILES, "x" * 255: "x\n"})
    workspace = kit.workspace(driver)
    agent(workspace, f"mkdir -p {deep}; cd {deep}; echo x > {'f' * 230}; cd -; echo more >> {'x' * 255}")
    assert changed(workspace) == {f"{deep}/{'f' * 230}": "added", "x" * 255: "modified"}
    kept = workspace.checkpoint("deep")
    assert kit.workspace(driver, tree=kept.tree).scan().tree == kept.tree
    assert workspace.reset(kit.base().tree, "back").tree == kit.base().tree
    commit = kit.depot().commit(kept.tree, (kit.base().commit,), "deep\n")
    assert export_branch(kit.depot(), commit, branch="chargehand/x", expected_old=None).state == "done"
    workspace.discard()
    assert not workspace.directory.exists()


def nested(repository: Path, depth: int) -> str:
    """Commit a file below that many directories; return their path."""
    script = f"for i in $(seq {depth}); do mkdir d; cd d; done; echo x > f"
    subprocess.run(["sh", "-ec", script], cwd=repository, check=True)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "deep")
    return "/".join(["d"] * depth)


def test_directories_200_deep_are_editable_but_new_directories_are_limited(
    kit: WorkspaceKit, driver: DriverName
) -> None:
    deep = nested(kit.repository, 200)
    workspace = kit.workspace(driver)
    agent(workspace, f"echo more >> {deep}/f; echo y > {deep}/g; mkdir {deep}/new; echo z > {deep}/new/z")
    assert changed(workspace) == {f"{deep}/f": "modified", f"{deep}/g": "added"}
    assert set(rules(workspace).values()) == {"quota"}, "new directories may be 128 deep"


def test_a_repository_without_commits_is_rejected_and_an_empty_commit_works(
    tmp_path: Path, driver: DriverName
) -> None:
    repository = tmp_path / "empty"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    refused(repository, "repository_empty")
    git(repository, "commit", "-q", "--allow-empty", "-m", "nothing")
    workspace = work(repository, tmp_path / "state", driver=driver)
    assert changed(workspace) == {"new": "added"}


def test_a_huge_file_is_refused_and_not_read(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    agent(workspace, "truncate -s 2G huge; truncate -s 2G README.md")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = workspace.scan()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "KiB"
    assert rules(workspace) == {"huge": "quota", "README.md": "quota"}
    assert found.tree == kit.base().tree


@pytest.mark.soak
def test_100_000_files(kit: WorkspaceKit) -> None:
    for number in range(1000):
        place = kit.repository / f"d{number}"
        place.mkdir()
        for other in range(100):
            (place / f"f{other}").write_text(f"{number} {other}\n")
    kit.commit()
    workspace = kit.workspace()
    agent(workspace, "echo more >> d500/f50; rm -r d7; for i in $(seq 500); do echo x > d9/n$i; done")
    found = workspace.scan()
    assert len(found.changes) == 601
    assert found.tree == oracle(workspace, kit.depot())


def test_new_files_beyond_the_file_limit_are_quota_findings(kit: WorkspaceKit) -> None:
    workspace = kit.workspace(limits=WorkspaceLimits(files=50))
    agent(workspace, "for i in $(seq 60); do echo x > n$i; done")
    found = workspace.scan()
    assert found.files == 50
    assert [finding.rule for finding in found.findings] == ["quota"] * 10


# --- forms of the user's checkout


def test_a_sparse_checkout_stays_sparse(kit: WorkspaceKit) -> None:
    git(kit.repository, "sparse-checkout", "set", "src")
    assert not (kit.repository / "docs").exists()
    workspace = kit.workspace()
    agent(workspace, "echo more >> docs/a.md; echo more >> src/app.py; echo new > docs/new.md")
    commit = promoted(kit.depot(), workspace)
    assert fast_forward(kit.depot(), commit, branch="main", at=kit.base().commit).state == "done"
    assert not (kit.repository / "docs").exists()
    assert git(kit.repository, "show", "HEAD:docs/new.md") == "new"
    assert git(kit.repository, "status", "--porcelain") == ""


def test_apply_asks_git_once_for_any_number_of_paths(tmp_path: Path) -> None:
    names = [b"plain", b'qu"ote', b"back\\slash", b"new\nline", b"latin\xe9", b"\x01"]
    repository = make_repository(tmp_path / "repository", {".gitattributes": "* text eol=crlf\n"})
    for name in names:
        Path(os.fsdecode(os.path.join(os.fsencode(repository), name))).write_bytes(b"a\r\n")
    os.symlink("target", repository / "link")
    (repository / "directory").mkdir()
    asked = [*names, b"link", b"directory", b"gone", b"gone/below"]
    found = _content_ids(find_repository(repository).git, os.fsencode(repository), asked)
    assert set(found) == {*names, b"link"}
    assert {found[name] for name in names} == {"78981922613b2afb6025042ff6bd878ac1994e85"}, (
        "as git stores it: a\\n"
    )


def test_a_crash_half_way_through_20_000_files_is_mended(kit: WorkspaceKit) -> None:
    """So many paths do not fit on a command line."""
    depot, base = kit.depot(), kit.base()
    blob = depot.lookup(base.tree, "README.md")
    assert blob is not None
    git(kit.repository, "rm", "-rqf", "--cached", ".")
    listed = "".join(f"100644 {blob.id}\t{'x' * 120}{number}\n" for number in range(20_000))
    subprocess.run(
        ["git", "update-index", "--index-info"], cwd=kit.repository, input=listed, text=True, check=True
    )
    tree = git(kit.repository, "write-tree")
    many = git(kit.repository, "commit-tree", "-p", base.commit, "-m", "many", tree)
    git(kit.repository, "reset", "-q", base.commit)
    there = kit.open()
    there.git("fetch", "-q", "--update-shallow", str(kit.repository / ".git"), f"{many}:refs/chargehand/many")
    journal = f'{{"branch":"main","at":"{base.commit}","commit":"{many}"}}'
    (kit.root / "apply.json").write_text(journal)
    (kit.repository / "README.md").write_text("mine\n")
    assert fast_forward(there, many, branch="main", at=base.commit).state == "blocked"
    assert (kit.repository / "README.md").read_text() == "mine\n"


# --- incomplete repositories


@pytest.mark.parametrize("lost", ["HEAD~1:old", "HEAD~1:directory", "HEAD~2"])
@pytest.mark.parametrize("borrowed", [False, True])
def test_a_lost_object_of_an_old_commit_is_no_hindrance(tmp_path: Path, lost: str, borrowed: bool) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    write_files(repository, {"old": "old\n", "directory/x": "x\n"})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "old")
    git(repository, "rm", "-rq", "old", "directory")
    git(repository, "commit", "-qm", "gone")
    gone = git(repository, "rev-parse", lost)
    (repository / ".git/objects" / gone[:2] / gone[2:]).unlink()
    if borrowed:  # so that nothing can be linked, and all has to be fetched
        (repository / ".git/objects/info/alternates").write_text(f"{tmp_path}\n")
    workspace = work(repository, tmp_path / "state")
    assert agent(workspace, "git status --porcelain; git log --format=%s") == "?? new\ngone\n"
    depot = Depot.open(tmp_path / "state", repository=repository)
    commit = promoted(depot, workspace)  # a lost commit can make the user's own git fail at a fast-forward
    assert lost == "HEAD~2" or fast_forward(depot, commit, branch="main", at=workspace.base.commit).state == "done"
    assert changed(work(repository, tmp_path / "state", "echo y > y")) == {"y": "added"}


def test_a_lost_object_of_the_base_itself_is_named(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    gone = git(repository, "rev-parse", "HEAD:README.md")
    (repository / ".git/objects" / gone[:2] / gone[2:]).unlink()
    with pytest.raises(RepositoryError) as caught:
        work(repository, tmp_path / "state")
    assert caught.value.code == "repository_incomplete"
    assert gone in caught.value.message


def test_a_partial_clone_works_once_it_is_checked_out(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin", FILES)
    git(origin, "config", "uploadpack.allowFilter", "true")
    (origin / "README.md").write_text("second\n")
    git(origin, "commit", "-qam", "second")
    clone = ("-c", "protocol.file.allow=always", "clone", "-q", "--filter=blob:none", f"file://{origin}")
    git(tmp_path, *clone, "clone")
    git(tmp_path, *clone, "--no-checkout", "bare-bones")
    shutil.rmtree(origin)
    workspace = work(tmp_path / "clone", tmp_path / "state")
    depot = Depot.open(tmp_path / "state", repository=tmp_path / "clone")
    commit = promoted(depot, workspace)
    assert git(tmp_path / "clone", "rev-parse", "chargehand/x") == commit
    with pytest.raises(RepositoryError) as caught:
        work(tmp_path / "bare-bones", tmp_path / "other")
    assert caught.value.code == "repository_incomplete"


@pytest.mark.parametrize("borrowed", [False, True])
def test_grafts_are_not_believed(tmp_path: Path, borrowed: bool) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/grafts").write_text(git(repository, "rev-parse", "HEAD") + "\n")
    if borrowed:
        (repository / ".git/objects/info/alternates").write_text(f"{tmp_path}\n")
    assert agent(work(repository, tmp_path / "state"), "git log --format=%s") == "second\nfirst\n"


def test_a_base_that_is_nested_too_deeply_is_refused(kit: WorkspaceKit) -> None:
    nested(kit.repository, 400)
    with pytest.raises(RepositoryError) as caught:
        kit.workspace()
    assert caught.value.code == "base_tree"


def test_changes_of_executable_parts_of_an_embedded_bare_repository_are_refused(tmp_path: Path) -> None:
    files = {"HEAD": "ref: refs/heads/main\n", "config": "[core]\n\tbare = true\n", "refs/heads/x": "x\n"}
    held = {f"data/x.git/{name}": text for name, text in {**files, "objects/info/packs": "\n"}.items()}
    kit = WorkspaceKit(tmp_path, {"f": "f\n", **held, "data/y.git/HEAD": "x\n", "data/y.git/config": "\n"})
    for driver in ("overlay", "worktree"):
        workspace = kit.workspace(driver)
        agent(
            workspace,
            "cd data/x.git; echo '[core] fsmonitor = evil' >> config; mkdir hooks; echo evil > hooks/post-commit; "
            "echo .. > commondir; echo y > refs/heads/y; echo y > ../y.git/config",
        )
        found = workspace.scan()
        said = [(f.rule, f.severity, f.path) for f in found.findings]
        assert said == [
            ("entry_nested_git", "critical", f"data/x.git/{name}") for name in ("config", "commondir", "hooks")
        ]
        assert [change.path for change in found.changes] == ["data/x.git/refs/heads/y", "data/y.git/config"]
        agent(workspace, "rm data/x.git/config")
        assert "data/x.git/config" in {f.path for f in workspace.scan().findings}
        agent(workspace, "rm -r data/x.git")
        assert workspace.scan().findings == ()
