"""The one outgoing HTTP client of the product's own calls: servers, forges, webhooks, collectors, lists of models.

The calls of agents go through the gateway and the registry mirror instead, which have stricter rules.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import httpx
import msgspec

from chargehand.core.text import printable
from chargehand.network.addresses import is_loopback

WebProblem = Literal["unreachable", "certificate", "timeout", "lost", "too_large", "invalid"]


class WebError(Exception):
    """A request without a complete answer; the text has no address, header or body, which may hold a secret.

    `unreachable`: no connection was made, so nothing was sent. `lost`: the connection broke, and the request may
    have been carried out. `timeout`: the server was silent; `is_unsent` if it did not even accept the connection.
    """

    def __init__(self, problem: WebProblem, text: str, *, is_unsent: bool = False) -> None:
        super().__init__(text)
        self.problem: WebProblem = problem
        self.is_unsent = is_unsent


class WebReply(msgspec.Struct, frozen=True):
    """A complete answer; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def media(self) -> str:
        """The media type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def document(self) -> object:
        """Return the JSON document. Raises `ValueError`."""
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError("the answer is not a JSON document") from error


class WebStream:
    """An answer that is still being received."""

    def __init__(self, response: httpx.Response, largest: int) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = dict(response.headers)
        self._response = response
        self._largest = largest

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes, of any length."""
        with _as_web_errors():
            yield from self._response.iter_bytes()

    def read(self) -> WebReply:
        """Read the whole body. Raises `WebError` (`too_large`)."""
        content = bytearray()
        for piece in self.pieces():
            content += piece
            if len(content) > self._largest:
                raise WebError("too_large", f"the answer is longer than {self._largest} bytes")
        return WebReply(self.status, self.headers, bytes(content))


class WebClient:
    """A client with one set of headers; a context manager, for one thread.

    It follows no redirect, since the target would get the credentials. It trusts the system's certificates, those
    of `$SSL_CERT_FILE` and those in the file `authority`. It uses the proxy of the environment, but not for this
    machine. `seconds` is the longest silence, `largest` the longest answer in bytes that is read whole.
    """

    def __init__(
        self,
        base: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float,
        connect_seconds: float = 10.0,
        largest: int = 64 << 20,
        authority: Path | None = None,
    ) -> None:
        self._base, self._headers = base, dict(headers or {})
        self._timeout = httpx.Timeout(seconds, connect=connect_seconds)
        self._largest, self._authority = largest, authority
        # By whether the host is this machine, which no proxy is asked for, and whether it is encrypted.
        self._clients: dict[tuple[bool, bool], httpx.Client] = {}

    def __enter__(self) -> WebClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def send(
        self, method: str, address: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> WebReply:
        """Send a request and read its answer, whatever its status. Raises `WebError`."""
        with self.stream(method, address, content=content, headers=headers) as answer:
            return answer.read()

    def status(
        self, method: str, address: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Send a request and return the status; the body is not read: it could be endless. Raises `WebError`."""
        with self.stream(method, address, content=content, headers=headers) as answer:
            return answer.status

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        address: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> Iterator[WebStream]:
        """Send a request whose answer is open in the block; `silence` replaces `seconds`. Raises `WebError`."""
        url = self._base + address
        timeout = self._timeout
        if silence is not None:
            timeout = httpx.Timeout(silence, connect=self._timeout.connect)
        with contextlib.ExitStack() as stack:
            with _as_web_errors():
                client = self._client(url)
                answer = client.stream(method, url, content=content, headers=headers, timeout=timeout)
                response = stack.enter_context(answer)
            # Outside, so that the caller's own errors pass unchanged.
            yield WebStream(response, self._largest)

    def _client(self, url: str) -> httpx.Client:
        kind = (is_loopback(url), url.lower().startswith("https:"))
        if kind not in self._clients:
            local, is_secure = kind
            self._clients[kind] = httpx.Client(
                headers=self._headers,
                verify=self._context() if is_secure else False,
                timeout=self._timeout,
                follow_redirects=False,
                trust_env=not local,
            )
        return self._clients[kind]

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        known = ssl.get_default_verify_paths()
        if known.cafile is None and known.capath is None:  # a minimal system without certificates
            import certifi

            context.load_verify_locations(certifi.where())
        if self._authority is not None:
            context.load_verify_locations(self._authority)
        return context


@contextlib.contextmanager
def _as_web_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        unsent = isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
        raise WebError("timeout", "no answer in time", is_unsent=unsent) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise _web_error(error) from error


def _web_error(error: Exception) -> WebError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return WebError("certificate", cause.verify_message, is_unsent=True)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return WebError("unreachable", printable(str(error)) or type(error).__name__, is_unsent=True)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return WebError("lost", f"the connection broke ({type(error).__name__})")
    # Without the text, which may repeat an address with a token.
    return WebError("invalid", f"the request cannot be sent ({type(error).__name__})", is_unsent=True)
