"""P3 for native missions: killed anywhere, no recorded reply is requested again, and tree and transcript agree.

The model is a real server on loopback that counts its requests. The suite dies at a sample of all points;
`scripts/soak` dies at each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.crash_kit import CrashKit, Scene, Site, nothing_survives, sample
from tests.native_kit import FINISH, ModelServer, call, edit, says

pytestmark = pytest.mark.needs_bwrap
soak = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]
SCENE = Scene(name="native")
REPLIES = (
    says("I look", call("read", path="f.txt"), call("bash", command="touch ignored; echo draft > n; ls")),
    says("I mend", edit("aaa", "bbb", "f.txt"), call("bash", command="cat f.txt n && rm n; touch ignored")),
    FINISH,
)


_SIDE_BY_SIDE = 6


class NativeCrashKit(CrashKit):
    """Crashes with a model, and a server behind it, for each mission."""

    def __init__(
        self, place: Path, servers: Sequence[tuple[ModelServer, str]], *, like: CrashKit | None = None
    ) -> None:
        super().__init__(place, like=like)
        self.servers = servers
        entries = [
            f'[models.served-{number}]\nprovider = "{server.dialect}-compatible"\nbase_url = "{address}"\n'
            'model = "words"\nprice = 1.0\n'
            for number, (server, address) in enumerate(servers, 1)
        ]
        config = place / ".config/chargehand/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("\n".join(entries))

    def agent(self, site: Site) -> tuple[str, ...]:
        """Return the options for the native agent."""
        return ("--agent", "native", "--model", f"served-{site.repository.name.removeprefix('repo-')}")

    def recorded(self, site: Site) -> set[int]:
        """Return the replies that the log holds."""
        names = [name for state in self.missions(site) for name in state.steps]
        return {int(name.split("/")[-2]) for name in names if name.endswith("/reply")}


@contextlib.contextmanager
def servers(count: int) -> Iterator[list[tuple[ModelServer, str]]]:
    """Serve the same words `count` times."""
    with contextlib.ExitStack() as stack:
        made = [ModelServer(REPLIES) for _ in range(count)]
        yield [(one, stack.enter_context(one.running())) for one in made]


def said(server: ModelServer) -> Any:
    """Return the conversation as the model last saw it, without the notes about interruptions."""
    told = server.bodies[-1]["messages"]
    return [message for message in told if not str(message["content"]).startswith("The work was interrupted")]


@pytest.mark.parametrize("points", [3, pytest.param(10_000, marks=soak)])
def test_dying_anywhere(tmp_path: Path, points: int) -> None:
    with nothing_survives(), servers(1) as one:
        like = NativeCrashKit(tmp_path / "like", one)
        site = like.site(SCENE)
        like.run(site, plan=f"trace:{tmp_path / 'trace'}").wait()
        expected = like.examine(site)
        assert expected is not None
        assert expected.status == "promoted", like.output()
        like.at_rest()
    whole = said(one[0][0])
    assert one[0][0].asked == [1, 2, 3]
    passed = (tmp_path / "trace").read_text().splitlines()
    telling = [point for point in passed if "step.finished" in point or "model.called" in point]
    chosen = sample(passed if points > len(passed) else telling, points)
    for first in range(0, len(chosen), _SIDE_BY_SIDE):
        some = chosen[first : first + _SIDE_BY_SIDE]
        with nothing_survives(), servers(len(some)) as many:
            kit = NativeCrashKit(tmp_path / f"crashes-{first}", many, like=like)
            sites = [kit.site(SCENE) for _ in some]
            for site, point in zip(sites, some, strict=True):
                kit.die_at(point, site)
            recorded = [kit.recorded(site) for site in sites]
            before = [len(server.asked) for server, _ in many]
            kit.go_on()
            for site, point, (server, _), had, count in zip(sites, some, many, recorded, before, strict=True):
                asked = server.asked[count:]
                assert not had & set(asked), point
                assert len(asked) == len(set(asked)), point
                kit.examine(site, expected)
                if asked:
                    assert said(server) == whole, point  # the model gets the same text as without a crash
            kit.at_rest()


def test_a_reply_that_was_paid_for_is_not_lost_between_bill_and_record(tmp_path: Path) -> None:
    """The worker dies once the reply is on the disk, before its step is in the log."""
    points = {"after kept#2": 2, "before settled#1": 1, "after model.called#3": 3}
    with nothing_survives(), servers(len(points)) as many:
        kit = NativeCrashKit(tmp_path, many)
        sites = [kit.site(SCENE) for _ in points]
        for site, point in zip(sites, points, strict=True):
            kit.die_at(point, site)
        had = [kit.recorded(site) for site in sites]
        kit.go_on()
        for site, point, (server, _), before in zip(sites, points, many, had, strict=True):
            assert points[point] not in before, point
            assert server.asked == [1, 2, 3], point
            (state,) = kit.missions(site)
            assert state.status == "promoted", (point, state.reasons)
            assert (state.attempts[0].calls, list((kit.home / "calls").glob("*"))) == (3, []), point
            # Three times 1,000 tokens read and 100 written, at 1 USD per million: the reserve does not count.
            assert state.attempts[0].cost_usd == pytest.approx(0.0033), point
            assert state.attempts[0].booked_usd == pytest.approx(0.0033), point
        kit.at_rest()
