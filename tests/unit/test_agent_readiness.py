"""Obstacles to starting an agent are found before a mission is recorded, for every way to request it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git
from tests.integration.command_line import FILES, Cli, repository

from chargehand.app.composition import App
from chargehand.app.missions import resume_mission
from chargehand.app.requests import ForkRequest, fork_mission
from chargehand.app.runs import record_mission
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import ChargehandError, RefusedError, TierUnavailableError

ABSENT = "no-such-program"
LATER = {"requirements.txt": "ruff\n"}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "person")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    made = repository(tmp_path / "repo", {**FILES, "tool": "#!/bin/sh\n"})
    git(made, "update-index", "--chmod=+x", "tool")
    git(made, "commit", "-qm", "a tool")
    git(made, "reset", "-q", "--hard")
    return made


@pytest.fixture
def app(cli: Cli, repo: Path) -> Iterator[App]:
    with App.open(environ=cli.environ, cwd=repo) as opened:
        yield opened


def configure(cli: Cli, text: str) -> None:
    """Write the person's configuration."""
    file = cli.place / ".config/chargehand/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)


CONFIGURATION = f"""
[models.read]
provider = "script"
script = "/nonexistent/script.jsonl"
[models.away]
provider = "openai-compatible"
model = "x"
[models.first]
provider = "ollama"
model = "x"
fallback = ["keyless"]
[models.keyless]
provider = "openai"
[agents.claude]
kind = "cli"
cli = "claude"
command = ["{ABSENT}"]
[agents.relay]
kind = "native"
model = "first"
fallback = ["keyless"]
"""
FAULTS: list[tuple[dict[str, str], str, str, str]] = [
    ({"agent": f"command:{ABSENT} x"}, "agent_missing", ABSENT, "sandbox.toolchain"),
    ({"agent": "command:./nothing"}, "agent_missing", "./nothing", "commit it"),
    ({"agent": "command:sub"}, "agent_missing", "sub", "sandbox.toolchain"),
    ({"agent": "command:./sub"}, "agent_missing", "./sub", "--agent"),
    ({"agent": "command:./f.txt"}, "agent_missing", "executable", "git update-index --chmod=+x f.txt"),
    ({"agent": "command:/workspace/nothing"}, "agent_missing", "/workspace/nothing", "--agent"),
    ({"agent": f"command:/nonexistent/{ABSENT}"}, "agent_missing", ABSENT, "chargehand agent list"),
    ({"agent": f"acp:{ABSENT}"}, "agent_missing", ABSENT, "sandbox.toolchain"),
    ({"agent": "cli:opencode", "model": "ollama:x"}, "agent_missing", "opencode", "sandbox.toolchain"),
    ({"agent": "claude", "model": "ollama:x"}, "agent_missing", ABSENT, "sandbox.toolchain"),
    ({"agent": "acp:qwen", "model": "ollama:x"}, "agent_missing", "qwen", "sandbox.toolchain"),
    ({"agent": "cli:codex"}, "no_model", "cli:codex", "--model"),
    ({"agent": "codex"}, "not_found", "codex", "--agent cli:codex"),
    ({"agent": "cli:cursor", "model": "ollama:x"}, "agent_unable", "cursor", "--agent"),
    ({"agent": "acp:codex", "model": "ollama:x"}, "agent_unable", "codex", "--agent"),
    ({"agent": "patch:/nonexistent.patch"}, "file_unreadable", "/nonexistent.patch", "--agent patch:FILE"),
    ({"agent": "native:openai:x"}, "no_key", "OPENAI_API_KEY", "chargehand secret set OPENAI_API_KEY"),
    ({"agent": "command:true", "model": "gemini:x"}, "no_key", "GEMINI_API_KEY", "chargehand secret set"),
    ({"agent": "relay"}, "no_key", "OPENAI_API_KEY is not set (for model 'keyless')", "chargehand secret set"),
    (
        {"agent": "native:read"},
        "no_script",
        "/nonexistent/script.jsonl",
        "chargehand config set models.read.script",
    ),
    ({"agent": "native:away"}, "no_base_url", "'away'", "chargehand config set models.away.base_url"),
    ({"model": "nosuch"}, "not_found", "nosuch", "[models.NAME]"),
    ({"agent": "command:true", "role": "nosuch"}, "role_unknown", "nosuch", "roles/nosuch.toml"),
    ({"agent": "command:true", "sandbox": "nosuch"}, "config_invalid", "nosuch", "known:"),
    ({"agent": "command:true", "base": "nosuch"}, "base_not_found", "nosuch", "branch, tag or commit"),
    ({"agent": "command:true", "directory": "nosuch"}, "directory_invalid", "nosuch", "--base"),
]


