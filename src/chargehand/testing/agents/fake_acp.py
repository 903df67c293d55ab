"""A stand-in for an ACP agent: speaks version 1 of the protocol over its standard streams and acts as it is told.

`python3 -I -c SOURCE ACT`, inside a sandbox, with the standard library alone. It edits through the client's files,
after asking for permission; `terminal` runs a command in the client's terminal, `ask` elicits. With `garble-once`,
`garble-twice` and `garble-always` it ends as many turns with a message that cannot be read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

MADE, TALK = "made.txt", "talk.txt"
_GRANDCHILD = "import time\nwhile True: time.sleep(60)"
_GARBLED = {"garble-once": 1, "garble-twice": 2, "garble-always": 99}
_OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "once", "name": "Once", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class Refused(Exception):
    """The client answered with an error."""


class AcpPeer:
    """The connection, from the agent's side: one request at a time."""

    def __init__(self) -> None:
        self._next = 0

    def send(self, **message: Any) -> None:
        """Write one message."""
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def read(self) -> dict[str, Any]:
        """Read one message; ends the program where there is none."""
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its result; raises `Refused`."""
        self._next += 1
        self.send(id=self._next, method=method, params={"sessionId": "s-1", **params})
        while True:
            message = self.read()
            if message.get("id") == self._next and "method" not in message:
                if "error" in message:
                    raise Refused(message["error"]["message"])
                return message["result"]

    def update(self, what: str, **more: Any) -> None:
        """Tell of something."""
        params = {"sessionId": "s-1", "update": {"sessionUpdate": what, **more}}
        self.send(method="session/update", params=params)

    def say(self, text: str) -> None:
        """Say something, in two pieces."""
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            self.update("agent_message_chunk", content={"type": "text", "text": piece})


class FakeAgent:
    """One session that does one act for each prompt."""

    def __init__(self, act: str) -> None:
        self._act = act
        self._line = AcpPeer()
        self._used = (11, 3)
        self._turns = 0

    def serve(self) -> None:
        """Answer the client's requests."""
        while True:
            message = self._line.read()
            match message.get("method"):
                case "initialize":
                    version = 99 if self._act == "old" else 1
                    about = {"name": "fake", "version": "1.0"}
                    hello = {
                        "protocolVersion": version,
                        "agentInfo": about,
                        "agentCapabilities": {},
                        "authMethods": [],
                    }
                    self._line.send(id=message["id"], result=hello)
                case "session/new":
                    self._line.send(id=message["id"], result={"sessionId": "s-1"})
                case "session/prompt":
                    asked = message["params"]["prompt"][0]["text"]
                    self._line.send(id=message["id"], **self._prompted(asked))

    def _prompted(self, asked: str) -> dict[str, Any]:
        self._turns += 1
        if self._act == "fail":
            return {
                "error": {"code": -32603, "message": "Internal error", "data": {"details": "no model answers"}}
            }
        if self._act == "garbage":
            sys.stdout.write('{"jsonrpc": "2.0", "id"\nnothing of this is right\n')
            sys.exit(0)
        if self._act == "malformed":
            sys.stdout.write("a warning\n[]\n" + '{"jsonrpc": "2.0", "method": "session/update", "params": 3}\n')
        self._line.say("I begin.")
        try:
            if self._act in _GARBLED:
                self._garble(asked)
            else:
                self._do()
        except Refused as error:
            self._line.say(f"I was refused: {error}")
            return {"result": {"stopReason": "refusal"}}
        self._line.say("It is made.")
        tokens = {"inputTokens": self._used[0], "outputTokens": self._used[1], "totalTokens": sum(self._used)}
        return {"result": {"stopReason": "end_turn", "usage": tokens}}

    def _do(self) -> None:
        match self._act:
            case "hang":
                self._hang()
            case "leak":
                self._line.say(" ".join(f"{name}={value}" for name, value in os.environ.items()))
            case "pay" | "insist":
                counts = [self._pay() for _ in range(2 if self._act == "pay" else 50)]
                self._used = (sum(each[0] for each in counts), sum(each[1] for each in counts))
            case "talk" | "talk-clock":
                self._used = talk(clock=self._act == "talk-clock")
            case "ask":
                self._edit(self._elicited())
                return
            case "terminal":
                self._terminal()
                return
        self._edit("made\n")

    def _garble(self, asked: str) -> None:
        """Leave a message, malformed as often as the act says; only the first turn makes the file."""
        if self._turns > 1 and "could not be read" not in asked:
            raise Refused("it was told nothing of what is wrong")
        said = f"It is made, and told {self._turns} times."
        message = {"type": "task_completion", "status": "success", "payload": {"summary": said}}
        with open(os.environ["CHARGEHAND_MESSAGE"], "w") as file:
            file.write(json.dumps(message)[: 40 if self._turns <= _GARBLED[self._act] else None])
        if self._turns == 1:
            self._edit("made\n")

    def _edit(self, content: str) -> None:
        path = os.path.abspath(MADE)
        call = {"toolCallId": "c-1", "title": "Write", "kind": "edit", "locations": [{"path": path}]}
        self._line.update("tool_call", **call, status="pending", rawInput={"path": path})
        given = self._line.ask("session/request_permission", toolCall=call, options=_OPTIONS)
        if given["outcome"].get("optionId") != "once":
            raise Refused("no permission")
        self._line.ask("fs/write_text_file", path=path, content=content)
        # Read back: a client that only says it wrote is found out.
        if self._line.ask("fs/read_text_file", path=path)["content"] != content:
            raise Refused("the file is not what was written")
        self._line.update("tool_call_update", toolCallId="c-1", status="completed")

    def _elicited(self) -> str:
        schema = {"type": "object", "properties": {"word": {"type": "string", "enum": ["red", "green"]}}}
        answer = self._line.ask("elicitation/create", mode="form", message="Which?", requestedSchema=schema)
        if answer["action"] != "accept":
            raise Refused("no answer")
        return str(answer["content"]["word"]) + "\n"

    def _terminal(self) -> None:
        made = self._line.ask(
            "terminal/create", command="sh", args=["-c", f"echo made > {MADE}; echo seen; exit 3"]
        )
        name = made["terminalId"]
        ended = self._line.ask("terminal/wait_for_exit", terminalId=name)
        shown = self._line.ask("terminal/output", terminalId=name)
        self._line.ask("terminal/release", terminalId=name)
        if ended["exitCode"] != 3 or shown["output"] != "seen\n":
            raise Refused(f"{ended} {shown}")

    def _pay(self) -> tuple[int, int]:
        while True:
            try:
                return ask_model()[1:]
            except urllib.error.HTTPError as error:
                error.close()
                if self._act != "insist":
                    raise
                time.sleep(0.05)

    def _hang(self) -> None:
        # In sessions of their own, so that only killing everything in the sandbox ends them.
        for _ in range(3):
            child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_GRANDCHILD!r}])"
            subprocess.run([sys.executable, "-c", child], start_new_session=True, check=True)
        with open(MADE, "w") as file:
            file.write("hung\n")
        while True:
            time.sleep(60)


