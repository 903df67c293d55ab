"""Sign-in by OpenID Connect and OAuth 2: every token and answer that RFC 9700 and RFC 8725 warn of is refused."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.oidc_stand_in import CLIENT, PENDING, OidcStandIn, oidc_stand_in

from chargehand.configuration.keys import entry_keys, parse_value
from chargehand.core.errors import ChargehandError, ConfigError, InfrastructureError, RefusedError
from chargehand.core.ports import ExternalSubject, SignInProvider

CODE = {"code": "a-code", "state": PENDING.state}


@pytest.fixture(scope="module")
def running() -> Iterator[OidcStandIn]:
    with oidc_stand_in() as provider:
        yield provider


@pytest.fixture
def issuer(running: OidcStandIn) -> Iterator[OidcStandIn]:
    kept = running.key, running.kid
    yield running
    running.key, running.kid = kept
    running.answers, running.userinfo, running.token = {}, {}, ""
    running.asked.clear()


def signed_in(issuer: OidcStandIn, token: str, client: SignInProvider | None = None) -> ExternalSubject:
    issuer.token = token
    return (client or issuer.open()).finish({**CODE, "iss": issuer.url}, PENDING)


def refused(work: Callable[[], object], kind: type[ChargehandError] = RefusedError) -> str:
    with pytest.raises(kind) as error:
        work()
    assert error.value.code in ("login_failed", "provider_failed")
    return error.value.message


def test_a_good_token_names_the_person(issuer: OidcStandIn) -> None:
    found = signed_in(issuer, issuer.sign(issuer.claims(sid="s-1")))
    assert found == ExternalSubject(
        issuer=issuer.url, subject="ann", login="ann", mail="ann@example.org", groups=("ops",), session="s-1"
    )
    assert "/userinfo" not in issuer.asked, "nothing was missing"


def public_pem(issuer: OidcStandIn) -> bytes:
    encoded: bytes = issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts)


def hmac_by_public_key(issuer: OidcStandIn) -> str:
    import hashlib
    import hmac

    head = forged({"alg": "HS256", "kid": issuer.kid}, issuer.claims()).rpartition(".")[0]
    mac = hmac.new(public_pem(issuer), head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
BAD_TOKENS: dict[str, Callable[[OidcStandIn], str]] = {
    "none": lambda p: forged({"alg": "none", "kid": p.kid}, p.claims()),
    "None in capitals": lambda p: forged({"alg": "nOnE", "kid": p.kid}, p.claims()),
    "no signature": lambda p: p.sign(p.claims()).rpartition(".")[0] + ".",
    "HMAC by the public key": hmac_by_public_key,
    "HMAC by the client secret": lambda p: jwt.encode(p.claims(), "s3cret" * 8, "HS256", headers={"kid": p.kid}),
    "another key under its id": lambda p: p.sign(p.claims(), key=OTHER_KEY, algorithm="RS256"),
    "an unknown key": lambda p: p.sign(p.claims(), key=OTHER_KEY, algorithm="RS256", kid="other"),
    "a key in the header": lambda p: p.sign(
        p.claims(), key=OTHER_KEY, algorithm="RS256", kid="x",
        jwk=jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_KEY.public_key(), as_dict=True),
    ),
    "an address of keys in the header": lambda p: p.sign(
        p.claims(), key=OTHER_KEY, algorithm="RS256", kid="x", jku=f"{p.url}/keys"
    ),
    "another audience": lambda p: p.sign(p.claims(aud="other")),
    "no audience": lambda p: p.sign(p.claims(aud=None)),
    "several audiences without a party": lambda p: p.sign(p.claims(aud=[CLIENT, "other"])),
    "another party": lambda p: p.sign(p.claims(aud=[CLIENT, "other"], azp="other")),
    "another issuer": lambda p: p.sign(p.claims(iss="https://evil.example")),
    "expired": lambda p: p.sign(p.claims(iat=int(time.time()) - 900, exp=int(time.time()) - 301)),
    "no expiry": lambda p: p.sign(p.claims(exp=None)),
    "issued in the future": lambda p: p.sign(p.claims(iat=int(time.time()) + 400)),
    "the nonce of another sign-in": lambda p: p.sign(p.claims(nonce="other")),
    "no nonce": lambda p: p.sign(p.claims(nonce=None)),
    "no subject": lambda p: p.sign(p.claims(sub=None)),
    "an empty subject": lambda p: p.sign(p.claims(sub="")),
    "a huge subject": lambda p: p.sign(p.claims(sub="x" * 256)),
    "a logout token": lambda p: p.sign(p.logout_claims()),
    "no token": lambda p: "",
    "noise": lambda p: "a.b.c",
    "bytes": lambda p: "\x00\u00e4.\x00.\x00",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_a_bad_token_signs_nobody_in(issuer: OidcStandIn, name: str) -> None:
    client = issuer.open()
    refused(lambda: signed_in(issuer, BAD_TOKENS[name](issuer), client))
    assert signed_in(issuer, issuer.sign(issuer.claims()), client).subject == "ann"


@pytest.mark.parametrize("skew", [-299, 299])
def test_clocks_may_differ_by_five_minutes(issuer: OidcStandIn, skew: int) -> None:
    now = int(time.time()) + skew
    assert signed_in(issuer, issuer.sign(issuer.claims(iat=now, exp=now + 1))).subject == "ann"


def test_a_new_key_is_found_and_the_old_one_ends(issuer: OidcStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    client = issuer.open()
    old = issuer.key
    assert signed_in(issuer, issuer.sign(issuer.claims()), client).subject == "ann"
    issuer.rotate("second")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 11)
    assert signed_in(issuer, issuer.sign(issuer.claims()), client).subject == "ann"
    stale = issuer.sign(issuer.claims(), key=old, algorithm="RS256", kid="first")
    refused(lambda: signed_in(issuer, stale, client))
    assert issuer.asked.count("/keys") == 2, "tokens with invented keys do not make us ask again and again"


@pytest.mark.parametrize(
    "parameters",
    [
        {"code": "c", "iss": "https://evil.example"},
        {"code": "c", "iss": ""},
        {"error": "access_denied"},
        {"error": "<script>"},
        {},
    ],
    ids=str,
)
def test_an_answer_of_another_provider_or_without_a_code_is_refused_before_it_is_redeemed(
    issuer: OidcStandIn, parameters: dict[str, str]
) -> None:
    issuer.token = issuer.sign(issuer.claims())
    message = refused(lambda: issuer.open().finish(parameters, PENDING))
    assert "/token" not in issuer.asked
    assert "<" not in message


def test_a_provider_that_names_itself_must_do_so(issuer: OidcStandIn) -> None:
    said = issuer.metadata(authorization_response_iss_parameter_supported=True)
    issuer.answers["/.well-known/openid-configuration"] = lambda: said
    issuer.token = issuer.sign(issuer.claims())
    refused(lambda: issuer.open().finish({"code": "c"}, PENDING))
    assert "/token" not in issuer.asked


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"userinfo_endpoint": "ftp://x"},
        {"issuer": None},
        {"jwks_uri": 7},
    ],
    ids=str,
)
def test_metadata_of_another_issuer_or_without_encryption_is_refused(
    issuer: OidcStandIn, changed: dict[str, Any]
) -> None:
    issuer.answers["/.well-known/openid-configuration"] = lambda: issuer.metadata(**changed)
    refused(lambda: issuer.open().start(PENDING), InfrastructureError)


BROKEN = {
    "HTML": (200, b"<html>maintenance"),
    "502": (502, b"bad gateway"),
    "half a document": (200, b'{"issuer": "http'),
    "nothing": (200, b""),
    "a list": (200, b"[1, 2]"),
    "a redirect": (302, b""),
    "two megabytes": (200, b'{"x": "' + b"x" * (2 << 20) + b'"}'),
}


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys", "/token", "/userinfo"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_a_failure_of_the_provider(issuer: OidcStandIn, path: str, name: str) -> None:
    issuer.answers[path] = lambda: BROKEN[name]
    token = issuer.sign(issuer.claims(groups=None))
    if path == "/userinfo" and name in ("HTML", "nothing", "a list"):
        assert signed_in(issuer, token).groups == (), "it is no JSON, so that it tells nothing"
    else:
        refused(lambda: signed_in(issuer, token), InfrastructureError)


def test_an_absent_provider_is_a_failure_and_keeps_what_is_known(issuer: OidcStandIn) -> None:
    refused(lambda: issuer.open(url="http://127.0.0.1:1").start(PENDING), InfrastructureError)


@pytest.mark.parametrize("error", ["invalid_grant", "access_denied", "<b>"])
def test_a_code_that_was_replayed_or_injected_is_refused(issuer: OidcStandIn, error: str) -> None:
    issuer.answers["/token"] = lambda: (400, json.dumps({"error": error}).encode())
    refused(lambda: issuer.open().finish({**CODE, "iss": issuer.url}, PENDING))


def test_a_wrong_client_secret_is_our_failure_and_no_refusal_of_the_person(issuer: OidcStandIn) -> None:
    issuer.answers["/token"] = lambda: (401, b'{"error": "invalid_client"}')
    message = refused(lambda: issuer.open().finish({**CODE, "iss": issuer.url}, PENDING), InfrastructureError)
    assert "s3cret" not in message


def test_userinfo_of_another_person_is_refused(issuer: OidcStandIn) -> None:
    issuer.userinfo = {"sub": "bob", "groups": ["boss"]}
    refused(lambda: signed_in(issuer, issuer.sign(issuer.claims(groups=None))))
    issuer.userinfo = {"sub": "ann", "groups": ["ops"], "email": "evil@example.org", "iss": "https://evil.example"}
    found = signed_in(issuer, issuer.sign(issuer.claims(groups=None)))
    assert (found.groups, found.mail, found.issuer) == (("ops",), "ann@example.org", issuer.url)


@pytest.mark.parametrize(
    ("claims", "mail"),
    [
        ({"email_verified": False}, ""),
        ({"email_verified": None}, ""),
        ({"email_verified": "false"}, ""),
        ({"email_verified": 1}, ""),
        ({"email": ["a@example.org"]}, ""),
        ({"email_verified": "true"}, "ann@example.org"),
    ],
    ids=str,
)
def test_only_a_verified_address_counts(issuer: OidcStandIn, claims: dict[str, Any], mail: str) -> None:
    issuer.userinfo = {"sub": "ann"}
    assert signed_in(issuer, issuer.sign(issuer.claims(**claims))).mail == mail


@pytest.mark.parametrize(
    ("value", "claim", "groups"),
    [
        ([f"g{n}" for n in range(5_000)], "groups", 5_000),
        ([f"g{n}" for n in range(10_001)], "groups", 10_000),
        ("ops", "groups", 1),
        (["ops", 7, None, ["x"], "y" * 400], "groups", 1),
        ({"roles": ["a", "b"]}, "groups.roles", 2),
        ({"roles": {"a": 1}}, "groups.roles", 0),
        (7, "groups.roles", 0),
    ],
    ids=str,
)
def test_groups_are_read_whatever_the_claim_holds(
    issuer: OidcStandIn, value: object, claim: str, groups: int
) -> None:
    issuer.userinfo = {"sub": "ann"}
    client = issuer.open(groups_claim=claim)
    assert len(signed_in(issuer, issuer.sign(issuer.claims(groups=value)), client).groups) == groups


BAD_LOGOUTS: dict[str, Callable[[OidcStandIn], str]] = {
    "an ID token": lambda p: p.sign(p.claims()),
    "with a nonce": lambda p: p.sign(p.logout_claims(nonce="n")),
    "without the event": lambda p: p.sign(p.logout_claims(events={})),
    "with a list of events": lambda p: p.sign(
        p.logout_claims(events=["http://schemas.openid.net/event/backchannel-logout"])
    ),
    "of nobody": lambda p: p.sign(p.logout_claims(sub=None, sid=None)),
    "without an id": lambda p: p.sign(p.logout_claims(jti=None)),
    "of an hour ago": lambda p: p.sign(p.logout_claims(iat=int(time.time()) - 3600, exp=None)),
    "of another audience": lambda p: p.sign(p.logout_claims(aud="other")),
    "unsigned": lambda p: forged({"alg": "none"}, p.logout_claims()),
    "by another key": lambda p: p.sign(p.logout_claims(), key=OTHER_KEY, algorithm="RS256"),
}


@pytest.mark.parametrize("name", BAD_LOGOUTS)
def test_a_bad_logout_token_ends_nothing(issuer: OidcStandIn, name: str) -> None:
    refused(lambda: issuer.open().read_logout(BAD_LOGOUTS[name](issuer)))


def test_a_logout_token_counts_once(issuer: OidcStandIn) -> None:
    client, token = issuer.open(), issuer.sign(issuer.logout_claims())
    assert client.read_logout(token) == ("ann", "s-1")
    refused(lambda: client.read_logout(token))


@pytest.mark.parametrize(
    "changed",
    [{"client": None}, {"url": None}, {"url": "http://issuer.example"}],
    ids=str,
)
def test_an_entry_that_cannot_work_is_refused_at_the_start(issuer: OidcStandIn, changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"\[sign_in\.company\]"):
        issuer.open(**changed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("roles", ["ops=boss"]),
        ("roles", ["ops"]),
        ("roles", ["=admin"]),
        ("domains", ["@example.org"]),
        ("domains", ["*.example.org"]),
        ("domains", ["org"]),
        ("url", "https://user:word@issuer.example"),
        ("kind", "saml"),
        ("role", "owner"),
    ],
)
def test_a_wrong_value_of_the_configuration_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        parse_value(entry_keys("sign_in")[field], value, "here")


def test_roles_of_groups_may_have_any_name() -> None:
    assert parse_value(entry_keys("sign_in")["roles"], ["a = b/c=admin", "ops=viewer"], "here")


def test_a_missing_secret_is_named(issuer: OidcStandIn) -> None:
    with pytest.raises(ConfigError, match="THE_OTHER"):
        issuer.open(secret="THE_OTHER").finish({**CODE, "iss": issuer.url}, PENDING)
