"""A fake of other vendors' agent programs: speaks JSON Lines like an agent CLI, or ACP, and does the given act.

`python3 -I -c SOURCE FORM ACT …`, inside a sandbox, with only the standard library. FORM is `acp`, or the CLI
whose lines it writes: `claude`, `qwen`, `cursor`, `opencode`, `codex` or `gemini`; further words are the arguments
of the real CLI. It calls a model only for the acts `pay`, `insist`, `talk` and `talk-clock`. With `garble-once`,
`garble-twice` and `garble-always` it leaves an unreadable message that many times, and continues when asked again.
As a CLI it edits files in its working directory. Over ACP it edits through the client's files, after asking for
permission, and also knows `ask` (elicits), `terminal` (runs a command in the client's terminal) and `old` (speaks
another version).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MADE, TALK = "made.txt", "talk.txt"
# One file for all forms: a sandbox gets the source as an argument, and cannot import our modules.
_GRANDCHILD = "import time\nwhile True: time.sleep(60)"
# Reported if no model was called, so that every report has a usage.
_IN, _OUT = 11, 3
_SESSION = "s-1"
_GARBLED = {"garble-once": 1, "garble-twice": 2, "garble-always": 99}
# "Always" comes first: a client that takes the first option would allow all later acts.
_OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "once", "name": "Once", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class JsonLinesWriter:
    """Writes reports in one form: `claude` (also qwen's and cursor's), `opencode`, `codex` or `gemini`."""

    def __init__(self, form: str) -> None:
        # Programs of one family write the same lines; for differences, `tool` checks the name.
        self._form = {"qwen": "claude", "cursor": "claude"}.get(form, form)
        self._name = form

    def write(self, line: dict[str, Any]) -> None:
        """Write one line."""
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def begin(self) -> None:
        """Report the session."""
        match self._form:
            case "claude":
                self.write({"type": "system", "subtype": "init", "session_id": _SESSION})
            case "opencode":
                self.write({"type": "step_start", "sessionID": _SESSION, "part": {"type": "step-start"}})
            case "codex":
                self.write({"type": "thread.started", "thread_id": _SESSION})
            case "gemini":
                self.write({"type": "init", "session_id": _SESSION, "model": "m"})

    def say(self, text: str) -> None:
        """Report a text."""
        match self._form:
            case "claude":
                self._block("assistant", {"type": "text", "text": text})
            case "opencode":
                self.write({"type": "text", "part": {"type": "text", "text": text}})
            case "codex":
                self.write(
                    {"type": "item.completed", "item": {"type": "agent_message", "id": "i-1", "text": text}}
                )
            case "gemini":
                self.write({"type": "message", "role": "assistant", "content": text, "delta": True})

    def tool(self, name: str, arguments: dict[str, Any], output: str) -> None:
        """Report a call and its result."""
        match self._form:
            # cursor's form is from its documentation only: it was never tested with the real program.
            case "claude" if self._name == "cursor":
                call = {"type": "tool_call", "call_id": "c-1"}
                self.write({**call, "subtype": "started", "tool_call": {f"{name}ToolCall": {"args": arguments}}})
                result = {f"{name}ToolCall": {"result": {"success": {"content": output}}}}
                self.write({**call, "subtype": "completed", "tool_call": result})
            case "claude":
                self._block("assistant", {"type": "tool_use", "id": "c-1", "name": name, "input": arguments})
                self._block("user", {"type": "tool_result", "tool_use_id": "c-1", "content": output})
            case "opencode":
                state = {"status": "completed", "input": arguments, "output": output}
                self.write({"type": "tool_use", "part": {"tool": name, "callID": "c-1", "state": state}})
            case "codex":
                item = {"id": "c-1", "type": "command_execution", "command": name}
                self.write({"type": "item.started", "item": item})
                self.write({"type": "item.completed", "item": {**item, "aggregated_output": output}})
            case "gemini":
                self.write({"type": "tool_use", "tool_name": name, "tool_id": "c-1", "parameters": arguments})
                self.write({"type": "tool_result", "tool_id": "c-1", "status": "success", "output": output})

    def end(self, text: str, *, used: tuple[int, int]) -> None:
        """Report success, and the tokens used."""
        tokens = {"input_tokens": used[0], "output_tokens": used[1]}
        match self._form:
            case "claude":
                self.write({"type": "result", "subtype": "success", "result": text, "usage": tokens})
            case "opencode":
                part = {"tokens": {"input": used[0], "output": used[1], "cache": {"read": 0, "write": 0}}}
                self.write({"type": "step_finish", "part": part})
            case "codex":
                self.write({"type": "turn.completed", "usage": tokens})
            case "gemini":
                self.write({"type": "result", "status": "success", "stats": tokens})

    def fail(self, text: str) -> None:
        """Report a failure."""
        match self._form:
            case "claude":
                self.write(
                    {"type": "result", "subtype": "error_during_execution", "is_error": True, "result": text}
                )
            case "opencode":
                self.write({"type": "error", "error": {"name": "APIError", "data": {"message": text}}})
            case "codex":
                self.write({"type": "turn.failed", "error": {"message": text}})
            case "gemini":
                self.write({"type": "result", "status": "error", "error": {"message": text}})

    def _block(self, speaker: str, block: dict[str, Any]) -> None:
        self.write({"type": speaker, "message": {"role": speaker, "content": [block]}})


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
        """Read one message; end the program at the end of input."""
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its result; raises `Refused`."""
        self._next += 1
        self.send(id=self._next, method=method, params={"sessionId": _SESSION, **params})
        while True:
            message = self.read()
            # Both sides number their own requests: a message with a method is a request, whatever its id.
            if message.get("id") == self._next and "method" not in message:
                if "error" in message:
                    raise Refused(message["error"]["message"])
                return message["result"]

    def update(self, what: str, **more: Any) -> None:
        """Send an update."""
        params = {"sessionId": _SESSION, "update": {"sessionUpdate": what, **more}}
        self.send(method="session/update", params=params)

    def say(self, text: str) -> None:
        """Send a text, in two pieces."""
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            self.update("agent_message_chunk", content={"type": "text", "text": piece})


