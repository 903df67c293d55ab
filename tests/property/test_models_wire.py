"""HTTP/1.1 replies cut into pieces anywhere: we read the same as h11, or both report an error."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from itertools import pairwise

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.models.http.framing import (
    BodyFraming,
    Decompressor,
    HttpError,
    find_framing,
    parse_head,
    take_head,
)

Read = tuple[int, bytes, bool]
"""Status, body, and whether it is whole."""
REQUEST = h11.Request(method="POST", target="/", headers=[("host", "h"), ("content-length", "0")])
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8)


def ours(pieces: Sequence[bytes]) -> Read | None:
    """Read a reply; return `None` if it is not HTTP."""
    buffer, frame, status, body = bytearray(), None, 0, list[bytes]()
    try:
        for piece in pieces:
            buffer += piece
            while frame is None and (raw := take_head(buffer)) is not None:
                head = parse_head(raw)
                status = head.status
                frame = find_framing(head, method="POST") if status >= 200 else None
            if frame is not None and not frame.done:
                body.append(frame.feed(bytes(buffer)))
                buffer.clear()
        return status if frame else 0, b"".join(body), _ended(frame)
    except HttpError as error:
        return None if error.code == "upstream_malformed" else (-1, b"", True)


def _ended(frame: BodyFraming | None) -> bool:
    if frame is None:
        return False
    try:
        frame.end()
    except HttpError as error:
        return error.code != "upstream_cut"
    return True


def theirs(pieces: Sequence[bytes]) -> Read | None:
    wire = h11.Connection(h11.CLIENT)
    wire.send(REQUEST)
    wire.send(h11.EndOfMessage())
    status, body, whole = 0, b"", False
    try:
        for piece in [*pieces, b""]:
            if whole:
                break
            wire.receive_data(piece)
            while (event := wire.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    whole = isinstance(event, h11.EndOfMessage)
                    break
    except h11.RemoteProtocolError:
        return None if piece else (status, body, False)  # h11's complaint about a close is no fault of the bytes
    return status, body, whole


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(marks)]


@st.composite
def replies(draw: st.DrawFn) -> bytes:
    body = draw(st.lists(st.binary(max_size=40), max_size=6))
    extra = "".join(f"x-{n}: {value}\r\n" for n, value in enumerate(draw(st.lists(TEXT, max_size=3))))
    early = draw(st.sampled_from(["", "HTTP/1.1 100 Continue\r\n\r\n"]))
    status = draw(st.sampled_from([200, 204, 429, 500]))
    how = draw(st.sampled_from(["length", "chunked", "closed"]))
    start = f"{early}HTTP/1.1 {status} Some Reason\r\n{extra}"
    if how == "length":
        whole = b"".join(body) if status != 204 else b""
        return f"{start}Content-Length: {len(whole)}\r\n\r\n".encode() + whole
    if how == "closed" or status == 204:
        return f"{start}\r\n".encode() + (b"".join(body) if status != 204 else b"")
    note = draw(st.sampled_from([b"", b";a=b", b" "]))
    chunks = b"".join(b"%X%b\r\n%b\r\n" % (len(part), note, part) for part in body if part)
    trailer = draw(st.sampled_from([b"", b"x-t: 1\r\n"]))
    return f"{start}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n" + trailer + b"\r\n"


@settings(max_examples=examples(150))
@given(replies(), st.lists(st.integers(0, 10_000), max_size=12), st.integers(0, 10_000))
def test_splitting_does_not_change_the_reply_and_missing_data_is_noticed(
    data: bytes, places: list[int], end: int
) -> None:
    assert ours(cut(data, places)) == theirs(cut(data, places)) == ours([data])
    short = data[: end % (len(data) + 1)]
    assert ours(cut(short, places)) == theirs(cut(short, places))


@settings(max_examples=examples(150))
@given(replies(), st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
@example(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 0, b"H")
def test_a_reply_rejected_by_h11_is_never_read_as_complete(data: bytes, place: int, put: bytes) -> None:
    at = place % len(data)
    spoilt = data[:at] + put + data[at + len(put) :]
    read = ours([spoilt])
    assert read is None or not read[2] or theirs([spoilt]) == read


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 1\r\ncontent-length: 2",
        b"content-length: 1, 2",
        b"content-length: +1",
        b"transfer-encoding: gzip, chunked",
        b"no colon",
        b" folded: x",
        b"x: " + b"y" * 70_000,
    ],
)
def test_a_head_that_says_two_things_is_refused(head: bytes) -> None:
    assert ours([b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\nx"]) is None


def test_reusable_connections() -> None:
    kept = [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n\r\n"]
    left = [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: x, Close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n",
    ]
    assert [parse_head(raw).reusable for raw in kept] == [True, True]
    assert [parse_head(raw).reusable for raw in left] == [False, False, False]


def test_compressed_bodies_are_read_and_damaged_bodies_refused() -> None:
    packed = gzip.compress(b"hello" * 100)
    plain = Decompressor("gzip")
    assert b"".join(plain.decompress(packed[n : n + 7]) for n in range(0, len(packed), 7)) == b"hello" * 100
    with pytest.raises(HttpError, match="uncompress"):
        Decompressor("gzip").decompress(b"no such thing")
    with pytest.raises(HttpError, match="content-encoding"):
        Decompressor("br")
