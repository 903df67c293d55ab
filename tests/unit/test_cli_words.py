"""Words that people type: short forms of commands, help by topic, typos, and tasks without quotes."""

from __future__ import annotations

import json
import shlex

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from chargehand import __version__
from chargehand.cli.main import chargehand
from chargehand.cli.terminal.commands import COMMANDS, PLACES, SHORT, expand_words, quoted
from chargehand.cli.terminal.phrases import unknown_command

KNOWN = (*PLACES, *SHORT)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("show", "mission show"),
        ("status last", "mission show last"),
        ("--json list --all", "--json mission list --all"),
        ("--server https://list.example list", "--server https://list.example mission list"),
        ("version", "--version"),
        ("help", "--help"),
        ("help run", "run --help"),
        ("help rollback", "mission rollback --help"),
        ("help mission diff", "mission diff --help"),
        ("run list", "run list"),
        ("mission list", "mission list"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_short_words_stand_for_commands(typed: str, meant: str) -> None:
    assert expand_words(typed.split()) == meant.split()


@pytest.mark.parametrize("word", SHORT)
def test_a_short_word_is_a_command_of_missions(word: str) -> None:
    done = CliRunner().invoke(chargehand, [word, "--help"])
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: chargehand {' '.join(SHORT[word])} ")


def test_version_and_help_are_words() -> None:
    runner = CliRunner()
    assert runner.invoke(chargehand, ["version"]).output == f"chargehand {__version__}\n"
    assert json.loads(runner.invoke(chargehand, ["version", "--json"]).output) == {"version": __version__}
    assert runner.invoke(chargehand, ["help"]).output == runner.invoke(chargehand, ["--help"]).output


def test_the_list_of_commands_cuts_no_description() -> None:
    shown = CliRunner().invoke(chargehand, ["--help"], terminal_width=80).output
    assert "..." not in shown.partition("Options:")[2]
    assert max(map(len, shown.splitlines())) <= 80
    assert all(f"\n{task}:\n" in shown for task in COMMANDS)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["misson", "list"], "did you mean 'mission'?"),
        (["shwo"], "did you mean 'show'?"),
        (["runn", "fix it"], "did you mean 'run'?"),
        (["fix", "add", "in", "calc"], 'to give a task to an agent: chargehand run "fix add in calc"'),
        (["fix add in calc"], 'to give a task to an agent: chargehand run "fix add in calc"'),
        (["xyzzy"], "chargehand --help lists the commands"),
    ],
)
def test_an_unknown_word_is_answered_with_what_can_work(words: list[str], hint: str) -> None:
    done = CliRunner().invoke(chargehand, [*words, "--json"])
    assert done.exit_code == 2
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["hint"]) == ("usage", hint)
    assert repr(words[0]) in error["message"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("run fix add in calc", 'chargehand run "fix add in calc"'),
        ("run --agent command:true fix it", 'chargehand run "fix it"'),
        ("answer last go on", 'chargehand mission answer last "go on"'),
        ("send last use a set", 'chargehand mission send last "use a set"'),
        ("continue last and the empty list", 'chargehand mission continue last "and the empty list"'),
    ],
)
def test_a_text_without_quotes_is_explained(words: str, hint: str) -> None:
    done = CliRunner().invoke(chargehand, ["--json", *words.split()])
    assert done.exit_code == 2
    assert json.loads(done.stderr)["error"]["hint"] == f"put the text in quotes: {hint}"


def test_short_words_are_completed_with_their_options() -> None:
    complete = ShellComplete(chargehand, {}, "chargehand", "_CHARGEHAND_COMPLETE")
    assert {each.value for each in complete.get_completions([], "sh")} == {"show"}
    assert "--with-dependents" in {each.value for each in complete.get_completions(["rollback"], "--with")}


@given(st.text(min_size=1))
def test_a_quoted_text_is_one_word_of_a_shell(text: str) -> None:
    if "\0" not in text:
        assert shlex.split(quoted(text)) == [text]


@given(st.lists(st.text("abcdefgh-", min_size=1), max_size=5))
def test_expanding_changes_only_words_of_commands(words: list[str]) -> None:
    if not {"list", "help", "version", *SHORT} & set(words):
        assert expand_words(words) == words


@given(st.text(min_size=1), st.lists(st.text(), max_size=4))
def test_every_unknown_word_has_an_answer(word: str, others: list[str]) -> None:
    message, hint = unknown_command(word, others, KNOWN)
    assert repr(word) in message
    assert hint


def test_words_after_the_command_stay() -> None:
    @click.command()
    @click.argument("text")
    def echo(text: str) -> None:
        click.echo(text)

    assert CliRunner().invoke(echo, ["help"]).output == "help\n"
    assert expand_words(["run", "help"]) == ["run", "help"]
