"""Read the tests of files in other languages, line by line with patterns: linear in the file's size."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.checks.paths import Language, language_of
from chargehand.checks.suites.facts import Case, Suite
from chargehand.checks.suites.python import python_suite
from chargehand.core.text import late_pattern

# Characters of a line that are examined; a generated file has lines of megabytes.
_MAX_LINE = 2_000
_C_COMMENT = late_pattern(
    r"""("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*(?:`|\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)""",
    re.DOTALL,
)
# Lifetimes ('a) and character literals make single quotes useless for finding Rust's strings.
_RUST_COMMENT = late_pattern(r"""("(?:\\.|[^"\\])*(?:"|\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL)
_RUBY_COMMENT = late_pattern(r"""("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|#[^\n]*""")

_ASSERT = late_pattern(
    r"\bassert\w*!?|\bexpect\s*\(|\bshould\b|\brequire\.[A-Z]|\bt\.(?:Error|Errorf|Fatal|Fatalf|Fail|FailNow)\b"
)
_NUMBER = r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)f?"
# Bounded, so that a hostile line costs no more than its length times a constant.
_ARGUMENTS = r"[^()]{0,200}(?:\([^()]{0,100}\)[^()]{0,100}){0,4}"
_LAST = r"\(" + _ARGUMENTS + r",\s*" + _NUMBER + r"\s*\)"
# Tolerances by language: a name, and a pattern of the value, often the last argument of a call.
_LOOSER: dict[Language, tuple[tuple[str, re.Pattern[str]], ...]] = {
    "javascript": (("delta", late_pattern(r"\b(?:closeTo|approximately|assert\.closeTo)\s*" + _LAST)),),
    "go": (("delta", late_pattern(r"\bIn(?:Delta|Epsilon)\w*" + _LAST)),),
    "rust": (("epsilon", late_pattern(r"\b(?:epsilon|max_relative)\s*=\s*" + _NUMBER)),),
    "jvm": (("within", late_pattern(r"\b(?:within|offset|byLessThan|withPercentage)\(\s*" + _NUMBER)),),
    "ruby": (
        ("within", late_pattern(r"\bbe_within\s*\(?\s*" + _NUMBER)),
        ("delta", late_pattern(r"\bassert_in_(?:delta|epsilon)\b.{0,200},\s*" + _NUMBER + r"\s*\)?\s*$")),
    ),
}
_DIGITS = late_pattern(
    r"\.toBeCloseTo\([^,()]{0,200}(?:\([^()]{0,100}\)[^,()]{0,100}){0,4}(?:,\s*([0-9]{1,3})\s*)?\)"
)
_USUAL_DIGITS = 2.0  # of jest's toBeCloseTo
_JS_CASE = late_pattern(r"""(?:^|[^\w.$])([xf]?(?:it|test))((?:\.\w+)*)\s*\(\s*(?:(['"`])(.*?)\3)?""")
_JS_GROUP = late_pattern(r"(?:^|[^\w.$])(?:x(?:describe|context)|(?:describe|context|suite)\.skip)\b")
_JS_FOCUS = late_pattern(
    r"(?:^|[^\w.$])(?:(?:it|test|describe|context|suite)(?:\.\w+)*\.only|f(?:it|describe|context))\b"
)
_JS_OFF = late_pattern(r"\.(?:skip|todo|fixme|failing|fails|skipIf)\b")
_GO_CASE = late_pattern(r"^func\s+((?:Test|Fuzz|Example)\w*)\s*\(")
_GO_SKIP = late_pattern(r"\b\w+\.(?:Skip|Skipf|SkipNow)\(")
_GO_IGNORED = late_pattern(r"^//\s*(?:go:build|\+build)\b.*")
_RUST_FN = late_pattern(r"\bfn\s+(\w+)")
_RUST_TEST = late_pattern(r"#\[\s*(?:\w+::)*(?:test|rstest|test_case|wasm_bindgen_test)\b")
_RUST_OFF = late_pattern(r"#\[\s*(?:ignore|should_panic|cfg\()|cfg_attr\([^)]*ignore")
_JVM_TEST = late_pattern(r"@(?:Test|ParameterizedTest|RepeatedTest|Property)\b")
_JVM_OFF = late_pattern(r"@(?:Disabled\w*|Ignore\w*)\b")
_JVM_FN = late_pattern(r"\b(?:void|fun)\s+(`[^`]+`|\w+)\s*\(")
_JVM_CLASS = late_pattern(r"\bclass\s+\w+")
_RUBY_CASE = late_pattern(r"""^\s*(?:def\s+(test_\w+)|([xf]?)(?:it|specify|test)\s*\(?\s*(['"])(.*?)\3)""")
_RUBY_SKIP = late_pattern(r"^\s*(?:skip|pending)\b|\bskip:\s*true|\bxdescribe\b|\bxcontext\b")

