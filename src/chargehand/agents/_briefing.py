"""What an agent of another program is asked: the request, its bounds, the report before, what persons said."""

from __future__ import annotations

from chargehand.agents._contract import Assignment
from chargehand.agents._prompts import first_message, person_message, report_message, role_words
from chargehand.agents._truncate import shorten

_LONGEST = 100_000
"""Characters: one word of a command line takes 128 KiB."""
_HOW = (
    "Work in /workspace, a git repository, without asking back. Read a file before you change it. What you leave "
    "there is kept; you need not commit. The project's own checks decide about it.\n\n"
    "Where it cannot be done, write why to the file that $CHARGEHAND_MESSAGE names before you end, as "
    '{"type": "error_report", "status": "failure", "payload": {"summary": "..."}}.'
)
_HOW_TO_READ = (
    "Work in /workspace, a git repository, without asking back. You can change nothing there: it is read-only to "
    "you and to every program; scratch files go to /tmp. Your last message is all that remains of your work: let "
    "it be the whole {output}."
)


def briefing(assignment: Assignment) -> str:
    """Return the prompt of an attempt; it never begins with a dash, and holds no NUL."""
    role = assignment.role
    parts = [
        first_message(assignment.request, allow=assignment.allow, forbid=assignment.forbid),
        _HOW if role.writes else _HOW_TO_READ.format(output=role.output),
        *role_words(role),
    ]
    if assignment.report is not None:
        parts.append(report_message(assignment.report))
    parts += [person_message(text) for text in assignment.messages]
    text = "\n\n".join(parts).replace("\0", "")
    return shorten(text, limit=_LONGEST).render("it was too long")
