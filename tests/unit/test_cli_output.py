"""Output of commands: complete, and safe to show; a mission's result with its keys and exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.app.missions import resolve_option
from chargehand.cli.terminal.lines import option_lines
from chargehand.cli.terminal.output import Output, local_time
from chargehand.cli.terminal.rendering import (
    exit_code,
    money_text,
    show_details,
    show_result,
)
from chargehand.core.attempt_events import AttemptStarted, ModelCalled
from chargehand.core.events import Event, Payload, encode
from chargehand.core.fold import apply
from chargehand.core.mission_events import MissionCreated
from chargehand.core.plan_events import PlanProgress
from chargehand.core.records import (
    Base,
    Checkpoint,
    CheckResult,
    Export,
    MissionRequest,
    Reason,
    Reverted,
    Verdict,
)
from chargehand.core.state import AttemptState, MissionState, Question
from chargehand.core.text import printable
from chargehand.reports.documents import mission_details, mission_document, money_document, to_json
from chargehand.reports.outcome import FailingTestDocument, FailureDocument, mission_cost, next_commands


def test_documents_only_with_json_and_text_only_without(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (True, False):
        out = Output(as_json=as_json)
        out.document({"a": 1})
        out.text("text")
        out.table(("HEAD",), [("cell",)])
        out.notice("not shown where nobody watches")
    read = capsys.readouterr()
    assert read.out == '{"a": 1}\ntext\nHEAD\ncell\n'
    assert read.err == ""


def test_columns_are_aligned_and_cells_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table(("A", "LONGER"), [("one\ntwo", 1), ("\x1b[31mx", "y")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["A           LONGER", "one\\x0atwo  1", "\\x1b[31mx   y"]


class Terminal(io.StringIO):
    """A terminal that records its input."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [*range(1, 13), 40])
def test_a_terminal_may_be_narrower_than_the_indentation(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for line in ("            refused 3 times: example.org", "a  b c  d", "\t\tx y", "   ", "  " + 50 * "x"):
        terminal = Terminal()
        with contextlib.redirect_stdout(terminal):
            Output(as_json=False).text(line)
            Output(as_json=False).table(("NAME", "WHAT"), [(line, "a b")])
        assert terminal.getvalue().split()[: len(line.split())] == line.split()


def test_text_of_others_is_stripped_of_controls(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).text("a\x1b[2Jb\x07\N{RIGHT-TO-LEFT OVERRIDE}c")
    assert capsys.readouterr().out == "abc\n"


def test_a_pipe_gets_the_very_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    content = b"\x1b[31m\xff\x00\r\n"
    script = (
        "import sys; from chargehand.cli.terminal.output import Output; "
        f"Output(as_json=False).raw({content!r}); Output(as_json=False).raw({content!r}, err=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (content, content)


def test_records_become_plain_documents() -> None:
    assert to_json({"reasons": (Reason(code="a", message="b"),)}) == {"reasons": [{"code": "a", "message": "b"}]}


def test_paths_that_are_not_utf8_are_shown() -> None:
    assert to_json({"path": os.fsdecode(b"a\xff")}) == {"path": "a\\xff"}


@given(
    st.recursive(
        st.text(st.characters()) | st.none() | st.integers(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_every_document_can_be_written_and_read(value: object) -> None:
    written = json.dumps(to_json(value))
    assert json.loads(written.encode("utf-8")) == to_json(value)
    written.encode("ascii")


@given(st.text(st.characters()))
def test_text_never_carries_an_escape(text: str) -> None:
    assert "\x1b" not in printable(text)


def test_output_to_a_closed_pipe_is_ignored() -> None:
    script = (
        "import os, sys\nfrom chargehand.cli.terminal.output import Output\n"
        "out = Output(as_json=False)\n"
        "for _ in range(20000): out.text('x' * 100)\n"
        "print(out.closed, file=sys.stderr)"
    )
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}', sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "True\n"


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "12:00 UTC"), ("Asia/Kathmandu", "17:45 +0545"), ("America/New_York", "07:00 EST")]
)
def test_a_time_is_shown_in_the_local_zone(monkeypatch: pytest.MonkeyPatch, zone: str, shown: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert local_time("2026-01-31T12:00:00+00:00") == f"2026-01-31 {shown}"
    finally:
        monkeypatch.undo()
        time.tzset()


KEYS = {
    "mission", "status", "branch", "commit", "base", "export", "checkpoints", "reverted", "unread", "attempts",
    "cost_usd", "cost_known", "seconds", "reasons", "cause", "question", "role", "report",
    "directory", "rolled_back", "failures", "next", "parent", "task", "tasks",
    "warnings", "known_failures", "flaky",
}  # fmt: skip
REQUEST = MissionRequest(text="do it", agent="a", command=("true",), slug="do-it")
DONE = Export(ref="refs/heads/chargehand/do-it", state="done")


def attempt(cost: float | None = 0.0, known: bool = True) -> AttemptState:
    return AttemptState(
        id="a-1", number=1, agent="a", workspace="w-1", status="succeeded", cost_usd=cost, cost_known=known
    )


def state(**changes: object) -> MissionState:
    return MissionState(id="m-1", request=REQUEST, **changes)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (state(status="promoted", commit="c", export=DONE), 0),
        (state(status="promoted", commit="c", export=replace(DONE, state="blocked")), 3),
        (state(status="promoted", commit="c", export=replace(DONE, state="pending")), 3),
        (state(status="promoted", commit="c"), 3),
        (state(status="promoted"), 0),  # no change was needed
        (state(status="refused"), 1),
        (state(status="failed"), 1),
        (state(status="cancelled"), 1),
        (state(status="discarded"), 1),
        (state(status="waiting"), 3),
        (state(status="paused"), 3),
        (state(status="exhausted"), 4),
    ],
)
def test_exit_codes(given: MissionState, code: int) -> None:
    assert exit_code(given) == code


