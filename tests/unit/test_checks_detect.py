"""Detection of checks and setup in typical project layouts."""

from __future__ import annotations

import pytest

from chargehand.checks.detection import (
    detect_checks,
    detect_setups,
    find_licence_header,
    find_project,
    lacks_packages,
)
from chargehand.checks.paths import is_test_path
from chargehand.checks.trees import MemoryTrees

PYTEST = "python -m pytest -q"
UNIT = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): ...\n"
PLAIN = "def test_a():\n    assert True\n"


def checks(files: dict[str, str]) -> tuple[str, ...]:
    trees = MemoryTrees()
    found = detect_checks(trees, trees.add(files))
    assert len(found.why) == len(found.commands)
    assert all(found.why)
    return found.commands


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        ({}, ()),
        ({"README.md": "x"}, ()),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n"}, (PYTEST,)),
        ({"pyproject.toml": "[tool.ruff]\n"}, ()),
        ({"pyproject.toml": "[broken"}, ()),
        ({"pytest.ini": ""}, (PYTEST,)),
        ({"setup.cfg": "[tool:pytest]\n"}, (PYTEST,)),
        ({"tox.ini": "[pytest]\n[tox]\n"}, (PYTEST,)),
        ({"tests/test_a.py": "import pytest\n" + UNIT}, (PYTEST,)),
        ({"tests/test_a.py": PLAIN}, (PYTEST,)),
        ({"tests/test_a.py": UNIT, "requirements-dev.txt": "pytest>=8\n"}, (PYTEST,)),
        ({"tests/test_a.py": UNIT, "pyproject.toml": "[dependency-groups]\ndev = ['pytest>=8']\n"}, (PYTEST,)),
        ({"tests/test_a.py": UNIT, "requirements.txt": "pytestify\n"}, ("python -m unittest discover -s tests",)),
        ({"tests/test_a.py": UNIT, "tests/__init__.py": ""}, ("python -m unittest discover",)),
        ({"test_a.py": UNIT}, ("python -m unittest discover",)),
        ({"tests/data.py": "x = 1\n"}, ()),
        ({"node_modules/x/test_a.py": PLAIN}, ()),
        ({"tox.ini": "[tox]\n"}, ("tox",)),
        ({"tox.ini": "[tox]\n", "tests/test_a.py": PLAIN}, (PYTEST,)),
        ({"package.json": '{"scripts": {"test": "jest"}}'}, ("npm test",)),
        ({"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'}, ()),
        ({"package.json": '{"scripts": {}}'}, ()),
        ({"package.json": "[1]"}, ()),
        ({"Cargo.toml": "", "src/lib.rs": "#[test]\nfn a() {}\n"}, ("cargo test",)),
        ({"Cargo.toml": "", "src/lib.rs": "fn a() {}\n"}, ()),
        ({"go.mod": "module a\n", "a_test.go": "package a\n"}, ("go test ./...",)),
        ({"go.mod": "module a\n", "a.go": "package a\n"}, ()),
        ({"Makefile": "test:\n\techo\n"}, ("make test",)),
        ({"Makefile": "TEST = test:\nbuild:\n\techo\n"}, ()),
        ({"Makefile": "test:\n\techo\n", "tests/test_a.py": PLAIN}, (PYTEST,)),
        ({"tests/test_a.py": PLAIN, "package.json": '{"scripts": {"test": "jest"}}'}, (PYTEST, "npm test")),
    ],
)
def test_detected_checks(files: dict[str, str], commands: tuple[str, ...]):
    assert checks(files) == commands


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({}, None),
        ({"tests/test_a.py": UNIT}, None),
        ({"tests/test_a.py": PLAIN}, "pip install pytest"),
        ({"pyproject.toml": "[project]\nname='a'\n"}, "pip install -e ."),
        (
            {"pyproject.toml": "[project]\nname='a'\n[project.optional-dependencies]\ntest=['pytest']\n"},
            "pip install -e .[test]",
        ),
        (
            {"pyproject.toml": "[project]\nname='a'\n[dependency-groups]\ndev=[]\n"},
            'pip install --quiet --upgrade "pip>=25.1" && pip install -e . --group dev',
        ),
        ({"setup.py": "", "tests/test_a.py": PLAIN}, "pip install -e . pytest"),
        ({"pyproject.toml": "[tool.ruff]\n"}, None),
        (
            {"requirements.txt": "x", "requirements-test.txt": "pytest"},
            "pip install -r requirements-test.txt -r requirements.txt",
        ),
        ({"package.json": "{}", "package-lock.json": "{}"}, "npm ci"),
        ({"package.json": '{"devDependencies": {}}'}, "npm install"),
        ({"package.json": "{}", "yarn.lock": ""}, "yarn install --frozen-lockfile"),
        ({"Cargo.toml": ""}, "cargo fetch"),
        ({"setup.py": "", "package-lock.json": "{}"}, "pip install -e . && npm ci"),
    ],
)
def test_suggested_setup(files: dict[str, str], command: str | None):
    trees = MemoryTrees()
    assert next(iter(detect_setups(trees, trees.add(files))), None) == command


