"""Entries of [forges] with their kinds."""

from __future__ import annotations

from msgspec import Struct

from chargehand.core.config import ForgeConfig
from chargehand.forges.contract import ForgeKind, IssueAddress
from chargehand.forges.grants import token_name


class ForgeEntry(Struct, frozen=True, kw_only=True):
    """An entry of [forges] with its kind; `url` is the address of its pages."""

    name: str
    config: ForgeConfig
    kind: ForgeKind

    @property
    def url(self) -> str:
        """The address of its pages, without a slash at its end."""
        return (self.config.url or self.kind.url).rstrip("/")

    def find(self, page: str) -> IssueAddress | None:
        """Return the issue or request of a page, `None` for another page."""
        return self.kind.parse(page[len(self.url) :]) if page.startswith(f"{self.url}/") else None

    @property
    def token(self) -> str:
        """The name of the secret that holds its token."""
        return token_name(self.name, self.config.token)
