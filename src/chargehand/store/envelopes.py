"""DSSE envelopes around content signed with the state directory's key.

Format: "DSSE: Dead Simple Signing Envelope", version 1 (github.com/secure-systems-lab/dsse: envelope.md,
protocol.md). A signature covers the type and the bytes of the body, so no canonical form is needed.
"""

from __future__ import annotations

import base64

import msgspec
from msgspec import Struct, field

from chargehand.core.codec import decode_as
from chargehand.store.database.connection import Database, hold_lock, typed_errors
from chargehand.store.database.keys import KeyFiles, KnownKeys

_LONGEST = 4 << 20  # bytes; an envelope with hundreds of checks has some 100 kB


class EnvelopeSignature(Struct, frozen=True, kw_only=True):
    """Ed25519's signature in base64, and the id of the public key."""

    keyid: str
    sig: str


class Envelope(Struct, frozen=True, kw_only=True):
    """A body in base64, its media type, and the signatures over both."""

    payload: str
    payload_type: str = field(name="payloadType")
    signatures: tuple[EnvelopeSignature, ...]

    @property
    def body(self) -> bytes:
        """The content of the envelope."""
        return base64.b64decode(self.payload, validate=True)

    def signer(self, known: KnownKeys) -> str | None:
        """Return the id of the known key that signed the body, "" if only unknown keys signed it.

        `None` if a signature in the name of a known key is invalid.
        """
        message = _signed_bytes(self.payload_type, self.body)
        for signature in self.signatures:
            key = known.keys.get(signature.keyid)
            if key is not None:
                good = key.verifies(base64.b64decode(signature.sig, validate=True), message)
                return key.id if good else None
        return ""

    def encode(self) -> bytes:
        """Return the envelope as one JSON object on one line."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> Envelope:
        """Read an envelope written by `encode`; signatures are not checked here.

        Raises `ValueError`.
        """
        if len(content) > _LONGEST:
            raise ValueError(f"it has {len(content)} bytes")
        envelope = decode_as(content, cls)
        for text in (envelope.payload, *(each.sig for each in envelope.signatures)):
            base64.b64decode(text, validate=True)
        return envelope


def sign_envelope(database: Database, body: bytes, *, kind: str) -> Envelope:
    """Sign `body`, of media type `kind`, with the key of the state directory, created at first use.

    Raises `StoreError` (`key_missing`, `key_damaged`, and those of the disk).
    """
    with hold_lock(database.home, "signing.lock"), typed_errors(database.home):
        key = KeyFiles(database.home).ensure()
    signature = base64.b64encode(key.sign(_signed_bytes(kind, body))).decode()
    return Envelope(
        payload=base64.b64encode(body).decode(),
        payload_type=kind,
        signatures=(EnvelopeSignature(keyid=key.public.id, sig=signature),),
    )


def _signed_bytes(kind: str, body: bytes) -> bytes:
    """Return the bytes to sign: DSSE's pre-authentication encoding, each part after its length."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(body), body)
