"""Missions of the native agent with a scripted model, a real server on loopback, or both."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from chargehand.app.composition import App
from chargehand.core.config import Config
from chargehand.core.state import MissionState
from chargehand.models.contract import Dialect, Usage
from chargehand.models.registries import DIALECTS
from chargehand.models.script_upstream import fit_tools
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply, render_for
from chargehand.models.scripts import Script, ScriptLine
from tests.integration.mission_kit import CHECK, FILES, REQUEST, MissionKit

GOOD = ("a - b", "a + b")


def call(tool: str, **arguments: Any) -> ScriptedCall:
    """Return a tool call."""
    return ScriptedCall(name=tool, arguments=arguments)


def says(text: str = "", *tools: ScriptedCall, **more: Any) -> ScriptedReply:
    """Return a reply of 1,000 tokens in and 100 out, unless `more` has other values."""
    return ScriptedReply(text=text, tools=tools, **{"usage": Usage(input=1000, output=100), **more})


def edit(old: str, new: str, path: str = "calc/core.py") -> ScriptedCall:
    """Return an edit."""
    return call("edit", path=path, old=old, new=new)


FINISH = says("", call("finish", summary="done", evidence=["the tests pass"]))
MENDS = (says("I mend it", edit(*GOOD)), FINISH)


def scripted(*attempts: Sequence[ScriptedReply]) -> Script:
    """Return a script with the replies of each attempt, in order."""
    lines = [
        ScriptLine(reply=reply, attempt=number, turn=turn)
        for number, replies in enumerate(attempts, 1)
        for turn, reply in enumerate(replies, 1)
    ]
    return Script(lines=tuple(lines))


class NativeKit(MissionKit):
    """Missions whose user has configured models."""

    def __init__(self, place: Path, files: Mapping[str, str] = FILES) -> None:
        super().__init__(place, files)
        self.directory = place / ".config" / "chargehand"
        self.directory.mkdir(parents=True)
        self.models: dict[str, str] = {}

    def model(self, name: str, words: Script | None = None, **keys: Any) -> None:
        """Configure a model by a script or by `keys`; 10 USD per million tokens by default."""
        values: dict[str, Any] = {"price": 10.0, **keys}
        if words is not None:
            path = self.place / f"{name}.jsonl"
            path.write_bytes(words.dump())
            values |= {"provider": "script", "script": str(path)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.models[name] = "\n".join([f"[models.{name}]", *lines])
        self.write()

    def write(self, *more: str) -> None:
        """Write the user's configuration."""
        (self.directory / "config.toml").write_text("\n\n".join([*self.models.values(), *more]) + "\n")

    def native(self, *, checks: Sequence[str] = (CHECK,), **changes: Any) -> MissionState:
        """Run a mission of the native agent until it is settled."""
        wanted = {"agent": "native", "model": "scripted", "only_checks": tuple(checks), "attempts": 3, **changes}
        return self.work(lambda session: self.create(session, **wanted))

    def create(self, session: Any, **wanted: Any) -> str:
        """Record a mission and return its id."""
        request = replace(REQUEST, **wanted)
        config = {"values": json.loads(json.dumps(_plain(session.resolved.config)))}
        made: str = session.missions.create(
            request, repository=str(self.repository), base=session.base, config=config
        )
        return made

    def work(self, mission: str | Callable[[Any], str], meanwhile: Any = None) -> MissionState:
        """Run a mission, given by id or created now, until it is settled."""

        async def work() -> MissionState:
            with contextlib.closing(self.app()) as app:
                async with app.session() as session:
                    found = mission if isinstance(mission, str) else mission(session)
                    running = asyncio.create_task(session.missions.run(found))
                    if meanwhile is not None:
                        await meanwhile(app, found)
                    return await running

        return asyncio.run(work())

    def opened(self) -> contextlib.closing[App]:
        """Return the app, closed at the end of a block."""
        return contextlib.closing(self.app())


def _plain(config: Config) -> Any:
    import msgspec

    return msgspec.to_builtins(config)


class ModelServer:
    """A provider on loopback, OpenAI-compatible by default; the number of earlier replies selects the next one.

    `asked` lists the number of each requested reply; after a crash a conversation asks for the first one that it
    lacks.
    """

    def __init__(
        self, replies: Sequence[ScriptedReply], dialect: Dialect = "openai", *, neutral: bool = False
    ) -> None:
        self.neutral = neutral
        self.replies = list(replies)
        self.dialect: Dialect = dialect
        self.asked: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Serve, and yield the base URL."""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, kind, content = outer._answer(body, dict(self.headers))
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        request = DIALECTS[self.dialect].read_request(body)
        earlier = body["messages"] if "messages" in body else [{"role": turn.role} for turn in request.turns]
        number = sum(message["role"] == "assistant" for message in earlier) + 1
        with self._lock:
            self.asked.append(number)
            self.bodies.append(body)
            self.headers.append(headers)
        if number > len(self.replies):
            return 410, "application/json", b'{"error": {"message": "no such reply"}}'
        said = self.replies[number - 1]
        said = fit_tools(said, request.tools) if self.neutral else said
        reply = render_for(DIALECTS[self.dialect], said, body, id=f"t{number}")

        async def collected() -> bytes:
            return b"".join([chunk async for chunk in reply.chunks])

        return reply.status, reply.headers["content-type"], asyncio.run(collected())
