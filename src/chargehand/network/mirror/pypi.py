"""pip: the user's configuration, project pages merged over several indexes, and the files they name."""

from __future__ import annotations

import ast
import asyncio
import configparser
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import msgspec

from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.links import (
    ACCEPT,
    HTML_MEDIA,
    JSON_MEDIA,
    FileLink,
    is_archive,
    may_belong_to,
    normalise_project,
    parse_html_links,
    parse_json_links,
    render_html,
    render_json,
)
from chargehand.network.mirror.memory import NamedFiles, PageCache
from chargehand.network.mirror.settings import (
    PYPI,
    ClientAccess,
    Logins,
    PipConfig,
    Proxies,
    check_url,
    environment_proxies,
    expand_home,
    host_for_log,
    netrc_logins,
    origin_of,
    proxy_url,
    read_timeout,
    split_login,
)
from chargehand.network.mirror.upstream import (
    RegistryClient,
    UpstreamPage,
    local_file,
    local_path,
    read_local_page,
)

_METADATA = ".metadata"
# Object stores answer 403 for missing objects, so pip too reads it as "no such project".
_ABSENT = (403, 404, 410)
# Later sections win, as for `pip install`.
_SECTIONS = ("global", "install", ":env:")
_LIST_SECONDS = 30.0
_UNSET = ("", "0", "false", "no", "off", "n", "f")
_PIP_COMMANDS = (("pip",), ("pip3",), ("python3", "-m", "pip"), ("python", "-m", "pip"))


