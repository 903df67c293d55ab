"""The conformance suite: the promises of every sandbox tier, as checks that its author runs.

pytest collects them from a subclass with the fixture `open_sandbox`, with `asyncio_mode = "auto"`. They use only
`sh`, the usual small programs and `python3` inside, and look at the workspace from the host.
"""

from __future__ import annotations

from chargehand.testing.sandbox.commands import CommandContract
from chargehand.testing.sandbox.ends import EndContract
from chargehand.testing.sandbox.freezing import FreezeContract
from chargehand.testing.sandbox.limits import LimitContract
from chargehand.testing.sandbox.observation import ObservationContract


class SandboxContract(CommandContract, EndContract, FreezeContract, LimitContract, ObservationContract):
    """All promises of a sandbox, one test each; subclass it and provide the fixture `open_sandbox`.

    `open_sandbox(**limits)` opens a sandbox on a fresh, empty workspace, with the given fields of `SandboxLimits`,
    and returns an `OpenedSandbox`.
    """
