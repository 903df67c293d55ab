"""Places that packages come from: which are the usual ones, and how one is shown without its password."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from chargehand.core.text import printable

_LONGEST = 200
_URL = re.compile(r"(?:(?:git|hg|svn|bzr|registry|sparse|direct)\+)?(?:https?|ssh|git|ftp|file)://[^\s\"'<>]+")
# git's short form, the short names of hosting services, and files outside of the project.
_SHORT = re.compile(r"git@[\w.-]+:\S+|(?:github|gitlab|bitbucket|gist|git):\S+")
_OUTSIDE = re.compile(r"(?:(?:file|link|portal):)?[/~]\S*")
_USUAL = frozenset(
    {"https://pypi.org", "https://files.pythonhosted.org", "https://registry.npmjs.org"}
    | {"https://registry.yarnpkg.com", "https://static.crates.io", "https://index.crates.io"}
    | {"https://proxy.golang.org", "https://registry.npmjs.com"}
)
_USUAL_INDEX = "registry+https://github.com/rust-lang/crates.io-index"


def source_of(text: str) -> str | None:
    """Return the place that a text names by URL or by git's short form, `None` where it names none."""
    url = _URL.search(text)
    if url is not None:
        return _shown(url[0])
    short = re.search(r"git@[\w.-]+:\S+", text)
    return printable(short[0][:_LONGEST]) if short else None


def foreign_sources(texts: Iterable[str], *, local: bool) -> list[str]:
    """Return the places among texts that are not the usual registries.

    With `local` texts that name no place are passed over; without, each text is a place by its position.
    """
    found = (_foreign(text.strip(), local=local) for text in texts)
    return [place for place in found if place is not None]


def _foreign(text: str, *, local: bool) -> str | None:
    url = _URL.search(text)
    if url is not None:
        return None if _is_usual(url[0]) else _shown(url[0])
    if _OUTSIDE.fullmatch(text) or _SHORT.fullmatch(text):
        return printable(text[:_LONGEST])
    inside = local or text.startswith(".") or not text
    return None if inside else printable(text[:_LONGEST])


def _is_usual(url: str) -> bool:
    return url.startswith(_USUAL_INDEX) or _origin(url.removeprefix("registry+").removeprefix("sparse+")) in _USUAL


def _shown(url: str) -> str:
    """Return a registry by its host, a repository as it is; neither with what may be a password."""
    kind, plus, rest = url.partition("+")
    plain = rest if plus and "/" not in kind else url
    is_repository = plain is not url and kind not in ("registry", "sparse", "direct")
    if is_repository or not plain.startswith("http") or ".git" in plain:
        where = re.sub(r"//[^/@]*@", "//", plain).partition("#")[0].partition("?")[0]
        return printable(where[:_LONGEST])
    return printable(_origin(plain)[:_LONGEST])


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
    except ValueError:
        return url.rpartition("@")[2]
    return f"{parts.scheme}://{host}{port}"
