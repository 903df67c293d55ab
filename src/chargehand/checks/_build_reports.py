"""The JUnit reports that build tools leave in a workspace while a check runs."""

from __future__ import annotations

import asyncio
import secrets

from msgspec import Struct

from chargehand.sandbox.contract import WORKSPACE, Sandbox

# Where Maven (surefire, failsafe) and gradle put a report for each class.
_COLLECT = """
find . \\( -name .git -o -name node_modules -o -name .chargehand \\) -prune -o -type f \\( \\
  -path '*/target/surefire-reports/TEST-*.xml' -o -path '*/target/failsafe-reports/TEST-*.xml' \\
  -o -path '*/build/test-results/*/TEST-*.xml' \\) -newer "$1" \\
  -exec sh -c 'for each; do printf "%s\\0" "$each"; cat -- "$each"; printf "\\0"; done' sh {} +
status=$?
rm -f -- "$1"
exit $status
"""
# Files get the time of the last tick, at most 10 ms ago: a file written within the mark's own tick would not be
# newer than it.
_TICK_SECONDS = 0.02
_MAX_BYTES = 64_000_000


class BuildReports(Struct, frozen=True):
    """Distinguishes a check's reports from older ones by the time of a file, the `mark`.

    `seconds` is the limit for each command in the sandbox.
    """

    sandbox: Sandbox
    mark: str
    seconds: float

    @classmethod
    async def begin(cls, sandbox: Sandbox, *, timeout: float) -> BuildReports:
        """Set the mark, before the check starts; `timeout` is in seconds."""
        mark = f"/tmp/chargehand-report-{secrets.token_hex(8)}.mark"
        await sandbox.exec(["touch", "--", mark], timeout=timeout)
        await asyncio.sleep(_TICK_SECONDS)
        return cls(sandbox, mark, timeout)

    async def collect(self) -> dict[str, bytes]:
        """Return the reports written since the mark, by path; empty if they are too large together."""
        argv = ["sh", "-c", _COLLECT, "sh", self.mark]
        result = await self.sandbox.exec(argv, cwd=WORKSPACE, timeout=self.seconds, output_limit=_MAX_BYTES)
        if result.exit_code != 0 or result.truncated:
            return {}
        # XML cannot contain NUL.
        parts = result.stdout.split(b"\0")[:-1]
        pairs = zip(parts[::2], parts[1::2], strict=False)
        return {path.decode("utf-8", "replace").removeprefix("./"): content for path, content in pairs}

    async def discard(self) -> None:
        """Remove the mark without reading any report."""
        await self.sandbox.exec(["rm", "-f", "--", self.mark], timeout=self.seconds)
