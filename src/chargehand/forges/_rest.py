"""The common client of REST interfaces: JSON, pages, conditional requests, limits, retries, errors by status."""

from __future__ import annotations

import email.utils
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.text import printable
from chargehand.forges.contract import ForgeError, ForgeProblem, ForgeSetup
from chargehand.network.addresses import join_web_url
from chargehand.network.http_client import WebClient, WebError, WebReply

_T = TypeVar("_T")
_READ_PAUSES = (0.5, 2.0, 5.0)
_LONGEST_WAIT = 30.0
_MOST_PAGES = 1_000
_CACHED, _LARGEST_CACHED = 64, 1 << 20
_SILENCE_SECONDS = 60.0
_LONGEST_MESSAGE = 300
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next"?')
_REDIRECTS = (301, 302, 303, 307, 308)
_PROBLEMS: Mapping[int, ForgeProblem] = {
    **dict.fromkeys((400, 406, 413, 414, 415), "invalid"),
    401: "denied",
    403: "forbidden",
    **dict.fromkeys((404, 410), "missing"),
    **dict.fromkeys((405, 409, 412, 422, 423), "refused"),
    429: "rate_limited",
}


class RestProblem(Struct, frozen=True):
    """The body of an error; forges differ in which field has the text."""

    message: Any = ""
    error: Any = ""
    error_description: Any = ""
    errors: Any = None
    scope: str = ""


class MovedRepository(Struct, frozen=True):
    """The name of a repository at its new address, at GitHub and Gitea or at GitLab."""

    full_name: str = ""
    path_with_namespace: str = ""


