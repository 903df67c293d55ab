"""A setup runs again if its inputs changed, and not after other changes in the same files."""

from __future__ import annotations

import json

import pytest

from chargehand.checks.installs import InstallReader, Setup
from chargehand.checks.trees import MemoryTrees

PIP, NPM = "pip install -e .[test]", "npm ci"
PYPROJECT = (
    "[build-system]\nrequires = ['setuptools>=61', 'setuptools-scm']\nbuild-backend = 'setuptools.build_meta'\n"
    "[project]\nname = 'calc'\nversion = '1.0'\ndescription = 'sums'\ndependencies = ['six>=1', 'attrs']\n"
    "[project.optional-dependencies]\ntest = ['pytest']\n[tool.ruff]\nline-length = 100\n"
)
SETUP_CFG = (
    "[metadata]\nname = calc\nversion = 1\n[options]\ninstall_requires =\n  six\n  attrs\n[flake8]\nx = 1\n"
)
SETUP_PY = "from setuptools import setup\nV = '1.0'\nsetup(name='calc', version=V, install_requires=['six'])\n"
PACKAGE = {
    "name": "calc",
    "version": "1.0.0",
    "description": "sums",
    "scripts": {"test": "mocha", "lint": "eslint ."},
    "dependencies": {"left-pad": "^1.0.0"},
}
NPM_LOCK = {
    "name": "calc",
    "version": "1.0.0",
    "lockfileVersion": 3,
    "packages": {"": {"version": "1.0.0", "dependencies": {"a": "1"}}, "node_modules/a": {"version": "1.0.0"}},
}
CARGO = "[package]\nname = 'calc'\nversion = '0.1.0'\n[dependencies]\nserde = '1'\n"
CARGO_LOCK = (
    "version = 3\n[[package]]\nname = 'calc'\nversion = '0.1.0'\n\n"
    "[[package]]\nname = 'serde'\nversion = '1.0.1'\n"
    "source = 'registry+https://github.com/rust-lang/crates.io-index'\n"
)
UV_LOCK = (
    "version = 1\n[[package]]\nname = 'calc'\nversion = '1.0'\nsource = { editable = '.' }\n"
    "[[package]]\nname = 'six'\nversion = '1.16'\nsource = { registry = 'https://pypi.org/simple' }\n"
)
GO = (
    "module example.org/calc\n\ngo 1.21\n\n"
    "require (\n\texample.org/a v1.0.0\n\texample.org/b v1.0.0 // indirect\n)\n"
)
POM = (
    "<project><modelVersion>4.0.0</modelVersion><artifactId>calc</artifactId><version>1</version>"
    "<dependencies><dependency><artifactId>junit</artifactId><version>5</version></dependency></dependencies>"
    "</project>"
)
COMPOSER = {"name": "a/calc", "require": {"php": ">=8"}, "scripts": {"test": "phpunit"}}
GRADLE = "plugins {\n    id 'java'\n}\nversion = '1.0'\ndependencies {\n    implementation 'a:b:1'\n}\n"
POETRY = "[tool.poetry]\nname = 'calc'\nversion = '1'\n[tool.poetry.dependencies]\nsix = '1'\n"

