"""Programs without a known runner, and build tools, which are judged in the same way."""

from __future__ import annotations

import re

from chargehand.checks.runners.base import RunnableCheck, Runner
from chargehand.checks.runners.python import find_unittest_names
from chargehand.checks.stacks import Stack
from chargehand.core.text import late_pattern

_CTEST = late_pattern(r"^ *\d+/\d+ Test +#\d+: (\S+) \.+ *(?:Passed|\*\*\*(?!Not Run|Skipped)\w+)", re.MULTILINE)


class OtherProgram(Runner):
    """Any other program, judged by its exit code; the tests that it ran are read from its reports or output."""

    name = "plain"
    is_known = False
    name_form = late_pattern(r"(?:(?P<place>[^\[({]*)::)?(?P<own>[^\[({]*)(?P<variant>.*)", re.DOTALL)

    def find_names(self, text: str) -> list[str]:
        """Return the tests that ctest names, or unittest if it was started with `-v`."""
        return _CTEST.findall(text) or find_unittest_names(text)


class Maven(OtherProgram):
    """Maven, which is detected but then judged like any program, by the reports of its plugins.

    No command counts as starting it: `mvn test && cargo test` is a cargo command.
    """

    name = "maven"
    ecosystem = "jvm"

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return its command if a project has test files."""
        if stack.has("pom.xml") and (tests := stack.tests("jvm")):
            return RunnableCheck("mvn -B test", f"pom.xml and {tests[0]}")
        return None
