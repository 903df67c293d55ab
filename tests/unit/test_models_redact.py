"""Redaction: a secret does not survive in any of its forms, and all other text stays unchanged."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.redaction import Redactor

SECRET = 'k"ey/+\\é-7f3a9c'
ALPHABET = st.characters(codec="utf-8", exclude_categories=["Cs", "Z", "Cc"])
CANARIES = st.text(ALPHABET, min_size=4, max_size=24).map(lambda text: f"Q7{text}zX").filter(lambda t: len(t) > 5)
WORDS = st.text(max_size=12)


def redactor(secret: str = SECRET, **templates: str) -> Redactor:
    return Redactor({"API_KEY": secret}, templates)


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        json.dumps({"arguments": json.dumps({"key": SECRET})}),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET).lower(),
        f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}",
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
    ],
)
def test_a_known_secret_is_found_in_its_usual_forms(form: str) -> None:
    hidden = redactor().text(f"before {form} after")
    assert "[redacted:API_KEY]" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert "7f3a9c" not in hidden
    assert base64.b64encode(b"7f3a9c").decode()[:6] not in hidden


@given(canary=CANARIES, before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_a_secret_inside_base64_encoded_text_is_redacted(canary: str, before: bytes, after: bytes) -> None:
    content = canary.encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        hidden = redactor(canary).text(encode(before + content + after).decode())
        assert "[redacted:API_KEY]" in hidden


@pytest.mark.parametrize(
    "key",
    [
        "sk-abcdefghijklmnop1234",
        "sk-ant-api03-abcdefgh-ijklmnop",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0abcdefghijkl",
        "AKIAIOSFODNN7ABCDEFG",
        "glpat-abcdefghij1234567890",
        "xoxb-1234567890-abcdef",
    ],
)
@pytest.mark.parametrize("around", ["{}", "key={}", '{{"a": "{}"}}', "first\\n{}", "({})"])
def test_text_that_looks_like_an_api_key_is_redacted(key: str, around: str) -> None:
    hidden = Redactor().text(around.format(key))
    assert hidden == around.format("[redacted]")


def test_a_bearer_token_is_redacted_but_the_word_bearer_kept() -> None:
    assert Redactor().text("Authorization: Bearer abc.def-123") == "Authorization: Bearer [redacted]"


@pytest.mark.parametrize(
    "text",
    [
        "a task-list-of-12-long-words",
        "risk-adjusted-return-model-2",
        "sk-learn-like-estimators-and-more",
        "the bearer of bad news",
        "Bearer authentication",
        "asiapacificregions12",
        "sk-short1",
    ],
)
def test_text_that_only_resembles_a_key_is_unchanged(text: str) -> None:
    assert Redactor({"EMPTY": "", "SHORT": "ab"}).text(text) == text


def test_secrets_go_before_templates_and_the_longest_first() -> None:
    found = Redactor({"A": "abcdefgh", "B": "abcdefghijkl"}, {"workspace": "/srv/abc"})
    assert found.text("/srv/abcdefghijkl /srv/abc/d") == "/srv/[redacted:B] {{workspace}}/d"


def test_trees_are_gone_through_with_keys_and_numbers() -> None:
    found = Redactor({"PIN": "12345678"}).tree({"12345678": [12345678, 1.5, True, None, {"a": "x12345678"}]})
    mark = "[redacted:PIN]"
    assert found == {mark: [mark, 1.5, True, None, {"a": f"x{mark}"}]}


@given(
    text=st.recursive(WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3))
)
def test_expanding_templates_restores_the_original(text: Any) -> None:
    found = Redactor(templates={"workspace": "/srv/work", "token": "cht-123"})
    planted = {"at": "/srv/work/src", "rest": text}
    assert found.expand(found.tree(planted)) == planted


def openai_pieces(pieces: list[str]) -> list[Any]:
    return [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]


def anthropic_pieces(pieces: list[str]) -> list[Any]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return [{"type": "content_block_delta", "index": 1, "delta": delta} for delta in deltas]


def tool_pieces(pieces: list[str]) -> list[Any]:
    calls = [[{"index": 3, "function": {"arguments": piece}}] for piece in pieces]
    return [{"choices": [{"index": 0, "delta": {"tool_calls": call}}]} for call in calls]


def responses_pieces(pieces: list[str]) -> list[Any]:
    place = {"type": "response.output_text.delta", "output_index": 1, "content_index": 0}
    return [{**place, "delta": piece} for piece in pieces]


def gemini_pieces(pieces: list[str]) -> list[Any]:
    return [{"candidates": [{"content": {"parts": [{"text": piece}], "role": "model"}}]} for piece in pieces]


def piece_of(event: dict[str, Any]) -> str:
    if "candidates" in event:
        return str(event["candidates"][0]["content"]["parts"][0]["text"])
    delta = event["delta"] if "delta" in event else event["choices"][0]["delta"]
    if isinstance(delta, str):
        return delta
    calls = delta.get("tool_calls")
    return str(calls[0]["function"]["arguments"] if calls else delta.get("content", delta.get("text")))


def joined(events: list[Any]) -> str:
    return "".join(map(piece_of, events))


SHAPES = st.sampled_from([openai_pieces, anthropic_pieces, tool_pieces, responses_pieces, gemini_pieces])


@given(canary=CANARIES, before=WORDS, after=WORDS, cuts=st.lists(st.integers(0, 60), max_size=12), shape=SHAPES)
def test_a_secret_over_several_pieces_of_a_stream_is_found(
    canary: str, before: str, after: str, cuts: list[int], shape: Any
) -> None:
    text = f"{before}{canary}{after}"
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    hidden = redactor(canary).stream(shape(pieces))
    assert len(hidden) == len(pieces)
    assert canary not in joined(hidden)
    assert joined(hidden) == redactor(canary).text(text)


def test_stream_events_without_a_secret_in_a_single_part_are_unchanged() -> None:
    events = [*openai_pieces(["k", "e"]), *tool_pieces(["y-", "12345"])]
    assert redactor("key-12345").stream(events) == events


@given(secret=CANARIES | st.integers(10**5, 10**8).map(str), data=st.data())
def test_skipping_an_unaffected_stream_gives_the_same_result_as_a_full_search(
    secret: str, data: st.DataObject
) -> None:
    escaped = json.dumps(secret)[1:-1]
    texts = WORDS | st.sampled_from(
        [secret, escaped, json.dumps(escaped)[1:-1], secret[:-1], secret[-1:], "/srv/work"]
    )
    inner = st.recursive(
        texts | st.integers() | st.just(int(secret) if secret.isdecimal() else 0) | st.floats(allow_nan=False),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(texts | st.sampled_from(["delta", "candidates", "index"]), inner, max_size=3)
        ),
    )
    events = data.draw(st.lists(inner, max_size=4))
    found = Redactor({"CANARY": secret}, {"workspace": "/srv/work"})
    # The last event has a key, so that every part is searched.
    assert found.stream(events) == found.stream([*events, "sk-1234567890abcdefgh"])[:-1]


@given(length=st.integers(6, len(SECRET) - 1))
def test_the_beginning_of_a_secret_at_a_cut_is_found(length: int) -> None:
    assert redactor().text("key: " + SECRET[:length], cut=True) == "key: [redacted:API_KEY]"
    events = redactor().stream(openai_pieces(["key: ", SECRET[:3], SECRET[3:length]]), cut=True)
    assert joined(events) == "key: [redacted:API_KEY]"
