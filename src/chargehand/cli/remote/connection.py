"""HTTP to a server: requests, retries, and every failure as one of our errors."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from chargehand import __version__
from chargehand.core.codec import decode_as
from chargehand.core.errors import (
    ChargehandError,
    ExhaustedError,
    InfrastructureError,
    NotFoundError,
    RefusedError,
    TierUnavailableError,
    UsageError,
    WaitingError,
)
from chargehand.core.text import printable
from chargehand.network.addresses import is_loopback
from chargehand.network.http_client import WebClient, WebError, WebReply
from chargehand.operations.commands import PREFIX, OperationSignature

# Between bytes of an answer: slower work answers 202 after 20 s. The feed sends something every 15 s.
_SILENCE_SECONDS, _FEED_SECONDS, _CONNECT_SECONDS = 90.0, 45.0, 10.0
# Before a request with a lost answer is resent with the same key; a restarting server is back by then.
_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
_TOO_SOON = ("rate_limited", "busy")
_LONGEST_WAIT_SECONDS = 10.0
_LONGEST_SHOWN = 200
_CLASSES: Mapping[int, type[ChargehandError]] = {
    2: UsageError,
    3: WaitingError,
    4: ExhaustedError,
    5: TierUnavailableError,
    6: InfrastructureError,
}


class RemoteAnswer(NamedTuple):
    """A server's answer: its bytes, and whether they are a JSON document."""

    content: bytes
    is_json: bool

    @property
    def document(self) -> Any:
        """The document as plain values, in the server's order."""
        return json.loads(self.content)


class FeedSignal(NamedTuple):
    """One event of the feed: its name and data. The name is "" if it only shows that the connection is alive."""

    name: str
    data: dict[str, Any]


def check_url(text: str, *, insecure: bool = False) -> str:
    """Return a server's address in the form that is stored and requested: scheme, host and port.

    Raises `UsageError`: `server_url_invalid`, and `server_unencrypted` if a token would travel in the clear
    without permission.
    """
    url = None
    with contextlib.suppress(ValueError):
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
        more = parts.username or parts.password or parts.query or parts.fragment or parts.path not in ("", "/")
        if parts.scheme in ("http", "https") and host and not more:
            shown = f"[{host}]" if ":" in host else host
            url = f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")
    if url is None:
        raise UsageError(
            f"{text!r} is not the address of a server",
            code="server_url_invalid",
            hint="write it as the server prints it, such as https://chargehand.example.org or http://127.0.0.1:8642",
        )
    if url.startswith("http:") and not insecure and not is_loopback(url):
        raise UsageError(
            f"{url} is not encrypted: your token would travel in the clear",
            code="server_unencrypted",
            hint="use https://, or a tunnel (ssh -L 8642:127.0.0.1:8642 HOST); --insecure-http allows it",
        )
    return url


