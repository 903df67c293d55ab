"""Statistics of models, from the calls in the log."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chargehand.cli.main import chargehand
from chargehand.core.attempt_events import ModelCalled
from chargehand.core.events import decode
from chargehand.core.mission_events import MissionCreated
from chargehand.core.records import MissionRequest
from chargehand.core.state import AttemptState
from chargehand.missions.model_statistics import ModelTally
from chargehand.store.store import open_store


def called(call: str, **more: Any) -> ModelCalled:
    values: dict[str, Any] = {
        "call": call,
        "attempt": "a",
        "turn": 1,
        "model": "big",
        "upstream": "up",
        "provider": "https://p.example.org/v1",
        "status": "ok",
        "http_status": 200,
        "seconds": 2.0,
        "input_tokens": 100,
        "output_tokens": 10,
        "cost_usd": 0.5,
        "cost_known": True,
        "booked_usd": 0.5,
        **more,
    }
    return ModelCalled(**values)


def attempt(id: str, **more: Any) -> AttemptState:
    return AttemptState(id=id, number=1, agent="native", workspace="w", **more)


def test_known_values_are_summed_and_unknown_values_counted() -> None:
    tally = ModelTally()
    failed = {
        "status": "failed",
        "input_tokens": None,
        "output_tokens": None,
        "cost_usd": None,
        "cost_known": False,
    }
    calls = [
        called(
            "c1",
            first_seconds=0.5,
            reported_usd=0.4,
            skipped=("small (s): it takes no images",),
            retried=("429", "503"),
        ),
        called("c2", seconds=4.0, converted=("a file as text",), retried=("429",)),
        called("c2", seconds=4.0),
        called("c3", **failed, http_status=429, reason="upstream_error: HTTP 429", booked_usd=1.0),
        called("c4", **failed, reason="client_gone: the client went away: it seems"),
        called("c5", status="refused", cost_usd=0.0, output_tokens=None, reason="budget_exhausted: used up"),
        called("c6", attempt="b", model="small", upstream="s"),
        called("c7", attempt="a", model="big", operation="embed", output_tokens=0, seconds=1.0),
    ]
    tally.add(
        calls, [attempt("a", status="succeeded", verdict="green"), attempt("b", status="failed", verdict="red")]
    )
    big, small = tally.stats()
    assert (big.model, big.calls, big.by_status) == ("big", 6, {"failed": 2, "ok": 3, "refused": 1})
    assert big.errors == {"upstream_error 429": 1, "client_gone": 1, "budget_exhausted": 1}
    assert (big.skips, big.converted) == (1, 1)
    assert (big.retries, small.retries) == ({"429": 2, "503": 1}, {})
    assert (big.tokens.input, big.tokens.output, big.tokens.unknown) == (400, 20, 2)
    assert (big.cost.usd, big.cost.known, big.cost.unknown) == (1.5, 4, 2)
    assert (big.reported.usd, big.reported.known) == (0.4, 1)
    assert (big.seconds.p50, big.seconds.p95, big.first.p50, big.first.unknown) == (2.0, 4.0, 0.5, 2)
    assert big.tokens_per_second == pytest.approx(20 / 6)
    assert (big.attempts, big.by_end, big.verdicts) == (1, {"succeeded": 1}, {"green": 1})
    assert (small.attempts, small.verdicts) == (1, {"red": 1})


def test_unknown_values_are_null_rather_than_zero() -> None:
    tally = ModelTally()
    tally.add([called("c", status="lost", cost_usd=None, cost_known=False, output_tokens=None, reason="died")], [])
    (row,) = tally.stats()
    assert (row.cost.usd, row.reported.usd, row.seconds.p50, row.first.p50, row.tokens_per_second) == (None,) * 5
    assert row.errors == {"lost": 1}


def test_a_line_of_an_older_version_is_read() -> None:
    old = {
        "call": "c",
        "attempt": "a",
        "turn": 1,
        "model": "m",
        "upstream": "u",
        "status": "ok",
        "http_status": 200,
    }
    read = decode("model.called", json.dumps({**old, "seconds": 1.0}).encode())
    assert isinstance(read, ModelCalled)
    assert (read.provider, read.operation, read.first_seconds, read.skipped) == ("", "reply", None, ())


def test_model_stats_without_calls_reports_an_empty_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    done = CliRunner().invoke(chargehand, ["model", "stats", "--since", "7d"])
    assert (done.exit_code, "No model was called since" in done.output) == (0, True)
    shown = CliRunner().invoke(chargehand, ["model", "stats", "--json"])
    empty = {"project": None, "since": None, "models": [], "learns": False, "learned": []}
    assert json.loads(shown.stdout) == empty


def test_an_invoice_has_each_call_that_a_provider_may_charge_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    request = MissionRequest(text="x", agent="a", command=(), slug="x")
    created = MissionCreated(project="p-1", repository="/r", request=request)
    with open_store(tmp_path / "state") as store:
        store.log.append("m-1", created)
        for number in range(1200):  # more than one page of the log
            store.log.append("m-1", called(f"c{number}", cost_usd=0.01, cache_write_tokens=7, hour_write_tokens=2))
        unknown = {"cost_usd": None, "cost_known": False, "input_tokens": None, "output_tokens": None}
        store.log.append("m-1", called("cut", status="cut", **unknown, booked_usd=0.25))
        store.log.append("m-1", called("no", status="refused"), called("c1", status="replayed"))
    done = CliRunner().invoke(chargehand, ["model", "invoice", "--all"])
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert done.exit_code == 0, done.output
    assert len(rows) == 1201
    assert {row["provider"] for row in rows} == {"https://p.example.org/v1"}
    assert sum(Decimal(row["cost_usd"]) for row in rows[:-1]) == Decimal("12.00")
    assert (rows[0]["cache_write_tokens"], rows[0]["hour_write_tokens"]) == ("7", "2")
    assert (rows[-1]["call"], rows[-1]["cost_usd"], rows[-1]["booked_usd"]) == ("cut", "", "0.25")
    shown = CliRunner().invoke(chargehand, ["model", "invoice", "--all", "--json", "--since", "2100-01-01"])
    assert json.loads(shown.stdout)["lines"] == []
