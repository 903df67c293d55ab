"""Sign-in at forges: a real Gitea by OpenID Connect, and a stand-in of GitHub, checked against its description."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.forge_stand_in import Answer, Asked
from tests.gitea_kit import PASSWORD, gitea
from tests.github_stand_in import openapi
from tests.oidc_stand_in import PENDING, Keys, OidcStandIn, oidc_stand_in
from tests.oidc_stand_in import Answer as Reply
from tests.server_kit import API, environment, serving

from chargehand.core.errors import InfrastructureError, RefusedError
from chargehand.core.own_config import SignInConfig
from chargehand.core.ports import ExternalSubject
from chargehand.identity.providers import open_providers
from chargehand.server.serving import bind


def fields_of(page: str, needle: str) -> dict[str, str]:
    """Return the hidden fields of the form that contains a text."""
    for form in re.findall(r"<form.*?</form>", page, re.S):
        if needle in form:
            names = re.findall(r'<input[^>]*?name="([^"]+)"[^>]*>', form)
            inputs = re.findall(r"<input[^>]*?name=[^>]*>", form)
            values = [re.search(r'value="([^"]*)"', each) for each in inputs]
            return {name: unescape(value[1]) if value else "" for name, value in zip(names, values, strict=True)}
    raise AssertionError(page)


@pytest.mark.needs_gitea
@pytest.mark.timeout(3_600)
def test_a_person_of_gitea_signs_in_with_the_role_of_their_organization(tmp_path: Path) -> None:
    server = gitea()
    login, token = "sign-in-zoe", server.create_account("sign-in-zoe")
    server.call("POST", "/orgs", {"username": "sign-in-ops"}, token=token)
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    at = f"http://127.0.0.1:{port}{API}/sign-in/git"
    wanted = {"name": "chargehand", "redirect_uris": [f"{at}/callback"], "confidential_client": True}
    client = server.call("POST", "/user/applications/oauth2", wanted, token=token)
    config = SignInConfig(
        kind="gitea", url=server.url, client=client["client_id"], secret="THE_SECRET", groups=("sign-in-ops",),
        roles=("sign-in-ops=operator",),
    )  # fmt: skip
    providers = open_providers({"git": config}, Keys(client["client_secret"]))
    with serving(environment(tmp_path), tmp_path, port=port, sign_in=providers) as served:
        browser = served.stranger()
        page = browser.get(f"{server.url}/user/login")
        given = fields_of(page.text, "user_name") | {"user_name": login, "password": PASSWORD}
        assert browser.post(f"{server.url}/user/login", data=given).status_code == 303
        consent = browser.get(browser.get(at).headers["location"])
        given = fields_of(consent.text, "client_id") | {"granted": "true"}
        granted = browser.post(f"{server.url}/login/oauth/grant", data=given)
        returned = browser.get(granted.headers["location"])
        assert returned.status_code == 303, returned.text
        code = returned.headers["location"].partition("#sign-in=")[2]
        opened = browser.post(f"{API}/sign-in", json={"code": code})
        assert opened.status_code == 200, opened.text
        session = opened.json()["session"]
        assert (session["user"], session["role"]) == (login, "operator")
        replayed = browser.get(granted.headers["location"])
        assert replayed.status_code == 401


@pytest.fixture
def github() -> Iterator[OidcStandIn]:
    with oidc_stand_in() as stand_in:
        organization = {"login": "example", "id": 7}
        known: dict[str, Any] = {
            "/user": {"id": 42, "login": "Ann"},
            "/user/emails": [
                {"email": "old@example.org", "primary": False, "verified": True, "visibility": None},
                {"email": "ann@example.org", "primary": True, "verified": True, "visibility": "private"},
            ],
            "/user/orgs": [organization],
            "/user/teams": [{"slug": "ops", "id": 8, "organization": organization}],
        }
        for path, document in known.items():
            content = json.dumps(document).encode()
            stand_in.answers[f"/api/v3{path}"] = partial(tuple[int, bytes], (200, content))
        stand_in.answers["/login/oauth/access_token"] = lambda: {"access_token": "gho_1", "token_type": "bearer"}
        yield stand_in


def sign_in(github: OidcStandIn, **changed: Any) -> ExternalSubject:
    rules = {"domains": ("example.org",), "groups": ("example",), **changed}
    return github.open(kind="github", **rules).finish({"code": "c"}, PENDING)


def test_a_person_of_github_is_their_number_with_verified_mail_organizations_and_teams(
    github: OidcStandIn,
) -> None:
    assert sign_in(github) == ExternalSubject(
        issuer=github.url, subject="42", login="Ann", mail="ann@example.org", groups=("example", "example/ops")
    )
    paths = [each.removeprefix("/api/v3") for each in github.asked if each.startswith("/api/v3")]
    for path in paths:
        query = {"per_page": "100", "page": "1"} if path in ("/user/orgs", "/user/teams") else {}
        asked = Asked(method="GET", path=path, query=query, headers={}, content=b"")
        # The stand-in's answers lack most properties; the requests are what is compared.
        assert not list(openapi().problems(asked, Answer(200)))


def test_groups_are_read_only_if_a_rule_needs_them(github: OidcStandIn) -> None:
    assert sign_in(github, groups=()).groups == ()
    assert "/api/v3/user/orgs" not in github.asked
    client = github.open(kind="github", domains=("example.org",))
    query = dict(parse_qsl(urlsplit(client.start(PENDING)).query))
    assert query["scope"] == "read:user user:email"
    assert query["code_challenge"] == PENDING.challenge


@pytest.mark.parametrize(
    ("path", "answer", "kind"),
    [
        # GitHub answers 200 to a bad code.
        ("/login/oauth/access_token", {"error": "bad_verification_code"}, RefusedError),
        ("/login/oauth/access_token", {"error": "incorrect_client_credentials"}, InfrastructureError),
        ("/login/oauth/access_token", {}, RefusedError),
        ("/login/oauth/access_token", (502, b"<html>"), InfrastructureError),
        ("/api/v3/user", {"login": "ann"}, InfrastructureError),
        ("/api/v3/user", {"id": "42", "login": "ann"}, InfrastructureError),
        ("/api/v3/user/emails", (403, b"{}"), InfrastructureError),
    ],
)
def test_a_bad_answer_of_github_signs_nobody_in(
    github: OidcStandIn, path: str, answer: Reply, kind: type[Exception]
) -> None:
    github.answers[path] = lambda: answer
    with pytest.raises(kind):
        sign_in(github)


def test_an_unverified_address_of_github_does_not_count(github: OidcStandIn) -> None:
    mails = [{"email": "ann@example.org", "primary": True, "verified": False, "visibility": None}]
    github.answers["/api/v3/user/emails"] = lambda: (200, json.dumps(mails).encode())
    assert sign_in(github).mail == ""


def test_a_browser_that_comes_back_without_consent_is_refused(github: OidcStandIn) -> None:
    with pytest.raises(RefusedError):
        github.open(kind="github").finish({"error": "access_denied"}, PENDING)
    assert "/login/oauth/access_token" not in github.asked
