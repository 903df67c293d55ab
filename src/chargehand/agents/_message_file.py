"""The file in which an agent of another program may leave its end as a message: structured, never its prose."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chargehand.agents._acp_wire import AcpError, Wire
from chargehand.agents._claims import read_document
from chargehand.agents._contract import AttemptContext
from chargehand.agents._ending import cleaned, redactor
from chargehand.core.errors import MessageError
from chargehand.core.messages import LONGEST_TEXT, Addressed, Message
from chargehand.sandbox.contract import Sandbox

MESSAGE = "/home/agent/.chargehand/message.json"
"""Where it lies; its path stands in $CHARGEHAND_MESSAGE."""
_NONE = 3
_SECONDS = 10.0
_LIMIT = 4 * LONGEST_TEXT + 1
_NO_FILE = "the message is no plain file that can be read"
_READ = '[ -e "$1" ] || [ -L "$1" ] || exit 3; [ -f "$1" ] && [ ! -L "$1" ] || exit 4; exec head -c "$2" -- "$1"'
_MAKE = 'mkdir -p "${1%/*}" && rm -rf -- "$1"'


async def offer_message(sandbox: Sandbox) -> dict[str, str]:
    """Make the place of the file, and return the environment that names it."""
    await sandbox.exec(["/bin/sh", "-c", _MAKE, "sh", MESSAGE], cwd="/")
    return {"CHARGEHAND_MESSAGE": MESSAGE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies in the file: a message, what is wrong with it, or `None`; `text` is what could not be read."""

    message: Message | MessageError | None
    text: str = ""


Look = Callable[[], Awaitable[bytes | None]]
"""Returns the first bytes of the file, `None` where there is none; raises `MessageError`."""


def look_in(sandbox: Sandbox) -> Look:
    """Return how to look while nothing else runs in a sandbox, which carries out one command at a time."""

    async def look() -> bytes | None:
        argv = ["/bin/sh", "-c", _READ, "sh", MESSAGE, str(_LIMIT)]
        result = await sandbox.exec(argv, timeout=_SECONDS, output_limit=2 * _LIMIT, cwd="/")
        if result.exit_code == _NONE and not result.timed_out:
            return None
        if result.exit_code != 0 or result.timed_out:
            raise MessageError(_NO_FILE, value=MESSAGE)
        return result.stdout

    return look


def look_over(wire: Wire) -> Look:
    """Return how to look while an agent is talked with: its relay does."""

    async def look() -> bytes | None:
        try:
            found = await wire.order("peek", path=MESSAGE, limit=_LIMIT)
        except AcpError:
            raise MessageError(_NO_FILE, value=MESSAGE) from None
        content = found.get("content")
        return None if content is None else base64.b64decode(str(content))

    return look


async def left_message(look: Look, context: AttemptContext, known: Addressed) -> Found:
    """Return the message that a program left; the attempt's token is in nothing of it."""
    try:
        content = await look()
    except MessageError as error:
        return Found(message=error)
    if content is None:
        return Found(message=None)
    content = cleaned(redactor(context.endpoint), content)
    try:
        return Found(message=read_document(content, known))
    except MessageError as error:
        return Found(message=error, text=content.decode(errors="replace"))