class FakeAcpAgent:
    """One session that does one act for each prompt."""

    def __init__(self, act: str) -> None:
        self._act = act
        self._peer = AcpPeer()
        self._used = (11, 3)
        self._turns = 0

    def serve(self) -> None:
        """Answer the client's requests."""
        while True:
            message = self._peer.read()
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
                    self._peer.send(id=message["id"], result=hello)
                case "session/new":
                    self._peer.send(id=message["id"], result={"sessionId": _SESSION})
                case "session/prompt":
                    asked = message["params"]["prompt"][0]["text"]
                    self._peer.send(id=message["id"], **self._take_turn(asked))

    def _take_turn(self, asked: str) -> dict[str, Any]:
        self._turns += 1
        if self._act == "fail":
            return {
                "error": {"code": -32603, "message": "Internal error", "data": {"details": "no model answers"}}
            }
        if self._act == "garbage":
            # Cut in the middle, then gone: the client waits for an answer that never comes.
            sys.stdout.write('{"jsonrpc": "2.0", "id"\nnothing of this is right\n')
            sys.exit(0)
        if self._act == "malformed":
            sys.stdout.write("a warning\n[]\n" + '{"jsonrpc": "2.0", "method": "session/update", "params": 3}\n')
        self._peer.say("I begin.")
        try:
            if self._act in _GARBLED:
                if self._turns > 1 and "could not be read" not in asked:
                    raise Refused("it was told nothing of what is wrong")
                leave_message(self._act, self._turns)
            if self._turns == 1 or self._act not in _GARBLED:
                self._do_act()
        except Refused as error:
            self._peer.say(f"I was refused: {error}")
            # An orderly end: only the reason says that it is not a success.
            return {"result": {"stopReason": "refusal"}}
        self._peer.say("It is made.")
        tokens = {"inputTokens": self._used[0], "outputTokens": self._used[1], "totalTokens": sum(self._used)}
        return {"result": {"stopReason": "end_turn", "usage": tokens}}

    def _do_act(self) -> None:
        match self._act:
            case "hang":
                hang()
            case "leak":
                self._peer.say(" ".join(f"{name}={value}" for name, value in os.environ.items()))
            case "pay" | "insist":
                self._used = pay(self._act)
            case "talk" | "talk-clock":
                self._used = talk(clock=self._act == "talk-clock")
            case "ask":
                schema = {"type": "object", "properties": {"word": {"type": "string", "enum": ["red", "green"]}}}
                answer = self._peer.ask(
                    "elicitation/create", mode="form", message="Which?", requestedSchema=schema
                )
                if answer["action"] != "accept":
                    raise Refused("no answer")
                self._edit(str(answer["content"]["word"]) + "\n")
                return
            case "terminal":
                script = f"echo made > {MADE}; echo seen; exit 3"
                name = self._peer.ask("terminal/create", command="sh", args=["-c", script])["terminalId"]
                ended = self._peer.ask("terminal/wait_for_exit", terminalId=name)
                shown = self._peer.ask("terminal/output", terminalId=name)
                self._peer.ask("terminal/release", terminalId=name)
                if ended["exitCode"] != 3 or shown["output"] != "seen\n":
                    raise Refused(f"{ended} {shown}")
                return
        self._edit("made\n")

    def _edit(self, content: str) -> None:
        path = os.path.abspath(MADE)
        call = {"toolCallId": "c-1", "title": "Write", "kind": "edit", "locations": [{"path": path}]}
        self._peer.update("tool_call", **call, status="pending", rawInput={"path": path})
        given = self._peer.ask("session/request_permission", toolCall=call, options=_OPTIONS)
        if given["outcome"].get("optionId") != "once":
            raise Refused("no permission")
        self._peer.ask("fs/write_text_file", path=path, content=content)
        # Read back, to detect a client that only claims to have written.
        if self._peer.ask("fs/read_text_file", path=path)["content"] != content:
            raise Refused("the file is not what was written")
        self._peer.update("tool_call_update", toolCallId="c-1", status="completed")


