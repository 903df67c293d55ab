"""Finds the operation of a request's path, and the models that can take the request."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from chargehand.core.errors import nearest
from chargehand.models.contract import Dialect, GatewayFault, ModelUpstream, ServedModel
from chargehand.models.conversation import FilePart, UntranslatableError
from chargehand.models.dialects.base import DialectTable, ModelDialect, RequestFormat, RequestRoute
from chargehand.models.dialects.embeddings import embeddings_upstream, explain_refusal
from chargehand.models.dialects.translation import TranslatingUpstream
from chargehand.models.metering import DEFAULT_OUTPUT, CallBound
from chargehand.models.serving.counted_inputs import CountedInputs

# Names of lists that may hold parts; arguments of tools are objects and never searched.
_LISTS = ("messages", "input", "contents", "content", "parts", "output")
_NO_TEXT = ("image/", "audio/", "video/")


class RouteCandidate(Struct, frozen=True, kw_only=True):
    """A model that accepts all of a request, and the body for it.

    The body is in the client's dialect, which `upstream` translates into the model's own. `converted` names the
    parts of the body that were converted, `skipped` the models before this one that do not accept the request, and
    why.
    """

    served: ServedModel
    upstream: ModelUpstream
    body: Mapping[str, Any]
    converted: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def bound_use(self, rules: RequestFormat, raw: bytes, inputs: CountedInputs) -> CallBound:
        """Return the most that the request can use of the model; `raw` is the request as the client sent it."""
        served = self.served
        asked = inputs.bound((served.provider, served.name, served.model), raw, self.body)
        limit = rules.output_limit(self.body)
        most = DEFAULT_OUTPUT if served.max_output is None else served.max_output
        return CallBound(
            input=asked.tokens,
            output=most if limit is None else min(limit, most),
            asked=limit is not None or served.max_output is not None,
            choices=rules.count_choices(self.body),
            hour_cache=b'"1h"' in raw,
            on_counted=asked.note_count,
        )

    def describe(self, *, many: bool) -> dict[str, str]:
        """Return headers that tell the client which model answers, and how its request was changed.

        `many`: several models share the requested name.
        """
        # The number, not the names: those and the reasons are in the record of the call.
        shown = {"x-chargehand-converted": str(len(self.converted))} if self.converted else {}
        if self.skipped:
            shown["x-chargehand-skipped"] = str(len(self.skipped))
        if many:
            shown["x-chargehand-model"] = self.served.name.encode("ascii", "replace").decode()
        return shown


def shorten_path(path: str) -> str:
    """Return a path without its version and query."""
    path = path.partition("?")[0]
    # Clients put the version into their base URL or leave it out: both are served.
    for version in ("/v1beta", "/v1alpha", "/v1"):
        if path == version or path.startswith(f"{version}/"):
            return path.removeprefix(version).rstrip("/") or "/"
    return path.rstrip("/") or "/"


class RequestRouter:
    """Finds the operations of requests to one gateway, and which of its `models` can take them."""

    def __init__(self, models: Sequence[ServedModel], dialects: DialectTable) -> None:
        self.models = tuple(models)
        self._dialects = dialects

    def find_route(self, path: str) -> RequestRoute:
        """Return the route of a path; raises `GatewayFault` (`not_found`) if it is not an endpoint."""
        place = shorten_path(path)
        for dialect in self._dialects.values():
            route = dialect.find_route(place)
            if route is not None:
                return route
        replies = [dialect.reply_path for dialect in self._dialects.values()]
        known = ", ".join([*replies, "/v1/messages/count_tokens", "/v1/embeddings", "/v1/models"])
        raise GatewayFault("not_found", f"no endpoint {path!r}; known: {known}")

    def dialect_at(self, path: str) -> ModelDialect:
        """Return the dialect for an error at a path."""
        place = shorten_path(path)
        known = self._dialects.values()
        owner = next((one for one in known if one.find_route(place) is not None), None)
        return owner or next((one for one in known if one.claims_path(path, place)), self._dialects["openai"])

    def find_chain(self, dialect: Dialect, name: object) -> tuple[ServedModel, ...]:
        """Return the models that may answer for a name, in order; raises `GatewayFault` for an unknown name."""
        if not isinstance(name, str):
            raise GatewayFault("bad_request", f"`model` must be a name, not {name!r:.100}")
        served = [model for model in self.models if model.name == name]
        if not served:
            known = sorted({model.name for model in self.models})
            raise GatewayFault(
                "model_not_found",
                f"no model {name[:100]!r} here, {nearest(name, known)} (known: {', '.join(known) or 'none'})",
            )
        # The same name may be served in several dialects: the client's own needs no translation.
        first = next((model for model in served if model.dialect == dialect), served[0])
        return tuple(_flatten(first, set()))

    def find_candidates(
        self, chain: Sequence[ServedModel], route: RequestRoute, body: Mapping[str, Any]
    ) -> tuple[RouteCandidate, ...]:
        """Return the models of a chain that accept all of a request; raises `GatewayFault` (`uncarried`)."""
        good = list[RouteCandidate]()
        skipped = list[str]()
        for served in chain:
            if route.operation == "reply":
                fitting, converted, refusal = self._fit_request(served, route.dialect, body)
            else:
                fitting = body
                converted = ()
                refusal = explain_refusal(served, route.dialect, body, self._dialects)
            if refusal:
                skipped.append(f"{served.name} ({served.model}): {refusal}")
                continue
            if route.operation == "embed":
                upstream = embeddings_upstream(served, route.dialect, self._dialects)
            elif served.dialect == route.dialect:
                upstream = served.upstream
            else:
                upstream = TranslatingUpstream(
                    served.upstream, served.dialect, self._dialects, reasoning=served.reasoning
                )
            good.append(
                RouteCandidate(
                    served=served,
                    upstream=upstream,
                    body=fitting,
                    converted=converted,
                    skipped=tuple(skipped),
                )
            )
        if not good:
            wanted = "takes this request" if route.operation == "reply" else "makes these embeddings"
            raise GatewayFault("uncarried", f"no model {wanted}: {'; '.join(skipped)}")
        return tuple(good)

    def _fit_request(
        self, served: ServedModel, name: Dialect, body: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[str, ...], str]:
        """Return the body for one model, the converted parts, and the reason if the model does not accept it."""
        client = self._dialects[name]
        plain = served.files and served.dialect == name
        fitting, converted = (body, ()) if plain else convert_text_files(client, body)
        kinds = find_content_kinds(client, fitting) if not (served.images and served.files) else set()
        refusal = ""
        if "image" in kinds and not served.images:
            refusal = "it takes no images"
        elif "file" in kinds and not served.files:
            refusal = "it takes no files"
        elif served.dialect != name:
            try:
                # Parts that the other dialect cannot express show up when the request is written in it.
                self._dialects[served.dialect].write_request(client.read_request(fitting), served.model)
            except UntranslatableError as error:
                refusal = str(error)
        return fitting, converted, refusal


def _flatten(model: ServedModel, seen: set[int]) -> Iterator[ServedModel]:
    if id(model) not in seen:
        seen.add(id(model))
        yield model
        for other in model.fallback:
            yield from _flatten(other, seen)


def find_content_kinds(dialect: ModelDialect, body: Mapping[str, Any]) -> set[str]:
    """Return which of pictures (`image`) and files (`file`) a request holds, results of tools included."""
    # Not by the translating readers: they refuse parts of only their own dialect, which the model may speak.
    return {part.kind for part in _walk_parts(dialect, body)}


def convert_text_files(
    dialect: ModelDialect, body: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Replace files with readable text by that text under a line with their name; also return which ones.

    All other parts stay unchanged; PDFs have no readable text: columns, tables and scans would need guessing.
    """
    done = list[str]()
    if not any(_read_text(part) is not None for part in _walk_parts(dialect, body)):
        return body, ()

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(one) for one in value]
        if not isinstance(value, dict):
            return value
        part = dialect.read_part(value)
        text = None if part is None else _read_text(part)
        if part is None or text is None:
            return {**value, **{name: convert(inner) for name, inner in _find_inner(value).items()}}
        shown = f"file {part.name!r:.80}" if part.name else "a file without a name"
        done.append(f"{shown} ({part.media_type or 'no type'}, {len(text)} characters) as text")
        return dialect.text_part(f"[{shown}]\n{text}")

    return convert(body), tuple(done)


def _read_text(part: FilePart) -> str | None:
    """Return the text of a file, by its content and not by its name, or `None` if it is not text."""
    if part.kind == "image" or not part.data or part.media_type.startswith(_NO_TEXT):
        return None
    try:
        content = base64.b64decode(part.data, validate=True)
        text = content.decode()
    except (binascii.Error, ValueError):
        return None
    return None if "\0" in text or content.startswith(b"%PDF") else text


def _walk_parts(dialect: ModelDialect, value: object) -> Iterator[FilePart]:
    if isinstance(value, list):
        for one in value:
            yield from _walk_parts(dialect, one)
    if not isinstance(value, dict):
        return
    part = dialect.read_part(value)
    if part is not None:
        yield part
    for inner in _find_inner(value).values():
        yield from _walk_parts(dialect, inner)


def _find_inner(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the containers of parts in an object: lists of known names, a Gemini answer, a document's pages."""
    found = {name: value[name] for name in _LISTS if isinstance(value.get(name), list)}
    answer = value.get("functionResponse")
    source = value.get("source")
    if isinstance(answer, dict):
        found["functionResponse"] = answer
    if isinstance(source, dict) and isinstance(source.get("content"), list):
        found["source"] = source
    return found
