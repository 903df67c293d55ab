"""Real agent CLIs and ACP agents, killed in the midst of their work: what was paid for is given to them again.

Like tests/integration/test_agents_real.py they have to be on PATH.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import git
from tests.crash_kit import Scene, nothing_survives
from tests.integration.desk import Desk
from tests.integration.test_agents_real import LAST, RealShop, command, installed, neutral
from tests.integration.test_agents_real import REPLIES as MENDED
from tests.integration.test_gateway_command import serving
from tests.integration.test_replayed_crashes import TalkYard, replayed
from tests.native_kit import ModelServer, call, says

from chargehand.core import CliName, MissionState, ModelCalled, ReplayDiverged

pytestmark = [pytest.mark.agents_real, pytest.mark.needs_bwrap, pytest.mark.timeout(300)]
REPLIES = (
    says("I look at it.", call("read", path="f.txt")),
    says("I mend it.", call("edit", path="f.txt", old="aaa", new="bbb")),
    says("I write of it.", call("bash", command="echo mended > talk.txt")),
    says(LAST),
)
WAYS: list[tuple[str, CliName]] = [
    ("cli", "claude"),
    ("cli", "codex"),
    ("cli", "gemini"),
    ("cli", "opencode"),
    ("cli", "qwen"),
    ("acp", "opencode"),
    ("acp", "gemini"),
]


@pytest.mark.parametrize("point", ["after model.called#3", "before settled#2"])
@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_no_reply_is_asked_for_twice(tmp_path: Path, kind: str, name: CliName, point: str) -> None:
    installed(kind, name)
    before = [says("never asked")] if name == "qwen" else []  # it begins with words of the model's that it made up
    model = ModelServer([*before, *REPLIES], "anthropic" if name == "claude" else "openai", neutral=True)
    with nothing_survives(), model.running() as address:
        yard = TalkYard(tmp_path, [(model, address)], kind="cli", act="-", config=config(kind, name, model))
        site = yard.site(Scene(name="real"))
        yard.die_at(point, site)
        yard.go_on()
        told = [each for each in yard.events(site) if isinstance(each, ReplayDiverged)]
        assert told == [], told
        (state,) = yard.missions(site)
        assert state.status == "promoted", (state.reasons, yard.said())
        assert [turn - len(before) for turn in model.asked] == [1, 2, 3, 4]
        assert replayed(yard, site) == list(range(1, int(point[-1]) + 1))
        branch = git(site.repository, "for-each-ref", "--format=%(refname)", "refs/heads/chargehand/")
        assert git(site.repository, "show", f"{branch}:f.txt") == "bbb"
        assert git(site.repository, "show", f"{branch}:talk.txt") == "mended"
        assert git(site.repository, "diff", "--name-only", "HEAD", branch).split() == ["f.txt", "talk.txt"]


def config(kind: str, name: CliName, model: ModelServer) -> str:
    words = command(kind, name)
    named = f"command = {list(words)}\n" if words else ""
    return f'\n[agents.talks-1]\nkind = "{kind}"\ncli = "{name}"\n{named}model = "served-1"\n'


@pytest.mark.parametrize(("kind", "name"), [("cli", "codex")])
def test_a_recorded_run_gives_the_same_tree_again(tmp_path: Path, kind: str, name: CliName) -> None:
    """`gateway record` and `gateway replay`, each behind the attempt's own gateway."""
    installed(kind, name)
    desk = Desk(tmp_path)
    (tmp_path / "script.jsonl").write_bytes(neutral(MENDED).dump())
    trees = []
    for run in (("record", "r.jsonl", "--script", "script.jsonl"), ("replay", "r.jsonl")):
        with serving(desk, *run) as served:
            place = tmp_path / run[0]
            place.mkdir()
            shop = RealShop(place)
            shop.environ["SERVED_KEY"] = served.place["token"]
            address = served.place["openai_base_url"]
            shop.model("scripted", provider="openai-compatible", base_url=address, key="SERVED_KEY")
            state = shop.agent(kind, name)
            assert state.status == "promoted", (run, state.reasons, calls(shop, state))
            trees.append(state.tree)
    assert trees[0] == trees[1]


def calls(shop: RealShop, state: MissionState) -> list[ModelCalled]:
    """Return how the calls ended, for who reads why a test failed."""
    return [each for each in shop.payloads(state) if isinstance(each, ModelCalled)]
