"""`chargehand doctor`: what this machine can offer, tried for real."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chargehand.app.composition import App
from chargehand.app.wiring.profile import MachineProfile, machine_facts
from chargehand.cli._output import Output, to_json
from chargehand.cli._progress import progress
from chargehand.core.config import Tier
from chargehand.core.errors import ChargehandError
from chargehand.sandbox._isolate_pool import probe_snippets
from chargehand.sandbox._probe import Part, ProbeReport
from chargehand.sandbox._toolchain import NotShown
from chargehand.sandbox._toolchain_seen import ToolSeen, origin

_GIT_FROM = (2, 31)
_FREE_MB = 1024
_NAMED = 5


def doctor(out: Output) -> int:
    """Write each part with ok or failed and its mend; exit 5 where no sandbox can be had, 1 for other failures."""
    with App.open() as app, progress(out, "trying"):
        parts = [_python(), _git(), _state(app.home)]
        profile = app.profile
        report = _probe(app, "process") if parts[-1].ok else None
        other = _probe(app, "container") if parts[-1].ok and _has_engine(app) else None
        machines = _probe(app, "vm") if parts[-1].ok and _has_machines(app) else None
        allowed = _allowed(app)
        languages = asyncio.run(probe_snippets()) if report is not None and report.ok else ()
        tools, problem = _tools(app, report)
        not_shown = app.toolchain(app.user_configuration()).not_shown if tools else ()
    tier_ok = report is not None and report.ok
    parts += report.parts if report is not None else ()
    parts += (_machine(profile), allowed)
    out.document(
        {
            "ok": tier_ok and all(part.ok for part in parts[:3]),
            "tier": "process" if tier_ok else None,
            "driver": report.driver if report is not None else None,
            "drivers": {"shadow": report.driver, "direct": report.direct} if report is not None else None,
            "parts": parts,
            "container": other,
            "machine": machine_facts(profile),
            "vm": machines,
            "snippets": {part.name.rpartition(" ")[2]: part for part in languages},
            "tools": [{**to_json(tool), "seen": origin(tool)} for tool in tools],
            "tools_problem": problem,
            "not_shown": not_shown,
        }
    )
    _show(out, parts, report)
    for each in (other, machines):
        if each is not None:
            _show_other(out, each)
    _show_snippets(out, languages)
    _show_tools(out, tools, not_shown, problem)
    if not tier_ok:
        return 5
    return 0 if all(part.ok for part in parts[:3]) else 1


def _probe(app: App, tier: Tier) -> ProbeReport:
    try:
        return asyncio.run(app.probe(tier))
    except ChargehandError as error:
        part = Part(name="sandbox", ok=False, detail=error.message, mend=error.hint)
        return ProbeReport(tier=tier, parts=(part,))


def _has_engine(app: App) -> bool:
    """Tell whether the container tier is worth a try: an engine is installed."""
    search = app.environ.get("PATH", os.defpath)
    return any(shutil.which(name, path=search) for name in ("podman", "docker"))


def _has_machines(app: App) -> bool:
    """Tell whether the vm tier is worth a try: QEMU is installed."""
    return shutil.which("qemu-system-x86_64", path=app.environ.get("PATH", os.defpath)) is not None


def _tools(app: App, report: ProbeReport | None) -> tuple[tuple[ToolSeen, ...], str]:
    """Return what each tool is inside a sandbox, and why none could be tried."""
    if report is None or report.driver is None or not report.ok:
        return (), "tools are tried once a sandbox can be had"
    try:
        return asyncio.run(app.tools(report.driver)), ""
    except ChargehandError as error:
        return (), error.message


def _show_tools(out: Output, tools: Sequence[ToolSeen], not_shown: Sequence[NotShown], problem: str) -> None:
    """Write what sandboxes have of this machine's programs, and what they do not have and why."""
    if problem:
        out.text(problem)
        return
    out.text()
    rows = [(tool.name, tool.version, tool.host, origin(tool)) for tool in tools if not tool.problem]
    out.table(("TOOL", "VERSION", "FROM", "INSIDE"), rows)
    for tool in tools:
        if tool.problem:
            out.text(f"{tool.name} ({tool.host}) {tool.problem}")
    for each in not_shown:
        names = ", ".join(each.names[:_NAMED]) + (
            f" and {more} more" if (more := len(each.names) - _NAMED) > 0 else ""
        )
        out.text(f"not shown: {names} in {each.directory}: {each.problem}")