class RestClient:
    """Calls of one forge's REST interface, for one thread; `base` is its address without a final slash.

    `refine` may replace the problem of a status for one forge: it gets the answer, its text, and the usual
    problem. The token must be in `headers` only. Every method raises `ForgeError`.
    """

    def __init__(
        self,
        setup: ForgeSetup,
        base: str,
        headers: Mapping[str, str],
        *,
        refine: Callable[[WebReply, str, ForgeProblem], ForgeProblem] = lambda _, __, problem: problem,
    ) -> None:
        self.base = base
        self._setup, self._refine = setup, refine
        self._http = WebClient(
            headers={"user-agent": "chargehand", **headers},
            seconds=_SILENCE_SECONDS,
            authority=setup.authority,
        )
        self._cache: OrderedDict[str, WebReply] = OrderedDict()
        self._visit: dict[str, Any] | None = None  # `None` outside of visits: then nothing is kept

    def start_visit(self) -> None:
        """Answer each repeated read from memory from now on, until the next visit or change."""
        self._visit = {}

    def once(self, key: str, read: Callable[[], _T]) -> _T:
        """Return what `read` returns, or what it has returned for `key` earlier in the visit."""
        if self._visit is None:
            return read()
        if key not in self._visit:
            self._visit[key] = read()
        found: _T = self._visit[key]
        return found

    def forget(self) -> None:
        """Forget what was read in this visit, since it may have changed."""
        if self._visit is not None:
            self._visit = {}

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def read(self, path: str, kind: type[_T], *, fresh: bool = False, **query: object) -> _T:
        """Return the document of a path as `kind`; `fresh` sends no condition, so that no cache can answer."""
        found: _T = self.decode(self.get(self._address(path, query), fresh=fresh), kind)
        return found

    def read_moved(self, path: str, kind: type[_T]) -> _T:
        """Return the document of a path, also if it moved to another path of the same host."""
        try:
            return self.read(path, kind, fresh=True)
        except ForgeError as error:
            if error.problem != "moved":
                raise
            reply = self._http.send("GET", self._address(path, {}))
            target = self._same_host(reply)
            if not target:
                raise
        found: _T = self.decode(self.get(target, fresh=True), kind)
        return found

    def numbered(self, path: str, kind: type[_T], **query: object) -> Iterator[_T]:
        """Yield the documents of consecutive page numbers; the caller stops after the last one."""
        for number in range(1, _MOST_PAGES + 1):
            yield self.read(path, kind, fresh=False, page=number, **query)

    def pages(self, path: str, kind: Any, **query: object) -> Iterator[Any]:
        """Yield the items of all pages of a list; each page is requested when it is reached."""
        address = self._address(path, query)
        for _ in range(_MOST_PAGES):
            reply = self.get(address)
            items = self.decode(reply, list[kind])
            yield from items
            following = self._following(address, reply)
            if not following:
                # A full last page stays the same when the next one begins, so a condition would hide that one.
                if len(items) >= int(str(query.get("per_page") or query.get("limit") or 1)):
                    self._cache.pop(address, None)
                return
            address = following
        raise ForgeError("broken", f"the list has more than {_MOST_PAGES} pages", hint="the forge repeats pages")

    def change(self, method: str, path: str, body: object = None, *, kind: Any = None) -> Any:
        """Send a change and return its answer as `kind`, or `None` without one."""
        reply = self.send_change(method, path, encode(body) if body is not None else b"", "application/json")
        return None if kind is None else self.decode(reply, kind, change=True)

    def send_change(self, method: str, path: str, content: bytes, media: str) -> WebReply:
        """Send a change; repeat it only if the forge surely did not carry it out."""
        self.forget()
        headers = {"content-type": media} if content else {}
        waited = 0.0
        for pause in (*_READ_PAUSES, None):
            try:
                reply = self._http.send(method, self._address(path, {}), content=content, headers=headers)
            except WebError as error:
                if pause is None or not error.is_unsent or error.problem != "unreachable":
                    raise self._lost(error, is_change=True) from None
                self._setup.sleep(pause)
                continue
            if 200 <= reply.status < 300:
                return reply
            wait = _wait_seconds(reply)
            if wait is None or pause is None or waited + wait > _LONGEST_WAIT:
                raise self._error(reply, method, path, is_change=True)
            waited += wait
            self._setup.sleep(wait)
        raise AssertionError("unreachable")

    def get(self, address: str, *, fresh: bool = False) -> WebReply:
        """Return the answer of a read below the base, repeated after transient failures."""
        return self._get(address, fresh=True) if fresh else self.once(address, lambda: self._get(address))

    def _get(self, address: str, *, fresh: bool = False) -> WebReply:
        cached = None if fresh else self._cache.get(address)
        headers = {"if-none-match": cached.headers["etag"]} if cached else {}
        waited = 0.0
        for pause in (*_READ_PAUSES, None):
            try:
                reply = self._http.send("GET", address, headers=headers)
            except WebError as error:
                if pause is None or error.problem in ("certificate", "too_large", "invalid"):
                    raise self._lost(error, is_change=False) from None
                self._setup.sleep(pause)
                continue
            if reply.status == 304 and cached is not None:
                self._cache.move_to_end(address)
                return cached
            if reply.status == 200:
                self._remember(address, reply)
                return reply
            wait = pause if reply.status >= 500 and "retry-after" not in reply.headers else _wait_seconds(reply)
            if wait is None or pause is None or waited + wait > _LONGEST_WAIT:
                raise self._error(reply, "GET", urlsplit(address).path, is_change=False)
            waited += wait
            self._setup.sleep(wait)
        raise AssertionError("unreachable")

    def tail(self, path: str, most: int) -> str:
        """Return the last `most` characters of a text; follow one redirect, to another host without the token."""
        kept, address, client = bytearray(), self._address(path, {}), self._http
        try:
            with client.stream("GET", address) as answer:
                target = answer.headers.get("location", "") if answer.status in _REDIRECTS else ""
                if not target:
                    kept = self._tail_of(answer, path, most)
            if target:
                target = join_web_url(address, target)
                with (
                    WebClient(seconds=_SILENCE_SECONDS, authority=self._setup.authority) as client,
                    client.stream("GET", target) as answer,
                ):
                    kept = self._tail_of(answer, path, most)
        except WebError as error:
            raise self._lost(error, is_change=False) from None
        return kept.decode(errors="replace")[-most:]

    def decode(self, reply: WebReply, kind: Any, *, change: bool = False) -> Any:
        """Return the document of an answer. Raises `ForgeError` (`broken`)."""
        try:
            return decode_as(reply.content, kind)
        except msgspec.MsgspecError as error:
            problem = "a page instead of a document" if reply.media == "text/html" else "a damaged document"
            raise ForgeError(
                "broken",
                f"{self._host} answered with {problem}",
                hint=self.clean(str(error)),
                may_have_acted=change,
            ) from None

    @property
    def _host(self) -> str:
        return urlsplit(self.base).netloc.rpartition("@")[2]

    def _address(self, path: str, query: Mapping[str, object]) -> str:
        given = [(name, value) for name, value in query.items() if value not in ("", None)]
        return f"{self.base}{path}{'?' + urlencode(given) if given else ''}"

    def _following(self, address: str, reply: WebReply) -> str:
        found = _NEXT.search(reply.headers.get("link", ""))
        if found is not None:
            # A forge behind a proxy may name itself differently: only the query is taken from its answer.
            return f"{address.partition('?')[0]}?{found[1].partition('?')[2].partition('#')[0]}"
        number = reply.headers.get("x-next-page", "")
        if not number.isdecimal():
            return ""
        start, _, query = address.partition("?")
        rest = [part for part in query.split("&") if part and not part.startswith("page=")]
        return f"{start}?{'&'.join([*rest, f'page={number}'])}"

    def _remember(self, address: str, reply: WebReply) -> None:
        if "etag" in reply.headers and len(reply.content) <= _LARGEST_CACHED:
            self._cache[address] = reply
            self._cache.move_to_end(address)
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)

    def _tail_of(self, answer: Any, path: str, most: int) -> bytearray:
        kept = bytearray()
        if answer.status != 200:
            raise self._error(answer.read(), "GET", path, is_change=False)
        for piece in answer.pieces():
            kept += piece
            if len(kept) > 8 * most + 65_536:  # a character has at most four bytes
                del kept[: -4 * most]
        return kept

    def _lost(self, error: WebError, *, is_change: bool) -> ForgeError:
        problems: dict[str, ForgeProblem] = {"too_large": "broken", "invalid": "invalid"}
        problem = problems.get(error.problem, "unreachable")
        hint = "name the file of its authority" if error.problem == "certificate" else ""
        acted = is_change and not error.is_unsent
        return ForgeError(problem, f"{self._host}: {self.clean(str(error))}", hint=hint, may_have_acted=acted)

    def _error(self, reply: WebReply, method: str, path: str, *, is_change: bool) -> ForgeError:
        call = f"{method} {printable(path)}"
        if reply.status in _REDIRECTS:
            return ForgeError("moved", f"{self._host}: {call} has moved", hint=self._new_name(reply))
        text, body = self._message(reply)
        usual: ForgeProblem = "refused" if 400 <= reply.status < 500 else "broken"
        problem = _PROBLEMS.get(reply.status, usual)
        wait = _limit_seconds(reply)
        if _is_limit(reply, text):
            problem = "rate_limited"
        elif problem != "broken":
            problem = self._refine(reply, text, problem)
        hint = self._scope_hint(reply, text, body) if problem == "forbidden" else ""
        return ForgeError(
            problem,
            f"{self._host}: {call} was answered with {reply.status}{': ' if text else ''}{text}",
            hint=hint,
            retry_seconds=wait if problem in ("rate_limited", "broken") else None,
            # A proxy that gives up waiting answers with 502 or 504 while the forge works on.
            may_have_acted=is_change and reply.status >= 500 and not (reply.status == 503 and wait is not None),
        )

    def _message(self, reply: WebReply) -> tuple[str, RestProblem]:
        try:
            body = decode_as(reply.content, RestProblem)
        except msgspec.MsgspecError:
            return "", RestProblem()
        parts = [body.message, body.error, body.error_description, body.errors]
        texts = [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in parts if each]
        return self.clean("; ".join(texts)), body

    def clean(self, text: str) -> str:
        """Return a text of the forge for a message: short, on one line, without the token."""
        short = printable(text).replace("\n", " ")[:_LONGEST_MESSAGE]
        return short.replace(self._setup.token, "…") if self._setup.token else short

    def _scope_hint(self, reply: WebReply, text: str, body: RestProblem) -> str:
        listed = re.search(r"required(?:=|:\s*)\[([\w:, -]+)\]", text)  # Gitea
        needed = (
            reply.headers.get("x-accepted-github-permissions")
            or reply.headers.get("x-accepted-oauth-scopes")
            or body.scope
            or (listed[1] if listed else "")
        )
        if needed:
            return f"give the token one of these scopes: {printable(needed)}"
        return "give the token more scopes, or its account more rights"

    def _same_host(self, reply: WebReply) -> str:
        """Return the target of a redirect, "" if another host would get the token."""
        target = join_web_url(f"{self.base}/", reply.headers.get("location", ""))
        return target if urlsplit(target)[:2] == urlsplit(self.base)[:2] else ""

    def _new_name(self, reply: WebReply) -> str:
        target = self._same_host(reply)
        if not target:
            return "it moved to another host; configure that one if you trust it"
        named = re.match(r".*/repos/([^/?#]+/[^/?#]+)", target)
        if named:
            return f"use {printable(named[1])}"
        by_id = re.match(r".*/(?:repositories|projects)/\d+", target)
        try:
            found = self._http.send("GET", by_id[0]) if by_id else None
            moved = decode_as(found.content, MovedRepository) if found else MovedRepository()
        except (WebError, msgspec.MsgspecError):
            moved = MovedRepository()
        new = moved.full_name or moved.path_with_namespace
        return f"use {printable(new)}" if new else "look up its new address"


