"""Webhooks of forges: a signed one hurries the watch, every other one is refused."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

import httpx
import pytest
from forge_kit import ForgeKit
from tests.server_kit import API, Served, serving

from chargehand.app.forge.memo import ForgeMemos
from chargehand.app.forges import ForgeWatch

SECRET = "a secret of the hook"
HOOK = f"{API}/forges/home/hook"


@pytest.fixture
def kit(tmp_path: Path) -> ForgeKit:
    made = ForgeKit(tmp_path, webhook_secret='"HOME_HOOK"')
    made.environ["HOME_HOOK"] = SECRET
    file = tmp_path / ".config" / "chargehand" / "config.toml"
    # A local forge posts nothing: the server only reads what kind of signature to expect.
    file.write_text(file.read_text().replace('kind = "local"', 'kind = "gitea"'))
    return made


def _signed(body: bytes, secret: str = SECRET, **more: str) -> dict[str, str]:
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Gitea-Event": "issues", "X-Gitea-Delivery": "one", "X-Gitea-Signature": signature}
    return headers | {"Content-Type": "application/json"} | more


def _body(kit: ForgeKit, action: str = "opened") -> bytes:
    return json.dumps({"action": action, "repository": {"full_name": kit.name}, "issue": {"number": 1}}).encode()


def _post(served: Served, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return served.stranger().post(HOOK, content=body, headers=headers)


def test_webhooks(kit: ForgeKit) -> None:
    body = _body(kit)
    with serving(kit.environ, kit.place) as served:
        fine = _post(served, body, _signed(body))
        assert (fine.status_code, fine.json()) == (200, {"new": True, "repository": kit.name})
        # Replayed, also with another id, which is not signed.
        assert _post(served, body, _signed(body)).json()["new"] is False
        assert _post(served, body, _signed(body, **{"X-Gitea-Delivery": "two"})).json()["new"] is False
        # Reordered ones are as good as others: only the address counts.
        later = _body(kit, "closed")
        assert _post(served, later, _signed(later)).json()["new"] is True
        review = _body(kit, "reviewed")
        assert _post(served, review, _signed(review, **{"X-Gitea-Event": "pull_request_approved"})).json()["new"]
        forged = _body(kit, "edited")
        for headers in (_signed(forged, "wrong"), _signed(body), {"X-Gitea-Event": "issues"}):
            refused = _post(served, forged, headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "forge_denied")
        broken = b"{half"
        assert _post(served, broken, _signed(broken)).status_code == 400
        large = b" " * (9 << 20)
        assert _post(served, large, _signed(large)).status_code in (400, 413)
        unknown = served.stranger().post(f"{API}/forges/other/hook", content=body, headers=_signed(body))
        assert unknown.status_code == 404
        assert served.stranger().get(HOOK).status_code in (401, 404, 405)
    with kit.app() as app:
        assert ForgeMemos(app.store.followers).load().hints == (f"home:{kit.name}", f"home:{kit.name}!")


def test_without_a_secret_no_webhook_is_accepted(kit: ForgeKit) -> None:
    del kit.environ["HOME_HOOK"]
    body = _body(kit)
    with serving(kit.environ, kit.place) as served:
        refused = _post(served, body, _signed(body, ""))
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "forge_denied")


@pytest.mark.needs_bwrap
def test_a_hint_makes_the_watch_look_at_once(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    with kit.app() as app:
        watch = ForgeWatch(app)
        assert watch.step() == 0
        number = kit.issue()
        assert watch.step() == 0  # not due again for a while
        ForgeMemos(app.store.followers).is_new("home:review", f"home:{kit.name}!")
        assert watch.step() == 0  # a review is no new issue
        ForgeMemos(app.store.followers).is_new("home:one", f"home:{kit.name}")
        assert watch.step() == 1
    assert len(kit.comments(number)) == 1
