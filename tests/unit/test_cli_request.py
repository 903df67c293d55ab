"""From the words of `run` to a request: errors are found before anything begins."""

from __future__ import annotations

import hashlib
import io
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.app.runs import (
    RoleAssignment,
    assign_role,
    branch_slug,
    build_request,
    keep_check_files,
    request_text,
)
from chargehand.app.selection.choice import DEFAULT_MODELS, AgentChoice
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.app.wiring.session import WorkPlaces
from chargehand.configuration.locations import UserFile
from chargehand.configuration.records import OptionValue, ResolvedConfig
from chargehand.configuration.resolve import resolve
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import ConfigError, NotFoundError, UsageError
from chargehand.core.records import MissionRequest
from chargehand.store.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "state") as opened:
        yield opened


@given(st.text(st.characters()))
def test_a_slug_is_always_a_branch_name(text: str) -> None:
    made = branch_slug(text)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", made)
    assert len(made) <= 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fix the total!", "fix-the-total"),
        ("Überprüfe die Preise", "uberprufe-die-preise"),
        ("Исправь сложение", "isprav-slozhenie"),
        ("修复", "xiufu"),
        ("!!!", "mission"),
        ("", "mission"),
        ("a" * 60, "a" * 40),
        ("make the very long request into a name that is short enough", "make-the-very-long-request-into-a-name"),
    ],
)
def test_slugs(text: str, expected: str) -> None:
    assert branch_slug(text) == expected


def test_the_text_comes_from_the_argument_a_file_or_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "request.md"
    file.write_text("from a file: é\n")
    assert request_text(RunRequest(text="as given")) == "as given"
    assert request_text(RunRequest(file=str(file))) == "from a file: é\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert request_text(RunRequest(file="-")) == "from stdin"


@pytest.mark.parametrize(
    "options",
    [
        RunRequest(),
        RunRequest(text=" \n"),
        RunRequest(text="a", file="b"),
        RunRequest(file="/does/not/exist"),
        RunRequest(file="/"),
        RunRequest(text="a\0b"),
        RunRequest(text="\udcff"),
        RunRequest(text="x" * 100_001),
    ],
)
def test_wrong_requests(options: RunRequest) -> None:
    with pytest.raises(UsageError):
        request_text(options)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        request_text(RunRequest(file=str(tmp_path / "binary")))


def configured(*names: str) -> ResolvedConfig:
    text = "".join(f'[agents.{name}]\ncommand = ["true"]\n' for name in names)
    return resolve(user=UserFile(path=Path("config.toml"), text=text))


def chosen(resolved: ResolvedConfig, agent: str | None = None, model: str | None = None) -> AgentChoice:
    options = RunRequest(agent=agent, model=model)
    return cast(resolved, options).choice


def cast(
    resolved: ResolvedConfig,
    options: RunRequest,
    choice: AgentChoice | None = None,
    keys: Mapping[str, str] | None = None,
) -> RoleAssignment:
    environ = {"OLLAMA_HOST": "127.0.0.1:1", "XDG_CONFIG_HOME": "/does/not/exist"}
    if choice is not None:
        role, file = RoleCatalogue(environ).find("developer", resolved.config)
        return RoleAssignment(role=role, file=file, choice=choice)
    return assign_role(resolved, options, RoleCatalogue(environ), environ=environ, keys=keys or {})


def build(options: RunRequest, resolved: ResolvedConfig, choice: AgentChoice, text: str = "x") -> MissionRequest:
    return build_request(
        options,
        resolved,
        text=text,
        assignment=cast(resolved, options, choice),
        artifacts=Kept(),
        places=WorkPlaces(agent="services/api", checks=""),
        check_files=(),
    )


class Kept:
    """Stores artifacts only by name."""

    def put(self, content: bytes, *, kind: str, mission: str | None = None) -> str:
        return hashlib.sha256(content).hexdigest()


def test_the_agent_is_the_named_or_the_only_configured_agent() -> None:
    assert chosen(configured("a")) == AgentChoice(agent="a", model=None, why="the only one configured")
    assert chosen(configured("a", "b"), "b").agent == "b"
    assert chosen(configured(), "command:true").agent == "command:true"
    with pytest.raises(UsageError, match="a, b") as several:
        chosen(configured("a", "b"))
    assert several.value.code == "agent_ambiguous"
    with pytest.raises(NotFoundError, match="fixr"):
        chosen(configured("fixer"), "fixr")
    with pytest.raises(ConfigError):
        chosen(configured(), "nosuch:x")