SAME = {
    "a version": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("'1.0'", "'1.1'")),
    "a description": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("sums", "sums and more")),
    "keywords": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("[project]", "[project]\nkeywords = ['a']")),
    "urls": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "[project.urls]\nHome = 'https://example.org'\n"),
    "a linter": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("100", "120")),
    "a test runner": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "[tool.pytest.ini_options]\naddopts = '-q'\n"),
    "an unknown tool": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "[tool.acme]\nx = 1\n"),
    "a comment": ("pyproject.toml", PIP, PYPROJECT, "# Calc.\n" + PYPROJECT),
    "order": (
        "pyproject.toml",
        PIP,
        PYPROJECT,
        PYPROJECT.replace("['six>=1', 'attrs']", "[\n'attrs',\n'six >= 1',\n]"),
    ),
    "only a linter, added": ("pyproject.toml", PIP, None, "[tool.ruff]\nline-length = 100\n"),
    "only a linter, gone": ("setup.cfg", PIP, "[flake8]\nmax = 1\n", None),
    "poetry": ("pyproject.toml", "poetry install", POETRY, POETRY.replace("'calc'", "'calc'\ndescription = 'x'")),
    "setup.cfg": ("setup.cfg", PIP, SETUP_CFG, SETUP_CFG.replace("version = 1", "version = 2\nauthor = A")),
    "setup.cfg, a linter": ("setup.cfg", PIP, SETUP_CFG, SETUP_CFG.replace("x = 1", "x = 2")),
    "setup.cfg, a form": ("setup.cfg", PIP, SETUP_CFG, SETUP_CFG.replace("  six\n", "\n    six\n")),
    "setup.py": ("setup.py", PIP, SETUP_PY, SETUP_PY.replace("name=", "# A name.\n    description='x', name=")),
    "setup.py, a version": ("setup.py", PIP, SETUP_PY, SETUP_PY.replace("1.0", "1.1")),
    "requirements": ("requirements-dev.txt", PIP, "six\nattrs>=1\n", "# Tests\nattrs >= 1  # why\n\nsix\n"),
    "Pipfile": (
        "Pipfile",
        "pipenv install",
        "[packages]\na = '*'\n",
        "[packages]\na = \"*\"\n[scripts]\nx = 'y'\n",
    ),
    "uv's lock": ("uv.lock", "uv sync", UV_LOCK, UV_LOCK.replace("'1.0'", "'1.1'")),
    "package.json": ("package.json", NPM, PACKAGE, PACKAGE | {"description": "x", "keywords": ["a"]}),
    "npm, a version": ("package.json", NPM, PACKAGE, PACKAGE | {"version": "1.0.1"}),
    "npm, a script": ("package.json", NPM, PACKAGE, PACKAGE | {"scripts": {"test": "mocha -b", "lint": "x"}}),
    "npm, exports": (
        "package.json",
        NPM,
        PACKAGE,
        PACKAGE | {"exports": "./a.js", "files": ["a.js"], "type": "module"},
    ),
    "npm, a tool": ("package.json", NPM, PACKAGE, PACKAGE | {"eslintConfig": {}, "jest": {"x": 1}, "acme": 1}),
    "npm, a form": ("package.json", NPM, PACKAGE, json.dumps(PACKAGE, indent=4, sort_keys=True)),
    "npm's lock": (
        "package-lock.json",
        NPM,
        NPM_LOCK,
        json.dumps(NPM_LOCK, indent=2).replace('"1.0.0"', '"1.0.1"', 2),
    ),
    "yarn's lock": ("yarn.lock", "yarn", "# v1\n\na@1:\n  version 1\n", "# v1\n# more\na@1:\n  version 1\n\n"),
    "pnpm's lock": ("pnpm-lock.yaml", "pnpm i", "a:\n  b: 1\n", "a:\n\n  b: 1\n"),
    "cargo": (
        "Cargo.toml",
        "cargo fetch",
        CARGO,
        CARGO.replace("0.1.0", "0.2.0") + "[profile.release]\nlto = true\n",
    ),
    "cargo, about": (
        "Cargo.toml",
        "cargo fetch",
        CARGO,
        CARGO.replace("[dep", "license = 'MIT'\nkeywords = ['a']\n[dep"),
    ),
    "cargo, a feature": (
        "Cargo.toml",
        "cargo fetch",
        CARGO,
        CARGO + "[features]\nfast = []\n[lints.rust]\nx = 'warn'\n",
    ),
    "cargo's lock": ("Cargo.lock", "cargo fetch", CARGO_LOCK, CARGO_LOCK.replace("0.1.0", "0.2.0")),
    "go": ("go.mod", "go mod download", GO, GO.replace(" // indirect", "").replace("go 1.21", "// Go.\ngo 1.21")),
    "go, a form": (
        "go.mod",
        "go mod download",
        GO,
        GO.replace("(\n\texample.org/a v1.0.0", "example.org/a v1.0.0\nrequire ("),
    ),
    "go's sums": ("go.sum", "go mod download", "a v1 h1:x\nb v1 h1:y\n", "b v1 h1:y\na v1 h1:x\n"),
    "maven": (
        "pom.xml",
        "mvn -B test",
        POM,
        POM.replace("<version>1<", "<name>Calc</name>\n  <!-- x --><version>2<"),
    ),
    "gradle": (
        "build.gradle",
        "gradle test",
        GRADLE,
        GRADLE.replace("'1.0'", "'1.1'").replace("dep", "// More.\n\ndep"),
    ),
    "composer": (
        "composer.json",
        "composer install",
        COMPOSER,
        COMPOSER | {"scripts": {"test": "x"}, "license": "MIT"},
    ),
    "bundler": ("Gemfile", "bundle install", "gem 'a'\n", "# Gems.\n\ngem 'a'\n"),
    "a fixture": ("tests/fixtures/app/package.json", NPM, PACKAGE, PACKAGE | {"dependencies": {"b": "1"}}),
}
OTHER = {
    "a dependency": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("'attrs'", "'attrs', 'b'")),
    "a bound": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("six>=1", "six>=2")),
    "an extra": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("['pytest']", "['pytest', 'b']")),
    "a group": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "[dependency-groups]\ndev = ['b']\n"),
    "a build requirement": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace(">=61", ">=99")),
    "a backend": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("setuptools.build_meta", "own")),
    "an entry point": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "[project.scripts]\ncalc = 'calc:main'\n"),
    "package discovery": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "[tool.setuptools]\npackages = ['x']\n"),
    "the backend's plugin": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "[tool.setuptools_scm]\nx = 1\n"),
    "a tool that setup runs": (
        "pyproject.toml",
        "poe setup",
        PYPROJECT,
        PYPROJECT + "[tool.poe.tasks]\nsetup = 'x'\n",
    ),
    "a backend inside": (
        "pyproject.toml",
        PIP,
        PYPROJECT.replace("[project]", "backend-path = ['b']\n[project]"),
        PYPROJECT.replace("[project]", "backend-path = ['b']\n[project]") + "[tool.acme]\nx = 1\n",
    ),
    "no TOML": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT + "x = \n"),
    "a name": ("pyproject.toml", PIP, PYPROJECT, PYPROJECT.replace("'calc'", "'sums'")),
    "poetry": ("pyproject.toml", "poetry install", POETRY, POETRY.replace("six = '1'", "six = '2'")),
    "setup.cfg": ("setup.cfg", PIP, SETUP_CFG, SETUP_CFG.replace("attrs", "b")),
    "setup.cfg, packages": (
        "setup.cfg",
        PIP,
        SETUP_CFG,
        SETUP_CFG.replace("[flake8]", "[options.packages.find]\nwhere = x\n[flake8]"),
    ),
    "setup.py": ("setup.py", PIP, SETUP_PY, SETUP_PY.replace("['six']", "['six', 'b']")),
    "setup.py, a program": ("setup.py", PIP, SETUP_PY, SETUP_PY + "import os\nos.system('x')\n"),
    "setup.py, a used version": (
        "setup.py",
        PIP,
        SETUP_PY + "print(V)\n",
        SETUP_PY.replace("1.0", "1.1") + "print(V)\n",
    ),
    "setup.py, broken": ("setup.py", PIP, SETUP_PY, SETUP_PY + "("),
    "requirements": ("requirements-dev.txt", PIP, "six\n", "six\nb\n"),
    "an index": ("requirements.txt", PIP, "six\n", "--index-url https://example.org\nsix\n"),
    "Pipfile": ("Pipfile", "pipenv install", "[packages]\na = '*'\n", "[packages]\na = '2'\n"),
    "uv's lock": ("uv.lock", "uv sync", UV_LOCK, UV_LOCK.replace("1.16", "1.17")),
    "npm": ("package.json", NPM, PACKAGE, PACKAGE | {"devDependencies": {"b": "1"}}),
    "npm, an install script": ("package.json", NPM, PACKAGE, PACKAGE | {"scripts": {"postinstall": "node x"}}),
    "npm, a script that setup runs": (
        "package.json",
        "npm ci && npm run build",
        PACKAGE,
        PACKAGE | {"scripts": {"build": "tsc"}},
    ),
    "npm, one that it runs by another": (
        "package.json",
        NPM,
        PACKAGE | {"scripts": {"prepare": "npm run gen", "gen": "a"}},
        PACKAGE | {"scripts": {"prepare": "npm run gen", "gen": "b"}},
    ),
    "npm, workspaces": ("package.json", NPM, PACKAGE, PACKAGE | {"workspaces": ["a"]}),
    "npm, no object": ("package.json", NPM, PACKAGE, "[]"),
    "npm's lock": (
        "package-lock.json",
        NPM,
        NPM_LOCK,
        json.dumps(NPM_LOCK)[::-1].replace('"0.0.1"', '"1.0.1"', 1)[::-1],
    ),
    "yarn's lock": ("yarn.lock", "yarn", "a@1:\n  version 1\n", "a@1:\n  version 2\n"),
    "cargo": ("Cargo.toml", "cargo fetch", CARGO, CARGO.replace("'1'", "'2'")),
    "cargo, a program": (
        "Cargo.toml",
        "cargo install --path .",
        CARGO,
        CARGO + "[features]\ndefault = ['x']\nx = []\n",
    ),
    "cargo's lock": ("Cargo.lock", "cargo fetch", CARGO_LOCK, CARGO_LOCK.replace("1.0.1", "1.0.2")),
    "go": ("go.mod", "go mod download", GO, GO.replace("b v1.0.0", "b v1.0.1")),
    "go, replaced": ("go.mod", "go mod download", GO, GO + "replace example.org/a => ../a\n"),
    "maven": ("pom.xml", "mvn -B test", POM, POM.replace("<version>5<", "<version>6<")),
    "gradle": ("build.gradle", "gradle test", GRADLE, GRADLE.replace("a:b:1", "a:b:2")),
    "composer": ("composer.json", "composer install", COMPOSER, COMPOSER | {"scripts": {"post-install-cmd": "x"}}),
    "bundler": ("Gemfile", "bundle install", "gem 'a'\n", "gem 'a'\ngem 'b'\n"),
    "a fixture that setup names": ("tests/fixtures/package.json", "npm ci --prefix tests/fixtures", PACKAGE, {}),
}


