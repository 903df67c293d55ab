"""A model provider on loopback: it accepts one key, lists its models, and gives configured answers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(kw_only=True)
class Provider:
    """The answers and the recorded requests; `key` is `None` if any client is accepted."""

    key: str | None = None
    model: str = "tiny"
    calls_tools: bool = True
    ends: str = "tool_calls"
    ollama: tuple[dict[str, Any], ...] = ()
    address: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and document for one request."""
        self.asked.append((path, body))
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if path == "/api/tags":
            return 200, {"models": list(self.ollama)}
        if self.key is not None and given != self.key:
            return 401, {"error": {"message": f"wrong key: {given}"}}
        if path == "/v1/models":
            return 200, {"data": [{"id": self.model}]}
        if body.get("model") != self.model:
            return 404, {"error": {"message": "no such model"}}
        return 200, self._anthropic() if path == "/v1/messages" else self._openai()

    def _openai(self) -> dict[str, Any]:
        call = {"id": "c", "type": "function", "function": {"name": "ready", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call] if self.calls_tools else []}
        return {"choices": [{"message": message, "finish_reason": self.ends}]}

    def _anthropic(self) -> dict[str, Any]:
        used = [{"type": "tool_use", "id": "t", "name": "ready", "input": {}}] if self.calls_tools else []
        return {"content": used, "stop_reason": self.ends}


@contextlib.contextmanager
def serving(provider: Provider) -> Iterator[Provider]:
    """Serve the provider during the block; its `address` ends with the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _reply(self, body: dict[str, Any]) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, document = provider.answer(self.path, headers, body)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        provider.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
