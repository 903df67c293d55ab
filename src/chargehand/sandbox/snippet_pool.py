"""The `isolate` tier: a pool of kept-alive sandboxes that run each snippet in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import marshal
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from chargehand.core.errors import InfrastructureError, SandboxDiedError, TierUnavailableError, UsageError
from chargehand.core.ports import Bind, MountPlan
from chargehand.sandbox.contract import WORKSPACE, Sandbox, SandboxLimits, SandboxSpec
from chargehand.sandbox.inside import snippet
from chargehand.sandbox.probe import ProbePart
from chargehand.sandbox.process.launched_tier import compile_program
from chargehand.sandbox.process.layout import python_inside
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.seccomp import compile_snippet_filter, host_architecture
from chargehand.sandbox.snippets import (
    LANGUAGES,
    MOST_MEMORY_MB,
    Language,
    OutputLimitExceeded,
    SnippetEngineError,
    SnippetError,
    SnippetReport,
    SnippetResult,
    SnippetSpec,
)
from chargehand.sandbox.toolchain import Toolchain

_START_SECONDS = 30.0
_PROBE_SECONDS = 20.0
# Seconds after which the exec server ends a snippet if this process did not.
_AFTER = 10.0
_TRIES = 2
_ENGINE = "_quickjs"
_PRELUDE = Path(snippet.__file__).with_name("snippet_prelude.js")
_PLACES = "chargehand-snippets-"
_STALE_SECONDS = 60.0
_INSTALL = 'pip install "quickjs-ng>=0.17"'
_LIMITS = SandboxLimits(memory_mb=4 * MOST_MEMORY_MB, processes=16, tmp_mb=1, open_files=64, file_mb=1)
_NO_TOOLS = Toolchain(binds=(), path=(), id="isolate")


class SnippetPool:
    """Runs snippets of untrusted authors, up to `size` at once; use it as an asynchronous context manager.

    It has a separate launcher and tier. Sandboxes are opened on demand and kept; a dead one is replaced. All
    traces of a snippet end with its process: no snippet finds anything of another.
    """

    def __init__(self, *, size: int = 2) -> None:
        if size < 1:
            raise UsageError(f"a pool of {size!r} sandboxes", hint="at least 1")
        self._turns = asyncio.Semaphore(size)
        self._idle: list[Sandbox] = []
        self._held: set[Sandbox] = set()
        self._tier: ProcessTier | None = None
        self._changing = asyncio.Lock()
        self._filter = b""
        self._child = b""
        self._prelude = ""
        self._engine: Path | None = None

    async def __aenter__(self) -> SnippetPool:
        self._filter = compile_snippet_filter(host_architecture())
        self._child = compile_program(snippet)
        self._prelude = _PRELUDE.read_text()
        # Only searched for: this process never loads it.
        found = importlib.util.find_spec(_ENGINE)
        self._engine = Path(os.path.realpath(found.origin)) if found is not None and found.origin else None
        # Processes that were killed while a sandbox started left empty directories.
        for place in Path(tempfile.gettempdir()).glob(f"{_PLACES}*-*"):
            owner = place.name.removeprefix(_PLACES).partition("-")[0]
            with contextlib.suppress(OSError):
                # Not a young one: its process may be alive in another process namespace, as in a container.
                if not Path("/proc", owner).exists() and time.time() - place.stat().st_mtime > _STALE_SECONDS:
                    place.rmdir()
        self._tier = await ProcessTier(_NO_TOOLS).__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every sandbox and the launcher. Idempotent."""
        tier, self._tier = self._tier, None
        await self._drop(*self._held)
        if tier is not None:
            await tier.close()

    async def probe(self, language: Language) -> ProbePart:
        """Run a snippet that adds one; return the observation, and the remedy if snippets are unavailable."""
        spec = SnippetSpec(language=language, source="input + 1", input=1, seconds=_PROBE_SECONDS)
        try:
            result = await self.run(spec)
        except (TierUnavailableError, InfrastructureError) as error:
            return _unavailable(language, error)
        ok = result.value == 2
        return ProbePart(
            name=f"snippets: {language}", ok=ok, detail=f"input + 1 is {result.value!r} for the input 1"
        )

    async def run(self, spec: SnippetSpec) -> SnippetResult:
        """Run one snippet to its end; wait while `size` others run.

        However the snippet ends is in the result. Raises `SnippetEngineError` if its engine does not start,
        `SandboxDiedError` if sandboxes die under it repeatedly, `TierUnavailableError` with the remedy if this
        machine has no sandbox or lacks the language. Cancelling the call kills the snippet.
        """
        if spec.language == "javascript" and self._engine is None:
            raise TierUnavailableError("no engine for JavaScript snippets is installed", hint=_INSTALL)
        try:
            text = json.dumps(spec.input, allow_nan=False)
            value = json.loads(text) if spec.language == "python" else text
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the input of a snippet is not JSON: {error}", hint="give a JSON value") from error
        request: dict[str, Any] = {
            "language": spec.language,
            "source": spec.source,
            "input": value,
            "memory": spec.memory_mb << 20,
            "filter": self._filter,
            "prelude": self._prelude,
        }
        stdin = self._child + marshal.dumps(request)
        async with self._turns:
            for _ in range(_TRIES - 1):
                # A snippet has no effect outside, so it may run again if its sandbox died.
                with contextlib.suppress(SandboxDiedError):
                    return await self._run(spec, stdin)
            return await self._run(spec, stdin)

    async def _run(self, spec: SnippetSpec, stdin: bytes) -> SnippetResult:
        python, libraries = python_inside()
        async with self._lend_sandbox() as sandbox:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(_START_SECONDS) as limit:
                    report = SnippetReport(
                        output_limit=spec.output_limit,
                        on_ready=lambda: limit.reschedule(loop.time() + spec.seconds),
                    )
                    done = await sandbox.exec(
                        [*python, "-c", snippet.BOOTSTRAP, str(len(self._child))],
                        timeout=_START_SECONDS + spec.seconds + _AFTER,
                        cwd="/",
                        # A fixed seed: the same snippet gives the same order of a set.
                        environment={"LD_LIBRARY_PATH": libraries, "PYTHONHASHSEED": "0"},
                        stdin=stdin,
                        output_limit=1 << 40,  # the report counts, and stops it
                        on_output=report.take,
                    )
            except TimeoutError:
                if not report.ready:
                    raise _engine_failed(f"not ready after {_START_SECONDS:.0f} s", report) from None
                message = f"stopped at its time limit of {spec.seconds:g} s"
                return report.stopped(SnippetError(kind="time", name="TimeoutError", message=message))
            except OutputLimitExceeded:
                message = f"more than {spec.output_limit} bytes of console lines and value"
                return report.stopped(SnippetError(kind="output", name="OutputLimit", message=message))
        if not report.ready:
            raise _engine_failed(f"exit code {done.exit_code}", report)
        return report.result(done.exit_code)

    @contextlib.asynccontextmanager
    async def _lend_sandbox(self) -> AsyncIterator[Sandbox]:
        """Lend a sandbox; one that died is not lent again."""
        sandbox = self._idle.pop() if self._idle else await self._open()
        try:
            yield sandbox
        except InfrastructureError:
            # The cause may have ended the idle sandboxes too, and another costs a few milliseconds.
            await self._drop(sandbox, *self._idle)
            raise
        # Cancelled, or over a limit: `exec` has killed everything inside, so it can be lent again.
        except BaseException:
            self._idle.append(sandbox)
            raise
        else:
            self._idle.append(sandbox)

    async def _drop(self, *sandboxes: Sandbox) -> None:
        self._idle = [each for each in self._idle if each not in sandboxes]
        for sandbox in sandboxes:
            self._held.discard(sandbox)
            await sandbox.close()

    async def _open(self) -> Sandbox:
        tier = self._tier
        if tier is None:
            raise _closed_error()
        # The mount stays as long as the sandbox; its name is removed at once, so that a killed worker leaves
        # nothing.
        with tempfile.TemporaryDirectory(prefix=f"{_PLACES}{os.getpid()}-") as place:
            # Empty and read-only: a snippet must leave nothing for the next one.
            os.chmod(place, 0o555)
            try:
                sandbox = await tier.open(self._spec(place))
            except InfrastructureError:
                async with self._changing:
                    if self._tier is tier:  # the first that notices starts another launcher for all
                        await tier.close()
                        fresh = await ProcessTier(_NO_TOOLS).__aenter__()
                        if self._tier is tier:
                            self._tier = fresh
                        else:  # the pool was closed meanwhile, so end it here
                            await fresh.close()
                if self._tier is None:
                    raise _closed_error() from None
                sandbox = await self._tier.open(self._spec(place))
        self._held.add(sandbox)
        return sandbox

    def _spec(self, place: str) -> SandboxSpec:
        binds: tuple[Bind, ...] = ()
        if self._engine is not None:
            binds = (Bind(source=self._engine, target=f"{snippet.ENGINES}/{self._engine.name}"),)
        plan = MountPlan(target=WORKSPACE, plain=Path(place))
        return SandboxSpec(mounts=plan, binds=binds, limits=_LIMITS)


