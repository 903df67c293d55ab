"""Routes, the tables that collect them, and records shared by several of them."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from chargehand.core.codec import convert_to, json_schema
from chargehand.core.errors import UsageError
from chargehand.identity.accounts import Caller
from chargehand.operations.commands import PREFIX as PREFIX
from chargehand.operations.commands import OperationSignature
from chargehand.reports.documents import to_json
from chargehand.reports.reading import StateReader

_Kind = TypeVar("_Kind", bound="RestArguments")
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

# Bounds of a client's input; the use cases validate it further.
Text = Annotated[str, Meta(min_length=1, max_length=100_000)]
Words = Annotated[str, Meta(min_length=1, max_length=4096)]
Short = Annotated[str, Meta(min_length=1, max_length=200)]
MissionName = Annotated[str, Meta(min_length=1, max_length=64, description="A mission's id, or its beginning.")]
Limit = Annotated[int, Meta(ge=1, le=500, description="At most so many.")]
Offset = Annotated[int, Meta(ge=0, le=1 << 53)]


# Unknown names are refused: a client that misspells `budget` would otherwise run without it.
class RestArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a route: the names in its path, and its query or the fields of its body."""


class NoArguments(RestArguments, frozen=True):
    """The arguments of a route without arguments."""


class NamedMission(RestArguments, frozen=True):
    """The arguments of a route on one mission without others."""

    mission: MissionName


class FeedQuery(RestArguments, frozen=True):
    """The lines of the feed to follow; `after` is a position, by default the current end."""

    after: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    mission: Annotated[str, Meta(max_length=64)] | None = None
    project: Short | None = None
    types: tuple[Annotated[str, Meta(max_length=64)], ...] = ()


class TerminalQuery(RestArguments, frozen=True):
    """The terminal to follow: after the `position` of the last record, by default from the beginning."""

    mission: MissionName
    after: Offset = 0


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The work is accepted and continues: ask again, or follow the mission's events, for its result."""

    accepted: bool = True


class RawContent(Struct, frozen=True):
    """A result that is not a JSON document."""

    content: bytes
    media_type: str
    file_name: str = ""


class EncodedDocument(Struct, frozen=True, kw_only=True):
    """An encoded JSON document and its digest; `compressed` is set if it never changes."""

    content: bytes
    digest: str
    compressed: bytes = b""

    @classmethod
    def of(cls, content: bytes, compressed: bytes = b"") -> EncodedDocument:
        """Return a document from its encoded content."""
        digest = hashlib.blake2b(content, digest_size=12).hexdigest()
        return cls(content=content, digest=digest, compressed=compressed)


