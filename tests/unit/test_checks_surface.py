"""The check surface: changing files that decide how checks run needs a person; harmless neighbours do not."""

from __future__ import annotations

import pytest
from tests.unit._inspecting import findings, rules

from chargehand.checks.areas import Areas
from chargehand.checks.inspection import base_tests_tree_plan
from chargehand.checks.reads import changed_settings
from chargehand.checks.trees import MemoryTrees


def touches(old: str | None, new: str | None, path: str, *commands: str) -> bool:
    before = {} if old is None else {path: old}
    after = {} if new is None else {path: new}
    found = [f for f in findings(before, after, commands=commands) if f.rule == "check_surface"]
    assert all(f.needs_person and f.severity == "warning" and path in f.message for f in found)
    return bool(found)


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "tests/deep/conftest.py",
        "pytest.ini",
        "tox.ini",
        "noxfile.py",
        ".coveragerc",
        "sitecustomize.py",
        "src/usercustomize.py",
        "lib/x.pth",
        ".github/workflows/ci.yml",
        ".gitlab-ci.yml",
        ".ci/run.sh",
        ".circleci/config.yml",
        "jest.config.js",
        "web/vitest.config.ts",
        "build.rs",
        ".cargo/config.toml",
        "rules.mk",
        "evil.dist-info/entry_points.txt",
        "src/pkg/__pycache__/a.cpython-311.pyc",
        "ruff.toml",
    ],
)
def test_files_that_are_check_surface_with_any_content(path: str):
    assert touches(None, "x", path)
    assert touches("x", "y", path)
    assert touches("x", None, path)
    assert not touches("x", "y", "/".join(f"x{part}x" for part in path.split("/")))


@pytest.mark.parametrize(
    ("path", "hides"),
    [
        ("pytest.py", True),
        ("unittest/__init__.py", True),
        ("pytest/__init__.py", True),
        ("src/json.py", True),
        ("json.pyc", True),
        ("json.cpython-311-x86_64-linux-gnu.so", True),
        ("tests/pytest.py", True),
        ("mypkg/json.py", False),
        ("test/__init__.py", False),
        ("unittest/extra.py", False),
        ("pytest_helpers.py", False),
        ("json.md", False),
    ],
)
def test_modules_that_hide_others(path: str, hides: bool):
    assert touches(None, "x = 1\n", path) is hides


@pytest.mark.parametrize(
    ("path", "hides"),
    [
        ("src/main/java/org/junit/jupiter/api/Assertions.java", True),
        ("src/test/java/org/hamcrest/MatcherAssert.java", True),
        ("src/test/kotlin/kotlin/test/Assertions.kt", True),
        ("src/main/java/org/calc/Assertions.java", False),
        ("src/assert.h", True),
        ("include/cassert", True),
        ("vendored/gtest/gtest.h", True),
        ("src/assertions.h", False),
        ("lib/Test/More.pm", True),
        ("lib/strict.pm", True),
        ("lib/Calc/Test.pm", False),
        ("lib/minitest/autorun.rb", True),
        ("test/rspec.rb", True),
        ("lib/calc/set.rb", False),
        ("luassert/init.lua", True),
    ],
)
def test_files_that_hide_a_test_library_are_check_surface(path: str, hides: bool):
    assert touches(None, "x = 1\n", path) is hides
    assert not touches("x", "y", path)
    beside = f"{path.rpartition('/')[0]}/other.{path.rpartition('.')[2]}"
    old = {path: "x"}
    if "/org/" in path or "gtest" in path:
        assert not [f for f in findings(old, {**old, beside: "y"}) if f.rule == "check_surface"]


def test_an_existing_module_may_change_but_a_new_link_hides_a_module():
    assert not touches("x = 1\n", "x = 2\n", "json.py")
    (finding,) = findings({}, {"pytest": "vendor"}, modes={"pytest": 0o120000})
    assert "hides the module 'pytest'" in finding.message


