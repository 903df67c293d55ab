"""The file in which an agent of another program may leave its end as a message: structured, never its prose."""

from __future__ import annotations

from chargehand.agents._claims import read_document, with_message
from chargehand.agents._contract import AttemptContext, Outcome
from chargehand.agents._ending import cleaned, redactor
from chargehand.core import LONGEST_TEXT, Addressed, Message, MessageError
from chargehand.sandbox import Sandbox

MESSAGE = "/home/agent/.chargehand/message.json"
"""Where it lies; its path stands in $CHARGEHAND_MESSAGE."""
_NONE = 3
_SECONDS = 10.0
_READ = '[ -e "$1" ] || [ -L "$1" ] || exit 3; [ -f "$1" ] && [ ! -L "$1" ] || exit 4; exec head -c "$2" -- "$1"'
_MAKE = 'mkdir -p "${1%/*}" && rm -rf -- "$1"'


async def offer_message(sandbox: Sandbox) -> dict[str, str]:
    """Make the place of the file, and return the environment that names it."""
    await sandbox.exec(["/bin/sh", "-c", _MAKE, "sh", MESSAGE], cwd="/")
    return {"CHARGEHAND_MESSAGE": MESSAGE}


async def left_message(context: AttemptContext, known: Addressed) -> Message | MessageError | None:
    """Return the message that a program left, what is wrong with it, or `None` where it left none."""
    sandbox = context.sandbox
    limit = 4 * LONGEST_TEXT + 1
    argv = ["/bin/sh", "-c", _READ, "sh", MESSAGE, str(limit)]
    result = await sandbox.exec(argv, timeout=_SECONDS, output_limit=2 * limit, cwd="/")
    if result.exit_code == _NONE and not result.timed_out:
        return None
    if result.exit_code != 0 or result.timed_out:
        return MessageError("the message is no plain file that can be read", value=MESSAGE)
    try:
        return read_document(cleaned(redactor(context.endpoint), result.stdout), known)
    except MessageError as error:
        return error


async def ended_with(context: AttemptContext, outcome: Outcome, known: Addressed) -> Outcome:
    """Return the outcome of a run together with the message that its program left."""
    if outcome.claim in ("timed_out", "exhausted"):
        return with_message(outcome, known, None)
    return with_message(outcome, known, await left_message(context, known))
