"""P3 for native missions: killed anywhere, no recorded reply is asked again, and tree and transcript agree.

The model's words come from a real server on loopback that counts what it is asked. The suite dies at a sample of
all points; `scripts/soak` dies at each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash_kit import Scene, Site, Yard, nothing_survives, sample
from tests.native_kit import FINISH, ModelServer, call, edit, says

pytestmark = pytest.mark.needs_bwrap
soak = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]
SCENE = Scene(name="native")
REPLIES = (
    says("I look", call("read", path="f.txt"), call("bash", command="touch ignored; echo draft > n; ls")),
    says("I mend", edit("aaa", "bbb", "f.txt"), call("bash", command="cat f.txt n && rm n; touch ignored")),
    FINISH,
)


class NativeYard(Yard):
    """A yard whose missions a model works on."""

    def __init__(self, place: Path, address: str, *, like: Yard | None = None) -> None:
        super().__init__(place, like=like)
        config = place / ".config/chargehand/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'[models.served]\nbase_url = "{address}"\nmodel = "words"\nprice = 1.0\n')

    def agent(self, site: Site) -> tuple[str, ...]:
        """Return the options for the native agent."""
        return ("--agent", "native", "--model", "served")

    def recorded(self, site: Site) -> set[int]:
        """Return the replies that are in the log."""
        return {
            int(name.split("/")[-2])
            for state in self.missions(site)
            for name in state.steps
            if name.endswith("/reply")
        }


@pytest.fixture
def server() -> Iterator[tuple[ModelServer, str]]:
    made = ModelServer(REPLIES)
    with made.running() as address:
        yield made, address


def said(server: ModelServer) -> Any:
    """Return the conversation as the model saw it last, without that it was interrupted."""
    told = server.bodies[-1]["messages"]
    return [message for message in told if not str(message["content"]).startswith("The work was interrupted")]


@pytest.mark.parametrize("points", [6, pytest.param(10_000, marks=soak)])
def test_dying_anywhere(tmp_path: Path, server: tuple[ModelServer, str], points: int) -> None:
    model, address = server
    with nothing_survives():
        like = NativeYard(tmp_path / "like", address)
        site = like.site(SCENE)
        like.run(site, plan=f"trace:{tmp_path / 'trace'}").wait()
        expected = like.examine(site)
        assert expected is not None
        assert expected.status == "promoted", like.said()
        like.at_rest()
    whole = said(model)
    assert model.asked == [1, 2, 3]
    passed = (tmp_path / "trace").read_text().splitlines()
    interesting = [point for point in passed if "step.finished" in point or "model.called" in point]
    for number, point in enumerate(sample(interesting if points < 100 else passed, points)):
        with nothing_survives():
            yard = NativeYard(tmp_path / f"yard-{number}", address, like=like)
            site = yard.site(SCENE)
            yard.die_at(point, site)
            recorded, before = yard.recorded(site), len(model.asked)
            yard.go_on()
            assert not recorded & set(model.asked[before:]), point
            assert sorted(recorded | set(model.asked[before:])) == [1, 2, 3] or not yard.missions(site)
            yard.examine(site, expected)
            yard.at_rest()
            if before < len(model.asked):
                assert said(model) == whole, point  # what a model is told after a crash is what it was told before
