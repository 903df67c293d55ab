"""Strings that break software, each as a file name, as content, as a commit's message and as a note.

tests/integration/test_bad_input_words.py uses them as requests.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from pathlib import Path

import pytest
from tests.workspace_kit import Operation, WorkspaceKit, operate, oracle, write

from chargehand.core.errors import UsageError
from chargehand.core.ports import DriverName
from chargehand.core.text import printable, shown_path

STRINGS = Path(__file__).parents[3] / "shared/data/naughty_strings.json"
DRIVERS: tuple[DriverName, ...] = ("overlay", "worktree")
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

pytestmark = pytest.mark.skipif(
    not STRINGS.exists() and not os.environ.get("CI"), reason="the strings are not beside this checkout"
)


def naughty() -> list[str]:
    """Return all of the strings."""
    found: list[str] = json.loads(STRINGS.read_text())
    assert len(found) > 500
    return found


def names() -> dict[str, str]:
    """Return the names that a file system accepts, each with the rule that refuses it (or "")."""
    found = {}
    for text in naughty():
        raw = text.encode("utf-8", "surrogatepass")
        if text in ("", ".", "..") or b"/" in raw or b"\0" in raw or len(raw) > 255:
            continue
        # Invisible characters, and those that move their neighbours: control, format, line separators.
        unseen = any(unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") for letter in text)
        found[text] = "entry_name" if unseen else ""
    return found


@pytest.mark.parametrize("driver", DRIVERS)
def test_as_names_of_files_and_directories(tmp_path: Path, driver: DriverName) -> None:
    kit, found = WorkspaceKit(tmp_path), names()
    let_in = [name for name, problem in found.items() if not problem]
    refused = [name for name, problem in found.items() if problem]
    assert len(let_in) > 250
    assert len(refused) > 10
    clean, mixed = kit.workspace(driver), kit.workspace(driver)
    operations: list[Operation] = [write(f"files/{name}", name) for name in let_in]
    operations += [write(f"{name}/f", "x") for name in let_in[::5] if name not in ("src", "docs")]
    operate(clean, operations)
    scan = clean.scan()
    assert scan.tree == oracle(clean, kit.depot())
    assert not [finding for finding in scan.findings if finding.severity == "critical"]
    operate(mixed, [*operations, *(write(f"files/{name}", name) for name in refused)])
    other = mixed.scan()
    assert other.tree == scan.tree, "what is refused leaves no trace"
    rules = {finding.path: finding.rule for finding in other.findings}
    assert rules == {f"files/{name}": found[name] for name in refused}
    for finding in other.findings:
        assert not CONTROLS.search(finding.message), finding
        assert shown_path(finding.path) in finding.message
    assert {count.path for count in kit.depot().numstat(kit.base().tree, scan.tree)} == {
        change.path for change in scan.changes
    }
    mixed.reset(scan.tree, "\n".join(refused))
    assert mixed.scan().tree == scan.tree


def test_as_content_and_as_targets_of_links(tmp_path: Path) -> None:
    kit = WorkspaceKit(tmp_path)
    workspace = kit.workspace("overlay")
    texts = naughty()
    operate(workspace, [write(f"n/{number}", text) for number, text in enumerate(texts)])
    targets = [text for text in texts if text and "\0" not in text and "/" not in text and text not in (".", "..")]
    operate(workspace, [("link", f"l{number}", text) for number, text in enumerate(targets)])
    found = workspace.scan()
    assert found.tree == oracle(workspace, kit.depot())
    for number, text in enumerate(texts):
        entry = kit.depot().lookup(found.tree, f"n/{number}")
        assert entry is not None
        assert kit.depot().read_blob(entry.id) == text.encode()


def test_as_messages_triggers_and_notes(tmp_path: Path) -> None:
    kit = WorkspaceKit(tmp_path)
    depot, base = kit.depot(), kit.base()
    for text in naughty()[::3]:
        message = text.replace("\0", "") or "x"
        commit = depot.commit(base.tree, (base.commit,), message)
        assert depot.read_commit(commit).message.rstrip("\n") == message.rstrip("\n")
        assert depot.read_commit(commit).parents == (base.commit,)
    whole = "\n".join(naughty())
    workspace = kit.workspace("worktree")
    for number, trigger in enumerate(naughty()[::40]):
        operate(workspace, [write("f", str(number))])
        made = workspace.checkpoint(trigger)
        assert workspace.last() == made
        assert "\n" not in made.trigger
    depot.annotate(base.commit, whole)
    note = depot.annotation(base.commit)
    assert note is not None
    assert set(note.removesuffix("\n").split("\n")) == {line for line in whole.split("\n") if line.strip()}
    with pytest.raises(UsageError):
        depot.annotate(base.commit, " \n ")
    assert depot.git("fsck", "--strict").code == 0


def test_shown_names_have_no_control_characters() -> None:
    for text in naughty():
        assert not CONTROLS.search(shown_path(text))
        assert not CONTROLS.search(printable(text).replace("\n", "").replace("\t", ""))
        assert json.loads(json.dumps(text)) == text
