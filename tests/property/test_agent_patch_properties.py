"""A patch between two texts turns the first into the second in both notations; a broken patch is reported."""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.agents.patches import FileChange, PatchProblem, parse_patch, paths_of, plan_changes, unified_diff

ODD_LINES = [
    "",
    " ",
    "a",
    "a ",
    "\ta",
    "-- x",
    "++ y",
    "--- a/f",
    "+++ b/f",
    "@@ -1 +1 @@",
    "\\ no",
    "*** End Patch",
]
lines = st.one_of(st.sampled_from(ODD_LINES), st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
texts = st.builds(
    lambda parts, end, ended: end.join(parts) + (end if parts and ended else ""),
    st.lists(lines.map(lambda line: line.replace("\n", "")), max_size=12),
    st.sampled_from(["\n", "\n", "\r\n"]),
    st.booleans(),
)
many = settings(max_examples=examples(120), deadline=None)


def applied(patch: str, files: dict[str, str | None]) -> dict[str, str | None]:
    changes = parse_patch(patch)
    return {
        **files,
        **{each.path: each.new for each in plan_changes(changes, {**dict.fromkeys(paths_of(changes)), **files})},
    }


def split(text: str) -> list[str]:
    return [part + "\n" for part in text.split("\n")[:-1]] + (
        [text.split("\n")[-1]] if text.split("\n")[-1] else []
    )


def marked(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def envelope(a: str, b: str, context: int) -> str:
    """Write the change in the other notation: the same groups, without line numbers."""
    old, new = split(a), split(b)
    out = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        out.append("@@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [marked(" ", line) for line in old[i1:i2]]
            else:
                out += [marked("-", line) for line in old[i1:i2]] + [marked("+", line) for line in new[j1:j2]]
    return "*** Begin Patch\n*** Update File: f\n" + "".join(out) + "*** End Patch\n"


@many
@given(texts, texts, st.integers(0, 4))
def test_a_unified_diff_of_two_texts_applies(a: str, b: str, context: int) -> None:
    patch = unified_diff(a, b, "f", context=context)
    if a == b:
        assert patch == ""
    else:
        assert applied(patch, {"f": a}) == {"f": b}


@many
@given(texts, texts)
def test_an_envelope_of_two_whole_texts_applies(a: str, b: str) -> None:
    if a != b:
        whole = "*** Begin Patch\n*** Update File: f\n"
        whole += "".join(marked("-", line) for line in split(a)) + "".join(marked("+", line) for line in split(b))
        assert applied(whole + "*** End Patch", {"f": a}) == {"f": b}


@many
@given(
    st.lists(st.booleans(), min_size=1, max_size=30), st.data(), st.integers(1, 3), st.sampled_from(["\n", "\r\n"])
)
def test_an_envelope_with_several_hunks_applies(
    keep: list[bool], data: st.DataObject, context: int, end: str
) -> None:
    a = [f"line {number}" for number in range(len(keep))]
    b: list[str] = []
    for line, kept in zip(a, keep, strict=True):
        b += ([line] if kept else []) + data.draw(st.lists(lines.map(lambda x: x.replace("\n", "")), max_size=1))
    before, after = (end.join(a) + end), "".join(line + end for line in b)
    if before != after:
        assert applied(envelope(before, after, context), {"f": before}) == {"f": after}


@many
@given(texts, texts)
def test_files_are_made_and_removed_in_both_notations(a: str, b: str) -> None:
    made = unified_diff("", a, "f").replace("--- a/f", "--- /dev/null", 1)
    gone = unified_diff(a, "", "f").replace("+++ b/f", "+++ /dev/null", 1)
    if a:
        assert applied(made, {}) == {"f": a}
        assert applied(gone, {"f": a}) == {"f": None}
    added = (
        "*** Begin Patch\n*** Add File: f\n" + "".join(marked("+", line) for line in split(b)) + "*** End Patch"
    )
    assert applied(added, {}) == {"f": b}
    assert applied("*** Begin Patch\n*** Delete File: f\n*** End Patch", {"f": a}) == {"f": None}


def git(place: Path, *arguments: str) -> bytes:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *arguments], cwd=place, env=environment, capture_output=True, check=True).stdout


NAMES = ["one.txt", "dir/two é.txt", 'three"q.txt', "four four.txt", "a/b/five"]


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.dictionaries(st.sampled_from(NAMES), texts.filter(lambda text: "\0" not in text), max_size=4),
    after=st.dictionaries(st.sampled_from(NAMES), texts.filter(lambda text: "\0" not in text), max_size=4),
)
def test_patches_written_by_git_apply(tmp_path_factory: pytest.TempPathFactory, before: dict, after: dict) -> None:
    place = tmp_path_factory.mktemp("git")
    git(place, "init", "-q")
    trees = []
    for files in (before, after):
        git(place, "rm", "-rfq", "--cached", "--ignore-unmatch", ".")
        for name, text in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        git(place, "add", "-f", "--", *files) if files else None
        trees.append(git(place, "write-tree").decode().strip())
    patch = git(place, "diff", "-M", *trees).decode()
    if before == after:
        assert patch == ""
        return
    result = {name: text for name, text in applied(patch, dict(before)).items() if text is not None}
    assert result == after


PIECES = [
    *("*** Begin Patch", "*** End Patch", "*** Update File: f", "*** Add File: g", "*** Delete File: f"),
    *("*** Move to: h", "*** End of File", "@@", "@@ a", "@@ -1,2 +1,2 @@", "--- a/f", "+++ b/f", "--- /dev/null"),
    *("+++ /dev/null", "diff --git a/f b/f", "rename from f", "rename to h", "new file mode 100755", "\\ No", ""),
    *("old mode 100644", "GIT binary patch", " a", "-a", "+b", " ", "x", "-- ", "```", "index 1..2", "--- a/../x"),
]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=20), texts)
def test_a_malformed_patch_is_an_error_or_applies(pieces: list[str], text: str) -> None:
    told_or_applied("\n".join(pieces), {"f": text, "h": None})


def told_or_applied(patch: str, files: dict[str, str | None]) -> None:
    try:
        result = applied(patch, files)
    except PatchProblem as error:
        problem = str(error)
    else:
        problem = "none" if set(result) >= set(files) else ""
    assert problem


@many
@given(texts, texts, st.integers(0, 400), st.integers(0, 400))
def test_a_damaged_patch_is_an_error_or_applies(a: str, b: str, start: int, length: int) -> None:
    for patch in (unified_diff(a, b, "f"), envelope(a, b, 2)):
        damaged = patch[:start] + patch[start + length :]
        told_or_applied(damaged, {"f": a})


@many
@given(texts, st.integers(0, 20))
def test_a_truncated_envelope_is_an_error(a: str, cut: int) -> None:
    patch = envelope(a, a + "more\n", 3)
    short = patch[: patch.rindex("*** End Patch") + len("*** End Patch") - 1 - cut]
    with pytest.raises(PatchProblem):
        parse_patch(short)


def test_a_change_is_a_record() -> None:
    (change,) = parse_patch("*** Begin Patch\n*** Delete File: f\n*** End Patch")
    assert change == FileChange(action="delete", path="f")
