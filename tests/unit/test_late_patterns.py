"""Patterns compiled at their first use: they behave like compiled patterns, and each of them compiles."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import cast

import pytest

import chargehand
from chargehand.core.text import late_pattern


def test_a_late_pattern_behaves_like_a_compiled_pattern() -> None:
    late, made = late_pattern(r"(a+)b", re.IGNORECASE), re.compile(r"(a+)b", re.IGNORECASE)
    assert late.pattern == made.pattern
    assert late.flags == made.flags
    assert late.findall("ab AAB") == made.findall("ab AAB")
    assert late.sub(r"<\1>", "xaab") == made.sub(r"<\1>", "xaab")
    assert late.groups == 1


def test_a_late_pattern_is_compiled_at_first_use() -> None:
    late = late_pattern("(")
    with pytest.raises(re.error):
        late.match("x")


def _found(value: object, depth: int = 3) -> Iterator[re.Pattern[str]]:
    """Yield the patterns in a constant, including those in tables and pairs."""
    if isinstance(value, type(late_pattern(""))):
        yield cast("re.Pattern[str]", value)
    elif isinstance(value, (dict, tuple, list)) and depth:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _found(each, depth - 1)


def _constants() -> Iterator[re.Pattern[str]]:
    for module in pkgutil.walk_packages(chargehand.__path__, "chargehand."):
        if not module.name.endswith("__main__"):
            for value in list(vars(importlib.import_module(module.name)).values()):
                yield from _found(value)


def test_every_pattern_of_the_program_can_be_compiled() -> None:
    tried = [pattern.groups for pattern in _constants()]
    assert len(tried) > 200