POETRY = """
[tool.poetry]
name = "a"
[tool.poetry.extras]
test = ["x"]
[tool.poetry.group.dev.dependencies]
python = "^3.11"
pytest = "^8"
ruff = {version = "^1", extras = ["x"]}
other = {path = "../other"}
"""


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        (
            {"pyproject.toml": "[project]\nname='a'\n[dependency-groups]\ntests=['pytest']\n", "uv.lock": ""},
            [
                "pip install --quiet uv && uv export --quiet --frozen --no-hashes --group tests"
                " --output-file /tmp/locked.txt && pip install -r /tmp/locked.txt",
                'pip install --quiet --upgrade "pip>=25.1" && pip install -e . --group tests',
                "pip install -e .",
            ],
        ),
        (
            {
                "pyproject.toml": "[project]\nname='a'\n[project.optional-dependencies]\ntests=['pytest']\n",
                "uv.lock": "",
            },
            [
                "pip install --quiet uv && uv export --quiet --frozen --no-hashes --extra tests"
                " --output-file /tmp/locked.txt && pip install -r /tmp/locked.txt",
                "pip install -e .[tests]",
                "pip install -e .",
            ],
        ),
        ({"pyproject.toml": POETRY}, ["pip install -e .[test] pytest ruff", "pip install -e ."]),
        (
            {"requirements.txt": "pytest", "requirements-docs.txt": "sphinx", "setup.py": "", "test_a.py": PLAIN},
            [
                "pip install -r requirements-docs.txt -r requirements.txt -e .",
                "pip install -r requirements.txt -e .",
                "pip install -e . pytest",
                "pip install -r requirements.txt pytest",
            ],
        ),
        (
            {"package.json": "{}", "pnpm-lock.yaml": ""},
            [
                "pnpm install --frozen-lockfile",
                "npm install --silent --global --prefix /workspace/.chargehand/npm pnpm@9"
                " && pnpm install --frozen-lockfile",
                "npm install --no-package-lock",
            ],
        ),
        (
            {"package.json": "{}", "package-lock.json": "", "Cargo.toml": ""},
            ["npm ci && cargo fetch", "npm install --no-package-lock && cargo fetch"],
        ),
        ({"pom.xml": ""}, ["mvn -B -q test -Dmaven.test.failure.ignore=true && mvn -B -q clean"]),
        # Extras of setuptools, pbr, and flit.
        (
            {
                "setup.py": "from setuptools import setup\nEXTRAS = {'tests': ['pytest', 'pytz'], 'docs': []}\n"
                "EXTRAS['dev'] = EXTRAS['tests'] + ['tox']\nsetup(name='a', extras_require=EXTRAS)\n",
                "tests/test_a.py": PLAIN,
            },
            ["pip install -e .[tests] pytest", "pip install -e . pytest"],
        ),
        (
            {
                "setup.py": "import setuptools\nwanted = dict(dev=LATER)\n"
                "setuptools.setup(**{'extras_require': wanted})\n"
            },
            ["pip install -e .[dev]", "pip install -e ."],
        ),
        ({"setup.py": "import os\nsetup(extras_require=os.environ)\n"}, ["pip install -e ."]),
        ({"setup.py": "def broken(:\n"}, ["pip install -e ."]),
        (
            {"setup.py": "", "setup.cfg": "[options.extras_require]\ntesting =\n  pytest\n  pytz\n"},
            ["pip install -e .[testing]", "pip install -e ."],
        ),
        (
            {"setup.py": "", "setup.cfg": "[extras]\ntest =\n  pytest\n"},
            ["pip install -e .[test]", "pip install -e ."],
        ),
        (
            {"setup.py": "", "setup.cfg": "[options]\ntests_require =\n  mock>=2\n  nose\n"},
            ["pip install -e . 'mock>=2' nose", "pip install -e ."],
        ),
        (
            {
                "setup.py": "needs = ['mock']\n"
                "needs += ['nose; python_version > \"3\"']\nsetup(tests_require=needs)\n"
            },
            ["pip install -e . mock 'nose; python_version > \"3\"'", "pip install -e ."],
        ),
        (
            {"pyproject.toml": "[build-system]\n[tool.flit.metadata.requires-extra]\ntest = ['pytest']\n"},
            ["pip install -e .[test]", "pip install -e ."],
        ),
        # Environments of hatch, pdm, uv, tox, and nox.
        (
            {
                "pyproject.toml": "[project]\nname = 'a'\n"
                "[tool.hatch.envs.default]\ndependencies = ['pytest', 'time-machine>=2']\n"
                "[tool.hatch.envs.docs]\ndependencies = ['mkdocs']\n"
            },
            ["pip install -e . pytest 'time-machine>=2'", "pip install -e ."],
        ),
        (
            {
                "pyproject.toml": "[project]\nname = 'a'\n[tool.pdm.dev-dependencies]\ntest = ['pytest', '-e file:///x']\n"
            },
            ["pip install -e . pytest", "pip install -e ."],
        ),
        (
            {"pyproject.toml": "[project]\nname = 'a'\n[tool.uv]\ndev-dependencies = ['pytest']\n"},
            ["pip install -e . pytest", "pip install -e ."],
        ),
        (
            {
                "setup.py": "",
                "tox.ini": "[testenv]\ndeps =\n  pytest # runner\n  py27: mock\n  {env:X:}\n  hypothesis<7\n",
                "tests/test_a.py": PLAIN,
            },
            ["pip install -e . pytest 'hypothesis<7'", "pip install -e .", "pip install -e . pytest"],
        ),
        (
            {
                "pyproject.toml": "[project]\nname = 'a'\n[project.optional-dependencies]\ncrypto = ['x']\n"
                "[tool.tox.env_run_base]\nextras = ['crypto', 'absent']\ndeps = ['pytest']\n"
            },
            ["pip install -e .[crypto] pytest", "pip install -e ."],
        ),
        (
            {
                "setup.py": "",
                "tox.ini": "[testenv]\ndeps = -r{toxinidir}/needs/tests.txt\n  -r absent.txt\n",
                "needs/tests.txt": "pytest",
            },
            ["pip install -r needs/tests.txt -e .", "pip install -e ."],
        ),
        (
            {
                "setup.py": "",
                "noxfile.py": "@nox.session\ndef lint(session):\n    session.install('ruff')\n"
                "@nox.session(python='3')\ndef tests(session):\n    session.install('virtue', WHERE)\n"
                "    session.install('-e', '.[x]')\n    session.run('pytest')\n",
            },
            ["pip install -e . virtue", "pip install -e ."],
        ),
        # The website of a project in another language.
        ({"mkdocs-requirements.txt": "mkdocs", "go.sum": "", "go.mod": ""}, ["go mod download"]),
        ({"docs-requirements.txt": "sphinx", "requirements.txt": "x"}, ["pip install -r requirements.txt"]),
        # The project's own requirements come first, then those of tox.
        (
            {
                "requirements/tests.txt": "pytest",
                "requirements/tests-min.txt": "pytest==1",
                "pyproject.toml": "[project]\nname = 'a'\n",
                "tox.ini": "[testenv]\ndeps = -r requirements/tests.txt\n",
            },
            [
                "pip install -r requirements/tests-min.txt -r requirements/tests.txt -e .",
                "pip install -r requirements/tests.txt -e .",
                "pip install -e .",
                "pip install -r requirements/tests.txt",
            ],
        ),
    ],
)
def test_alternative_setups_are_listed_by_preference(files: dict[str, str], commands: list[str]):
    trees = MemoryTrees()
    assert list(detect_setups(trees, trees.add(files))) == commands


