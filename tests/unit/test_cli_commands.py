"""Commands that need no sandbox, on real repositories and a real state directory."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from tests.conftest import git, make_repository, repository_state, write_files

from chargehand.app.composition import App
from chargehand.app.projects import clean_branches
from chargehand.cli.main import chargehand
from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.mission_events import BaseResolved, MissionClaimed, MissionCreated, MissionFinished
from chargehand.core.records import Base, Checkpoint, MissionRequest, Reason
from chargehand.workspace.branches import MergedBranch

FILES = {
    "shop/__init__.py": "",
    "shop/cart.py": "def total(prices):\n    return sum(prices)\n",
    "tests/__init__.py": "",
    "tests/test_cart.py": "import unittest\n\n\nclass T(unittest.TestCase):\n    def test(self):\n        pass\n",
}


class Cli:
    """A person at a command line, with a repository, a state directory and a configuration."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.repository = make_repository(place / "repo", FILES)
        self.user_file = place / "config" / "chargehand" / "config.toml"
        monkeypatch.chdir(self.repository)
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {
            "HOME": str(place),
            "CHARGEHAND_HOME": str(place / "state"),
            "XDG_CONFIG_HOME": str(place / "config"),
            "OLLAMA_HOST": "127.0.0.1:1",
        }.items():
            monkeypatch.setenv(name, value)

    def __call__(self, *words: str, code: int = 0) -> Result:
        """Run a command and check its exit code."""
        done = CliRunner().invoke(chargehand, list(words))
        assert done.exit_code == code, done.output
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        """Run a command with --json; its stdout is exactly one document."""
        return json.loads(self(*words, "--json", code=code).stdout)

    def error(self, *words: str, code: int) -> dict[str, str]:
        """Run a failing command with --json; stdout stays empty."""
        done = self(*words, "--json", code=code)
        assert done.stdout == ""
        error: dict[str, str] = json.loads(done.stderr)["error"]
        assert set(error) == {"code", "message", "hint"}
        return error

    def commit(self, **files: str) -> None:
        write_files(self.repository, files)
        git(self.repository, "add", "-A")
        git(self.repository, "commit", "-q", "-m", "more")

    def mission(self, text: str, *, id: str | None = None, checkpoint: bool = False) -> str:
        """Record a refused mission in the log as a worker would."""
        with App.open() as app:
            project = app.preparation.register_project()
            depot = app.projects.depot(project)
            base = depot.resolve_base()
            request = MissionRequest(text=text, agent="a", command=("true",), slug="do-it")
            mission = id or f"m-{text}"
            events: list[Any] = [
                MissionCreated(project=project.id, repository=str(project.path), request=request),
                BaseResolved(base=base),
            ]
            if checkpoint:
                events.append(CheckpointMade(attempt="a-1", checkpoint=self._checkpoint(depot, base)))
            reason = Reason(code="no_change", message="nothing")
            app.store.log.append(mission, *events, MissionFinished(status="refused", reasons=(reason,)))
        return mission

    def _checkpoint(self, depot: Any, base: Base) -> Checkpoint:
        self.commit(**{"shop/cart.py": "def total(prices):\n    return 0\n"})
        other = depot.resolve_base()
        git(self.repository, "reset", "-q", "--hard", base.commit)
        commit = depot.commit(other.tree, (base.commit,), "checkpoint: end")
        return Checkpoint(commit=commit, tree=other.tree, parent=base.commit, trigger="end", changed=1)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path, monkeypatch)


# --- errors before a mission begins


