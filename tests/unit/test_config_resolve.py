"""Sources, meets, origins, trust and errors of the configuration as a whole."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chargehand.app.selection.agents import agent_from_option, find_agent
from chargehand.configuration.locations import UserFile, load_user_file, state_home, user_config_path
from chargehand.configuration.records import OptionValue, RepositoryFile, ResolvedConfig, trust_nothing
from chargehand.configuration.resolve import LARGEST_FILE, resolve
from chargehand.configuration.trust import describe_untrusted, require_trust, trust_needed
from chargehand.core.config import AgentConfig, Config, McpConfig, ModelConfig
from chargehand.core.errors import ConfigError, NotFoundError, WaitingError

USER = "/home/me/config.toml"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "chargehand.toml @ 0123456789ab"


def _resolve(
    *,
    user: str = "",
    repo: str | None = None,
    env: dict[str, str] | None = None,
    is_trusted: Callable[[str], bool] = trust_nothing,
    commit: str | None = COMMIT,
    **options: Any,
) -> ResolvedConfig:
    return resolve(
        user=UserFile(path=Path(USER), text=user) if user else None,
        environ=env,
        options={
            name.replace("__", "."): OptionValue(value=value, name=f"--{name.split('__')[-1]}")
            for name, value in options.items()
        },
        repository=None if repo is None else RepositoryFile(content=repo.encode(), commit=commit),
        is_trusted=is_trusted,
    )


def _trusting(repo: str, **sources: Any) -> ResolvedConfig:
    digest = hashlib.sha256(repo.encode()).hexdigest()
    return _resolve(repo=repo, is_trusted=lambda asked: asked == digest, **sources)


def _fails(**sources: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _resolve(**sources)
    assert caught.value.exit_code == 2
    return caught.value


def test_defaults_apply_without_settings() -> None:
    resolved = _resolve()
    assert resolved.config == Config()
    assert set(resolved.origins.values()) == {"default"}
    assert (resolved.digest, resolved.untrusted, resolved.notes) == ("", (), ())


def test_each_source_overrides_lower_sources() -> None:
    user = '[limits]\ntime = "1m"\nattempts = 2\ncheck_time = 9\n[sandbox]\nmemory_mb = 7'
    env = {"CHARGEHAND_LIMITS_TIME": "2m", "CHARGEHAND_LIMITS_ATTEMPTS": "3", "PATH": "/bin"}
    resolved = _resolve(user=user, env=env, limits__time="3m")
    limits = resolved.config.limits
    assert (limits.time, limits.attempts, limits.check_time) == (180, 3, 9)
    assert resolved.origins["limits.time"] == "--time"
    assert resolved.origins["limits.attempts"] == "environment CHARGEHAND_LIMITS_ATTEMPTS"
    assert resolved.origins["limits.check_time"] == USER
    assert resolved.origins["sandbox.tmp_mb"] == "default"


_SHED = "[mcp.shed]\ncommand = ['shed']\n"


def test_servers_are_the_users_word_or_that_of_a_trusted_repository() -> None:
    user = f"{_SHED}environment = ['A=b=c']\ntools = ['x/y']\ntime = '5s'\n[agents.m]\nkind='native'\nmcp=['shed']"
    config = _resolve(user=user).config
    assert config.mcp["shed"] == McpConfig(command=("shed",), environment=("A=b=c",), tools=("x/y",), time=5.0)
    assert config.agents["m"].mcp == ("shed",)
    repo = f"{_SHED}[agents.m]\nkind = 'native'\nmcp = ['shed']"
    passed_over = _resolve(repo=repo)
    assert (passed_over.config.mcp, passed_over.config.agents["m"].mcp) == ({}, ())
    assert {each.key for each in passed_over.untrusted} == {"mcp.shed.command", "agents.m.mcp"}
    trusted = _trusting(repo).config
    assert (trusted.mcp["shed"].command, trusted.agents["m"].mcp) == (("shed",), ("shed",))
    mine = _resolve(user="[mcp.shed]\ncommand = ['mine']", repo=repo)
    assert mine.config.mcp["shed"].command == ("mine",)
    assert mine.config.agents["m"].mcp == ()  # a repository cannot use a person's servers
    (note,) = mine.notes
    assert "MCP server 'shed' is taken from" in note


@pytest.mark.parametrize(
    ("user", "message", "hint"),
    [
        (
            "[agents.m]\nkind='native'\nmcp=['shd']\n" + _SHED,
            ":3: mcp: no MCP server named 'shd'",
            "did you mean 'shed'",
        ),
        ("[mcp.x]\ntime = 3", ":2: the MCP server 'x' has no command", "command ="),
        ("[mcp.x]", ":1: [mcp.x] is empty", "command ="),
        (f"{_SHED}environment = ['A']", ":3: environment: an entry is not a variable", "NAME=value"),
        (
            f"{_SHED}environment = ['K=sk-abcdefgh12345678']",
            ":3: environment: an entry is a variable that seems to contain a secret",
            "no secrets",
        ),
        (f"{_SHED}environment = {{A = 'b'}}", ":3: environment must be a list of strings", ""),
        (f"{_SHED}[agents.c]\ncommand=['c']\nmcp=['shed']", "agent 'c' is command and has mcp", "native"),
    ],
)
def test_wrong_servers_are_explained(user: str, message: str, hint: str) -> None:
    error = _fails(user=user)
    assert message in error.message
    assert hint in error.hint
    assert "abcdefgh" not in error.message


def test_omitted_options_have_no_effect() -> None:
    resolved = _resolve(limits__time=None, project__allow=(), project__checks=[], only_checks=())
    assert resolved.config == Config()
    assert (resolved.extra_checks, resolved.only_checks) == ((), None)


def test_options_may_be_typed_already() -> None:
    resolved = _resolve(limits__time=90.0, limits__attempts=4, project__forbid=("a/**",))
    assert (resolved.config.limits.time, resolved.config.limits.attempts) == (90.0, 4)
    assert resolved.config.project.forbid == ("a/**",)


# --- the repository's file joins as a meet


def test_limits_are_the_smaller_and_say_so() -> None:
    resolved = _resolve(repo='[limits]\ntime = "10m"\nattempts = 1', limits__time="2h")
    assert resolved.config.limits.time == 600
    assert resolved.origins["limits.time"] == f"--time + {REPO}"
    assert resolved.notes == ("limits.time: 2h (--time) is lowered to 10m by chargehand.toml:2",)
    assert not trust_needed(resolved)


def test_a_smaller_limit_than_the_default_needs_no_trust() -> None:
    resolved = _resolve(repo="[limits]\ntime = 60")
    assert (resolved.config.limits.time, resolved.untrusted) == (60, ())
    assert resolved.origins["limits.time"] == REPO


def test_a_larger_limit_needs_trust_unless_the_user_spoke() -> None:
    repo = '[limits]\ntime = "2h"'
    resolved = _resolve(repo=repo)
    assert resolved.config.limits.time == 1800
    assert resolved.origins["limits.time"] == "default"
    assert [key.key for key in resolved.untrusted] == ["limits.time"]
    assert _trusting(repo).config.limits.time == 7200
    assert _trusting(repo, user='[limits]\ntime = "1h"').config.limits.time == 3600
    spoken = _resolve(repo=repo, user='[limits]\ntime = "3h"')
    assert (spoken.config.limits.time, spoken.untrusted) == (7200, ())


def test_allow_is_intersected_and_empty_means_all() -> None:
    repo = '[project]\nallow = ["src/**", "docs/**"]'
    assert _resolve(repo=repo).config.project.allow == ("src/**", "docs/**")
    assert _resolve(user=repo, repo="[project]\nallow = []").config.project.allow == ("src/**", "docs/**")
    both = _resolve(repo=repo, user='[project]\nallow = ["src/**", "tests/**"]', project__allow=["**/*.py"])
    assert both.config.project.allow == ("src/**/*.py",)
    assert both.origins["project.allow"] == f"{USER} + --allow + {REPO}"


def test_disjoint_allow_settings_are_an_error() -> None:
    error = _fails(repo='[project]\nallow = ["src/**"]', project__allow=["docs/**"])
    assert error.message.startswith("--allow and chargehand.toml:2: no area may be changed")


def test_forbid_and_protect_are_united() -> None:
    resolved = _resolve(
        repo='[project]\nforbid = ["a/**", "b/**"]\nprotect = ["p"]',
        user='[project]\nforbid = ["u/**", "a/**"]',
        project__forbid=["c/**"],
    )
    assert resolved.config.project.forbid == ("u/**", "a/**", "c/**", "b/**")
    assert resolved.config.project.protect == ("p",)
    assert resolved.origins["project.forbid"] == f"{USER} + --forbid + {REPO}"


def test_checks_are_combined_and_absent_differs_from_empty() -> None:
    assert _resolve().config.project.checks is None
    assert _resolve(repo="[project]\nchecks = []").config.project.checks == ()
    repo = '[project]\nchecks = ["r"]'
    assert _resolve(repo=repo, user='[project]\nchecks = ["u"]').config.project.checks == ("u", "r")
    assert _resolve(repo=repo, user="[project]\nchecks = []").config.project.checks == ("r",)


def test_the_command_line_adds_checks_or_replaces_them() -> None:
    repo = '[project]\nchecks = ["r"]'
    added = _resolve(repo=repo, project__checks=["x, y"])
    assert added.config.project.checks == ("r",)
    assert (added.extra_checks, added.only_checks) == (("x, y",), None)
    only = _resolve(repo=repo, only_checks=["o"], project__checks=["x"])
    assert only.config.project.checks == ("r",)
    assert (only.extra_checks, only.only_checks) == (("x",), ("o",))
    assert only.origins["only_checks"] == "--only_checks"


def test_repository_settings_apply_unless_overridden_by_the_user() -> None:
    repo = '[project]\nsetup = "make"\nstrategy = "direct"\ninclude = ["gen/x"]'
    project = _resolve(repo=repo, user='[project]\nsetup = "mine"').config.project
    assert (project.setup, project.strategy, project.include) == ("mine", "direct", ("gen/x",))


def test_network_hosts_of_the_repository_are_limited_by_the_user() -> None:
    repo = '[sandbox]\nnetwork = ["a.org", "b.org"]'
    silent = _resolve(repo=repo)
    assert silent.config.sandbox.network == ()
    assert [key.key for key in silent.untrusted] == ["sandbox.network"]
    spoken = _resolve(repo=repo, user='[sandbox]\nnetwork = ["B.org", "c.org"]')
    assert (spoken.config.sandbox.network, spoken.untrusted) == (("b.org",), ())
    assert _trusting(repo).config.sandbox.network == ("a.org", "b.org")
    assert _trusting(repo, user="[sandbox]\nnetwork = []").config.sandbox.network == ()
    assert (
        _resolve(repo="[sandbox]\nnetwork = []", user='[sandbox]\nnetwork = ["a.org"]').config.sandbox.network
        == ()
    )


# --- trust


def test_a_wider_sandbox_needs_trust() -> None:
    repo = '[sandbox]\ntier = "none"\ntoolchain = ["/opt"]\nmemory_mb = 99999'
    resolved = _resolve(repo=repo)
    assert resolved.config.sandbox == Config().sandbox
    assert [key.key for key in resolved.untrusted] == ["sandbox.tier", "sandbox.toolchain", "sandbox.memory_mb"]
    assert describe_untrusted(resolved)[0].startswith("chargehand.toml:2: sandbox.tier = 'none' ")
    with pytest.raises(WaitingError, match=r"sandbox\.toolchain = \['/opt'\]") as caught:
        require_trust(resolved)
    assert (caught.value.exit_code, caught.value.code) == (3, "trust_needed")
    assert caught.value.hint == "chargehand project trust"


def test_trust_applies_only_to_the_exact_content() -> None:
    repo = '[sandbox]\ntoolchain = ["/opt"]\n'
    trusted = _trusting(repo)
    assert trusted.config.sandbox.toolchain == ("/opt",)
    assert trusted.origins["sandbox.toolchain"] == REPO
    require_trust(trusted)
    granted = trusted.digest
    changed = _resolve(repo=repo + "# x\n", is_trusted=lambda digest: digest == granted)
    assert changed.config.sandbox.toolchain == ()
    assert trust_needed(changed)


def test_user_settings_override_a_trusted_file() -> None:
    repo = '[sandbox]\ntier = "none"\ntoolchain = ["/opt"]'
    resolved = _trusting(repo, user='[sandbox]\ntoolchain = ["/mine"]', sandbox__tier="process")
    assert (resolved.config.sandbox.tier, resolved.config.sandbox.toolchain) == ("process", ("/mine",))


def test_settings_without_effect_need_no_trust() -> None:
    same = '[sandbox]\ntier = "process"\ntoolchain = []\nnetwork = []\n[limits]\ntime = 1800'
    assert not trust_needed(_resolve(repo=same))
    assert not trust_needed(_resolve(repo='[sandbox]\ntier = "none"', sandbox__tier="process"))


def test_commands_inside_the_sandbox_need_no_trust() -> None:
    repo = '[project]\nchecks = ["c"]\nsetup = "s"\n[agents.fixer]\ncommand = ["f"]'
    resolved = _resolve(repo=repo)
    assert not trust_needed(resolved)
    assert resolved.config.project.setup == "s"
    assert find_agent(resolved.config, "fixer") == AgentConfig(command=("f",))


def test_without_a_sandbox_the_repositorys_programs_need_trust() -> None:
    repo = '[project]\nchecks = ["c"]\nsetup = "s"\n[agents.fixer]\ncommand = ["f"]'
    resolved = _resolve(repo=repo, sandbox__tier="none")
    assert [key.key for key in resolved.untrusted] == ["project.checks", "project.setup", "agents.fixer.command"]
    assert "there is no sandbox" in describe_untrusted(resolved)[0]
    assert (resolved.config.project.checks, resolved.config.project.setup, resolved.config.agents) == (
        None,
        None,
        {},
    )
    trusted = _trusting(repo, sandbox__tier="none")
    assert (trusted.config.project.checks, list(trusted.config.agents)) == (("c",), ["fixer"])
    # The user's own programs, and a repository without programs, need no trust.
    own = _resolve(user=repo, repo="[project]\nchecks = []", sandbox__tier="none")
    assert not trust_needed(own)


def test_an_uncommitted_file_is_noted_with_its_hash() -> None:
    resolved = _resolve(repo="[limits]\ntime = 60", commit=None)
    assert resolved.origins["limits.time"] == "chargehand.toml (uncommitted)"
    assert resolved.digest == hashlib.sha256(b"[limits]\ntime = 60").hexdigest()
    assert resolved.digest[:12] in resolved.notes[0]
    assert "not committed" in resolved.notes[0]


# --- agents


def test_the_users_agent_hides_the_repositorys_and_says_so() -> None:
    repo = '[agents.fixer]\ncommand = ["theirs"]\n[agents.other]\ncommand = ["o"]'
    resolved = _resolve(repo=repo, user='[agents.fixer]\ncommand = ["mine"]')
    assert resolved.config.agents["fixer"].command == ("mine",)
    assert resolved.config.agents["other"].command == ("o",)
    assert resolved.origins["agents.fixer.command"] == USER
    assert resolved.origins["agents.fixer.kind"] == "default"
    assert resolved.notes == (f"agent 'fixer' is taken from {USER}; the one from {REPO} is ignored",)


def test_an_agent_of_the_environment() -> None:
    env = {"CHARGEHAND_AGENTS_MY_FIXER_COMMAND": '["new", "x"]'}
    assert _resolve(env=env).config.agents["my_fixer"].command == ("new", "x")
    user = '[agents.My-Fixer]\ncommand = ["old"]'
    assert _resolve(user=user, env=env).config.agents == {"My-Fixer": AgentConfig(command=("new", "x"))}


@pytest.mark.parametrize(
    ("user", "message", "hint"),
    [
        ("[agents.f]\n", "/home/me/config.toml:1: agent 'f' has no command", 'command = ["program"'),
        (
            "[agents.f]\ncommand = 'a b'",
            "config.toml:2: command must be a list of strings, got 'a b'",
            '["a", "b"]',
        ),
        ("[agents.f]\nkind = 'mcp'\ncommand = ['a']", "config.toml:2: unknown agent kind 'mcp'", "command"),
        ("[agents.f]\nkind = 'cli'", "config.toml:1: agent 'f' does not name its CLI", "claude"),
        ("[agents.f]\nkind = 'cli'\ncli = 'emacs'", "config.toml:3: unknown agent cli 'emacs'", "claude"),
        ("[agents.f]\nkind = 'acp'", "config.toml:1: agent 'f' has no command", "opencode"),
        (
            "[agents.f]\nkind = 'patch'\ncommand = ['a']",
            "config.toml:1: agent 'f' is patch and has a command",
            "remove",
        ),
        ("[agents.f]\ncommand = ['a']\npatch = 'p'", "config.toml:1: agent 'f' is command and has patch", "patch"),
        ("[agents.f]\ncomand = ['a']", "config.toml:2: unknown key 'comand' in [agents.f]", "'command'"),
        ("[agents]\nf = ['a']", "config.toml:2: [agents.f] is a table, not ['a']", "[agents.f]"),
        ("[agents.'a b']\ncommand = ['a']", "config.toml:1: 'a b' is not a valid name for an agent", "letters"),
    ],
)
def test_wrong_agents_are_explained(user: str, message: str, hint: str) -> None:
    error = _fails(user=user)
    assert message in error.message
    assert hint in error.hint


def test_an_agent_of_the_environment_needs_a_command() -> None:
    error = _fails(env={"CHARGEHAND_AGENTS_F_KIND": "command"})
    assert error.message == "environment CHARGEHAND_AGENTS_F_KIND: agent 'f' has no command"


def test_a_relative_patch_is_refused_with_the_option_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fix it.patch").touch()
    with pytest.raises(ConfigError, match=r"'fix it\.patch' is not the full path") as caught:
        agent_from_option("patch:fix it.patch")
    _, option = shlex.split((caught.value.hint or "").removeprefix("write "))
    assert agent_from_option(option).patch == str(tmp_path / "fix it.patch")
    with pytest.raises(ConfigError) as caught:
        agent_from_option("patch:missing")
    assert caught.value.hint == "write its full path"


def test_an_agent_on_the_command_line() -> None:
    agent = agent_from_option("command:sh -c 'echo \"a b\" > x' arg")
    assert agent == AgentConfig(kind="command", command=("sh", "-c", 'echo "a b" > x', "arg"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command:", "names no program"),
        ("command:  ", "names no program"),
        ("command:'a", "cannot be split"),
        ("mcp:x", "unknown agent kind 'mcp'"),
        ("cli:emacs", "emacs"),
        ("acp:", "names no program"),
        ("fixer", "unknown agent kind 'fixer'"),
        ("command:a\0b", "no argument can have"),
        ("native:", "is not a name"),
    ],
)
def test_wrong_agents_on_the_command_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent_from_option(text)


def test_an_unknown_agent_names_the_nearest_and_all() -> None:
    config = Config(agents={"fixer": AgentConfig(command=("f",)), "writer": AgentConfig(command=("w",))})
    with pytest.raises(NotFoundError, match="no agent named 'fixr'") as caught:
        find_agent(config, "fixr")
    assert caught.value.hint.startswith(
        "did you mean 'fixer'? known: fixer, native, writer; configure one with [agents.NAME]"
    )
    with pytest.raises(NotFoundError) as caught:
        find_agent(Config(), "x")
    assert caught.value.hint.startswith("known: native; ")


# --- models and native agents

_LOCAL = '[models.local]\nbase_url = "http://127.0.0.1:8000/v1"\nmodel = "qwen"\n'


def test_a_model_of_the_user() -> None:
    env = {"CHARGEHAND_MODELS_LOCAL_PRICE_IN": "0.5", "CHARGEHAND_MODELS_LOCAL_TOOLS": "FALSE"}
    resolved = _resolve(user=_LOCAL, env=env)
    assert resolved.config.models == {
        "local": ModelConfig(base_url="http://127.0.0.1:8000/v1", model="qwen", price_in=0.5, tools=False)
    }
    assert resolved.origins["models.local.model"] == USER
    assert resolved.origins["models.local.price_in"] == "environment CHARGEHAND_MODELS_LOCAL_PRICE_IN"
    assert resolved.origins["models.local.key"] == "default"


def test_models_of_the_repository_need_trust_and_are_not_merged() -> None:
    resolved = _resolve(repo=_LOCAL)
    assert resolved.config.models == {}
    assert [key.key for key in resolved.untrusted] == ["models.local.model", "models.local.base_url"]
    with pytest.raises(WaitingError, match=r"models\.local\.base_url"):
        require_trust(resolved)
    assert _trusting(_LOCAL).config.models["local"].model == "qwen"
    mine = _resolve(repo=_LOCAL, user='[models.local]\nmodel = "mine"')
    assert (mine.config.models["local"], mine.untrusted) == (ModelConfig(model="mine"), ())
    assert mine.notes == (f"model 'local' is taken from {USER}; the one from {REPO} is ignored",)


def test_a_repositorys_agent_names_a_model_only_with_trust() -> None:
    repo = '[agents.f]\nkind = "native"\nmodel = "openai:big"\nfallback = ["anthropic:b"]'
    resolved = _resolve(repo=repo)
    assert resolved.config.agents["f"] == AgentConfig(kind="native")
    assert [key.key for key in resolved.untrusted] == ["agents.f.model", "agents.f.fallback"]
    trusted = _trusting(repo).config.agents["f"]
    assert (trusted.model, trusted.fallback) == ("openai:big", ("anthropic:b",))
    assert not trust_needed(_resolve(repo='[agents.f]\nkind = "native"\nfallback = []'))
    assert [key.key for key in _resolve(repo=repo, sandbox__tier="none").untrusted] == ["agents.f.kind"]


def test_the_repository_can_lower_but_not_raise_the_budget() -> None:
    assert _resolve(repo="[limits]\nbudget_usd = 2").config.limits.budget_usd == 2.0
    raised = _resolve(repo="[limits]\nbudget_usd = 50")
    assert (raised.config.limits.budget_usd, trust_needed(raised)) == (5.0, True)
    spoken = _resolve(repo="[limits]\nbudget_usd = 50", limits__budget_usd="1.5")
    assert (spoken.config.limits.budget_usd, spoken.untrusted) == (1.5, ())
    assert _resolve(repo="[limits]\nattempt_usd = 1").config.limits.attempt_usd == 1.0
    both = _resolve(repo="[limits]\nattempt_usd = 9", user="[limits]\nattempt_usd = 1")
    assert (both.config.limits.attempt_usd, both.untrusted) == (1.0, ())
    for key in ("day_usd", "assume_usd_per_mtok"):
        assert trust_needed(_resolve(repo=f"[limits]\n{key} = 1"))


def test_a_native_agent_with_a_command_is_refused() -> None:
    user = '[agents.n]\nkind = "native"\nmodel = "local"\nfallback = ["ollama:qwen3:8b"]\n' + _LOCAL
    agent = _resolve(user=user).config.agents["n"]
    assert agent == AgentConfig(kind="native", model="local", fallback=("ollama:qwen3:8b",))
    error = _fails(user='[agents.n]\nkind = "native"\ncommand = ["x"]')
    assert error.message == "/home/me/config.toml:1: agent 'n' is native and has a command"
    assert 'kind = "command"' in error.hint
    layered = _fails(user='[agents.n]\ncommand = ["x"]', env={"CHARGEHAND_AGENTS_N_KIND": "native"})
    assert "is native and has a command" in layered.message


@pytest.mark.parametrize(
    ("user", "message", "hint"),
    [
        (
            f"{_LOCAL}[agents.n]\nkind = 'native'\nmodel = 'locl'",
            "config.toml:6: model: no model named 'locl'",
            "did you mean 'local'? known: local; configure one with [models.NAME], or write openai:MODEL",
        ),
        (
            "[agents.n]\nkind='native'\nfallback=['x']",
            "config.toml:3: fallback: no model named 'x'",
            "known: none",
        ),
        ("[agents.n]\nkind='native'\nmodel='openai:'", "config.toml:3: model: no model named", "openai:MODEL"),
        ("[agents.n]\nkind='native'\nmodel='a b'", "config.toml:3: model is not a name: 'a b'", "letters"),
        ("[models]\nm = 3", "config.toml:2: [models.m] is a table, not 3", "[models.m]"),
        ("[models.m]", "config.toml:1: [models.m] is empty", "model ="),
        ("[models.'a b']\nmodel='x'", "config.toml:1: 'a b' is not a valid name for a model", "letters"),
        ("[models.m]\nprovider='opnai'", "config.toml:2: unknown provider 'opnai'", "'openai'"),
        ("[models.m]\nmodle='x'", "config.toml:2: unknown key 'modle' in [models.m]", "'model'"),
        ("[models.m]\ntools='yes'", "config.toml:2: tools must be true or false, got 'yes'", "without quotes"),
        ("[models.m]\nprice=-1", "config.toml:2: price must be 0 or more, got -1", "range"),
        (
            "[limits]\nbudget_usd=0",
            "config.toml:2: budget_usd must be greater than 0, got 0",
            "range",
        ),
    ],
)
def test_wrong_models_are_explained(user: str, message: str, hint: str) -> None:
    error = _fails(user=user)
    assert message in error.message
    assert hint in error.hint


def test_a_users_agent_cannot_lean_on_the_repositorys_models() -> None:
    agent = '[agents.n]\nkind = "native"\nmodel = "local"'
    assert "no model named 'local'" in _fails(user=agent, repo=_LOCAL).message
    assert _trusting(f"{agent}\n{_LOCAL}").config.agents["n"].model == "local"
    assert _trusting(agent, user=_LOCAL).config.agents["n"].model == "local"


def test_the_native_agent_always_exists() -> None:
    assert find_agent(Config(), "native") == AgentConfig(kind="native")
    assert agent_from_option("native:ollama:qwen3:8b") == AgentConfig(kind="native", model="ollama:qwen3:8b")
    mine = AgentConfig(kind="native", model="openai:x")
    assert find_agent(Config(agents={"native": mine}), "native") == mine


# --- errors


@pytest.mark.parametrize(
    ("repo", "message", "hint"),
    [
        ("a = [\n", "chargehand.toml:2: not valid TOML: Invalid value (at end of document)", ""),
        ("[project]\na b", "chargehand.toml:2: not valid TOML: Expected '='", ""),
        ("[project]\n\nchekcs = []", "chargehand.toml:3: unknown key 'chekcs' in [project]", "'checks'"),
        ("project.chekcs = []", "chargehand.toml:1: unknown key 'chekcs' in [project]", "'checks'"),
        ("\nchecks = []", "chargehand.toml:2: unknown key 'checks' outside of any table", "[project]"),
        ("[projct]", "chargehand.toml:1: unknown key or table 'projct'", "'project'"),
        ("project = 3", "chargehand.toml:1: [project] is a table, not 3", ""),
        ("[limits]\ntime = 'soon'", "chargehand.toml:2: time must be a duration, got 'soon'", "'30m'"),
        ("[limits]\nattempts = 0", "chargehand.toml:2: attempts must be from 1 to 1000000, got 0", ""),
        ("[sandbox]\ntier = 'prcess'", "chargehand.toml:2: unknown tier 'prcess'", "'process'"),
        ("[project]\nchecks = 'x'", "chargehand.toml:2: checks must be a list of strings, got 'x'", '["x"]'),
        ("[project]\nchecks = ['']", "chargehand.toml:2: checks: '' is an empty command", ""),
        (
            "[project]\nforbid = ['!a']",
            "chargehand.toml:2: forbid: '!a' is a negated pattern",
            "project.forbid",
        ),
        ("x = " + "[" * 5000, "chargehand.toml: not valid TOML: nested too deeply", ""),
        ("x = " + "9" * 5000, "chargehand.toml:1: not valid TOML: ", ""),
    ],
)
def test_wrong_files_are_explained(repo: str, message: str, hint: str) -> None:
    error = _fails(repo=repo)
    assert error.message.startswith(message)
    assert hint in error.hint
    assert (error.code, error.exit_code) == ("config_invalid", 2)


def test_a_trusted_file_may_not_be_wrong_either() -> None:
    with pytest.raises(ConfigError):
        _trusting("[sandbox]\ntoolchain = ['relative']")


@pytest.mark.parametrize("content", [b"# \xff", b"\xef\xbb\xbf[limits]", b"#" * (LARGEST_FILE + 1)])
def test_a_repository_file_without_valid_text_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"chargehand\.toml"):
        resolve(repository=RepositoryFile(content=content))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CHARGEHAND_LIMITS_TIEM", "CHARGEHAND_LIMITS_TIME"),
        ("CHARGEHAND_LIMIT_TIME", "CHARGEHAND_LIMITS_TIME"),
        ("CHARGEHAND_TIME", "CHARGEHAND_LIMITS_TIME"),
        ("CHARGEHAND_SANDBOX_X", "CHARGEHAND_SANDBOX_T"),
        ("CHARGEHAND_AGENTS_X_COMAND", "CHARGEHAND_AGENTS_NAME_COMMAND"),
    ],
)
def test_an_unknown_variable_names_the_nearest(name: str, hint: str) -> None:
    error = _fails(env={name: "1"})
    assert error.message == f"environment {name}: no configuration key has this name"
    assert hint in error.hint


def test_other_variables_are_left_alone() -> None:
    env = {"CHARGEHAND_HOME": "/x", "CHARGEHAND_REQUEST": "r", "CHARGEHAND_LIMITS_TIME": " ", "OTHER": "1"}
    assert _resolve(env=env).notes == ()
    resolved = _resolve(env={"CHARGEHAND_COLOUR": "1"})
    assert resolved.config == Config()
    assert resolved.notes == ("environment 'CHARGEHAND_COLOUR' is not a configuration key and was ignored",)


def test_a_bad_variable_or_option_is_named() -> None:
    assert _fails(env={"CHARGEHAND_LIMITS_TIME": "x"}).message.startswith(
        "environment CHARGEHAND_LIMITS_TIME: time"
    )
    assert _fails(limits__time="x").message.startswith("--time: time must be a duration, got 'x'")
    assert "'limits.time'" in _fails(limits__tme="1").hint


def test_path_of_the_user_file() -> None:
    assert user_config_path({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/chargehand/config.toml")
    assert user_config_path({"HOME": "/h"}) == Path("/h/.config/chargehand/config.toml")
    assert user_config_path({"XDG_CONFIG_HOME": "rel", "HOME": "/h"}) == Path("/h/.config/chargehand/config.toml")
    assert user_config_path({}).is_absolute()


def test_path_of_the_state_directory() -> None:
    assert state_home({"CHARGEHAND_HOME": "/s", "XDG_STATE_HOME": "/x"}) == Path("/s")
    assert state_home({"XDG_STATE_HOME": "/x", "HOME": "/h"}) == Path("/x/chargehand")
    assert state_home({"CHARGEHAND_HOME": "", "HOME": "/h"}) == Path("/h/.local/state/chargehand")
    with pytest.raises(ConfigError, match="CHARGEHAND_HOME"):
        state_home({"CHARGEHAND_HOME": "state"})


def test_reading_the_users_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert load_user_file(path) is None
    assert load_user_file(path / "below") is None
    path.write_bytes(b"# \xc3\xa4\r\n")
    read = load_user_file(path)
    assert read is not None
    assert (read.path, read.text) == (path, "# ä\r\n")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_user_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_user_file(tmp_path)
