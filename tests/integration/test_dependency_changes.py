"""A tree that asks for other packages than the base is green only in the environment that it asks for."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell

pytestmark = pytest.mark.needs_bwrap

PYTHON = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n"
    ),
}
PROJECT = "[project]\nname = 'calc'\nversion = '1'\ndependencies = []\n"
UV_LOCK = "version = 1\n\n[[package]]\nname = 'calc'\nversion = '1'\nsource = { virtual = '.' }\n"
PACKAGE = {"name": "calc", "version": "1.0.0", "scripts": {"test": "node --test"}}
NODE = {
    "calc.js": "exports.add = (a, b) => a + b;\n",
    "calc.test.js": (
        "const test = require('node:test'), assert = require('node:assert');\n"
        "test('add', () => assert.equal(require('./calc').add(2, 1), 3));\n"
    ),
    "package.json": json.dumps(PACKAGE),
}
CARGO = {
    "src/lib.rs": (
        "pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\n"
        "#[test]\nfn adds() {\n    assert_eq!(add(2, 1), 3);\n}\n"
    ),
    "Cargo.toml": '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\n',
}
# The project's files, the file that lists its requirements, and that file's text after the change.
ASKS = {
    "pip": (PYTHON | {"pyproject.toml": PROJECT}, "pyproject.toml", PROJECT.replace("[]", "['nope==99']")),
    "pip, a build": (PYTHON, "pyproject.toml", PROJECT + "[build-system]\nrequires = ['setuptools>=9999']\n"),
    "pip, a list": (PYTHON, "requirements-dev.txt", "nope==99\n"),
    "pip, setup.cfg": (
        PYTHON,
        "setup.cfg",
        "[metadata]\nname = calc\n[options]\ninstall_requires =\n  nope==99\n",
    ),
    "uv, a lock": (
        PYTHON | {"pyproject.toml": PROJECT, "uv.lock": UV_LOCK},
        "uv.lock",
        UV_LOCK
        + "\n[[package]]\nname = 'nope'\nversion = '99'\nsource = { registry = 'https://pypi.org/simple' }\n",
    ),
    "npm": (NODE, "package.json", json.dumps(PACKAGE | {"dependencies": {"nope": "^99.0.0"}})),
    "cargo": (CARGO, "Cargo.toml", CARGO["Cargo.toml"] + 'nope = "99"\n'),
}
# The same files, with a text that asks for no missing package.
ASKS_NOTHING = {
    "pip": (*ASKS["pip"][:2], PROJECT.replace("'1'", "'2'\ndescription = 'sums'")),
    "uv, a lock": (*ASKS["uv, a lock"][:2], UV_LOCK.replace("'1'", "'2'")),
    "npm": (NODE, "package.json", json.dumps(PACKAGE | {"version": "1.1.0"})),
    "cargo": (CARGO, "Cargo.toml", CARGO["Cargo.toml"].replace("0.1.0", "0.2.0")),
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    return Cli(tmp_path_factory.mktemp("cli"), RUSTUP_HOME=rustup)


def change(cli: Cli, place: Path, files: dict[str, str], manifest: str, text: str) -> Completed:
    """Run a mission that writes a manifest and adds an empty line to the code."""
    if "Cargo.toml" in files and not shutil.which("cargo"):
        pytest.skip("cargo is not on this machine")
    encoded = base64.b64encode(text.encode()).decode()
    agent = shell(f"printf %s {encoded} | base64 -d > {manifest}; echo >> {next(iter(files))}")
    return cli.say("run", "m", "--agent", agent, cwd=repository(place, files))


# A list of packages is reported like a project's requirements; its parsing is tested separately.
@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=pytest.mark.soak if name == "pip, a list" else ()) for name in ASKS]
)
def test_a_base_without_setup_is_no_environment_for_a_tree_that_needs_setup(
    cli: Cli, tmp_path: Path, client: str
) -> None:
    waits = change(cli, tmp_path / "repo", *ASKS[client])
    # A new build system is also check surface; no known command installs requirements listed only in setup.cfg.
    expected = {"pip, a build": {"setup_offline", "check_surface"}, "pip, setup.cfg": {"setup_missing"}}
    assert (waits.code, waits.reasons) == (3, expected.get(client, {"setup_offline"})), waits.document["reasons"]
    assert waits.document["attempts"][0]["verdict"] == "missing"


def test_new_packages_need_approval_if_setup_is_disabled(cli: Cli, tmp_path: Path) -> None:
    files, manifest, text = ASKS["pip"]
    none = {"chargehand.toml": "[project]\nsetup = ''\n"}
    waits = change(cli, tmp_path / "repo", files | none, manifest, text)
    assert (waits.code, waits.reasons) == (3, {"setup_missing"}), waits.document["reasons"]
    allowed = cli.say("mission", "promote", waits.document["mission"], cwd=tmp_path / "repo")
    assert (allowed.code, allowed.document["status"]) == (0, "promoted"), allowed


@pytest.mark.parametrize("client", ASKS_NOTHING)
def test_a_manifest_without_new_packages_needs_no_approval(cli: Cli, tmp_path: Path, client: str) -> None:
    done = change(cli, tmp_path / "repo", *ASKS_NOTHING[client])
    assert (done.code, done.document["status"]) == (0, "promoted"), done.document["reasons"]


# A setup that works only for the base, like a setup that needs the registries.
ONLINE = (
    "[project]\nsetup = 'test -z \"$UV_OFFLINE\" && mkdir -p ready && touch ready/made'\n"
    "checks = ['test -e ready/made && python3 -m unittest -q']\n"
)
INSTALLED = PYTHON | {
    "chargehand.toml": ONLINE,
    ".gitignore": "ready/\n",
    "pyproject.toml": PROJECT,
    "package.json": json.dumps(PACKAGE),
}
DESCRIBED = {
    "pyproject.toml": "# Sums.\n" + PROJECT.replace("'1'", "'2'\ndescription = 'sums'"),
    "package.json": json.dumps(PACKAGE | {"version": "1.0.1", "description": "sums", "exports": "./a.js"}),
}


def test_a_manifest_that_installs_the_same_keeps_the_environment_of_its_base(cli: Cli, tmp_path: Path) -> None:
    both = "; ".join(
        f"printf %s {base64.b64encode(text.encode()).decode()} | base64 -d > {name}"
        for name, text in DESCRIBED.items()
    )
    repo = repository(tmp_path / "repo", INSTALLED)
    done = cli.say("run", "m", "--agent", shell(f"{both}; echo >> calc.py"), cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done.document["reasons"]


def test_a_result_that_needs_missing_packages_cannot_be_approved(cli: Cli, tmp_path: Path) -> None:
    asks = PROJECT.replace("[]", "['nope']")
    breaks = dict(PYTHON, **{"calc.py": "import nope\n" + PYTHON["calc.py"]})
    files = "; ".join(
        f"printf %s {base64.b64encode(text.encode()).decode()} | base64 -d > {name}"
        for name, text in {"pyproject.toml": asks, "calc.py": breaks["calc.py"]}.items()
    )
    repo = repository(tmp_path / "repo", INSTALLED)
    waits = cli.say("run", "m", "--agent", shell(files), cwd=repo)
    assert (waits.code, waits.reasons) == (3, {"setup_offline"}), waits.document["reasons"]
    assert "cannot be approved before its own setup works" in waits.document["reasons"][0]["message"]
    error = cli.refused("not_green", 1, "mission", "promote", waits.document["mission"], cwd=repo)
    assert "project.setup_network true" in error["hint"], error


def test_a_declared_input_counts_as_a_whole(cli: Cli, tmp_path: Path) -> None:
    declared = ONLINE.replace("[project]", "[project]\nsetup_inputs = ['pyproject.toml']")
    repo = repository(tmp_path / "repo", INSTALLED | {"chargehand.toml": declared})
    waits = cli.say("run", "m", "--agent", shell("echo '# Sums.' >> pyproject.toml; echo >> calc.py"), cwd=repo)
    assert (waits.code, waits.reasons) == (3, {"setup_offline"}), waits.document["reasons"]
