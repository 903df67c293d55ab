"""The useful part of a failed check's output: the failed tests, each with the lines that explain the failure.

The code under test controls its output, so these excerpts decide nothing: they are only shown. Lines are matched
one by one and bounded, so that no output makes this slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from chargehand.core.text import late_pattern, printable
from chargehand.sandbox.contract import WORKSPACE

# A line of minified code or of a serialised object is not a readable reason.
_LONGEST = 240
_MOST_LINES = 6
_MOST_TESTS = 50
# Runners report failures at the end; an output that is crafted to be slow is read only up to this many lines.
_MOST_READ = 5000
# Without a named test: this many lines that look like errors, else the last ones.
_TAIL_LINES = 10


class FailureExcerpt(Struct, frozen=True, kw_only=True):
    """A failed test by its runner's name ("" without a name), and the lines that explain it."""

    name: str
    lines: tuple[str, ...]


class _Form(Struct, frozen=True, kw_only=True):
    """The format in which one runner reports failures: a block of lines for each, from `start` to `end`.

    `keep` selects lines of a mostly noisy block, otherwise `noise` drops lines. `place` finds the failing line: in
    a traceback the last match, with `innermost_first` the first, and then a block without lines is only a suite.
    `failed` names the failed tests if passed ones have blocks too; `title` finds full names on separate lines, for
    runners whose blocks abbreviate them.
    """

    start: re.Pattern[str]
    end: re.Pattern[str]
    keep: re.Pattern[str] | None = None
    noise: re.Pattern[str] = late_pattern(r"(?!)")
    place: re.Pattern[str] = late_pattern(r"(?!)")
    failed: re.Pattern[str] | None = None
    title: re.Pattern[str] | None = None
    innermost_first: bool = False

    def split_blocks(self, lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield the blocks of lines, each with the name of the failed test."""
        name = ""
        block = list[str]()
        for line in lines:
            begins = self.start.match(line)
            if (begins or self.end.match(line)) and name:
                yield name, block
                name = ""
            if begins:
                groups = begins.groupdict()
                name, block = groups.get("name") or groups.get("failed") or line, []
                if owner := groups.get("owner"):
                    name = f"{owner.removesuffix(f'.{name}')}.{name}"
            elif name:
                block.append(line)
        if name:
            yield name, block

    def pick_lines(self, block: Sequence[str]) -> list[str]:
        """Return the lines of a block that explain the failure, and its place."""
        places = [match for line in block if (match := self.place.match(line))]
        picked = []
        for line in block:
            if self.keep is not None:
                kept = self.keep.match(line)
                line = kept.groupdict().get("text", line) if kept else ""
            elif self.noise.match(line):
                continue
            if line.strip():
                picked.append(line.strip())
        if self.innermost_first and not picked:
            return []
        # The place of the failure is worth more than a sixth line.
        place = (places[0] if self.innermost_first else places[-1]) if places else None
        at = [f"at {place['file'].removeprefix(f'{WORKSPACE}/')}:{place['line']}"] if place else []
        return [*picked[: _MOST_LINES - len(at)], *at]


def _form(start: str, end: str, *, innermost_first: bool = False, **patterns: str) -> _Form:
    more = {name: late_pattern(pattern) for name, pattern in patterns.items()}
    return _Form(start=late_pattern(start), end=late_pattern(end), innermost_first=innermost_first, **more)


_AT_LINE = r"(?P<file>[\w./@+-]{1,200}):(?P<line>\d{1,7})"
_FORMS = (
    # pytest
    _form(
        r"_{2,} (?:ERROR (?:at (?:setup|teardown) of|collecting) )?(?P<name>\S.*?) _{2,}$",
        r"={2,} .* ={2,}$|_{2,} .* _{2,}$",
        keep=r"E {2,}(?P<text>.*)",
        place=rf"{_AT_LINE}: ",
        title=r"(?:FAILED|ERROR) (?P<name>\S+?\.py(?:::\S.*?)?)(?: - (?P<text>.*))?$",
    ),
    # unittest
    _form(
        r"(?:FAIL|ERROR): (?P<name>\w+) \((?P<owner>[\w.]+)\)",
        r"={20,}$|Ran \d+ tests? in ",
        noise=r"\s|-{20,}$|Traceback \(most recent call last\):$",
        place=r'  File "(?P<file>(?!.*/(?:unittest|asyncio)/)[^"]+)", line (?P<line>\d+)',
    ),
    # go test -v prints a test's output before its result, and without -v after it
    _form(
        r"=== (?:RUN|NAME|CONT) +(?P<name>\S+)$|\s*--- FAIL: (?P<failed>\S+)",
        r"\s*--- (?:PASS|FAIL|SKIP): |=== |FAIL\b|ok\b",
        keep=r"\s+\S+\.go:\d+: |\s{6,}\S|panic: ",
        failed=r"\s*--- FAIL: (?P<name>\S+)",
    ),
    # cargo
    _form(
        r"---- (?P<name>\S+) stdout ----$",
        r"---- |failures:$|test result: ",
        noise=r"\s*$|note: |thread '|stack backtrace:|\s+\d+: |\s+at ",
        place=rf".*\bpanicked at (?:'.*', )?{_AT_LINE}",
    ),
    # node --test: TAP, then the list at the end of its other form
    _form(
        r"\s*not ok \d+ - (?P<name>.+?)(?: # .*)?$",
        r"\s*\.\.\.$|\s*(?:not )?ok \d+ ",
        innermost_first=True,
        noise=r"\s*$|\s+---|\s+(?:duration_ms|type|location|failureType|code|name|operator|stack):"
        r"|\s+error: [|>]|.*(?:\d+ subtests? failed|node:internal|file://|\((?:node:|/|<anonymous>))|\s+at ",
        place=rf"\s+location: '{_AT_LINE}",
    ),
    _form(
        r"\s*[✖✗] (?!failing tests:)(?P<name>.+?)(?: \([\d.]+ms\))?$",
        r"test at |\s*[✔✓✖✗▶ℹ#] ",
        innermost_first=True,
        noise=r"\s*$|\s+at |\s+(?:generatedMessage|code|operator|diff|cause):|\s*[{}]|\s*'?\d+ subtests? failed",
        place=rf"\s+at .*?\(?(?:file://)?{_AT_LINE}(?::\d+)?\)?$",
    ),
    # jest
    _form(
        r"\s*● (?P<name>\S.*)$",
        r"\s*● |(?:Test Suites|Tests): |(?:PASS|FAIL) ",
        innermost_first=True,
        noise=r"\s*$|\s*>? *\d* \||\s+at ",
        place=rf"\s+at .*?\(?{_AT_LINE}(?::\d+)?\)?$",
    ),
    # vitest
    _form(
        r" *FAIL +(?P<name>\S+ > .+)$",
        r" *FAIL |⎯{3,}",
        innermost_first=True,
        noise=r"\s*$|\s*\d* *\||\s*❯|\s*- Expected|\s*\+ Received",
        place=rf"\s*❯ {_AT_LINE}",
    ),
    # gradle, and maven's surefire
    _form(
        r"(?P<name>\S+ > .+?)(?:\(\))? FAILED$",
        r"\S",
        noise=r"\s*$|\s+at ",
        place=rf"\s+at {_AT_LINE}$",
    ),
    _form(
        r"(?:\[ERROR\] )?(?!Tests run:)(?P<name>[\w.$]+)\b.*<<< (?:FAILURE|ERROR)!",
        r"\[|$",
        noise=r"\s+at ",
    ),
    # rspec, phpunit, mocha: numbered
    _form(
        r" {0,2}\d+\) (?P<name>\S.*)$",
        r"\s*\d+\) |Finished in |FAILURES!|ERRORS!",
        innermost_first=True,
        noise=r"\s*$|\s+at |\s*# |/\S+:\d+$|\s*[+-] (?:expected|actual)",
        place=rf"(?:\s*# |\s+at .*\()?(?:\./)?{_AT_LINE}\b",
    ),
    # ctest
    _form(r"\s*\d+ - (?P<name>\S+) \((?:Failed|Timeout|SEGFAULT|Not Run).*\)$", r"", keep=r"(?!)"),
)  # fmt: skip
_ERROR = late_pattern(
    r".{0,200}(?:\b(?:error|Error|ERROR|FAIL(?:ED|URE)?|fatal|panic)\b|Exception\b|No such file|not found)"
    r"|[\w./@+-]{1,200}:\d{1,7}(?::\d+)?:? "
)

_PASSED = late_pattern(
    r"\s*(?:ok \d+\b|[✓✔√]\s|PASS\b|--- PASS:|\[\s*OK\s*\])|test .{1,200} \.\.\. ok$|.{1,200} PASSED\b"
)


def read_failures(output: str) -> tuple[FailureExcerpt, ...]:
    """Return the failures reported in an output; one without a name if its tests cannot be separated.

    Empty for an empty output.
    """
    lines = [printable(line[:_LONGEST]).rstrip() for line in output.splitlines()[-_MOST_READ:]]
    for form in _FORMS:
        reasons: dict[str, tuple[str, ...]] = {}
        for name, block in form.split_blocks(lines):
            # A repetition at the end adds nothing, unless all tests have blocks: those come in pieces.
            if len(reasons) < _MOST_TESTS and (form.failed is not None or not reasons.get(name)):
                reasons[name] = (*reasons.get(name, ()), *form.pick_lines(block))[:_MOST_LINES]
        if form.failed is not None:
            failed = [match["name"] for line in lines if (match := form.failed.match(line))]
            parents = {name.rpartition("/")[0] for name in failed}
            # A test whose subtests failed has no separate message.
            reasons = {name: reasons.get(name, ()) for name in failed if reasons.get(name) or name not in parents}
        elif form.innermost_first:
            reasons = {name: found for name, found in reasons.items() if found} or reasons
        elif form.title is not None:
            # By the names in the summary, which the runner accepts on its command line.
            full = dict[str, tuple[str, ...]]()
            for match in (match for line in lines if (match := form.title.match(line))):
                name = match["name"]
                short = ".".join(name.split("::")[1:]) or name
                text = (match["text"],) if match["text"] else ()
                full[name] = reasons.get(short) or reasons.get(name) or text
            reasons = full or reasons
        if reasons:
            return tuple(
                FailureExcerpt(name=name, lines=found) for name, found in [*reasons.items()][:_MOST_TESTS]
            )
    told = [line for line in lines if line.strip()]
    wrong = [line for line in told if _tells_error(line)] or told
    # The first error is often the cause of later ones; without errors the last lines show the end.
    shown = wrong[:_TAIL_LINES] if wrong is not told else told[-_TAIL_LINES:]
    return (FailureExcerpt(name="", lines=tuple(shown)),) if shown else ()


def error_lines(output: str) -> list[str]:
    """Return all lines that look like errors, in order, each cut to 240 characters."""
    lines = (printable(line[:_LONGEST]).strip() for line in output.splitlines())
    return [line for line in lines if _tells_error(line)]


def _tells_error(line: str) -> bool:
    # A passed test may have a name such as "throws an error".
    return bool(_ERROR.match(line)) and not _PASSED.match(line)


def end_of_output(output: str) -> tuple[str, ...]:
    """Return the last lines of an output, without JSON events if there are other lines."""
    told = [printable(line[:_LONGEST]).rstrip() for line in output.splitlines()[-1000:] if line.strip()]
    plain = [line for line in told if not line.lstrip().startswith(("{", "["))]
    return tuple((plain or told)[-_TAIL_LINES:])