class ServerConnection:
    """An authenticated connection to a server; a context manager.

    Every method raises `InfrastructureError`: `server_unreachable`, `server_certificate`, `server_timeout`,
    `server_lost` (it disconnected and did not return), `server_unknown` (another program answers there);
    `UsageError` `server_version`; and the server's own refusals, as the class that they had there.
    """

    def __init__(
        self, url: str, token: str, *, retries: tuple[float, ...] = _RETRY_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.url, self._retries, self._sleep = url, retries, sleep
        self.version = __version__  # the server's, once it has answered
        self._client = WebClient(
            url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": f"chargehand/{__version__}"},
            seconds=_SILENCE_SECONDS,
            connect_seconds=_CONNECT_SECONDS,
        )

    def __enter__(self) -> ServerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def call(self, route: OperationSignature, arguments: Mapping[str, Any]) -> RemoteAnswer:
        """Call a route and return its answer, waiting for work that takes minutes.

        A change is sent with a unique key, so that it is made once however often it is sent. Also raises
        `UsageError` (`arguments_invalid`) before anything is sent.
        """
        values = route.read_arguments(arguments)
        path = PREFIX + route.path
        for name in route.path_names:
            path = path.replace(f"{{{name}}}", quote(str(values.pop(name)), safe=""))
        if route.method == "GET":
            return self._answer(self._send("GET", f"{path}{_query(values)}"), route)
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        while True:
            sent = None if route.method == "DELETE" else values
            response = self._send(route.method, path, body=sent, headers=headers)
            if response.status != 202:
                return self._answer(response, route)

    def show_session(self) -> dict[str, Any]:
        """Return the user that the token belongs to."""
        session = self._answer(self._send("GET", f"{PREFIX}/session")).document
        if not isinstance(session, dict) or not {"user", "role"} <= session.keys():
            raise self.version_error("it does not name the user of a token")
        return session

    def stream(self, route: OperationSignature, arguments: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the bytes of an answer of any length as they come."""
        address = f"{PREFIX}{route.path}{_query(arguments)}"
        with self._as_errors(), self._client.stream("GET", address) as response:
            if response.status != 200 or "chargehand-version" not in response.headers:
                self._answer(response.read(), route)
            yield from response.pieces()

    def follow(self, mission: str) -> Iterator[FeedSignal]:
        """Yield the events of a mission's feed forever; after a broken connection, resume at the last event."""
        headers: dict[str, str] = {}
        failed = 0
        while True:
            try:
                address = f"{PREFIX}/events{_query({'mission': mission})}"
                with self._client.stream("GET", address, headers=headers, silence=_FEED_SECONDS) as response:
                    if not response.headers.get("content-type", "").startswith("text/event-stream"):
                        whole = response.read()
                        self._answer(whole)
                        raise self._no_server(whole)
                    failed = 0
                    yield FeedSignal("", {})
                    for number, signal in _read_events(_read_lines(response.pieces())):
                        if number:
                            headers["Last-Event-ID"] = number
                        yield signal
            except WebError as error:
                if error.problem == "invalid":
                    raise _transport_error(self.url, error) from error
                self._wait_to_retry(failed, error)
            except InfrastructureError as error:  # a proxy answers for a server that is away
                self._wait_to_retry(failed, error)
            else:
                self._wait_to_retry(failed, None)
            failed += 1

    def _wait_to_retry(self, failed: int, error: Exception | None) -> None:
        if failed < len(self._retries):
            self._sleep(self._retries[failed])
            return
        if isinstance(error, ChargehandError):
            raise error
        raise InfrastructureError(
            f"the server at {self.url} disconnected and did not return",
            code="server_lost",
            hint="missions continue there; once it answers, `chargehand mission watch` follows them again",
        ) from error

    def _send(
        self, method: str, address: str, *, body: object = None, headers: Mapping[str, str] | None = None
    ) -> WebReply:
        """Send a request, and send it again if its answer was lost or the server is rate-limiting."""
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers = {**(headers or {}), "Content-Type": "application/json"}
        failed = 0
        while True:
            try:
                response = self._client.send(method, address, content=content, headers=headers)
            except WebError as error:
                # No server has received it yet; or a timeout occurred twice.
                is_hopeless = (
                    error.is_unsent if failed == 0 else error.problem == "timeout" and not error.is_unsent
                )
                if method == "GET" or is_hopeless or error.problem in ("invalid", "too_large"):
                    raise _transport_error(self.url, error) from error
                self._wait_to_retry(failed, error)
            else:
                too_soon = response.status in (429, 503) and _error_of(response).get("code") in _TOO_SOON
                if not too_soon or failed >= len(self._retries):
                    return response
                after = response.headers.get("retry-after", "")
                self._sleep(min(float(after), _LONGEST_WAIT_SECONDS) if after.isdecimal() else 1.0)
            failed += 1

    @contextlib.contextmanager
    def _as_errors(self) -> Iterator[None]:
        """Convert transport failures to our errors."""
        try:
            yield
        except WebError as error:
            raise _transport_error(self.url, error) from error

    def _answer(self, response: WebReply, route: OperationSignature | None = None) -> RemoteAnswer:
        version = response.headers.get("chargehand-version", "")
        self.version = version or self.version
        is_json = response.media == "application/json"
        status = response.status
        if status // 100 == 3:
            where = printable(response.headers.get("location", "elsewhere")[:_LONGEST_SHOWN])
            raise InfrastructureError(
                f"{self.url} redirects to {where}; your token was not sent there",
                code="server_redirects",
                hint="name the server by its own address, if that is it",
            )
        error = _error_of(response)
        if status >= 400 and error and version:
            # Raise a server's refusal as the same class of error.
            code, message, hint = (str(error.get(name, "")) for name in ("code", "message", "hint"))
            if code == "no_route" or (version != __version__ and code == "arguments_invalid"):
                raise self.version_error(message)
            if status == 401:
                hint = f"make a token there (chargehand token create NAME), then: chargehand login {self.url}"
            text = response.headers.get("chargehand-exit-code", "")
            made = NotFoundError if status == 404 else _CLASSES.get(int(text) if text.isdecimal() else 1)
            raise (made or RefusedError)(message, code=code, hint=hint)
        raw = route is not None and route.raw
        # Another program's JSON would pass for an answer, and the command for done.
        if status // 100 != 2 or not version or not (is_json or raw):
            raise self._no_server(response)
        if is_json:
            self._check_whole(response.content)
        return RemoteAnswer(response.content, is_json)

    def _check_whole(self, content: bytes) -> None:
        try:
            msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise InfrastructureError(
                f"the answer of {self.url} is not a complete JSON document: {error}",
                code="server_lost",
                hint="a proxy in between may have cut it: ask again; a change may have been made (mission list)",
            ) from error

    def _no_server(self, response: WebReply) -> InfrastructureError:
        kind = response.headers.get("content-type", "") or "nothing"
        status = response.status
        return InfrastructureError(
            f"{self.url} answers {status} with {printable(kind[:_LONGEST_SHOWN])}: it is not a Chargehand server",
            code="server_unknown",
            hint="check the address; a proxy in between may answer while the server is away",
        )

    def version_error(self, what: str) -> UsageError:
        """Return the error for an incompatible server of another version."""
        return UsageError(
            f"the server at {self.url} has version {printable(self.version)}, this is {__version__}: {what}",
            code="server_version",
            hint="use the same version on both",
        )


def _query(values: Mapping[str, Any]) -> str:
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is not None:
                pairs.append((name, str(each).lower() if isinstance(each, bool) else str(each)))
    return f"?{urlencode(pairs)}" if pairs else ""


def _error_of(response: WebReply) -> dict[str, str]:
    """Return the error in a server's answer, or {}."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        found = decode_as(response.content, dict[str, dict[str, str]]).get("error", {})
        return found if "code" in found and "message" in found else {}
    return {}


def _transport_error(url: str, error: WebError) -> InfrastructureError:
    if error.problem == "certificate":
        return InfrastructureError(
            f"the certificate of {url} is invalid: {error}",
            code="server_certificate",
            hint="if your own authority signed it, name its file in SSL_CERT_FILE; otherwise another server"
            " may be answering",
        )
    if error.problem == "timeout":
        return InfrastructureError(
            f"{url} does not answer in time",
            code="server_timeout",
            hint="is it busy, or a firewall in between? try again",
        )
    return InfrastructureError(
        f"cannot reach a server at {url}: {error}",
        code="server_unreachable",
        hint="`chargehand up` starts one there; check address and port",
    )


def _read_lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Yield the lines of a stream: only line feeds end them, not other separators within a text."""
    held = b""
    for piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def _read_events(lines: Iterator[str]) -> Iterator[tuple[str, FeedSignal]]:
    """Yield server-sent events with their ids; a comment, which shows that the connection is alive, has no id."""
    number, name = "", ""
    for line in lines:
        field, _, value = line.partition(": ")
        if line.startswith(":"):
            yield "", FeedSignal("", {})
        elif field == "id":
            number = value
        elif field == "event":
            name = value
        elif field == "data":
            with contextlib.suppress(ValueError):
                yield number, FeedSignal(name, dict(json.loads(value)))
