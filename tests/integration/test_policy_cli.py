"""`chargehand policy`, used by a person and by a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.conftest import make_repository

from chargehand.cli.main import chargehand


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "chargehand" / "policy.cedar"


def run(*words: str) -> Result:
    return CliRunner().invoke(chargehand, ["policy", *words])


@pytest.mark.parametrize(
    ("words", "code", "effect", "rule"),
    [
        (["--", "ls", "-la"], 0, "allow", "program"),
        (["--", "git", "push", "--force"], 1, "deny", "git-push"),
        (["git push origin main"], 1, "deny", "git-push"),
        (["--shell", "echo x | xargs pip install"], 1, "deny", "install"),
        (["--shell", "echo x | xargs git branch -D"], 3, "ask", "git-history"),
        (["--write", ".github/workflows/x.yml"], 3, "ask", "write-ci"),
        (["--read", "/proc/1/environ"], 1, "deny", "read-process"),
        (["--shell", "rm -rf ..", "--cwd", "a/b"], 0, "allow", "program"),
        (["--mcp", 'db/query {"sql": "DROP TABLE x"}'], 1, "deny", "user:no-drop"),
        (["--mcp", 'db/query {"sql": "SELECT 1"}'], 0, "allow", "mcp-call"),
        (["--mcp", "db/erase"], 3, "ask", "user:ask-db"),
    ],
)
def test_the_exit_code_depends_on_the_effect(
    config: Path, words: list[str], code: int, effect: str, rule: str
) -> None:
    config.parent.mkdir(parents=True)
    config.write_text(
        '@id("no-drop") forbid (principal, action == Action::"mcp.call", resource)\n'
        'when { context.server == "db" && context.arguments like "*DROP*" };\n'
        '@id("ask-db") @decision("ask") permit (principal, action == Action::"mcp.call", resource)\n'
        'when { context.tool == "erase" && !context.reads };\n'
    )
    shown = run("test", "--json", *words)
    assert shown.exit_code == code, shown.output
    document = json.loads(shown.stdout)
    assert (document["effect"], document["rule"]) == (effect, rule)
    assert document["parts"]
    assert rule in run("test", *words).output


def test_scripts_of_the_repository_are_looked_into(config: Path, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", {"run.sh": "ls\ngit push\n", "a ü.sh": "ls\n"})
    (repository / "link.sh").symlink_to("/etc/profile")
    shown = run("test", "--repo", str(repository), "--json", "--", "sh", "run.sh")
    assert (shown.exit_code, json.loads(shown.stdout)["subject"]) == (1, "git push (run.sh:2)")
    assert (
        run("test", "--repo", str(repository), "--shell", "sh 'a ü.sh'; sh missing.sh; sh link.sh").exit_code == 0
    )


def test_zero_or_two_subjects_are_a_usage_error(config: Path) -> None:
    assert run("test").exit_code == 2
    assert run("test", "--shell", "ls", "--read", "x").exit_code == 2
    for call in ("db", "/query", "db/", "db/query [1]", "db/query {"):
        assert run("test", "--mcp", call).exit_code == 2


def test_rules_are_shown_with_their_origin(config: Path) -> None:
    assert run("allow", "git-fetch", "--reason", "a mirror").exit_code == 0
    rules = {rule["id"]: rule for rule in json.loads(run("show", "--json").stdout)["rules"]}
    assert rules["git-push"]["origin"] == "default"
    assert rules["user:allow-git-fetch"]["place"] == f"{config}:1"
    assert "overrides git-fetch: a mirror" in run("show").output
    assert "action command appliesTo" in run("show", "--facts").output
    assert '@overrides("git-fetch")' in run("show", "--cedar").output
    assert run("test", "--", "git", "fetch").exit_code == 0
    assert run("test", "--", "git", "push").exit_code == 1


def test_a_wrong_file_is_named(config: Path) -> None:
    config.parent.mkdir(parents=True)
    config.write_text('\n@id("a") permit (principal, action, resource) when { context.nothing };')
    shown = run("test", "--json", "--", "ls")
    assert shown.exit_code == 2
    error = json.loads(shown.stderr)["error"]
    assert error["code"] == "policy_invalid"
    assert error["message"].startswith(f"{config}:2: rule 'a'")


def test_an_unknown_rule_names_the_nearest(config: Path) -> None:
    shown = run("allow", "git-psh", "--reason", "x")
    assert shown.exit_code == 2
    assert "git-push" in shown.stderr
    assert not config.exists()
