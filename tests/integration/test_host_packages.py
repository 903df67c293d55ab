"""Third-party packages come from a project's setup, never by accident from the machine that Chargehand runs on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from command_line import Cli, repository, shell
from tests.conftest import git

pytestmark = pytest.mark.needs_bwrap

SOURCE = {
    "pyproject.toml": textwrap.dedent(
        """
        [project]
        name = "calc"
        version = "0.1"
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]
        """
    ),
    "src/calc/__init__.py": "def add(a, b):\n    return a + b\n",
    "test_calc.py": (
        "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n"
        "        from calc import add\n        self.assertEqual(add(2, 1), 3)\n"
    ),
    # A build backend in the tree, as small as PEP 660 allows: editable installs then need no registry.
    "backend.py": textwrap.dedent(
        """
        import base64, hashlib, zipfile

        FILES = {
            "calc.pth": "/workspace/src",
            "calc-0.1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: calc\\nVersion: 0.1\\n",
            "calc-0.1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        }

        def build_editable(directory, settings=None, metadata=None):
            name = "calc-0.1-py3-none-any.whl"
            with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
                record = "calc-0.1.dist-info/RECORD"
                for path, text in FILES.items():
                    wheel.writestr(path, text)
                wheel.writestr(record, "".join(f"{path},,\\n" for path in (*FILES, record)))
            return name

        build_wheel = build_editable
        """
    ),
    ".gitignore": ".venv/\n",
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a person's virtual environment with some packages and a copy of the project's package."""
    place = tmp_path_factory.mktemp("machine")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (packages,) = (place / "venv/lib").glob("python3*/site-packages")
    for name, requires in (
        ("spare", "helper>=1\nRequires-Dist: never; extra == 'all'"),
        ("helper", ""),
        ("other", ""),
    ):
        (packages / f"{name}.py").write_text(f"NAME = {name!r}\n")
        info = packages / f"{name}-1.0.dist-info"
        info.mkdir()
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    (packages / "calc").mkdir()
    (packages / "calc/__init__.py").write_text(SOURCE["src/calc/__init__.py"])
    return place


def cli_in(machine: Path, place: Path, **environ: str) -> Cli:
    """Return a command line whose person has activated that virtual environment."""
    venv = machine / "venv"
    cli = Cli(place, fresh=True)
    return Cli(place, fresh=True, VIRTUAL_ENV=str(venv), PATH=f"{venv}/bin:{cli.environ['PATH']}", **environ)


def importable(cli: Cli, repo: Path, *names: str) -> dict[str, bool]:
    result = {name: cli.say("exec", "--", "python3", "-c", f"import {name}", cwd=repo) for name in names}
    return {name: each.document["exit_code"] == 0 for name, each in result.items()}


def test_packages_of_the_machine_cannot_be_imported(machine: Path, tmp_path: Path) -> None:
    repo, cli = repository(tmp_path / "repo"), cli_in(machine, tmp_path / "person")
    names = ("json", "sqlite3", "venv", "calc", "spare", "helper", "pytest")
    shown = {"json", "sqlite3", "venv"}
    assert importable(cli, repo, *names) == {name: name in shown for name in names}


def test_listed_host_packages_are_importable_with_their_requirements(machine: Path, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    cli = cli_in(machine, tmp_path / "person", CHARGEHAND_SANDBOX_HOST_PACKAGES='["Spare"]')
    assert importable(cli, repo, "spare", "helper", "other", "calc") == {
        "spare": True,
        "helper": True,
        "other": False,
        "calc": False,
    }
    everything = cli_in(machine, tmp_path / "all", CHARGEHAND_SANDBOX_HOST_PACKAGES='["all"]')
    assert all(importable(everything, repo, "spare", "other", "calc").values())
    missing = cli_in(machine, tmp_path / "none", CHARGEHAND_SANDBOX_HOST_PACKAGES='["nowhere"]')
    assert "nowhere" in missing.refused("config_invalid", 125, "exec", "--", "true", cwd=repo)["message"]


def test_a_repository_cannot_list_packages(machine: Path, tmp_path: Path) -> None:
    own = {"chargehand.toml": '[sandbox]\nhost_packages = ["all"]\n'}
    repo, cli = repository(tmp_path / "repo", own), cli_in(machine, tmp_path / "person")
    result = cli.say("run", "m", "--agent", "command:true", cwd=repo)
    assert (result.code, "host_packages" in result.stderr) == (3, True), result
    assert importable(cli, repo, "spare") == {"spare": False}


def test_a_required_setup_is_detected_and_run_without_configuration(machine: Path, tmp_path: Path) -> None:
    """The most common set-up: an active virtual environment with the project in it, and no configuration."""
    repo, cli = repository(tmp_path / "repo", SOURCE), cli_in(machine, tmp_path / "person")
    done = cli.say("run", "m", "--agent", shell("echo >> src/calc/__init__.py"), cwd=repo)
    assert (done.code, done.document["status"], done.document["unread"]) == (0, "promoted", []), done
    verdicts = cli.state(done).verdicts
    assert [(each.scope, each.status) for each in verdicts[:3]] == [
        ("base", "red"),
        ("base", "green"),
        ("attempt", "green"),
    ]
    log = cli.say("mission", "log", done.document["mission"], cwd=repo).stdout
    assert '"command": "pip install -e ."' in log
    broken = cli.say("run", "m", "--agent", shell("printf '\\\\050' >> src/calc/__init__.py"), cwd=repo)
    assert (broken.code, broken.reasons) == (1, {"check_failed"}), broken
    assert len(git(repo, "branch", "--list", "chargehand/*").splitlines()) == 1


def test_a_setup_that_is_needed_and_fails_stops_before_the_agent(machine: Path, tmp_path: Path) -> None:
    files = SOURCE | {"backend.py": "raise SystemExit('no such backend')\n"}
    repo, cli = repository(tmp_path / "repo", files), cli_in(machine, tmp_path / "person")
    done = cli.say("run", "m", "--agent", shell("echo >> src/calc/__init__.py"), cwd=repo)
    assert (done.code, done.reasons, done.document["attempts"]) == (1, {"setup_failed"}, []), done


def test_an_empty_setup_disables_detection(machine: Path, tmp_path: Path) -> None:
    own = {"chargehand.toml": '[project]\nsetup = ""\n'}
    repo, cli = repository(tmp_path / "repo", SOURCE | own), cli_in(machine, tmp_path / "person")
    done = cli.say("run", "m", "--agent", shell("echo >> src/calc/__init__.py"), cwd=repo)
    # The test fails as on the base, and nothing shows that it ran the change.
    assert (done.code, done.reasons) == (3, {"change_unread", "known_failures"}), done