@pytest.mark.parametrize(
    ("path", "is_test"),
    [
        ("tests/a.json", True),
        ("test_a.py", True),
        ("a_test.py", True),
        ("pkg/tests.py", True),
        ("conftest.py", True),
        ("web/a.spec.ts", True),
        ("web/__tests__/a.ts", True),
        ("a_test.go", True),
        ("src/test/java/A.java", True),
        ("core/src/integrationTest/java/A.java", True),
        ("src/testFixtures/kotlin/A.kt", True),
        ("src/speedtest/java/A.java", False),
        ("speedTest/src/main/java/A.java", False),
        ("spec/a_spec.rb", True),
        ("spec/helper.rb", True),
        ("spec/openapi.yaml", False),
        ("contest.py", False),
        ("tests", False),
        ("latests/a.py", False),
        ("tests-evil/a.py", False),
        ("src/testing/tool.py", False),
        ("attest.go", False),
    ],
)
def test_paths_of_tests(path: str, is_test: bool):
    assert is_test_path(path) is is_test


API = {"services/api/pyproject.toml": "[project]\n", "services/api/tests/test_a.py": PLAIN}
WEB = {"web/package.json": '{"scripts": {"test": "jest"}}'}
TOP = {"tests/test_top.py": PLAIN, "pyproject.toml": "[project]\n"}
CRATE = {"Cargo.toml": "[workspace]\nmembers = ['crates/*']\n", "crates/one/Cargo.toml": "[package]\n"}


