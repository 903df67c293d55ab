"""From a request's path to what it asks, and who may answer it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec

from chargehand.core.errors import nearest
from chargehand.models._contract import PATHS, Dialect, Operation, ServedModel
from chargehand.models._gateway_content import as_text, kinds_in
from chargehand.models._gateway_fault import GatewayFault
from chargehand.models._talk import UncarriedError
from chargehand.models._translate import carried

_FIXED: Mapping[str, tuple[Dialect, Operation]] = {
    "/chat/completions": ("openai", "reply"),
    "/messages": ("anthropic", "reply"),
    "/messages/count_tokens": ("anthropic", "count"),
    "/responses": ("responses", "reply"),
    "/embeddings": ("openai", "embed"),
}
_GEMINI: Mapping[str, tuple[Operation, bool]] = {
    "generateContent": ("reply", False),
    "streamGenerateContent": ("reply", True),
    "countTokens": ("count", False),
    "embedContent": ("embed", False),
    "batchEmbedContents": ("embed", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a path asks for; `named` holds what Gemini's path says beside it: model and stream."""

    dialect: Dialect
    operation: Operation
    named: Mapping[str, Any]


def short(path: str) -> str:
    """Return a path without its version and query."""
    path = path.partition("?")[0]
    for version in ("/v1beta", "/v1alpha", "/v1"):
        if path == version or path.startswith(f"{version}/"):
            return path.removeprefix(version).rstrip("/") or "/"
    return path.rstrip("/") or "/"


def route_of(path: str) -> Route | None:
    """Return what a path asks for, `None` where it is no endpoint."""
    place = short(path)
    if place in _FIXED:
        dialect, operation = _FIXED[place]
        return Route(dialect=dialect, operation=operation, named={})
    model, colon, verb = unquote(place).removeprefix("/models/").rpartition(":")
    if place.startswith("/models/") and colon and verb in _GEMINI:
        operation, stream = _GEMINI[verb]
        return Route(dialect="gemini", operation=operation, named={"model": model, "stream": stream})
    return None


def dialect_at(path: str) -> Dialect:
    """Return the dialect in which an error at a path is said."""
    route = route_of(path)
    if route is not None:
        return route.dialect
    if path.startswith(("/v1beta/", "/v1alpha/")):
        return "gemini"
    return "anthropic" if short(path).startswith("/messages") else "openai"


def no_endpoint(path: str) -> GatewayFault:
    """Return the refusal of a path that is none."""
    known = ", ".join([*PATHS.values(), "/v1/messages/count_tokens", "/v1/embeddings", "/v1/models"])
    return GatewayFault("not_found", f"no endpoint {path!r}; known: {known}")


def chain_of(models: Sequence[ServedModel], dialect: Dialect, name: object) -> tuple[ServedModel, ...]:
    """Return who may answer for a name, in order; raises `GatewayFault` where there is no such model."""
    if not isinstance(name, str):
        raise GatewayFault("bad_request", f"`model` must be a name, not {name!r:.100}")
    served = [model for model in models if model.name == name]
    if not served:
        known = sorted({model.name for model in models})
        raise GatewayFault(
            "model_not_found",
            f"no model {name[:100]!r} here, {nearest(name, known)} (known: {', '.join(known) or 'none'})",
        )
    first = next((model for model in served if model.dialect == dialect), served[0])
    return tuple(_flat(first, set()))


def _flat(model: ServedModel, seen: set[int]) -> Iterator[ServedModel]:
    if id(model) not in seen:
        seen.add(id(model))
        yield model
        for other in model.fallback:
            yield from _flat(other, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """A model that takes all of a request, with the body for it.

    `converted` tells what of that has another form than the client gave it, `skipped` who before it does not take
    the request, and why.
    """

    served: ServedModel
    body: Mapping[str, Any]
    converted: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def able(chain: Sequence[ServedModel], dialect: Dialect, body: Mapping[str, Any]) -> tuple[Taker, ...]:
    """Return who of a chain takes all of a request; raises `GatewayFault` (`uncarried`) where nobody does."""
    good, skipped = list[Taker](), list[str]()
    for served in chain:
        plain = served.files and served.dialect == dialect
        fitting, converted = (body, ()) if plain else as_text(dialect, body)
        reason = _unable(served, dialect, fitting)
        if reason:
            skipped.append(f"{served.name} ({served.model}): {reason}")
        else:
            good.append(Taker(served=served, body=fitting, converted=converted, skipped=tuple(skipped)))
    if not good:
        raise GatewayFault("uncarried", f"no model takes this request: {'; '.join(skipped)}")
    return tuple(good)


def _unable(served: ServedModel, dialect: Dialect, body: Mapping[str, Any]) -> str:
    if served.dialect == dialect and served.images and served.files:
        return ""
    try:
        held = set() if served.images and served.files else kinds_in(dialect, body)
        if "image" in held and not served.images:
            return "it takes no images"
        if "file" in held and not served.files:
            return "it takes no files"
        if served.dialect != dialect:
            carried(dialect, body, served.dialect, served.model)
    except UncarriedError as error:
        return str(error)
    return ""


def listed(models: Sequence[ServedModel]) -> bytes:
    """Return the list of models, as clients of both older dialects read it."""
    entries = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "chargehand",
            "type": "model",
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
        }
        for name in dict.fromkeys(served.name for served in models)
    ]
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
    return msgspec.json.encode({"object": "list", "data": entries, "has_more": False, **ends})


def listed_gemini(models: Sequence[ServedModel]) -> bytes:
    """Return the list of models as Gemini's clients read it."""
    verbs = list(_GEMINI)
    names = dict.fromkeys(served.name for served in models)
    entries = [
        {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": verbs} for name in names
    ]
    return msgspec.json.encode({"models": entries})