def test_outside_of_a_repository(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    for words in (["run", "x", "--agent", "command:true"], ["init"], ["project", "show"], ["project", "setup"]):
        error = cli.error(*words, code=2)
        assert error["code"] == "not_a_repository", words
        assert error["hint"]
    assert cli.json("mission", "list") == {"missions": [], "left_out": 0}
    assert [agent["name"] for agent in cli.json("agent", "list")["agents"]] == ["native"]
    assert cli.json("config", "show")["values"]["limits.attempts"] == 1


def test_in_an_empty_repository(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    monkeypatch.chdir(empty)
    for words in (["run", "x", "--agent", "command:true"], ["init"]):
        assert cli.error(*words, code=2)["code"] == "repository_empty"


@pytest.mark.parametrize(
    ("content", "place", "hint"),
    [
        ('[project]\nchecks = ["true"]\n\n[limits]\ntme = "5m"\n', "chargehand.toml:5", "time"),
        ("[project\n", "chargehand.toml:1", ""),
        ("[projct]\nchecks = []\n", "chargehand.toml:1", "project"),
        ('[limits]\ntime = "soon"\n', "chargehand.toml:2", "30m"),
    ],
)
def test_a_malformed_file_is_an_error_with_its_line(cli: Cli, content: str, place: str, hint: str) -> None:
    cli.commit(**{"chargehand.toml": content})
    error = cli.error("run", "x", "--agent", "command:true", code=2)
    assert error["code"] == "config_invalid"
    assert place in error["message"]
    assert hint in error["hint"]


def test_wrong_options_of_a_run(cli: Cli) -> None:
    run = ("run", "x")
    assert cli.error(*run, code=2)["code"] == "no_agent"
    assert cli.error(*run, "--agent", "nosuch", code=2)["code"] == "not_found"
    agent = ("--agent", "command:true")
    assert "--time" in cli.error(*run, *agent, "--time", "soon", code=2)["message"]
    assert "--attempts" in cli.error(*run, *agent, "--attempts", "0", code=2)["message"]
    assert "--strategy" in cli.error(*run, *agent, "--strategy", "shadw", code=2)["message"]
    assert "--sandbox" in cli.error(*run, *agent, "--sandbox", "vmm", code=2)["message"]
    assert cli.error(*run, *agent, "--base", "nosuch", code=2)["code"] == "base_not_found"
    assert "--check-file" in cli.error(*run, *agent, "--check-file", "a", code=2)["message"]
    assert cli.error("run", *agent, code=2)["message"] == "no request was given"
    assert cli.json("mission", "list") == {"missions": [], "left_out": 0}


def test_several_agents_have_to_be_chosen_from(cli: Cli) -> None:
    for name in ("one", "two"):
        cli("config", "set", f"agents.{name}.command", '["true"]')
    error = cli.error("run", "x", code=2)
    assert error["code"] == "agent_ambiguous"
    assert "one, two" in error["message"]


def test_no_agent_is_an_error_and_ways_out_on_stderr(cli: Cli) -> None:
    done = cli("run", "x", code=2)
    assert done.stdout == ""
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint", "hint"]


def test_an_unavailable_tier_is_refused_without_a_replacement(cli: Cli) -> None:
    cli.commit(**{"chargehand.toml": '[project]\nchecks = ["true"]\n'})
    error = cli.error("run", "x", "--agent", "command:true", "--sandbox", "none", code=5)
    assert (error["code"], error["hint"]) == ("sandbox_unavailable", "use --sandbox process, container or vm")
    assert cli.json("mission", "list") == {"missions": [], "left_out": 0}


def test_apply_is_refused_with_a_tag_a_detached_head_or_a_bare_repository(cli: Cli) -> None:
    agent = ("--agent", "command:true", "--apply")
    git(cli.repository, "tag", "v1")
    assert cli.error("run", "x", *agent, "--base", "v1", code=2)["code"] == "apply_base"
    git(cli.repository, "checkout", "-q", "--detach")
    assert cli.error("run", "x", *agent, code=2)["code"] == "apply_detached"
    bare = cli.place / "bare.git"
    git(cli.place, "clone", "-q", "--bare", str(cli.repository), str(bare))
    assert cli.error("run", "x", *agent, "--repo", str(bare), code=2)["code"] == "apply_bare"


def test_no_sandbox_is_exit_five_with_the_mend(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = cli.place / "bin"
    programs.mkdir()
    for name in ("git", "python3", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    error = cli.error("run", "x", "--agent", "command:true", code=5)
    assert error["code"] == "sandbox_unavailable"
    assert "install bubblewrap" in error["hint"]
    report = cli.json("doctor", code=5)
    assert report["ok"] is False
    assert [part["name"] for part in report["parts"] if not part["ok"]] == ["bubblewrap"]
    assert "fix: install bubblewrap" in cli("doctor", code=5).stdout
    monkeypatch.setenv("PATH", "/nowhere")
    assert not next(part for part in cli.json("doctor", code=5)["parts"] if part["name"] == "git")["ok"]


# --- trust


def test_untrusted_configuration_waits_for_a_person(cli: Cli) -> None:
    cli.commit(**{"chargehand.toml": '[sandbox]\nnetwork = ["example.org"]\n'})
    before = repository_state(cli.repository)
    for words in (("--yes",), ()):
        error = cli.error("run", "x", "--agent", "command:true", *words, code=3)
        assert error["code"] == "trust_needed"
        assert "sandbox.network" in error["message"]
        assert error["hint"] == "chargehand project trust"
    assert cli.json("mission", "list") == {"missions": [], "left_out": 0}
    shown = cli.json("project", "trust", "--show")
    assert (shown["trusted"], shown["keys"][0]["key"]) == (False, "sandbox.network")
    assert cli.error("project", "trust", code=2)["code"] == "trust_unasked"
    assert cli.json("project", "show")["trusted"] is False
    assert cli.json("project", "trust", "--yes")["trusted"] is True
    assert cli.json("project", "show")["trusted"] is True
    assert cli.json("project", "show")["untrusted"] == []
    cli.commit(**{"chargehand.toml": '[sandbox]\nnetwork = ["other.example.org"]\n'})
    assert cli.error("run", "x", "--agent", "command:true", code=3)["code"] == "trust_needed"
    assert repository_state(cli.repository) != before


def test_an_agent_of_the_repository_gets_no_model_until_trusted(cli: Cli) -> None:
    agents = '[agents.helper]\nkind = "acp"\ncommand = ["python3", "-c", "pass"]\n'
    cli.commit(**{"chargehand.toml": f'[project]\nchecks = ["true"]\n{agents}'})
    user = cli.place / "config" / "chargehand" / "config.toml"
    user.parent.mkdir(parents=True, exist_ok=True)
    user.write_text(
        '[models.house]\nprovider = "openai-compatible"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
        'price = 0.0\n[roles.default]\nmodel = "house"\n'
    )
    for words in ((), ("--agent", "helper"), ("--agent", "helper", "--model", "house", "--yes")):
        error = cli.error("run", "x", *words, code=3)
        assert error["code"] == "trust_needed", words
        assert "agents.helper" in error["message"]
        assert "python3" in error["message"]
    assert cli.json("mission", "list") == {"missions": [], "left_out": 0}
    assert [key["key"] for key in cli.json("project", "trust", "--show")["keys"]] == ["agents.helper"]
    assert cli.json("project", "trust", "--yes")["trusted"] is True
    assert cli.json("project", "trust", "--show")["keys"] == []


@pytest.mark.parametrize(
    "name", ["native", "claude", "codex", "gemini", "opencode", "qwen", "cursor", "cursor-agent"]
)
def test_a_repository_cannot_put_its_program_behind_a_known_agents_name(cli: Cli, name: str) -> None:
    for entry in ('command = ["./steal.sh"]\n', 'kind = "acp"\ncommand = ["./steal.sh"]\n'):
        cli.commit(**{"chargehand.toml": f"[agents.{name}]\n{entry}"})
        error = cli.error("run", "x", "--agent", name, code=2)
        assert f"{name!r} is reserved" in error["message"]
        assert "chargehand.toml:" in error["message"]
    if name != "cursor-agent":  # a definition that changes nothing is harmless
        own = 'kind = "native"\n' if name == "native" else f'kind = "cli"\ncli = "{name}"\n'
        cli.commit(**{"chargehand.toml": f"[agents.{name}]\n{own}"})
        assert cli.json("project", "show")["trusted"] is False


def test_trust_has_no_effect_without_keys_that_need_trust(cli: Cli) -> None:
    assert cli.json("project", "trust", "--yes") == {
        "project": cli.json("project", "show")["id"],
        "digest": None,
        "trusted": False,
        "keys": [],
        "roles": [],
    }
    assert "nothing in chargehand.toml needs trust" in cli("project", "trust").stdout


# --- init, config, agents, projects


def test_init_writes_detected_checks_only_once(cli: Cli) -> None:
    first = cli.json("init")
    assert (first["created"], first["checks"]) == (True, ["python -m unittest discover"])
    assert first["ignored"] is False
    path = cli.repository / "chargehand.toml"
    assert first["path"] == str(path)
    assert tomllib.loads(path.read_text())["project"]["checks"] == first["checks"]
    path.write_text(path.read_text() + "# mine\n")
    before = repository_state(cli.repository)
    again = cli.json("init", "--yes")
    assert again["created"] is False
    assert "nothing was changed" in cli("init").stdout
    assert repository_state(cli.repository) == before
    assert git(cli.repository, "status", "--porcelain") == "?? chargehand.toml"


def test_init_begins_the_file_with_the_licence_header_of_the_projects_configuration(cli: Cli) -> None:
    header = "# Licensed to the Foundation under one\n# or more agreements.\n"
    other = make_repository(
        cli.place / "other", {".asf.yaml": f"{header}\ngithub:\n", "Makefile": "test:\n\ttrue\n"}
    )
    cli("init", "--repo", str(other))
    text = (other / "chargehand.toml").read_text()
    assert text.startswith(f"{header}\n# Checks that missions")
    assert tomllib.loads(text)["project"] == {"checks": ["make test"]}


@pytest.mark.parametrize("ignore", ["/*\n!/Makefile\n!/.gitignore\n", "*.toml\n"])
def test_init_names_the_command_that_adds_an_ignored_file(cli: Cli, ignore: str) -> None:
    other = make_repository(cli.place / "other", {".gitignore": ignore, "Makefile": "test:\n\ttrue\n"})
    assert "git add --force chargehand.toml" in cli("init", "--repo", str(other)).stdout
    assert git(other, "status", "--porcelain") == ""
    (other / "chargehand.toml").unlink()
    assert cli.json("init", "--repo", str(other))["ignored"] is True


def test_init_reports_if_no_checks_are_detected(cli: Cli) -> None:
    other = make_repository(cli.place / "other", {"README": "nothing to check\n"})
    done = cli("init", "--repo", str(other))
    assert "none found" in done.stdout
    assert "checks" not in tomllib.loads((other / "chargehand.toml").read_text())["project"]


def test_init_never_follows_a_link(cli: Cli) -> None:
    (cli.repository / "chargehand.toml").symlink_to(cli.place / "elsewhere.toml")
    assert cli.json("init")["created"] is False
    assert not (cli.place / "elsewhere.toml").exists()


def test_config_show_reports_the_origin_of_values(cli: Cli) -> None:
    cli("config", "set", "limits.time", "20m")
    cli.commit(**{"chargehand.toml": '[limits]\ntime = "10m"\n'})
    shown = cli.json("config", "show", "--origin")
    assert shown["values"]["limits.time"] == 600
    assert "chargehand.toml @ " in shown["origins"]["limits.time"]
    assert str(cli.user_file) in shown["origins"]["limits.time"]
    assert "origins" not in cli.json("config", "show")
    assert "is lowered to 10m" in cli("config", "show").stdout


def test_config_set_refuses_invalid_values_and_keeps_the_file(cli: Cli) -> None:
    cli("config", "set", "limits.time", "20m")
    before = cli.user_file.read_bytes()
    assert "limits.time" in cli.error("config", "set", "limits.tme", "20m", code=2)["hint"]
    assert cli.error("config", "set", "limits.time", "-5", code=2)["code"] == "config_invalid"
    assert cli.user_file.read_bytes() == before


def test_agent_list_shows_the_origin_of_agents(cli: Cli) -> None:
    assert "native  native  the first model found  built in" in cli("agent", "list").stdout
    cli("config", "set", "agents.linter.command", '["ruff", "check", "a b"]')
    cli.commit(**{"chargehand.toml": '[agents.theirs]\ncommand = ["make", "fix"]\n'})
    mine, native, theirs = cli.json("agent", "list")["agents"]
    assert (native["name"], native["origin"]) == ("native", "built in")
    assert mine == {
        "name": "linter",
        "kind": "command",
        "command": ["ruff", "check", "a b"],
        "cli": None,
        "model": None,
        "fallback": [],
        "acknowledge": False,
        "mcp": [],
        "origin": str(cli.user_file),
    }
    assert theirs["origin"].startswith("chargehand.toml @ ")
    assert "ruff check 'a b'" in cli("agent", "list").stdout


def test_projects(cli: Cli) -> None:
    assert "No projects yet" in cli("project", "list").stdout
    shown = cli.json("project", "show")
    assert (shown["name"], shown["checks_from"]) == ("repo", "detected")
    with App.open() as app:
        app.preparation.register_project()
    listed = cli.json("project", "list")["projects"]
    assert [(row["id"], row["missions"]) for row in listed] == [(shown["id"], 0)]
    assert "uncommitted" not in cli("project", "show").stdout
    write_files(cli.repository, {"new.py": ""})
    assert "uncommitted changes are not part of it" in cli("project", "show").stdout


# --- missions in the log


def test_missions_are_found_by_parts_of_their_ids(cli: Cli) -> None:
    assert cli.error("mission", "show", code=2)["hint"] == 'chargehand run "TEXT" starts one'
    first, second = cli.mission("first"), cli.mission("second")
    for name in ("last", second, "sec", "ond", "m-sec"):
        assert cli.json("mission", "show", name)["mission"] == second
    assert cli.json("mission", "show", "first")["mission"] == first
    assert cli.error("mission", "show", "m-", code=2)["code"] == "ambiguous"
    assert cli.error("mission", "show", "nosuch", code=2)["code"] == "not_found"
    assert [row["mission"] for row in cli.json("mission", "list")["missions"]] == [second, first]


def test_missions_of_this_repository_or_of_all(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    mission = cli.mission("first")
    other = make_repository(cli.place / "other", {"README": ""})
    monkeypatch.chdir(other)
    assert cli.json("mission", "list") == {"missions": [], "left_out": 0}
    assert [row["mission"] for row in cli.json("mission", "list", "--all")["missions"]] == [mission]
    assert cli.json("mission", "list", "--repo", str(cli.repository))["missions"][0]["status"] == "refused"
    assert mission in cli("mission", "list", "--all").stdout


def test_a_request_cannot_write_to_the_terminal(cli: Cli) -> None:
    cli.mission("\x1b[2Jevil\x07\nsecond line", id="m-evil")
    for words in (["mission", "list"], ["mission", "show", "last"], ["mission", "log", "last"]):
        shown = cli(*words).stdout
        assert "evil" in shown
        assert not {"\x1b", "\x07"} & set(shown)


def test_the_log_as_lines_and_as_text(cli: Cli) -> None:
    mission = cli.mission("first")
    for words in (["mission", "log"], ["mission", "log", "--follow"], ["mission", "watch"]):
        lines = [json.loads(line) for line in cli(*words, mission, "--json").stdout.splitlines()]
        assert [line["type"] for line in lines] == ["mission.created", "base.resolved", "mission.finished"]
        assert lines[0]["payload"]["request"]["text"] == "first"
        assert {line["mission"] for line in lines} == {mission}
    assert "requested: first" in cli("mission", "log", mission).stdout
    assert "refused" in cli("mission", "watch", mission).stdout


def test_a_mission_without_its_process_is_shown_as_lost(cli: Cli) -> None:
    with App.open() as app:
        project = app.projects.find()
        request = MissionRequest(text="x", agent="a", command=("true",), slug="x")
        claimed = MissionClaimed(worker="k-dead", role="command", epoch=1, version="0")
        app.store.log.append(
            "m-lost", MissionCreated(project=project.id, repository="/gone", request=request), claimed
        )
    shown = cli.json("mission", "show", "m-lost")
    assert (shown["status"], shown["reasons"][0]["code"]) == ("paused", "worker_lost")
    assert cli.error("mission", "diff", "m-lost", code=1)["code"] == "no_base"
    assert cli.error("mission", "rollback", "m-lost", code=2)["code"] == "repository_gone"


def test_checkpoints_and_their_differences(cli: Cli) -> None:
    mission = cli.mission("first", checkpoint=True)
    (point,) = cli.json("checkpoint", "list", mission)["checkpoints"]
    assert point["trigger"] == "end"
    assert point["commit"][:12] in cli("checkpoint", "list").stdout
    shown = cli.json("checkpoint", "show", point["commit"][:8])
    assert shown["files"] == [{"path": "shop/cart.py", "added": 1, "removed": 1}]
    assert "shop/cart.py" in cli("checkpoint", "show", "last").stdout
    assert cli.error("checkpoint", "show", "ffff", code=2)["code"] == "not_found"
    patch = cli("checkpoint", "diff", "base", "last").stdout
    assert "-    return sum(prices)\n+    return 0\n" in patch
    assert cli("mission", "diff").stdout == patch
    assert cli.json("mission", "diff")["patch"] == patch
    assert cli("mission", "diff", "--checkpoint", point["commit"]).stdout == patch
    assert "shop/cart.py  +1     -1" in cli("mission", "diff", "--stat").stdout
    assert "no difference" in cli("checkpoint", "diff", "base", "base", "--stat").stdout
    assert "patch" not in cli.json("checkpoint", "diff", "last", "base", "--stat")


def test_the_patch_of_a_mission_applies(cli: Cli) -> None:
    cli.mission("first", checkpoint=True)
    patch = cli.place / "change.patch"
    patch.write_bytes(cli("mission", "diff").stdout_bytes)
    git(cli.repository, "apply", str(patch))
    assert "return 0" in (cli.repository / "shop/cart.py").read_text()


def test_audit_names_the_place_of_a_change(cli: Cli) -> None:
    mission = cli.mission("first")
    report = cli.json("audit", "verify")
    assert report == {"ok": True, "missions": 1, "events": 3, "signed_heads": 0, "keys": [], "problems": []}
    assert "Log intact" in cli("audit", "verify", mission).stdout
    database = cli.place / "state" / "store.db"
    content = database.read_bytes()
    assert b'"text":"first"' in content or (cli.place / "state" / "store.db-wal").exists()
    for file in (database, cli.place / "state" / "store.db-wal"):
        if file.exists():
            file.write_bytes(file.read_bytes().replace(b'"text":"first"', b'"text":"f1rst"'))
    report = cli.json("audit", "verify", code=1)
    assert [(one["mission"], one["seq"]) for one in report["problems"]] == [(mission, 1)]
    assert f"{mission} line 1: payload_changed" in cli("audit", "verify", code=1).stdout
    assert cli.error("audit", "verify", "nosuch", code=2)["code"] == "not_found"


def test_gc_of_all_projects_and_of_a_single_project(cli: Cli) -> None:
    mission = cli.mission("first", checkpoint=True)
    gone = make_repository(cli.place / "gone", {"README": ""})
    with App.open() as app:
        app.preparation.register_project(gone)
    shutil.rmtree(gone)
    report = cli.json("gc", "--dry-run")
    assert report["dry_run"] is True
    skipped = [one for one in report["projects"] if "skipped" in one]
    assert [Path(one["path"]).name for one in skipped] == ["gone"]
    assert len(cli.json("gc", "--repo", str(cli.repository))["projects"]) == 1
    assert "all checkpoints are kept" in cli("gc").stdout
    assert "return 0" in cli("mission", "diff", mission).stdout


def test_a_state_directory_of_a_relative_path_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHARGEHAND_HOME", "state")
    assert "CHARGEHAND_HOME" in cli.error("mission", "list", code=2)["message"]


def test_a_state_directory_that_is_not_writable_is_seen_by_the_doctor(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.place / "file").write_text("")
    monkeypatch.setenv("CHARGEHAND_HOME", str(cli.place / "file" / "state"))
    report = cli.json("doctor", code=5)
    (part,) = [part for part in report["parts"] if part["name"] == "state"]
    assert part["ok"] is False
    assert "CHARGEHAND_HOME" in part["mend"]
    assert cli.error("mission", "list", code=6)["code"]


def test_the_store_is_for_its_owner_alone(cli: Cli) -> None:
    cli("mission", "list")
    assert os.stat(cli.place / "state").st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "words",
    [
        "config show",
        "agent list",
        "role list",
        "team list",
        "model list",
        "project show",
        "policy show",
        "policy test -- ls",
    ],
)
def test_read_only_commands_create_no_project_and_no_depot(cli: Cli, words: str) -> None:
    cli.commit(**{"chargehand.toml": '[project]\nchecks = ["true"]\n'})
    cli(*words.split())
    assert cli.json("project", "list")["projects"] == []
    assert not (cli.place / "state/projects").exists()


def test_read_only_commands_read_borrowed_objects_of_a_shared_clone(cli: Cli) -> None:
    cli.commit(**{"chargehand.toml": '[project]\nchecks = ["of the shared one"]\n'})
    shared = cli.place / "shared"
    git(cli.repository, "clone", "-q", "--shared", str(cli.repository), str(shared))
    (shared / "chargehand.toml").unlink()
    values = cli.json("config", "show", "--repo", str(shared))["values"]
    assert values["project.checks"] == ["of the shared one"]


# --- single keys, and completion


def test_a_key_is_shown_listed_and_removed(cli: Cli) -> None:
    assert cli.json("config", "list")["values"] == {}
    assert "Nothing is set" in cli("config", "list").stdout
    cli("config", "set", "limits.time", "90s")
    assert cli("config", "get", "limits.time").stdout == "1m30s\n"
    found = cli.json("config", "get", "limits.time")
    assert (found["value"], found["origin"].startswith(str(cli.user_file))) == (90, True)
    assert list(cli.json("config", "list")["origins"]) == ["limits.time"]
    assert cli.json("config", "unset", "limits.time")["removed"]
    assert not cli.json("config", "unset", "limits.time")["removed"]
    assert cli.json("config", "get", "limits.time")["origin"] == "default"
    assert cli("config", "path").stdout == f"{cli.user_file}\n"


def test_every_key_is_listed_with_its_meaning(cli: Cli) -> None:
    keys = {each["key"]: each["meaning"] for each in cli.json("config", "list", "--all")["keys"]}
    assert {"limits.time", "models.NAME.tools"} <= keys.keys()
    assert all(keys.values())


def test_unknown_keys_and_entries_that_are_not_set_are_errors(cli: Cli) -> None:
    assert "limits.time" in cli.error("config", "get", "limits.tim", code=2)["hint"]
    assert "limits.time" in cli.error("config", "unset", "limits.tim", code=2)["hint"]
    assert cli.error("config", "get", "models.none.model", code=2)["code"] == "not_found"
    assert "config set" in cli.error("config", "edit", code=2)["hint"]


def completed(*words: str) -> dict[str, str | None]:
    complete = ShellComplete(chargehand, {}, "chargehand", "_CHARGEHAND_COMPLETE")
    return {each.value: each.help for each in complete.get_completions(list(words[:-1]), words[-1])}


def test_missions_are_completed_with_their_status(cli: Cli) -> None:
    assert completed("mission", "show", "") == {}
    mission = cli.mission("first")
    assert completed("mission", "show", "") == {"last": "the newest mission", mission: "refused: first"}
    assert completed("mission", "cancel", "la") == {"last": "the newest mission"}
    assert mission in completed("checkpoint", "list", "m-")
    assert mission in completed("exec", "--mission", "m-")


def test_names_of_the_configuration_are_completed(cli: Cli) -> None:
    cli("config", "set", "agents.fixer.command", '["true"]')
    cli("config", "set", "models.house.model", "tiny")
    assert {"native", "fixer"} <= completed("run", "--agent", "").keys()
    assert completed("run", "--model", "ho").keys() == {"house"}
    assert completed("run", "--sandbox", "con").keys() == {"container"}
    assert completed("run", "--team", "test-").keys() == {"test-first"}
    assert "models.house.tools" in completed("config", "get", "models.house.")
    cli.user_file.write_text(f"{cli.user_file.read_text()}\n[secrets.sources.safe]\nkind = 'files'\n")
    assert "secrets.sources.safe.kind" in completed("config", "get", "secrets.so")
    cli.user_file.write_text("[limits")  # a shell shows no errors
    assert "native" in completed("run", "--agent", "")
    assert "limits.time" in completed("config", "set", "limits.t")


# --- merged branches


def test_merged_branches_are_shown_and_removed_and_others_stay(cli: Cli) -> None:
    git(cli.repository, "branch", "chargehand/merged")
    git(cli.repository, "branch", "mine/merged")
    git(cli.repository, "checkout", "-q", "-b", "chargehand/open")
    git(cli.repository, "commit", "-q", "--allow-empty", "-m", "open")
    git(cli.repository, "checkout", "-q", "-")
    git(cli.repository, "worktree", "add", "-q", "-b", "chargehand/out", str(cli.place / "out"))

    def branches() -> set[str]:
        return set(git(cli.repository, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    before = branches()
    assert cli.error("branch", "clean", code=2)["hint"].startswith("add --yes")
    assert [each["name"] for each in cli.json("branch", "clean", "--dry-run")["merged"]] == ["chargehand/merged"]
    assert branches() == before
    assert "chargehand/merged @ " in cli("branch", "clean", "--yes").stdout
    assert branches() == before - {"chargehand/merged"}
    assert cli.json("branch", "clean", "--yes") == {"merged": [], "removed": []}


def test_a_branch_that_moved_meanwhile_is_not_removed(cli: Cli) -> None:
    git(cli.repository, "branch", "chargehand/merged")

    def move(merged: tuple[MergedBranch, ...]) -> bool:
        git(cli.repository, "checkout", "-q", "chargehand/merged")
        git(cli.repository, "commit", "-q", "--allow-empty", "-m", "more")
        git(cli.repository, "checkout", "-q", "-")
        return True

    with App.open() as app:
        assert clean_branches(app, cli.repository, confirm=move).removed == ()
    assert git(cli.repository, "log", "-1", "--format=%s", "chargehand/merged").strip() == "more"


# --- `mission continue` without arguments


@pytest.mark.parametrize(
    ("words", "missing"), [((), "MISSION"), (("last",), "TEXT"), (("m-0abc",), "TEXT"), (("do more",), "MISSION")]
)
def test_without_a_terminal_a_missing_argument_is_named(cli: Cli, words: tuple[str, ...], missing: str) -> None:
    assert f"'{missing}'" in cli.error("mission", "continue", *words, code=2)["message"]
