"""An HTTP server for tests of forges: answers by a function, records requests, and fails as asked."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct


class Asked(Struct, frozen=True):
    """A request; the names of `headers` are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        """The JSON document, `None` without a body."""
        return json.loads(self.content) if self.content else None

    @property
    def token(self) -> str:
        """The token of the request in any of the usual headers."""
        given = self.headers.get("authorization", "").rpartition(" ")[2]
        return given or self.headers.get("private-token", "")


class Answer(Struct, frozen=True):
    """An answer; a `document` is sent as JSON, `content` unchanged. A negative status closes the connection."""

    status: int = 200
    document: Any = None
    headers: Mapping[str, str] = {}
    content: bytes | None = None


class StandIn:
    """A server on loopback; `faults` are asked before `respond`, and the first answer of theirs counts."""

    def __init__(self, respond: Callable[[Asked], Answer]) -> None:
        self.requests: list[Asked] = []
        self.faults: list[Callable[[Asked], Answer | None]] = []
        self.errors: list[str] = []  # found by checks of requests and answers
        self._respond = respond
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                owner.handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail(self, *answers: Answer, when: Callable[[Asked], bool] = lambda _: True) -> None:
        """Answer the next matching requests with these."""
        left = list(answers)
        self.faults.append(lambda asked: left.pop(0) if left and when(asked) else None)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        parts = urlsplit(handler.path)
        asked = Asked(
            handler.command,
            parts.path,
            {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
            {name.lower(): value for name, value in handler.headers.items()},
            handler.rfile.read(int(handler.headers.get("content-length") or 0)),
        )
        self.requests.append(asked)
        found = next((answer for fault in self.faults if (answer := fault(asked)) is not None), None)
        answer = found or self._respond(asked)
        if answer.status < 0:
            handler.close_connection = True
            return
        content = answer.content
        if content is None:
            content = b"" if answer.document is None else json.dumps(answer.document).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), **answer.headers}
        tag = f'W/"{hashlib.sha256(content).hexdigest()[:16]}"'
        if asked.method == "GET" and answer.status == 200 and "etag" not in headers:
            headers["etag"] = tag
            if asked.headers.get("if-none-match") == tag:
                answer, content, headers["content-length"] = Answer(304), b"", "0"
        headers.setdefault("date", handler.date_time_string())
        handler.send_response_only(answer.status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)


def paged(asked: Asked, url: str, items: list[Any]) -> tuple[list[Any], dict[str, str]]:
    """Return the page of a list that a request asks for, with the headers of GitHub and GitLab."""
    size, page = int(asked.query.get("per_page", 30)), int(asked.query.get("page", 1))
    shown = items[(page - 1) * size : page * size]
    if page * size >= len(items):
        return shown, {"x-next-page": ""}
    query = "&".join(f"{name}={value}" for name, value in {**asked.query, "page": str(page + 1)}.items())
    return shown, {"link": f'<{url}{asked.path}?{query}>; rel="next"', "x-next-page": str(page + 1)}
