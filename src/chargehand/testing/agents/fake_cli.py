"""A stand-in for an agent CLI: a program that writes the JSON Lines of any of them and acts as it is told.

`python3 -I -c SOURCE FORM ACT …`, inside a sandbox, with the standard library alone; further words are those that
the real program would be given. It edits nothing but files in its working directory, and calls a model only for
the acts `pay`, `insist`, `talk` and `talk-clock`. With `garble-once`, `garble-twice` and `garble-always` it leaves
a message that cannot be read, as often as that says, and goes on in its session where its words name that.
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
_IN, _OUT = 11, 3
_SESSION = "s-1"
_GARBLED = {"garble-once": 1, "garble-twice": 2, "garble-always": 99}


class JsonLinesWriter:
    """What is said in one form: `claude` (also qwen's and cursor's), `opencode`, `codex` or `gemini`."""

    def __init__(self, form: str) -> None:
        self._form = {"qwen": "claude", "cursor": "claude"}.get(form, form)
        self._name = form

    def write(self, line: dict[str, Any]) -> None:
        """Write one line."""
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def begin(self) -> None:
        """Tell of the session."""
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
        """Say something."""
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
        """Tell of a call and what came of it."""
        match self._form:
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
        """Tell that all went well, and which tokens were used."""
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
        """Tell that it ends badly."""
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


def edit(content: str) -> None:
    """Write the file that all acts write."""
    with open(MADE, "w") as file:
        file.write(content)


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


def hang() -> None:
    """Leave grandchildren in sessions of their own, and never end."""
    for _ in range(3):
        child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_GRANDCHILD!r}])"
        subprocess.run([sys.executable, "-c", child], start_new_session=True, check=True)
    edit("hung\n")
    while True:
        time.sleep(60)


def garble(act: str, words: list[str]) -> str:
    """Leave a message, malformed as often as the act says; return what it did. Raises `ValueError`.

    Only its first start makes the file; a later one has to be asked to go on in its session, with what is wrong.
    """
    # In HOME, as the sessions of the real programs are, and not in the workspace.
    place = os.path.expanduser("~/starts.txt")
    starts = 1
    if os.path.exists(place):
        with open(place) as file:
            starts = int(file.read()) + 1
        if _SESSION not in words or "could not be read" not in words[-1] + words[1]:
            raise ValueError(f"started anew: {words}")
    with open(place, "w") as file:
        file.write(str(starts))
    said = f"It is made, and told {starts} times."
    message = {"type": "task_completion", "status": "success", "payload": {"summary": said}}
    with open(os.environ["CHARGEHAND_MESSAGE"], "w") as file:
        file.write(json.dumps(message)[: 40 if starts <= _GARBLED[act] else None])
    if starts == 1:
        edit("made\n")
    return said


def main(form: str, act: str, *words: str) -> int:
    """Do one act; return the exit code."""
    writer, used = JsonLinesWriter(form), (_IN, _OUT)
    if act == "garbage":
        sys.stdout.write('{"type": "resu\nall of this is wrong\n[1, 2]\n\x00\n')
        return 0
    writer.begin()
    writer.say("I begin.")
    if act == "malformed":
        sys.stdout.write(
            "warning: this is no JSON\n\n[]\n" + '{"type": 7, "message": [1]}\n{"type": "assistant"}\n'
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
        counts = [pay(act) for _ in range(2 if act == "pay" else 50)]
        used = (sum(each[0] for each in counts), sum(each[1] for each in counts))
    if act in ("talk", "talk-clock"):
        used = talk(clock=act == "talk-clock")
    edit("made\n")
    writer.tool("write", {"path": MADE}, "written")
    writer.say("It is made.")
    writer.end("It is made.", used=used)
    return 0


def pay(act: str) -> tuple[int, int]:
    """Make a call; who insists tries a refused one again for ever."""
    while True:
        try:
            return ask_model()[1:]
        except urllib.error.HTTPError as error:
            error.close()
            if act != "insist":
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
