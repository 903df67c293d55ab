"""Missions through the web server: its answers equal those of the commands, and its actions take effect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from command_line import Cli, repository, shell
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import git
from tests.crash_kit import wait_until
from tests.server_kit import API, Served, frames, serving

from chargehand.app.composition import App
from chargehand.operations.table import OPERATIONS
from chargehand.server.openapi import openapi_document

pytestmark = pytest.mark.needs_bwrap
SETTLED = ("promoted", "refused", "failed", "waiting", "cancelled", "discarded", "exhausted", "paused")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("cli"))
    yield made
    wait_until(lambda: not workers(made))


@pytest.fixture(scope="module")
def repo(cli: Cli) -> Path:
    return repository(cli.place / "repo")


@pytest.fixture(scope="module")
def served(cli: Cli, repo: Path) -> Iterator[Served]:
    with serving(cli.environ, repo, worker=True) as made:
        yield made


@pytest.fixture(scope="module")
def client(served: Served, repo: Path) -> httpx.Client:
    made = served.owner()
    assert made.post(f"{API}/projects", json={"path": str(repo)}).status_code == 201
    return made


@pytest.fixture(scope="module")
def promoted(cli: Cli, repo: Path) -> str:
    return str(cli.run(repo).document["mission"])


@pytest.fixture(scope="module")
def waiting(cli: Cli, repo: Path) -> str:
    result = cli.run(repo, agent=shell("sed -i s/a/b/ f.txt; touch conftest.py"))
    assert result.document["status"] == "waiting", result
    return str(result.document["mission"])


def workers(cli: Cli) -> list[str]:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        return [member.id for member in app.workers.members()]


def settled(client: httpx.Client, mission: str) -> dict[str, Any]:
    """Wait until a mission is settled, and return it."""
    until = time.monotonic() + 120
    while True:
        found: dict[str, Any] = client.get(f"{API}/missions/{mission}").json()
        if found["status"] in SETTLED:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.1)


# --- reading


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("mission", "show", "{mission}"), "/missions/{mission}"),
        (("mission", "diff", "{mission}"), "/missions/{mission}/diff"),
        (("mission", "report", "{mission}"), "/missions/{mission}/report"),
        (("mission", "rollback", "{mission}", "--dry-run"), "/missions/{mission}/rollback"),
        (("checkpoint", "list", "{mission}"), "/missions/{mission}/checkpoints"),
        (("artifact", "list", "{mission}"), "/missions/{mission}/artifacts"),
        (("project", "list"), "/projects"),
        (("role", "list"), "/roles?project={project}"),
        (("team", "list"), "/teams"),
        (("agent", "list"), "/agents?project={project}"),
        (("model", "list"), "/models?project={project}"),
        (("model", "stats", "--all"), "/stats/models"),
        (("stats", "--all"), "/stats"),
        (("config", "show", "--origin"), "/config?project={project}"),
        (("project", "show"), "/projects/{project}"),
        (("policy", "show"), "/policy?project={project}"),
        (("role", "show", "reviewer"), "/roles/reviewer?project={project}"),
        (("model", "invoice", "--all"), "/stats/invoice"),
        (("action", "list"), "/actions"),
        (("audit", "provenance", "{mission}"), "/audit/provenance?mission={mission}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_route_returns_the_same_document_as_its_command(
    cli: Cli, repo: Path, client: httpx.Client, promoted: str, words: tuple[str, ...], path: str
) -> None:
    project = client.get(f"{API}/projects").json()["projects"][0]["id"]
    names = {"mission": promoted, "project": project}
    result = cli.say(*(word.format(**names) for word in words), cwd=repo)
    answer = client.get(API + path.format(**names))
    assert (result.code, answer.status_code) == (0, 200), (result, answer.text)
    assert answer.json() == result.document


def test_the_log_is_the_commands_log(cli: Cli, repo: Path, client: httpx.Client, promoted: str) -> None:
    lines = [json.loads(line) for line in cli.say("mission", "log", promoted, cwd=repo).stdout.splitlines()]
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = client.get(f"{API}/missions/{promoted}/events", params={"after": after, "limit": 7}).json()
        assert len(page["events"]) <= 7
        found += page["events"]
        after = page["next"]
    for line, event in zip(lines, found, strict=True):
        for key in ("mission", "seq", "time", "type", "step"):
            assert event[key] == line[key]
        assert event["payload"] in (line["payload"], None)
    assert page["last_seq"] == lines[-1]["seq"]


def test_every_document_matches_its_schema(client: httpx.Client, promoted: str, waiting: str) -> None:
    document = openapi_document()
    checked = 0
    for route in OPERATIONS:
        if route.method != "GET" or route.path_names not in ((), ("mission",)):
            continue
        for mission in (promoted, waiting) if route.path_names else ("",):
            answer = client.get(API + route.path.format(mission=mission))
            if answer.status_code != 200:
                # No plan, nothing to take back, or missing arguments: an error of the right form.
                assert set(answer.json()["error"]) == {"code", "message", "hint"}, answer.text
                continue
            described = document["paths"][API + route.path]["get"]["responses"]["200"]["content"]
            assert answer.headers["content-type"].partition(";")[0] in described
            if "application/json" not in described:  # lines, as the log has them
                continue
            schema = described["application/json"]["schema"] | {"components": document["components"]}
            Draft202012Validator(schema).validate(thinned(answer.json()))
            checked += 1
    assert checked > 20


def thinned(document: Any) -> Any:
    """Return a document without most rows of its long lists: the catalogue has thousands, which take seconds."""
    if isinstance(document, dict):
        return {key: thinned(value) for key, value in document.items()}
    return document[:: max(1, len(document) // 50)] if isinstance(document, list) else document


def test_an_unchanged_document_is_a_304(client: httpx.Client, promoted: str) -> None:
    first = client.get(f"{API}/missions/{promoted}")
    again = client.get(f"{API}/missions/{promoted}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"{API}/missions/{promoted}", headers={"If-None-Match": '"another"'})
    assert other.json() == first.json()


def test_a_file_is_compared(client: httpx.Client, promoted: str) -> None:
    found = client.get(f"{API}/missions/{promoted}/diff/file", params={"path": "f.txt"}).json()
    assert (found["old"], found["new"]) == ("aaa\n", "baa\n")
    assert "-aaa" in found["patch"]
    missing = client.get(f"{API}/missions/{promoted}/diff/file", params={"path": "none"})
    assert missing.status_code == 404


def test_the_hunks_of_a_review_can_be_restored(cli: Cli, repo: Path, client: httpx.Client) -> None:
    edit = shell("sed -i s/aaa/bbb/ f.txt; sed -i s/ggg/xxx/ g.txt; touch conftest.py")
    mission = cli.run(repo, agent=edit).document["mission"]
    review = client.get(f"{API}/missions/{mission}/review").json()
    files = {file["path"]: file for file in review["files"]}
    assert review["verdict"] is not None
    assert review["files"][0]["path"] == "conftest.py"
    assert "check_surface" in {reason["code"] for reason in files["conftest.py"]["reasons"]}
    hunk = files["f.txt"]["hunks"][0]
    assert (files["f.txt"]["patch"], hunk["attempt"]) == ("@@ -1,1 +1,1 @@\n-aaa\n+bbb\n", 1)
    body = {"checkpoint": "base", "hunks": [hunk["reject"]], "files": ["conftest.py"]}
    plan = client.post(f"{API}/missions/{mission}/restore", json=body | {"dry_run": True}).json()["plan"]
    done = client.post(f"{API}/missions/{mission}/restore", json=body).json()["plan"]
    assert (plan["source"], plan["result"]) == (review["tree"], done["result"])
    left = client.get(f"{API}/missions/{mission}/review").json()
    assert (left["tree"], left["verdict"]) == (done["result"], None)
    assert [file["hunks"][0]["id"] for file in left["files"]] == [files["g.txt"]["hunks"][0]["id"]]
    old = client.post(f"{API}/missions/{mission}/promote", json={"tree": review["tree"]})
    assert (old.status_code, old.json()["error"]["code"]) == (409, "tree_changed")


# --- acting


def start(client: httpx.Client, agent: str, **more: Any) -> httpx.Response:
    project = client.get(f"{API}/projects").json()["projects"][0]["id"]
    return client.post(f"{API}/missions", json={"request": "mend", "repo": project, "agent": agent, **more})


def test_a_mission_is_started_once_by_its_key_and_promoted_by_the_worker(client: httpx.Client, repo: Path) -> None:
    agent = "command:sed -i s/g/h/ g.txt"
    first = start(client, agent, key="one", checks=["true"])
    again = start(client, agent, key="one", checks=["true"])
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["mission"] == again.json()["mission"]
    other = start(client, agent, key="one", checks=["false"])
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
    found = settled(client, first.json()["mission"])
    assert found["status"] == "promoted", found
    assert git(repo, "show", f"{found['branch']}:g.txt") == "hgg"


def test_a_waiting_result_is_looked_at_and_promoted(client: httpx.Client, waiting: str, repo: Path) -> None:
    found = client.get(f"{API}/missions/{waiting}").json()
    changed = client.post(f"{API}/missions/{waiting}/promote", json={"tree": "0" * 40})
    assert (changed.status_code, changed.json()["error"]["code"]) == (409, "tree_changed")
    answer = client.post(f"{API}/missions/{waiting}/promote", json={"reason": "seen"})
    assert answer.status_code in (200, 202), answer.text
    found = settled(client, waiting)
    assert found["status"] == "promoted"
    undone = client.post(f"{API}/missions/{waiting}/rollback")
    assert undone.status_code in (200, 202), undone.text
    assert client.get(f"{API}/missions/{waiting}").json()["rolled_back"]
    assert git(repo, "show", f"{found['branch']}:f.txt") == "aaa"


def test_the_actor_of_a_decision_is_the_account(served: Served, cli: Cli, repo: Path) -> None:
    result = cli.run(repo, agent=shell("sed -i s/a/b/ f.txt; touch conftest.py"))
    mission = result.document["mission"]
    viewer, operator = served.user("vera", "viewer"), served.user("olaf", "operator")
    refused = viewer.post(f"{API}/missions/{mission}/discard")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "access_denied")
    assert operator.post(f"{API}/missions/{mission}/discard").status_code == 200
    started = start(operator, "command:true", checks=["true"]).json()["mission"]
    events = operator.get(f"{API}/missions/{started}/events").json()["events"]
    assert events[0]["payload"]["user"] == "account:olaf"
    assert settled(operator, started)["status"] == "refused"


def test_a_running_mission_is_paused_resumed_and_cancelled(client: httpx.Client) -> None:
    mission = start(client, shell("sleep 60"), checks=["true"]).json()["mission"]
    wait_until(lambda: client.get(f"{API}/missions/{mission}").json()["attempts"])
    paused = client.post(f"{API}/missions/{mission}/pause", json={"reason": "lunch"})
    assert (paused.status_code, paused.json()["status"]) == (200, "paused"), paused.text
    assert client.post(f"{API}/missions/{mission}/resume", json={}).status_code == 200
    wait_until(lambda: client.get(f"{API}/missions/{mission}").json()["status"] == "running")
    cancelled = client.post(f"{API}/missions/{mission}/cancel")
    assert cancelled.json()["status"] == "cancelled", cancelled.text
    twice = client.post(f"{API}/missions/{mission}/cancel")
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "not_cancellable")


# --- the feed


def test_the_event_feed_is_complete_and_resumes_from_a_position(
    served: Served, client: httpx.Client, promoted: str
) -> None:
    with served.reader() as reader:
        log = reader.store.log
        expected = [(each.position, each.event.mission, each.event.seq) for each in log.after(0, mission=promoted)]
    address = f"/events?mission={promoted}"
    found = frames(client, f"{address}&after=0", len(expected))
    assert [(data["id"], data["mission"], data["seq"]) for _, data in found] == expected
    middle = expected[len(expected) // 2][0]
    rest = frames(
        client, address, sum(place > middle for place, _, _ in expected), **{"Last-Event-ID": str(middle)}
    )
    assert [data["id"] for _, data in rest] == [place for place, _, _ in expected if place > middle]


def test_an_unknown_feed_position_gets_a_reset(client: httpx.Client) -> None:
    (event, data), *_ = frames(client, "/events?after=1000000", 1)
    assert event == "reset"
    assert data["position"] == data["id"] < 1_000_000


def test_openapi_is_served_and_is_json(served: Served) -> None:
    answer = served.stranger().get("/openapi.json")
    assert answer.json() == msgspec.json.decode(msgspec.json.encode(openapi_document()))


def test_metrics_match_the_store(served: Served, client: httpx.Client, promoted: str) -> None:
    assert served.stranger().get("/metrics").status_code == 401
    client.get(f"{API}/missions")
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    told = {sample.labels["status"]: sample.value for sample in families["chargehand_missions"].samples}
    with served.reader() as reader:
        counts = reader.store.log.counts(reader.workers.live)
    assert told == {status: float(count) for status, count in counts.items()}
    requests = families["chargehand_request_seconds"].samples
    labels = {"route": "get_missions", "status": "200"}
    assert any(each.name.endswith("_count") and each.labels == labels and each.value >= 1 for each in requests)
    assert families["chargehand_workers"].samples[0].value >= 1


@pytest.mark.parametrize("path", ["models/a%0Ab", "nothing/a%0Ab%E2%80%A8c", "missions/nobody%0A"])
def test_an_address_with_line_breaks_is_answered_as_any_other(client: httpx.Client, path: str) -> None:
    answer = client.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    assert answer.json()["error"]["code"] in ("not_found", "no_route")
