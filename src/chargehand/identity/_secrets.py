"""Secrets that grant access: 256 random bits, stored as their digest only."""

from __future__ import annotations

import hashlib
import secrets


def new_secret(prefix: str = "") -> tuple[str, str]:
    """Return a secret of 256 random bits and the digest that is stored."""
    secret = prefix + secrets.token_urlsafe(32)
    return secret, digest_secret(secret)


def digest_secret(secret: str) -> str:
    """Return the digest by which a secret is found: SHA-256 in hexadecimal digits."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
