"""Passkeys at the server: an answer that is forged, old, of another place or another person is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import struct
from collections.abc import Callable, Iterator
from typing import Any

import cbor2
import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from tests.server_kit import API, Served, environment, serving

from chargehand.identity.accounts import owner, set_user_disabled
from chargehand.identity.factors import reset_factors

AT = f"{API}/session/passkey"


def encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class Device:
    """An authenticator in software: it holds one passkey and signs whatever a test wants."""

    def __init__(self, host: str = "localhost") -> None:
        self.host = host
        self.id = secrets.token_bytes(16)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.count = 0
        self.flags = 0x05  # the person is present and verified

    def client_data(self, kind: str, challenge: str, origin: str) -> bytes:
        return json.dumps({"type": kind, "challenge": challenge, "origin": origin, "crossOrigin": False}).encode()

    def data(self, attested: bytes = b"") -> bytes:
        flags = self.flags | (0x40 if attested else 0)
        return (
            hashlib.sha256(self.host.encode()).digest() + bytes([flags]) + struct.pack(">I", self.count) + attested
        )

    def register(self, options: dict[str, Any], origin: str) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        cose = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        attested = bytes(16) + struct.pack(">H", len(self.id)) + self.id + cbor2.dumps(cose)
        attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": self.data(attested)})
        response = {
            "clientDataJSON": encode(self.client_data("webauthn.create", options["challenge"], origin)),
            "attestationObject": encode(attestation),
        }
        return {"id": encode(self.id), "rawId": encode(self.id), "type": "public-key", "response": response}

    def sign(self, options: dict[str, Any], origin: str, *, kind: str = "webauthn.get") -> dict[str, Any]:
        self.count += 1
        client, data = self.client_data(kind, options["challenge"], origin), self.data()
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        response = {
            "clientDataJSON": encode(client),
            "authenticatorData": encode(data),
            "signature": encode(signature),
            "userHandle": None,
        }
        return {"id": encode(self.id), "rawId": encode(self.id), "type": "public-key", "response": response}


class Ceremony:
    """A server, its origin for passkeys, and a person with a device."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.origin = served.url.replace("127.0.0.1", "localhost")
        self.device = Device()

    def post(self, path: str, body: object, client: httpx.Client | None = None, **headers: str) -> httpx.Response:
        given = {"Origin": self.origin, **headers}
        return (client or self.served.stranger()).post(path, json=body, headers=given)

    def options(self) -> dict[str, Any]:
        document: dict[str, Any] = self.post(f"{AT}/options", {}).json()["options"]
        return document

    def enter(self, credential: object, **more: object) -> httpx.Response:
        return self.post(AT, {"credential": credential, **more})

    def enrol(self, client: httpx.Client, name: str = "laptop") -> httpx.Response:
        options = self.post(f"{AT}/new/options", {}, client).json()["options"]
        return self.post(
            f"{AT}/new", {"name": name, "credential": self.device.register(options, self.origin)}, client
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("passkeys")
    with serving(environment(place), place) as made:
        yield made


@pytest.fixture
def ceremony(served: Served) -> Ceremony:
    """A person `ann` without factors, and an enrolled new device."""
    made = Ceremony(served)
    with served.reader() as reader:
        if any(row.name == "ann" for row in reader.store.accounts.list()):
            reset_factors(reader, "ann", by=owner(reader))
            set_user_disabled(reader, "ann", False, by=owner(reader))
    assert made.enrol(served.user("ann", "operator")).status_code == 201
    return made


def refused(answer: httpx.Response, code: str = "passkey_refused", status: int = 401) -> bool:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    return True


def test_a_passkey_opens_sessions_and_each_answer_counts_once(ceremony: Ceremony) -> None:
    answer = ceremony.device.sign(ceremony.options(), ceremony.origin)
    opened = ceremony.enter(answer)
    assert opened.status_code == 200, opened.text
    session = opened.json()["session"]
    assert (session["user"], session["has_factor"]) == ("ann", True)
    assert refused(ceremony.enter(answer))
    assert ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)).status_code == 200


