"""Roles: their files, their precedence, their agents, and the steps of a mission."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_cli_commands import Cli
from tests.conftest import git

from chargehand.agents.prompts import system_prompt
from chargehand.agents.roles import Role, parse_role, shipped_roles
from chargehand.app.selection.choice import AgentChoice, agent_choice, choose_for_request
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.checks.execution import CheckOutput
from chargehand.checks.junit import FailingTest
from chargehand.configuration.areas import meet_areas
from chargehand.configuration.locations import UserFile
from chargehand.configuration.records import OptionValue, RepositoryFile
from chargehand.configuration.resolve import resolve
from chargehand.core.attempt_events import SandboxOpened
from chargehand.core.config import Config
from chargehand.core.errors import ConfigError, NotFoundError
from chargehand.core.events import event_types
from chargehand.core.records import Change, CheckResult, Verdict
from chargehand.core.steps import _BY_TYPE, MISSION_STEPS, step_of
from chargehand.missions.verdict.judgement import require_failing_test

SEVEN = ["architect", "developer", "dispatcher", "planner", "reviewer", "security", "tester"]
GOOD = {"summary": "does it", "prompt": "Do it.", "tools": ["read", "edit"], "writes": True}


def toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path, monkeypatch)


# --- files


def test_seven_roles_are_shipped_and_only_three_write() -> None:
    roles = {name: parse_role(name, text, place=name) for name, text in shipped_roles().items()}
    assert sorted(roles) == SEVEN
    assert sorted(name for name, role in roles.items() if role.writes) == ["architect", "developer", "tester"]
    assert {name: role.must_add for name, role in roles.items() if role.must_add} == {
        "architect": "decision_record",
        "tester": "failing_test",
    }
    assert roles["developer"].may_use("mcp_github_search")
    assert not roles["reviewer"].may_use("mcp_github_search")
    assert not any(roles[name].may_use("bash") for name in ("dispatcher",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tools": ["bsh"]}, "key 'tools' names an unknown tool, got 'bsh'"),
        ({"tools": ["*"]}, "key 'tools' names an unknown tool, got '*'"),
        ({"tools": "read"}, "key 'tools' must be a list of texts, got 'read'"),
        ({"writes": "yes"}, "key 'writes' must be true or false, got 'yes'"),
        ({"writes": False}, "key 'output' needs a role that writes, got 'change'"),
        (
            {"writes": False, "output": "report"},
            "key 'tools' has a tool that writes, but writes = false, got 'edit'",
        ),
        ({"output": "report"}, "key 'output' must be 'change' in a role that writes, got 'report'"),
        ({"output": "poem"}, "key 'output' has an unknown value, got 'poem'"),
        ({"must_add": "a cake"}, "key 'must_add' has an unknown value, got 'a cake'"),
        ({"areas": ["../up"]}, "key 'areas' must be a plain pattern below the repository, got '../up'"),
        ({"areas": ["!x"]}, "key 'areas' must be a plain pattern below the repository, got '!x'"),
        ({"prompt": ""}, "key 'prompt' must be a text that is not empty, got ''"),
        ({"prompt": "x" * 20_001}, "key 'prompt' has 20001 characters, more than 20000, got 'xxx"),
        ({"summary": "two\nlines"}, "key 'summary' must be one line without control characters, got 'two"),
        ({"models": [3]}, "key 'models' must be a list of texts of one line each, got 3"),
        ({"colour": "red"}, "key 'colour' is not a known key, got 'red'"),
    ],
)
def test_an_invalid_role_is_an_error_with_file_key_and_value(changes: dict[str, Any], said: str) -> None:
    parse_role("mine", toml(GOOD), place="mine.toml")
    with pytest.raises(ConfigError) as wrong:
        parse_role("mine", toml(GOOD | changes), place="mine.toml")
    assert wrong.value.message.startswith("mine.toml: ")
    assert said in wrong.value.message
    assert (wrong.value.code, bool(wrong.value.hint)) == ("role_invalid", True)


@pytest.mark.parametrize("text", ["summary = ", "a = 1\na = 2", toml({"summary": "x"}), "x = " + "[" * 9_000])
def test_an_unparsable_or_incomplete_role_file_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml") as wrong:
        parse_role("mine", text, place="mine.toml")
    assert wrong.value.code == "role_invalid"


@pytest.mark.parametrize("name", ["", "default", "Up", "a b", "../x", "-x", "x" * 65])
def test_an_invalid_role_name_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        RoleCatalogue({"XDG_CONFIG_HOME": "/does/not/exist"}).find(name, Config())
    assert wrong.value.code == "role_invalid"


def test_a_role_file_adds_a_role_and_an_invalid_file_affects_no_other_role(tmp_path: Path) -> None:
    roles = RoleCatalogue({"XDG_CONFIG_HOME": str(tmp_path)})
    assert [found.file.name for found in roles.all()] == SEVEN
    with pytest.raises(NotFoundError) as unknown:
        roles.find("scribe", Config())
    assert unknown.value.code == "role_unknown"
    assert "developer" in unknown.value.hint
    roles.directory.mkdir(parents=True)
    (roles.directory / "scribe.toml").write_text(toml(GOOD))
    (roles.directory / "tester.toml").write_text(toml(GOOD | {"summary": "mine"}))
    (roles.directory / "broken.toml").write_text("tools = 3")
    (roles.directory / "odd.toml").write_bytes(b"\xff")
    (roles.directory / "notes.txt").write_text("not a role")
    found = {each.file.name: each for each in roles.all()}
    assert sorted(found) == sorted([*SEVEN, "scribe", "broken", "odd"])
    assert {name for name, each in found.items() if each.problem is not None} == {"broken", "odd"}
    assert found["tester"].role == roles.find("tester", Config())[0]
    assert [hidden.level for hidden in found["tester"].hidden] == ["shipped"]
    assert roles.find("scribe", Config())[0].summary == "does it"
    with pytest.raises(ConfigError, match=r"broken\.toml: key"):
        roles.find("broken", Config())
    (roles.directory / "scribe.toml").write_text(toml(GOOD | {"models": ["nosuch"]}))
    with pytest.raises(ConfigError, match="key 'models': 'nosuch'"):
        roles.find("scribe", Config())


def test_the_system_prompt_follows_from_the_role() -> None:
    reviewer = parse_role("reviewer", shipped_roles()["reviewer"], place="")
    text = system_prompt(reviewer)
    assert "read-only" in text
    assert "What you change there is kept" not in text
    assert text.endswith(f"Your role: reviewer\n\n{reviewer.prompt}")
    assert "Your role" not in system_prompt()


# --- the agent of a role

MODELS = '[models.local]\nprice = 0\nbase_url = "http://127.0.0.1:1/v1"\n'


def config(text: str) -> Config:
    return resolve(user=UserFile(path=Path("config.toml"), text=MODELS + text)).config


def chosen(text: str, role: Role, **options: str | None) -> AgentChoice:
    environ = {"OLLAMA_HOST": "127.0.0.1:1"}
    return agent_choice(*choose_for_request(config(text), environ, {}, role=role, **options))


def role(**changes: Any) -> Role:
    return parse_role("mine", toml(GOOD | changes), place="mine.toml")


def test_precedence_of_the_model_of_a_role() -> None:
    own, said = '[roles.mine]\nmodel = "openai:map"\n', '[roles.default]\nmodel = "openai:default"\n'
    agent = '[agents.n]\nkind = "native"\nmodel = "openai:agents"\n'
    everything = own + said + agent
    assert chosen(everything, role(models=["openai:file"]), model="openai:line").model == "openai:line"
    assert chosen(everything, role(models=["openai:file"])).model == "openai:map"
    assert chosen(said + agent, role(models=["openai:file", "openai:rest"])) == AgentChoice(
        agent="n",
        model="openai:file",
        why="the only one configured, openai:file by the file of role mine",
        fallback=("openai:rest",),
    )
    assert chosen(said + agent, role()).model == "openai:default"
    assert chosen(agent, role()).model == "openai:agents"
    assert chosen("", role()).model == "local"


def test_precedence_of_the_agent_of_a_role() -> None:
    text = '[agents.one]\ncommand = ["one"]\n[agents.two]\ncommand = ["two"]\n[roles.default]\nagent = "two"\n'
    assert chosen(text, role()).agent == "two"
    assert chosen(text, role(agent="one")).agent == "one"
    mapped = chosen(text + '[roles.mine]\nagent = "cli:claude"\nmodel = "local"\n', role(agent="one"))
    assert (mapped.agent, mapped.model, mapped.why) == ("cli:claude", "local", "[roles.mine]")
    assert chosen(text, role(agent="one"), agent="two") == AgentChoice(agent="two", model=None, why="--agent")


def test_a_role_model_is_used_only_by_agents_that_take_a_model() -> None:
    fixer = '[agents.fixer]\ncommand = ["fix"]\n[roles.default]\nmodel = "local"\nfallback = ["openai:b"]\n'
    assert chosen(fixer, role(), agent="fixer").model is None
    native = chosen(fixer, role())
    assert (native.agent, native.model, native.fallback) == ("native", "local", ("openai:b",))
    assert chosen(fixer, role(), model="openai:x").agent == "fixer"  # as without a role


def test_a_role_inherits_fallback_models_from_the_default_role() -> None:
    text = '[roles.mine]\nmodel = "local"\n[roles.default]\nmodel = "openai:d"\nfallback = ["local", "openai:b"]\n'
    assert chosen(text, role()).fallback == ("openai:b",)


@pytest.mark.parametrize(
    "text", ['[roles.mine]\nmodel = "nosuch"', "[roles.mine]", '[roles.mine]\nagnt = "x"', '[roles]\nmine = "x"']
)
def test_an_invalid_roles_table_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml"):
        config(text)


def test_a_repositorys_map_needs_trust() -> None:
    file = RepositoryFile(content=b'[roles.mine]\nmodel = "openai:theirs"\n', commit="a" * 40)
    asked = resolve(repository=file)
    assert asked.config.roles == {}
    assert [key.key for key in asked.untrusted] == ["roles.mine.model"]
    assert resolve(repository=file, is_trusted=lambda digest: True).config.roles["mine"].model == "openai:theirs"


def test_the_areas_of_a_role_only_narrow() -> None:
    architect = parse_role("architect", shipped_roles()["architect"], place="")
    options = {"project.allow": OptionValue(value=("src/**",), name="--allow")}
    met = meet_areas(resolve(options=options).config.project.allow, architect.areas)
    assert met == ("src/**/*.md",)
    with pytest.raises(ConfigError, match="no area may be changed"):
        meet_areas(("src/**",), ("docs/**",))


# --- a failing test

TESTS = "python3 -m pytest"
CHANGE = Change(path="tests/test_new.py", kind="added", new_id="1" * 40)


def check(status: Any, reason: str = "", *, tests: int | None = 3, name: str = TESTS) -> CheckResult:
    return CheckResult(name=name, status=status, seconds=0.1, reason=reason, tests=tests)


def judged(
    now: CheckResult,
    before: CheckResult,
    *names: str,
    change: Change = CHANGE,
    more: tuple[CheckResult, ...] = (),
    outside: bool = False,
) -> tuple[str, str]:
    """Return verdict and rule of a tester's tree."""
    status = "green" if now.status == "passed" else "red"
    verdict = Verdict(tree="t", scope="attempt", status=status, checks=(now, *more))
    passed = tuple(check("passed", name=each.name) for each in more)
    base = Verdict(tree="b", scope="base", status="green", checks=(before, *passed))
    failing = tuple(FailingTest(name=name, message="", outside=outside) for name in names)
    outputs = {TESTS: CheckOutput(tail="", failing=failing)}
    found = require_failing_test(verdict, base, outputs, (change,))
    return found.status, found.findings[-1].rule


