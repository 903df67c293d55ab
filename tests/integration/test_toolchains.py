"""Real projects of each ecosystem: their checks are found, and run with the host's own programs."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from command_line import Cli, Completed, shell
from test_mirror_support import Answer, document, registry, tarball
from tests.conftest import git, make_repository, repository_state, write_files

from chargehand.core.records import CheckResult

pytestmark = pytest.mark.needs_bwrap

UNITTEST = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "tests/__init__.py": "",
    "tests/test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n"
    ),
}
PYTEST = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": (
        "import pytest\nfrom calc import add\n\n\n"
        "@pytest.mark.parametrize('b', [1, 2])\ndef test_add(b):\n    assert add(2, b) == 2 + b\n"
    ),
    "chargehand.toml": "[project]\nsetup = 'pip install --quiet pytest'\n",
    ".gitignore": "__pycache__/\n.venv/\n.pytest_cache/\n",
}
NODE = {
    "package.json": '{"name": "calc", "version": "1.0.0", "scripts": {"test": "node --test"}}\n',
    "calc.js": "exports.add = (a, b) => a - b;\n",
    "calc.test.js": (
        "const test = require('node:test'), assert = require('node:assert');\n"
        "test('add', () => assert.equal(require('./calc').add(2, 1), 3));\n"
    ),
}
CARGO = {
    "Cargo.toml": '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n',
    "Cargo.lock": 'version = 3\n\n[[package]]\nname = "calc"\nversion = "0.1.0"\n',
    ".gitignore": "target/\n",
    "src/lib.rs": (
        "pub fn add(a: i32, b: i32) -> i32 {\n    a - b\n}\n\n"
        "#[test]\nfn adds() {\n    assert_eq!(add(2, 1), 3);\n}\n"
    ),
}
GO = {
    "go.mod": "module example.org/calc\n\ngo 1.18\n",
    "calc.go": "package calc\n\nfunc Add(a, b int) int {\n\treturn a - b\n}\n",
    "calc_test.go": (
        'package calc\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n'
        '\tif Add(2, 1) != 3 {\n\t\tt.Fatal("wrong")\n\t}\n}\n'
    ),
}
MAKE = {
    "Makefile": "test:\n\ttest `./add 2 1` = 3\n",
    "add": "#!/bin/sh\necho $(($1 - $2))\n",
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


def mend(file: str) -> str:
    return shell(f"sed -i 's/a - b/a + b/; s/1 - /1 + /' {file}")


def run(cli: Cli, repo: Path, agent: str, *words: str) -> Completed:
    """Run a mission with the project's own checks."""
    return cli.say("run", "mend", "--agent", agent, *words, cwd=repo)


def checks(cli: Cli, result: Completed, scope: str = "attempt") -> tuple[CheckResult, ...]:
    """Return the checks of the last verdict of a scope."""
    return [verdict for verdict in cli.state(result).verdicts if verdict.scope == scope][-1].checks


def mended(cli: Cli, repo: Path, file: str, command: str, *, tests: int | None) -> Completed:
    """Check that the found check is red on the base, refuses half a change and accepts the whole."""
    before = repository_state(repo)
    half = run(cli, repo, shell(f"echo >> {file}"), "--red-base", "go")
    assert (half.code, half.reasons - {"still_failing"}) == (1, {"check_failed"}), half.stdout
    assert [check.status for check in checks(cli, half, scope="base")] == ["failed"]
    done = run(cli, repo, mend(file))
    assert done.code == 0, done
    [check] = checks(cli, done)
    assert (check.name, check.status, check.tests) == (command, "passed", tests), check
    assert git(repo, "diff", "--name-only", "main", done.document["branch"]) == file
    assert repository_state(repo) == before
    return done


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip if the host lacks one of the programs: sandboxes use the host's own."""
    missing = [name for name in programs if not shutil.which(name)]
    return pytest.mark.skipif(bool(missing), reason=f"not on this machine: {', '.join(missing)}")