class PythonRegistry:
    """Serves pip from the user's indexes and find-links."""

    def __init__(self, config: PipConfig, *, upstream: RegistryClient, limits: MirrorLimits) -> None:
        self._config = config
        self._upstream = upstream
        self._files = NamedFiles()
        self._cache: PageCache[list[FileLink]] = PageCache(limits.cache_bytes)

    async def index(self, project: str, *, accept: str, trace: MirrorTrace) -> MirrorReply:
        """Return the merged page of `project`; 404 if no source has it, 502 if a source fails.

        A failing source is never skipped silently: another one may serve a wrong package of that name.
        """
        name = normalise_project(project)
        sources = [self._read_links(url, _local_links, trace=trace) for url in self._config.find_links]
        for index in self._config.indexes:
            url = urljoin(index.rstrip("/") + "/", f"{name}/")
            sources.append(self._read_links(url, functools.partial(_local_links, of_project=True), trace=trace))
        answers = await asyncio.gather(*sources, return_exceptions=True)
        links: dict[tuple[str, str], FileLink] = {}
        for number, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                raise answer
            of_all_projects = number < len(self._config.find_links)
            for link in answer:
                if of_all_projects and not may_belong_to(link.filename, name):
                    continue
                # The first source of a file wins; the same name with another hash is kept too, as pip would see
                # both.
                links.setdefault((link.filename, link.hashes.get("sha256", "")), link)
        if not links:
            raise MirrorRefusal(404, f"no configured index has a project {name!r}")
        render, media = (render_json, JSON_MEDIA) if JSON_MEDIA in accept else (render_html, HTML_MEDIA)

        def rewrite(link: FileLink) -> str:
            return f"/pypi/files/{self._files.add(link)}/{link.filename}"

        return MirrorReply(media=media, body=render(name, links.values(), rewrite=rewrite))

    async def file(self, identity: str, filename: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a file that a page of this mirror named, or its metadata; 404 for any other."""
        link = self._files.get(identity)
        url = ""
        if link is not None and filename == link.filename:
            url = link.url
        elif link is not None and link.metadata is not None and filename == link.filename + _METADATA:
            parts = urlsplit(link.url)
            url = parts._replace(path=parts.path + _METADATA).geturl()
        if not url:
            raise MirrorRefusal(404, "no index page of this mirror names this file")
        trace.project = filename
        if url.startswith("file:"):
            trace.add_host("file:")
            return await local_file(url)
        return await self._upstream.file(url, trace=trace)

    async def _read_links(
        self, url: str, read_local: Callable[[str], list[FileLink]], *, trace: MirrorTrace
    ) -> list[FileLink]:
        if url.startswith("file:"):
            trace.add_host("file:")
            return await asyncio.to_thread(read_local, url)
        cached = self._cache.get(url)
        if cached is not None:
            return cached
        page = await self._upstream.page(url, accept=ACCEPT, trace=trace, absent=_ABSENT)
        # Large pages take a moment to parse; other requests continue meanwhile.
        links = await asyncio.to_thread(_parse_page, page) if page else []
        self._cache.put(url, links, size=len(page.body) if page else 1)
        return links


def _parse_page(page: UpstreamPage) -> list[FileLink]:
    try:
        if "json" in page.media:
            return parse_json_links(page.body, url=page.url)
    except msgspec.MsgspecError:
        raise MirrorRefusal(502, f"{host_for_log(page.url)!r} did not answer with an index page") from None
    return parse_html_links(page.body.decode("utf-8", "replace"), url=page.url)


def _local_links(url: str, *, of_project: bool = False) -> list[FileLink]:
    """Return the links of a find-links directory or of a local HTML page; empty if missing.

    A directory `of_project`, in a local index, has the links of its index.html, else its archives.
    """
    path = local_path(url)
    if of_project:
        page = path / "index.html"
        if page.is_file():
            return _local_page_links(page.as_uri())
        if not path.is_dir():
            return []
    if not path.is_dir():
        return _local_page_links(url)
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    except OSError:
        return []
    pages = [name for name in names if name.endswith((".html", ".htm"))]
    links = [FileLink(filename=name, url=(path / name).as_uri()) for name in names if is_archive(name)]
    return links + [link for name in pages for link in _local_page_links((path / name).as_uri())]


def _local_page_links(url: str) -> list[FileLink]:
    """Return the links of a local HTML page, or the single link to a local archive."""
    path = local_path(url)
    if is_archive(path.name):
        # Not `path.is_file`, which raises if a parent directory may not be searched.
        return [FileLink(filename=path.name, url=url)] if os.path.isfile(path) else []
    page = read_local_page(url)
    return [] if page is None else parse_html_links(page.decode("utf-8", "replace"), url=url)


def read_pip_config(environ: Mapping[str, str]) -> PipConfig:
    """Return the pip configuration of the user with `environ`.

    Raises `ConfigError` if pip could not fetch an index or find-links. Starts the host's `pip` (about a second).
    """
    # pip itself knows its files and how they combine; without a pip we read the files that it would read.
    settings = _list_config(environ)
    if settings is None:
        settings = _read_config_files(environ)
    options: dict[str, str] = {}
    for section in _SECTIONS:
        options.update(settings.get(section, {}))
    options.update({_option(key[4:]): value for key, value in environ.items() if key.startswith("PIP_") and value})

    indexes: list[str] = []
    if options.get("no-index", "").lower() in _UNSET:
        indexes = [options.get("index-url") or PYPI, *options.get("extra-index-url", "").split()]
    indexes = [check_url(_as_url(item, environ), option="index-url") for item in indexes]
    links = [
        check_url(_as_url(item, environ), option="find-links") for item in options.get("find-links", "").split()
    ]
    by_prefix: dict[str, str] = {}
    by_origin: dict[str, str] = {}
    for url in (*indexes, *links):
        bare, header = split_login(url)
        if header:
            by_prefix[origin_of(bare) + urlsplit(bare).path.rstrip("/") + "/"] = header
            # pip sends an index's login also for files elsewhere on its host.
            by_origin.setdefault(origin_of(bare), header)
    replaced = options.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    added = environ.get("SSL_CERT_FILE")
    certificate = options.get("client-cert")
    proxies = environment_proxies(environ)
    if options.get("proxy"):
        proxies = Proxies(by_scheme=dict.fromkeys(("http", "https"), proxy_url(options["proxy"])))
    access = ClientAccess(
        roots=(expand_home(replaced, environ),) if replaced else (),
        extra_roots=(expand_home(added, environ),) if added else (),
        client_certificate=expand_home(certificate, environ) if certificate else None,
        unverified=frozenset(options.get("trusted-host", "").split()),
        proxies=proxies,
        logins=Logins(by_prefix=by_prefix, by_origin=by_origin, by_host=netrc_logins(environ)),
        timeout=read_timeout(options.get("timeout", "")),
    )
    return PipConfig(
        indexes=tuple(dict.fromkeys(split_login(url)[0] for url in indexes)),
        find_links=tuple(dict.fromkeys(split_login(url)[0] for url in links)),
        access=access,
    )


def _as_url(item: str, environ: Mapping[str, str]) -> str:
    if "://" in item or item.startswith("file:"):
        return item
    return expand_home(item, environ).as_uri()


def _option(name: str) -> str:
    return name.strip().lower().replace("_", "-").removeprefix("--").replace("default-timeout", "timeout")


def _list_config(environ: Mapping[str, str]) -> dict[str, dict[str, str]] | None:
    """Return the configuration listed by the first pip on the PATH, `None` if no pip answers."""
    for program, *arguments in _PIP_COMMANDS:
        path = shutil.which(program, path=environ.get("PATH", ""))
        if not path or not Path(path).is_absolute():
            continue
        try:
            # A working directory in which only root can plant modules: `python -m` looks there first.
            result = subprocess.run(
                [path, *arguments, "config", "list"],
                env=dict(environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIST_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if result.returncode == 0:
            return parse_config_list(result.stdout.decode("utf-8", "replace"))
    return None


def parse_config_list(text: str) -> dict[str, dict[str, str]]:
    """Return section, option and value of the lines `section.option='value'` that `pip config list` prints."""
    settings: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        section, dot, option = name.strip().rpartition(".")
        if not (equals and dot):
            continue
        try:
            settings.setdefault(section, {})[_option(option)] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue
    return settings


def _read_config_files(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings in pip's files, in the order of its documentation: later ones win."""
    explicit = environ.get("PIP_CONFIG_FILE", "")
    if explicit == os.devnull:
        return {}
    home = Path(environ.get("HOME") or "/")
    shared = environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [*(Path(entry) / "pip/pip.conf" for entry in shared if entry), Path("/etc/pip.conf")]
    files += [home / ".pip/pip.conf", user / "pip/pip.conf"]
    files += [Path(environ["VIRTUAL_ENV"]) / "pip.conf"] if environ.get("VIRTUAL_ENV") else []
    files += [Path(explicit)] if explicit else []
    settings: dict[str, dict[str, str]] = {}
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            continue
        for section in parser.sections():
            values = {_option(name): value for name, value in parser.items(section)}
            settings.setdefault(section, {}).update(values)
    return settings
