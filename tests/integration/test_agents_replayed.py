"""Real agent CLIs and ACP agents, killed in the middle of their work: replies already paid for are replayed.

Like tests/integration/test_agents_real.py they have to be on PATH.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conftest import git
from tests.crash_kit import Scene, nothing_survives
from tests.integration.command_line import Cli
from tests.integration.test_agents_real import LAST, RealKit, command, installed, neutral
from tests.integration.test_agents_real import REPLIES as MENDED
from tests.integration.test_gateway_command import serving
from tests.integration.test_replayed_crashes import TalkKit, replayed
from tests.native_kit import ModelServer, call, says

from chargehand.core.attempt_events import CheckpointMade, ModelCalled, ReplayDiverged
from chargehand.core.state import MissionState
from chargehand.models.contract import Usage

pytestmark = [pytest.mark.agents_real, pytest.mark.needs_bwrap, pytest.mark.timeout(300)]
REPLIES = (
    says("I look at it.", call("read", path="f.txt")),
    says("I mend it.", call("edit", path="f.txt", old="aaa", new="bbb")),
    says("I write of it.", call("bash", command="echo mended > talk.txt")),
    says(LAST),
)
WAYS: list[tuple[str, str]] = [
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
def test_no_reply_is_asked_for_twice(tmp_path: Path, kind: str, name: str, point: str) -> None:
    installed(kind, name)
    before = [says("never asked")] if name == "qwen" else []  # its first request has an invented reply
    model = ModelServer([*before, *REPLIES], "anthropic" if name == "claude" else "openai", neutral=True)
    with nothing_survives(), model.running() as address:
        kit = TalkKit(tmp_path, [(model, address)], kind="cli", act="-", config=config(kind, name, model))
        site = kit.site(Scene(name="real"))
        kit.die_at(point, site)
        kit.go_on()
        told = [each for each in kit.events(site) if isinstance(each, ReplayDiverged)]
        assert told == [], told
        (state,) = kit.missions(site)
        assert state.status == "promoted", (state.reasons, kit.output())
        assert [turn - len(before) for turn in model.asked] == [1, 2, 3, 4]
        assert replayed(kit, site) == list(range(1, int(point[-1]) + 1))
        branch = git(site.repository, "for-each-ref", "--format=%(refname)", "refs/heads/chargehand/")
        assert git(site.repository, "show", f"{branch}:f.txt") == "bbb"
        assert git(site.repository, "show", f"{branch}:talk.txt") == "mended"
        assert git(site.repository, "diff", "--name-only", "HEAD", branch).split() == ["f.txt", "talk.txt"]


def config(kind: str, name: str, model: ModelServer) -> str:
    words = command(kind, name)
    named = f"command = {list(words)}\n" if words else ""
    return f'\n[agents.talks-1]\nkind = "{kind}"\ncli = "{name}"\n{named}model = "served-1"\n'


RECORDED: list[tuple[str, str]] = [*WAYS, ("acp", "claude")]
PROVIDERS = {"claude": "anthropic-compatible", "codex": "openai-responses", "gemini": "gemini"}
DEAR = Usage(input=20_000, output=1_000)
LOOKS = [says("Again.", call("bash", command=f"sed -n {number}p calc/core.py")) for number in range(1, 41)]


@pytest.mark.parametrize("dear", [False, True], ids=["to the end", "until the money is spent"])
@pytest.mark.parametrize(("kind", "name"), RECORDED)
def test_a_recorded_run_gives_the_same_tree_again(tmp_path: Path, kind: str, name: str, dear: bool) -> None:
    """Run `gateway record` and `gateway replay` behind the attempt's gateway, in two repositories.

    The repositories share no commit: each run creates its first one.
    """
    installed(kind, name)
    cli = Cli(tmp_path)
    replies = [replace(each, usage=DEAR) for each in (*MENDED[:2], *LOOKS)] if dear else MENDED
    (tmp_path / "script.jsonl").write_bytes(neutral(replies).dump())
    runs = []
    for run in (("record", "r.jsonl", "--script", "script.jsonl"), ("replay", "r.jsonl")):
        with serving(cli, *run) as served:
            place = tmp_path / run[0]
            place.mkdir()
            kit = RealKit(place)
            kit.environ["SERVED_KEY"] = served.place["token"]
            provider = PROVIDERS.get(name, "openai-compatible")
            address = served.place[f"{provider.partition('-')[0]}_base_url"]
            kit.model("scripted", provider=provider, base_url=address, key="SERVED_KEY")
            state = kit.agent(kind, name, "[limits]\nbudget_usd = 1.5" if dear else "")
            told = (run, state.reasons, calls(kit, state))
            assert state.status == ("exhausted" if dear else "promoted"), told
            kept = [each.checkpoint.tree for each in kit.payloads(state) if isinstance(each, CheckpointMade)]
            paid = [each for each in calls(kit, state) if each.status == "ok" and not each.bare]
            runs.append((kept[-1], len(paid), [each.code for each in state.reasons]))
            assert (2 < len(paid) < 40) if dear else (state.tree, len(paid)) == (kept[-1], 3), told
    assert runs[0] == runs[1]
    first, second = (git(tmp_path / each / "repo", "rev-parse", "HEAD") for each in ("record", "replay"))
    assert first != second


def calls(kit: RealKit, state: MissionState) -> list[ModelCalled]:
    """Return the model calls of a mission, with their status."""
    return [each for each in kit.payloads(state) if isinstance(each, ModelCalled)]