def test_agent_model_and_keys_are_chosen_together() -> None:
    options = RunRequest(agent="native")
    keyed = cast(configured(), options, keys={"OPENAI_API_KEY": "k"}).choice
    assert (keyed.agent, keyed.model) == ("native", DEFAULT_MODELS["openai"])
    named = chosen(configured("a"), model="openai:x")
    assert (named.agent, named.model) == ("a", "openai:x")


def test_a_missing_agent_is_an_error_with_a_short_hint() -> None:
    with pytest.raises(UsageError) as none:
        chosen(configured())
    assert none.value.code == "no_agent"
    assert len(none.value.hint.splitlines()) == 2
    assert '--agent "command:' in none.value.hint
    assert "chargehand model add" in none.value.hint


def test_check_files_are_stored_unchanged(tmp_path: Path, store: Store) -> None:
    host = tmp_path / "with:colon.py"
    host.write_bytes(b"assert True\n")
    ((artifact, path),) = keep_check_files([f"{host}:tests/test_new.py"], store.artifacts)
    host.write_bytes(b"changed since\n")
    assert path == "tests/test_new.py"
    assert store.artifacts.get(artifact) == b"assert True\n"


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../out", "a/../b", ".git/config", "sub/.GIT/x", "a//b", "./a", "a/", ""]
)
def test_check_files_outside_the_repository_are_refused(target: str, tmp_path: Path, store: Store) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--check-file"):
        keep_check_files([f"{tmp_path / 'file'}:{target}"], store.artifacts)


def test_missing_and_conflicting_check_files_are_refused(tmp_path: Path, store: Store) -> None:
    (tmp_path / "file").write_text("")
    for wrong in ("nocolon", f"{tmp_path}/missing:a.py", f"{tmp_path}:a.py", ":a.py"):
        with pytest.raises(UsageError, match="--check-file"):
            keep_check_files([wrong], store.artifacts)
    with pytest.raises(UsageError, match="two files"):
        keep_check_files([f"{tmp_path / 'file'}:a.py"] * 2, store.artifacts)


def test_a_request_contains_the_options_and_settings() -> None:
    options = RunRequest(
        text="Mend it",
        checks=("true",),
        only_checks=("make test",),
        allow=("src/**",),
        forbid=("docs/**",),
        time="90s",
        attempts="3",
        partial=True,
    )
    resolved = resolve(options=options.configuration())
    choice = AgentChoice(agent="command:true x", model=None, why="--agent")
    made = build(options, resolved, choice, "Mend it")
    assert made.slug == "mend-it"
    assert made.command == ("true", "x")
    assert (made.only_checks, made.extra_checks) == (("make test",), ("true",))
    assert (made.allow, made.forbid) == (("src/**",), ("docs/**",))
    assert (made.seconds, made.attempts, made.partial, made.apply) == (90.0, 3, True, False)


def test_a_request_contains_the_model_and_its_fallback() -> None:
    text = '[agents.n]\nkind = "native"\nmodel = "openai:a"\nfallback = ["openai:b"]\n'
    options = RunRequest(text="x", budget="2.5")
    resolved = resolve(user=UserFile(path=Path("config.toml"), text=text), options=options.configuration())
    assert resolved.config.limits.budget_usd == 2.5
    choice = chosen(resolved)
    made = build(options, resolved, choice)
    assert (made.agent, made.command, made.model, made.fallback) == ("n", (), "openai:a", ("openai:b",))
    other = chosen(resolved, model="ollama:c")
    assert build(options, resolved, other).model == "ollama:c"


def test_a_native_agent_has_three_attempts_by_default() -> None:
    native = AgentChoice(agent="native", model="openai:a", why="")
    program = AgentChoice(agent="command:true", model=None, why="")
    said = resolve(options=RunRequest(attempts="1").configuration())

    def attempts(choice: AgentChoice, resolved: ResolvedConfig) -> int:
        return build(RunRequest(), resolved, choice).attempts

    assert (attempts(native, resolve()), attempts(program, resolve()), attempts(native, said)) == (3, 1, 1)


def test_omitted_options_do_not_change_the_configuration() -> None:
    assert resolve(options=RunRequest(text="x").configuration()) == resolve()
    assert all(isinstance(option, OptionValue) for option in RunRequest().configuration().values())