PYPROJECT = "[project]\nname = 'a'\nversion = '1'\n[tool.pytest.ini_options]\naddopts = '-q'\n"
SETUP_CFG = "[metadata]\nname = a\n[tool:pytest]\naddopts = -q\n"
PACKAGE = '{"name": "a", "scripts": {"test": "jest"}, "dependencies": {"x": "1"}}'
CARGO = "[package]\nname = 'a'\n[dependencies]\nx = '1'\n"
MAKE = (
    "PY ?= python\n"
    "V = 1\n"
    "\n"
    "all: build\n"
    "\n"
    "test: lint\n"
    "\t$(PY) -m pytest\n"
    "\n"
    "lint:\n"
    "\truff check\n"
    "\n"
    "build:\n"
    "\techo $(V)\n"
)


@pytest.mark.parametrize(
    ("path", "old", "new", "touched"),
    [
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace("'1'", "'2'"), False),
        ("pyproject.toml", PYPROJECT, "# comment\n" + PYPROJECT.replace("addopts =", "addopts  ="), False),
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace("-q", "-q -k nothing"), True),
        ("pyproject.toml", PYPROJECT, PYPROJECT + "[tool.coverage.run]\nomit = ['*']\n", True),
        ("pyproject.toml", PYPROJECT, PYPROJECT + "[tool.mypackage]\nx = 1\n", False),
        ("pyproject.toml", PYPROJECT, PYPROJECT + "[project.entry-points.pytest11]\nx = 'y'\n", True),
        ("pyproject.toml", PYPROJECT, PYPROJECT + "[build-system]\nrequires = []\n", True),
        ("pyproject.toml", PYPROJECT, PYPROJECT + "[broken", True),
        ("pyproject.toml", PYPROJECT, "tool = 3\n", True),
        ("pyproject.toml", PYPROJECT, None, True),
        ("pyproject.toml", None, "[project]\nname = 'a'\n", False),
        ("sub/pyproject.toml", None, PYPROJECT, True),
        ("setup.cfg", SETUP_CFG, SETUP_CFG.replace("name = a", "name = b"), False),
        ("setup.cfg", SETUP_CFG, SETUP_CFG.replace("-q", "-x"), True),
        ("setup.cfg", SETUP_CFG, "no section\n" + SETUP_CFG, True),
        ("package.json", PACKAGE, PACKAGE.replace('"x": "1"', '"x": "2"'), False),
        ("package.json", PACKAGE, PACKAGE.replace("jest", "true"), True),
        ("package.json", PACKAGE, PACKAGE[:-1], True),
        ("package.json", PACKAGE, "[]", True),
        ("Cargo.toml", CARGO, CARGO.replace("'1'", "'2'"), False),
        ("Cargo.toml", CARGO, CARGO + "[profile.test]\nopt-level = 3\n", True),
        ("Cargo.toml", CARGO, CARGO + "[lib]\ntest = false\n", True),
        ("Makefile", MAKE, MAKE.replace("echo", "printf"), False),
        ("Makefile", MAKE, MAKE.replace("V = 1", "V = 2"), False),
        ("Makefile", MAKE, MAKE + "\nnew:\n\techo\n", False),
        ("Makefile", MAKE, MAKE.replace("-m pytest", "-m pytest || true"), True),
        ("Makefile", MAKE, MAKE.replace("ruff check", "true"), True),
        ("Makefile", MAKE, MAKE.replace("PY ?= python", "PY ?= true"), True),
        ("Makefile", MAKE, MAKE.replace("test: lint", "test:"), True),
        ("Makefile", MAKE, MAKE + "\ninclude other\n", True),
        ("Makefile", MAKE, "SHELL = /bin/true\n" + MAKE, True),
    ],
)
def test_only_the_part_that_checks_use_counts(path: str, old: str | None, new: str | None, touched: bool):
    assert touches(old, new, path) is touched


