"""A person and the native agent: questions at a terminal and in a pipe, the log, forks; replies are scripted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from test_cli_terminal import GO
from tests.conftest import git
from tests.crash_kit import wait_until
from tests.forked import ForkedPopen
from tests.integration.command_line import Completed
from tests.native_kit import FINISH, MENDS, NativeKit, call, edit, says, scripted
from tests.terminal_kit import COMMAND, Terminal

from chargehand.agents.recorded import call_step
from chargehand.cli.main import chargehand
from chargehand.core.state import MissionState
from chargehand.missions.transcript import acts_prefix, read_transcript
from chargehand.models.scripted_replies import ScriptedReply
from mission_kit import CHECK, FILES

PROJECT = f'[project]\nchecks = ["{CHECK}"]\n'
ASKS = (
    says("", call("bash", command="touch build.log; mkdir -p build; echo kept > build/x")),
    says("", call("ask", question="Which way?", options=["to the left", "to the right"])),
    says("", call("bash", command="cat build/x; rm build.log")),
    *MENDS,
)
EVIL = "\x1b]0;evil\x07\x1b[2Jseen\x9b31m\u202eesrever"
"""Text that sets a title, clears the screen, sets colours, and reverses the text after it."""
WORDS = (*GO, "mend add()", "--model", "scripted")


class TerminalKit(NativeKit):
    """A person with a scripted model, at a terminal and in pipes."""

    def __init__(self, place: Path, files: Mapping[str, str] = FILES, *, project: str = PROJECT) -> None:
        super().__init__(place, {**files, "chargehand.toml": project})
        self.terminals: list[Terminal] = []
        names = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
        self.environ |= {"LANG": "C.UTF-8", "OLLAMA_HOST": "127.0.0.1:1", **names}

    def script(self, *replies: ScriptedReply, name: str = "scripted", **keys: Any) -> None:
        """Configure a model that gives these replies in its first attempt, and then finishes."""
        self.model(name, scripted(replies, (FINISH,), (FINISH,)), **keys)

    def terminal(self, *words: str) -> Terminal:
        """Run the program on a terminal."""
        shown = Terminal((*COMMAND, *words), cwd=self.repository, environment=self.environ)
        self.terminals.append(shown)
        return shown

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the program in a separate process."""
        return ForkedPopen(
            [*COMMAND, *words],
            cwd=self.repository,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def say(self, *words: str) -> Completed:
        """Run the program as in a pipe to its end."""
        with contextlib.chdir(self.repository):
            done = CliRunner(env={"XDG_CONFIG_HOME": None, **self.environ}).invoke(chargehand, words)
        return Completed(code=done.exit_code, stdout=done.stdout, stderr=done.stderr)

    def asked(self) -> MissionState:
        """Return a mission whose agent asked something and waits."""
        self.script(*ASKS)
        state = self.native()
        assert state.status == "waiting", state.reasons
        return state

    def done(self) -> MissionState:
        """Return a mission that was promoted."""
        self.script(*MENDS, FINISH)
        state = self.native()
        assert state.status == "promoted", state.reasons
        return state

    def state(self, mission: str | None = None) -> MissionState:
        """Return the state of a mission, the newest by default."""
        with self.opened() as app:
            return app.mission_reader.state(mission or app.store.log.missions()[-1].id)

    def error(self, *words: str, code: int = 2) -> dict[str, str]:
        """Run the program, which must fail with a hint; return the error."""
        result = self.say("--json", *words)
        assert (result.code, result.stdout) == (code, ""), result
        assert result.error["hint"], result
        return result.error

    def workers(self) -> Sequence[str]:
        """Return the living workers."""
        with self.opened() as app:
            return [member.id for member in app.workers.members()]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[TerminalKit]:
    made = TerminalKit(tmp_path)
    yield made
    for shown in made.terminals:
        shown.close()
    wait_until(lambda: not made.workers())  # a worker started by an answer ends by itself


@pytest.mark.needs_bwrap
class TestQuestions:
    def test_questions_are_answered_at_the_terminal_and_the_run_continues(self, kit: TerminalKit) -> None:
        again = says("", call("ask", question="How far?"))
        kit.script(*ASKS[:2], again, *ASKS[2:])
        shown = kit.terminal(*WORDS)
        shown.until("(a number, or your own words; leave empty to answer later)")
        for part in ("The agent asks:", "Which way?", "  1  to the left", "  2  to the right"):
            assert part in shown.shown
        shown.say("2\n")
        shown.until("Your answer (empty: later)")
        assert "How far?" in shown.shown
        shown.say("over the hill\n")
        assert shown.end() == 0
        assert "promoted" in shown.shown
        state = kit.state()
        assert [question.answer for question in state.questions.values()] == ["to the right", "over the hill"]
        assert state.attempts[0].calls == len(ASKS) + 1  # no reply was requested twice
        assert git(kit.repository, "show", f"{state.exported}:calc/core.py").splitlines()[1] == "    return a + b"

    def test_an_empty_answer_leaves_the_mission_waiting(self, kit: TerminalKit) -> None:
        kit.script(*ASKS)
        shown = kit.terminal(*WORDS)
        shown.until("later)")
        shown.say("\n")
        assert shown.end() == 3
        state = kit.state()
        assert state.status == "waiting"
        assert f"chargehand mission answer {state.id}" in shown.shown
        assert "mission promote" not in shown.shown  # nothing can be promoted yet

    def test_questions_are_not_asked_with_yes(self, kit: TerminalKit) -> None:
        kit.script(*ASKS)
        shown = kit.terminal(*WORDS, "--yes")
        assert shown.end() == 3
        assert "Your answer" not in shown.shown
        assert "Which way?" in shown.shown

    def test_the_question_is_in_the_json_result_and_a_worker_resumes_on_answer(self, kit: TerminalKit) -> None:
        kit.script(*ASKS)
        result = kit.say("--json", *WORDS)
        assert (result.code, result.document["status"]) == (3, "waiting"), result
        assert result.document["reasons"] == [{"code": "question", "message": "Which way?"}]
        assert result.document["question"]["options"] == ["to the left", "to the right"]
        mission = result.document["mission"]
        question = kit.say("mission", "answer", mission)
        assert question.code == 3
        assert question.stdout.splitlines()[1:4] == ["Which way?", "  1  to the left", "  2  to the right"]
        with kit.start("mission", "answer", mission, "1") as answering:
            assert answering.wait() == 0
        with kit.start("mission", "watch", mission) as watching:  # a worker was started for it
            assert watching.wait() == 0
        state = kit.state(mission)
        assert state.status == "promoted", state.reasons
        assert [question.answer for question in state.questions.values()] == ["to the left"]
        assert state.attempts[0].calls == len(ASKS)

    def test_whoever_asks_may_be_killed_at_the_question_and_the_worker_after_the_answer(
        self, kit: TerminalKit
    ) -> None:
        slow = replace(ASKS[2], delay=60.0)
        kit.script(*ASKS[:2], slow, *ASKS[3:])
        shown = kit.terminal(*WORDS)
        shown.until("later)")
        os.kill(shown.process_id, signal.SIGKILL)
        assert shown.end() == -signal.SIGKILL
        mission = kit.state().id
        with kit.opened() as app:
            app.steering.answer(mission, "to the left")
        with kit.start("worker") as worker:
            wait_until(lambda: acts_prefix(1) + call_step(2, 0) in kit.state(mission).steps)
            worker.kill()
        kit.script(*ASKS)
        with kit.start("worker", "--until-idle") as another:
            assert another.wait() == 0
        state = kit.state(mission)
        assert state.status == "promoted", state.reasons
        assert [question.answer for question in state.questions.values()] == ["to the left"]
        with kit.opened() as app:
            result = [line.text for line in read_transcript(app.store, state) if line.tool == "ask"]
        assert len(result) == 2
        assert "to the left" in result[1]

    def test_a_second_answer_is_refused(self, kit: TerminalKit) -> None:
        state = kit.asked()
        for empty in ("", "  "):
            assert kit.error("mission", "answer", state.id, empty)["code"] == "usage"
        with kit.opened() as app:
            app.steering.answer(state.id, "to the left")
        for words in (("to the right",), ()):
            error = kit.error("mission", "answer", state.id, *words, code=1)
            assert error["code"] == "question_answered"
            assert "to the left" in error["message"]
            assert state.id in error["hint"]
        assert [question.answer for question in kit.state(state.id).questions.values()] == ["to the left"]


@pytest.mark.needs_bwrap
class TestPromotion:
    """A project without a detected check, whose configuration does not say that it has no checks."""

    AGENT = ("run", "mend", "--agent", "command:sed -i s/a/b/ f.txt")

    @pytest.mark.parametrize(("result", "code", "status"), [("y", 0, "promoted"), ("n", 3, "waiting")])
    def test_a_result_without_checks_is_offered_for_promotion(
        self, place: TerminalKit, result: str, code: int, status: str
    ) -> None:
        shown = place.terminal(*self.AGENT)
        shown.until("Promote it? [y/N]")
        before = shown.shown.partition("This needs a person")[0]
        assert "checks" in " ".join(before.splitlines()[-4:])  # why it is asked
        assert "chargehand mission diff m-" in before.splitlines()[-1]
        shown.say(f"{result}\n")
        assert shown.end() == code
        state = place.state()
        assert state.status == status
        assert (state.exported is not None) == (result == "y")
        if result == "n":
            assert f"chargehand mission promote {state.id}" in shown.shown

    def test_promotion_is_not_offered_with_yes(self, place: TerminalKit) -> None:
        shown = place.terminal(*self.AGENT, "--yes")
        assert shown.end() == 3
        assert "Promote it?" not in shown.shown
        assert place.state().status == "waiting"

    @pytest.fixture
    def place(self, tmp_path: Path) -> TerminalKit:
        return TerminalKit(tmp_path, {"f.txt": "aaa\n"}, project="")


class TestTheChoice:
    def test_a_run_without_any_model_shows_how_to_set_one_up(self, kit: TerminalKit) -> None:
        kit.environ["PATH"] = "/usr/bin:/bin"
        result = kit.say("run", "mend")
        first, *ways = result.stderr.splitlines()
        assert (result.code, result.stdout) == (2, "")
        assert first == "error: no model is set up"
        assert ways[0] == "hint: export ANTHROPIC_API_KEY or OPENAI_API_KEY, or run: chargehand model add"
        assert '--agent "command:PROGRAM ARG"' in ways[1]
        with kit.opened() as app:
            assert list(app.store.log.missions()) == []

    @pytest.mark.needs_bwrap
    def test_the_only_configured_model_is_used_with_a_reason(self, kit: TerminalKit) -> None:
        kit.script(*MENDS)
        result = kit.say("run", "mend")
        assert result.code == 0, result
        assert "agent     native (scripted, the only model configured)" in result.stdout.splitlines()
        assert "model     scripted" in result.stdout.splitlines()
        state = kit.state()
        assert (state.request.model, state.request.why) == ("scripted", "scripted, the only model configured")


@pytest.mark.needs_bwrap
class TestTheLog:
    def test_events_and_the_conversation_read_well(self, kit: TerminalKit) -> None:
        kit.script(says("I look\nat it", call("bash", command="echo one; echo two")), *MENDS)
        state = kit.native()
        log = kit.say("mission", "log", state.id).stdout
        for line in ("reply 1: I look [bash", "model scripted (1,000 in, 100 out, 0.0110 USD)", "  -> "):
            assert line in log
        text = kit.say("mission", "log", state.id, "--transcript").stdout
        assert text.index("1  to the agent\n") < text.index("1.1  scripted\n    I look\n    at it\n")
        assert '1.1  scripted calls bash\n    {"command": "echo one; echo two"}\n' in text
        assert "1.1  result of bash\n    one\n    two\n" in text
        assert "1.3  scripted calls finish\n" in text
        result = kit.say("--json", "mission", "log", state.id, "--transcript")
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert {line["mission"] for line in lines} == {state.id}
        assert [(line["speaker"], line["reply"]) for line in lines][:4] == [
            ("person", ""),
            ("model", "1.1"),
            ("call", "1.1"),
            ("result", "1.1"),
        ]
        assert lines[2]["tool"] == lines[3]["tool"] == "bash"

    def test_control_characters_of_a_model_do_not_reach_the_terminal(self, kit: TerminalKit) -> None:
        kit.script(
            says(EVIL, call("bash", command=f"printf '%s' '{EVIL}'")),
            says("", call("ask", question=f"Which{EVIL}?", options=[f"left{EVIL}", "right"])),
            *MENDS,
        )
        shown = kit.terminal(*WORDS)
        shown.until("later)")
        shown.say("1\n")
        assert shown.end() == 0
        for words in (("log",), ("log", "--transcript"), ("show",)):
            other = kit.terminal("mission", *words, "last")
            assert other.end() == 0
            shown.raw += other.raw
        assert "esrever" in shown.raw
        for part in ("\x1b]0;evil", "\x1b[2J", "\x9b31m", "\u202e"):
            assert part not in shown.raw, repr(part)


@pytest.mark.needs_bwrap
class TestForks:
    def test_a_fork_continues_from_a_reply_with_another_model(self, kit: TerminalKit) -> None:
        kit.script(says("", edit("a - b", "a * b")), FINISH, name="other")
        state = kit.done()
        result = kit.say("--json", "mission", "fork", state.id, "--at", "1", "--model", "other")
        assert (result.code, result.document["status"]) == (1, "refused"), result
        forked = kit.state(result.document["mission"])
        assert (forked.forked_from, forked.attempts[0].model) == (state.id, "other")
        assert kit.state(state.id).status == "promoted"

    def test_an_edited_reply_replaces_the_recorded_reply(self, kit: TerminalKit) -> None:
        state = kit.done()
        in_words = kit.say("--json", "mission", "fork", state.id, "--at", "1.2", "--reply", "wait a moment")
        assert in_words.document["status"] == "promoted", in_words
        worse = {"text": "no", "tools": [{"name": "bash", "arguments": {"command": "echo x = >> calc/core.py"}}]}
        (kit.place / "reply.json").write_text(json.dumps(worse))
        from_file = kit.say(
            "--json", "mission", "fork", state.id, "--at", "1.1", "--reply", f"@{kit.place / 'reply.json'}"
        )
        assert from_file.document["status"] == "refused", from_file
        text = kit.say("mission", "log", from_file.document["mission"], "--transcript").stdout
        assert "echo x = >> calc/core.py" in text

    def test_an_invalid_fork_is_an_error(self, kit: TerminalKit) -> None:
        state = kit.done()
        bad = kit.place / "bad.json"
        bad.write_text('{"tools": [{"name": 5}]}')
        (kit.place / "latin").write_bytes(b"\xff")
        cases: list[tuple[str, str, str, int]] = [
            ("--at", "0", "usage", 2),
            ("--at", "one", "usage", 2),
            ("--at", "9", "not_found", 2),
            ("--at", "2.1", "not_found", 2),
            ("--reply", "{no json", "usage", 2),
            ("--reply", '{"tools": {}}', "usage", 2),
            ("--reply", '{"text": 5}', "usage", 2),
            ("--reply", f"@{bad}", "usage", 2),
            ("--reply", f"@{kit.place / 'nowhere'}", "not_found", 2),
            ("--reply", f"@{kit.place / 'latin'}", "not_found", 2),
            ("--reply", '{"a":' * 5000, "usage", 2),
            ("--model", "scriptet", "not_found", 2),
        ]
        known = [row.id for row in self.missions(kit)]
        for option, value, code, exit_code in cases:
            error = kit.error("mission", "fork", state.id, option, value, code=exit_code)
            assert error["code"] == code, (option, value, error)
        assert "1.1, 1.2" in kit.error("mission", "fork", state.id, "--at", "7")["hint"]
        assert "scripted" in kit.error("mission", "fork", state.id, "--model", "scriptet")["hint"]
        assert [row.id for row in self.missions(kit)] == known  # no mission was made

    def test_a_fork_asks_questions_at_the_terminal(self, kit: TerminalKit) -> None:
        state = kit.asked()
        shown = kit.terminal("mission", "fork", state.id, "--at", "2")
        shown.until("later)")
        shown.say("1\n")
        assert shown.end() == 0
        assert kit.state().forked_from == state.id
        assert [question.answer for question in kit.state().questions.values()] == ["to the left"]
        assert kit.state(state.id).status == "waiting"

    def test_a_program_s_mission_has_no_replies(self, kit: TerminalKit) -> None:
        state = kit.run("sed -i 's/a - b/a + b/' calc/core.py")
        assert kit.error("mission", "fork", state.id, code=1)["code"] == "not_forkable"

    @staticmethod
    def missions(kit: TerminalKit) -> Sequence[Any]:
        with kit.opened() as app:
            return app.store.log.missions()