class TestPython:
    """Python projects, for every name of the host's interpreter."""

    def test_unittest(self, cli: Cli, tmp_path: Path) -> None:
        repo = make_repository(tmp_path / "repo", UNITTEST)
        mended(cli, repo, "calc.py", "python -m unittest discover", tests=1)

    @pytest.mark.parametrize("only", ["one of their own", "that of the system"])
    def test_python_and_python3_work_if_the_host_has_only_python3(self, tmp_path: Path, only: str) -> None:
        own = tmp_path / "bin"
        own.mkdir()
        if only == "one of their own":
            (own / "python3").symlink_to(os.path.realpath(sys.executable))
        cli = Cli(tmp_path / "person", PATH=f"{own}:/usr/bin:/bin")
        repo = make_repository(tmp_path / "repo", UNITTEST)
        names = ("--only-check", "python -c pass", "--only-check", "python3 -c pass")
        result = run(cli, repo, mend("calc.py"), *names, "--check", "python -m unittest discover")
        assert result.code == 0, result
        assert [check.status for check in checks(cli, result)] == ["passed"] * 3


# The languages of pygments that pytest colours; all of them are three quarters of what pip installs and compiles.
COLOURED = ("__init__", "_mapping", "diff", "python")


def installed_wheel(name: str, directory: Path) -> None:
    """Write the wheel of a package as it is installed here, without most languages of pygments."""
    found = importlib.metadata.distribution(name)
    info = f"{name}-{found.version}.dist-info"
    content = {}
    for file in found.files or ():
        path = found.locate_file(file)
        if file.parts[:2] == ("pygments", "lexers") and path.stem not in COLOURED:
            continue
        if ".." not in file.parts and file.suffix != ".pyc" and Path(str(path)).is_file():
            inside = "/".join(file.parts)
            content[f"{info}/{file.name}" if file.parts[0].endswith(".dist-info") else inside] = path
    with zipfile.ZipFile(directory / f"{name}-{found.version}-py3-none-any.whl", "w") as archive:
        rows = [f"{path},," for path in content]
        for path, source in content.items():
            if not path.endswith((".dist-info/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json")):
                archive.writestr(path, Path(str(source)).read_bytes())
        archive.writestr(f"{info}/RECORD", "\n".join(rows))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        installed_wheel(name, directory)
    return directory


def commands(cli: Cli, result: Completed) -> list[str]:
    """Return the commands that a mission ran to make its environment."""
    log = cli.say("mission", "log", result.document["mission"], cwd=cli.place)
    payloads = [
        line["payload"] for line in map(json.loads, log.stdout.splitlines()) if line["type"] == "command.finished"
    ]
    return [payload["argv"][-1] for payload in payloads if payload["argv"][0] == "/bin/sh"]