WORKFLOW = """jobs:
  test:
    steps:
      - uses: actions/checkout@v6.0.3
      - name: Python
        uses: "actions/setup-python@v6"
      - uses: codecov/codecov-action@671740ac38dd9b0130fbe1cec585b89eea48d3de # v5.5.2
      - uses: owner/tool@main
      - run: pytest
"""
HOOKS = "repos:\n- repo: https://example.org/x\n  rev: v1.9.0\n  hooks:\n  - id: x\n"
CI = ".github/workflows/ci.yml"


@pytest.mark.parametrize(
    ("path", "text", "before", "after", "asks"),
    [
        (CI, WORKFLOW, "@v6.0.3", "@v7.0.0", False),
        (CI, WORKFLOW, "@v6.0.3", "@v6.0.10", False),
        (CI, WORKFLOW, '@v6"', '@v7"', False),
        (".forgejo/workflows/ci.yaml", WORKFLOW, "@v6.0.3", "@v7", False),
        (CI, WORKFLOW, "@v6.0.3", "@v6.0.2", True),  # older
        (CI, WORKFLOW, "@v6.0.3", "@11bd71901bbe5b1630ceea73d27597364c9af683", True),
        (CI, WORKFLOW, "@671740ac38dd9b0130fbe1cec585b89eea48d3de # v5", "@57e3a136b779b570 # v6", True),
        (CI, WORKFLOW, "@main", "@v9", True),
        (CI, WORKFLOW, "actions/checkout@v6.0.3", "action/checkout@v7.0.0", True),  # another owner
        (CI, WORKFLOW, "@v6.0.3", "@v7.0.0\n        with: {token: x}", True),
        (CI, WORKFLOW, "@v6.0.3", "@v7.0.0 # ${{ secrets }}", True),
        (CI, WORKFLOW, "run: pytest", "run: true", True),
        (".github/actions/own/action.yml", WORKFLOW, "@v6.0.3", "@v7.0.0", True),
        (".pre-commit-config.yaml", HOOKS, "v1.9.0", "v1.10.0", False),
        (".pre-commit-config.yaml", HOOKS, "v1.9.0", "v1.8.0", True),
        (".pre-commit-config.yaml", HOOKS, "example.org/x", "example.org/y", True),
        (".pre-commit-config.yaml", HOOKS, "id: x", "id: y", True),
    ],
)
def test_a_newer_version_of_a_ci_action_or_hook_needs_no_person(
    path: str, text: str, before: str, after: str, asks: bool
) -> None:
    changed = text.replace(before, after)
    assert changed != text
    found = findings({path: text}, {path: changed}, commands=("pytest",))
    assert any(each.needs_person for each in found) is asks, found
    assert any(each.needs_person for each in findings({}, {path: text})), "a new file does"


@pytest.mark.parametrize(("revision", "counts"), [("v1.10.0", False), ("v1.8.0", True)])
def test_newer_hooks_are_no_settings_of_a_check_that_opens_their_file(revision: str, counts: bool) -> None:
    trees = MemoryTrees()
    path = ".pre-commit-config.yaml"
    base, tree = trees.add({path: HOOKS}), trees.add({path: HOOKS.replace("v1.9.0", revision)})
    found = changed_settings(trees.changes(base, tree), lambda _: True, trees)
    assert found == ((path,) if counts else ())


def test_the_targets_of_make_come_from_the_commands():
    changed = MAKE.replace("echo", "printf")
    assert touches(MAKE, changed, "Makefile", "make build")
    assert touches(MAKE, changed, "Makefile", "make -j2")
    assert not touches(MAKE, changed, "Makefile", "make lint")


def test_scripts_that_check_commands_name():
    assert touches("x", "y", "scripts/check.sh", "bash ./scripts/check.sh && echo ok")
    assert touches("x", "y", "tools/check.py", "python -m tools.check")
    assert touches("x", "y", "run", "/workspace/run")
    assert not touches("x", "y", "scripts/check.sh", "bash scripts/other.sh")
    assert not touches("x", "y", "evil/scripts/check.sh", "bash scripts/check.sh")
    assert not touches("def test_a(): assert f()\n", "def test_a(): assert g()\n", "test_a.py", "pytest test_a.py")


