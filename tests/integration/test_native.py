"""The native agent on real missions: only the model's replies are scripted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.integration.mission_kit import CHECK
from tests.native_kit import FINISH, GOOD, MENDS, ModelServer, NativeKit, call, edit, says, scripted

from chargehand.core.attempt_events import ModelCalled
from chargehand.core.errors import RefusedError
from chargehand.core.events import decode
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.redaction import Redactor
from chargehand.core.state import MissionState
from chargehand.missions.causes import mission_cause
from chargehand.missions.fork import ForkPoint, ReplyEdit, create_fork
from chargehand.missions.transcript import read_transcript
from chargehand.models.contract import ModelCall
from chargehand.models.recording import RecordingUpstream, RecordingWriter
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripts import Script

pytestmark = pytest.mark.needs_bwrap
ACCEPTANCE = "grep -rq docstring calc"


@pytest.fixture
def kit(tmp_path: Path) -> NativeKit:
    return NativeKit(tmp_path)


def texts(kit: NativeKit, mission: str, speaker: str) -> list[str]:
    with kit.opened() as app:
        return [
            line.text
            for line in read_transcript(app.store, app.mission_reader.state(mission))
            if line.speaker == speaker
        ]


def events(kit: NativeKit, mission: str, kind: type) -> list[Any]:
    with kit.opened() as app:
        found = [decode(line.type, line.payload) for line in app.store.log.read(mission) if line.payload]
    return [payload for payload in found if isinstance(payload, kind)]


def answer(kit: NativeKit, mission: str, text: str) -> MissionState:
    with kit.opened() as app:
        app.steering.answer(mission, text)
    return kit.work(mission)


class TestItsWork:
    def test_a_mended_tree_is_promoted_and_paid(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted(MENDS))
        state = kit.native()
        assert state.status == "promoted", state.reasons
        (attempt,) = state.attempts
        assert attempt.calls == 2
        assert attempt.cost_usd == pytest.approx(2 * 1100 * 10 / 1e6)
        assert attempt.cost_known
        mended = git(kit.repository, "show", "chargehand/mend-add:calc/core.py")
        assert mended.splitlines()[1] == "    return a + b"
        assert state.checkpoints[0].trigger == "action"

    def test_done_is_only_a_claim(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted((FINISH,), (FINISH,), (FINISH,)))
        state = kit.native()
        assert state.status == "refused"
        assert [reason.code for reason in state.reasons] == ["no_change"]
        assert len(state.attempts) == 3

    def test_red_comes_back_into_the_same_conversation(self, kit: NativeKit) -> None:
        second = (says("more", edit("def double(a):", "def double(a):  # docstring")), FINISH)
        kit.model("scripted", scripted(MENDS, second))
        state = kit.native(checks=(CHECK, ACCEPTANCE))
        assert state.status == "promoted", state.reasons
        assert [attempt.status for attempt in state.attempts] == ["refused", "succeeded"]
        told = texts(kit, state.id, "person")
        assert len(told) == 2
        assert "docstring" in told[1]
        assert "error_report" in told[1] or "checkpoint_violation" in told[1]

    def test_tools_see_neither_gateway_nor_token(self, kit: NativeKit) -> None:
        look = "ls /run/chargehand; echo variables $(env | grep -ci 'api_key\\|token\\|cht-')"
        kit.model("scripted", scripted((says("", call("bash", command=look)), *MENDS)))
        state = kit.native()
        (result, *_) = texts(kit, state.id, "result")
        assert "gateway" not in result
        assert "variables 0\n" in result

    def test_a_model_without_tools_is_served_in_text(self, kit: NativeKit) -> None:
        change = '{"path": "calc/core.py", "old": "a - b", "new": "a + b"}'
        write = f'```tool\n{{"name": "edit", "arguments": {change}}}\n```'
        done = '```tool\n{"name": "finish", "arguments": {"summary": "done", "evidence": []}}\n```'
        kit.model("scripted", scripted((says(write), says(done))), tools=False)
        state = kit.native()
        assert state.status == "promoted"
        with kit.opened() as app:
            tools = [(line.speaker, line.tool) for line in read_transcript(app.store, state) if line.tool]
        assert tools == [("call", "edit"), ("result", "edit"), ("call", "finish")]

    def test_two_calls_with_the_same_id_are_distinguished(self, kit: NativeKit) -> None:
        from msgspec.structs import replace

        twins = tuple(replace(one, id="call_1") for one in (edit(*GOOD), call("bash", command="true")))
        kit.model("scripted", scripted((says("", *twins), FINISH)))
        state = kit.native()
        assert state.status == "promoted"
        assert len(texts(kit, state.id, "result")) == 2


class TestMoney:
    def test_the_budget_ends_a_mission(self, kit: NativeKit) -> None:
        endless = [says("", call("bash", command=f"echo {number} > n")) for number in range(50)]
        kit.model("scripted", scripted(endless), max_output=200)
        kit.write("[limits]\nbudget_usd = 0.15")
        state = kit.native()
        assert state.status == "exhausted", state.reasons
        assert [reason.code for reason in state.reasons] == ["budget"]
        (attempt,) = state.attempts
        assert attempt.booked_usd <= 0.25
        with kit.opened() as app:
            assert app.store.spending.total(mission=state.id).booked_usd == pytest.approx(attempt.booked_usd)

    def test_an_unknown_price_is_refused(self, kit: NativeKit) -> None:
        kit.models["scripted"] = (
            '[models.scripted]\nprovider = "openai-compatible"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "x"'
        )
        kit.write()
        state = kit.native(attempts=1)
        assert state.status == "exhausted"
        assert [reason.code for reason in state.reasons] == ["price_unknown"]

    def test_the_books_agree(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted(MENDS))
        state = kit.native()
        called = events(kit, state.id, ModelCalled)
        assert sum(each.cost_usd for each in called) == pytest.approx(state.attempts[0].cost_usd)


class TestProviders:
    def test_an_unreachable_provider_asks_a_person_how_to_continue(self, kit: NativeKit) -> None:
        server = ModelServer(())
        with server.running() as address:
            kit.model("scripted", provider="openai-compatible", base_url=address, model="x")
            kit.model("other", scripted((), (), MENDS))
            state = kit.native(attempts=1)
            cause = mission_cause(state)
            assert (state.status, cause and (cause.code, cause.kind)) == ("waiting", ("provider_down", "provider"))
            assert [reason.code for reason in state.attempts[0].reasons] == ["model_failed"]
            assert state.open_question is not None
            assert state.open_question.options == ("try anyway", "use other")
            again = answer(kit, state.id, "try anyway")
        assert (again.status, len(again.attempts)) == ("waiting", 2), again.reasons
        done = answer(kit, state.id, "use other")
        assert (done.status, len(done.attempts)) == ("promoted", 3), done.reasons

    def test_a_request_with_a_patch_needs_no_model_if_the_provider_is_down(self, kit: NativeKit) -> None:
        patch = "\n".join(
            (
                "*** Begin Patch",
                "*** Update File: calc/core.py",
                "@@",
                "-    return a - b",
                "+    return a + b",
                "*** End Patch",
            )
        )
        with ModelServer(()).running() as address:
            kit.model("scripted", provider="openai-compatible", base_url=address, model="x")
            state = kit.native(attempts=1, text=f"Mend it like this:\n{patch}")
            assert [attempt.agent for attempt in state.attempts] == ["native", "patch:"]
            assert state.status == "promoted", state.reasons
            worse = patch.replace("a + b", "a * b")
            assert kit.native(attempts=1, text=worse).status == "refused", "the verdict decides as always"

    def test_another_model_takes_over(self, kit: NativeKit) -> None:
        kit.model("down", scripted((says("", fault="500"),) * 9))
        kit.model("scripted", scripted((says("the first call of the attempt went elsewhere"), *MENDS)))
        state = kit.native(model="down", fallback=("scripted",), attempts=1)
        assert state.status == "promoted"
        assert state.attempts[0].model == "scripted"

    def test_a_reply_that_breaks_off_is_asked_for_again(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted((says("half of a", fault="cut"), *MENDS)))
        state = kit.native(attempts=1)
        assert state.status == "promoted", state.reasons
        (attempt,) = state.attempts
        assert attempt.calls == 3
        assert not attempt.cost_known  # the half reply's cost is unknown; its reserve stays booked
        assert attempt.booked_usd > 2 * 1100 * 10 / 1e6

    def test_halves_of_characters_do_no_harm(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted((says("half \ud83d", call("bash", command="echo \ude00")), *MENDS)))
        assert kit.native(attempts=1).status == "promoted"

    def test_a_fallback_with_more_room_takes_over(self, kit: NativeKit) -> None:
        kit.model("small", scripted((says("never asked"),)), context=100)
        kit.model("scripted", scripted(MENDS))
        assert kit.native(model="small", fallback=("scripted",), attempts=1).status == "promoted"

    def test_both_dialects_do_the_same_work(self, kit: NativeKit) -> None:
        looks = says("I look", call("read", path="calc/core.py"), call("bash", command="ls"))
        server = ModelServer((looks, *MENDS), "anthropic")
        with server.running() as address:
            kit.model("scripted", provider="anthropic-compatible", base_url=address, model="words")
            state = kit.native(attempts=1)
        assert state.status == "promoted", state.reasons
        assert server.asked == [1, 2, 3]
        assert state.attempts[0].cost_known

    def test_a_conversation_moves_between_dialects(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted((says("I look", call("bash", command="ls")), says("", fault="500"))))
        server = ModelServer((says("never asked"), *MENDS), "anthropic")
        with server.running() as address:
            kit.model("other", provider="anthropic-compatible", base_url=address, model="words")
            state = kit.native(fallback=("other",), attempts=1)
        assert state.status == "promoted", state.reasons
        assert server.asked == [2, 3]


class TestLoops:
    def test_the_ladder_ends_with_a_question(self, kit: NativeKit) -> None:
        same = says("", call("bash", command="false"))
        wrong = says("", edit("no such text", "x"))
        worse = says("", call("bash", command="echo x >> wrong.txt; false"))
        loop = [*[same] * 4, *[worse] * 12, *[wrong] * 20]
        kit.model("scripted", scripted(loop))
        state = kit.native()
        assert state.status == "waiting", state.reasons
        assert [reason.code for reason in state.reasons] == ["question"]
        assert state.open_question is not None
        _, *notes = texts(kit, state.id, "person")
        assert "going in circles" in notes[0]
        assert "set back" not in notes[0]
        assert "The files were set back" in notes[1]
        assert len(notes) == 2  # the next question to a person is not a note
        last = state.checkpoints[-1]
        base = git(kit.repository, "rev-parse", "HEAD^{tree}").strip()
        assert (last.trigger, last.tree) == ("rolled back", base)


class TestQuestions:
    ASKS = (
        says("", call("bash", command="echo kept > build.log; mkdir -p build; echo ignored > build/x")),
        says("", call("ask", question="Which way?", options=["left", "right"])),
        says("", call("bash", command="cat build.log build/x; rm build.log")),
        *MENDS,
    )

    def test_an_answer_resumes_the_mission_where_it_stopped(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted(self.ASKS))
        state = kit.native()
        assert state.status == "waiting"
        assert state.open_question is not None
        assert state.open_question.text == "Which way?"
        with kit.opened() as app:
            assert app.mission_reader.state(state.id).status == "waiting"
            answered = app.steering.answer(state.id, "left")
            assert answered.status == "planned"
            with pytest.raises(RefusedError, match="was answered already"):
                app.steering.answer(state.id, "right")
        state = kit.work(state.id)
        assert state.status == "promoted", state.reasons
        results = texts(kit, state.id, "result")
        assert "left" in results[1]
        assert "kept" in results[2]
        assert "ignored" in results[2]  # ignored files are as before the question
        assert len(events(kit, state.id, QuestionAsked)) == 1
        assert state.attempts[0].calls == 5  # no model call was repeated

    def test_an_ended_mission_takes_no_answer(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted(self.ASKS))
        state = kit.native()
        with kit.opened() as app:
            cancelled = app.steering.cancel(state.id)
            assert [attempt.status for attempt in cancelled.attempts] == ["cancelled"]
            assert cancelled.attempts[0].cost_usd == pytest.approx(2 * 1100 * 10 / 1e6)
            with pytest.raises(RefusedError, match="has no open question"):
                app.steering.answer(state.id, "left")
            assert not app.store.log.get(state.id).runnable

    def test_a_message_of_a_person_reaches_the_next_reply(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted((says("", call("bash", command=f"sleep {MARK}")), *MENDS)))

        async def meanwhile(app: Any, mission: str) -> None:
            await asyncio.to_thread(wait_until, sleepers)
            await app.controls.take(
                {"mission": mission, "order": "send", "identity": "os:me", "text": "mind the gap"}
            )
            assert wake()

        wanted = {"agent": "native", "model": "scripted", "only_checks": (CHECK,), "attempts": 1}
        state = kit.work(lambda session: kit.create(session, **wanted), meanwhile)
        assert state.status == "promoted"
        assert any("mind the gap" in text for text in texts(kit, state.id, "person"))


class TestForks:
    def test_each_reply_can_be_taken_again(self, kit: NativeKit) -> None:
        steps = (says("", call("bash", command="echo one > one.txt")), *MENDS)
        kit.model("scripted", scripted(steps))
        kit.model("other", scripted((says(""), says("", call("bash", command="rm one.txt")), MENDS[0], FINISH)))
        state = kit.native()
        assert state.status == "promoted"
        for turn in (1, 2, 3):
            forked = self.fork(kit, state.id, turn)
            again = kit.work(forked)
            assert again.tree == state.tree
            assert again.attempts[0].calls == 4 - turn  # earlier calls are not paid again

    def test_another_model_or_an_edited_reply_changes_the_end(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted(MENDS))
        worse = says("", edit("a - b", "a * b"))
        kit.model("other", scripted((worse, FINISH), (FINISH,), (FINISH,)))
        state = kit.native()
        refused = kit.work(self.fork(kit, state.id, 1, model="other"))
        assert refused.status == "refused"
        assert refused.forked_from == state.id
        early = ReplyEdit(
            text="enough", tools=({"name": "finish", "arguments": {"summary": "no", "evidence": []}},)
        )
        nothing = kit.work(self.fork(kit, state.id, 2, edit=ReplyEdit(text="", tools=(worse_call(),))))
        assert nothing.checkpoints[-1].tree != state.checkpoints[-1].tree
        ended = kit.work(self.fork(kit, state.id, 1, edit=early))
        assert ended.attempts[0].calls == 0
        assert [reason.code for reason in ended.attempts[0].reasons] == ["no_change"]

    def test_a_fork_replays_calls_written_as_text(self, kit: NativeKit) -> None:
        change = '{"path": "calc/core.py", "old": "a - b", "new": "a + b"}'
        write = f'```tool\n{{"name": "edit", "arguments": {change}}}\n```'
        kit.model("scripted", scripted((says(write), says("I stop here"), *[says("and here")] * 40)), tools=False)
        kit.model("other", scripted((says(""), FINISH)))
        state = kit.native(attempts=1)
        assert (state.status, state.attempts[0].status) == ("promoted", "succeeded"), "it talks to itself"
        again = kit.work(self.fork(kit, state.id, 2, model="other"))
        assert again.status == "promoted", again.reasons

    def test_a_fork_starts_with_unspent_time_and_budget(self, kit: NativeKit) -> None:
        kit.model("scripted", scripted(MENDS))
        state = kit.native(attempts=1)
        with kit.opened() as app:
            forked = app.mission_reader.state(self.fork(kit, state.id, 2))
        assert forked.seconds_of() == 0.0
        assert sum(attempt.booked_usd for attempt in forked.attempts) == 0.0

    @staticmethod
    def fork(kit: NativeKit, mission: str, turn: int, **more: Any) -> str:
        with kit.opened() as app:
            depot = app.projects.depot(app.projects.find())
            return create_fork(app.store, depot, mission, ForkPoint(attempt=1, turn=turn), **more)


def worse_call() -> dict[str, Any]:
    return {"name": "bash", "arguments": {"command": "echo worse >> calc/core.py"}}


def test_a_script_that_does_not_fit_says_so(kit: NativeKit) -> None:
    kit.model("scripted", Script(lines=()))
    state = kit.native(attempts=1)
    assert state.status == "waiting"
    assert "no line for attempt 1, turn 1" in state.reasons[0].message


def test_a_recording_answers_as_a_script_does(kit: NativeKit) -> None:
    path = kit.place / "recording.jsonl"

    async def record() -> None:
        writer = RecordingWriter(path)
        for turn in (1, 2):
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            upstream = ScriptUpstream(scripted(MENDS), attempts={"a": 1})
            call_made = ModelCall(id=f"c-{turn}", dialect="openai", body=body, attempt="a", turn=turn)
            reply = await RecordingUpstream(upstream, writer, Redactor()).send(call_made)
            async for _ in reply.chunks:
                pass
        writer.close()

    asyncio.run(record())
    kit.model("scripted", provider="script", script=str(path))
    assert kit.native(attempts=1).status == "promoted"
