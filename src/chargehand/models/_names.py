"""Gemini takes its fields in two spellings: `inlineData` and `inline_data`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_UNDERSCORE = re.compile(r"_([a-z])")
_AS_THEY_ARE = frozenset({"args", "response", "parameters", "parametersJsonSchema", "responseSchema"})
_USERS_OWN = _AS_THEY_ARE | {"responseJsonSchema", "labels"}
"""What holds the user's own names."""


def camel(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with its fields spelt as the documentation has them."""
    return {name: _value(name, value) for name, value in ((_spelt(key), one) for key, one in body.items())}


def _spelt(key: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), key)


def _value(name: str, value: Any) -> Any:
    if name in _USERS_OWN:
        return value
    if isinstance(value, dict):
        return camel(value)
    return [_value("", one) for one in value] if isinstance(value, list) else value
