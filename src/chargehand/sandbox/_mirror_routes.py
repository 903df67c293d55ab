"""The paths a mirror answers: everything else, and every disguise of these, is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from chargehand.sandbox._mirror_reply import MirrorRefusal, RequestKind

_MAX_TARGET = 2_048
_PROJECT = r"(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,212}[A-Za-z0-9])?)"
_PACKAGE = r"(?P<project>(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]{0,212}/)?(?!-/)[A-Za-z0-9~-][A-Za-z0-9._~-]{0,212})"
_FILE = r"(?P<filename>[A-Za-z0-9][A-Za-z0-9._+!~-]{0,260})"
_TARBALL = r"(?P<filename>[A-Za-z0-9~-][A-Za-z0-9._+~-]{0,255}\.tgz)"
_ID = r"(?P<identity>[0-9a-f]{24})"
_REGISTRY = r"(?P<registry>[A-Za-z0-9_-]{1,64})"
_CRATE = r"(?P<project>[A-Za-z0-9][A-Za-z0-9_-]{0,63})"
_ELEMENT = r"(?:[a-z0-9_.~-]|![a-z]){1,200}"
_MODULE = rf"(?P<project>{_ELEMENT}(?:/{_ELEMENT}){{0,24}})"
_VERSION = r"[a-z0-9](?:[a-z0-9._+~-]|![a-z]){0,200}"
_SUMS = rf"(?:supported|latest|lookup/{_ELEMENT}(?:/{_ELEMENT}){{0,24}}@{_VERSION}|tile/[a-z0-9./]{{1,80}})"
# npm puts the paths of lock files, which belong to other registries, behind or in place of ours.
_ELSEWHERE = r"(?:[A-Za-z0-9._~-]{1,100}/){0,8}?"
_ROUTES: tuple[tuple[RequestKind, re.Pattern[str]], ...] = (
    ("pypi-index", re.compile(rf"/pypi/simple/{_PROJECT}/?")),
    ("pypi-file", re.compile(rf"/pypi/files/{_ID}/{_FILE}")),
    ("cargo-config", re.compile(rf"/cargo/{_REGISTRY}/index/config\.json")),
    ("cargo-index", re.compile(rf"/cargo/{_REGISTRY}/index/(?P<filename>(?:[^/]{{1,2}}/){{1,2}}{_CRATE})")),
    (
        "cargo-file",
        re.compile(rf"/cargo/{_REGISTRY}/crates/{_CRATE}/(?P<filename>[0-9A-Za-z.+-]{{1,128}})/download"),
    ),
    ("go-sums", re.compile(rf"/go/sumdb/(?P<project>[A-Za-z0-9.-]{{1,200}})/(?P<filename>{_SUMS})")),
    ("go-page", re.compile(rf"/go/{_MODULE}/(?P<filename>@latest|@v/list|@v/{_VERSION}\.(?:info|mod))")),
    ("go-file", re.compile(rf"/go/{_MODULE}/(?P<filename>@v/{_VERSION}\.zip)")),
    ("npm-index", re.compile(rf"/npm/{_PACKAGE}")),
    ("npm-file", re.compile(rf"/npm/{_PACKAGE}/-/{_ID}/{_FILE}")),
    ("npm-file", re.compile(rf"/{_ELSEWHERE}{_PACKAGE}/-/{_TARBALL}")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a request asks for: the kind, the project (package, crate, module), and for a file its id and name.

    `registry` is the name of a cargo registry.
    """

    kind: RequestKind
    project: str = ""
    identity: str = ""
    filename: str = ""
    registry: str = ""


def parse_route(target: bytes) -> Route:
    """Return what the target asks for; raises `MirrorRefusal` 400 for a malformed, 404 for an unknown one."""
    if len(target) > _MAX_TARGET:
        raise MirrorRefusal(414, f"the path is longer than {_MAX_TARGET} B")
    if not target.startswith(b"/") or target.startswith(b"//"):
        raise MirrorRefusal(400, "the request target must be a path: this is not a proxy")
    try:
        path = unquote_to_bytes(target.partition(b"?")[0]).decode("ascii")
    except UnicodeDecodeError:
        raise MirrorRefusal(400, "the path is not ASCII") from None
    if not path.isprintable() or "\\" in path or any(part in (".", "..") for part in path.split("/")):
        raise MirrorRefusal(400, "the path is not plain")
    for kind, pattern in _ROUTES:
        if match := pattern.fullmatch(path):
            return Route(kind=kind, **match.groupdict())
    raise MirrorRefusal(404, "this mirror has no such page")