def test_an_allowed_surface_change_is_reported_but_needs_no_person():
    (finding,) = findings({}, {"conftest.py": "x"}, check_surface_allowed=True)
    assert (finding.rule, finding.severity, finding.needs_person) == ("check_surface", "info", False)


def plan(old: dict[str, str], new: dict[str, str], *commands: str):
    trees = MemoryTrees()
    base, tree = trees.add(old), trees.add(new)
    found = base_tests_tree_plan(trees.changes(base, tree), trees, base, Areas(commands=commands))
    wanted = {path: trees.lookup(base, path) for path in old}
    return {
        path: "base" if entry is not None and entry == wanted.get(path) else entry for path, entry in found.items()
    }


def test_no_files_are_restored_if_tests_are_unchanged():
    assert plan({"a.py": "1", "tests/test_a.py": "t"}, {"a.py": "2", "b.py": "1", "tests/test_a.py": "t"}) == {}


def test_changed_tests_and_surface_are_restored_and_new_files_removed():
    old = {"a.py": "1", "tests/test_a.py": "t", "tests/gone.json": "g", "pyproject.toml": PYPROJECT, "run.sh": "r"}
    new = {
        "a.py": "2",
        "tests/test_a.py": "weak",
        "tests/test_new.py": "n",
        "pyproject.toml": PYPROJECT.replace("-q", "-x"),
        "conftest.py": "evil",
        "pytest.py": "evil",
        "run.sh": "true",
    }
    assert plan(old, new, "./run.sh") == {
        "conftest.py": None,
        "pytest.py": None,
        "tests/test_new.py": None,
        "pyproject.toml": "base",
        "run.sh": "base",
        "tests/gone.json": "base",
        "tests/test_a.py": "base",
    }


def test_the_first_tests_of_a_project_are_kept():
    first = {"tests/test_new.py": "n", "tests/__init__.py": "", "conftest.py": "c", "pytest.ini": "[pytest]"}
    assert plan({"a.py": "1"}, {"a.py": "2", **first}) == {}
    assert plan({"a.py": "1", "tox.ini": "a"}, {"a.py": "2", "tox.ini": "b", **first}) == {"tox.ini": "base"}
    assert plan({"a.test.js": "t"}, {"a.test.js": "t", **first}) == {"pytest.ini": None}
    assert set(plan({"test_old.py": "t"}, {"test_old.py": "t", **first})) == set(first)


def test_a_file_in_place_of_the_test_directory_has_to_go():
    assert plan({"tests/test_a.py": "t"}, {"tests": "file"}) == {"tests": None, "tests/test_a.py": "base"}
    assert plan({"test_a.py": "t"}, {"test_a.py/x": "file"}) == {"test_a.py/x": None, "test_a.py": "base"}


def test_changes_of_the_chargehand_configuration_are_restored():
    assert plan({"chargehand.toml": "a"}, {"chargehand.toml": "b"}) == {"chargehand.toml": "base"}
    assert ("config_protected", "error", "chargehand.toml") in rules({"chargehand.toml": "a"}, {})


