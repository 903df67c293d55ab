"""Tasks of Harbor and Terminal-Bench 2: `task.toml`, `instruction.md`, `environment`, `tests`, `solution`.

No image is built. A task can run if its Dockerfile only sets a working directory and copies files there, on the
image of a distribution or of Python; then the working directory becomes the repository, and the paths of the
container are replaced in texts. All other tasks are unsupported, with the reason.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from msgspec import Struct

from chargehand.bench.forms.files import read_directory, suite_error
from chargehand.bench.inside import report_check
from chargehand.bench.records import BenchProblem, BenchValidator, Files
from chargehand.core.codec import convert_to
from chargehand.core.errors import UsageError

_TOP = "/workspace"
_TESTS, _LOGS = ".harbor/tests", ".harbor/verifier"
_PROGRAM = ".validator/report_check.py"
_CONFIGURATION = "chargehand.toml"
_PLAIN_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?(?:python|ubuntu|debian|alpine|busybox)(?::[\w.-]+)?")
_IGNORED = frozenset({"", "LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "MAINTAINER", "ARG", "SHELL", "STOPSIGNAL"})
_NEEDS_NETWORK = re.compile(
    r"\b(apt-get|apt|apk|curl|wget|uvx|pip3? install|uv (?:pip|run|tool|add)|npm install)\b"
)
_UNSUPPORTED_KEYS = ("docker_image", "mcp_servers", "gpus", "tpu", "healthcheck")


class _HarborVerifier(Struct, frozen=True):
    environment_mode: str = "shared"
    environment: dict[str, Any] = {}
    timeout_sec: float = 600.0


class _HarborAgent(Struct, frozen=True):
    timeout_sec: float = 600.0


class _HarborTask(Struct, frozen=True):
    """The keys of `task.toml` that matter here."""

    steps: list[Any] = []
    environment: dict[str, Any] = {}
    verifier: _HarborVerifier = _HarborVerifier()
    agent: _HarborAgent = _HarborAgent()


class _Unsupported(Exception):
    """A task needs something that this product cannot do: the text."""


def load_harbor(root: Path) -> tuple[BenchProblem, ...]:
    """Return the tasks below a directory, sorted by path; raise `UsageError` (`suite_invalid`)."""
    return tuple(_task(path.parent, root) for path in sorted(root.rglob("task.toml")))


def _task(place: Path, root: Path) -> BenchProblem:
    name = place.relative_to(root).as_posix() if place != root else place.resolve().name
    try:
        config = convert_to(tomllib.loads((place / "task.toml").read_text("utf-8")), _HarborTask)
        instruction = place / "instruction.md"
        text = instruction.read_text("utf-8") if instruction.is_file() else ""
    except (OSError, ValueError) as error:
        raise suite_error(f"{place}: {error}") from error
    try:
        return _read_task(place, name, config, text)
    except (_Unsupported, ValueError) as reason:  # such as a Dockerfile that is not UTF-8
        return BenchProblem(id=name, request=text, unsupported=str(reason))


def _read_task(place: Path, name: str, config: _HarborTask, text: str) -> BenchProblem:
    if config.steps:
        raise _Unsupported("it has several steps")
    if found := [key for key in _UNSUPPORTED_KEYS if config.environment.get(key)]:
        raise _Unsupported(f"environment.{found[0]} is set")
    verifier = config.verifier
    if verifier.environment_mode != "shared" or verifier.environment:
        raise _Unsupported("its verifier has an image of its own")
    if not (place / "tests/test.sh").is_file():
        raise _Unsupported("it has no tests/test.sh")
    workdir, files = _read_dockerfile(place / "environment")
    paths = {"/logs/verifier": f"{_TOP}/{_LOGS}", "/tests": f"{_TOP}/{_TESTS}", workdir: _TOP}
    tests = _replace_paths(read_directory(place / "tests", prefix=f"{_TESTS}/"), paths)
    script = tests[f"{_TESTS}/test.sh"]
    assert script is not None
    if needed := _NEEDS_NETWORK.search(script[0].decode("utf-8", "replace")):
        raise _Unsupported(f"its tests/test.sh installs programs ({needed[0]})")
    solution = _replace_paths(read_directory(place / "solution", prefix=".harbor/solution/"), paths)
    return BenchProblem(
        id=name,
        request=_in_text(text, paths),
        # Harbor has no checks for the agent: any change that inspection accepts counts as a result.
        files={_CONFIGURATION: (b"[project]\nchecks = []\n", False), **_replace_paths(files, paths)},
        validator=BenchValidator(
            command=f"python3 -I {_PROGRAM} reward {_TESTS}/test.sh {_LOGS}",
            seconds=verifier.timeout_sec,
            files={_PROGRAM: (Path(report_check.__file__).read_bytes(), False)},
            over={**tests, f"{_LOGS}/.gitkeep": (b"", False)},
            reports=True,
        ),
        gold=solution or None,
        gold_script="bash .harbor/solution/solve.sh" if ".harbor/solution/solve.sh" in solution else "",
        seconds=config.agent.timeout_sec,
    )


def _read_dockerfile(place: Path) -> tuple[str, Files]:
    """Return the working directory, and the files copied there; raise `_Unsupported`."""
    if any(place.glob("*compose*.y*ml")):
        raise _Unsupported("it needs docker compose")
    file = place / "Dockerfile"
    if not file.is_file():
        raise _Unsupported("it has no environment/Dockerfile")
    workdir, files = "/", dict[str, tuple[bytes, bool] | None]()
    for line in re.sub(r"\\\s*\n", " ", file.read_text("utf-8")).splitlines():
        word, _, rest = line.strip().partition(" ")
        match word.upper():
            case "FROM":
                if not _PLAIN_IMAGE.fullmatch(rest.strip()):
                    raise _Unsupported(f"its image is {rest.strip()!r}")
            case "WORKDIR":
                workdir = _read_workdir(rest.strip(), workdir)
            case "COPY":
                files |= _copy(place, shlex.split(rest), workdir)
            case other if other not in _IGNORED and not other.startswith("#"):
                raise _Unsupported(f"its Dockerfile has {other} {rest[:60].strip()}")
    if workdir == "/":
        raise _Unsupported("its Dockerfile sets no WORKDIR")
    return workdir, files


def _read_workdir(named: str, before: str) -> str:
    # Files that were copied to an earlier one would be in another place than here.
    if before != "/" or not named.startswith("/") or "$" in named:
        raise _Unsupported(f"its Dockerfile has WORKDIR {named[:60]}")
    return "/" + named.strip("/")


def _copy(place: Path, words: list[str], workdir: str) -> Files:
    """Return the files of one COPY, by path below the working directory."""
    if len(words) != 2 or words[0].startswith("--") or "*" in words[0]:
        raise _Unsupported(f"its Dockerfile has COPY {' '.join(words)[:60]}")
    source, target = (place / words[0]).resolve(), words[1]
    if not source.is_relative_to(place.resolve()) or not source.exists():
        raise _Unsupported(f"its Dockerfile copies {words[0]!r}")
    full = target if target.startswith("/") else f"{workdir}/{target}"
    is_directory = source.is_dir() or full.endswith(("/", "/."))
    inside = full.rstrip("/.").removeprefix(workdir).strip("/") if f"{full}/".startswith(f"{workdir}/") else None
    if inside is None:
        raise _Unsupported(f"its Dockerfile copies to {target!r}, outside of {workdir!r}")
    if source.is_dir():
        return read_directory(source, prefix=f"{inside}/" if inside else "")
    name = "/".join(filter(None, (inside, source.name))) if is_directory else inside
    return {name: (source.read_bytes(), bool(source.stat().st_mode & 0o100))}


def _replace_paths(files: Files, paths: dict[str, str]) -> dict[str, tuple[bytes, bool] | None]:
    made: dict[str, tuple[bytes, bool] | None] = {}
    for path, file in files.items():
        assert file is not None
        try:
            made[path] = (_in_text(file[0].decode("utf-8"), paths).encode(), file[1])
        except UnicodeDecodeError:
            made[path] = file
    return made


def _in_text(text: str, paths: dict[str, str]) -> str:
    """Return a text with the container's paths replaced, unless they are part of a longer name."""
    names = "|".join(re.escape(each) for each in sorted(paths, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])(?:{names})(?![\w-])", lambda found: paths[found[0]], text)


def require_exportable(problem: BenchProblem) -> None:
    """Raise `UsageError` unless the problem can be written as a task."""
    if problem.validator is None or problem.unsupported or problem.repository:
        reason = problem.unsupported or ("its files are in a repository" if problem.repository else "no validator")
        raise UsageError(reason, code="suite_invalid")
