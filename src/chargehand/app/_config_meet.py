"""How the repository's file joins what the user's sources say of one key.

`trusted=False` gives what may be had without trust, `trusted=True` what the repository's file asks for; where
the two differ, the file asks for more than it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from chargehand.app._config_areas import meet_areas
from chargehand.app._config_keys import Key
from chargehand.app._config_model import Said
from chargehand.app._config_values import fail
from chargehand.core.errors import ConfigError
from chargehand.network.allow_list import meet_rules, without_grants

DEFAULT = "default"


def joined(key: Key, user: Said | None, repository: Said | None, *, trusted: bool) -> Said:
    """Return the value in force of one key, with all who contributed to it; `None` is a silent source."""
    if repository is None:
        return user or default_of(key)
    return _MEETS[key.meet](key, user, repository, trusted)


def narrowed(key: Key, lower: Said, option: Said) -> Said:
    """Return what an option makes of what the user's other sources say: lists of areas only get narrower."""
    if key.meet == "union" or (key.meet == "intersect" and key.empty == "all"):
        return joined(key, lower, option, trusted=True)
    return option


def default_of(key: Key) -> Said:
    """Return the key's default as a source of its own."""
    return Said(value=key.default, origin=DEFAULT, place=DEFAULT)


def _both(user: Said, repository: Said, value: Any) -> Said:
    return Said(value=value, origin=f"{user.origin} + {repository.origin}", place=repository.place)


def _minimum(key: Key, user: Said | None, repository: Said, trusted: bool) -> Said:
    if user is not None:
        return _both(user, repository, min(_number(user), _number(repository)))
    narrower = key.default is None or _number(repository) <= key.default
    return repository if trusted or narrower else default_of(key)


def _number(said: Said) -> float:
    assert isinstance(said.value, int | float)
    return said.value


def _intersection(key: Key, user: Said | None, repository: Said, trusted: bool) -> Said:
    if key.empty == "all":
        return _areas(user, repository) if user is not None else repository
    if user is not None:
        return _both(user, repository, meet_rules(_items(user), _items(repository)))
    # Even trusted it grants nothing that is not public: only the user's own word can.
    repository = replace(repository, value=without_grants(_items(repository)))
    return repository if trusted or not repository.value else default_of(key)


def _areas(user: Said, repository: Said) -> Said:
    try:
        return _both(user, repository, meet_areas(_items(user), _items(repository)))
    except ConfigError as error:
        raise fail(f"{user.place} and {repository.place}", error.message, error.hint) from error


def _items(said: Said) -> tuple[str, ...]:
    value: Any = said.value
    return tuple(value)


def _union(key: Key, user: Said | None, repository: Said, trusted: bool) -> Said:
    if user is None:
        return repository
    return _both(user, repository, _unique((*_items(user), *_items(repository))))


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _said_by_repository(key: Key, user: Said | None, repository: Said, trusted: bool) -> Said:
    return user or repository


def _said_by_user(key: Key, user: Said | None, repository: Said, trusted: bool) -> Said:
    if user is not None:
        return user
    return repository if trusted or repository.value == key.default else default_of(key)


_MEETS: dict[str, Callable[[Key, Said | None, Said, bool], Said]] = {
    "min": _minimum,
    "intersect": _intersection,
    "union": _union,
    "repo": _said_by_repository,
    "user": _said_by_user,
}