class TestSetup:
    """Setup's files are below every workspace, made once per key, and never in the result."""

    def test_pytest_from_a_local_index(self, wheels: Path, tmp_path: Path) -> None:
        cli = Cli(tmp_path / "person", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
        repo = make_repository(tmp_path / "repo", PYTEST)
        done = mended(cli, repo, "calc.py", "python -m pytest -q", tests=2)
        assert commands(cli, done) == [], "the environment of the first mission serves the second"

    def test_layer_is_keyed_by_its_inputs_and_leaves_tracked_files_alone(self, cli: Cli, tmp_path: Path) -> None:
        setup = "mkdir -p .env && cp deps.in .env/stamp && echo made >> f.txt && echo more >> .env/stamp"
        config = f"[project]\nsetup = '{setup}'\nsetup_inputs = ['deps.in']\nchecks = ['test -f .env/stamp']\n"
        files = {"chargehand.toml": config, "deps.in": "one\n", "f.txt": "f\n", ".gitignore": ".env/\n"}
        repo = make_repository(tmp_path / "repo", files)
        agent = shell("cat f.txt .env/stamp > seen.txt; echo agent >> .env/stamp")
        first = run(cli, repo, agent)
        assert first.code == 0, first
        assert commands(cli, first) == [setup]
        assert first.document["reverted"] == [{"path": "f.txt", "rule": "setup_tracked"}]
        assert git(repo, "show", f"{first.document['branch']}:seen.txt") == "f\none\nmore"
        assert git(repo, "diff", "--name-only", "main", first.document["branch"]) == "seen.txt"
        second = run(cli, repo, agent)
        assert (second.code, commands(cli, second)) == (0, []), second
        assert git(repo, "diff", first.document["branch"], second.document["branch"]) == ""
        write_files(repo, {"deps.in": "two\n"})
        git(repo, "commit", "-qam", "other inputs")
        third = run(cli, repo, agent)
        assert (third.code, commands(cli, third)) == (0, [setup]), third
        assert git(repo, "show", f"{third.document['branch']}:seen.txt") == "f\ntwo\nmore"

    @pytest.mark.parametrize(
        ("setup", "told"),
        [
            ("echo first; echo could not reach the moon >&2; exit 3", "could not reach the moon"),
            ("exit 4", "code 4"),
        ],
    )
    def test_failing_setup_fails_the_mission(self, cli: Cli, tmp_path: Path, setup: str, told: str) -> None:
        config = f"[project]\nsetup = '{setup}'\nchecks = ['true']\n"
        repo = make_repository(tmp_path / "repo", {"chargehand.toml": config, "f.txt": "a\n"})
        before = repository_state(repo, without="\0")
        result = run(cli, repo, "command:touch new")
        assert (result.code, result.document["status"], result.reasons) == (1, "failed", {"setup_failed"}), result
        assert told in result.document["reasons"][0]["message"]
        assert result.document["attempts"] == []
        assert repository_state(repo, without="\0") == before


@needs("node", "npm")
class TestNode:
    """npm projects, with and without dependencies."""

    def test_npm_test(self, cli: Cli, tmp_path: Path) -> None:
        mended(cli, make_repository(tmp_path / "repo", NODE), "calc.js", "npm test", tests=1)

    def test_npm_ci_through_the_users_registry(self, tmp_path: Path) -> None:
        content = tarball("plain")
        digest = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
        package = {"name": "calc", "version": "1.0.0", "dependencies": {"plain": "1.0.0"}}
        locked = {"version": "1.0.0", "integrity": digest}
        lock = {"name": "calc", "version": "1.0.0", "lockfileVersion": 3, "requires": True}
        files = {
            "package.json": json.dumps(
                {**package, "scripts": {"test": "test -f node_modules/plain/package.json"}}
            ),
            "package-lock.json": json.dumps({**lock, "packages": {"": package, "node_modules/plain": locked}}),
            "chargehand.toml": "[project]\nsetup = 'npm ci'\n",
            ".gitignore": "node_modules/\n",
        }
        repo = make_repository(tmp_path / "repo", files)
        with registry() as upstream:
            cli = Cli(tmp_path / "person", npm_config_registry=upstream.url)
            path = "/plain/-/plain-1.0.0.tgz"
            page = json.dumps(document("plain", upstream.url + path, content)).encode()
            upstream.pages["/plain"] = Answer(page, "application/json")
            upstream.pages[path] = Answer(content, "application/gzip")
            result = run(cli, repo, "command:touch new")
        assert result.code == 0, result
        assert [check.name for check in checks(cli, result)] == ["npm test"]
        assert git(repo, "diff", "--name-only", "main", result.document["branch"]) == "new"


@needs("cargo")
def test_cargo(tmp_path: Path) -> None:
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    cli = Cli(tmp_path / "person", RUSTUP_HOME=rustup)
    mended(cli, make_repository(tmp_path / "repo", CARGO), "src/lib.rs", "cargo test", tests=1)


# Go builds its standard library again here; the suite covers go with warm checks and with modules.
@pytest.mark.soak
@needs("go")
def test_go(cli: Cli, tmp_path: Path) -> None:
    # go names passing tests only under -v, so their number is unknown.
    mended(cli, make_repository(tmp_path / "repo", GO), "calc.go", "go test ./...", tests=1)


@needs("make")
def test_make(cli: Cli, tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "repo", MAKE)
    (repo / "add").chmod(0o755)
    git(repo, "commit", "-qam", "executable")
    mended(cli, repo, "add", "make test", tests=None)
