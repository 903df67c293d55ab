"""The tools that a native agent is given, each described so that it is used rightly."""

from __future__ import annotations

from typing import Any

from chargehand.agents._tools_model import ToolSpec

LONGEST_COMMAND = 600
"""Seconds that a model may give one command."""


def _spec(name: str, description: str, required: str, **properties: dict[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": properties,
            "required": required.split(),
            "additionalProperties": False,
        },
    )


def _text(description: str, **more: object) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _count(description: str, least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, "minimum": least, "maximum": most}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


_PATH = "Path, relative to /workspace."
_PATCH = """Change several files at once; all of them are written or none. Either this form:
*** Begin Patch
*** Update File: src/a.py
@@ def greet():
 kept line
-removed line
+added line
*** Add File: src/new.py
+first line
*** Delete File: src/old.py
*** End Patch
or a unified diff. Give about 3 unchanged lines around each change; '@@ line' names a line above it when \
those lines stand in several places; '*** Move to: path' below an Update line renames."""

SNIPPET = "snippet"
_SNIPPET = {
    "language": _text("python or javascript."),
    "code": _text("The program."),
    "input": _text("JSON text: what the program sees as the variable `input`."),
}
SPECS = (
    _spec(
        "bash",
        "Run a shell command in /workspace. Every call is a new shell: directory and variables do not carry over. "
        "There is no terminal and no input. Long output is shortened; all of it lies in a file then.",
        "command",
        command=_text("The command line."),
        timeout=_count("Seconds after which it is killed.", 1, LONGEST_COMMAND),
    ),
    _spec(
        "read",
        "Show a file with line numbers, list a directory, or look at a picture (PNG, JPEG, GIF, WebP). "
        "Number and tab before a line are not in the file.",
        "path",
        path=_text("Path, relative to /workspace or absolute."),
        offset=_count("First line to show, from 1.", 1, 1_000_000_000),
        limit=_count("How many lines to show; 400 unless told.", 1, 2000),
    ),
    _spec(
        "edit",
        "Replace text in one file. `old` must be copied exactly (spaces and line breaks, no line numbers) and "
        "stand in the file once: add lines around it until it does, or set `all`. Empty `old` makes a new file.",
        "path old new",
        path=_text(_PATH),
        old=_text("The text to replace."),
        new=_text("The text to put there."),
        all={"type": "boolean", "description": "Replace every occurrence."},
    ),
    _spec("apply_patch", _PATCH, "patch", patch=_text("The whole patch.")),
    _spec(
        "search",
        "Find lines by a regular expression (grep -E) in the files of a directory; prints path:line:text. "
        "Binary files, .git, .venv and node_modules are left out; at most 200 matches are shown.",
        "pattern",
        pattern=_text("Extended regular expression; write \\( for a plain parenthesis."),
        path=_text("File or directory to search; /workspace unless told."),
        glob=_text("Only files of this name, such as *.py or src/**/*.ts."),
        context=_count("Lines to show around each match.", 0, 10),
    ),
    _spec(
        SNIPPET,
        "Compute a value by a short Python or JavaScript program, without files or network, in 16 MiB and 5 s. "
        "Gives JSON: value (of the last expression), console, error. Text of files goes in as `input`.",
        "language code",
        **_SNIPPET,
    ),
    _spec(
        "finish",
        "Say that the work is done. It is judged by the project's checks afterwards: run them yourself first. "
        "Where it cannot be done, say so by status failure, with the reason as summary.",
        "summary evidence",
        summary=_text("What was changed and why, in a few sentences."),
        evidence=_texts("What you ran and saw that shows it works, one command and its outcome each."),
        status=_text(
            "success unless told otherwise; request_clarification asks the person what the summary says.",
            enum=["success", "failure", "in_progress", "request_clarification"],
        ),
        files=_texts("The paths that matter."),
        open_points=_texts("What is left to do."),
    ),
    _spec(
        "ask",
        "Ask the person one question and wait. Only for what neither the repository nor the request can answer.",
        "question",
        question=_text("The question, understandable by itself."),
        options=_texts("Answers to choose from, if there are a few."),
    ),
)
MUTATING = frozenset({"bash", "edit", "apply_patch"})
"""The tools whose calls may change the workspace."""
LOOP_ONLY = frozenset({"finish", "ask"})
"""The tools that the agent's loop carries out itself."""
