"""Deliveries of forges' webhooks: proof of their origin, and the address that they name.

A delivery is only a hint to look at a repository: everything else is read from the forge.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.forges.contract import ForgeError

LARGEST_DELIVERY = 25 << 20
"""The limit of GitHub, in bytes; no forge sends more."""
_OLDEST_SECONDS = 300.0


class HookDelivery(Struct, frozen=True, kw_only=True):
    """A delivery with a valid signature; `number` is `None` for events of no issue or request.

    `repository`, `action` and `sender` are "" if the event has none. `id` is the same for a repeated delivery.
    """

    id: str
    event: str
    repository: str
    number: int | None
    action: str
    sender: str


class HookNumber(Struct, frozen=True):
    """An issue or request in a delivery: `number` at GitHub and Gitea, `iid` at GitLab."""

    number: int | None = None
    iid: int | None = None
    action: str | None = None


class HookRepository(Struct, frozen=True):
    """A repository in a delivery."""

    full_name: str | None = None
    path_with_namespace: str | None = None


class HookPerson(Struct, frozen=True):
    """The person who caused a delivery."""

    login: str | None = None
    username: str | None = None


class HookBody(Struct, frozen=True):
    """The fields that a delivery is read for."""

    action: str | None = None
    repository: HookRepository | None = None
    project: HookRepository | None = None
    sender: HookPerson | None = None
    user: HookPerson | None = None
    issue: HookNumber | None = None
    pull_request: HookNumber | None = None
    merge_request: HookNumber | None = None
    object_attributes: HookNumber | None = None
    object_kind: str | None = None


def read_delivery(
    kind: str, headers: Mapping[str, str], body: bytes, secret: str, *, now: float | None = None
) -> HookDelivery:
    """Check the signature of a delivery of a kind of forge, and return what it names.

    `now` is the present time in seconds for GitLab's signature of a time, which is not checked without it. Raises
    `ForgeError`: `denied` for a missing or wrong signature, `invalid` for a body that is too large or unknown.
    """
    given = {name.lower(): value for name, value in headers.items()}
    if len(body) > LARGEST_DELIVERY:
        raise ForgeError("invalid", f"the delivery is longer than {LARGEST_DELIVERY} bytes")
    check = {"gitea": _is_from_gitea, "github": _is_from_github}.get(kind)
    if kind == "gitlab":
        is_genuine = _is_from_gitlab(given, body, secret, now)
    elif check is None:
        raise ForgeError("invalid", f"the forge {kind!r} sends no deliveries")
    else:
        is_genuine = bool(secret) and check(given, body, secret)
    if not is_genuine:
        raise ForgeError(
            "denied", "the delivery is not signed with the secret", hint="set the hook's secret again"
        )
    try:
        found = decode_as(body, HookBody)
    except msgspec.MsgspecError as error:
        raise ForgeError("invalid", "the delivery cannot be read", hint=str(error)) from None
    if kind == "gitlab":
        return _from_gitlab(given, found)
    prefix = f"x-{kind}-"
    item = found.issue or found.pull_request
    return HookDelivery(
        id=given.get(f"{prefix}delivery", ""),
        event=_require_header(given, f"{prefix}event"),
        repository=(found.repository and found.repository.full_name) or "",
        number=item.number if item else None,
        action=found.action or "",
        sender=(found.sender and (found.sender.login or found.sender.username)) or "",
    )


def _from_gitlab(headers: Mapping[str, str], found: HookBody) -> HookDelivery:
    attributes = found.object_attributes
    # A comment's attributes are those of the comment: its issue or request is in another field.
    item = found.issue or found.merge_request
    if item is None and found.object_kind in ("issue", "work_item", "merge_request"):
        item = attributes
    repository = found.project or found.repository
    return HookDelivery(
        # The same for each repetition, unlike `x-gitlab-event-uuid`.
        id=headers.get("idempotency-key") or headers.get("webhook-id") or headers.get("x-gitlab-webhook-uuid", ""),
        event=_require_header(headers, "x-gitlab-event"),
        repository=(repository and repository.path_with_namespace) or "",
        number=(item.iid or item.number) if item else None,
        action=(attributes and attributes.action) or "",
        sender=(found.user and (found.user.username or found.user.login)) or "",
    )


def _is_from_gitea(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    return _is_same(headers.get("x-gitea-signature", ""), _sign(secret.encode(), body).hex())


def _is_from_github(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    return _is_same(headers.get("x-hub-signature-256", ""), f"sha256={_sign(secret.encode(), body).hex()}")


def _is_from_gitlab(headers: Mapping[str, str], body: bytes, secret: str, now: float | None) -> bool:
    """Check the signature of Standard Webhooks if there is one, else the secret itself."""
    signatures = headers.get("webhook-signature", "")
    if not secret:
        return False
    if not signatures:
        return _is_same(headers.get("x-gitlab-token", ""), secret)
    when = headers.get("webhook-timestamp", "")
    if not when.isdecimal() or (now is not None and abs(now - int(when)) > _OLDEST_SECONDS):
        return False
    signed = f"{headers.get('webhook-id', '')}.{when}.".encode() + body
    expected = "v1," + base64.b64encode(_sign(_signing_key(secret), signed)).decode()
    return any(_is_same(each, expected) for each in signatures.split())


def _signing_key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        return secret.encode()


def _sign(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def _is_same(given: str, expected: str) -> bool:
    # In constant time: the time to the first difference would reveal the secret.
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _require_header(headers: Mapping[str, str], name: str) -> str:
    if not headers.get(name):
        raise ForgeError("invalid", f"the delivery has no header {name}")
    return headers[name]
