"""Programs that are no runner we know, and build tools, which are judged as those are."""

from __future__ import annotations

import re

from chargehand.checks.runners.base import RunnableCheck, Runner
from chargehand.checks.runners.python import find_unittest_names
from chargehand.checks.stacks import Stack
from chargehand.core.text import late_pattern

_CTEST = late_pattern(r"^ *\d+/\d+ Test +#\d+: (\S+) \.+ *(?:Passed|\*\*\*(?!Not Run|Skipped)\w+)", re.MULTILINE)


class OtherProgram(Runner):
    """Any other program: its exit code judges; which tests it ran is read from whatever it leaves behind."""

    name = "plain"
    is_known = False
    name_form = late_pattern(r"(?:(?P<place>[^\[({]*)::)?(?P<own>[^\[({]*)(?P<variant>.*)", re.DOTALL)

    def find_names(self, text: str) -> list[str]:
        """Return the tests that ctest names, or unittest if it was started with `-v`."""
        return _CTEST.findall(text) or find_unittest_names(text)


class Maven(OtherProgram):
    """Maven, which is detected and then judged as any program, by the reports of its plugins.

    No line is taken to start it: `mvn test && cargo test` is a line of cargo.
    """

    name = "maven"
    ecosystem = "jvm"

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return its command where a project has test files."""
        if stack.has("pom.xml") and (tests := stack.tests("jvm")):
            return RunnableCheck("mvn -B test", f"pom.xml and {tests[0]}")
        return None