def test_an_apply_that_was_asked_for_has_to_be_done() -> None:
    asked = state(status="promoted", commit="c", export=DONE)
    asked.request = replace(REQUEST, apply=True)
    assert exit_code(asked) == 3
    asked.applied = Export(ref="refs/heads/main", state="blocked", reason="dirty")
    assert exit_code(asked) == 3
    asked.applied = Export(ref="refs/heads/main", state="done")
    assert exit_code(asked) == 0


def test_the_result_has_exactly_the_documented_keys() -> None:
    document = to_json(mission_document(state(attempts=[attempt()])))
    assert set(document) == KEYS
    assert set(document["attempts"][0]) == {
        "agent", "model", "status", "verdict", "cost_usd", "cost_known", "money", "seconds", "cause", "usage"
    }  # fmt: skip
    assert set(to_json(mission_details(state(), [], None))) > KEYS


def test_unknown_values_are_null() -> None:
    document = to_json(mission_document(state()))
    for key in ("branch", "commit", "base", "export", "seconds"):
        assert document[key] is None, key


def test_only_failed_missions_and_attempts_have_a_cause() -> None:
    wrong = (Reason(code="sandbox_died", message="it ended while in use"),)
    failed = state(status="failed", reasons=wrong, attempts=[attempt(), replace(attempt(), status="lost")])
    document = to_json(mission_document(failed))
    assert set(document["cause"]) == {"class", "code", "remedy"}
    assert (document["cause"]["class"], document["cause"]["code"]) == ("engine", "sandbox_died")
    assert document["attempts"][0]["cause"] is None
    assert document["attempts"][1]["cause"]["code"] == "worker_lost"
    assert to_json(mission_details(failed, [], None))["attempts"][1]["cause"]["class"] == "engine"
    for status in ("running", "paused", "promoted"):
        assert mission_document(state(status=status, reasons=wrong)).cause is None


def test_an_unknown_cost_makes_the_sum_unknown() -> None:
    assert mission_cost(state(attempts=[attempt(0.25), attempt(0.5)])) == (0.75, True)
    assert mission_cost(state(attempts=[attempt(0.25), attempt(None, known=False)])) == (None, False)
    assert mission_cost(state(attempts=[attempt(0.25, known=False)])) == (None, False)


def test_a_blocked_export_has_no_branch() -> None:
    blocked = state(status="promoted", export=replace(DONE, state="blocked", reason="checked out"))
    document = to_json(mission_document(blocked))
    assert document["branch"] is None
    assert document["export"] == {"ref": DONE.ref, "state": "blocked", "reason": "checked out"}
    assert not [step for step in next_commands(blocked) if "merge" in step]


