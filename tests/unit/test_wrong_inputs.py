"""Sixty wrong command lines: each is answered with one error that names the value, and with a way out."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.conftest import make_repository

from chargehand.cli.main import chargehand

# The command line, a part of the message, a part of the hint.
WRONG = (
    ("misson list", "'misson'", "did you mean 'mission'?"),
    ("shwo last", "'shwo'", "did you mean 'show'?"),
    ("rn 'fix it'", "'rn'", "did you mean 'run'?"),
    ("fix add in calc", "'fix'", 'chargehand run "fix add in calc"'),
    ("'fix add in calc'", "'fix add in calc'", 'chargehand run "fix add in calc"'),
    ("help frobnicate", "'frobnicate'", "chargehand --help"),
    ("run", "no request", 'chargehand run "TEXT"'),
    ("run ''", "empty", "write a task"),
    ("run fix add in calc", "'add'", 'chargehand run "fix add in calc"'),
    ("run x --budget -1", "greater than 0, got -1", "number"),
    ("run x --budget abc", "'abc'", "such as 2.5"),
    ("run x --time 5x", "'5x'", "30m"),
    ("run x --time -3m", "greater than 0, got '-3m'", "number"),
    ("run x --attempts 0", "got 0", "number"),
    ("run x --attempts 1.5", "'1.5'", "such as 3"),
    ("run x --sandbox proces", "'proces'", "did you mean 'process'?"),
    ("run x --strategy shadw", "'shadw'", "did you mean 'shadow'?"),
    ("run x --agent nobody", "'nobody'", "--agent"),
    ("run x --agent command:", "names no program", "program"),
    ("run x --agent cli:clade", "'clade'", "did you mean 'claude'?"),
    ("run x --agent command:true --model gpt-99", "'gpt-99'", "openai:MODEL"),
    ("run x --agent native --model nothing:x", "'nothing:x'", "openai:MODEL"),
    ("run x --agent command:true --role develper", "'develper'", "did you mean 'developer'?"),
    ("run x --agent command:true --team nobodies", "'nobodies'", "chargehand team list"),
    ("run x --agent command:true --base nowhere", "'nowhere'", "branch, tag or commit"),
    ("run x --agent command:true --dir nowhere", "'nowhere'", "directory"),
    ("run x --repo /nowhere", "'/nowhere'", "git repository"),
    ("run x --agent command:true --check-file missing.py", "'missing.py'", "tests/test_new.py"),
    ("run x --agent command:true --check-file missing.py:t.py", "'missing.py'", "file"),
    ("run x --agent command:true --allow ''", "''", ".gitignore"),
    ("run x --plan missing.yaml", "'missing.yaml'", "YAML or JSON"),
    ("run x --agent command:true --break-at never", "'never'", "task:ID"),
    ("run x --red-base maybe", "'maybe'", "run --help"),
    ("run --file missing.txt", "'missing.txt'", "UTF-8"),
    ("run x --file y", "both", "one of them"),
    ("run --bugdet 3 x", "'--budget'", "run --help"),
    ("run x --agent command:true --idempotency-key k", "--detach", "add --detach"),
    ("run x --accept-known --red-base stop", "contradicts", "leave one of them out"),
    ("mission show m-nothing", "'m-nothing'", "chargehand run"),
    ("mission lst", "'mission lst'", "did you mean 'mission list'?"),
    ("mission show --jsn", "'--json'", "mission show --help"),
    ("mission list --status runing", "'runing'", "mission list --help"),
    ("mission list --since 5y", "'5y'", "7d"),
    ("mission answer last yes", "no missions yet", "chargehand run"),
    ("mission promote m-1", "'m-1'", "chargehand run"),
    ("mission rollback m-1", "'m-1'", "chargehand run"),
    ("checkpoint restore m-1 abc", "'m-1'", "chargehand run"),
    ("config set limits.budgt_usd 3", "'limits.budgt_usd'", "did you mean 'limits.budget_usd'?"),
    ("config set limits.budget_usd many", "'many'", "such as 2.5"),
    ("config get limts.time", "'limts.time'", "did you mean 'limits.time'?"),
    ("config unset nothing", "'nothing'", " more"),
    ("config set project.branch_prefix 'a b/'", "'a b/'", "team/agent/"),
    ("secret set lower-case", "'lower-case'", "OPENAI_API_KEY"),
    ("model show gpt", "'gpt'", "openai:MODEL"),
    ("role show revewer", "'revewer'", "did you mean 'reviewer'?"),
    ("agent probe nobody", "'nobody'", "--agent"),
    ("store restore /nowhere", "'/nowhere'", "chargehand store backup"),
    ("audit export nothing", "'nothing'", "chargehand run"),
    ("gc --older-than soon", "'--older-than'", "gc --help"),
    ("token create", "NAME", "token create --help"),
    ("completion tcsh", "'tcsh'", "completion --help"),
    ("mcp --http nowhere", "'nowhere'", "127.0.0.1:8765"),
    ("model add", "terminal", "chargehand secret set"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("person")
    make_repository(place / "repo", {"calc.py": "a - b\n"})
    return place


@pytest.mark.parametrize(("words", "message", "hint"), WRONG, ids=[words for words, _, _ in WRONG])
def test_a_wrong_input_is_named_with_a_way_out(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str, hint: str
) -> None:
    monkeypatch.chdir(place / "repo")
    environment = {"HOME": str(place), "CHARGEHAND_HOME": str(place / "state"), "OLLAMA_HOST": "127.0.0.1:1"}
    cleared = dict.fromkeys((name for name in os.environ if name.endswith("_API_KEY")), None)
    done = CliRunner().invoke(chargehand, ["--json", *shlex.split(words)], env={**cleared, **environment})
    assert done.exit_code in (1, 2), (done.exit_code, done.stderr)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    error = json.loads(line)["error"]
    assert message in error["message"]
    assert hint in error["hint"]
    assert len(error["hint"]) < 500


def test_there_are_sixty_of_them() -> None:
    assert len({words for words, _, _ in WRONG}) >= 60
