"""The demo: the product's own machinery produces its story, or the demo says that it did not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from tests.conftest import make_repository, repository_state

from chargehand.app.composition import App
from chargehand.app.demo import project as demo_project
from chargehand.app.demo.script import SCRIPT
from chargehand.cli.main import chargehand
from chargehand.models.scripts import Script
from chargehand.reports.story import MissionStory

pytestmark = pytest.mark.needs_bwrap
OWN = ("HOME", "CHARGEHAND_HOME", "XDG_CONFIG_HOME", "TMPDIR")


def invoke(place: Path, *words: str) -> Result:
    """Run a command as a person whose directories are all in `place`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OWN:
            patch.setenv(name, str(place / name.lower()))
        (place / "tmpdir").mkdir(exist_ok=True)
        patch.setattr("tempfile.tempdir", None)
        patch.chdir(place)
        return CliRunner().invoke(chargehand, list(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The result of a demo run with `--keep`."""

    text: str
    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        return {
            "CHARGEHAND_HOME": str(self.directory / "state"),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
        }


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    place = tmp_path_factory.mktemp("demo")
    done = invoke(place, "demo", "--keep")
    assert done.exit_code == 0, done.output
    (directory,) = (place / "tmpdir").iterdir()
    return Kept(text=done.stdout, directory=directory)


def test_no_lesson_makes_one_run_differ_from_another(kept: Kept) -> None:
    assert "lesson" not in kept.text
    with App.open(environ=kept.environ, cwd=kept.directory) as app:
        assert app.store.lessons.list(app.user) == ()


def test_the_demo_prints_all_its_steps_and_names_the_scripted_parts(kept: Kept) -> None:
    assert "The model's words are a script, and its price is play money. All else is real" in kept.text
    told_in_order = (
        "before      python3 -m unittest discover: ",
        "attempt 1",
        "finish      The discount is fixed and every test passes.",
        "AssertionError: 500 != 499",
        "attempt 1 refused",
        "attempt 2, with the report of the problems",
        "apply_patch shop/cart.py, tests/test_cart.py",
        "attempt 2 succeeded",
        "mission promoted",
        "attempt 1 0.0210 USD for 3 replies; attempt 2 0.0235 USD for 2 replies (play money)",
        "+    return price * (100 - percent) // 100",
        "made after an action, files changed: 2",
        "model       My first version is right.",
        "mission refused",
        "no replies were requested again",
        "check_failed: python3 -m unittest discover: no test ran",
        "green       python3 -m unittest discover: passed (4 tests)",
        "red         outside: sh outside/discount.sh: failed",
        "with the tree it began with",
        "in 4 missions.",
        "nothing to commit; main has 1 commit, as before",
        'chargehand run --model PROVIDER:MODEL "TEXT"',
    )
    at = [kept.text.find(words) for words in told_in_order]
    assert -1 not in at, told_in_order[at.index(-1)]
    assert at == sorted(at)
    assert "did not come out" not in kept.text
    lines = [line for line in kept.text.splitlines() if str(kept.directory) not in line]
    assert max(map(len, lines)) <= 100


def test_the_commands_shown_by_the_demo_work_in_its_directory(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kept.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(kept.directory / "shop")
    (shown,) = re.findall(r"\$ chargehand (mission fork .+)", kept.text)
    done = CliRunner().invoke(chargehand, ["--json", *shown.split()])
    result = json.loads(done.stdout)
    assert (done.exit_code, result["status"]) == (1, "refused")
    assert [reason["code"] for reason in result["reasons"]] == ["check_failed"]


def test_a_story_from_a_later_attempt_is_the_end_of_the_full_story(kept: Kept) -> None:
    app = App(environ=kept.environ, cwd=kept.directory / "shop")
    try:
        mission = re.findall(r"mission diff (m-\w+)", kept.text)[0]
        events = app.store.log.read(mission)
        every, second = (MissionStory(app.store, first=first) for first in (1, 2))
        lines = [line for event in events for line in every.tell(event)]
        assert len(lines) > 10
        later = [line for event in events for line in second.tell(event)]
        caught_up, silent = (MissionStory(app.store, catch_up=up).tell(events[-1]) for up in (True, False))
        assert (caught_up, silent) == (lines, [])
        assert later == lines[-len(later) :]
        assert later[0].text == "  attempt 2, with the report of the problems"
    finally:
        app.close()


def test_a_demo_with_an_unexpected_reply_fails_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [replace(line, expect=("400 != 499",)) if line.attempt == 2 else line for line in SCRIPT.lines]
    monkeypatch.setattr(demo_project, "SCRIPT", Script(lines=tuple(lines)))
    repository = make_repository(tmp_path / "own", {"a": "a\n"})
    before = repository_state(repository)
    done = invoke(tmp_path, "demo", "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["ok"], document["directory"]) == (1, False, None)
    steps = {step["step"]: step["ok"] for step in document["steps"]}
    assert steps == {
        "run": False,
        "attempts": False,
        "acceptance_file_hidden_until_reported": True,
        "audit": True,
        "repository": True,
    }
    (run,) = [step["result"] for step in document["steps"] if step["step"] == "run"]
    # A person may try anyway, or name another model.
    assert run["status"] == "waiting"
    assert "400 != 499" in run["reasons"][0]["message"]
    assert list((tmp_path / "tmpdir").iterdir()) == []
    assert not (tmp_path / "chargehand_home").exists()
    assert repository_state(repository) == before
