"""Rust tests inside code: find modules under `#[cfg(test)]`, and put those of one version into another."""

from __future__ import annotations

import re

from msgspec import Struct

from chargehand.core.text import late_pattern

# Braces in these do not count. A quote begins a character only if another ends it: lifetimes have one quote.
_NO_CODE = late_pattern(
    r"""\b(?:b|c)?r(?P<marks>#*)".*?"(?P=marks)|"(?:\\.|[^"\\])*"|'(?:\\[^\n']{1,12}|\\'|[^'\\\n])'"""
    r"""|//[^\n]*|/\*.*?\*/""",
    re.DOTALL,
)
_MODULE = late_pattern(
    r"#\[\s*cfg\s*\((?P<condition>[^\]\n]*)\)\s*\]\s*(?:#\[[^\]\n]*\]\s*)*"
    r"(?:pub(?:\s*\([^)\n]*\))?\s+)?mod\s+(?P<name>\w+)\s*\{"
)
# Declarations for tests alone: a module in a separate file, or an import.
_TEST_ONLY = late_pattern(
    r"#\[\s*cfg\s*\((?P<condition>[^\]\n]*)\)\s*\]\s*(?:#\[[^\]\n]*\]\s*)*"
    r"(?:pub(?:\s*\([^)\n]*\))?\s+)?(?:mod|use)\s[^;{]*;"
)
_DECLARATION = late_pattern(r"\bmod\s+\w+\s*;")
_BRACE = late_pattern(r"[{}]")
_TEST = late_pattern(r"(?<!\w)test(?!\w)")


class TestModule(Struct, frozen=True):
    """A test module: its name with its number among those of that name, its first offset and its end."""

    __test__ = False  # pytest would collect a class of this name

    key: tuple[str, int]
    start: int
    end: int


def find_test_modules(text: str) -> list[TestModule]:
    """Return the test modules of a file in order, with their attributes; unclosed modules are left out."""
    code = _NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    found = list[TestModule]()
    for head in _MODULE.finditer(code):
        if (found and head.start() < found[-1].end) or "not" in head["condition"]:
            continue
        if not _TEST.search(head["condition"]):
            continue
        depth = 1
        for brace in _BRACE.finditer(code, head.end()):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                number = sum(each.key[0] == head["name"] for each in found)
                found.append(TestModule((head["name"], number), head.start(), brace.end()))
                break
    return found


def read_test_modules(text: str) -> str:
    """Return the text of a file's test modules."""
    return "\n".join(text[module.start : module.end] for module in find_test_modules(text))


def split_code_and_tests(text: str) -> tuple[str, str]:
    """Return a file's code, without comments, literals and mere module declarations, and its tests."""
    tests, code, last = list[str](), list[str](), 0
    for module in find_test_modules(text):
        code.append(text[last : module.start])
        tests.append(text[module.start : module.end])
        last = module.end
    rest = "\n".join([*code, text[last:]])
    for found in list(_TEST_ONLY.finditer(rest)):
        if _TEST.search(found["condition"]) and "not" not in found["condition"]:
            tests.append(found[0])
            rest = rest.replace(found[0], "", 1)
    return _DECLARATION.sub("", _NO_CODE.sub(" ", rest)), "\n".join(tests)


def lay_tests_over(base: str, text: str) -> str:
    """Return the text with the test modules of `base`: each replaces its counterpart, or is added at the end.

    Modules that only the text has stay: they add tests, and do not keep others from running.
    """
    wanted = {module.key: base[module.start : module.end] for module in find_test_modules(base)}
    parts, last = list[str](), 0
    for module in find_test_modules(text):
        parts += [text[last : module.start], wanted.pop(module.key, text[module.start : module.end])]
        last = module.end
    parts += [text[last:], *(f"\n{module}\n" for module in wanted.values())]
    return "".join(parts)
