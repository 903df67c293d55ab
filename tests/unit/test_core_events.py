from __future__ import annotations

import json

import msgspec
import pytest
from core_strategies import payloads
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.core.events import GENESIS, Payload, chain_hash, decode, encode, event_types, payload_digest
from chargehand.core.mission_events import BaseResolved, MissionCreated

LINE = {
    "prev": GENESIS,
    "mission": "m-1",
    "seq": 1,
    "time": "2026-01-01T00:00:00",
    "type": "a.b",
    "digest": "0" * 64,
}


@given(payloads())
@settings(max_examples=examples(150), deadline=None)
def test_an_encoded_payload_decodes_unchanged(payload: Payload) -> None:
    assert decode(payload.type, encode(payload)) == payload


@given(payloads())
@settings(max_examples=examples(60), deadline=None)
def test_equal_payloads_give_equal_bytes(payload: Payload) -> None:
    again = decode(payload.type, encode(payload))
    assert encode(again) == encode(payload)
    assert payload_digest(encode(again)) == payload_digest(encode(payload))


@given(payloads(), st.text(min_size=1, max_size=5).map("new_".__add__))
@settings(max_examples=examples(60), deadline=None)
def test_fields_of_a_newer_version_are_passed_over(payload: Payload, name: str) -> None:
    newer = json.loads(encode(payload)) | {name: 1}
    assert decode(payload.type, json.dumps(newer).encode()) == payload


def test_an_unknown_type_and_a_malformed_payload_raise_different_errors() -> None:
    with pytest.raises(KeyError):
        decode("never.heard", b"{}")
    with pytest.raises(msgspec.ValidationError):
        decode("base.resolved", b'{"base": 3}')
    with pytest.raises(msgspec.DecodeError):
        decode("base.resolved", b"{")


def test_types_are_named_once_and_stable() -> None:
    assert len(set(event_types())) == len(event_types()) == 85
    assert MissionCreated.type == "mission.created"
    assert BaseResolved.type == "base.resolved"


@pytest.mark.parametrize("name", sorted(LINE))
def test_every_part_of_a_line_counts_in_its_hash(name: str) -> None:
    other = LINE | {name: 2 if name == "seq" else "f" * 64}
    assert chain_hash(**other) != chain_hash(**LINE)


@given(st.sampled_from(["seq", "type", "mission"]), st.integers(1, 50))
def test_the_chain_is_a_function_of_the_line(name: str, value: int) -> None:
    line = LINE | {name: value if name == "seq" else str(value)}
    assert chain_hash(**line) == chain_hash(**dict(reversed(line.items())))
    assert len(chain_hash(**line)) == len(GENESIS)
