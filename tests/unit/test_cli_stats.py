"""`chargehand stats`: its text, its document, and its speed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.conftest import make_repository

from chargehand.app.composition import App
from chargehand.cli.main import chargehand
from chargehand.core.attempt_events import AttemptStarted, SandboxClosed
from chargehand.core.errors import UsageError
from chargehand.core.mission_events import AttemptFinished, MissionCreated, MissionFinished
from chargehand.core.records import AttemptStatus, MissionRequest, MissionStatus, Reason
from chargehand.reports.reading import parse_since

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Cli:
    """A person in a repository, with missions in their log."""

    def __init__(self, place: Path) -> None:
        self.repository = make_repository(place / "repo", {"f.txt": "a\n"})
        self._missions = 0

    def __call__(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(chargehand, ["stats", *words])
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self("--json", *words))

    def mission(
        self,
        status: MissionStatus,
        attempt: AttemptStatus,
        code: str = "",
        *,
        cost: float | None = None,
        project: str | None = None,
        agent: str = "ada",
    ) -> str:
        self._missions += 1
        mission = f"m-{self._missions}"
        reasons = (Reason(code=code, message="so it is"),) if code else ()
        request = MissionRequest(text="do it", agent=agent, command=("true",), slug="do-it")
        with App.open() as app:
            owner = project or app.projects.find().id
            app.store.log.append(
                mission,
                MissionCreated(project=owner, repository=str(self.repository), request=request),
                AttemptStarted(attempt="a-1", number=1, agent=agent, workspace="w-1", tree="t"),
                SandboxClosed(
                    sandbox="s-1",
                    purpose="agent",
                    ready_seconds=0.5,
                    seconds=1.0,
                    freezes=(0.02,),
                    written_files=7,
                    written_bytes=3 << 20,
                ),
                AttemptFinished(
                    attempt="a-1",
                    status=attempt,
                    seconds=2.0,
                    reasons=reasons,
                    cost_usd=cost,
                    cost_known=cost is not None,
                ),
                MissionFinished(status=status, reasons=reasons),
            )
        return mission


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name, value in {"HOME": tmp_path, "CHARGEHAND_HOME": tmp_path / "state"}.items():
        monkeypatch.setenv(name, str(value))
    made = Cli(tmp_path)
    monkeypatch.chdir(made.repository)
    return made


def test_the_document(cli: Cli) -> None:
    cli.mission("promoted", "succeeded", cost=0.25)
    cli.mission("refused", "refused", "check_failed", cost=0.5)
    cli.mission("failed", "failed", "sandbox_died", agent="bob")
    document = cli.json()
    assert document["rates"] == {"completion": 2 / 3, "promotion": 1 / 3, "engine_failure": 1 / 3}
    assert document["missions"]["ended"] == 3
    assert document["missions"]["by_status"]["failed"] == 1
    assert document["attempts"]["by_class"] == {
        "agent": 0, "check": 1, "provider": 0, "budget": 0, "person": 0, "engine": 1
    }  # fmt: skip
    assert document["attempts"]["cost"] == {"usd": 0.75, "known": 2, "unknown": 1}
    assert document["attempts"]["seconds"] == {"known": 3, "unknown": 0, "p50": 2.0, "p95": 2.0, "p99": 2.0}
    assert document["agents"]["bob"]["cost"] == {"usd": None, "known": 0, "unknown": 1}
    assert {(one["class"], one["code"]) for one in document["causes"]} == {
        ("check", "check_failed"),
        ("engine", "sandbox_died"),
    }
    assert all(one["remedy"] and one["missions"] == one["attempts"] == 1 for one in document["causes"])
    assert document["since"] is None


def test_the_words(cli: Cli) -> None:
    cli.mission("promoted", "succeeded", cost=0.25)
    cli.mission("refused", "refused", "check_failed", agent="bob")
    shown = cli()
    assert "2 missions: 1 promoted, 1 refused" in shown
    assert "completed without engine errors  2 of 2    100.0 %" in shown
    assert "failed by an engine error        0 of 2    0.0 %" in shown
    assert "check  check_failed  1         1" in shown
    assert "cost  0.25 USD and 1 unknown" in shown
    assert "sandbox until ready   500 ms   500 ms   500 ms   2 of 2" in shown
    assert "sandbox until frozen  20 ms    20 ms    20 ms    2 of 2" in shown
    assert "memory                 unknown  unknown  unknown  0 of 2" in shown
    assert "disk                   3.0 MiB  3.0 MiB  3.0 MiB  2 of 2" in shown
    rows = [line.split() for line in shown.splitlines()]
    of_agents = [row for row in rows if row[:1] in (["ada"], ["bob"])]
    assert [row[:3] for row in of_agents[:2]] == [["ada", "1", "1"], ["bob", "1", "0"]]
    assert of_agents[1][-1] == "unknown"
    assert of_agents[2:] == [["bob", "0", "1", "0", "0", "0", "0"]]  # failures, by class


def test_statistics_without_missions_are_unknown_instead_of_zero(cli: Cli) -> None:
    assert "No missions yet. Start one:" in cli()
    assert "No missions yet since 2026-01-31" in cli("--since", "2026-01-31")
    document = cli.json("--since", "2026-01-31")
    assert document["rates"] == {"completion": None, "promotion": None, "engine_failure": None}
    assert document["attempts"]["cost"]["usd"] is None
    assert document["missions"]["seconds"]["p50"] is None
    assert document["since"] == "2026-01-31T00:00:00+00:00"


def test_of_this_repository_or_of_all(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.mission("promoted", "succeeded")
    cli.mission("refused", "refused", "no_change", project="other")
    assert cli.json()["missions"]["total"] == 1
    assert cli.json("--all")["missions"]["total"] == 2
    assert cli.json("--all")["project"] is None
    other = make_repository(tmp_path / "other", {"f.txt": "a\n"})
    assert cli.json("--repo", str(other))["missions"]["total"] == 0
    monkeypatch.chdir(tmp_path)
    assert cli.json()["missions"]["total"] == 2
    assert "both --repo" in cli("--repo", str(other), "--all", code=2)


def test_since(cli: Cli) -> None:
    cli.mission("promoted", "succeeded")
    later = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()  # in every time zone
    assert cli.json("--since", "1d")["missions"]["total"] == 1
    assert cli.json("--since", later)["missions"]["total"] == 0
    error = json.loads(cli("--json", "--since", "soon", code=2))["error"]
    assert (error["code"], "'soon'" in error["message"], "7d" in error["hint"]) == ("since_invalid", True, True)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("7d", NOW - timedelta(days=7)),
        ("12h", NOW - timedelta(hours=12)),
        ("30m", NOW - timedelta(minutes=30)),
        (" 2w ", NOW - timedelta(weeks=2)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T10:30", datetime(2026, 1, 31, 10, 30, tzinfo=UTC)),
        ("2026-01-31T10:30+02:00", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
    ],
)
def test_moments(text: str, moment: datetime) -> None:
    assert parse_since(text, now=NOW) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d",
        "7",
        "7x",
        "-7d",
        "7.5d",
        "999999w",
        "9999999d",
        "yesterday",
        "2026-02-30",
        "0001-01-01T00:00+14:00",
    ],
)
def test_no_moments(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_since(text, now=NOW)
    assert (raised.value.code, repr(text) in raised.value.message) == ("since_invalid", True)
