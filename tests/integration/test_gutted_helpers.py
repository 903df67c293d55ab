"""Test helpers outside test paths that no longer compare anything: alone, and together with broken code."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests.conftest import sampled

pytestmark = pytest.mark.needs_bwrap

HELPER = "pub fn same(a: i32, b: i32) {\n    assert_eq!(a, b);\n}\n"
GUTTED = "pub fn same(_a: i32, _b: i32) {}\n"
CODE = "pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n"
TEST = "#[test]\nfn adds() {\n    same(calc::add(2, 1), 3);\n}\n"
MACRO = "#[macro_export]\nmacro_rules! same {\n    ($a:expr, $b:expr) => {\n        BODY\n    };\n}\n"
MANIFEST = '[package]\nname = "NAME"\nversion = "0.1.0"\nedition = "2021"\n'
LOCKED = '[[package]]\nname = "NAME"\nversion = "0.1.0"\n'
RUST = {
    "Cargo.toml": MANIFEST.replace("NAME", "calc"),
    "Cargo.lock": "version = 3\n\n" + LOCKED.replace("NAME", "calc"),
    ".gitignore": "target\n",
    "src/lib.rs": CODE,
}
INNER = (
    "\n#[cfg(test)]\nmod testutil;\n\n#[cfg(test)]\nmod tests {\n    use super::testutil::same;\n\n    #[test]\n"
    "    fn adds() {\n        same(super::add(2, 1), 3);\n    }\n}\n"
)
WORKSPACE = {
    "Cargo.toml": '[workspace]\nmembers = ["calc", "compare"]\nresolver = "2"\n',
    "Cargo.lock": "version = 3\n\n"
    + LOCKED.replace("NAME", "calc")
    + 'dependencies = [\n "compare",\n]\n\n'
    + LOCKED.replace("NAME", "compare"),
    ".gitignore": "target\n",
    "calc/Cargo.toml": RUST["Cargo.toml"] + '\n[dev-dependencies]\ncompare = { path = "../compare" }\n',
    "calc/src/lib.rs": CODE,
    "calc/tests/calc.rs": f"use compare::same;\n\n{TEST}",
    "compare/Cargo.toml": MANIFEST.replace("NAME", "compare"),
    "compare/src/lib.rs": HELPER,
}
# Place of the helper -> the project's files, and the helper that compares nothing.
PROJECTS: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "a module of tests in the code": (
        RUST | {"src/lib.rs": CODE + INNER, "src/testutil.rs": HELPER},
        {"src/testutil.rs": GUTTED},
    ),
    "a public module": (
        RUST
        | {
            "src/lib.rs": f"pub mod testutil;\n\n{CODE}",
            "src/testutil.rs": HELPER,
            "tests/calc.rs": f"use calc::testutil::same;\n\n{TEST}",
        },
        {"src/testutil.rs": GUTTED},
    ),
    "beside the tests": (
        RUST | {"tests/common/mod.rs": HELPER, "tests/calc.rs": f"mod common;\nuse common::same;\n\n{TEST}"},
        {"tests/common/mod.rs": GUTTED},
    ),
    "a crate": (WORKSPACE, {"compare/src/lib.rs": GUTTED}),
    "a macro": (
        RUST
        | {
            "src/lib.rs": f"mod compare;\n\n{CODE}",
            "src/compare.rs": MACRO.replace("BODY", "assert_eq!($a, $b)"),
            "tests/calc.rs": TEST.replace("same(", "calc::same!("),
        },
        {"src/compare.rs": MACRO.replace("BODY", "let _ = ($a, $b);")},
    ),
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    if not shutil.which("cargo"):
        pytest.skip("cargo is not on this machine")
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    return Cli(tmp_path_factory.mktemp("cli"), RUSTUP_HOME=rustup)


def work(cli: Cli, place: Path, files: Mapping[str, str], written: Mapping[str, str]) -> Completed:
    """Run a mission whose agent writes files."""
    lines = (
        f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > {path}" for path, text in written.items()
    )
    repo = repository(place / "repo", files)
    return cli.say("run", "m", "--agent", shell("; ".join(lines)), "--only-check", "cargo test", cwd=repo)


@pytest.mark.parametrize("where", sampled(PROJECTS, 1))
def test_a_helper_without_comparison_needs_approval(cli: Cli, tmp_path: Path, where: str) -> None:
    files, gutted = PROJECTS[where]
    result = work(cli, tmp_path, files, gutted)
    assert (result.code, result.reasons) == (3, {"tests_weakened"}), result


@pytest.mark.parametrize("where", sampled(PROJECTS, 2))
def test_a_helper_without_comparison_does_not_hide_broken_code(cli: Cli, tmp_path: Path, where: str) -> None:
    files, gutted = PROJECTS[where]
    (code,) = (path for path in files if path.endswith("src/lib.rs") and "compare" not in path)
    result = work(cli, tmp_path, files, {**gutted, code: files[code].replace("a + b", "a - b")})
    assert (result.code, result.reasons) == (3, {"base_tests_fail"}), result


@pytest.mark.parametrize("where", sampled(PROJECTS, 1))
def test_a_helper_that_still_compares_needs_no_approval(cli: Cli, tmp_path: Path, where: str) -> None:
    files, gutted = PROJECTS[where]
    (helper,) = gutted
    better = files[helper].replace("a, b);", 'a, b, "the sums differ");').replace("$a, $b)", '$a, $b, "{}", 1)')
    result = work(cli, tmp_path, files, {helper: better})
    assert (result.code, result.document["status"]) == (0, "promoted"), result