def encode(body: object) -> bytes:
    """Return a document as JSON. Raises `ForgeError` (`invalid`) for text that is not Unicode."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise ForgeError("invalid", "the text is not Unicode", hint="remove the half characters") from error


def multipart(field: str, name: str, content: bytes) -> tuple[bytes, str]:
    """Return a form with one file, and its media type."""
    # The boundary must not occur in the content: a hash of the content cannot be written into it.
    boundary = hashlib.sha256(content).hexdigest()
    safe = quote(name.encode(errors="replace"), safe=" !#$&+-.^_`|~")
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{safe}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def segment(text: str) -> str:
    """Return a text as one segment of a path. Raises `ForgeError` (`invalid`)."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise ForgeError("invalid", "the name is not Unicode") from error


def repository_path(repository: str) -> str:
    """Return OWNER/NAME as two segments of a path. Raises `ForgeError` (`invalid`)."""
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name or {owner, name} & {".", ".."}:
        raise ForgeError(
            "invalid", f"not the name of a repository: {printable(repository)!r}", hint="use OWNER/NAME"
        )
    return f"{segment(owner)}/{segment(name)}"


def _wait_seconds(reply: WebReply) -> float | None:
    """Return the seconds after which the same call may be sent again, since it was not carried out."""
    if reply.status == 503:
        return _limit_seconds(reply) if "retry-after" in reply.headers else None
    if reply.status in (403, 429) and _is_limit(reply, reply.content[:2_000].decode(errors="replace")):
        found = _limit_seconds(reply)
        return 1.0 if found is None else found
    return None


def _is_limit(reply: WebReply, text: str) -> bool:
    if reply.status == 429:
        return True
    spent = any(reply.headers.get(name) == "0" for name in ("x-ratelimit-remaining", "ratelimit-remaining"))
    # GitHub's secondary limits have no header that distinguishes them from a missing right.
    return reply.status == 403 and (spent or "retry-after" in reply.headers or "rate limit" in text.lower())


def _limit_seconds(reply: WebReply) -> float | None:
    """Return the seconds until the forge accepts calls again, by its clock; `None` if it does not say."""
    now = _time_of(reply.headers.get("date", "")) or time.time()
    after = reply.headers.get("retry-after", "")
    if after.isdecimal():
        return float(after)
    if found := _time_of(after):
        return max(0.0, found - now)
    for name in ("x-ratelimit-reset", "ratelimit-reset"):
        if (text := reply.headers.get(name, "")).isdecimal():
            # GitLab has given both a time and a number of seconds under this name.
            return max(0.0, int(text) - now) if int(text) > 1_000_000_000 else float(text)
    return None


def _time_of(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError):
        return None
