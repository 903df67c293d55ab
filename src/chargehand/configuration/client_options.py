"""The arguments of a server's clients that are options of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from chargehand.configuration import run_options
from chargehand.configuration.run_options import Client, RunRequest

_Words = Annotated[str, Meta(min_length=1, max_length=4096)]
# Bounds of the input; the configuration validates it further.
_FORMS: dict[str, Any] = {
    "words": _Words,
    "short": Annotated[str, Meta(min_length=1, max_length=200)],
    "money": Annotated[float, Meta(gt=0, le=1_000_000)],
    "count": Annotated[int, Meta(ge=1, le=100)],
    "auto": Annotated[str, Meta(pattern="^auto$")],
    "list": Annotated[tuple[_Words, ...], Meta(max_length=50)],
}
_Common = TypeVar("_Common", bound=Struct)


def client_arguments(common: type[_Common], via: Client, *names: str) -> type[_Common]:
    """Return a record of the arguments in `common` and of the options that clients of an interface may give.

    With `names`, only of these options.
    """
    fields: list[tuple[str, Any, Any]] = []
    for name, option in run_options.run_options().items():
        if via in option.clients and name in (names or (name,)):
            about = Meta(description=option.help)
            if "list" in (option.shape, option.takes):
                fields.append((name, Annotated[_FORMS["list"], about], ()))
            else:
                fields.append((name, Annotated[_FORMS[option.takes] | None, about], None))
    made = msgspec.defstruct(
        common.__name__,
        fields,
        bases=(common,),
        module=common.__module__,
        namespace={"__doc__": common.__doc__},
        frozen=True,
        kw_only=True,
    )
    return cast("type[_Common]", made)


def read_client(given: Struct, *, text: str, repo: Path | None) -> RunRequest:
    """Convert the arguments of a client to a request.

    Numbers and lists become the texts that a person would write. No person is at a terminal: a request that needs
    a person's trust is refused.
    """
    fields: dict[str, Any] = {}
    for name, option in run_options.run_options().items():
        value = getattr(given, name, None)
        if value is None or not option.clients:
            continue
        if option.shape == "text" and isinstance(value, tuple):
            value = ",".join(value) or None
        fields[name] = repr(value) if isinstance(value, float | int) else value
    return run_options.RunRequest(**fields, text=text, repo=repo, yes=True)
