"""The report has the same Markdown structure for any text in a mission: hostile text stays text, to the letter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chargehand.core.attempt_events import AttemptStarted, ReportMade, RoleChosen
from chargehand.core.events import Event, Payload, encode
from chargehand.core.fold import fold
from chargehand.core.mission_events import (
    ApplyChanged,
    ApprovalGiven,
    AttemptFinished,
    BaseResolved,
    ChangesReverted,
    ExportChanged,
    MessageSent,
    MissionCreated,
    MissionFinished,
    MissionInterrupted,
    PromotionDone,
    QuestionAnswered,
    QuestionAsked,
    VerdictGiven,
)
from chargehand.core.records import (
    Base,
    CheckResult,
    Export,
    Finding,
    MissionRequest,
    MissionStatus,
    Reason,
    Reverted,
    Verdict,
)
from chargehand.core.state import MissionState
from chargehand.core.text import printable, shown_path
from chargehand.reports.documents import ArtifactEntry, mission_details
from chargehand.reports.markdown import block, code, render_report, words
from chargehand.reports.outcome import FailingTestDocument, FailureDocument
from chargehand.reports.report import ReportSource, advise_undo, build_report
from chargehand.store.chain import audit_problem
from chargehand.workspace.depot import LineCount

markdown_it = pytest.importorskip("markdown_it")
BASE = Base(commit="b" * 40, tree="c" * 40, revision="HEAD")
PARSER = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
STRINGS = Path(__file__).parents[3] / "shared/data/naughty_strings.json"
CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
PIECES = (
    *("`", "``", "```", "~~~", "# x", "\n", "\n\n", "- ", "1. ", "> ", "| a | b |\n|---|---|\n", "***", "---"),
    *("[a](http://e.example)", "![a](x)", "<b>", "<!--", "</details>", "<http://e.example>", "&lt;", "&#35;"),
    *("\\", "\\`", "$$", "{{x}}", "@everyone", "#1", "\t", "\r", "\x00", "\x1b[31m", "\x9b", "\u2028", "\u202e"),
    *("\udc80", "\ud800", "====", "    code", "[x]: http://e.example", ":tada:", "<script>alert(1)</script>", "x"),
)
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), min_size=1, max_size=8).map("".join)


def mission(text: str) -> str:
    """Return the report on a mission that holds `text` wherever foreign text may occur."""
    reason = Reason(code=text, message=text)
    checks = tuple(
        CheckResult(name=text, status="failed", seconds=1.0, reason=text, artifact=text, outside=True, warm=True)
        for _ in range(2)
    )
    findings = (Finding(rule=text, severity="error", path=text, message=text, line=3, needs_person=True),)
    verdict = Verdict(
        tree=text,
        scope="attempt",
        status="red",
        checks=checks,
        findings=findings,
        unread=(text,),
        elsewhere=(text,),
    )
    base = Base(commit=text, tree=text, revision=text, branch=text, dirty=True)
    request = MissionRequest(
        text=text, agent=text, command=(), slug="x", model=text, why=text, only_checks=(text,)
    )
    role = RoleChosen(
        role=text, digest=text, artifact=text, origin=text, agent=text, models=(), writes=True, why=text
    )
    payloads: list[Payload] = [
        MissionCreated(project="p", repository=text, request=request, user=text, forked_from=text),
        BaseResolved(base=base),
        role,
        VerdictGiven(verdict=Verdict(tree=text, scope="base", status="red", checks=checks)),
        AttemptStarted(attempt="a-1", number=1, agent=text, workspace="w", tree=text),
        MissionInterrupted(code=text, message=text),
        MessageSent(identity=text, text=text),
        ChangesReverted(attempt="a-1", reverted=(Reverted(path=text, rule=text),)),
        VerdictGiven(verdict=verdict, attempt="a-1"),
        ReportMade(attempt="a-1", role=text, kind="report", artifact=text, text=text),
        AttemptFinished(attempt="a-1", status="refused", seconds=1.0, reasons=(reason,)),
        QuestionAsked(question="q", tree=text, reasons=(), text=text),
        QuestionAnswered(question="q", text=text, identity=text),
        VerdictGiven(verdict=verdict),
        ApprovalGiven(tree=text, identity=text, reason=text),
        PromotionDone(ref=text, commit=text, tree=text),
        ExportChanged(export=Export(ref=text, state="blocked", reason=text), commit=text),
        ApplyChanged(export=Export(ref=text, state="blocked", reason=text), commit=text),
        MissionFinished(status="promoted", reasons=(reason,)),
    ]
    time = "2026-01-02T03:04:05.000000+00:00"
    events = [
        Event("m-1", seq, time, payload.type, encode(payload), "", "", "")
        for seq, payload in enumerate(payloads, 1)
    ]
    state = fold(events, live=False)
    agent = FailureDocument(kind="agent", name=text, status="failed", tests=(), lines=(text,), artifact=text)
    details = mission_details(state, [], None, [audit_problem("m-1", 3, "line_changed", text)], (agent,))

    def explain(check: CheckResult) -> FailureDocument:
        tests = (FailingTestDocument(name=text, lines=(text, text)),)
        return FailureDocument(
            kind="check", name=check.name, status="timed_out", tests=tests, lines=(text,), artifact=text
        )

    source = ReportSource(
        state=state,
        details=details,
        events=events,
        files=(LineCount(path=text, added=1, removed=2), LineCount(path=text, added=None, removed=None)),
        evidence=tuple(ArtifactEntry(id=text, kind=text, size=3, time=time) for _ in range(60)),
        explain=explain,
        depot=None,
    )
    return render_report(build_report(source))


def skeleton(text: str) -> list[Any]:
    """Return the structure of Markdown, with all words outside code."""
    found: list[Any] = []
    for token in PARSER.parse(text):
        found.append((token.type, token.tag, token.level, token.info))
        found += [(child.type, child.content if child.type == "text" else "") for child in token.children or ()]
    return found


PLAIN = skeleton(mission("x"))


def shows(text: str) -> bool:
    """Return whether anything of a text is visible."""
    return bool(printable(shown_path(text)).strip()) and bool(" ".join(printable(text).split()))


@given(HOSTILE)
@example("```\n# Forged\n")
@example("` `` ``` ````")
def test_hostile_text_makes_no_structure(text: str) -> None:
    report = mission(text)
    assert not CONTROLS.search(report)
    report.encode()
    if shows(text):
        assert skeleton(report) == PLAIN


@pytest.mark.skipif(not STRINGS.exists(), reason="the strings are not beside this checkout")
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)])  # the suite tries every fourth
def test_strings_that_are_meant_to_break_programs(step: int) -> None:
    for text in json.loads(STRINGS.read_text())[::step]:
        report = mission(text)
        assert not CONTROLS.search(report), text
        assert not shows(text) or skeleton(report) == PLAIN, text


@given(HOSTILE)
def test_code_spans_and_blocks_show_the_exact_text(text: str) -> None:
    (paragraph,) = [token for token in PARSER.parse(f"a {code(text)} b") if token.type == "inline"]
    contents = [child.content for child in paragraph.children or ()]
    shown = printable(shown_path(text))
    assert contents == (["a ", shown, " b"] if shown.strip(" ") else ["a (empty) b"])
    assert "\n" not in code(text) + words(text)
    (fence,) = PARSER.parse("\n".join(block(text)))
    assert fence.content.split("\n")[:-1] == [line.rstrip() for line in printable(text).expandtabs(4).split("\n")]


@pytest.mark.parametrize(
    ("status", "verb"),
    [
        *(("planned", "cancel"), ("running", "cancel"), ("paused", "cancel"), ("waiting", "discard")),
        *(("refused", ""), ("failed", ""), ("exhausted", ""), ("cancelled", ""), ("discarded", "")),
    ],
)
def test_undo_of_an_unpromoted_mission_ends_it_or_is_empty(status: MissionStatus, verb: str) -> None:
    advice = advise_undo(MissionState(id="m-1", status=status))
    assert advice.commands == ((f"chargehand mission {verb} m-1",) if verb else ())


def test_undo_commands_depend_on_export_and_application() -> None:
    promoted: dict[str, Any] = {"id": "m-1", "status": "promoted", "base": BASE}
    promoted |= {"commit": "1" * 40, "tree": "2" * 40}
    back = "chargehand mission rollback m-1"
    blocked = MissionState(**promoted, promoted_on=BASE)
    assert advise_undo(blocked).commands == (back,)
    done = Export(ref="refs/heads/chargehand/x", state="done")
    exported = MissionState(**promoted, promoted_on=BASE, export=done, exported="1" * 40)
    assert advise_undo(exported).commands == (back, "git branch -D chargehand/x")
    applied = MissionState(**promoted, promoted_on=BASE, applied=done)
    assert advise_undo(applied).commands == (back, f"git revert {'b' * 40}..{'1' * 40}")
    undone = MissionState(**(promoted | {"tree": BASE.tree}), promoted_on=BASE)
    assert advise_undo(undone).commands == ("chargehand mission promote m-1",)
