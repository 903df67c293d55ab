"""The file for a program's last message; repairs of an unreadable one, and answers to a question."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from chargehand.agents.contract import AgentOutcome, AttemptContext
from chargehand.agents.messages import ASKED_AGAIN, read_document, with_message
from chargehand.agents.programs.running import redact_bytes, redactor, usage_so_far
from chargehand.core.errors import MessageError
from chargehand.core.messages import (
    LONGEST_TEXT,
    Addressed,
    ClarificationRequest,
    ErrorReport,
    InformationReport,
    Message,
    TaskCompletion,
    repaired_json,
    repaired_words,
)
from chargehand.sandbox.contract import Sandbox

# The path of the file in the sandbox, also in $CHARGEHAND_MESSAGE.
MESSAGE = "/home/agent/.chargehand/message.json"
# Bytes to read: one more than a message may have, so that a longer one is noticed.
MESSAGE_BYTES = 4 * LONGEST_TEXT + 1
# The messages that an attempt may end with.
ENDS: tuple[type[Message], ...] = (TaskCompletion, InformationReport, ErrorReport, ClarificationRequest)
_ABSENT = 3
_READ_SECONDS = 10.0
# Only a plain file: a link could lead to something else, and a pipe would never end.
_READ = '[ -e "$1" ] || [ -L "$1" ] || exit 3; [ -f "$1" ] && [ ! -L "$1" ] || exit 4; exec head -c "$2" -- "$1"'
_MAKE = 'mkdir -p "${1%/*}" && rm -rf -- "$1"'
# Characters of a malformed message that its program is shown, and that the log keeps.
_SHOWN = 1_000
_UNREADABLE = (
    "The message that you left in the file that $CHARGEHAND_MESSAGE names could not be read, so your work has not "
    "ended: {problem}\n\n"
    "Write the whole file again, as one JSON object with nothing around it, of {forms} (a `?` marks what may be "
    "left out):\n\n{lines}\n\n"
    "Say in it what you meant to say. What you did is kept: change nothing else, and end."
)


async def offer_message(sandbox: Sandbox) -> dict[str, str]:
    """Create the file's directory, and return the environment that names the file."""
    await sandbox.exec(["/bin/sh", "-c", _MAKE, "sh", MESSAGE], cwd="/")
    return {"CHARGEHAND_MESSAGE": MESSAGE}


class FoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file: a message, its error, or `None`; `text` is the unreadable content."""

    message: Message | MessageError | None
    text: str = ""


# Returns the first bytes of the file, `None` if it is missing; raises `MessageError`.
ReadMessage = Callable[[], Awaitable[bytes | None]]


def unreadable_file() -> MessageError:
    """Return the error for a file that is a link, a directory or not readable."""
    return MessageError("the message is not a readable plain file", value=MESSAGE)


def message_reader(sandbox: Sandbox) -> ReadMessage:
    """Return a reader for use when nothing else runs in the sandbox, which runs one command at a time."""

    async def read() -> bytes | None:
        argv = ["/bin/sh", "-c", _READ, "sh", MESSAGE, str(MESSAGE_BYTES)]
        result = await sandbox.exec(argv, timeout=_READ_SECONDS, output_limit=2 * MESSAGE_BYTES, cwd="/")
        if result.exit_code == _ABSENT and not result.timed_out:
            return None
        if result.exit_code != 0 or result.timed_out:
            raise unreadable_file()
        return result.stdout

    return read


class MessageRepairs:
    """Asks the program of one attempt again for an unreadable message; each request is a recorded step.

    `run` numbers the runs of an attempt that were ended by questions, from 0: requests in earlier runs count. A
    run that restarts after a crash makes the same requests again, which are not counted twice.
    """

    def __init__(self, context: AttemptContext, address: Addressed, *, run: int = 0) -> None:
        self.asked = 0
        self._context = context
        self._address = address
        self._run = run
        numbers = range(1, ASKED_AGAIN + 1)
        self._before = sum(context.is_recorded(_repair_step(each, n)) for each in range(run) for n in numbers)
        self._why_not = ""

    async def again(self, *, read_file: ReadMessage | None = None, why_not: str = "") -> str | None:
        """Return the request to a program that ended well, or `None` if there is nothing to ask.

        That is: it left no message, or a good one; it was asked often enough; or it cannot be asked, for the
        reason `why_not`. `read_file` reads the file while the program's relay still runs.
        """
        found = await self._read(read_file)
        if not isinstance(found.message, MessageError) or self._before + self.asked >= ASKED_AGAIN:
            return None
        self._why_not = why_not
        spent = usage_so_far(self._context.endpoint)
        if not why_not and (spent.refused or spent.quota is not None):
            self._why_not = "no model would answer it"
        if self._why_not:
            return None
        # Recorded before the program is asked: a run that restarts after a crash counts it once.
        self.asked += 1
        error = found.message
        text = found.text

        async def problem() -> object:
            return {"problem": error.message, "received": text[:_SHOWN]}

        await self._context.step(_repair_step(self._run, self.asked), [self.asked], problem)
        kinds = ENDS
        try:
            document = repaired_json(text)
        except MessageError:
            document = None
        if isinstance(document, dict):  # the form of the type that it names, or all forms if it names no type
            named = repaired_words(document).get("type")
            kinds = tuple(kind for kind in ENDS if kind.__struct_config__.tag == named) or ENDS
        words = _UNREADABLE.format(
            problem=error.message,
            forms="this form" if len(kinds) == 1 else "one of these forms",
            lines="\n".join(map(_describe_form, kinds)),
        )
        left = text.replace("\0", "").strip()
        if not left:
            return words
        return f"{words}\n\nThe present content begins:\n\n{left if len(left) <= _SHOWN else f'{left[:_SHOWN]}…'}"

    async def conclude(self, outcome: AgentOutcome, *, why_not: str = "") -> AgentOutcome:
        """Return the outcome of an attempt's last run together with its program's message.

        `why_not` says why a program of its kind is never asked again.
        """
        # Its end is known, and not for the program to decide: its message was written before that.
        if outcome.claim in ("timed_out", "exhausted"):
            return with_message(outcome, self._address, None)
        if outcome.claim == "failed" and self.asked:
            outcome = replace(outcome, reason=f"asked again for a malformed message: {outcome.reason}")
        message = (await self._read()).message
        times = 1 + self.asked
        return with_message(outcome, self._address, message, times=times, why_not=why_not or self._why_not)

    async def _read(self, read_file: ReadMessage | None = None) -> FoundMessage:
        """Return the message that the program left, with the attempt's token redacted."""
        try:
            content = await (read_file or message_reader(self._context.sandbox))()
        except MessageError as error:
            return FoundMessage(message=error)
        if content is None:
            # Once it was asked again, a missing message is an error: otherwise the exit code would decide, and
            # turn an unreadable message into a success.
            gone = MessageError("the unreadable message was removed and not replaced")
            return FoundMessage(message=gone if self.asked else None)
        content = redact_bytes(redactor(self._context.endpoint), content)
        try:
            return FoundMessage(message=read_document(content, self._address))
        except MessageError as error:
            return FoundMessage(message=error, text=content.decode(errors="replace"))


def _repair_step(run: int, number: int) -> str:
    return f"asked-again/{run}/{number}"


def _describe_form(kind: type[Message]) -> str:
    """Return one line with the form of a message, made from its class."""
    hints = get_type_hints(kind)
    # "in_progress" is a status that no last message may have.
    status = " or ".join(f'"{word}"' for word in get_args(hints["status"]) if word != "in_progress")
    payload = _describe_value(hints["payload"])
    return f'{{"type": "{kind.__struct_config__.tag}", "status": {status}, "payload": {payload}}}'


def _describe_value(kind: Any) -> str:
    """Return the form of a value of a message."""
    if kind is str:
        return "TEXT"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        types = get_type_hints(kind)
        fields = (
            f'"{field.name}"{"" if field.required else "?"}: {_describe_value(types[field.name])}'
            for field in msgspec.structs.fields(kind)
        )
        return f"{{{', '.join(fields)}}}"
    match get_origin(kind):
        case builtins.tuple:
            return f"[{_describe_value(get_args(kind)[0])}, ...]"
        case builtins.dict:
            return "{TEXT: TEXT, ...}"
    return "NUMBER"


def _question_step(number: int) -> str:
    return f"clarification/{number}"


async def answered_questions(context: AttemptContext) -> tuple[str, ...]:
    """Return the questions that ended earlier runs of the attempt, each with its answer.

    Raises `WaitingError` while one of them has no answer.
    """
    texts: list[str] = []
    while context.is_recorded(_question_step(len(texts) + 1)):
        texts.append(await ask_person(context, len(texts) + 1, None))
    return tuple(texts)


async def ask_person(context: AttemptContext, number: int, message: ClarificationRequest | None) -> str:
    """Ask a person a question, recorded; return it with the answer. `None` repeats a recorded question.

    Raises `WaitingError` while there is no answer.
    """

    async def question() -> object:
        assert message is not None
        return {"question": message.payload.question, "options": list(message.payload.options)}

    asked = await context.step(_question_step(number), [number], question)
    answer = await context.ask(_question_step(number), asked["question"], asked["options"])
    return f"You asked: {asked['question']}\n\nThe answer: {answer}"
