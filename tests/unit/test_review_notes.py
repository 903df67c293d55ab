"""Notes of people during a review: visible to other browsers and colleagues, and never overwritten unseen."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server_kit import API, Served, environment, record_missions, serving

from chargehand.identity.accounts import owner, remove_user

OWN = f"{API}/missions/m-00000/review/decisions"
ALL = f"{API}/missions/m-00000/reviews"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    with serving(environment(place), place) as made:
        with made.reader() as reader:
            record_missions(reader, 2)
        yield made


def notes(*rejected: str, **comments: str) -> dict[str, Any]:
    return {"tree": "t1", "decided": dict.fromkeys(rejected, "rejected"), "comments": comments}


def put(client: httpx.Client, body: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    answer = client.put(OWN, json=body | more)
    return answer.status_code, answer.json()


def test_review_notes_are_written_per_user_and_readable_by_all(served: Served) -> None:
    ada, own, reading = served.user("ada", "operator"), served.owner(), served.token("read")
    empty = ada.get(OWN).json()
    assert (empty["revision"], empty["user"], empty["decided"], empty["changed"]) == (0, "ada", {}, "")
    status, kept = put(ada, notes("h1", h2="why?"), revision=0)
    assert (status, kept["revision"], kept["comments"]) == (200, 1, {"h2": "why?"})
    assert put(own, notes("h3"), revision=0)[1]["revision"] == 1
    assert ada.get(OWN).json() == kept
    assert reading.get(OWN).json() == served.owner().get(OWN).json()  # another browser, and a program
    found = {each["user"]: each["decided"] for each in reading.get(ALL).json()["reviews"]}
    assert found == {"ada": {"h1": "rejected"}, owner_name(served): {"h3": "rejected"}}
    assert put(reading, notes(), revision=1)[1]["error"]["code"] == "access_denied"
    # A viewer keeps notes as well: they decide nothing.
    vera = served.user("vera", "viewer")
    assert put(vera, notes("h1"), revision=0)[0] == 200
    assert vera.post(f"{API}/missions/m-00000/restore", json={}).json()["error"]["code"] == "access_denied"
    assert ada.get(f"{API}/missions/m-00001/reviews").json()["reviews"] == []
    assert ada.get(f"{API}/missions/m-none/reviews").status_code == 404
    with served.reader() as reader:
        for user in ("ada", "vera"):
            remove_user(reader, user, by=owner(reader))
    assert [each["user"] for each in reading.get(ALL).json()["reviews"]] == [owner_name(served)]


def owner_name(served: Served) -> str:
    with served.reader() as reader:
        return owner(reader).user


def test_concurrent_writes_of_review_notes_conflict(served: Served) -> None:
    client = served.owner()
    before = client.get(OWN).json()["revision"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: put(client, notes(f"h{number}"), revision=before), range(8)))
    assert sorted(status for status, _ in answers) == [200] + [412] * 7
    assert {each["error"]["code"] for status, each in answers if status == 412} == {"review_changed"}
    tag = client.get(OWN).headers["etag"]
    assert client.get(OWN, headers={"If-None-Match": tag}).status_code == 304
    assert client.put(OWN, json=notes("h9"), headers={"If-Match": tag}).json()["revision"] == before + 2
    stale = client.put(OWN, json=notes(), headers={"If-Match": tag})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "review_changed")
    assert client.get(OWN).json()["decided"] == {"h9": "rejected"}


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (notes(), {}, 400, "arguments_invalid"),  # the revision is missing
        (notes(), {"If-Match": "*"}, 400, "arguments_invalid"),
        (notes(), {"If-Match": 'W/"1-00"'}, 400, "arguments_invalid"),
        ({"revision": 0}, {}, 400, "arguments_invalid"),
        (notes() | {"revision": -1}, {}, 400, "arguments_invalid"),
        (notes() | {"revision": 0, "decided": {"h": "perhaps"}}, {}, 400, "arguments_invalid"),
        (notes() | {"revision": 0, "comments": {"h": "x" * 5_000}}, {}, 400, "arguments_invalid"),
        (
            notes() | {"revision": 0, "comments": {str(number): "x" * 4_000 for number in range(200)}},
            {}, 422, "review_too_long",
        ),
        (notes() | {"revision": 7}, {}, 412, "review_changed"),
        (notes() | {"revision": 0}, {"If-Match": '"7-00"'}, 400, "arguments_invalid"),  # two different revisions
    ],
)  # fmt: skip
def test_invalid_review_notes_are_refused_and_change_no_revision(
    served: Served, body: dict[str, Any], headers: dict[str, str], status: int, code: str
) -> None:
    client, own = served.owner(), OWN.replace("m-00000", "m-00001")
    answer = client.put(own, json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert client.get(own).json()["revision"] == 0


def test_damaged_review_notes_read_as_empty_and_can_be_replaced(tmp_path: Path) -> None:
    with serving(environment(tmp_path), tmp_path) as made:
        with made.reader() as reader:
            record_missions(reader, 1)
            client = made.owner()
            put(client, notes("h1"), revision=0)
            with reader.store.database.write() as database:
                database.execute("UPDATE reviews SET content = 'text'")
        found = client.get(OWN).json()
        assert (found["revision"], found["decided"]) == (1, {})
        assert put(client, notes("h2"), revision=1)[0] == 200
