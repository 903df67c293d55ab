"""The permitted forms of the mirror's paths; no disguise of another path gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.network.contract import MirrorRefusal
from chargehand.network.registries import MirrorRoute, parse_route

ID = "0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/pypi/simple/Six/", MirrorRoute(kind="pypi-index", project="Six")),
        ("/pypi/simple/zope.interface", MirrorRoute(kind="pypi-index", project="zope.interface")),
        (
            f"/pypi/files/{ID}/a-1%2Blocal-py3-none-any.whl",
            MirrorRoute(kind="pypi-file", identity=ID, filename="a-1+local-py3-none-any.whl"),
        ),
        ("/npm/is-number", MirrorRoute(kind="npm-index", project="is-number")),
        ("/npm/@scope%2fname", MirrorRoute(kind="npm-index", project="@scope/name")),
        ("/npm/@scope/name?write=true", MirrorRoute(kind="npm-index", project="@scope/name")),
        ("/npm/a/-/a-1.0.0.tgz", MirrorRoute(kind="npm-file", project="a", filename="a-1.0.0.tgz")),
        ("/npm/@s/a/-/a-1.0.0.tgz", MirrorRoute(kind="npm-file", project="@s/a", filename="a-1.0.0.tgz")),
        (f"/npm/@s/a/-/{ID}/x.tgz", MirrorRoute(kind="npm-file", project="@s/a", identity=ID, filename="x.tgz")),
        # A lock file's paths, which npm appends to ours or uses instead.
        ("/npm/api/virtual/a/-/a-1.0.0.tgz", MirrorRoute(kind="npm-file", project="a", filename="a-1.0.0.tgz")),
        ("/@s/a/-/a-1.0.0.tgz", MirrorRoute(kind="npm-file", project="@s/a", filename="a-1.0.0.tgz")),
    ],
)
def test_routes_that_clients_use(target: str, route: MirrorRoute) -> None:
    assert parse_route(target.encode()) == route


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/pypi/files/../../etc/passwd", 400),
        (f"/pypi/files/{ID}/..", 400),
        (f"/pypi/files/{ID}/%2e%2e/%2e%2e/etc/passwd", 400),
        (f"/pypi/files/{ID}/..%2f..%2fetc%2fpasswd", 400),
        (f"/pypi/files/{ID}/..\\..\\x.whl", 400),
        ("/pypi/simple/%00/", 400),
        ("/pypi/simple/a%0d%0aX-Evil:1/", 400),
        ("/pypi/simple/caf%c3%a9/", 400),
        ("http://example.invalid/pypi/simple/six/", 400),
        ("//example.invalid/pypi/simple/six/", 400),
        ("example.invalid:443", 400),
        ("*", 400),
        ("/" + "a" * 3000, 414),
        ("/", 404),
        ("/pypi/simple/", 404),
        ("/pypi/simple/-six/", 404),
        ("/pypi/simple/six/extra", 404),
        (f"/pypi/files/{ID}", 404),
        ("/pypi/files/zz/six.whl", 404),
        ("/npm/-/npm/v1/security/advisories/bulk", 404),
        ("/npm/-/v1/search?text=x", 404),
        ("/npm/-/whoami", 404),
        ("/npm/.hidden", 404),
        ("/npm/_private", 404),
        ("/npm/@scope", 404),
        ("/npm/a/-/http://example.invalid/a.tgz", 404),
    ],
)
def test_everything_else_is_refused(target: str, status: int) -> None:
    with pytest.raises(MirrorRefusal) as caught:
        parse_route(target.encode())
    assert caught.value.status == status


PIECES = [
    "/",
    "..",
    ".",
    "%2e",
    "%2f",
    "%5c",
    "npm",
    "pypi",
    "simple",
    "files",
    "-",
    "@",
    "a",
    ID,
    "?",
    "%",
    ":",
    "//",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12))
def test_parsed_routes_have_only_safe_names(pieces: list[str]) -> None:
    try:
        route = parse_route(b"/" + "".join(pieces).encode("utf-8", "replace"))
    except MirrorRefusal:
        return
    scope, _, name = route.project.rpartition("/")
    for part in (scope.removeprefix("@"), name, route.filename):
        assert ".." not in part.split("/")
        assert "/" not in part
        assert part.isprintable()
    assert not scope or scope.startswith("@")