def test_the_text_shows_status_reasons_and_reverted_files(capsys: pytest.CaptureFixture[str]) -> None:
    given = state(
        status="refused",
        reasons=(Reason(code="area_outside", message="x\x1b[31m was reverted"),),
        reverted=[Reverted(path="a\nb", rule="area_outside")],
        base=Base(commit="c" * 40, tree="t" * 40, revision="HEAD"),
        checkpoints=[Checkpoint(commit="d" * 40, tree="e" * 40, parent="c" * 40, trigger="end", changed=1)],
    )
    show_result(Output(as_json=False), given)
    shown = capsys.readouterr().out
    assert shown.startswith("refused  m-1\n")
    assert "area_outside: x was reverted" in shown
    assert "a\\x0ab" in shown
    assert "chargehand mission diff m-1" in shown


FAILURE = FailureDocument(
    kind="check",
    name="make test",
    status="failed",
    tests=(FailingTestDocument(name="test_a.py::test_sub", lines=("assert 6 == 1", "at test_a.py:3")),),
    lines=(),
    artifact="abcdef0123456789",
)


def refused() -> MissionState:
    """Return a mission that one check refused."""
    red = Verdict(
        tree="e" * 40,
        scope="attempt",
        status="red",
        checks=(CheckResult(name="make test", status="failed", seconds=1.0, exit_code=1),),
    )
    return state(
        status="refused",
        reasons=(Reason(code="check_failed", message="make test: ended with exit code 1"),),
        base=Base(commit="c" * 40, tree="t" * 40, revision="HEAD"),
        checkpoints=[Checkpoint(commit="d" * 40, tree="e" * 40, parent="c" * 40, trigger="end", changed=1)],
        verdicts=[red],
    )


