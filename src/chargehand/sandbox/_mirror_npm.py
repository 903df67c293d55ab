"""The npm side of the mirror: package documents with their tarballs moved here, and those tarballs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

from chargehand.sandbox._mirror_links import FILENAME, Link
from chargehand.sandbox._mirror_reply import MirrorLimits, MirrorRefusal, Reply, Trace
from chargehand.sandbox._mirror_settings import NpmConfig, shown_host
from chargehand.sandbox._mirror_tables import FileTable, PageCache
from chargehand.sandbox._mirror_upstream import Page, Upstream

INSTALL_MEDIA = "application/vnd.npm.install-v1+json"
_FULL_MEDIA = "application/json"


class NodeRegistry:
    """Answers what npm asks, from the user's registries; `public_url` is where clients reach the mirror."""

    def __init__(self, config: NpmConfig, *, upstream: Upstream, limits: MirrorLimits, public_url: str) -> None:
        self._config = config
        self._upstream = upstream
        self._public_url = public_url.rstrip("/")
        self._files = FileTable()
        self._tarballs: dict[str, str] = {}
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    async def document(self, package: str, *, accept: str, trace: Trace) -> Reply:
        """Return the package document, abbreviated where the client accepts that; 404 where there is none."""
        media = INSTALL_MEDIA if INSTALL_MEDIA in accept else _FULL_MEDIA
        body = await self._document(package, media=media, trace=trace)
        return Reply(media=media, body=body)

    async def tarball(self, package: str, filename: str, *, trace: Trace) -> Reply:
        """Return a tarball by its usual name, as lock files hold it; only what the package's document names."""
        key = f"{package}/{filename}"
        if key not in self._tarballs:
            await self._document(package, media=INSTALL_MEDIA, trace=trace)
        if key not in self._tarballs:
            raise MirrorRefusal(404, f"package {package!r} has no file {filename!r}")
        return await self._upstream.file(self._tarballs[key], trace=trace)

    async def file(self, package: str, identity: str, filename: str, *, trace: Trace) -> Reply:
        """Return a tarball of unusual name by its id; 404 for one that no document of this mirror named."""
        link = self._files.get(identity)
        if link is None or link.filename != f"{package}/{filename}":
            raise MirrorRefusal(404, "no package document of this mirror names this file")
        return await self._upstream.file(link.url, trace=trace)

    async def _document(self, package: str, *, media: str, trace: Trace) -> bytes:
        url = self._config.registry_of(package) + package.replace("/", "%2f")
        key = f"{media} {url}"
        kept = self._cache.get(key)
        if kept is not None:
            return kept
        accept = f"{INSTALL_MEDIA}; q=1.0, {_FULL_MEDIA}; q=0.8, */*" if media == INSTALL_MEDIA else _FULL_MEDIA
        page = await self._upstream.page(url, accept=accept, trace=trace)
        if page is None:
            raise MirrorRefusal(404, f"the registry has no package {package!r}")
        # Large documents take a moment to parse, in which other requests go on.
        body = await asyncio.to_thread(self._moved, page, package)
        self._cache.put(key, body, size=len(body))
        return body

    def _moved(self, page: Page, package: str) -> bytes:
        try:
            document = msgspec.json.decode(page.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            document = None
        if not isinstance(document, dict):
            raise MirrorRefusal(502, f"{shown_host(page.url)!r} answered what is not a package document")
        for version, dist in _dists(document):
            dist["tarball"] = self._public_tarball(package, version, dist["tarball"], base=page.url)
        return msgspec.json.encode(document)

    def _public_tarball(self, package: str, version: str, tarball: str, *, base: str) -> str:
        url = _absolute(base, tarball)
        filename = unquote(urlsplit(url).path.rpartition("/")[2])
        prefix = f"{self._public_url}/npm/{package}/-"
        if filename == f"{package.rpartition('/')[2]}-{version}.tgz" and FILENAME.fullmatch(filename):
            self._tarballs[f"{package}/{filename}"] = url
            return f"{prefix}/{filename}"
        shown = filename if FILENAME.fullmatch(filename) else "package.tgz"
        identity = self._files.add(Link(filename=f"{package}/{shown}", url=url))
        return f"{prefix}/{identity}/{shown}"


def _dists(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    versions = document.get("versions")
    for version, entry in versions.items() if isinstance(versions, dict) else ():
        dist = entry.get("dist") if isinstance(entry, dict) else None
        if isinstance(dist, dict) and isinstance(dist.get("tarball"), str):
            yield version, dist


def _absolute(base: str, tarball: str) -> str:
    try:
        url = urldefrag(urljoin(base, tarball))[0]
        usable = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        usable = False
    if not usable:
        raise MirrorRefusal(502, f"{shown_host(base)!r} names a tarball that is not on the web")
    return url