def encode_document(document: Any) -> bytes:
    """Return a record as JSON; bytes of paths that are not UTF-8 are shown as `\\xNN`."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(to_json(document))


class StreamedContent(Struct, frozen=True):
    """A result of any length that is not a JSON document, read and sent piece by piece."""

    pieces: Iterator[bytes]
    media_type: str


class Operation(Struct, frozen=True, kw_only=True):
    """One use case at one address below `PREFIX`.

    `call` gets an `App` (for GET a shared one, which it does not change), the arguments `takes` and the caller,
    and returns a `gives`; a coroutine may take minutes. `action` is the right that the caller needs, `commands`
    are the equivalent commands of the command line. A route that takes a `format` may also return `RawContent` of
    the kind `raw`. The answer of a route that `is_secret` is never stored on disk. Work that `is_costly` is done
    one request at a time, and an account may request one at a time.
    """

    method: Method
    path: str
    action: str
    summary: str
    takes: type[RestArguments]
    gives: Any
    call: Callable[[Any, Any, Caller], Any]
    commands: tuple[str, ...]
    status: int
    raw: str
    is_secret: bool
    is_costly: bool

    @property
    def pattern(self) -> str:
        """The path as the web server matches it: names of projects and models may contain slashes."""
        return re.sub(r"\{(project|model)\}", r"{\1:path}", self.path)

    @property
    def name(self) -> str:
        """The operation's name in the OpenAPI document: unique, derived from method and path."""
        words = [part.strip("{}") for part in self.path.split("/") if part]
        return "_".join((self.method.lower(), *words)).replace("-", "_")

    @property
    def may_take_long(self) -> bool:
        """Whether the work may take minutes, so that a client may get the response `Accepted`."""
        return inspect.iscoroutinefunction(self.call)

    @property
    def path_names(self) -> tuple[str, ...]:
        """The arguments in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def signature(self) -> OperationSignature:
        """The facts about the route that a client needs."""
        arguments: dict[str, Any] = {}
        for field in msgspec.structs.fields(self.takes):
            schema, _ = json_schema(field.type)
            # One JSON type apart from null; an enumeration and its values are texts.
            kinds = {each.get("type", "string") for each in schema.get("anyOf", [schema])} - {"null"}
            (arguments[field.name],) = kinds
        return OperationSignature(
            name=self.name,
            method=self.method,
            path=self.path,
            commands=self.commands,
            raw=bool(self.raw),
            arguments=arguments,
        )


class OperationTable:
    """The routes of a module, in the order of their functions."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(
        self,
        method: Method,
        path: str,
        *,
        action: str,
        commands: tuple[str, ...] = (),
        status: int = 200,
        takes: type[RestArguments] | None = None,
        gives: Any = None,
        raw: str = "",
        is_secret: bool = False,
        is_costly: bool = False,
    ) -> Callable[[_Handler], _Handler]:
        """Return a decorator that adds the decorated function as the `call` of a route.

        The first line of its docstring is the route's summary, the type of its parameter `call` is `takes`, and
        its return type is `gives`. The argument `takes` is that record with further fields; `gives` names the
        record if the function may return `RawContent` or an encoded document instead.
        """

        def register(function: _Handler) -> _Handler:
            types = get_type_hints(function)
            route = Operation(
                method=method,
                path=path,
                action=action,
                summary=(function.__doc__ or "").partition("\n")[0],
                takes=takes or types["call"],
                gives=gives or types["return"],
                call=function,
                commands=commands,
                status=status,
                raw=raw,
                is_secret=is_secret,
                is_costly=is_costly,
            )
            self.operations.append(route)
            return function

        return register


def read_arguments(
    kind: type[_Kind], *, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: Mapping[str, Any]
) -> _Kind:
    """Convert a request to the arguments of its route. Raises `UsageError` (`arguments_invalid`)."""
    many = {field.name for field in msgspec.structs.fields(kind) if "tuple[" in str(field.type)}
    given: dict[str, Any] = dict(body)
    for name, text in query:
        if name in body or (name in given and name not in many):
            raise _invalid(f"{name!r} is given more than once")
        if name in many:
            given.setdefault(name, []).append(text)
        else:
            given[name] = text
    given |= path
    try:
        # A mission's texts reach programs as arguments, which cannot contain a zero byte and have to be valid
        # Unicode.
        if any("\0" in text or any("\ud800" <= char <= "\udfff" for char in text) for text in _texts(given)):
            raise _invalid("an argument contains a zero byte or a character that is not valid Unicode")
        # JSON has types, so a number in a body has to be a number; an address contains only text.
        return convert_to(given, kind, strict=bool(body))
    except RecursionError as error:
        raise _invalid("an argument is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error


def project_path(reader: StateReader, project: str | None) -> Path | None:
    """Return the path of a project's repository, given by id or path. Raises `NotFoundError`."""
    return None if project is None else reader.store.projects.find(project).path


def name_revision(body: Mapping[str, Any], tag: str) -> dict[str, Any]:
    """Return a body with the revision from an entity tag of `document_response`. Raises `UsageError`."""
    found = re.fullmatch(r'"([0-9]{1,15})-[0-9a-f]+"', tag)
    if found is None:
        raise _invalid(f"If-Match: {tag!r} is not an ETag of this document")
    if body.get("revision", int(found[1])) != int(found[1]):
        raise _invalid(f"If-Match names the revision {found[1]}, and the body another one")
    return {**body, "revision": int(found[1])}


def _invalid(message: str) -> UsageError:
    return UsageError(
        message, code="arguments_invalid", hint="/openapi.json has the schema of each route's arguments"
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (str(key), *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