# The name of a test that starts on a line (or `None`), and marks for it or for the current test.
_Found = tuple[str | None, tuple[str, ...]]


class _Above(Struct):
    """The lines above the next function: Rust's attributes or the JVM's annotations, which mark tests."""

    marks: list[str] = field(default_factory=list)
    is_test: bool = False

    def read_rust(self, line: str) -> Iterator[_Found]:
        """Yield the test that a line of Rust begins, if an attribute above marks it."""
        text = line.strip()
        if text.startswith("#["):
            self.marks.append(text)
        if not (found := _RUST_FN.search(line)):
            # Attributes apply to the item below them; empty lines do not separate the two.
            if text and not text.startswith("#["):
                self.marks.clear()
            return
        attributes = " ".join(self.marks)
        self.marks.clear()
        if _RUST_TEST.search(attributes):
            yield found[1], tuple(match[0] for match in _RUST_OFF.finditer(attributes))

    def read_jvm(self, line: str) -> Iterator[_Found]:
        """Yield the test that a line of Java or Kotlin begins, if annotations mark it, or a class's marks."""
        self.is_test |= bool(_JVM_TEST.search(line))
        self.marks += [match[0] for match in _JVM_OFF.finditer(line)]
        # An annotation of a class keeps all its tests from running.
        if _JVM_CLASS.search(line) and self.marks:
            yield None, tuple(self.marks)
            self.marks.clear()
        if found := _JVM_FN.search(line):
            if self.is_test:
                yield found[1], tuple(self.marks)
            self.marks.clear()
            self.is_test = False


def suite_of(path: str, source: str) -> Suite | None:
    """Return the tests of a source file, `None` if its language is not supported."""
    language = language_of(path)
    if language is None:
        return None
    if language == "python":
        return python_suite(source)
    cases: list[Case] = []
    file_marks: list[str] = []
    above = _Above()
    for number, raw in enumerate(blank_comments(language, source).split("\n"), start=1):
        line = raw[:_MAX_LINE]
        if language == "go" and _GO_IGNORED.match(line):
            file_marks.append(line.strip())
        elif language == "javascript":
            # A focused test (`.only`) keeps all others of the file from running.
            found = (_JS_GROUP.search(line), _JS_FOCUS.search(line))
            file_marks += [match[0].strip(" \t({;,!") for match in found if match]
        for name, marks in _read_line(language, line, above):
            if name is not None:
                cases.append(Case(name=name, line=number, marks=marks))
            elif cases:
                cases[-1] = replace(cases[-1], marks=(*cases[-1].marks, *marks))
            else:
                file_marks += marks
        if cases and _ASSERT.search(line):
            cases[-1] = _add_assertion(cases[-1], language, line)
    return Suite(cases=tuple(cases), marks=tuple(file_marks))


def blank_comments(language: Language | None, source: str) -> str:
    """Return a source without comments, so that a test in one does not count; strings and line numbers stay."""
    pattern = {"rust": _RUST_COMMENT, "ruby": _RUBY_COMMENT}.get(language or "", _C_COMMENT)

    def keep(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        # In Go a comment can keep a file from being built.
        return found[0] if language == "go" and _GO_IGNORED.match(found[0]) else "\n" * found[0].count("\n")

    return pattern.sub(keep, source)


def _read_line(language: Language, line: str, above: _Above) -> Iterator[_Found]:
    match language:
        case "javascript":
            for found in _JS_CASE.finditer(line):
                off = found[1].startswith("x") or _JS_OFF.search(found[2])
                yield found[4] or "", ((found[1] + found[2],) if off else ())
        case "go":
            if case := _GO_CASE.match(line):
                yield case[1], ()
            if skip := _GO_SKIP.search(line):
                yield None, (skip[0].rstrip("("),)
        case "ruby":
            if case := _RUBY_CASE.match(line):
                yield case[1] or case[4], (("xit",) if case[2] == "x" else ())
            elif skip := _RUBY_SKIP.search(line):
                yield None, (skip[0].strip(),)
        case "rust":
            yield from above.read_rust(line)
        case _:
            yield from above.read_jvm(line)


def _add_assertion(case: Case, language: Language, line: str) -> Case:
    """Return the case with one more asserting line, and the tolerances of that line."""
    looser, stricter = dict(case.looser), dict(case.stricter)
    for name, pattern in _LOOSER.get(language, ()):
        for found in pattern.finditer(line):
            looser[name] = max(looser.get(name, 0.0), float(found[1].replace("_", "")))
    digits = [float(found[1] or _USUAL_DIGITS) for found in _DIGITS.finditer(line)]
    if digits:
        stricter["digits"] = min(*digits, stricter.get("digits", digits[0]))
    return replace(
        case,
        assertions=case.assertions + 1,
        looser=looser,
        stricter=stricter,
        approximations=case.approximations + len(digits),
    )
