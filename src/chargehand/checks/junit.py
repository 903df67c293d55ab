"""JUnit XML as pytest writes it, read with a parser that rejects document types and so has no entities."""

from __future__ import annotations

import re
from xml.parsers import expat

from msgspec import Struct, field

from chargehand.core.text import late_pattern, printable

MAX_REPORT = 32_000_000
_MAX_DEPTH = 20
_MAX_FAILING = 50
_MAX_MESSAGE = 2_000
_MAX_TRACEBACK = 20_000
_BAD = frozenset({"failure", "error"})
_PLACE = late_pattern(r"^([^\s:][^\n:]{0,500}):(\d{1,9}):", re.MULTILINE)


class FailingTest(Struct, frozen=True, kw_only=True):
    """A test that did not pass, with the place of failure if the report names it.

    `outside` means that its set-up or tear-down failed, not the test's own code.
    """

    name: str
    message: str
    file: str | None = None
    line: int | None = None
    outside: bool = False


class TestCounts(Struct, frozen=True, kw_only=True):
    """The content of a report: `ran` and `names` omit skipped tests; `bad` counts failures and errors.

    `bad_names` are the failed tests, and the modules that could not be collected, each once; `failing` has details
    of the first of them.
    """

    __test__ = False  # pytest would collect a class of this name

    ran: int
    skipped: int
    bad: int
    collection_errors: int
    failing: tuple[FailingTest, ...]
    names: tuple[str, ...] = ()
    bad_names: tuple[str, ...] = ()


class ReportError(ValueError):
    """A report that is not JUnit XML, declares a document type, or is too large."""


def read_junit(content: bytes) -> TestCounts:
    """Return the counts of a report; raises `ReportError`."""
    if len(content) > MAX_REPORT:
        raise ReportError(f"the report is larger than {MAX_REPORT} bytes")
    reader = _Reader()
    try:
        reader.parser().Parse(content, True)
    except expat.ExpatError as error:
        raise ReportError(f"the report is not XML: {error}") from error
    if not reader.is_report:
        raise ReportError("the report has no <testsuite>")
    return reader.counts()


class _Reader(Struct):
    """Counts the test cases of one report: expat calls its methods for elements and text."""

    is_report: bool = False
    _depth: int = 0
    _case: dict[str, str] = field(default_factory=dict)
    _outcome: str = ""
    _message: str = ""
    _text: list[str] = field(default_factory=list)
    _inside: str = ""
    _ran: int = 0
    _skipped: int = 0
    _bad: int = 0
    _uncollected: int = 0
    _failing: list[FailingTest] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _bad_names: dict[str, None] = field(default_factory=dict)

    def parser(self) -> expat.XMLParserType:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self.start_element
        parser.EndElementHandler = self.end_element
        parser.CharacterDataHandler = self.add_text
        # Entities are declared in a document type: without one a report cannot grow by expansion.
        parser.StartDoctypeDeclHandler = self.refuse_doctype
        return parser

    def counts(self) -> TestCounts:
        return TestCounts(
            ran=self._ran,
            skipped=self._skipped,
            bad=self._bad,
            collection_errors=self._uncollected,
            failing=tuple(self._failing),
            names=tuple(self._names),
            bad_names=tuple(self._bad_names),
        )

    def refuse_doctype(self, *_: object) -> None:
        raise ReportError("the report declares a document type")

    def start_element(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ReportError("the report is nested too deeply")
        self.is_report |= name == "testsuite"
        if name == "testcase":
            self._case, self._outcome, self._message = attributes, "", ""
            self._text.clear()
        elif name in _BAD or name == "skipped":
            self._inside = name
            if self._outcome not in _BAD:
                self._outcome, self._message = name, attributes.get("message", "")

    def add_text(self, data: str) -> None:
        if self._inside in _BAD:
            self._text.append(data)

    def end_element(self, name: str) -> None:
        self._depth -= 1
        if name == self._inside:
            self._inside = ""
        if name != "testcase":
            return
        if self._outcome == "skipped":
            self._skipped += 1
            return
        # pytest reports a module that it could not import as a test case with an error.
        uncollected = self._outcome == "error" and "collection failure" in self._message
        self._uncollected += uncollected
        self._ran += not uncollected
        if not uncollected:
            self._names.append(self._read_name())
        if self._outcome in _BAD:
            self._bad += 1
            self._bad_names[self._read_name()] = None
            if len(self._failing) < _MAX_FAILING:
                # A traceback names the failing place last, below the calls that led to it.
                places = _PLACE.findall("".join(self._text)[-_MAX_TRACEBACK:])
                file, line = places[-1] if places else (self._case.get("file"), self._case.get("line"))
                self._failing.append(
                    FailingTest(
                        name=self._read_name(),
                        message=printable(self._message)[:_MAX_MESSAGE],
                        file=None if file is None else printable(file),
                        line=int(line) if line is not None and line.isdecimal() else None,
                        # pytest writes <error> if a fixture failed, <failure> if the test itself did.
                        outside=self._outcome == "error",
                    )
                )

    def _read_name(self) -> str:
        owner, name = self._case.get("classname", ""), self._case.get("name", "")
        return printable(f"{owner}::{name}" if owner else name)
