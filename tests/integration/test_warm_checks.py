"""Checks start with caches that compilers made while the base was checked; the results stay the same."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell

from chargehand.core.records import CheckResult

pytestmark = pytest.mark.needs_bwrap

CARGO = {
    ".gitignore": "target/\n",
    "Cargo.toml": '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n',
    "src/lib.rs": "pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n",
    "src/unused.txt": "nothing\n",
    "tests/calc.rs": "#[test]\nfn adds() {\n    assert_eq!(calc::add(2, 1), 3);\n}\n",
}
GO = {
    "go.mod": "module calc\n\ngo 1.20\n",
    "calc.go": "package calc\n\nfunc Add(a, b int) int { return a + b }\n",
    "answer.sh": "echo 3\n",
    # go does not know which script the test runs: from its cache it would repeat the base's result.
    "calc_test.go": (
        'package calc\n\nimport (\n\t"os/exec"\n\t"testing"\n)\n\nfunc TestAdd(t *testing.T) {\n'
        '\tsaid, err := exec.Command("sh", "-c", ". ./answer.sh").Output()\n'
        '\tif err != nil || string(said) != "3\\n" || Add(2, 1) != 3 {\n\t\tt.Fatal(string(said), err)\n\t}\n}\n'
    ),
}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    return Cli(tmp_path / "person", RUSTUP_HOME=rustup)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not on this machine")


def write(path: str, text: str) -> str:
    return f"printf %s {base64.b64encode(text.encode()).decode()} | base64 -d > {path}"


def judged(cli: Cli, repo: Path, check: str, script: str) -> tuple[str, list[CheckResult]]:
    """Run a mission; return how it ended, and the results of its last checks."""
    result: Completed = cli.say("run", "m", "--agent", shell(script), "--only-check", check, cwd=repo)
    return result.document["status"], list(cli.state(result).verdicts[-1].checks)


@needs("cargo")
def test_cargo(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", CARGO)
    wrong, right = CARGO["src/lib.rs"].replace("a + b", "a - b"), CARGO["src/lib.rs"].replace("a + b", "b + a")
    # With times as old as an agent can make them: the base's build output is older all the same.
    old = "touch -d 2001-01-01 src/lib.rs"
    status, checks = judged(cli, repo, "cargo test", f"{write('src/lib.rs', wrong)}; {old}")
    assert (status, checks[0].warm) == ("refused", True)
    status, checks = judged(cli, repo, "cargo test", f"{write('src/lib.rs', right)}; {old}")
    assert (status, [check.warm for check in checks]) == ("promoted", [True])
    # A test that writes into caches: neither the base's caches nor any other tree's checks see its files.
    forging = (
        '#[test]\nfn forges() {\n    for entry in std::fs::read_dir("target/debug/deps").unwrap() {\n'
        "        let path = entry.unwrap().path();\n        let _ = std::fs::remove_file(&path);\n"
        '        let _ = std::fs::write(&path, "#!/bin/sh\\nexit 0\\n");\n    }\n}\n'
    )
    status, checks = judged(
        cli, repo, "cargo test", f"{write('tests/forge.rs', forging)}; {write('src/lib.rs', right)}"
    )
    assert checks[0].warm
    status, checks = judged(cli, repo, "cargo test", write("src/lib.rs", wrong.replace("a - b", "a * b")))
    assert (status, checks[0].warm) == ("refused", True)
    # A deletion leaves no newer file, so no cache is used.
    status, checks = judged(cli, repo, "cargo test", f"{write('src/lib.rs', right)}; rm src/unused.txt")
    assert not any(check.warm for check in checks)
    # A project that turns caches off has no warm checks.
    assert cli.say("config", "set", "project.warm_checks", "false", cwd=repo).code == 0
    status, checks = judged(cli, repo, "cargo test", write("src/lib.rs", right.replace("b + a", "b + a + 0")))
    assert (status, [check.warm for check in checks]) == ("promoted", [False])


@needs("go")
@pytest.mark.soak  # it compiles half of the standard library; cargo shows the same in the suite
def test_go(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", GO)
    # A check for a clean tree does not see the cache.
    check = "go test ./... && ! git status --porcelain | grep chargehand"
    status, checks = judged(cli, repo, check, write("answer.sh", "echo 4\n"))
    assert (status, checks[0].warm, checks[0].status) == ("refused", True, "failed")
    status, checks = judged(cli, repo, check, write("calc.go", GO["calc.go"].replace("a + b", "b + a")))
    assert (status, [check.warm for check in checks]) == ("promoted", [True])
