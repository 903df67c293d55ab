"""A missing optional part is a sentence with the command that installs it, and nothing else needs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chargehand.configuration import extras
from chargehand.configuration.extras import EXTRAS, NotInstalledError, install_command, require_extra

LIBRARIES = ("anthropic", "openai", "pydantic_ai", "tiktoken")
"""Libraries that only tests use."""
SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, {source!r})
{then}
"""
COMMAND = "from chargehand.cli.main import main; sys.argv = ['chargehand', *{words!r}]; main()"
EVERY_MODULE = {module for extra in EXTRAS for module in extra.modules} - {"pydantic"}  # prices need pydantic


def run_without(modules: set[str], then: str, tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(blocked=modules, source=str(Path(extras.__file__).parents[2]), then=then)
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "CHARGEHAND_HOME": str(tmp_path / "state"), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("extra", "words", "environ"),
    [
        ("server", ("up", "--port", "0"), {}),
        ("mcp", ("mcp",), {}),
        ("decisions", ("knowledge", "query", "failure-cause", "cause"), {}),
        ("mcp", ("mcp", "--http", "127.0.0.1:0"), {}),
        ("knowledge", ("map", "a request"), {}),
        ("postgres", ("worker",), {"CHARGEHAND_ENGINE_URL": "postgresql://nobody@127.0.0.1:1/none"}),
        ("postgres", ("mission", "list"), {"CHARGEHAND_ENGINE_URL": "postgresql://nobody@127.0.0.1:1/none"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_a_command_that_needs_a_missing_part_names_it_and_the_command(
    extra: str, words: tuple[str, ...], environ: dict[str, str], tmp_path: Path
) -> None:
    modules = set(next(each for each in EXTRAS if each.name == extra).modules)
    done = run_without(modules, COMMAND.format(words=("--json", *words)), tmp_path, **environ)
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "not_installed"
    assert f"needs the optional part {extra!r}, which is not installed" in error["message"]
    assert " install " in error["hint"]
    assert error["hint"].endswith(f"[{extra}]'")


@pytest.mark.parametrize(
    "words", [("--help",), ("mission", "list"), ("config", "show"), ("mcp", "--help"), ("knowledge", "list")]
)
def test_a_command_that_needs_no_optional_part_works_without_any(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_without(EVERY_MODULE | set(LIBRARIES), COMMAND.format(words=words), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_native_agent_needs_no_library_of_a_provider(tmp_path: Path) -> None:
    then = (
        "import asyncio, pathlib\n"
        "from chargehand.agents.contract import Endpoint\n"
        "from chargehand.agents.native.loop import NativeAgent\n"
        "from chargehand.agents.native.model_client import open_client\n"
        "NativeAgent('n', models=()).prepare()\n"
        "async def main():\n"
        "    at = Endpoint(socket=pathlib.Path('s'), token='', models=(), environment={}, revoke=print)\n"
        "    async with open_client(at):\n"
        "        print('open')\n"
        "asyncio.run(main())"
    )
    done = run_without(EVERY_MODULE | set(LIBRARIES), then, tmp_path)
    assert (done.stdout, done.stderr) == ("open\n", "")


def test_a_recorded_choice_is_explained_without_the_part_that_made_it(tmp_path: Path) -> None:
    done = run_without(EVERY_MODULE, "import chargehand.reports.choices", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_learned_choices_without_their_part_are_a_sentence(tmp_path: Path) -> None:
    environ = {"CHARGEHAND_DECISIONS_LEARNED": "true", "XDG_CONFIG_HOME": str(tmp_path)}
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path)], check=True)
    (tmp_path / "chargehand.toml").write_text("[project]\nchecks = []\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "chargehand.toml"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a"], check=True)
    words = ("--json", "run", "x", "--agent", "command:true")
    done = run_without({"numpy"}, COMMAND.format(words=words), tmp_path, **environ)
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["hint"].endswith("[decisions]'")) == ("not_installed", True)


@pytest.fixture
def prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the directory of an environment with the extra `server` but no pip."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setattr(extras, "_find_source", lambda: ("chargehand", False))
    there = set(next(each for each in EXTRAS if each.name == "server").modules)
    monkeypatch.setattr(extras, "find_spec", lambda name: name if name in there else None)
    return tmp_path


def test_the_command_is_that_of_the_installation(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("mcp") == f"{prefix}/bin/python -m pip install 'chargehand[mcp]'"
    pip = prefix / "bin/pip"
    pip.parent.mkdir()
    pip.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(pip.parent))
    assert install_command("mcp") == "pip install 'chargehand[mcp]'"
    (prefix / "uv-receipt.toml").touch()
    # With what is installed already: these two make the environment anew.
    assert install_command("mcp") == "uv tool install 'chargehand[mcp,server]'"
    (prefix / "pipx_metadata.json").touch()
    assert install_command("mcp") == "pipx install --force 'chargehand[mcp,server]'"


def test_only_a_whole_part_counts_as_installed(prefix: Path) -> None:
    require_extra("server")
    with pytest.raises(NotInstalledError, match="several machines on one PostgreSQL database needs"):
        require_extra("postgres")
    with pytest.raises(NotInstalledError):
        require_extra("mcp")  # starlette alone is not enough


@pytest.mark.parametrize(
    ("recorded", "source"),
    [
        (None, ("chargehand", False)),
        ({"url": "https://example.org/chargehand.git", "vcs_info": {}}, ("chargehand", False)),
        ({"url": "file:///home/ann/my%20clone", "dir_info": {}}, ("/home/ann/my clone", False)),
        ({"url": "file:///home/ann/clone", "dir_info": {"editable": True}}, ("/home/ann/clone", True)),
    ],
)
def test_an_installation_from_a_directory_is_extended_from_it(
    recorded: dict[str, object] | None, source: tuple[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "chargehand-1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Name: chargehand\nVersion: 1\n")
    if recorded is not None:
        (found / "direct_url.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert extras._find_source() == source


def test_the_doctor_lists_the_missing_parts(tmp_path: Path) -> None:
    missing = {module for extra in EXTRAS if extra.name in ("mcp", "keyring") for module in extra.modules}
    (tmp_path / "git").symlink_to(str(shutil.which("git")))
    then = COMMAND.format(words=("doctor",))
    # No sandbox is tried, since bubblewrap is missing, too.
    done = run_without(missing - {"pydantic", "starlette"}, then, tmp_path, PATH=str(tmp_path))
    lines = [line for line in done.stdout.splitlines() if line.startswith("not installed: ")]
    assert [line.split()[2] for line in lines] == ["mcp,", "keyring,"], done.stdout + done.stderr
    assert all(" install " in line for line in lines)
