"""Formatters in a sandbox, on staged files or a mission's result, and the hook that asks before a commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.conftest import GIT_IDENTITY, git, make_repository, repository_state, write_files
from tests.integration.command_line import Cli, Completed
from tests.integration.mission_kit import MissionKit

from chargehand.app.composition import App
from chargehand.cli.main import chargehand
from chargehand.core.errors import RefusedError
from chargehand.workspace.checkout import install_hook, remove_hook
from chargehand.workspace.repository import find_repository

UGLY, FINE = "x  =  [ 1,2 ]\n", "x = [1, 2]\n"
FILES = {
    "ruff.toml": 'exclude = ["left.py"]\n',
    "a.py": FINE,
    "src/b.py": FINE,
    "left.py": UGLY,
    "notes.txt": UGLY,
}
TOOLS = str(Path(sys.executable).parent)

needs_ruff = pytest.mark.skipif(
    not shutil.which("ruff", path=TOOLS) and not os.environ.get("CI"), reason="ruff is not installed"
)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, PATH=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Completed]:
    """Return a function that runs a command in this process, as `Cli.call` does in a new one."""

    def say(*words: str, cwd: Path) -> Completed:
        with monkeypatch.context() as patch:
            for name, value in cli.environ.items():
                patch.setenv(name, value)
            patch.chdir(cwd)
            ran = CliRunner().invoke(chargehand, ["--json", *words])
        return Completed(code=ran.exit_code, stdout=ran.stdout, stderr=ran.stderr)

    return say


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", FILES)


def commit(cli: Cli, repo: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**cli.environ, **GIT_IDENTITY, **environ}
    words = words or ("-m", "more")
    return subprocess.run(
        ["git", "commit", "-q", *words], cwd=repo, env=environment, capture_output=True, text=True, check=False
    )


@needs_ruff
@pytest.mark.needs_bwrap
def test_staged_files_are_formatted_and_written_only_with_apply(
    here: Callable[..., Completed], repo: Path
) -> None:
    write_files(repo, {"a.py": UGLY, "src/new.py": UGLY, "left.py": UGLY + "y  = 2\n"})
    git(repo, "add", "-A")
    write_files(repo, {"src/new.py": UGLY + "later = 1\n"})
    before = repository_state(repo)
    checked = here("format", "--check", "--staged", cwd=repo)
    assert (checked.code, checked.document["changed"]) == (1, ["a.py", "src/new.py"]), checked
    assert checked.document["formatters"] == [{"name": "ruff", "why": "ruff.toml"}]
    looked = here("format", ".", cwd=repo / "src")
    assert (looked.code, looked.document["changed"]) == (0, ["src/new.py"]), looked
    assert repository_state(repo) == before
    written = here("format", "--apply", cwd=repo)
    assert written.document["applied"] == {"written": ["a.py"], "left": ["src/new.py"]}, written
    assert ((repo / "a.py").read_text(), (repo / "src/new.py").read_text()) == (FINE, UGLY + "later = 1\n")
    git(repo, "add", "-A")
    write_files(repo, {"src/new.py": FINE})
    git(repo, "add", "-A")
    assert here("format", "--check", cwd=repo).code == 0
    write_files(repo, {"a.py": "def broken(:\n"})
    git(repo, "add", "-A")
    failed = here("format", "--check", "--staged", cwd=repo)
    assert failed.code == 2, failed
    assert failed.document["runs"][0]["problem"]


@needs_ruff
@pytest.mark.needs_bwrap
def test_the_result_of_a_mission_is_formatted_as_a_checkpoint(
    cli: Cli, here: Callable[..., Completed], tmp_path: Path
) -> None:
    kit = MissionKit(tmp_path / "shop", FILES)
    kit.environ["PATH"] = cli.environ["PATH"]
    state = kit.run("printf 'x  = 1\\n' > a.py", checks=("false",))
    cli.environ["CHARGEHAND_HOME"] = str(kit.home)
    assert here("format", "--check", "--mission", state.id, cwd=kit.repository).code == 1
    done = here("format", "--mission", state.id, cwd=kit.repository)
    assert (done.code, done.document["changed"]) == (0, ["a.py"]), done
    with App.open(environ=kit.environ, cwd=kit.repository) as app:
        now = app.mission_reader.state(state.id)
        depot = app.projects.depot(app.projects.find(kit.repository))
        entry = depot.lookup(now.checkpoints[-1].tree, "a.py")
        assert entry is not None
        assert depot.read_blob(entry.id) == b"x = 1\n"
    assert (now.checkpoints[-1].trigger, now.verdicts[-1].status) == ("formatted", "missing")


@needs_ruff
@pytest.mark.needs_bwrap
def test_the_hook_rejects_a_commit_with_a_badly_formatted_file(
    cli: Cli, here: Callable[..., Completed], repo: Path
) -> None:
    assert here("project", "hook", "install", cwd=repo).document["changed"] is True
    assert here("project", "hook", "install", cwd=repo).document["changed"] is False
    write_files(repo, {"a.py": UGLY})
    git(repo, "add", "-A")
    held = commit(cli, repo)
    assert held.returncode == 1, held
    assert "a.py" in held.stdout + held.stderr
    write_files(repo, {"a.py": FINE + "y = 2\n", "src/b.py": UGLY})
    git(repo, "add", "a.py")
    assert commit(cli, repo).returncode == 0, "what is not staged does not count"
    assert commit(cli, repo, "-a", "-m", "all").returncode == 1, "the index of `commit -a` is another one"
    assert here("project", "hook", "remove", cwd=repo).document["changed"] is True
    assert commit(cli, repo, "-a", "-m", "all").returncode == 0


def test_the_hook_only_warns_if_chargehand_is_missing(cli: Cli, repo: Path, tmp_path: Path) -> None:
    install_hook(find_repository(repo), tmp_path / "gone/chargehand")
    places = tmp_path / "bin"
    places.mkdir()
    for name in ("git", "sh"):
        (places / name).symlink_to(shutil.which(name) or "")
    write_files(repo, {"a.py": UGLY})
    git(repo, "add", "-A")
    done = commit(cli, repo, PATH=str(places))
    assert done.returncode == 0, done
    assert "chargehand is not installed here" in done.stderr


def test_an_existing_foreign_hook_is_kept(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found, program = find_repository(repo), tmp_path / "chargehand"
    hook = repo / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    for change in (lambda: install_hook(found, program), lambda: remove_hook(found)):
        with pytest.raises(RefusedError) as refused:
            change()
        assert (refused.value.code, bool(refused.value.hint)) == ("hook_exists", True)
    assert hook.read_text() == "#!/bin/sh\nexit 0\n"
    git(repo, "config", "core.hooksPath", "our-hooks")
    assert install_hook(found, program).path == repo / "our-hooks/pre-commit"
    git(repo, "config", "core.hooksPath", str(tmp_path / "everybodys"))
    with pytest.raises(RefusedError) as refused:
        install_hook(found, program)
    assert refused.value.code == "hook_shared"
    assert not (tmp_path / "everybodys").exists()