def test_when_a_failing_test_counts() -> None:
    passes, fails = check("passed"), check("failed", "tests_failed")
    added, missing = ("red", "failing_test_added"), ("red", "no_failing_test")
    assert judged(fails, passes, "tests.test_new::test_it") == added
    assert judged(fails, passes, "test_new.TestIt::test_it") == added
    assert judged(fails, passes, "tests.test_new::test_it", outside=True) == missing
    assert judged(check("failed", "exit_code"), passes) == added  # a runner that names no tests
    assert judged(fails, check("failed", "no_tests_ran", tests=0), "tests.test_new::test_it") == added
    assert judged(passes, passes) == missing
    assert judged(fails, passes, "tests.test_old::test_it") == missing
    assert judged(check("failed", "collection_error"), passes) == missing
    assert judged(check("failed", "exit_code", tests=None), passes) == ("red", "role_broke_checks")
    assert judged(fails, passes, "tests.test_new::a", "tests.test_old::b") == ("red", "role_broke_checks")
    assert judged(check("timed_out", "timed_out"), passes) == ("red", "role_broke_checks")
    assert judged(fails, fails, "tests.test_new::test_it") == ("red", "tests_untold")
    assert judged(fails, passes, change=Change(path="src/a.py", kind="added")) == missing
    assert judged(fails, passes, change=Change(path="tests/test_a.py", kind="deleted")) == missing
    linter = check("failed", "exit_code", tests=None, name="ruff")
    assert judged(fails, passes, "tests.test_new::a", more=(linter,)) == ("red", "role_broke_checks")


