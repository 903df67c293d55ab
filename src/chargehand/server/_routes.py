"""What a route is, the table that routes are added to, and the records that several of them take or give."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct
from starlette.convertors import PathConvertor, register_url_convertor

from chargehand.app.accounts import Caller
from chargehand.app.reading import StateReader
from chargehand.core.codec import convert_to, json_schema
from chargehand.core.errors import UsageError
from chargehand.server.commands import PREFIX as PREFIX
from chargehand.server.commands import RouteSignature

_Kind = TypeVar("_Kind", bound="RestArguments")
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

# Bounds of what a client may send; the use cases check more closely.
Text = Annotated[str, Meta(min_length=1, max_length=100_000)]
Words = Annotated[str, Meta(min_length=1, max_length=4096)]
Short = Annotated[str, Meta(min_length=1, max_length=200)]
MissionName = Annotated[str, Meta(min_length=1, max_length=64, description="A mission's id, or its beginning.")]
Limit = Annotated[int, Meta(ge=1, le=500, description="At most so many.")]
Offset = Annotated[int, Meta(ge=0, le=1 << 53)]


class _AnyPath(PathConvertor):
    """The rest of a path, line breaks included: Starlette's own refuses such an address, and not in JSON."""

    regex = r"[\s\S]*"


register_url_convertor("path", _AnyPath())


# Unknown names are refused: a client that misspells `budget` would otherwise run without one.
class RestArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a route takes: the names in its path, and its query or the fields of its body."""


class NoArguments(RestArguments, frozen=True):
    """What a route takes that needs nothing."""


class NamedMission(RestArguments, frozen=True):
    """What a route on one mission takes that needs no more."""

    mission: MissionName


class FeedQuery(RestArguments, frozen=True):
    """Which lines the feed has; `after` is a position, from now on without one."""

    after: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    mission: Annotated[str, Meta(max_length=64)] | None = None
    project: Short | None = None
    types: tuple[Annotated[str, Meta(max_length=64)], ...] = ()


class TerminalQuery(RestArguments, frozen=True):
    """Where a terminal goes on: behind the `position` of what came last, from the beginning without one."""

    mission: MissionName
    after: Offset = 0


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Work that goes on: ask again, or follow the mission's events, to know what became of it."""

    accepted: bool = True


class RawContent(Struct, frozen=True):
    """A result that is no JSON document."""

    content: bytes
    media_type: str
    file_name: str = ""


class EncodedDocument(Struct, frozen=True, kw_only=True):
    """A document as JSON and what tells it from others; `compressed` where it never changes."""

    content: bytes
    digest: str
    compressed: bytes = b""

    @classmethod
    def of(cls, content: bytes, compressed: bytes = b"") -> EncodedDocument:
        """Return a document that is encoded already."""
        digest = hashlib.blake2b(content, digest_size=12).hexdigest()
        return cls(content=content, digest=digest, compressed=compressed)


class StreamedContent(Struct, frozen=True):
    """A result of any length that is no JSON document, read and sent piece by piece."""

    pieces: Iterator[bytes]
    media_type: str


class Route(Struct, frozen=True, kw_only=True):
    """One use case at one address below `PREFIX`.

    `call` takes an `App` (for GET one that all share, and that changes nothing), a `takes` and who calls, and
    returns a `gives`; a coroutine is a piece of work that may take minutes. `action` is what the caller has to be
    allowed, `commands` are those of the command line that do the same. A route that takes a `format` may also give
    `RawContent` of the kind `raw`. What it answers with `is_secret` is never written down. What `is_costly` is
    done one request at a time, and an account may ask for one.
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
        """The path as the web server matches it: names of projects and models may hold slashes."""
        return re.sub(r"\{(project|model)\}", r"{\1:path}", self.path)

    @property
    def name(self) -> str:
        """The operation's name in the OpenAPI document: unique, and made of method and path."""
        words = [part.strip("{}") for part in self.path.split("/") if part]
        return "_".join((self.method.lower(), *words)).replace("-", "_")

    @property
    def may_take_long(self) -> bool:
        """Whether the work may take minutes, so that a client may be told that it goes on."""
        return inspect.iscoroutinefunction(self.call)

    @property
    def path_names(self) -> tuple[str, ...]:
        """The arguments that stand in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def signature(self) -> RouteSignature:
        """What a client has to know of the route."""
        arguments: dict[str, Any] = {}
        for field in msgspec.structs.fields(self.takes):
            schema, _ = json_schema(field.type)
            # One JSON type besides null; an enumeration and its values are texts.
            kinds = {each.get("type", "string") for each in schema.get("anyOf", [schema])} - {"null"}
            (arguments[field.name],) = kinds
        return RouteSignature(
            name=self.name,
            method=self.method,
            path=self.path,
            commands=self.commands,
            raw=bool(self.raw),
            arguments=arguments,
        )


class RouteTable:
    """The routes of a module, in the order of the functions that answer them."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(
        self,
        method: Method,
        path: str,
        *,
        action: str,
        commands: tuple[str, ...] = (),
        status: int = 200,
        gives: Any = None,
        raw: str = "",
        is_secret: bool = False,
        is_costly: bool = False,
    ) -> Callable[[_Handler], _Handler]:
        """Return a decorator that adds the decorated function as the `call` of a route.

        The first line of its docstring is the route's summary, the type of its parameter `call` is what the route
        takes, and its return type what the route gives; `gives` names that record where the function may return
        `RawContent` or an encoded document in its place.
        """

        def register(function: _Handler) -> _Handler:
            types = get_type_hints(function)
            route = Route(
                method=method,
                path=path,
                action=action,
                summary=(function.__doc__ or "").partition("\n")[0],
                takes=types["call"],
                gives=gives or types["return"],
                call=function,
                commands=commands,
                status=status,
                raw=raw,
                is_secret=is_secret,
                is_costly=is_costly,
            )
            self.routes.append(route)
            return function

        return register


def read_arguments(
    kind: type[_Kind], *, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: Mapping[str, Any]
) -> _Kind:
    """Return what a request says as the arguments of its route. Raises `UsageError` (`arguments_invalid`)."""
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
        # A mission's texts reach programs as arguments, which hold no zero byte and have to be valid Unicode.
        if any("\0" in text or any("\ud800" <= char <= "\udfff" for char in text) for text in _texts(given)):
            raise _invalid("an argument holds a zero byte or a character that is not valid Unicode")
        # JSON has types, so a body has to name a number as one; an address holds nothing but text.
        return convert_to(given, kind, strict=bool(body))
    except RecursionError as error:
        raise _invalid("an argument is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error


def project_path(reader: StateReader, project: str | None) -> Path | None:
    """Return where the repository of a project lies, given by id or path. Raises `NotFoundError`."""
    return None if project is None else reader.store.projects.find(project).path


def name_revision(body: Mapping[str, Any], tag: str) -> dict[str, Any]:
    """Return a body with the revision that an entity tag of `document_response` names. Raises `UsageError`."""
    found = re.fullmatch(r'"([0-9]{1,15})-[0-9a-f]+"', tag)
    if found is None:
        raise _invalid(f"If-Match: {tag!r} is no ETag of this document")
    if body.get("revision", int(found[1])) != int(found[1]):
        raise _invalid(f"If-Match names the revision {found[1]}, and the body another one")
    return {**body, "revision": int(found[1])}


def _invalid(message: str) -> UsageError:
    return UsageError(message, code="arguments_invalid", hint="/openapi.json has the schema of what a route takes")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (str(key), *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
