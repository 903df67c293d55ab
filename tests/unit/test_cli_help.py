"""Help, completion and version: complete, the same everywhere, and instant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from chargehand import __version__
from chargehand.cli.main import chargehand
from chargehand.cli.terminal.commands import PLACES
from chargehand.core.mission_events import MissionCreated
from chargehand.core.records import MissionRequest

HEAVY = (
    "sqlalchemy",
    "rich",
    "pygit2",
    "msgspec",
    "httpx",
    "alembic",
    "asyncio",
    "numpy",
    "chargehand.core",
    "chargehand.app",
)


def commands(
    group: click.Group = chargehand, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands())


@pytest.mark.parametrize(("path", "command"), COMMANDS.items(), ids=map(" ".join, COMMANDS))
def test_help_fits_eighty_columns(path: tuple[str, ...], command: click.Command) -> None:
    with click.Context(command, info_name=" ".join(("chargehand", *path)), terminal_width=80) as context:
        lines = command.get_help(context).splitlines()
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("group", sorted({path[0] for path in COMMANDS if len(path) > 1}))
def test_a_group_lists_its_commands_with_whole_sentences(group: str) -> None:
    listed = CliRunner().invoke(chargehand, [group, "--help"], standalone_mode=False).output
    assert "Commands:" in listed
    assert "..." not in listed.partition("Commands:")[2]


@pytest.mark.parametrize(("name", "sentence"), [(name, place[2]) for name, place in PLACES.items()])
def test_the_list_of_commands_says_the_first_sentence_of_each_help(name: str, sentence: str) -> None:
    command = chargehand.get_command(click.Context(chargehand), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == sentence


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp437", "utf-8"])
def test_help_can_be_written_in_any_encoding(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chargehand", "exec", "--help"],
        env={"PYTHONIOENCODING": encoding, "PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    usage = done.stdout.decode("utf-8" if encoding == "ascii" else encoding).splitlines()[0]
    assert usage.endswith("CMD..." if encoding in ("latin-1", "cp437") else "CMD…")


def test_the_set_of_commands_is_complete() -> None:
    groups = {
        "mission": "forecast list show plan report watch diff log pause resume send answer continue fork cancel "
        "rollback promote discard",
        "bench": "check run resume list show compare export learn",
        "gateway": "serve record replay",
        "secret": "set list remove check rotate explain",
        "checkpoint": "list show diff restore undo",
        "artifact": "list show",
        "agent": "list probe",
        "role": "list show path",
        "team": "list",
        "model": "list add probe show stats invoice",
        "policy": "show test why allow",
        "project": "list show move setup trust untrust log",
        "sandbox": "setup",
        "audit": "verify export provenance",
        "git": "fetch merge rebase commit push",
        "action": "list show log cancel answer run",
        "config": "show get set unset list path edit",
        "decision": "why list replay reliability forecasts rollouts look",
        "forge": "login logout list test watch",
        "knowledge": "import list show query update export remove",
        "memory": "list show add share forget propose",
        "library": "add update list search remove",
        "branch": "clean",
        "alerts": "list test",
        "user": "add list role password disable enable remove reset-factors link unlink log",
        "token": "create list revoke",
        "store": "check backup restore rebuild",
    }
    expected = {(group, name) for group, names in groups.items() for name in names.split()}
    expected |= {("project", "hook", name) for name in ("install", "remove")}
    expected |= {("forge", "hook", name) for name in ("add", "remove", "list")}
    expected |= {
        (name,)
        for name in [
            "init",
            "doctor",
            "demo",
            "run",
            "exec",
            "format",
            "worker",
            "mcp",
            "up",
            "gc",
            "stats",
            "map",
            "feedback",
            "completion",
            "login",
            "logout",
        ]
    }
    assert set(COMMANDS) == expected


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_speaks_json(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert command.help
    assert [option for option in options if "--json" in option.opts]
    assert all(option.help for option in options if not option.hidden)
    shown = CliRunner().invoke(chargehand, [*path, "--help"])
    assert shown.exit_code == 0
    assert "--json" in shown.output


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["mission", "list", "--help"], ["--version"]])
def test_help_imports_no_heavy_modules(words: list[str]) -> None:
    script = (
        "import sys\nfrom chargehand.cli.main import chargehand\n"
        f"try:\n    chargehand.main({words!r})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_completion_works_without_heavy_modules() -> None:
    script = (
        "import sys\nfrom chargehand.cli.main import chargehand\n"
        "try:\n    chargehand.main([])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    environment = os.environ | {
        "_CHARGEHAND_COMPLETE": "bash_complete",
        "COMP_WORDS": "chargehand mission ro",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "plain,rollback"
    assert done.stderr.strip() == "[]"


def test_arguments_of_missions_secrets_and_artifacts_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chargehand.app.composition import App

    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # outside of a repository all missions are here
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")

    def complete(*words: str, incomplete: str = "") -> list[str]:
        shell = ShellComplete(chargehand, {}, "chargehand", "_CHARGEHAND_COMPLETE")
        return [each.value for each in shell.get_completions([*words], incomplete)]

    wanted = {("secret", "remove"): "SHOP_KEY", ("secret", "set"): "SHOP_KEY", ("artifact", "show"): ""}
    audit = (("artifact", "list"), ("audit", "verify"), ("audit", "export"), ("audit", "provenance"))
    wanted |= dict.fromkeys(audit, "last")
    assert [complete(*words) for words in wanted] == [[]] * len(wanted)
    with App.open() as app:
        app.credentials.set("SHOP_KEY", "x")
        request = MissionRequest(text="mend", agent="command:true", command=("true",), slug="mend")
        app.store.log.append("m-1", MissionCreated(project="p", repository="/r", request=request))
        wanted["artifact", "show"] = app.store.artifacts.put(b"content", mission="m-1", kind="output")
    assert {words: complete(*words)[0] for words in wanted} == wanted
    assert complete("artifact", "show", incomplete="zz") == []


def test_version_as_text_and_as_a_document() -> None:
    runner = CliRunner()
    assert runner.invoke(chargehand, ["--version"]).output == f"chargehand {__version__}\n"
    for words in (["--version", "--json"], ["--json", "--version"]):
        assert json.loads(runner.invoke(chargehand, words).stdout) == {"version": __version__}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    runner = CliRunner()
    script = runner.invoke(chargehand, ["completion", shell])
    assert script.exit_code == 0
    assert "_CHARGEHAND_COMPLETE" in script.stdout
    document = json.loads(runner.invoke(chargehand, ["completion", shell, "--json"]).stdout)
    assert document["shell"] == shell
    assert document["script"].strip() == script.stdout.strip()


def test_no_command_shows_the_help_and_is_wrong() -> None:
    done = CliRunner().invoke(chargehand, [])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Usage: chargehand" in done.stderr
