"""Deliveries of webhooks: only signed ones count, and only their address is read."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from tests.npm_kit import npm_package

from chargehand.forges.webhooks import LARGEST_DELIVERY, HookDelivery, read_delivery
from chargehand.testing.forges.suite import fails

SECRET = "s3cret-of-the-hook"
BODY = json.dumps({
    "action": "opened",
    "issue": {"number": 7, "title": "ignored"},
    "repository": {"full_name": "ada/demo"},
    "sender": {"login": "bob"},
}).encode()  # fmt: skip
FOUND = HookDelivery(id="d-1", event="issues", repository="ada/demo", number=7, action="opened", sender="bob")
GITLAB = json.dumps({
    "object_kind": "note",
    "user": {"username": "bob"},
    "project": {"path_with_namespace": "group/sub/demo"},
    "object_attributes": {"id": 1, "note": "hello", "action": "create"},
    "merge_request": {"iid": 9},
}).encode()  # fmt: skip


def signature(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def headers(kind: str, body: bytes = BODY, secret: str = SECRET) -> dict[str, str]:
    if kind == "github":
        signed = {"X-Hub-Signature-256": f"sha256={signature(body, secret)}"}
        return {"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d-1", **signed}
    return {"X-Gitea-Event": "issues", "X-Gitea-Delivery": "d-1", "X-Gitea-Signature": signature(body, secret)}


@pytest.mark.parametrize("kind", ["github", "gitea"])
def test_a_signed_delivery_names_its_issue(kind: str) -> None:
    assert read_delivery(kind, headers(kind), BODY, SECRET) == FOUND
    assert read_delivery(kind, {name.lower(): v for name, v in headers(kind).items()}, BODY, SECRET) == FOUND


@pytest.mark.parametrize("kind", ["github", "gitea"])
def test_another_body_secret_or_form_is_denied(kind: str) -> None:
    good = headers(kind)
    name = next(each for each in good if "Signature" in each)
    for broken in (BODY + b" ", BODY.replace(b"bob", b"eve")):
        fails("denied", lambda broken=broken: read_delivery(kind, good, broken, SECRET))
    fails("denied", lambda: read_delivery(kind, headers(kind, secret="other"), BODY, SECRET))
    for value in ("", "sha256=", good[name].upper(), good[name][:-1], "sha1=" + good[name], "\u00e9"):
        fails("denied", lambda value=value: read_delivery(kind, {**good, name: value}, BODY, SECRET))
    fails("denied", lambda: read_delivery(kind, {n: v for n, v in good.items() if n != name}, BODY, SECRET))
    # A hook without a secret is signed with the empty one by whoever knows the address.
    fails("denied", lambda: read_delivery(kind, headers(kind, secret=""), BODY, ""))
    other = "gitea" if kind == "github" else "github"
    fails("denied", lambda: read_delivery(kind, headers(other), BODY, SECRET))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"issue": 7}', b'{"issue": {"number": "7"}}', b"\xff" * 9])
def test_a_signed_body_of_another_form_is_invalid(body: bytes) -> None:
    fails("invalid", lambda: read_delivery("github", headers("github", body), body, SECRET))


def test_a_delivery_without_event_or_of_another_kind_is_invalid() -> None:
    without = {name: value for name, value in headers("gitea").items() if "Event" not in name}
    fails("invalid", lambda: read_delivery("gitea", without, BODY, SECRET))
    fails("invalid", lambda: read_delivery("local", headers("gitea"), BODY, SECRET))


def test_a_delivery_that_is_too_large_is_refused_before_it_is_hashed() -> None:
    body = b"x" * (LARGEST_DELIVERY + 1)
    fails("invalid", lambda: read_delivery("github", {}, body, SECRET))


def test_gitlab_sends_the_secret_or_a_signature() -> None:
    plain = {"X-Gitlab-Event": "Note Hook", "X-Gitlab-Token": SECRET, "Idempotency-Key": "k-1"}
    expected = HookDelivery(
        id="k-1", event="Note Hook", repository="group/sub/demo", number=9, action="create", sender="bob"
    )
    assert read_delivery("gitlab", plain, GITLAB, SECRET) == expected
    for token in ("", SECRET[:-1], SECRET.upper()):
        wrong = {**plain, "X-Gitlab-Token": token}
        fails("denied", lambda wrong=wrong: read_delivery("gitlab", wrong, GITLAB, SECRET))
    fails("denied", lambda: read_delivery("gitlab", {**plain, "X-Gitlab-Token": ""}, GITLAB, ""))


def test_gitlab_signs_by_standard_webhooks() -> None:
    key = b"k" * 32
    secret = "whsec_" + base64.b64encode(key).decode()
    signed = base64.b64encode(hmac.new(key, b"w-1.1000." + GITLAB, hashlib.sha256).digest()).decode()
    given = {
        "X-Gitlab-Event": "Note Hook",
        "webhook-id": "w-1",
        "webhook-timestamp": "1000",
        "webhook-signature": f"v1,AAAA v1,{signed}",
    }
    assert read_delivery("gitlab", given, GITLAB, secret, now=1_100.0).id == "w-1"
    fails("denied", lambda: read_delivery("gitlab", given, GITLAB, secret, now=2_000.0))
    for name, value in (("webhook-id", "w-2"), ("webhook-timestamp", "1001"), ("webhook-signature", "v1,AAAA")):
        other = {**given, name: value}
        fails("denied", lambda other=other: read_delivery("gitlab", other, GITLAB, secret, now=1_100.0))
    # A signature counts even if the secret itself was sent too.
    both = {**given, "webhook-signature": "v1,AAAA", "X-Gitlab-Token": secret}
    fails("denied", lambda: read_delivery("gitlab", both, GITLAB, secret, now=1_100.0))


def test_an_issue_of_gitlab_is_in_its_attributes() -> None:
    body = json.dumps({
        "object_kind": "issue",
        "project": {"path_with_namespace": "group/demo"},
        "object_attributes": {"iid": 3, "action": "open"},
    }).encode()  # fmt: skip
    found = read_delivery("gitlab", {"X-Gitlab-Event": "Issue Hook", "X-Gitlab-Token": SECRET}, body, SECRET)
    assert (found.repository, found.number, found.action) == ("group/demo", 3, "open")


@pytest.mark.real
def test_every_example_of_githubs_deliveries_is_read() -> None:
    package = npm_package("@octokit/webhooks-examples", "7.6.1", r"api\.github\.com/.*")
    read: list[HookDelivery] = []
    for event in json.loads(Path(package, "api.github.com/index.json").read_bytes()):
        for example in event["examples"]:
            body = json.dumps(example).encode()
            given = {**headers("github", body), "X-GitHub-Event": event["name"]}
            found = read_delivery("github", given, body, SECRET)
            assert found.action == (example.get("action") or "")
            assert found.repository == (example.get("repository") or {}).get("full_name", "")
            read.append(found)
    numbered = [each for each in read if each.number is not None]
    assert len(read) > 300
    assert {each.event for each in numbered} >= {"issues", "issue_comment", "pull_request", "pull_request_review"}
