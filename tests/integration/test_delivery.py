"""A mission is promoted although a further delivery target is blocked, and a person's command delivers it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conftest import git
from tests.integration.command_line import MEND, PASSES, Cli, repository
from tests.integration.mission_kit import REQUEST, MissionKit

from chargehand.cli.terminal.output import Output
from chargehand.cli.terminal.rendering import show_details
from chargehand.missions.missions import Missions
from chargehand.reports.documents import mission_details
from chargehand.testing.delivery.fake_target import FakePlace

pytestmark = pytest.mark.needs_bwrap


async def test_a_blocked_target_is_shown_and_delivered_by_promoting_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = MissionKit(tmp_path)
    outside = FakePlace(tmp_path, blocked="closed for today")
    app = kit.app()
    try:
        async with app.session() as session:
            services = replace(session.missions._services, targets=(outside.opens(),))
            missions = Missions(services, controls=session.missions._controls)
            wanted = replace(REQUEST, agent="command:sh -c 'echo x > made.txt'", only_checks=("true",), apply=True)
            mission = missions.create(wanted, repository=str(kit.repository), base=session.base, config={})
            state = await missions.run(mission)
            assert (state.status, state.deliveries["fake"].state) == ("promoted", "blocked")
            assert state.exported == state.commit
            details = mission_details(state, [], None)
            show_details(Output(as_json=False), state, details)
            shown = capsys.readouterr().out
            assert [each.target for each in details.deliveries] == ["fake"]
            assert "\ndelivery  fake: blocked" in shown
            assert "closed for today" in shown.partition("delivery  fake: ")[2].partition("\n")[0]
            outside.blocked = ""
            again = await missions.promote(mission, identity="ada")
    finally:
        app.close()
    assert (again.status, again.commit, again.deliveries["fake"].state) == ("promoted", state.commit, "done")
    assert outside.commits == [state.commit]


def test_the_prefix_of_branches_is_a_setting_and_a_branch_in_its_way_costs_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    repo = repository(tmp_path / "repo")
    git(repo, "branch", "chargehand")
    error = cli.refused("branch_in_the_way", 2, "run", "mend", "--agent", MEND, *PASSES, cwd=repo)
    assert "git branch -m chargehand NAME" in error["hint"]
    assert cli.missions(repo) == []
    own = tmp_path / ".config/chargehand/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[project]\nbranch_prefix = "team/agent-"\n')
    done = cli.run(repo, text="Исправь")
    assert done.document["branch"] == "team/agent-isprav"
    assert git(repo, "show", "team/agent-isprav:f.txt") == "baa"
