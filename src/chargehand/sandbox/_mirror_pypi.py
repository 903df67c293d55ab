"""The Python side of the mirror: project pages merged over the user's indexes, and the files they name."""

from __future__ import annotations

import asyncio
from urllib.parse import urljoin, urlsplit

import msgspec

from chargehand.sandbox._mirror_links import (
    ACCEPT,
    HTML_MEDIA,
    JSON_MEDIA,
    Link,
    as_html,
    as_json,
    belongs,
    html_links,
    is_archive,
    json_links,
    normalised,
)
from chargehand.sandbox._mirror_reply import MirrorLimits, MirrorRefusal, Reply, Trace
from chargehand.sandbox._mirror_settings import PipConfig, shown_host
from chargehand.sandbox._mirror_tables import FileTable, PageCache
from chargehand.sandbox._mirror_upstream import Page, Upstream, disk_file, local_path

_METADATA = ".metadata"
# Object stores answer 403 for what does not exist, so pip too reads it as "no such project".
_ABSENT = (403, 404, 410)
_LOCAL_PAGE_BYTES = 64 * 1024 * 1024


class PythonRegistry:
    """Answers what pip asks, from the user's own indexes and find-links."""

    def __init__(self, config: PipConfig, *, upstream: Upstream, limits: MirrorLimits) -> None:
        self._config = config
        self._upstream = upstream
        self._files = FileTable()
        self._cache: PageCache[list[Link]] = PageCache(limits.cache_bytes)

    async def index(self, project: str, *, accept: str, trace: Trace) -> Reply:
        """Return the merged page of `project`; 404 where no source has it, 502 where a source fails.

        A source that fails is never left out in silence: another one may serve a wrong package of that name.
        """
        name = normalised(project)
        sources = [self._find_links(url, name, trace=trace) for url in self._config.find_links]
        sources += [self._index(url, name, trace=trace) for url in self._config.indexes]
        answers = await asyncio.gather(*sources, return_exceptions=True)
        links: dict[tuple[str, str], Link] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            for link in answer:
                links.setdefault((link.filename, link.hashes.get("sha256", "")), link)
        if not links:
            raise MirrorRefusal(404, f"no configured index has a project {name!r}")
        render, media = (as_json, JSON_MEDIA) if JSON_MEDIA in accept else (as_html, HTML_MEDIA)
        return Reply(media=media, body=render(name, links.values(), rewrite=self._rewritten))

    def _rewritten(self, link: Link) -> str:
        return f"/pypi/files/{self._files.add(link)}/{link.filename}"

    async def file(self, identity: str, filename: str, *, trace: Trace) -> Reply:
        """Return a file that a page of this mirror named, or its metadata; 404 for any other."""
        link = self._files.get(identity)
        url = _wanted(link, filename) if link else None
        if link is None or url is None:
            raise MirrorRefusal(404, "no index page of this mirror names this file")
        trace.project = filename
        if url.startswith("file:"):
            trace.asked("file:")
            return await disk_file(url)
        return await self._upstream.file(url, trace=trace)

    async def _index(self, index: str, name: str, *, trace: Trace) -> list[Link]:
        url = urljoin(index.rstrip("/") + "/", f"{name}/")
        if url.startswith("file:"):
            trace.asked("file:")
            return await asyncio.to_thread(_directory_links, url)
        return await self._web_page(url, trace=trace)

    async def _find_links(self, url: str, name: str, *, trace: Trace) -> list[Link]:
        if url.startswith("file:"):
            trace.asked("file:")
            links = await asyncio.to_thread(_local_links, url)
        else:
            links = await self._web_page(url, trace=trace)
        return [link for link in links if belongs(link.filename, name)]

    async def _web_page(self, url: str, *, trace: Trace) -> list[Link]:
        kept = self._cache.get(url)
        if kept is not None:
            return kept
        page = await self._upstream.page(url, accept=ACCEPT, trace=trace, absent=_ABSENT)
        # Large pages take a moment to parse, in which other requests go on.
        links = await asyncio.to_thread(_page_links, page) if page else []
        self._cache.put(url, links, size=len(page.body) if page else 1)
        return links


def _wanted(link: Link, filename: str) -> str | None:
    """Return the URL of the link's file, or of its metadata where the index says there is some."""
    if filename == link.filename:
        return link.url
    if link.metadata is not None and filename == link.filename + _METADATA:
        parts = urlsplit(link.url)
        return parts._replace(path=parts.path + _METADATA).geturl()
    return None


def _page_links(page: Page) -> list[Link]:
    try:
        if "json" in page.media:
            return json_links(page.body, url=page.url)
    except msgspec.MsgspecError:
        raise MirrorRefusal(502, f"{shown_host(page.url)!r} answered what is not an index page") from None
    return html_links(page.body.decode("utf-8", "replace"), url=page.url)


def _directory_links(url: str) -> list[Link]:
    """Return the links of a project's directory: of its index.html, else its own archives."""
    directory = local_path(url)
    page = directory / "index.html"
    if page.is_file():
        return _file_page_links(page.as_uri())
    return _local_links(url) if directory.is_dir() else []


def _local_links(url: str) -> list[Link]:
    """Return the links of a find-links directory or of a local HTML page; a missing one has none."""
    path = local_path(url)
    if not path.is_dir():
        return _file_page_links(url)
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    except OSError:
        return []
    pages = [name for name in names if name.endswith((".html", ".htm"))]
    links = [Link(filename=name, url=(path / name).as_uri()) for name in names if is_archive(name)]
    return links + [link for name in pages for link in _file_page_links((path / name).as_uri())]


def _file_page_links(url: str) -> list[Link]:
    path = local_path(url)
    try:
        if not path.is_file() or path.stat().st_size > _LOCAL_PAGE_BYTES or is_archive(path.name):
            return [Link(filename=path.name, url=url)] if path.is_file() and is_archive(path.name) else []
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return []
    return html_links(text, url=url)