@pytest.mark.parametrize(
    ("before", "path", "command"),
    [
        ({}, "tools/check.sh", "sh tools/check.sh"),
        ({"package.json": '{"scripts": {"test": "node run.js"}}'}, "run.js", "npm test"),
        ({"Makefile": "test:\n\t./go.sh\n"}, "go.sh", "make test"),
        (
            {"pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["code"]\n'},
            "code/json.py",
            "python -m pytest",
        ),
        ({"pyproject.toml": '[build-system]\nbackend-path = ["backend"]\n'}, "backend/own.py", "python -m pytest"),
        ({}, "json.py", "python -m pytest"),
        ({}, "src/json.py", "python -m pytest"),
        ({}, "tasks.py", "inv test"),
        ({"own/__init__.py": "", "json/__init__.py": ""}, "lib/own.py", "python -m pytest"),
    ],
)
def test_check_surface_is_relative_to_the_start_directory(before: dict[str, str], path: str, command: str) -> None:
    def touched(directory: str, place: str) -> bool:
        files = {f"services/api/{name}": text for name, text in before.items()}
        changed = {**files, place: "x = 1\n"}
        found = findings(files, changed, commands=(command,), directory=directory)
        return any(each.rule == "check_surface" and each.path == place for each in found)

    assert touched("services/api", f"services/api/{path}")
    assert not touched("services/api", f"services/other/{path}")
    assert not touched("services/web", f"services/api/{path}")


def test_only_reachable_targets_of_a_makefile_are_check_surface() -> None:
    def touched(new: str) -> bool:
        old = {"api/Makefile": "test:\n\ttrue\nhtml:\n\tone\n"}
        found = findings(old, {"api/Makefile": new}, commands=("make test",), directory="api")
        return any(each.rule == "check_surface" for each in found)

    assert not touched("test:\n\ttrue\nhtml:\n\ttwo\n")
    assert touched("test:\n\tfalse\nhtml:\n\tone\n")


@pytest.mark.parametrize(
    "command",
    [
        *("mypy calc.py", "python3 -m mypy --strict calc.py", "uv run mypy calc.py", "ruff check calc.py"),
        *(
            "flake8 --max-line-length 99 calc.py other.py",
            "python -m py_compile calc.py",
            "python3 -m doctest calc.py",
        ),
        *("black --check calc.py && pytest -q", "X=1 pylint -j2 calc.py", ".venv/bin/pyright calc.py"),
    ],
)
def test_code_that_a_check_reads_and_does_not_run_is_no_surface(command: str) -> None:
    assert not touches("x = 1\n", "x = 2\n", "calc.py", command)
    assert plan({"calc.py": "x = 1\n"}, {"calc.py": "x = 2\n"}, command) == {}


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("plug.py", "pylint --load-plugins plug.py calc.py"),
        ("own.config.js", "eslint -c own.config.js src"),
        ("list.py", "mypy $(python3 list.py)"),
        ("calc.py", "mypy other.py && python3 calc.py"),
        ("calc.py", "python3 calc.py --self-test"),
    ],
)
def test_code_that_a_check_runs_is_its_surface(path: str, command: str) -> None:
    assert touches("x = 1\n", "x = 2\n", path, command)


def test_code_started_by_a_check_is_kept_and_its_drivers_are_restored() -> None:
    for path in ("calc.py", "src/calc/main.py", "lib/sums.js"):
        command = f"{'node' if path.endswith('js') else 'python3'} {path} --self-test"
        assert plan({path: "1"}, {path: "2"}, command) == {}
        assert touches("1", "2", path, command), "a person decides"
    for path in ("run.sh", "ci/all.py", "run_tests.py", "tools/verify.js", "check"):
        assert plan({path: "1"}, {path: "2"}, f"./{path}") == {path: "base"}


def test_go_code_in_a_directory_of_tests_may_be_imported() -> None:
    old = {"a_test.go": "package a\n", "internal/testsuite/old.go": "package testsuite\n"}
    new = old | {"internal/testsuite/new.go": "package testsuite\n", "internal/testsuite/new_test.go": "x"}
    assert plan(old, new) == {"internal/testsuite/new_test.go": None}


LINTED = (
    ("ruff.toml", "line-length = 9\n"),
    (".flake8", "[flake8]\n"),
    ("mypy.ini", "[mypy]\n"),
    (".eslintrc.json", "{}"),
)


