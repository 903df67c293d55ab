"""Tables of files that index pages named, and a cache of the pages."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import Generic, TypeVar

from chargehand.network.mirror.links import FileLink

Page = TypeVar("Page")


class NamedFiles:
    """Opaque ids for the files that this mirror has named: other files are not fetched."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._links: dict[str, FileLink] = {}

    def add(self, link: FileLink) -> str:
        """Return the id of `link`; the same file keeps the same id for the life of the mirror."""
        # Keyed, so that a program inside cannot compute the id of a file that no page has named.
        identity = hashlib.blake2b(link.url.encode(), key=self._key, digest_size=12).hexdigest()
        self._links[identity] = link
        return identity

    def get(self, identity: str) -> FileLink | None:
        """Return the link of an id, `None` for an id that was never issued."""
        return self._links.get(identity)


class PageCache(Generic[Page]):
    """Parsed index pages, for the life of the mirror: one setup sees one state of its registries."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._pages: OrderedDict[str, tuple[int, Page]] = OrderedDict()

    def get(self, url: str) -> Page | None:
        """Return the page of `url`, `None` if it is not cached."""
        found = self._pages.get(url)
        return found[1] if found else None

    def put(self, url: str, page: Page, *, size: int) -> None:
        """Cache a page of `size` bytes, evicting the oldest pages if needed."""
        if url in self._pages:
            self._free += self._pages.pop(url)[0]
        self._free -= size
        self._pages[url] = (size, page)
        while self._free < 0 and self._pages:
            self._free += self._pages.popitem(last=False)[1][0]
