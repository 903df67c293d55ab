"""What a newcomer types works, or is answered by a sentence with a command that exists and does what is meant."""

from __future__ import annotations

import json
import re
import shlex

import click
import pytest
from click.testing import CliRunner

from chargehand.cli.main import chargehand
from chargehand.cli.terminal.commands import expand_words
from chargehand.cli.terminal.phrases import unknown_command

REQUEST = ("run", "TEXT")
# Each phrase, and the words of the command that the answer must name.
ANSWERED = {
    "fix the login bug": ("run", "fix the login bug"),
    "please fix it": ("run", "please fix it"),
    "fix": REQUEST,
    "stop the login page from failing": ("run", "stop the login page from failing"),
    "undo": ("mission", "rollback", "last"),
    "undo last": ("mission", "rollback", "last"),
    "revert last": ("mission", "rollback", "last"),
    "stop": ("mission", "cancel", "last"),
    "stop the mission": ("mission", "cancel", "last"),
    "abort": ("mission", "cancel", "last"),
    "mission stop": ("mission", "cancel", "last"),
    "what happened": ("mission", "show", "last"),
    "why": ("mission", "show", "last"),
    "logs": ("mission", "log", "last"),
    "history": ("mission", "log", "last"),
    "ls": ("mission", "list"),
    "ps": ("mission", "list"),
    "tasks": ("mission", "list"),
    "resume": ("mission", "resume", "last"),
    "rollback": ("mission", "rollback", "last"),
    "cost": ("stats",),
    "usage": ("stats",),
    "accept": ("mission", "promote", "last"),
    "approve last": ("mission", "promote", "last"),
    "reject": ("mission", "discard", "last"),
    "retry": ("mission", "continue", "last", "TEXT"),
    "review": ("mission", "diff", "last"),
    "login": ("model", "add"),
    "auth": ("model", "add"),
    "setup": ("init",),
    "install": ("doctor",),
    "start": REQUEST,
    "new": REQUEST,
    "dashboard": ("up",),
    "serve": ("up",),
    "clean": ("gc", "--dry-run"),
    "models": ("model", "list"),
    "agents": ("agent", "list"),
    "settings": ("config", "edit"),
    "test": ("exec", "--", "COMMAND"),
    "push": ("git", "push", "--mission", "last"),
    "pull": ("git", "fetch"),
    "plan": ("mission", "plan", "last"),
    "fork last": ("mission", "fork", "last"),
    "report": ("mission", "report", "last"),
    "backup": ("store", "backup", "DIRECTORY"),
    "chat": ("mission", "send", "last", "TEXT"),
}
# Programs other than this one do it.
OUTSIDE = {
    "update": "pip install --upgrade chargehand",
    "uninstall": "pip uninstall chargehand",
    "merge": "git merge BRANCH",
}
WORKING = ("--version", "version", "help run", "help mission promote", "-h", "help", "list --help")


def answer(phrase: str) -> str:
    done = CliRunner().invoke(chargehand, ["--json", *phrase.split()])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    hint: str = json.loads(done.stderr)["error"]["hint"]
    return hint


def parse(words: list[str]) -> None:
    """Parse a command line without running it; click raises for a wrong command, option or argument."""
    group, context = chargehand, click.Context(chargehand, info_name="chargehand")
    while True:
        _, command, words = group.resolve_command(context, words)
        assert command is not None
        if not isinstance(command, click.Group):
            break
        group, context = command, click.Context(command, info_name=command.name, parent=context)
    command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize(("phrase", "meant"), ANSWERED.items())
def test_a_phrase_is_answered_by_the_command_that_does_it(phrase: str, meant: tuple[str, ...]) -> None:
    lines = answer(phrase).splitlines()
    commands = [shlex.split(found[1]) for line in lines if (found := re.search(r": chargehand (.*)$", line))]
    assert list(meant) in [expand_words(words) for words in commands], lines
    for words in commands:
        if "URL" not in words:
            parse(expand_words(words))


@pytest.mark.parametrize(("phrase", "meant"), OUTSIDE.items())
def test_a_phrase_for_another_program_names_its_command(phrase: str, meant: str) -> None:
    assert answer(phrase).endswith(f": {meant}")


@pytest.mark.parametrize("phrase", WORKING)
def test_a_phrase_works(phrase: str) -> None:
    assert CliRunner().invoke(chargehand, phrase.split()).exit_code == 0


def test_a_command_that_does_not_exist_is_noticed_by_these_tests() -> None:
    with pytest.raises(click.UsageError):
        parse(["mission", "unpromote", "last"])
    with pytest.raises(click.UsageError):
        parse(["mission", "rollback", "last", "--no-such-option"])


def test_a_slip_of_the_keyboard_is_answered_by_the_command_next_to_it() -> None:
    assert "'doctor'" in answer("docter")
    assert "'mission promote'" in answer("mission promot last")
    assert answer("zebra") == "chargehand --help lists the commands"
    assert answer("mission zebra") == "chargehand mission --help lists the commands"


def test_a_word_with_another_meaning_is_not_taken_for_a_slip() -> None:
    assert "audit" not in unknown_command("quit", (), ("audit",))[1]
    assert "store" not in answer("history")
