"""Checks that pass without having run the change, by ecosystem: their verdict is never green."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

import pytest
from command_line import Cli, repository, shell
from test_dependency_changes import CARGO, NODE, PYTHON

pytestmark = pytest.mark.needs_bwrap

UNITTEST = "python3 -m unittest -q"
READ_ALL = "cat $(git ls-files) > /dev/null"
BROKEN = "%%%\n"
GO_BUILD = "go build ./..."

GO = {
    "go.mod": "module example.org/calc\n\ngo 1.20\n",
    "calc.go": "package calc\n\nfunc Add(a, b int) int { return a + b }\n",
    "calc_test.go": (
        'package calc\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n'
        "\tif Add(2, 1) != 3 {\n\t\tt.Fatal()\n\t}\n}\n"
    ),
}
WINDOWS = "package calc\n\nfunc Root() string { return 1 }\n"
# The module's own library, and a copy that `replace` puts in its place.
REPLACED = {
    "go.mod": GO["go.mod"] + "\nrequire example.org/sums v1.0.0\n\nreplace example.org/sums => ./copy\n",
    "copy/go.mod": "module example.org/sums\n\ngo 1.20\n",
    "copy/sums.go": "package sums\n\nfunc Add(a, b int) int { return a + b }\n",
    "sums/go.mod": "module example.org/sums\n\ngo 1.20\n",
    "sums/sums.go": "package sums\n\nfunc Add(a, b int) int { return a + b }\n",
    "calc_test.go": GO["calc_test.go"]
    .replace('import "testing"', 'import (\n\t"testing"\n\n\t"example.org/sums"\n)')
    .replace("Add(2", "sums.Add(2"),
}
REPLACED["calc.go"] = 'package calc\n\nimport "example.org/sums"\n\nvar Add = sums.Add\n'
# One base for all cases in Go: they share what the first case compiled.
GO_ROOTS = REPLACED | {
    "root_windows.go": WINDOWS.replace("1", '""'),
    "root.go": "//go:build ignore\n\npackage calc\n",
}
MEMBERS = {
    "Cargo.toml": '[workspace]\nmembers = ["calc", "spare"]\ndefault-members = ["calc"]\nresolver = "2"\n',
    "calc/Cargo.toml": CARGO["Cargo.toml"],
    "calc/src/lib.rs": CARGO["src/lib.rs"],
    "spare/Cargo.toml": CARGO["Cargo.toml"].replace("calc", "spare"),
    "spare/src/lib.rs": CARGO["src/lib.rs"],
}
OBJECTS = {
    ".gitignore": "*.o\ntest\n",
    "calc.c": "int add(int a, int b) { return a + b; }\n",
    "test.c": "int add(int, int);\nint main(void) { return add(2, 1) != 3; }\n",
    "Makefile": "check:\n\tcc -o test test.c calc.o\n\t./test\nbuild:\n\tcc -c calc.c\n",
}
BUILT = {
    "src/calc.js": NODE["calc.js"],
    "calc.test.js": NODE["calc.test.js"].replace("./calc", "./dist/calc.js"),
    "package.json": json.dumps({"name": "calc", "version": "1.0.0", "main": "dist/calc.js"}),
    ".gitignore": "dist/\nnode_modules/\n",
}
OWN_COPY = BUILT | {
    "calc.test.js": NODE["calc.test.js"].replace("./calc", "calc/src/calc.js"),
    "package.json": json.dumps({"name": "calc", "version": "1.0.0"}),
}


@dataclass(frozen=True)
class Project:
    """A project whose `check` passes whatever `path` contains; `needs` is a program on the host."""

    files: dict[str, str]
    path: str
    check: str
    _: KW_ONLY
    says: str = "change_unread"
    setup: str = ""
    text: str = BROKEN
    needs: str = ""


PROJECTS = {
    "unittest, a copy beside a reader": Project(
        {"src/calc.py": PYTHON["calc.py"], "test_calc.py": PYTHON["test_calc.py"], ".gitignore": ".venv/\n"},
        "src/calc.py",
        f"{READ_ALL} && python -m unittest -q",
        says="loaded_elsewhere",
        setup="python3 --version; cp src/calc.py .venv/lib/python3*/site-packages/",
    ),
    "unittest, a vendored copy": Project(PYTHON | {"src/calc.py": PYTHON["calc.py"]}, "src/calc.py", UNITTEST),
    "node, what setup built": Project(
        BUILT,
        "src/calc.js",
        f"{READ_ALL} && node --test",
        says="loaded_elsewhere",
        setup="mkdir dist && cp src/calc.js dist/",
    ),
    "node, a copy of itself": Project(
        OWN_COPY,
        "src/calc.js",
        f"{READ_ALL} && node --test",
        says="loaded_elsewhere",
        setup="mkdir -p node_modules/calc && cp -r src package.json node_modules/calc/",
    ),
    "node, a script that tests nothing": Project(
        NODE | {"package.json": json.dumps({"name": "calc", "scripts": {"test": "echo fine"}})},
        "calc.js",
        "npm test",
    ),
    "cargo, a member that is not built": Project(
        MEMBERS, "spare/src/lib.rs", "cargo test -q", text=CARGO["src/lib.rs"] + BROKEN, needs="cargo"
    ),
    "go, a module that replaces it": Project(GO_ROOTS, "sums/sums.go", GO_BUILD, needs="go"),
    "go, for another system": Project(GO_ROOTS, "root_windows.go", GO_BUILD, text=WINDOWS, needs="go"),
    "go, never": Project(GO_ROOTS, "root.go", GO_BUILD, text=f"//go:build ignore\n\n{WINDOWS}", needs="go"),
    "make, what setup compiled": Project(OBJECTS, "calc.c", "make check", setup="make build", needs="cc"),
}
# Tests first compile half of the standard library, for half a minute: only in soak runs.
TESTED_GO = {
    f"{case}, tested": replace(PROJECTS[case], check="go test ./...")
    for case in PROJECTS
    if case.startswith("go, ")
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    return Cli(tmp_path_factory.mktemp("cli"), RUSTUP_HOME=rustup)


@pytest.mark.parametrize("case", [*PROJECTS, *(pytest.param(case, marks=pytest.mark.soak) for case in TESTED_GO)])
def test_checks_that_did_not_run_the_change_are_not_green(cli: Cli, case: str) -> None:
    project = (PROJECTS | TESTED_GO)[case]
    if project.needs and not shutil.which(project.needs):
        pytest.skip(f"{project.needs} is not on this machine")
    config = f"[project]\nsetup = {json.dumps(project.setup)}\nchecks = [{json.dumps(project.check)}]\n"
    files = project.files | {"chargehand.toml": config}
    repo = cli.place / hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12]
    if not repo.exists():
        repository(repo, files)
    text = base64.b64encode(project.text.encode()).decode()
    agent = shell(f"printf %s {text} | base64 -d > {project.path}")
    waits = cli.say("run", "m", "--agent", agent, cwd=repo)
    assert (waits.code, waits.reasons) == (3, {project.says}), waits
    assert waits.document["attempts"][0]["verdict"] == "missing"


def test_a_check_that_rebuilds_runs_the_changed_tree(cli: Cli, tmp_path: Path) -> None:
    project = PROJECTS["node, what setup built"]
    # Within one second of setup, as happens if both are quick.
    setup = f"{project.setup} && touch -d '2026-01-01 00:00:00.1' dist/*"
    check = "cp src/* dist/ && touch -d '2026-01-01 00:00:00.2' dist/* && node --test"
    config = f"[project]\nsetup = {json.dumps(setup)}\nchecks = [{json.dumps(check)}]\n"
    repo = repository(tmp_path / "repo", project.files | {"chargehand.toml": config})
    done = cli.say("run", "m", "--agent", shell("echo >> src/calc.js"), cwd=repo)
    assert (done.code, done.document["unread"]) == (0, []), done.document["reasons"]
    broken = cli.say("run", "m", "--agent", shell("echo % >> src/calc.js"), cwd=repo)
    assert (broken.code, broken.reasons) == (1, {"check_failed"}), broken