@pytest.mark.parametrize(
    ("options", "code", "value", "way_out"), FAULTS, ids=[" ".join(fault[0].values()) for fault in FAULTS]
)
def test_an_agent_that_cannot_start_is_refused_before_recording(
    cli: Cli, repo: Path, options: dict[str, Any], code: str, value: str, way_out: str
) -> None:
    configure(cli, CONFIGURATION)
    with App.open(environ=cli.environ, cwd=repo) as app:
        with pytest.raises(ChargehandError) as refused:
            record_mission(app, RunRequest(text="mend", only_checks=("true",), **options))
        error = refused.value
        assert (error.code, error.exit_code) == (code, 2), error
        assert value in error.message
        assert way_out in error.hint
        assert app.store.log.missions() == ()


def test_a_missing_check_file_is_refused(app: App) -> None:
    request = RunRequest(text="mend", agent="command:true", outside_checks=("true",))
    for name in ("check_files", "outside_files"):
        with pytest.raises(ChargehandError, match="'/nonexistent' is not a file") as refused:
            record_mission(app, replace(request, **{name: ("/nonexistent:x.py",)}))
        assert refused.value.exit_code == 2
    assert app.store.log.missions() == ()


@pytest.mark.parametrize("program", ["./tool", "/workspace/tool", "sh", "/bin/sh", "python"])
def test_an_existing_program_is_accepted(app: App, program: str) -> None:
    assert record_mission(app, RunRequest(text="mend", agent=f"command:{program}"))


def test_a_program_relative_to_the_start_directory_is_accepted(cli: Cli, repo: Path) -> None:
    with App.open(environ=cli.environ, cwd=repo) as app:
        with pytest.raises(ChargehandError, match="is not a file of the base"):
            record_mission(app, RunRequest(text="mend", agent="command:../tool"))
        (repo / "sub/chargehand.toml").write_text("")
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", "a project of its own")
        assert record_mission(app, RunRequest(text="mend", agent="command:../tool", directory="sub"))


@pytest.mark.parametrize("configured", [False, True])
def test_a_missing_program_is_accepted_if_a_setup_may_install_it(
    tmp_path: Path, cli: Cli, configured: bool
) -> None:
    if configured:
        configure(cli, '[project]\nsetup = "make tools"\n')
    place = repository(tmp_path / "other", FILES if configured else {**FILES, **LATER})
    with App.open(environ=cli.environ, cwd=place) as app:
        assert record_mission(app, RunRequest(text="mend", agent=f"command:{ABSENT}"))
        # No setup installs these: their vendors do.
        with pytest.raises(ChargehandError, match="'opencode'"):
            record_mission(app, RunRequest(text="mend", agent="cli:opencode", model="ollama:x"))


def test_a_missing_program_is_accepted_with_a_container_image(cli: Cli, repo: Path) -> None:
    configure(cli, '[sandbox]\ntier = "container"\ncontainer_image = "mine"\n')
    with App.open(environ=cli.environ, cwd=repo) as app:
        found = app.preparation.configured(None)
        app.preparation.require_ready_agent(found, found.resolved, f"command:{ABSENT}", ())


def test_an_unavailable_tier_is_refused_before_recording(app: App) -> None:
    for tier in ("vm", "none"):
        with pytest.raises(TierUnavailableError) as refused:
            record_mission(app, RunRequest(text="mend", agent="command:true", sandbox=tier))
        assert refused.value.exit_code == 5
        assert refused.value.hint
    assert app.store.log.missions() == ()


def test_resume_and_fork_refuse_a_missing_key(cli: Cli, repo: Path) -> None:
    with_key = {**cli.environ, "OPENAI_API_KEY": "sk-of-a-test"}
    with App.open(environ=with_key, cwd=repo) as app:
        mission = record_mission(app, RunRequest(text="mend", agent="native:openai:x"))
        app.steering.pause(mission)
    with App.open(environ=cli.environ, cwd=repo) as app:
        before = app.store.log.read(mission)
        for act in (
            lambda: resume_mission(app, mission),
            lambda: fork_mission(app, ForkRequest(mission=mission)),
            lambda: fork_mission(app, ForkRequest(mission=mission, model="openai:other")),
        ):
            with pytest.raises(ChargehandError, match="OPENAI_API_KEY") as refused:
                act()
            assert (refused.value.code, refused.value.exit_code) == ("no_key", 2)
        assert app.store.log.read(mission) == before
        assert len(app.store.log.missions()) == 1
        # With a model that needs no key the fork itself is checked.
        with pytest.raises(RefusedError, match="no recorded replies"):
            fork_mission(app, ForkRequest(mission=mission, model="ollama:x"))


@pytest.mark.parametrize("words", [(), ("--detach",), ("--detach", "--idempotency-key", "k")])
def test_the_command_line_says_so(cli: Cli, repo: Path, words: tuple[str, ...]) -> None:
    asked = ("run", "mend", "--agent", f"command:{ABSENT}", *words)
    assert ABSENT in cli.refused("agent_missing", 2, *asked, cwd=repo)["message"]
    assert cli.missions(repo) == []
