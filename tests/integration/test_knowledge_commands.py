"""Belief networks by the command line and by the server's routes, and the rights that they need."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli
from tests.server_kit import API, Served, serving

RAIN = """{"node": "rain", "states": ["yes", "no"], "counts": [[1, 3]]}
{"node": "wet", "states": ["yes", "no"], "parents": ["rain"], "table": [[0.9, 0.1], [0.2, 0.8]]}
"""
CASES = '{"rain": "yes", "wet": "yes"}\n{"wet": "no"}\n'
DATA = Path(__file__).parents[3] / "shared/data/bayes"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "rain.ndjson").write_text(RAIN)
    (tmp_path / "cases.ndjson").write_text(CASES)
    return tmp_path


def test_a_network_is_imported_asked_updated_exported_and_removed(cli: Cli, files: Path) -> None:
    def say(*words: str) -> str:
        done = cli.say("knowledge", *words, cwd=files, as_json=False)
        assert (done.code, done.stderr) == (0, ""), done
        return done.stdout

    assert "version 1" in say("import", "rain", "rain.ndjson")
    assert say("query", "rain", "rain", "--given", "wet=yes").splitlines()[1].split() == ["yes", "0.600000"]
    before = say("export", "rain")
    assert "learned from 2 cases: version 2" in say("update", "rain", "cases.ndjson")
    assert say("export", "rain", "--number", "1") == before != say("export", "rain")
    assert [line.split()[:2] for line in say("list").splitlines()[1:]] == [
        ["failure-cause", "shipped"],
        ["promotion-risk", "shipped"],
        ["rain", "2"],
    ]
    shown = say("show", "rain")
    assert "rain, version 2" in shown
    assert "wet   yes, no  rain" in shown
    again = files / "again.ndjson"
    again.write_text(before)
    assert "version 3" in say("import", "rain", "again.ndjson")
    assert "removed with 3 versions" in say("remove", "rain")


def test_documents_and_errors(cli: Cli, files: Path) -> None:
    stored = cli.say("knowledge", "import", "rain", "rain.ndjson", cwd=files).document
    assert (stored["name"], stored["number"], stored["parent"]) == ("rain", 1, "")
    asked = cli.say("knowledge", "query", "rain", "rain", "wet", "--given", "wet=yes:3,no:1", cwd=files).document
    assert asked["targets"] == ["rain", "wet"]
    assert asked["network"]["version"] == stored["version"]
    assert sum(each["probability"] for each in asked["outcomes"]) == pytest.approx(1)
    (files / "bad.ndjson").write_text(RAIN + '{"node": "bad", "states": ["a", "b"], "table": [[0.5, 0.6]]}\n')
    bad = cli.say("knowledge", "import", "rain", "bad.ndjson", cwd=files)
    assert (bad.code, bad.error["code"]) == (2, "network_invalid")
    assert "line 3: 'bad': table row 1 sums to 1.1, not to 1" in bad.error["message"]
    missing = cli.say("knowledge", "update", "rain", "none.ndjson", cwd=files)
    assert (missing.code, missing.error["code"]) == (2, "network_file")
    impossible = cli.say("knowledge", "query", "rain", "snow", cwd=files)
    assert impossible.error["code"] == "not_found"


@pytest.mark.skipif(
    not DATA.exists() and not os.environ.get("CI"), reason="the networks are not beside this checkout"
)
def test_the_interchange_format_is_imported(cli: Cli, files: Path) -> None:
    cli.say("knowledge", "import", "child", str(DATA / "child.bif"), cwd=files)
    given = ["--given", "LowerBodyO2=<5", "--given", "XrayReport=Asy/Patchy"]
    asked = cli.say("knowledge", "query", "child", "Disease", *given, cwd=files).document
    assert {each["states"][0] for each in asked["outcomes"]} == {"PFC", "TGA", "Fallot", "PAIVS", "TAPVD", "Lung"}


@pytest.fixture
def served(cli: Cli, files: Path) -> Iterator[Served]:
    with serving(cli.environ, files) as made:
        yield made


def test_the_routes_do_the_same(served: Served) -> None:
    client = served.owner()
    place = f"{API}/knowledge/rain"
    stored = client.put(place, json={"content": RAIN})
    assert (stored.status_code, stored.json()["number"]) == (200, 1)
    query = {"targets": ["rain"], "given": ["wet=yes"]}
    assert client.get(f"{place}/posterior", params=query).json()["outcomes"][0]["probability"] == pytest.approx(
        0.6
    )
    learned = client.post(f"{place}/cases", json={"content": CASES}).json()
    assert (learned["network"]["number"], learned["cases"], learned["incomplete"]) == (2, 2, 1)
    after = client.get(f"{place}/posterior", params=query).json()
    assert after["network"] == learned["network"]
    assert after["outcomes"][0]["probability"] != pytest.approx(0.6)
    old = client.get(f"{place}/posterior", params={**query, "number": 1}).json()
    assert old["outcomes"][0]["probability"] == pytest.approx(0.6)
    assert [each["number"] for each in client.get(place).json()["versions"]] == [1, 2]
    raw = client.get(f"{place}/export", params={"format": "ndjson"})
    assert raw.headers["content-type"].startswith("application/x-ndjson")
    assert raw.text == client.get(f"{place}/export").json()["content"]
    assert [json.loads(line)["node"] for line in raw.text.splitlines()] == ["rain", "wet"]
    assert client.delete(place).json() == {"name": "rain", "versions": 2, "shipped": False}
    assert client.get(place).status_code == 404
    log = client.get(f"{API}/access").json()["entries"]
    actions = [each["action"] for each in log if each["action"].startswith("knowledge.")]
    assert actions == ["knowledge.remove", "knowledge.update", "knowledge.import"]


def test_reading_and_changing_need_rights(served: Served) -> None:
    reading, steering = served.token("read"), served.token("steer", "decide")
    place = f"{API}/knowledge/failure-cause"
    assert reading.get(place).status_code == 200
    assert reading.get(f"{place}/posterior", params={"targets": "cause"}).status_code == 200
    assert steering.get(place).status_code == 403
    for client in (reading, steering):
        assert client.put(place, json={"content": RAIN}).status_code == 403
        assert client.post(f"{place}/cases", json={"content": "{}"}).status_code == 403
        assert client.delete(place).status_code == 403
    assert served.stranger().get(place).status_code == 401
    assert reading.get(place).json()["network"]["number"] == 0


def test_wrong_requests_are_refused_with_reasons(served: Served) -> None:
    client = served.owner()
    bad = client.put(f"{API}/knowledge/rain", json={"content": "{"})
    assert (bad.status_code, bad.json()["error"]["code"]) == (422, "network_invalid")
    unknown = client.get(f"{API}/knowledge/failure-cause/posterior", params={"targets": "mood"})
    assert unknown.status_code == 404
    nothing = client.get(f"{API}/knowledge/failure-cause/posterior")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (400, "arguments_invalid")