def edit(content: str) -> None:
    """Write the file that all acts write."""
    with open(MADE, "w") as file:
        file.write(content)


def ask_model(messages: Any = ({"role": "user", "content": "go on"},)) -> tuple[str, int, int]:
    """Make one call to the attempt's model; return its text and tokens. Raises `HTTPError`."""
    # Most stand-ins call no model, and an HTTP client takes longer to import than they run.
    import urllib.request

    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer = json.load(reply)
    usage = answer["usage"]
    return str(answer["choices"][0]["message"]["content"]), usage["prompt_tokens"], usage["completion_tokens"]


def talk(*, clock: bool) -> tuple[int, int]:
    """Write down the model's replies until it says "done", and send the file back each time; return the tokens.

    Every run has a new id, like many programs; with `clock` it sends the time from its third call on.
    """
    import uuid

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


def hang() -> None:
    """Leave grandchildren in new sessions, and never end."""
    import subprocess

    # In new sessions, so that only killing everything in the sandbox ends them.
    for _ in range(3):
        child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_GRANDCHILD!r}])"
        # The child ends at once and leaves an orphan, which a search among children does not find.
        subprocess.run([sys.executable, "-c", child], start_new_session=True, check=True)
    # Last, so that the file shows that all of them were started.
    edit("hung\n")
    while True:
        time.sleep(60)


def garble(act: str, words: list[str]) -> str:
    """Leave a message, malformed as often as the act says; return a report. Raises `ValueError`.

    Only its first start makes the file; a later one must be asked to continue in its session, with the problem.
    """
    # In HOME, like the sessions of the real programs, and not in the workspace.
    place = os.path.expanduser("~/starts.txt")
    starts = 1
    if os.path.exists(place):
        with open(place) as file:
            starts = int(file.read()) + 1
        # The place of the prompt differs between CLIs: last, or right after its flag.
        if _SESSION not in words or "could not be read" not in words[-1] + words[1]:
            raise ValueError(f"started anew: {words}")
    with open(place, "w") as file:
        file.write(str(starts))
    said = leave_message(act, starts)
    if starts == 1:
        edit("made\n")
    return said


def leave_message(act: str, times: int) -> str:
    """Leave the final message, cut off as often as the act says; return the accompanying text."""
    said = f"It is made, and told {times} times."
    message = {"type": "task_completion", "status": "success", "payload": {"summary": said}}
    with open(os.environ["CHARGEHAND_MESSAGE"], "w") as file:
        file.write(json.dumps(message)[: 40 if times <= _GARBLED[act] else None])
    return said


def main(form: str, act: str, *words: str) -> int:
    """Do one act; return the exit code."""
    if form == "acp":
        FakeAcpAgent(act).serve()
    writer = JsonLinesWriter(form)
    used = (_IN, _OUT)
    if act == "garbage":
        sys.stdout.write('{"type": "resu\nall of this is wrong\n[1, 2]\n\x00\n')
        return 0
    writer.begin()
    writer.say("I begin.")
    if act == "malformed":
        sys.stdout.write(
            "warning: this is not JSON\n\n[]\n" + '{"type": 7, "message": [1]}\n{"type": "assistant"}\n'
        )
    if act == "hang":
        hang()
    if act == "fail":
        writer.fail("the model does not answer")
        return 1
    if act in _GARBLED:
        said = garble(act, list(words))
        writer.say(said)
        writer.end(said, used=used)
        return 0
    if act == "leak":
        writer.say(" ".join(f"{name}={value}" for name, value in os.environ.items()))
    if act in ("pay", "insist"):
        used = pay(act)
    if act in ("talk", "talk-clock"):
        used = talk(clock=act == "talk-clock")
    edit("made\n")
    writer.tool("write", {"path": MADE}, "written")
    writer.say("It is made.")
    writer.end("It is made.", used=used)
    return 0


def pay(act: str) -> tuple[int, int]:
    """Make two calls; `insist` makes fifty, and retries a refused one forever. Return the tokens."""
    import urllib.error

    calls = 2 if act == "pay" else 50
    used = [0, 0]
    while calls:
        try:
            _, *tokens = ask_model()
        except urllib.error.HTTPError as error:
            error.close()
            if act != "insist":
                raise
            # Without a pause it would use up the processor time that the gateway needs to answer.
            time.sleep(0.05)
            continue
        used = [sum(pair) for pair in zip(used, tokens, strict=True)]
        calls -= 1
    return used[0], used[1]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