def _closed_error() -> InfrastructureError:
    return InfrastructureError("the snippet pool is closed", code="tier_closed")


async def run_snippet(spec: SnippetSpec) -> SnippetResult:
    """Run one snippet in a temporary pool; see `SnippetPool.run`. For several snippets keep a `SnippetPool`."""
    async with SnippetPool(size=1) as pool:
        return await pool.run(spec)


async def probe_snippets() -> tuple[ProbePart, ...]:
    """Run a snippet of each language; return each observation, and the remedy if it is unavailable."""
    try:
        async with SnippetPool(size=1) as pool:
            return tuple([await pool.probe(language) for language in LANGUAGES])
    except TierUnavailableError as error:
        return tuple(_unavailable(language, error) for language in LANGUAGES)


def _unavailable(language: Language, error: TierUnavailableError | InfrastructureError) -> ProbePart:
    return ProbePart(name=f"snippets: {language}", ok=False, detail=error.message, mend=error.hint)


def _engine_failed(why: str, report: SnippetReport) -> SnippetEngineError:
    said = report.errors.decode(errors="replace").strip().rpartition("\n")[2]
    return SnippetEngineError(
        f"the engine of a snippet did not start: {why}{': ' if said else ''}{said}",
        hint="chargehand doctor tries each language",
    )
