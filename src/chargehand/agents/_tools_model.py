"""What a tool is to a model, and what a call of one gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool as a model is told of it; `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What the model sees of a call, bounded; `artifact` is the id of all of it where `text` was shortened.

    `failed` says that the tool did not do what was asked. A command that ended with an exit code has done so.
    `image` is the media type of a picture that is the artifact: models that take pictures are shown it.
    """

    text: str
    failed: bool = False
    artifact: str | None = None
    image: str | None = None


class Mistake(ValueError):
    """A call that cannot be carried out as written; the text tells the model how to do it right."""