@pytest.mark.parametrize("form", ["run", "show"])
def test_a_refusal_shows_the_failing_test_its_output_and_a_command(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = refused(), Output(as_json=False)
    if form == "run":
        show_result(out, given, (FAILURE,))
    else:
        show_details(out, given, mission_details(given, [], None, (), (FAILURE,)))
    shown = capsys.readouterr().out
    again = "chargehand exec --mission m-1 -- sh -c 'make test'"
    told = (
        "test_a.py::test_sub",
        "assert 6 == 1",
        "at test_a.py:3",
        "chargehand artifact show abcdef012345",
        again,
    )
    at = [shown.index(words) for words in told]
    assert at == sorted(at)
    # The commands can be typed as shown, without a detour to `mission show`.
    assert "MISSION" not in shown
    assert form == "run" or "mission show" not in shown


def test_the_document_of_a_refusal_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for document in (
        to_json(mission_document(refused(), (FAILURE,))),
        to_json(mission_details(refused(), [], None, (), (FAILURE,))),
    ):
        (failure,) = document["failures"]
        assert failure["tests"] == [{"name": "test_a.py::test_sub", "lines": ["assert 6 == 1", "at test_a.py:3"]}]
        assert failure["artifact"] == FAILURE.artifact
        assert document["next"][-1] == "chargehand exec --mission m-1 -- sh -c 'make test'"
        assert "--mission m-1 " in document["cause"]["remedy"]


def test_a_rolled_back_mission_is_shown_without_a_merge_command(capsys: pytest.CaptureFixture[str]) -> None:
    base = Base(commit="c" * 40, tree="t" * 40, revision="HEAD")
    done = {"status": "promoted", "export": DONE, "exported": "d" * 40, "commit": "d" * 40, "base": base}
    stands, undone = state(tree="e" * 40, **done), state(tree=base.tree, **done)
    assert next_commands(stands)[0] == "git merge chargehand/do-it"
    assert (mission_document(stands).rolled_back, mission_document(undone).rolled_back) == (False, True)
    show_result(Output(as_json=False), undone)
    show_details(Output(as_json=False), undone, mission_details(undone, [], None))
    shown = capsys.readouterr().out
    assert shown.startswith("rolled back  m-1\n")
    assert "git merge" not in shown
    assert "mission rollback" not in shown


@pytest.mark.parametrize(
    ("given", "meant"), [("2", "stop"), ("Stop", "stop"), ("GO ON", "go on"), ("A", "A"), ("stop it", "stop it")]
)
def test_an_option_is_meant_by_its_number_and_by_its_words_in_any_case(given: str, meant: str) -> None:
    asked = Question(id="q", text="Go on?", options=("go on", "stop", "a", "A"), tree="t", attempt=None)
    assert resolve_option(asked, given) == meant


def test_an_answer_with_spaces_is_quoted_in_its_command() -> None:
    asked = Question(id="red_base", text="Go on?", options=("go on", "stop"), tree="t", attempt=None)
    waits = state(status="waiting", plan=PlanProgress(), questions={asked.id: asked})
    command = next_commands(waits)[0]
    assert shlex.split(command) == ["chargehand", "mission", "answer", "m-1", "go on"]


@pytest.mark.parametrize("columns", [None, 60, 80])
def test_each_option_of_a_question_has_a_line_with_its_meaning(
    columns: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, meanings = ("leave out", "stop"), ("ignore these tests, whether they pass or fail", "end the mission")
    asked = Question(id="q", text="?", options=options, meanings=meanings, tree="t", attempt=None, closed=True)
    waits = state(status="waiting", questions={asked.id: asked})
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    show_result(Output(as_json=False), waits)
    shown = terminal.getvalue() if columns is not None else capsys.readouterr().out
    lines = shown.splitlines()
    place = next(number for number, line in enumerate(lines) if "answers   1  leave out  ignore" in line)
    stop = lines.index(f"{'':12}2  stop       end the mission")
    words = " ".join("\n".join(lines[place:stop]).split())
    assert words == f"answers 1 leave out {meanings[0]}"
    assert all(len(line) <= (columns or 200) for line in lines[place:stop])
    assert all(line.startswith(" " * 26) for line in lines[place + 1 : stop])
    assert (stop - place > 1) == (columns == 60)


def test_options_that_a_person_saw_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Question(id="q", text="?", options=("left", "right"), tree="t", attempt=None)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    out = Output(as_json=False)
    for line in option_lines(asked.options, asked.meanings):
        out.note_seen(line)
    show_result(out, state(status="waiting", questions={asked.id: asked}))
    assert "right" not in terminal.getvalue()
    show_result(Output(as_json=False), state(status="waiting", questions={asked.id: asked}))
    assert "right" in terminal.getvalue()


def paid(*calls: tuple[float | None, float | None]) -> AttemptState:
    """Return an attempt after calls, each with the cost by its provider and the cost that we compute."""
    request = REQUEST
    payloads: list[Payload] = [
        MissionCreated(project="p", repository="/r", request=request),
        AttemptStarted(attempt="a-1", number=1, agent="a", workspace="w-1", tree="t"),
    ]
    for number, (reported, computed) in enumerate(calls):
        cost = computed if reported is None else reported
        known = {"attempt": "a-1", "turn": 1, "model": "m", "upstream": "u", "status": "ok", "http_status": 200}
        payloads.append(
            ModelCalled(
                call=f"c-{number}",
                seconds=1.0,
                cost_usd=cost,
                cost_known=cost is not None,
                booked_usd=0.5 if cost is None else cost,
                reported_usd=reported,
                computed_usd=computed,
                **known,
            )
        )
    found = MissionState()
    for seq, payload in enumerate(payloads, 1):
        line = {"mission": "m-1", "seq": seq, "time": "2026-01-01T00:00:00", "type": payload.type}
        apply(found, Event(**line, payload=encode(payload), digest="", prev="", hash=""))
    return found.attempts[0]


@pytest.mark.parametrize(
    ("calls", "differing", "text"),
    [
        ([(0.1, 0.1)], None, ""),
        ([(0.1, 0.1009)], None, ""),
        (
            [(0.1, 0.0), (None, 9.0)],
            {"reported_usd": 0.1, "computed_usd": 0.0},
            "0.1000 USD as the provider reports it",
        ),
        ([(0.1, 0.2)], {"reported_usd": 0.1, "computed_usd": 0.2}, "0.2000 USD by tokens and price"),
        ([(0.1, None), (None, 0.2)], None, ""),  # no call has both costs: there is nothing to compare
        ([(None, None), (0.1, 0.1)], None, "1 of 2 calls have no known cost, 0.6000 USD count towards the limits"),
        ([], None, ""),
    ],
)
def test_both_costs_are_shown_if_different(
    calls: list[tuple[float | None, float | None]], differing: dict[str, float] | None, text: str
) -> None:
    attempt = paid(*calls)
    document = money_document(attempt)
    assert to_json(document.differing) == differing
    assert (document.calls, document.unknown_calls) == (len(calls), calls.count((None, None)))
    assert text in money_text(attempt)
    assert bool(money_text(attempt)) == bool(text)
