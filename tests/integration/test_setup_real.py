"""Real Python, Node and Java projects with packages from the registries that this user has configured."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from command_line import Cli, Completed, shell
from tests.conftest import git, make_repository

pytestmark = pytest.mark.real
CANARY = "c4nary-in-the-users-settings"
PYTHON = {
    "pyproject.toml": '[project]\nname = "calc"\nversion = "0.1"\ndependencies = ["six"]\n',
    # Newer pytest requires pygments, three quarters of the files to install and compile.
    "requirements.txt": "six\npytest<8.4\n",
    "calc.py": "import six\n\n\ndef name():\n    return six.ensure_str(b'calc')\n",
    "test_calc.py": "import calc\n\n\ndef test_name():\n    assert calc.name() == 'calc'\n",
    "chargehand.toml": (
        "[project]\nsetup = 'pip install --quiet -r requirements.txt'\nchecks = ['python -m pytest -q']\n"
    ),
    ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\n",
}
NODE = {
    "package.json": json.dumps(
        {
            "name": "calc",
            "version": "1.0.0",
            "scripts": {"test": "node --test"},
            "dependencies": {"is-number": "^7.0.0"},
        }
    ),
    "calc.test.js": (
        "const test = require('node:test'), assert = require('node:assert');\n"
        "test('number', () => assert.ok(require('is-number')(3)));\n"
    ),
    "chargehand.toml": "[project]\nsetup = 'npm install --no-save'\nchecks = ['npm test']\n",
    ".gitignore": "node_modules/\n",
}
IN_PROCESS, IN_CONTAINER = pytest.mark.needs_bwrap, pytest.mark.needs_container
MAVEN = {
    "pom.xml": (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>org.example</groupId><artifactId>calc</artifactId><version>1</version><properties>"
        "<maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>"
        "<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>"
        "<dependencies><dependency><groupId>org.junit.jupiter</groupId><artifactId>junit-jupiter</artifactId>"
        "<version>5.10.2</version><scope>test</scope></dependency></dependencies><build><plugins><plugin>"
        "<artifactId>maven-surefire-plugin</artifactId><version>3.2.5</version></plugin></plugins></build></project>\n"
    ),
    "src/main/java/calc/Calc.java": (
        "package calc;\n\npublic class Calc {\n    public static int add(int a, int b) {\n"
        "        return a - b;\n    }\n}\n"
    ),
    "src/test/java/calc/CalcTest.java": (
        "package calc;\n\nclass CalcTest {\n    @org.junit.jupiter.api.Test\n    void adds() {\n"
        "        org.junit.jupiter.api.Assertions.assertEquals(3, Calc.add(2, 1));\n    }\n}\n"
    ),
    ".gitignore": "target/\n",
}
CASES = [
    # The contradicting requirements below use PyPI; `test_setup_packages` uses local registries from containers.
    pytest.param("process", NODE, "npm", marks=IN_PROCESS, id="node-process"),
    pytest.param("container", PYTHON, "pypi", marks=[IN_CONTAINER, pytest.mark.soak], id="python-container"),
    pytest.param("process", PYTHON, "pypi", marks=[IN_PROCESS, pytest.mark.soak], id="python-process"),
    pytest.param("container", NODE, "npm", marks=[IN_CONTAINER, pytest.mark.soak], id="node-container"),
]


def person(place: Path) -> Cli:
    """Return a person with this machine's registries, and a secret in the settings of each package client."""
    place.mkdir()
    (place / ".cargo").mkdir()
    (place / ".netrc").write_text(f"machine canary.invalid login a password {CANARY}\n")
    (place / ".cargo/credentials.toml").write_text(f'[registries.canary]\ntoken = "{CANARY}"\n')
    own = Path.home() / ".npmrc"
    lines = own.read_text() if own.is_file() else ""
    (place / ".npmrc").write_text(f"{lines}\n//canary.invalid/:_authToken={CANARY}\n")
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(("PIP_", "NPM_CONFIG_"))}
    kept |= {name: os.environ[name] for name in ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE") if name in os.environ}
    for name in (".config/pip/pip.conf", ".pip/pip.conf"):
        if (Path.home() / name).is_file():
            kept.setdefault("PIP_CONFIG_FILE", str(Path.home() / name))
    return Cli(place, **kept, PIP_CANARY=CANARY, NPM_CONFIG_CANARY=CANARY, CARGO_REGISTRIES_CANARY_TOKEN=CANARY)


def requested(cli: Cli, result: Completed) -> list[str]:
    """Return the kinds of requests that setup made to the mirror."""
    log = cli.say("mission", "log", result.document["mission"], cwd=cli.place)
    lines = [json.loads(line) for line in log.stdout.splitlines()]
    return [line["payload"]["entry"] for line in lines if line["type"] == "network.requested"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("tier", "files", "kind"), CASES)
def test_setup_and_tests_of_a_project(tmp_path: Path, tier: str, files: dict[str, str], kind: str) -> None:
    if kind == "npm" and not shutil.which("npm"):
        pytest.skip("npm is not installed")
    cli = person(tmp_path / "person")
    repo = make_repository(tmp_path / "repo", files)
    settings = "~/.npmrc ~/.netrc ~/.config/pip/pip.conf ~/.cargo/*"
    look = shell(f"env > seen; cat /proc/1/environ {settings} >> seen; true")
    first = cli.say("run", "look", "--agent", look, "--sandbox", tier, cwd=repo)
    assert first.code == 0, first
    assert {f"registry {kind}-index", f"registry {kind}-file"} <= set(requested(cli, first))
    second = cli.say("run", "again", "--agent", "command:touch new", "--sandbox", tier, cwd=repo)
    assert (second.code, requested(cli, second)) == (0, []), second
    assert CANARY not in git(repo, "show", f"{first.document['branch']}:seen")
    below = [path for path in cli.home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in below if CANARY.encode() in path.read_bytes()]


@pytest.mark.soak
@pytest.mark.needs_bwrap
@pytest.mark.timeout(600)
def test_a_maven_project_needs_no_configuration(tmp_path: Path) -> None:
    if not shutil.which("mvn"):
        pytest.skip("maven is not installed")
    cli = person(tmp_path / "person")
    settings = Path.home() / ".m2/settings.xml"
    if settings.is_file():
        (tmp_path / "person/.m2").mkdir()
        shutil.copy(settings, tmp_path / "person/.m2")
    repo = make_repository(tmp_path / "repo", MAVEN)
    half = cli.say("run", "mend", "--agent", "command:touch new", "--red-base", "go", cwd=repo)
    assert (half.code, half.reasons - {"still_failing"}) == (1, {"check_failed"}), half
    assert "registry maven-file" in requested(cli, half)
    mend = shell("sed -i 's/a - b/a + b/' src/main/java/calc/Calc.java")
    done = cli.say("run", "mend", "--agent", mend, cwd=repo)
    assert (done.code, requested(cli, done)) == (0, []), done
    (check,) = cli.state(done).verdicts[-1].checks
    named = cli.say("artifact", "show", check.ran or "", cwd=repo)
    assert "calc.CalcTest::adds" in named.stdout, named
    assert (check.name, check.status, check.tests) == ("mvn -B test", "passed", 1)
    # A missing version is never judged with the base's packages: a person may let setup look for it.
    wrong = shell("sed -i 's/a - b/a + b/' src/main/java/calc/Calc.java; sed -i s/5.10.2/5.10.99/ pom.xml")
    waits = cli.say("run", "mend", "--agent", wrong, cwd=repo)
    assert (waits.code, waits.reasons) == (3, {"setup_offline"}), waits
    assert cli.refused("not_green", 1, "mission", "promote", waits.document["mission"], cwd=repo)


@pytest.mark.needs_bwrap
@pytest.mark.timeout(600)
def test_contradictory_requirements_are_replaced_by_a_working_setup(tmp_path: Path) -> None:
    cli = person(tmp_path / "person")
    # The tests of detection cover the other candidates between these two.
    files = {name: text for name, text in PYTHON.items() if name not in ("chargehand.toml", "pyproject.toml")}
    files |= {"requirements.txt": "six==1.16.0\npytest<8.4\n", "requirements-docs.txt": "six==1.15.0\n"}
    repo = make_repository(tmp_path / "repo", files)
    done = cli.say("run", "look", "--agent", "command:touch new", cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    log = [
        json.loads(line)
        for line in cli.say("mission", "log", done.document["mission"], cwd=repo).stdout.splitlines()
    ]
    tried = [line["payload"]["argv"][-1] for line in log if line["type"] == "command.finished"]
    (found,) = [line["payload"]["command"] for line in log if line["type"] == "setup.detected"]
    assert found == "pip install -r requirements.txt"
    assert {"registry pypi-index", "registry pypi-file"} <= set(requested(cli, done))
    assert tried.index("pip install -r requirements-docs.txt -r requirements.txt") < tried.index(found)
    # A manual command finds the same packages as the mission's checks.
    by_hand = cli.say(
        "exec", "--mission", done.document["mission"], "--", "sh", "-c", "python -m pytest -q", cwd=repo
    )
    assert by_hand.code == 0, by_hand
    # A failed command is not tried again if another is known to work.
    again = cli.say("run", "look", "--agent", "command:touch newer", cwd=repo)
    assert (again.code, requested(cli, again)) == (0, []), again


@pytest.mark.soak
@pytest.mark.needs_bwrap
@pytest.mark.timeout(600)
def test_a_setup_without_the_test_runner_is_replaced_by_a_setup_with_it(tmp_path: Path) -> None:
    cli = person(tmp_path / "person")
    files = {
        "pyproject.toml": "[project]\nname = 'calc'\nversion = '1'\nrequires-python = '>=3.11'\n",
        "uv.lock": (
            "version = 1\nrequires-python = '>=3.11'\n\n[[package]]\nname = 'calc'\nversion = '1'\n"
            "source = { virtual = '.' }\n"
        ),
        "requirements-dev.txt": "pytest\n",
        "calc.py": "def add(a, b):\n    return a + b\n",
        "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n",
    }
    repo = make_repository(tmp_path / "repo", files)
    done = cli.say("run", "look", "--agent", "command:touch new", cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    log = cli.say("mission", "log", done.document["mission"], cwd=repo).stdout.splitlines()
    events = [json.loads(line) for line in log]
    found = [event["payload"]["command"] for event in events if event["type"] == "setup.detected"]
    assert ["uv export" in each for each in found] == [True, False], found  # the lock names no runner


@pytest.mark.soak
@pytest.mark.needs_bwrap
@pytest.mark.timeout(600)
def test_checks_blocked_by_an_unknown_package_ask_for_a_setup_command(tmp_path: Path) -> None:
    cli = person(tmp_path / "person")
    files = {
        "setup.py": "from setuptools import setup\nsetup(name='calc', py_modules=['calc'])\n",
        "tox.ini": "[testenv]\ndeps = pytest\n",
        "calc.py": "def add(a, b):\n    return a + b\n",
        "conftest.py": "import no_such_package_of_any_registry\n",
        "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n",
    }
    repo = make_repository(tmp_path / "repo", files)
    done = cli.say("run", "look", "--agent", "command:touch new", cwd=repo)
    assert done.reasons == {"checks_blocked", "check_failed"}, done
    assert "tests could not be collected" in str(done.document["reasons"])
    assert "project.setup" in done.document["cause"]["remedy"]
