"""HTTP responses for results and for errors."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from threading import Lock
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from chargehand.core.errors import (
    BusyError,
    ChargehandError,
    ExhaustedError,
    InfrastructureError,
    NotFoundError,
    RateLimitedError,
    RefusedError,
    TierUnavailableError,
    UsageError,
    WaitingError,
)
from chargehand.core.text import printable
from chargehand.operations.operation import EncodedDocument, RawContent, StreamedContent, encode_document

# A response of at least this many bytes is compressed, by zlib at this level.
LEAST_COMPRESSED_BYTES = 2000
COMPRESSION_LEVEL = 4
# The number of compressed answers kept, and the largest size of one.
_MOST_KEPT = 32
_LARGEST_KEPT_BYTES = 2 << 20
_JSON = "application/json"
_PIECE_BYTES = 1 << 16
# The first matching class counts: subclasses come before their bases.
_STATUSES: tuple[tuple[type[ChargehandError], int], ...] = (
    (NotFoundError, 404),
    (UsageError, 422),
    (RefusedError, 409),
    (WaitingError, 409),
    (ExhaustedError, 429),
    (TierUnavailableError, 503),
    (InfrastructureError, 503),
)
_BY_CODE = {
    "login_needed": 401,
    "login_failed": 401,
    "account_missing": 401,
    "factor_needed": 401,
    "passkey_refused": 401,
    "enrolment_needed": 403,
    "proof_needed": 403,
    "factor_wrong": 403,
    "token_unknown": 401,
    "token_expired": 401,
    "forbidden": 403,
    "access_denied": 403,
    "forge_denied": 401,
    "forge_invalid": 400,
    "arguments_invalid": 400,
    "internal": 500,
    "review_changed": 412,
}


class KnownAnswers:
    """The last documents sent: most are unchanged when a client asks for them again."""

    def __init__(self) -> None:
        self._encoded: dict[type, tuple[object, EncodedDocument]] = {}
        self._compressed: dict[str, bytes] = {}
        self._lock = Lock()

    def encode(self, document: Any) -> EncodedDocument:
        """Return a document as JSON; an unchanged last document of its kind is not encoded again."""
        kept = self._encoded.get(type(document))
        if kept is None or kept[0] is not document:
            kept = (document, EncodedDocument.of(encode_document(document)))
            if len(kept[1].content) <= _LARGEST_KEPT_BYTES:
                self._encoded[type(document)] = kept
        return kept[1]

    def compress(self, document: EncodedDocument) -> bytes:
        """Return a document compressed by gzip."""
        if document.compressed:
            return document.compressed
        known = self._compressed.get(document.digest)
        compressed = known or gzip.compress(document.content, COMPRESSION_LEVEL, mtime=0)
        with self._lock:
            self._compressed.pop(document.digest, None)  # the newest comes last, the oldest is dropped first
            if len(compressed) <= _LARGEST_KEPT_BYTES:
                self._compressed[document.digest] = compressed
            while len(self._compressed) > _MOST_KEPT:
                del self._compressed[next(iter(self._compressed))]
        return compressed


def document_response(
    result: Any, *, status: int = 200, known: str = "", gzipped: bool = False, answers: KnownAnswers | None = None
) -> Response:
    """Return a result as a response; 304 if the client already has it, by its `known` entity tags.

    The tag of a result with a revision begins with it, so that `If-Match` can name it. For a client that accepts
    it (`gzipped`), a long result is compressed here, in the thread that made it, not in the loop that all requests
    share.
    """
    answers = answers or KnownAnswers()
    if isinstance(result, StreamedContent):
        return StreamingResponse(_join_pieces(result.pieces), status, media_type=result.media_type)
    if isinstance(result, RawContent):
        headers = {"Content-Disposition": f'attachment; filename="{result.file_name}"'} if result.file_name else {}
        return Response(result.content, status, headers, result.media_type)
    encoded = result if isinstance(result, EncodedDocument) else answers.encode(result)
    tag = f'"{encoded.digest}"'
    if (revision := getattr(result, "revision", None)) is not None:
        tag = f'"{revision}-{tag[1:]}'
    headers = {"ETag": tag}
    if known and tag in [each.strip().removeprefix("W/") for each in known.split(",")]:
        return Response(status_code=304, headers=headers)
    content = encoded.content
    if gzipped and len(content) >= LEAST_COMPRESSED_BYTES:
        content = answers.compress(encoded)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(content, status, headers, _JSON)


def reply_response(status: int, content: bytes, exit_code: str) -> Response:
    """Return an earlier answer again."""
    return Response(content, status, {"Chargehand-Exit-Code": exit_code} if exit_code else {}, _JSON)


def _join_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer pieces: each piece costs a hop to a thread."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= _PIECE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def error_response(error: ChargehandError) -> Response:
    """Return an error as a response: its status, and code, message and hint."""
    status = _BY_CODE.get(error.code) or next((code for kind, code in _STATUSES if isinstance(error, kind)), 409)
    document = {"code": error.code, "message": printable(error.message), "hint": printable(error.hint)}
    # The exit code of the same command on this machine: a status alone does not distinguish a question from a
    # refusal.
    headers = {"Chargehand-Exit-Code": str(error.exit_code)}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="chargehand"'
    if isinstance(error, RateLimitedError | BusyError):
        headers["Retry-After"] = str(error.retry_seconds)
    return Response(msgspec.json.encode({"error": document}), status, headers, _JSON)