@pytest.mark.parametrize(
    ("files", "start", "project"),
    [
        (API, "services/api", "services/api"),
        (API, "services/api/tests", "services/api"),
        (API, "services/api/not/committed", "services/api"),
        (API | WEB, "services", ""),
        (API | WEB, "web", "web"),
        (API | TOP, "", ""),
        (API | TOP, "services/other", ""),
        ({}, "anywhere", ""),
        # The documentation's Makefile has no check, and the project above has one.
        (TOP | {"docs/Makefile": "html:\n\tsphinx-build\n"}, "docs", ""),
        ({"docs/Makefile": "html:\n\tsphinx-build\n"}, "docs", "docs"),
        (TOP | {"docs/Makefile": "test:\n\tlinkcheck\n"}, "docs", "docs"),
        # A configuration file counts, whatever else is found.
        (TOP | {"docs/chargehand.toml": "", "docs/a/b.md": ""}, "docs/a", "docs"),
        ({"chargehand.toml": "", "web/package.json": "{}", **API}, "web", ""),
        # Members of a workspace are separate projects; a member without tests is judged by the whole.
        (CRATE | {"crates/one/src/lib.rs": "#[test]\nfn a() {}\n"}, "crates/one/src", "crates/one"),
        (CRATE | {"crates/one/src/lib.rs": "", "crates/two/src/lib.rs": "#[test]\nfn a() {}\n"}, "crates/one", ""),
        ({"go.work": "use ./m\n", "m/go.mod": "module m\n", "m/a_test.go": "package m\n"}, "m", "m"),
        ({"job/requirements.txt": "requests\n", "job/test_a.py": PLAIN, "job/src/a.py": ""}, "job/src", "job"),
    ],
)
def test_the_project_that_a_directory_is_in(files: dict[str, str], start: str, project: str):
    trees = MemoryTrees()
    assert find_project(trees, trees.add(files), start) == project