def ask_model(messages: Any = ({"role": "user", "content": "go on"},)) -> tuple[str, int, int]:
    """Make one call to the attempt's model; return its words and tokens. Raises `HTTPError`."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        answer = json.load(reply)
    usage = answer["usage"]
    return str(answer["choices"][0]["message"]["content"]), usage["prompt_tokens"], usage["completion_tokens"]


def talk(*, clock: bool) -> tuple[int, int]:
    """Write down what the model says until it says "done", and tell it each time; return the tokens.

    Every run has an id of its own, as many programs have; with `clock` it tells the time from its third call on.
    """
    said: list[dict[str, str]] = [{"role": "user", "content": f"session {uuid.uuid4()}: go on"}]
    used = [0, 0]
    while not said[-1]["content"].startswith("done"):
        if clock and len(said) > 3:
            said[-1]["content"] += f" at {time.time_ns()}"
        word, *tokens = ask_model(said)
        used = [sum(pair) for pair in zip(used, tokens, strict=True)]
        with open(TALK, "a") as file:
            file.write(word + "\n")
        said.append({"role": "assistant", "content": word})
        if not word.startswith("done"):
            with open(TALK) as file:
                said.append({"role": "user", "content": "the file is " + file.read()})
    return used[0], used[1]


if __name__ == "__main__":
    FakeAgent(sys.argv[1]).serve()
