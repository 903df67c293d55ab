"""The dashboard's built files: compressed once when the server starts, and served from memory."""

from __future__ import annotations

import gzip
import html
import mimetypes
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from chargehand.identity.providers import ConfiguredProvider

_NO_PAGES = (
    b"<!doctype html><meta charset=utf-8><title>Chargehand</title>"
    b"<p>The dashboard is not part of this installation. Its API is at /api/v1, described by /openapi.json."
)
_LEAST_COMPRESSED_BYTES = 1000
_BINARY = (".png", ".woff2", ".ico", ".jpg")


class _File(Struct, frozen=True):
    content: bytes
    compressed: bytes | None
    media_type: str
    cached: str

    @classmethod
    def of(cls, path: Path, content: bytes) -> _File:
        small = len(content) < _LEAST_COMPRESSED_BYTES or path.suffix in _BINARY
        return cls(
            content=content,
            compressed=None if small else gzip.compress(content, mtime=0),
            media_type=mimetypes.guess_type(path.name)[0] or "application/octet-stream",
            # The build puts a hash of the content into names below assets/; browsers revalidate all other files.
            cached="public, max-age=31536000, immutable" if path.parent.name == "assets" else "no-cache",
        )


class Pages:
    """Serves the files of a directory; any other path gets the application's page, which does its own routing.

    The login page offers the sign-in of each provider and, with `passwords`, a name and password.
    """

    def __init__(self, directory: Path, providers: Sequence[ConfiguredProvider], *, passwords: bool) -> None:
        self._files = {
            f"/{path.relative_to(directory)}": _File.of(path, path.read_bytes())
            for path in directory.rglob("*")
            if path.is_file()
        }
        page = directory / "index.html"
        if page.is_file():
            offers = [(each.name, each.provider.title) for each in providers]
            meta = "".join(
                f'<meta name="chargehand-sign-in" content="{html.escape(title)}" data-provider="{name}" />'
                for name, title in offers
            )
            meta += "" if passwords else '<meta name="chargehand-no-passwords" content="" />'
            content = page.read_text().replace("</head>", f"{meta}</head>", 1)
            self._files["/index.html"] = _File.of(page, content.encode())

    async def serve(self, request: Request) -> Response:
        """Return a file, or the application's page."""
        path = request.url.path
        found = self._files.get(path) or (
            None if "." in path.rpartition("/")[2] else self._files.get("/index.html")
        )
        if found is None:
            missing = path in ("/", "/index.html")
            return Response(
                _NO_PAGES if missing else b"Not found", 200 if missing else 404, media_type="text/html"
            )
        headers = {"Cache-Control": found.cached, "Vary": "Accept-Encoding"}
        if found.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(found.compressed, headers=headers, media_type=found.media_type)
        return Response(found.content, headers=headers, media_type=found.media_type)