# --- steps


def test_every_event_type_has_a_mission_step_or_is_listed_without_a_step() -> None:
    by_content = {
        "setup.detected",
        "step.finished",
        "sandbox.opened",
        "sandbox.closed",
        "network.requested",
        "verdict.given",
    }
    none = {
        *(
            "mission.claimed",
            "mission.worked",
            "mission.released",
            "mission.paused",
            "mission.resumed",
            "mission.continued",
        ),
        *("plan.slept", "plan.woken", "forecast.made"),
        "mission.cancel_asked",
        *(
            "mission.queued",
            "mission.admitted",
            "mission.allowed",
            "mission.interrupted",
            "message.sent",
            "question.answered",
            "checkpoint.restored",
            "feedback.given",
            "feedback.retracted",
        ),
        *(name for name in event_types() if name.startswith("action.") and name != "action.judged"),
    }
    placed = {kind.type for kind in _BY_TYPE} | by_content | {"question.asked"}
    assert placed | none == set(event_types())
    assert not placed & none
    assert set(_BY_TYPE.values()) <= set(MISSION_STEPS)
    assert all(event_types()[kind.type] is kind for kind in _BY_TYPE)
    opened = {each: SandboxOpened(sandbox="s", purpose=each, tier="t", driver="d") for each in ("agent", "checks")}
    assert (step_of(opened["agent"]), step_of(opened["checks"])) == ("execution", "validation")