def installs(path: str, command: str, said: str | dict[str, object] | None, *, versions: bool = False) -> str:
    text = said if isinstance(said, str) or said is None else json.dumps(said)
    trees = MemoryTrees()
    found = trees.lookup(trees.add({} if text is None else {path: text}), path)
    return InstallReader(trees, Setup(command=command, versions=versions))(path, *(found or (None, None)))


@pytest.mark.parametrize("case", SAME)
def test_a_change_without_effect_on_installs_needs_no_setup(case: str) -> None:
    path, command, old, new = SAME[case]
    assert old != new
    assert installs(path, command, old) == installs(path, command, new)


@pytest.mark.parametrize("case", OTHER)
def test_a_change_of_installs_needs_setup(case: str) -> None:
    path, command, old, new = OTHER[case]
    assert installs(path, command, old) != installs(path, command, new)


@pytest.mark.parametrize(
    "case", ["a version", "setup.cfg", "setup.py, a version", "npm, a version", "uv's lock", "gradle"]
)
def test_a_version_change_counts_if_versions_are_requested(case: str) -> None:
    path, command, old, new = SAME[case]
    assert installs(path, command, old, versions=True) != installs(path, command, new, versions=True)


def test_a_file_that_is_too_large_or_a_link_counts_as_a_whole() -> None:
    trees, setup = MemoryTrees(), Setup(command=PIP)
    tree = trees.add({"pyproject.toml": PYPROJECT})
    _, blob = trees.lookup(tree, "pyproject.toml") or (0, "")
    assert InstallReader(trees, setup, most_bytes=10)("pyproject.toml", 0o100644, blob) == f"{0o100644} {blob}"
    assert InstallReader(trees, setup)("pyproject.toml", 0o120000, blob) == f"{0o120000} {blob}"
