"""Runs: from a request with its options to a settled mission."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chargehand.agents._roles import DEVELOPER, Role
from chargehand.app.config.areas import meet_areas
from chargehand.app.config.records import OptionValue, ResolvedConfig
from chargehand.app.selection.agents import named_agent
from chargehand.app.selection.choice import AgentChoice, choose_agent
from chargehand.app.selection.roles import RoleCatalogue, RoleFile
from chargehand.core.errors import UsageError
from chargehand.core.ports import ArtifactSink, KeySource
from chargehand.core.records import MissionRequest
from chargehand.core.text import shown_path
from chargehand.store._artifacts import Artifacts

_SLUG = 40
_NATIVE_ATTEMPTS = 3
"""A native agent mends what the checks refuse, twice; a program that failed once does the same again."""
_LONGEST = 100_000  # bytes: the request reaches agents as one environment variable, of which Linux takes 128 KiB
_LARGEST_CHECK_FILE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What stands on the command line of `run`."""

    text: str | None = None
    file: str | None = None
    repo: Path | None = None
    base: str | None = None
    agent: str | None = None
    model: str | None = None
    role: str | None = None
    budget: str | None = None
    checks: tuple[str, ...] = ()
    only_checks: tuple[str, ...] = ()
    check_files: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    time: str | None = None
    attempts: str | None = None
    sandbox: str | None = None
    strategy: str | None = None
    partial: bool = False
    apply: bool = False
    detach: bool = False
    yes: bool = False

    def configuration(self) -> Mapping[str, OptionValue]:
        """Return the options that are configuration, by their dotted keys."""
        return {
            "project.checks": OptionValue(value=self.checks, name="--check"),
            "only_checks": OptionValue(value=self.only_checks, name="--only-check"),
            "project.allow": OptionValue(value=self.allow, name="--allow"),
            "project.forbid": OptionValue(value=self.forbid, name="--forbid"),
            "project.strategy": OptionValue(value=self.strategy, name="--strategy"),
            "limits.time": OptionValue(value=self.time, name="--time"),
            "limits.attempts": OptionValue(value=self.attempts, name="--attempts"),
            "limits.budget_usd": OptionValue(value=self.budget, name="--budget"),
            "sandbox.tier": OptionValue(value=self.sandbox, name="--sandbox"),
        }


def request_text(options: RunRequest) -> str:
    """Return what is asked for: the argument, or the content of `--file`. Raises `UsageError`."""
    if options.text is not None and options.file is not None:
        raise UsageError("both TEXT and --file were given", hint="give one of them")
    if options.file is not None:
        text = _read(options.file)
    elif options.text is not None:
        text = options.text
    else:
        raise UsageError("nothing was asked for", hint='chargehand run "TEXT", or --file F')
    return _checked(text)


def _read(name: str) -> str:
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"--file: {name!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--file: {name!r} is not UTF-8 text") from error


def _checked(text: str) -> str:
    if not text.strip():
        raise UsageError("the request is empty", hint="say what the agent is to do")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UsageError("the request is not UTF-8 text") from error
    if "\0" in text:
        raise UsageError("the request holds a zero byte", hint="give plain text")
    if size > _LONGEST:
        hint = "put the rest into a file of the repository"
        raise UsageError(f"the request has {size} bytes, more than {_LONGEST}", code="request_too_long", hint=hint)
    return text


def branch_slug(text: str) -> str:
    """Return a branch-safe name from a request: its first words in ASCII, at most 40 characters."""
    plain = unicodedata.normalize("NFKD", text[:400]).encode("ascii", "ignore").decode().lower()
    made = ""
    for word in re.findall(r"[a-z0-9]+", plain):
        longer = f"{made}-{word}" if made else word[:_SLUG]
        if len(longer) > _SLUG:
            break
        made = longer
    return made or "mission"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAssignment:
    """Who works and in which role: the role with its file as it was read, the agent, its model and why."""

    role: Role
    file: RoleFile
    choice: AgentChoice


def assign_role(
    resolved: ResolvedConfig,
    options: RunRequest,
    roles: RoleCatalogue,
    *,
    environ: Mapping[str, str],
    keys: KeySource,
) -> RoleAssignment:
    """Return the role that was named and who works in it; raises what `Roles.find` and `choose` do."""
    role, file = roles.find(options.role or DEVELOPER, resolved.config)
    choice = choose_agent(resolved.config, environ, keys, agent=options.agent, model=options.model, role=role)
    return RoleAssignment(role=role, file=file, choice=choice)


def keep_check_files(files: Sequence[str], artifacts: Artifacts) -> tuple[tuple[str, str], ...]:
    """Keep the content of each `HOST:PATH` and return (artifact id, path). Raises `UsageError`."""
    parsed = [_check_file(file) for file in files]
    _no_twice(path for _, path in parsed)
    return tuple((artifacts.put(_content(host), kind="check-file"), path) for host, path in parsed)


def _check_file(text: str) -> tuple[Path, str]:
    host, colon, path = text.rpartition(":")
    if not colon or not host or not path:
        raise UsageError(f"--check-file: {text!r} is not HOST:PATH", hint="such as tests_new.py:tests/test_new.py")
    parts = path.split("/")
    if path.startswith("/") or {"", ".", ".."} & set(parts) or any(part.lower() == ".git" for part in parts):
        raise UsageError(
            f"--check-file: {shown_path(path)!r} is not a path inside the repository",
            hint="give it relative to the top, without '..' and '.git'",
        )
    return Path(host), path


def _no_twice(paths: Iterable[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise UsageError(f"--check-file: two files for {shown_path(path)!r}")
        seen.add(path)


def _content(host: Path) -> bytes:
    try:
        if not host.is_file():
            raise UsageError(f"--check-file: {str(host)!r} is not a file")
        if host.stat().st_size > _LARGEST_CHECK_FILE:
            raise UsageError(f"--check-file: {str(host)!r} has more than {_LARGEST_CHECK_FILE} bytes")
        return host.read_bytes()
    except OSError as error:
        raise UsageError(f"--check-file: {str(host)!r} cannot be read: {error.strerror}") from error


def build_request(
    options: RunRequest,
    resolved: ResolvedConfig,
    *,
    text: str,
    cast: RoleAssignment,
    artifacts: ArtifactSink,
    check_files: tuple[tuple[str, str], ...],
) -> MissionRequest:
    """Return the request of a mission as it is recorded; the role's file is kept as it is now.

    Raises `ConfigError` where role and mission leave no area that may be changed.
    """
    choice = cast.choice
    config, named = resolved.config, named_agent(resolved, choice.agent)
    repairs = resolved.origins.get("limits.attempts") == "default" and named.kind == "native"
    return MissionRequest(
        text=text,
        agent=choice.agent,
        command=named.command,
        slug=branch_slug(text),
        only_checks=resolved.only_checks,
        extra_checks=resolved.extra_checks,
        check_files=check_files,
        allow=meet_areas(config.project.allow, cast.role.areas),
        forbid=config.project.forbid,
        attempts=_NATIVE_ATTEMPTS if repairs else config.limits.attempts,
        seconds=config.limits.time,
        tier=config.sandbox.tier,
        partial=options.partial,
        apply=options.apply,
        model=choice.model,
        fallback=choice.fallback,
        why=choice.why,
        role=cast.role.name,
        role_text=artifacts.put(cast.file.content, kind="role"),
        role_from=cast.file.place,
    )
