"""Repositories as found in the wild: each works or is refused with a specific error; no repository is harmed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import FILES, MEND, PASSES, Cli, Completed, repository, shell, untouched
from tests.conftest import git, make_repository, repository_state, write_files

pytestmark = pytest.mark.needs_bwrap

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
SHELL_LATIN = "printf x > $(printf 'caf\\\\351.txt')"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


def run_words(*words: str) -> tuple[str, ...]:
    return ("run", "mend", "--agent", MEND, *PASSES, *words)


def changed(repo: Path, result: Completed) -> list[str]:
    """Return the paths that the exported branch changes against its base."""
    assert result.code == 0, result
    branch = result.document["branch"]
    return git(repo, "diff", "--name-only", "-z", f"{branch}^", branch).rstrip("\0").split("\0")


def test_not_a_repository(cli: Cli, tmp_path: Path) -> None:
    write_files(tmp_path, {"plain/f.txt": "a\n"})
    with untouched(tmp_path):
        cli.refused("not_a_repository", 2, *run_words(), cwd=tmp_path / "plain")
        cli.refused("not_a_repository", 2, *run_words("--repo", str(tmp_path / "gone")), cwd=tmp_path)
        cli.refused("not_a_repository", 2, *run_words("--repo", "plain/f.txt"), cwd=tmp_path)


def test_empty_repository(cli: Cli, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    with untouched(tmp_path):
        cli.refused("repository_empty", 2, *run_words(), cwd=tmp_path)


def test_missing_base(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    with untouched(repo):
        for name in ("no-such-branch", "0" * 40, "--help", ""):
            error = cli.refused("base_not_found", 2, *run_words(f"--base={name}"), cwd=repo)
            assert repr(name) in error["message"] or not name
    assert cli.missions(repo) == []


def test_bare_repository(cli: Cli, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repository(tmp_path / "repo")), "bare.git")
    bare = tmp_path / "bare.git"
    with untouched(bare):
        cli.refused("apply_bare", 2, *run_words("--apply"), cwd=bare)
        assert cli.missions(bare) == []
        result = cli.run(bare)
    assert changed(bare, result) == ["f.txt"]


def test_detached_head(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    git(repo, "checkout", "-q", "--detach")
    before = repository_state(repo)
    cli.refused("apply_detached", 2, *run_words("--apply"), cwd=repo)
    assert cli.missions(repo) == []
    assert changed(repo, cli.run(repo)) == ["f.txt"]
    assert repository_state(repo) == before


class TestDirtyTree:
    """Uncommitted changes are not part of the work and are never overwritten."""

    def test_works_from_the_commit_and_says_so(self, cli: Cli, tmp_path: Path) -> None:
        repo = repository(tmp_path / "repo")
        write_files(repo, {"f.txt": "mine\n", "g.txt": "staged\n", "new.txt": "untracked\n"})
        git(repo, "add", "g.txt")
        (repo / "sub/h.txt").unlink()
        before = repository_state(repo)
        done = cli.say(*run_words(), cwd=repo, as_json=False)
        assert done.code == 0, done
        assert "uncommitted changes are not part of it" in done.stdout
        assert git(repo, "show", "chargehand/mend:f.txt") == "baa"
        assert git(repo, "diff", "--name-only", "main", "chargehand/mend") == "f.txt"
        assert repository_state(repo) == before

    @pytest.mark.parametrize(
        ("dirty", "agent"),
        [
            ({"f.txt": "mine\n"}, MEND),
            ({"new.txt": "mine\n"}, shell("echo theirs > new.txt")),
            ({".gitignore": "new.txt\n", "new.txt": "mine\n"}, shell("echo theirs > new.txt")),
            ({"new/deep.txt": "mine\n"}, shell("echo theirs > new")),
            ({"new": "mine\n"}, shell("mkdir new; echo theirs > new/deep.txt")),
        ],
        ids=["changed file", "untracked file", "ignored file", "directory in the way", "file in the way"],
    )
    def test_apply_is_refused_if_it_would_overwrite_uncommitted_changes(
        self, cli: Cli, tmp_path: Path, dirty: dict[str, str], agent: str
    ) -> None:
        repo = repository(tmp_path / "repo")
        write_files(repo, dirty)
        before = repository_state(repo)
        result = cli.run(repo, "--apply", agent=agent)
        assert (result.code, result.document["status"]) == (3, "promoted"), result
        assert result.document["export"]["state"] == "done"
        applied = cli.state(result).applied
        assert applied is not None
        assert applied.state == "blocked"
        assert f"chargehand mission promote {result.document['mission']}" in applied.reason
        assert repository_state(repo) == before

    def test_apply_keeps_unrelated_changes_and_works_after_a_conflict_is_removed(
        self, cli: Cli, tmp_path: Path
    ) -> None:
        repo = repository(tmp_path / "repo")
        write_files(repo, {"f.txt": "mine\n", "g.txt": "mine\n", "new.txt": "mine\n"})
        blocked = cli.run(repo, "--apply")
        assert blocked.code == 3
        git(repo, "checkout", "-q", "f.txt")
        done = cli.say("mission", "promote", blocked.document["mission"], cwd=repo)
        assert done.code == 0, done
        assert git(repo, "rev-parse", "main") == blocked.document["commit"]
        assert (repo / "f.txt").read_text() == "baa\n"
        assert git(repo, "status", "--porcelain") == "M g.txt\n?? new.txt"
        assert (repo / "g.txt").read_text() == "mine\n"


def test_submodules_are_kept_and_untouched(cli: Cli, tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner")
    repo = repository(tmp_path / "repo")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "module")
    git(repo, "commit", "-qm", "module")
    pinned = git(repo, "rev-parse", "HEAD:module")
    with untouched(repo, inner):
        result = cli.run(repo, agent=shell("sed -i s/a/b/ f.txt; ls module"))
        assert changed(repo, result) == ["f.txt"]
        assert git(repo, "rev-parse", f"{result.document['branch']}:module") == pinned
        into = cli.run(repo, agent=shell("mkdir -p module; echo x > module/evil; sed -i s/a/b/ f.txt"))
        assert changed(repo, into) == ["f.txt"]
        findings = cli.state(into).verdicts[-1].findings
        assert [(found.rule, found.path) for found in findings] == [("entry_submodule", "module")]
        only = cli.run(repo, agent=shell("echo x > module/evil"))
        # The first reason decides; the excluded path is reported too.
        assert (only.code, only.reasons) == (1, {"no_change", "entry_submodule"}), only
        assert only.document["reasons"][0]["code"] == "no_change"
        wrong = cli.refused("directory_invalid", 2, "run", "mend", "--agent", MEND, "--dir", "module", cwd=repo)
        assert "--repo module" in wrong["hint"]


def test_lfs_pointers_are_kept_unchanged(cli: Cli, tmp_path: Path) -> None:
    files = {**FILES, ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "big.bin": POINTER}
    repo = make_repository(tmp_path / "repo", files)
    for part in ("process", "smudge", "clean"):
        git(repo, "config", f"filter.lfs.{part}", "false")
    git(repo, "config", "filter.lfs.required", "true")
    before = repository_state(repo)
    result = cli.run(repo, agent=shell("grep -q git-lfs big.bin && sed -i s/a/b/ f.txt"))
    assert changed(repo, result) == ["f.txt"]
    assert git(repo, "show", f"{result.document['branch']}:big.bin") == POINTER.strip()
    assert repository_state(repo) == before


def test_names_that_are_not_utf8(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    odd = os.fsdecode(b"caf\xe9 \xff/na\xefve.txt")
    write_files(repo, {odd: "odd\n"})
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "odd")
    with untouched(repo):
        kept = cli.run(repo)
        assert changed(repo, kept) == ["f.txt"]
        touched = cli.run(repo, agent=shell("echo more >> $(echo caf*)/na*"))
        assert touched.code in (0, 1), touched
        made = cli.run(repo, agent=shell(f"sed -i s/a/b/ f.txt; {SHELL_LATIN}"))
        assert (made.code, made.document["status"], made.reasons) == (1, "refused", {"entry_name"}), made
        shown = cli.say("mission", "diff", touched.document["mission"], cwd=repo)
        assert shown.code == 0


_MEASURED = (
    "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, flush=True); sys.exit(code)"
)


def test_a_huge_sparse_file_is_refused_without_being_read(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    before = repository_state(repo, without="\0")
    agent = shell("truncate -s 1G big; sed -i s/a/b/ f.txt")
    words = ["run", "m", "--agent", agent, *PASSES]
    # Start it from a small process: after a fork from a large process, the peak memory is that of the large one.
    measured = subprocess.run(
        [sys.executable, "-c", _MEASURED, sys.executable, "-m", "chargehand", "--json", *words],
        cwd=repo,
        env=cli.environ,
        capture_output=True,
        text=True,
    )
    *document, peak = measured.stdout.splitlines()
    result = Completed(code=measured.returncode, stdout="\n".join(document), stderr=measured.stderr)
    assert (result.code, result.document["status"], result.reasons) == (1, "refused", {"quota"}), result
    assert int(peak) < 300_000, "KiB: the file was read into memory"
    assert repository_state(repo, without="\0") == before


def test_many_big_files_and_a_big_file_in_the_base(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    (repo / "big.bin").write_bytes(os.urandom(1 << 20) * 12)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "big")
    assert changed(repo, cli.run(repo)) == ["f.txt"]
    touched = cli.run(repo, agent=shell("echo more >> big.bin"))
    assert changed(repo, touched) == ["big.bin"]


class TestBranches:
    """The branch that a result is exported to."""

    def test_a_branch_named_chargehand_blocks_the_export_until_renamed(self, cli: Cli, tmp_path: Path) -> None:
        repo = repository(tmp_path / "repo")
        mission = cli.run(repo, "--break-at", "promote").document["mission"]
        git(repo, "branch", "chargehand")  # one that exists already is found before the work
        before = repository_state(repo)
        cli.say("mission", "resume", mission, cwd=repo)
        cli.say("worker", "--until-idle", cwd=repo)
        result = cli.say("mission", "show", mission, cwd=repo)
        assert result.document["status"] == "promoted", result
        export = result.document["export"]
        assert (export["state"], result.document["branch"]) == ("blocked", None)
        assert "'chargehand'" in export["reason"]
        assert f"chargehand mission promote {mission}" in export["reason"]
        assert repository_state(repo) == before
        again = cli.say("mission", "promote", mission, cwd=repo)
        assert (again.code, again.document["export"]["state"]) == (3, "blocked")
        git(repo, "branch", "-m", "chargehand", "elsewhere")
        done = cli.say("mission", "promote", mission, cwd=repo)
        assert (done.code, done.document["branch"]) == (0, "chargehand/mend"), done
        assert git(repo, "rev-parse", "chargehand/mend") == result.document["commit"]
        error = cli.refused("promoted", 1, "mission", "promote", mission, cwd=repo)
        assert mission in error["message"]

    def test_taken_name_gets_the_mission_id(self, cli: Cli, tmp_path: Path) -> None:
        repo = repository(tmp_path / "repo")
        git(repo, "branch", "chargehand/mend")
        git(repo, "worktree", "add", "-q", str(tmp_path / "other"), "chargehand/mend")
        with untouched(repo, tmp_path / "other"):
            result = cli.run(repo)
        assert result.code == 0, result
        assert result.document["branch"] == f"chargehand/mend-{result.document['mission'][-6:]}"
        assert git(repo, "rev-parse", "chargehand/mend") == git(repo, "rev-parse", "main")

    def test_base_branch_checked_out_elsewhere(self, cli: Cli, tmp_path: Path) -> None:
        repo = repository(tmp_path / "repo")
        git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
        with untouched(repo, tmp_path / "side"):
            assert changed(repo, cli.run(repo, "--base", "side")) == ["f.txt"]
            cli.refused("apply_base", 2, *run_words("--apply", "--base", "side"), cwd=repo)


def test_inside_a_linked_worktree(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    side = tmp_path / "side"
    git(repo, "worktree", "add", "-q", "-b", "side", str(side))
    write_files(side, {"f.txt": "side a\n"})
    git(side, "commit", "-qam", "side")
    assert (side / ".git").is_file()
    with untouched(repo, side):
        result = cli.run(side)
        assert changed(side, result) == ["f.txt"]
        assert git(repo, "rev-parse", f"{result.document['branch']}^") == git(side, "rev-parse", "HEAD")
    main = git(repo, "rev-parse", "main")
    applied = cli.run(side, "--apply")
    assert applied.code == 0, applied
    assert (side / "f.txt").read_text() == "side b\n"
    assert git(repo, "rev-parse", "main") == main


@pytest.mark.parametrize(
    "name",
    [
        'with space, quo\'te "double" `tick` $HOME;x back\\slash',
        "ünïcode 雪 \u202e per%cent #*?[]{}~ colon:",
        "-dash",
        os.fsdecode(b"latin \xe9\r\x1b"),
    ],
    ids=["shell", "unicode", "dash", "bytes"],
)
def test_odd_repository_paths(cli: Cli, tmp_path: Path, name: str) -> None:
    repo = repository(tmp_path / name)
    before = repository_state(repo)
    result = cli.say(*run_words(f"--repo={name}"), cwd=tmp_path)
    assert changed(repo, result) == ["f.txt"]
    assert repository_state(repo) == before


def test_a_line_break_in_the_path_is_refused(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "new\nline")
    result = cli.say(*run_words(), cwd=repo)
    assert (result.code, result.error["code"]) == (2, "repository_path")


def test_read_only_repository(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    before = repository_state(repo)
    words = cli.argv(*run_words(), "--json")
    if os.geteuid() == 0:
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
        words = ["unshare", "-m", "sh", "-c", mount, str(repo), *words]
    with without_write_bits(repo):
        done = subprocess.run(words, cwd=repo, env=cli.environ, capture_output=True, text=True)
    result = Completed(code=done.returncode, stdout=done.stdout, stderr=done.stderr)
    assert repository_state(repo) == before
    assert (result.code, result.document["status"]) == (3, "promoted"), result
    export = result.document["export"]
    assert export["state"] == "blocked"
    assert export["reason"]
    again = cli.say("mission", "promote", result.document["mission"], cwd=repo)
    assert (again.code, again.document["branch"]) == (0, "chargehand/mend"), again


@contextmanager
def without_write_bits(root: Path) -> Iterator[None]:
    """Remove all write bits below a directory, which binds only an ordinary user."""
    places = [root, *root.rglob("*")]
    modes = [path.lstat().st_mode for path in places]
    for path in places:
        path.chmod(path.lstat().st_mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in zip(places, modes, strict=True):
            path.chmod(mode)
