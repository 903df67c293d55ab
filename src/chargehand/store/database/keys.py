"""The Ed25519 key pair with which a state directory signs its heads: created once, never overwritten.

cryptography is imported inside the functions: only code that signs or verifies pays for it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from chargehand.core.errors import StoreError
from chargehand.store.database.files import sync_directory, write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY_BYTES = 32
_PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")  # the prefix of a key's bytes in RFC 8410
_PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")
_RESTORE = "`chargehand store restore` restores a backup; `chargehand audit verify` shows the affected missions"


class PublicKey(Struct, frozen=True):
    """A public key: its 32 bytes, its PEM form (SubjectPublicKeyInfo), and its id."""

    raw: bytes
    pem: str
    id: str

    @classmethod
    def parse(cls, pem: bytes) -> PublicKey:
        """Parse a PEM file of ours. Raises `ValueError` for any other content."""
        return cls.from_raw(_from_pem(pem, "PUBLIC KEY", prefix=_PUBLIC_DER))

    @classmethod
    def from_raw(cls, raw: bytes) -> PublicKey:
        """Return the key with these 32 bytes; its id is the hex SHA-256 of the DER form, as openssl prints it."""
        der = _PUBLIC_DER + raw
        return cls(raw=raw, pem=_to_pem(der, "PUBLIC KEY").decode(), id=hashlib.sha256(der).hexdigest())

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Return whether this key's owner signed `message`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class AuditKey:
    """The private key; it never leaves this object except to its file."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey.from_raw(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> AuditKey:
        """Return a new key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, pem: bytes) -> AuditKey:
        """Parse a PEM file of ours. Raises `ValueError` for any other content."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.from_private_bytes(_from_pem(pem, "PRIVATE KEY", prefix=_PRIVATE_DER)))

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`, 64 bytes; equal messages have equal signatures."""
        return self._key.sign(message)

    def to_pem(self) -> bytes:
        """Return the key for its file, unencrypted: any reader of the state directory can sign."""
        return _to_pem(_PRIVATE_DER + self._key.private_bytes_raw(), "PRIVATE KEY")


class KnownKeys(Struct, frozen=True):
    """The public keys of a state directory by id, and the problems with their files."""

    keys: Mapping[str, PublicKey]
    faults: tuple[str, ...] = ()


class KeyFiles:
    """The files `<home>/keys/audit.key` (mode 0600) and `audit.pub`, in a directory of mode 0700."""

    def __init__(self, home: Path) -> None:
        self.private = home / "keys" / "audit.key"
        self.public = home / "keys" / "audit.pub"

    def ensure(self) -> AuditKey:
        """Return the key, creating it on disk if necessary; the caller holds the lock.

        Raises `StoreError` (`key_damaged`, and `key_missing` for a public key without its private key: a new key
        in its place would pass for the old one), `OSError`.
        """
        pem, public = _read(self.private), _read(self.public)
        if pem is None:
            if public is not None:
                raise _key_error("key_missing", self.private, "is missing, but its public key exists")
            key = AuditKey.generate()
            write_whole(self.private, key.to_pem(), durable=True)
            # `keys` may have been created just now, and its name must be on disk as well.
            sync_directory(self.private.parent.parent)
        else:
            try:
                key = AuditKey.parse(pem)
            except ValueError as error:
                raise _key_error(
                    "key_damaged", self.private, f"is not a key that Chargehand wrote: {error}"
                ) from error
        if public is None:  # also after a crash between the two files
            write_whole(self.public, key.public.pem.encode(), durable=True)
        elif public != key.public.pem.encode():
            raise _key_error("key_damaged", self.public, f"is not the public key of {str(self.private)!r}")
        return key

    def known(self) -> KnownKeys:
        """Return the keys for verifying signatures; no key is created. Raises `OSError`."""
        faults: list[str] = []
        keys: list[PublicKey] = []
        for path in (self.private, self.public):
            pem = _read(path)
            if pem is not None:
                try:
                    keys.append(AuditKey.parse(pem).public if path == self.private else PublicKey.parse(pem))
                except ValueError as error:
                    faults.append(f"{str(path)!r} is not a key that Chargehand wrote: {error}")
        if len({key.id for key in keys}) > 1:
            faults.append(f"{str(self.public)!r} is not the public key of {str(self.private)!r}")
        return KnownKeys(keys={key.id: key for key in keys}, faults=tuple(faults))


def _to_pem(der: bytes, label: str) -> bytes:
    return f"-----BEGIN {label}-----\n{base64.b64encode(der).decode()}\n-----END {label}-----\n".encode()


def _from_pem(pem: bytes, label: str, *, prefix: bytes) -> bytes:
    # Not left to a general PEM reader: it skips some bytes, and fails in its own ways on damaged ones.
    lines = pem.split(b"\n")
    der = base64.b64decode(lines[1], validate=True) if len(lines) > 1 else b""
    if len(der) != len(prefix) + _KEY_BYTES or not der.startswith(prefix) or _to_pem(der, label) != pem:
        raise ValueError(f"it is not an Ed25519 {label.lower()} as it was written")
    return der[len(prefix) :]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _key_error(code: str, path: Path, what: str) -> StoreError:
    return StoreError(f"{str(path)!r} {what}", code=code, hint=_RESTORE)