def _python() -> Part:
    return Part(name="python", ok=True, detail=f"{platform.python_version()} at {sys.executable}")


def _git() -> Part:
    path = shutil.which("git")
    if path is None:
        return Part(name="git", ok=False, detail="not found on PATH", mend="install git")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    found = re.search(r"(\d+)\.(\d+)", said)
    ok = found is not None and (int(found[1]), int(found[2])) >= _GIT_FROM
    wanted = ".".join(map(str, _GIT_FROM))
    return Part(name="git", ok=ok, detail=said or path, mend="" if ok else f"install git {wanted} or later")


def _state(home: Path) -> Part:
    """Try to write into the state directory and look how much room it has."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"x")
        room = os.statvfs(home)
    except OSError as error:
        mend = "make it writable, or set CHARGEHAND_HOME to a directory that is"
        return Part(name="state", ok=False, detail=f"{home}: {error.strerror}", mend=mend)
    free = room.f_bavail * room.f_frsize // (1 << 20)
    ok = free >= _FREE_MB
    mend = "" if ok else "free some space there (chargehand gc), or set CHARGEHAND_HOME to a larger disk"
    return Part(name="state", ok=ok, detail=f"{home}, {free} MiB free", mend=mend)


def _machine(profile: MachineProfile) -> Part:
    """Tell what this machine's size makes of the defaults; advice only, for one that is too small."""
    machine = profile.machine
    bound = " (by a control group that we live in)" if machine.grouped else ""
    detail = (
        f"{machine.memory_mb} MiB{bound}, {machine.cores} processors: profile {profile.name}, "
        f"{profile.attempts_at_once} agents and {profile.checks_at_once} checks at once, each with "
        f"{profile.memory_mb} MiB of memory and {profile.tmp_mb} MiB of /tmp"
    )
    mend = "" if profile.fits else "use a machine with more memory, or lower sandbox.memory_mb yourself"
    return Part(name="machine", ok=profile.fits, detail=detail, mend=mend)


def _allowed(app: App) -> Part:
    """Tell which hosts sandboxes may reach by the user's own configuration."""
    try:
        config = app.user_configuration().config.sandbox
    except ChargehandError as error:
        return Part(name="hosts", ok=False, detail=error.message, mend=error.hint)
    who = "agents, setup and checks" if config.network_checks else "agents and setup"
    some = f"{who} may reach {', '.join(config.network)}"
    return Part(name="hosts", ok=True, detail=some if config.network else "sandboxes have no network")


def _show(out: Output, parts: list[Part], report: ProbeReport | None) -> None:
    width = max(len(part.name) for part in parts)
    spare = _spare(report)
    for part in parts:
        word = "ok" if part.ok else "no" if part in spare else "failed"
        out.text(f"{word:<6}  {part.name:<{width}}  {part.detail}", **({"fg": "red"} if word == "failed" else {}))
        if word == "failed" and part.mend:
            out.text(f"        {'':<{width}}  mend: {part.mend}")
    if report is not None and report.ok:
        out.text(f"the process sandbox works here, with workspaces by {report.driver}", bold=True)
        tried = ", ".join(part.name for part in report.drivers)
        out.text(f"(tried, the best first: {tried}; strategy direct takes {report.direct})")
    else:
        out.text("no sandbox can be had here: missions are refused until that is mended", bold=True)


def _show_snippets(out: Output, languages: tuple[Part, ...]) -> None:
    """Tell which languages snippets may have; a missing one harms nothing else."""
    for part in languages:
        out.text(f"{'ok' if part.ok else 'no':<6}  {part.name}: {part.detail}")
        if part.mend:
            out.text(f"        mend: {part.mend}")


def _show_other(out: Output, report: ProbeReport) -> None:
    """Write what another tier offers: nobody misses it where the first one works."""
    failed = [part for part in report.parts if not part.ok and part not in report.drivers]
    for part in failed:
        out.text(f"no      {report.tier}: {part.name}: {part.detail}")
        if part.mend:
            out.text(f"        mend: {part.mend}")
    if report.ok:
        out.text(
            f"--sandbox {report.tier} works too, with workspaces by {report.driver}: {report.parts[0].detail}"
        )


def _spare(report: ProbeReport | None) -> tuple[Part, ...]:
    """Return the drivers behind the one that is taken: nobody misses those."""
    drivers = () if report is None else report.drivers
    taken = next((number for number, part in enumerate(drivers) if part.ok), len(drivers))
    return drivers[taken:]