@pytest.mark.parametrize(
    ("files", "directory", "commands", "setup"),
    [
        (API | WEB | TOP, "services/api", (PYTEST,), "pip install -e . pytest"),
        (API | WEB | TOP, "web", ("npm test",), None),
        ({"m/go.mod": "module m\n", "m/a/b_test.go": "package a\n"}, "m", ("go test ./...",), None),
        (
            {"tests/test_a.py": UNIT, "api/tests/test_b.py": UNIT},
            "api",
            ("python -m unittest discover -s tests",),
            None,
        ),
        ({"a/package.json": '{"scripts": {"test": "x"}}', "ab/test_a.py": PLAIN}, "a", ("npm test",), None),
        # The lock file of a workspace is at its root, however deep a member is.
        (
            {
                "js/package.json": '{"workspaces": ["packages/*"]}',
                "js/package-lock.json": "",
                "js/packages/web/package.json": '{"dependencies": {"a": "1"}}',
            },
            "js/packages/web",
            (),
            "(cd ../.. && npm ci)",
        ),
        (
            {"pnpm-workspace.yaml": "", "pnpm-lock.yaml": "", "web/package.json": "{}"},
            "web",
            (),
            "(cd .. && pnpm install --frozen-lockfile)",
        ),
    ],
)
def test_checks_and_setup_are_detected_per_directory(
    files: dict[str, str], directory: str, commands: tuple[str, ...], setup: str | None
):
    trees = MemoryTrees()
    tree = trees.add(files)
    assert detect_checks(trees, tree, directory).commands == commands
    assert next(iter(detect_setups(trees, tree, directory)), None) == setup


@pytest.mark.parametrize(
    "output",
    [
        "npm error code EAI_AGAIN\nnpm error syscall getaddrinfo\n",
        "npm ERR! request to https://registry.example/tap failed, reason: getaddrinfo ENOTFOUND\n",
        "pip: Temporary failure in name resolution\n",
        "error: failed to get `x`\n  [6] Could not resolve hostname (Could not resolve host: index.crates.io)\n",
        "error: Failed to fetch: `https://pypi.example/simple/x/`\n  Caused by: dns error\n",
        "go: example.org/x: dial tcp: lookup proxy.example: no such host\n",
        "java.net.UnknownHostException: services.example\n",
    ],
)
def test_a_client_that_finds_no_registry_lacks_a_package(output: str) -> None:
    assert lacks_packages("exit_code", output)
    assert not lacks_packages("exit_code", "1 test failed: expected 3, got 2\n")


SPDX = ("SPDX-FileCopyrightText: 2024 Alice", "", "SPDX-License-Identifier: MIT")


@pytest.mark.parametrize(
    ("files", "header"),
    [
        ({"pyproject.toml": "[project]\n", "LICENSE": "MIT"}, ()),
        ({"pom.xml": "<project><!-- Licensed to you --></project>\n"}, ()),
        # Code may be copied from elsewhere.
        ({"main.py": "# SPDX-License-Identifier: MIT\n"}, ()),
        ({"vendor/a.toml": "# SPDX-License-Identifier: MIT\n"}, ()),
        ({"a.yml": "# Runs the tests.\n# SPDX-like words\n"}, ()),
        ({"a.toml": f"# {SPDX[0]}\n#\n# {SPDX[2]}\n\n[a]\n"}, SPDX),
        ({"a.ini": f"; {SPDX[0]}\n;\n; {SPDX[2]}\n[a]\n"}, SPDX),
        ({".gitignore": f"# {SPDX[0]}\r\n#\r\n# {SPDX[2]}\r\n*.o\r\n"}, SPDX),
        ({"build.gradle": f"/*\n * {SPDX[0]}\n *\n * {SPDX[2]}\n */\nplugins {{}}\n"}, SPDX),
        ({"build.gradle.kts": f"// {SPDX[0]}\n//\n// {SPDX[2]}\nplugins {{}}\n"}, SPDX),
        (
            {
                "pom.xml": '<?xml version="1.0"?>\n<!--\n   Licensed to the Foundation\n     https://example.com\n-->\n<project/>'
            },
            ("Licensed to the Foundation", "  https://example.com"),
        ),
        # The header of most files counts.
        (
            {
                "a.yml": "# Licensed to A\n",
                "b.yml": "# Licensed to B\n",
                "c.xml": "<!-- Licensed to B -->\n",
            },
            ("Licensed to B",),
        ),
        ({"a.yml": "# Licensed to\x1b[31m A\x07\n"}, ("Licensed to A",)),
    ],
)
def test_a_licence_header_is_found_in_configuration(files: dict[str, str], header: tuple[str, ...]) -> None:
    trees = MemoryTrees()
    assert find_licence_header(trees, trees.add(files)) == header
