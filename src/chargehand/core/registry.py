"""Registered names: the implementations of one kind by name, each imported when it is first used.

A package registers its own implementations. Installed distributions can offer more, as entry points of the group
`chargehand.KIND`. These count only if the user enabled them: `app` passes them to `use_extensions`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from msgspec import Struct

from chargehand.core.errors import ConfigError, NotFoundError, nearest

T = TypeVar("T")


class Registered(Struct, frozen=True):
    """A name and its implementation: a `module:attribute`, or a function that returns it.

    A class is called without arguments. `distribution` is "" for built-in names.
    """

    name: str
    target: str | Callable[[], object]
    summary: str = ""
    distribution: str = ""


class Extensions(Protocol):
    """The entry points of installed distributions; the search reads files, so `app` has it."""

    def enabled(self, group: str) -> Sequence[Registered]:
        """Return the offers of the distributions that the user enabled."""
        ...

    def explain(self, group: str, name: str) -> str:
        """Return how to enable a name that an installed distribution offers; "" without an offer."""
        ...


# Of the process, as imported code is: the latest configuration of the user decides.
_in_use: list[Extensions] = []


def use_extensions(found: Extensions | None, *, replace: bool = True) -> None:
    """Let every registry of this process look up further names in `found`; `None` removes the earlier value.

    Without `replace`, an earlier value stays.
    """
    if replace or not _in_use:
        _in_use[:] = [] if found is None else [found]


class Registry(Mapping[str, T], Generic[T]):
    """A mapping of the names of one kind to their implementations: built-in names first, in order of registration.

    `kind` is the word for people. Extensions cannot replace a built-in name, and add names only if `extensible`.
    """

    def __init__(self, group: str, kind: str, *, extensible: bool = True) -> None:
        self.group = group
        self.kind = kind
        self._extensible = extensible
        self._own: dict[str, Registered] = {}
        self._loaded: dict[Registered, T] = {}

    def register(self, name: str, target: str | Callable[[], T], summary: str) -> None:
        """Add a built-in name: a `module:attribute` or a function, and one line for people."""
        self._own[name] = Registered(name, target, summary)

    def names(self) -> tuple[str, ...]:
        """Return the known names, including those of enabled extensions; imports no implementation."""
        return tuple(self)

    def built_in(self) -> tuple[str, ...]:
        """Return the names that do not come from extensions."""
        return tuple(self._own)

    def summary(self, name: str) -> str:
        """Return the line for people about a known name; imports nothing."""
        return self._require(name).summary

    def find(self, name: str) -> T:
        """Return the implementation of a name.

        Raises `NotFoundError` with the nearest name for an unknown one, `ConfigError` for an extension that cannot
        be loaded.
        """
        found = self._require(name)
        if found not in self._loaded:
            self._loaded[found] = cast(T, _load(found, self.kind))
        return self._loaded[found]

    def explain(self, name: str) -> str:
        """Return how to enable an unknown name that an installed distribution offers; "" without an offer."""
        return _in_use[0].explain(self.group, name) if _in_use and self._extensible else ""

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return name in self._own or any(each.name == name for each in self._more())

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._own, *(each.name for each in self._more()))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _more(self) -> Sequence[Registered]:
        return _in_use[0].enabled(self.group) if _in_use and self._extensible else ()

    def _require(self, name: str) -> Registered:
        if name in self._own:
            return self._own[name]
        found = [each for each in self._more() if each.name == name]
        if len(found) > 1:
            owners = " and ".join(sorted(each.distribution for each in found))
            raise ConfigError(f"the {self.kind} {name!r} is offered by {owners}", hint="enable only one of them")
        if not found:
            guess = nearest(name, self)
            known = guess if guess.startswith("known") else f"{guess} known: {', '.join(self)}"
            raise NotFoundError(f"unknown {self.kind} {name!r}", hint=self.explain(name) or known)
        return found[0]


def _load(found: Registered, kind: str) -> object:
    try:
        if not isinstance(found.target, str):
            return found.target()
        module, _, attribute = found.target.partition(":")
        value: object = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
        return value() if isinstance(value, type) else value
    # An extension can fail in any way while it is imported.
    except Exception as error:
        if found.distribution:
            raise ConfigError(
                f"the {kind} {found.name!r} of the distribution {found.distribution!r} cannot be loaded: "
                f"{type(error).__name__}: {error}",
                hint=f"repair or update {found.distribution}, or remove it from extensions.enabled",
            ) from error
        raise


_find_registry: list[Callable[[str], Registry[Any]]] = []


def use_registries(find: Callable[[str], Registry[Any]]) -> None:
    """Let `registry_of` look up registries by `find`: names are also checked below the packages of their kinds."""
    _find_registry[:] = [find]


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of a kind whose names are values of configuration keys."""
    return _find_registry[0](kind)
