"""Project pages of a Python index as HTML (PEP 503, 592, 658, 714) and JSON (PEP 691, 700)."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

from chargehand.core.codec import decode_as
from chargehand.network.addresses import join_web_url

HTML_MEDIA = "text/html; charset=utf-8"
JSON_MEDIA = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON_MEDIA}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!~-]{0,250}")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar")
_HASH = re.compile(r"(sha\d{3}|md5|sha1|blake2b)[=:]([0-9a-fA-F]{16,128})")
Rewrite = Callable[["FileLink"], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLink:
    """One file of a project. `yanked` is None or the reason ("" without one); `metadata` None, or its hashes."""

    filename: str
    url: str = field(repr=False)
    hashes: Mapping[str, str] = field(default_factory=dict)
    requires_python: str = ""
    yanked: str | None = None
    metadata: Mapping[str, str] | None = None
    size: int | None = None
    upload_time: str = ""


class _JsonFile(msgspec.Struct, rename="kebab"):
    filename: str
    url: str
    hashes: dict[str, str] = {}
    requires_python: str | None = None
    core_metadata: bool | dict[str, str] | None = None
    dist_info_metadata: bool | dict[str, str] | None = None
    yanked: bool | str = False
    size: int | None = None
    upload_time: str | None = None


class _JsonPage(msgspec.Struct):
    files: list[_JsonFile]


class _AnchorParser(HTMLParser):
    """Collects the attributes of the anchors of a page, and the base that it declares."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.base = ""
        self.anchors: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "base" and not self.base:
            self.base = values.get("href", "")
        elif tag == "a" and values.get("href"):
            self.anchors.append(values)


def normalise_project(name: str) -> str:
    """Return the project's name as indexes write it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_archive(filename: str) -> bool:
    """Return whether pip could install a file of this name."""
    return bool(FILENAME.fullmatch(filename)) and filename.lower().endswith(_ARCHIVES)


def may_belong_to(filename: str, project: str) -> bool:
    """Return whether a file may be of `project`; a false match by prefix is left to the client."""
    if filename.endswith(".whl"):
        return normalise_project(filename.partition("-")[0]) == project
    return normalise_project(filename).startswith(project + "-")


def parse_html_links(text: str, *, url: str) -> list[FileLink]:
    """Return the archives that an HTML page at `url` links to."""
    parser = _AnchorParser()
    # As in the HTML standard, so that a reason on two lines is the same whatever its line ends.
    parser.feed(text.replace("\r\n", "\n").replace("\r", "\n"))
    parser.close()
    base = _resolve(url, parser.base) or url
    links = []
    for anchor in parser.anchors:
        target, fragment = urldefrag(_resolve(base, anchor["href"].strip()))
        filename = unquote(urlsplit(target).path.rpartition("/")[2]) if target else ""
        if not is_archive(filename):
            continue
        # The second name is from PEP 658; PEP 714 replaced it by the first.
        metadata = anchor.get("data-core-metadata", anchor.get("data-dist-info-metadata"))
        links.append(
            FileLink(
                filename=filename,
                url=target,
                hashes=_find_hashes(fragment),
                requires_python=anchor.get("data-requires-python", ""),
                yanked=anchor.get("data-yanked"),
                metadata=None if metadata in (None, "", "false") else _find_hashes(metadata or ""),
            )
        )
    return links


def parse_json_links(body: bytes, *, url: str) -> list[FileLink]:
    """Return the archives that a JSON page at `url` lists; raises `msgspec.MsgspecError` for other content."""
    links = []
    for item in decode_as(body, _JsonPage).files:
        target = urldefrag(_resolve(url, item.url))[0]
        if not (target and is_archive(item.filename)):
            continue
        metadata = item.dist_info_metadata if item.core_metadata is None else item.core_metadata
        links.append(
            FileLink(
                filename=item.filename,
                url=target,
                hashes=_find_hashes(" ".join(f"{name}={value}" for name, value in item.hashes.items())),
                requires_python=item.requires_python or "",
                yanked=None if item.yanked is False else ("" if item.yanked is True else item.yanked),
                metadata=(metadata if isinstance(metadata, dict) else {}) if metadata else None,
                size=item.size,
                upload_time=item.upload_time or "",
            )
        )
    return links


def _find_hashes(text: str) -> dict[str, str]:
    return {match[1]: match[2].lower() for match in _HASH.finditer(text)}


def _resolve(base: str, reference: str) -> str:
    """Return the absolute URL, "" if we do not fetch it: a web page must not name files of this machine."""
    try:
        url = urljoin(base, reference)
        if urlsplit(url).scheme == "file":
            return url if base.startswith("file:") else ""
    except ValueError:
        return ""
    return join_web_url(base, reference)


def render_html(project: str, links: Iterable[FileLink], *, rewrite: Rewrite) -> bytes:
    """Return the page of `project` as HTML, with each link replaced by `rewrite`."""
    title = html.escape(project)
    lines = [
        f'<!DOCTYPE html>\n<html><head><meta name="pypi:repository-version" content="1.0"><title>{title}</title>',
        "</head><body>",
    ]
    for link in links:
        # A fragment holds one hash, and pip uses sha256 if offered.
        algorithm = "sha256" if "sha256" in link.hashes else next(iter(link.hashes), "")
        fragment = f"#{algorithm}={link.hashes[algorithm]}" if algorithm else ""
        attributes = {"href": rewrite(link) + fragment}
        if link.requires_python:
            attributes["data-requires-python"] = link.requires_python
        if link.yanked is not None:
            attributes["data-yanked"] = link.yanked
        if link.metadata is not None:
            metadata = next((f"{name}={value}" for name, value in link.metadata.items()), "true")
            attributes |= {"data-core-metadata": metadata, "data-dist-info-metadata": metadata}
        written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
        lines.append(f"<a {written}>{html.escape(link.filename)}</a><br/>")
    return "\n".join([*lines, "</body></html>\n"]).encode()


def render_json(project: str, links: Iterable[FileLink], *, rewrite: Rewrite) -> bytes:
    """Return the page of `project` as JSON, with each link replaced by `rewrite`."""
    files = []
    for link in links:
        written: dict[str, Any] = {
            "filename": link.filename,
            "url": rewrite(link),
            "hashes": dict(link.hashes),
            # Never "dist-info-metadata" too, on which pip 22.3 to 23.1 fails: PEP 714.
            "core-metadata": False if link.metadata is None else dict(link.metadata) or True,
            "yanked": (link.yanked or True) if link.yanked is not None else False,
        }
        optional = {"requires-python": link.requires_python, "size": link.size, "upload-time": link.upload_time}
        files.append({**written, **{name: value for name, value in optional.items() if value}})
    return msgspec.json.encode({"meta": {"api-version": "1.0"}, "name": project, "files": files})