@pytest.mark.parametrize(("path", "text"), LINTED)
def test_settings_of_a_linter_are_surface_if_a_check_may_start_the_linter(path: str, text: str) -> None:
    program = path.strip(".").partition(".")[0].removesuffix("rc")
    assert not touches(None, text, path, "python -m pytest -q")
    assert touches(None, text, path, f"{program} . && python -m pytest -q")
    assert touches(None, text, path, "tox")
    runs = {"tests/test_style.py": f"import subprocess\nsubprocess.run(['{program}', '.'])\n"}
    found = findings(runs, runs | {path: text}, commands=("pytest",))
    assert [each.rule for each in found] == ["check_surface"]
    made = {"Makefile": f"test: lint\n\tpytest\nlint:\n\t{program} .\n"}
    assert [each.rule for each in findings(made, made | {path: text}, commands=("make test",))] == [
        "check_surface"
    ]


def test_tables_of_linters_count_if_a_check_may_start_them() -> None:
    linted = PYPROJECT + "[tool.ruff]\nline-length = 9\n[tool.mypy]\nstrict = true\n"
    assert not touches(PYPROJECT, linted, "pyproject.toml", "pytest -q")
    assert touches(PYPROJECT, linted, "pyproject.toml", "pytest -q", "mypy src")
    assert touches(PYPROJECT, linted.replace("-q", "-x"), "pyproject.toml", "pytest -q")
    flagged = PYPROJECT.replace("-q", "-q --mypy")
    assert touches(flagged, flagged + "[tool.mypy]\nx = 1\n", "pyproject.toml", "pytest")
    assert not touches(SETUP_CFG, SETUP_CFG + "[flake8]\nx = 1\n[mypy-a.*]\ny = 1\n", "setup.cfg", "pytest")
    assert touches(SETUP_CFG, SETUP_CFG + "[flake8]\nx = 1\n", "setup.cfg", "flake8", "pytest")
    assert not touches(PACKAGE, PACKAGE[:-1] + ', "eslintConfig": {}}', "package.json", "npm test")
    linted = PACKAGE.replace("jest", "eslint . && jest")
    assert touches(linted, linted[:-1] + ', "eslintConfig": {}}', "package.json", "npm test")


@pytest.mark.parametrize(
    "line", ["include conf/flags.inc", "-include  $(TOP)/conf/flags.inc other", "sinclude conf/*.inc"]
)
def test_files_that_a_makefile_includes_are_its_surface(line: str) -> None:
    def touched(path: str, command: str = "make test") -> bool:
        old = {"Makefile": f"{line}\ntest:\n\tcc $(FLAGS) a.c && ./a.out\n", path: "FLAGS =\n"}
        new = old | {path: "FLAGS = -DNDEBUG\n"}
        return any(each.rule == "check_surface" for each in findings(old, new, commands=(command,)))

    assert touched("conf/flags.inc")
    assert not touched("conf/flags.txt")
    assert not touched("conf/flags.inc", "pytest")


def test_a_file_that_an_included_file_includes_counts_too() -> None:
    old = {"Makefile": "include a.inc\ntest:\n\ttrue\n", "a.inc": "include b.inc\n", "b.inc": "X =\n"}
    assert rules(old, old | {"b.inc": "X = 1\n"}, commands=("make test",)) == [
        ("check_surface", "warning", "b.inc")
    ]


@pytest.mark.parametrize(
    ("kept", "new"),
    [("calc.py", "calc/__init__.py"), ("src/a/b.py", "src/a/b/__init__.py"), ("lib/x/index.js", "lib/x.js")],
)
def test_code_that_is_loaded_in_place_of_other_code_waits(kept: str, new: str) -> None:
    assert ("check_surface", "warning", new) in rules({kept: "x"}, {kept: "x", new: "y"})
    assert ("check_surface", "warning", new) in rules({kept: "x"}, {kept: "z", new: "y"})
    # A module that becomes a package hides nothing.
    assert rules({kept: "x"}, {new: "y"}) == []
    assert rules({kept: "x", new: "y"}, {kept: "x", new: "z"}) == []