# --- commands


def test_roles_are_listed_shown_and_placed(cli: Cli) -> None:
    listed = cli.json("role", "list")
    assert [each["name"] for each in listed["roles"]] == SEVEN
    directory = Path(cli.json("role", "path")["path"])
    assert directory == cli.user_file.parent / "roles"
    assert cli.error("role", "path", "tester", code=2)["code"] == "role_shipped"
    directory.mkdir(parents=True)
    (directory / "tester.toml").write_text(cli("role", "show", "tester").stdout)
    assert cli.json("role", "path", "tester")["path"] == str(directory / "tester.toml")
    assert cli.json("role", "show", "tester")["role"]["must_add"] == "failing_test"
    (directory / "broken.toml").write_text("tools = 3")
    wrong = cli.json("role", "list", code=1)
    assert [each["name"] for each in wrong["roles"] if each["problem"]] == ["broken"]
    assert cli.error("run", "x", "--role", "testr", "--agent", "command:true", code=2)["code"] == "role_unknown"
    assert cli.error("run", "x", "--role", "broken", "--agent", "command:true", code=2)["code"] == "role_invalid"


def test_a_repository_role_is_used_only_while_its_exact_content_is_trusted(cli: Cli) -> None:
    path = ".chargehand/roles/scribe.toml"
    cli.commit(**{path: toml(GOOD)})
    assert cli.error("role", "show", "scribe", code=2)["code"] == "role_untrusted"
    assert cli.json("project", "trust", "--yes")["roles"][0]["place"] == path
    assert cli.json("role", "show", "scribe")["level"] == "repository"
    cli.commit(**{path: toml(GOOD | {"prompt": "Do something else."})})
    assert cli.error("role", "show", "scribe", code=2)["code"] == "role_untrusted"
    git(cli.repository, "rm", "-q", path)


def test_a_shell_completes_roles(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CHARGEHAND_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "chargehand run x --role re")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert "plain,reviewer" in cli().stdout
