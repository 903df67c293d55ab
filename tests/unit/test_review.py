"""Reviewing a change: risks of a file, stable ids of hunks, and the first author of their lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.trees_kit import EXECUTABLE, GITLINK, LINK, File, files_of, make_tree
from tests.workspace_kit import WorkspaceKit

from chargehand.app.checkpoints import parse_hunk
from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.events import Event, encode
from chargehand.core.records import Base, Checkpoint, CheckResult, Finding, MissionRequest, Verdict
from chargehand.core.state import AttemptState, MissionState
from chargehand.reports.outcome import FailureDocument
from chargehand.reports.review import ChangeReview, ReviewFile, ReviewSource, build_review
from chargehand.workspace.rollback import plan_rollback, write_rollback

Files = Mapping[str, bytes | File]
TWENTY = b"".join(b"%d\n" % n for n in range(1, 41))
BASE: dict[str, bytes | File] = {
    "src/calc.py": TWENTY,
    "src/other.py": b"x = 1\n",
    "tests/test_calc.py": b"from src import calc\n\n\ndef test_one():\n    assert calc.one() == 1\n",
    "tests/test_old.py": b"def test_old():\n    assert True\n",
    "README.md": b"read me\n",
}


class Change:
    """A mission that left these trees, one checkpoint each, every one by a separate attempt."""

    def __init__(self, place: Path, base: Files, *after: Files) -> None:
        self.depot = WorkspaceKit(place).depot()
        base_tree = make_tree(self.depot, base)
        self.trees = [make_tree(self.depot, files) for files in after]
        points = [
            Checkpoint(commit=f"{n:040x}", tree=tree, parent="0" * 40, trigger="end", changed=1)
            for n, tree in enumerate(self.trees, 1)
        ]
        request = MissionRequest(text="mend", agent="command:true", command=("true",), slug="mend")
        self.state = MissionState(id="m-1", status="waiting", request=request, checkpoints=points)
        self.state.attempts = [
            AttemptState(id=f"a-{n}", number=n, agent="command", workspace="w") for n in range(1, len(points) + 1)
        ]
        self.base = Base(commit="0" * 40, tree=base_tree, revision="HEAD")
        self.state.base = self.base
        self.events = [
            Event(
                mission="m-1",
                seq=n,
                time="2026-01-01T00:00:00.000000+00:00",
                type="checkpoint.made",
                payload=encode(CheckpointMade(attempt=f"a-{n}", checkpoint=point)),
                digest="",
                prev="",
                hash="",
            )
            for n, point in enumerate(points, 1)
        ]
        self.failures: dict[str, FailureDocument] = {}

    def judged(self, **fields: object) -> None:
        """Give the last tree a verdict."""
        given = {"scope": "attempt", "status": "green", **fields}
        self.state.verdicts.append(msgspec.convert({"tree": self.trees[-1], **given}, Verdict))

    def review(self) -> ChangeReview:
        return build_review(
            ReviewSource(
                state=self.state,
                depot=self.depot,
                base=self.base,
                tree=self.trees[-1],
                events=self.events,
                explain=lambda check: self.failures[check.name],
            )
        )

    def file(self, path: str) -> ReviewFile:
        return next(file for file in self.review().files if file.path == path)


def reasons(file: ReviewFile) -> set[str]:
    return {reason.name for reason in file.reasons}


def edited(**lines: str) -> bytes:
    content = TWENTY
    for name, text in lines.items():
        content = content.replace(b"\n%s\n" % name[1:].encode(), b"\n%s\n" % text.encode())
    return content


class TestRisk:
    def test_a_plain_change_of_code_has_no_reasons(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/calc.py": edited(l10="ten")})
        file = change.file("src/calc.py")
        assert (file.kind, file.risk, file.reasons, file.added, file.removed) == ("code", 0.0, (), 1, 1)

    @pytest.mark.parametrize(
        ("path", "after", "code"),
        [
            ("conftest.py", b"import os\n", "check_surface"),
            ("requirements.txt", b"requests\n", "dependency_changed"),
            ("poetry.lock", b"\x81", "dependency_source"),
            ("new/place.py", b"x = 1\n", "new_area"),
            ("src/calc.py", b"".join(b"%d.\n" % n for n in range(500)), "large"),
            ("tests/test_old.py", None, "test_deleted"),
            ("tests/test_calc.py", b"from src import calc\n\n\ndef test_one():\n    pass\n", "test_skipped"),
            ("pyproject.toml", b'[project]\nversion = "2"\n', "manifest"),
            ("src/calc.py", (LINK, b"../tests/test_calc.py"), "symbolic_link"),
            ("src/run", (EXECUTABLE, b"#!/bin/sh\n"), "executable"),
            ("src/logo.png", b"\0\1", "binary_file"),
        ],
    )
    def test_each_kind_of_change_has_its_risk_reason(
        self, tmp_path: Path, path: str, after: bytes | File | None, code: str
    ) -> None:
        files = {**BASE, path: after}
        change = Change(tmp_path, BASE, {each: what for each, what in files.items() if what is not None})
        file = change.file(path)
        assert code in reasons(file), file.reasons
        assert file.risk > 0

    def test_a_test_with_added_assertions_is_reported_as_changed(self, tmp_path: Path) -> None:
        more = (
            b"from src import calc\n\n\ndef test_one():\n    assert calc.one() == 1\n    assert calc.two() == 2\n"
        )
        change = Change(tmp_path, BASE, BASE | {"tests/test_calc.py": more})
        assert reasons(change.file("tests/test_calc.py")) == {"test_changed"}

    def test_unread_code_is_that_of_the_verdict_on_this_very_tree(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/calc.py": edited(l10="ten"), "src/other.py": b"x = 2\n"})
        change.judged(unread=("src/calc.py",))
        assert (change.file("src/calc.py").unread, change.file("src/other.py").unread) == (True, False)
        assert reasons(change.file("src/calc.py")) == {"unread"}
        change.state.verdicts[-1] = msgspec.structs.replace(change.state.verdicts[-1], tree="0" * 40)
        found = change.review()
        assert {file.unread for file in found.files} == {None}
        assert (found.verdict, any("no verdict" in note for note in found.notes)) == (None, True)

    def test_binary_content_is_a_reason_if_inspection_does_not_report_the_file(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/logo.png": b"\0"})
        change.judged()
        assert reasons(change.file("src/logo.png")) == {"binary"}

    def test_areas_and_order(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/calc.py": edited(l10="ten"), "README.md": b"other\n"})
        assert change.state.request is not None
        change.state.request = msgspec.structs.replace(change.state.request, allow=("src/**",))
        found = change.review()
        assert [file.path for file in found.files] == ["README.md", "src/calc.py"]
        assert reasons(found.files[0]) == {"area_outside"}
        assert found.files[0].kind == "docs"


class TestMarks:
    def test_findings_and_failed_checks_name_their_lines(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/calc.py": edited(l10="ten")})
        change.judged(
            status="red",
            checks=(CheckResult(name="pytest", status="failed", seconds=1.0),),
            findings=(Finding(rule="secret", severity="critical", path="src/calc.py", line=10, message="a key"),),
        )
        change.failures["pytest"] = FailureDocument(
            kind="check",
            name="pytest",
            status="failed",
            tests=(),
            lines=("/workspace/src/calc.py:10: AssertionError", "src/unchanged.py:3: other"),
            artifact=None,
        )
        found = change.review()
        assert [(mark.source, mark.path, mark.line, mark.name) for mark in found.marks] == [
            ("inspection", "src/calc.py", 10, "secret"),
            ("check", "src/calc.py", 10, "pytest"),
        ]

    def test_tests_are_matched_to_files_by_name_or_import(self, tmp_path: Path) -> None:
        files = BASE | {
            "src/calc.py": edited(l10="ten"),
            "src/other.py": b"x = 2\n",
            "tests/test_calc.py": b"def test_one():\n    assert 2\n",
            "tests/test_all.py": b"from src.other import x\n",
        }
        change = Change(tmp_path, BASE, files)
        assert change.file("src/calc.py").tests == ("tests/test_calc.py",)
        assert change.file("src/other.py").tests == ("tests/test_all.py",)


class TestHunks:
    def test_ids_outlast_other_changes_above_and_below(self, tmp_path: Path) -> None:
        one = Change(tmp_path / "one", BASE, BASE | {"src/calc.py": edited(l20="twenty")})
        two = Change(tmp_path / "two", BASE, BASE | {"src/calc.py": edited(l3="a\nb\nc", l20="twenty")})
        other = Change(tmp_path / "other", BASE, BASE | {"src/calc.py": edited(l20="TWENTY")})
        kept = one.file("src/calc.py").hunks[0]
        moved = two.file("src/calc.py").hunks[1]
        assert kept.id == moved.id
        assert (kept.new_start, moved.new_start) == (20, 22)
        assert other.file("src/calc.py").hunks[0].id != kept.id

    def test_equal_lines_twice_have_two_ids(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/calc.py": edited(l10="10\nx", l30="30\nx")})
        first, second = change.file("src/calc.py").hunks
        assert first.id != second.id

    def test_a_hunk_names_the_attempt_since_which_its_lines_exist(self, tmp_path: Path) -> None:
        change = Change(
            tmp_path,
            BASE,
            BASE | {"src/calc.py": edited(l10="ten", l30="x")},
            BASE | {"src/calc.py": edited(l10="ten")},
            BASE | {"src/calc.py": edited(l2="two", l10="ten", l30="x")},
        )
        hunks = change.file("src/calc.py").hunks
        assert [(hunk.new_start, hunk.attempt, hunk.trigger, hunk.step) for hunk in hunks] == [
            (2, 3, "end", "execution"),
            (10, 1, "end", "execution"),
            (30, 3, "end", "execution"),
        ]
        assert hunks[1].checkpoint == change.state.checkpoints[0].commit

    @pytest.mark.parametrize(
        "content",
        [
            edited(l10="ten", l14="x", l30="y"),
            edited(l10="ten").replace(b"\n20\n", b"\n"),
            TWENTY[2:],
            TWENTY[:-3],
        ],
    )
    def test_rejecting_a_hunk_reverts_exactly_that_hunk(self, tmp_path: Path, content: bytes) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/calc.py": content})
        hunks = change.file("src/calc.py").hunks
        for hunk in hunks:
            assert hunk.reject is not None
            plan = plan_rollback(change.depot, change.trees[-1], change.base.tree, drops=[parse_hunk(hunk.reject)])
            write_rollback(change.depot, plan)
            before, change.trees[-1] = change.trees[-1], plan.result
            ids = {each.id for file in change.review().files for each in file.hunks}
            assert ids == {each.id for each in hunks} - {hunk.id}
            change.trees[-1] = before

    def test_a_patch_has_a_part_per_hunk_and_the_same_lines_as_that_of_git(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE | {"src/calc.py": edited(l10="ten", l14="x", l30="y")[:-1]})
        file = change.file("src/calc.py")
        assert file.patch.count("\n@@") + 1 == len(file.hunks) == 3
        git = change.depot.patch(change.base.tree, change.trees[-1]).decode()
        ours = [line for line in file.patch.splitlines() if not line.startswith("@@")]
        theirs = [line for line in git.splitlines()[4:] if not line.startswith("@@")]
        assert ours == theirs

    @pytest.mark.parametrize(
        ("path", "after"),
        [
            ("src/logo.png", b"\0"),
            ("src/link", (LINK, b"calc.py")),
            ("src/sub", (GITLINK, b"\1" * 20)),
            ("src/other.py", (EXECUTABLE, b"x = 1\n")),
            ("src/empty.py", b""),
            ("src/new.py", b"a\nb\n"),
            ("src/calc.py", b""),
        ],
    )
    def test_each_kind_of_change_has_something_to_decide_on(
        self, tmp_path: Path, path: str, after: bytes | File
    ) -> None:
        change = Change(tmp_path, BASE, BASE | {path: after})
        file = change.file(path)
        assert len(file.hunks) == 1
        assert file.hunks[0].attempt == 1
        modified = path == "src/calc.py"
        assert (file.hunks[0].reject is not None) == modified

    def test_a_deleted_file_is_a_single_hunk_with_its_lines(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, {path: what for path, what in BASE.items() if path != "src/other.py"})
        file = change.file("src/other.py")
        assert (file.change, file.patch, file.hunks[0].reject) == ("deleted", "@@ -1,1 +0,0 @@\n-x = 1\n", None)


class TestBounds:
    def test_a_review_of_1003_files_is_limited_in_size_and_time(self, tmp_path: Path) -> None:
        many = {f"src/f{n}.py": b"".join(b"line %d %d\n" % (n, k) for k in range(50)) for n in range(1000)}
        huge = b"".join(b"number %d\n" % n for n in range(50_000))
        odd = {"src/a.bin": b"\0" * 300_000, "src/min.js": b"x" * 3_000_000, "src/huge.py": huge}
        base = BASE | {path: content[:200] for path, content in many.items()}
        change = Change(tmp_path, base, base | many | odd)
        began = time.process_time()
        found = change.review()
        seconds = time.process_time() - began
        size = len(msgspec.json.encode(found))
        assert found.total == len(found.files) == 1003
        assert size < 5_000_000, size
        assert seconds < 8, seconds
        shown = {file.path: file for file in found.files}
        assert (shown["src/huge.py"].truncated, shown["src/huge.py"].added) == (True, 50_000)
        assert "48000 more lines are not shown" in shown["src/huge.py"].patch
        assert shown["src/min.js"].truncated
        assert any("not all lines are shown" in note for note in found.notes)

    def test_the_size_limit_counts_control_characters_as_encoded_in_json(self, tmp_path: Path) -> None:
        noise = {f"src/n{n}.txt": b"\x01" * 1000 + b"\n" + b"\x02\n" * 900 for n in range(900)}
        found = Change(tmp_path, BASE, BASE | noise).review()
        assert len(msgspec.json.encode(found)) < 5_000_000

    def test_a_tree_of_no_change_is_an_empty_review(self, tmp_path: Path) -> None:
        change = Change(tmp_path, BASE, BASE)
        found = change.review()
        assert (found.total, found.files) == (0, ())
        assert files_of(change.depot, found.tree).keys() == BASE.keys()
