"""A file of secrets encrypted with AES-256-GCM, by a key from a passphrase (scrypt) or from a key file (HKDF)."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec

from chargehand.core.codec import decode_as
from chargehand.credentials._file import SecretsContent, SecretsFile
from chargehand.credentials._setup import KeyPlace, KeySetup

_FORMAT = "chargehand-secrets-1"
# 64 MB and 0.2 s for each guess of a passphrase; RFC 7914 names the parameters.
_SCRYPT = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 128 << 20}
_KEY_BYTES = 32
_MOST_KEY_BYTES = 4096


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    """The file: the salt of the key's derivation, the nonce, and the encrypted content with its tag."""

    format: str
    derivation: str
    salt: bytes
    nonce: bytes
    content: bytes

    @property
    def bound(self) -> bytes:
        """The part that is authenticated but not encrypted."""
        return f"{self.format} {self.derivation}".encode() + self.salt


class EncryptedFile(SecretsFile):
    """An encrypted `SecretsFile`. A wrong key and a changed file are one error (`secret_source`)."""

    def __init__(self, setup: KeySetup) -> None:
        super().__init__(Path(setup.config.path or setup.directory / "secrets.encrypted"))
        self._setup = setup
        self._derived: dict[tuple[str, bytes, bytes], bytes] = {}
        self._lock = threading.Lock()

    def find(self, place: KeyPlace) -> str | None:
        """Return the secret at a path, else of that name; see `LocatedKeys`."""
        return self.get(place.path or place.name)

    def _decode(self, content: bytes) -> SecretsContent:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            sealed = decode_as(content, _Sealed)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            sealed = None
        if sealed is None or sealed.format != _FORMAT or sealed.derivation not in ("scrypt", "hkdf"):
            raise self._error("is not an encrypted file of secrets", "move it away, or name another path")
        key = self._key(sealed.derivation, sealed.salt)
        try:
            plain = AESGCM(key).decrypt(sealed.nonce, sealed.content, sealed.bound)
        except (InvalidTag, ValueError):
            raise self._setup.misconfigured(
                f"cannot decrypt {str(self.path)!r}: another passphrase or key, or a changed file",
                "give the passphrase or key that it was written with",
            ) from None
        return super()._decode(plain)

    def _encode(self, kept: SecretsContent) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        derivation = "hkdf" if self._setup.config.key_file else "scrypt"
        sealed = _Sealed(_FORMAT, derivation, secrets.token_bytes(16), secrets.token_bytes(12), b"")
        key = self._key(derivation, sealed.salt)
        sealed.content = AESGCM(key).encrypt(sealed.nonce, super()._encode(kept), sealed.bound)
        return msgspec.json.encode(sealed) + b"\n"

    def _key(self, derivation: str, salt: bytes) -> bytes:
        source = self._key_file() if derivation == "hkdf" else self._passphrase()
        # The derived key is kept, since scrypt is slow on purpose.
        known = (derivation, salt, hashlib.sha256(source).digest())
        with self._lock:
            if known not in self._derived:
                self._derived = {known: _derive(derivation, source, salt)}
            return self._derived[known]

    def _passphrase(self) -> bytes:
        name = self._setup.config.secret
        if not name:
            raise self._setup.misconfigured("has no key", 'add key_file = "/PATH", or secret = "NAME"')
        value = self._setup.secret(name)
        if not value:
            raise self._setup.misconfigured(
                f"needs its passphrase: {name} is not set", f"chargehand secret set {name}"
            )
        return value.encode()

    def _key_file(self) -> bytes:
        path = self._setup.config.key_file
        if path is None:
            raise self._setup.misconfigured(f"needs the key file of {str(self.path)!r}", 'add key_file = "/PATH"')
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self._setup.misconfigured(f"cannot read {path!r}: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
                raise self._setup.misconfigured(
                    f"needs a key file that only you can read: {path!r}", "chmod 600 it"
                )
            content = file.read(_MOST_KEY_BYTES)
        if len(content) < _KEY_BYTES:
            hint = f"head -c 32 /dev/urandom > {path}"
            raise self._setup.misconfigured(f"needs a key file of at least {_KEY_BYTES} bytes: {path!r}", hint)
        return content


def _derive(derivation: str, source: bytes, salt: bytes) -> bytes:
    if derivation == "scrypt":
        parameters: Any = _SCRYPT
        return hashlib.scrypt(source, salt=salt, dklen=_KEY_BYTES, **parameters)
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=salt, info=_FORMAT.encode()).derive(source)