BAD: dict[str, Callable[[Ceremony], object]] = {
    "another origin": lambda d: d.device.sign(d.options(), "https://evil.example"),
    "an origin of the same host": lambda d: d.device.sign(d.options(), "http://localhost:1"),
    "a challenge of its own": lambda d: d.device.sign({"challenge": encode(b"x" * 43)}, d.origin),
    "the answer to another question": lambda d: d.device.sign(d.options(), d.origin, kind="webauthn.create"),
    "no answer": lambda d: {},
    "no response": lambda d: {"id": encode(d.device.id)},
    "noise": lambda d: {"id": "x", "response": {"clientDataJSON": "!!!"}},
    "a list": lambda d: {"id": [], "response": {"clientDataJSON": encode(b"[]")}},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_refused(ceremony: Ceremony, name: str) -> None:
    assert refused(ceremony.enter(BAD[name](ceremony)))
    assert ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)).status_code == 200


def test_a_device_that_does_not_verify_its_person_is_refused(ceremony: Ceremony) -> None:
    ceremony.device.flags = 0x01
    assert refused(ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)))


def test_a_passkey_of_another_host_is_refused(ceremony: Ceremony) -> None:
    ceremony.device.host = "evil.example"
    assert refused(ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)))


def test_another_key_under_its_id_is_refused(ceremony: Ceremony) -> None:
    ceremony.device.key = ec.generate_private_key(ec.SECP256R1())
    assert refused(ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)))


def test_a_copy_of_a_device_is_noticed_by_its_counter(ceremony: Ceremony) -> None:
    assert ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)).status_code == 200
    ceremony.device.count = 0
    assert refused(ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)))


def test_proof_of_another_person_is_refused(ceremony: Ceremony) -> None:
    assert refused(ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin), user="bob"))


def test_a_disabled_account_and_a_removed_passkey_open_nothing(ceremony: Ceremony) -> None:
    with ceremony.served.reader() as reader:
        set_user_disabled(reader, "ann", True, by=owner(reader))
    assert refused(ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)))
    with ceremony.served.reader() as reader:
        set_user_disabled(reader, "ann", False, by=owner(reader))
        reset_factors(reader, "ann", by=owner(reader))
    assert refused(ceremony.enter(ceremony.device.sign(ceremony.options(), ceremony.origin)))


def test_the_options_of_one_person_add_no_passkey_to_another_account(ceremony: Ceremony) -> None:
    ann, bob = ceremony.served.user("eve", "operator"), ceremony.served.user("bob", "operator")
    options = ceremony.post(f"{AT}/new/options", {}, ann).json()["options"]
    device = Device()
    answer = {"name": "stolen", "credential": device.register(options, ceremony.origin)}
    assert refused(ceremony.post(f"{AT}/new", answer, bob))
    assert refused(
        ceremony.post(
            f"{AT}/new", {"name": "x", "credential": device.register(ceremony.options(), ceremony.origin)}, bob
        )
    )
    # The id of a passkey belongs to one account.
    own, ceremony.device = ceremony.device, device
    assert ceremony.enrol(bob).status_code == 201
    assert refused(ceremony.enrol(ann), "factor_exists", 409)
    ceremony.device = own


def test_an_address_a_stranger_and_a_token_add_no_passkey(ceremony: Ceremony) -> None:
    client = ceremony.served.user("carl", "operator")
    plain = ceremony.post(f"{AT}/new/options", {}, client, Origin=ceremony.served.url)
    assert refused(plain, "passkey_host", 422)
    assert refused(ceremony.post(f"{AT}/new/options", {}), "login_needed")
    token = ceremony.served.token("administer")
    assert refused(ceremony.post(f"{AT}/new/options", {}, token), "access_denied", 403)
    assert refused(ceremony.served.stranger().post(f"{AT}/options", json={}), "arguments_invalid", 400)
    assert refused(ceremony.post(f"{AT}/options", {}, Origin="https://evil.example"), "forbidden", 403)
