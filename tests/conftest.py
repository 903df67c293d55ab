"""Shared by all tests: real repositories, real state directories, and the rule for missing services."""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, settings

from chargehand.core.registry import use_registries
from chargehand.identity import passwords
from chargehand.reports.reading import find_registry
from tests import container_kit, forked, gitea_kit, vm_kit
from tests.postgres import Postgres, cluster

if TYPE_CHECKING:
    from pwdlib import PasswordHash

# Under `nohup` too, the programs of tests receive SIGHUP as in a terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# No test uses the keyring of the machine, nor the one in memory that tests of credentials define: commands that a
# test starts would not find its secrets.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"
pytest.register_assert_rewrite(
    "chargehand.testing.sandbox",
    "chargehand.testing.agents.conformance",
    "chargehand.testing.forges",
    "chargehand.testing.names.suites",
)

# The suite is deterministic: the same examples on each machine, in each run. `scripts/soak` searches for new
# examples, twice as many under each of many seeds; what it finds becomes an explicit example.
_UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "suite", max_examples=50, deadline=None, derandomize=True, suppress_health_check=_UNHURRIED
)
settings.register_profile("soak", max_examples=100, deadline=None, suppress_health_check=_UNHURRIED)
settings.load_profile("suite")

# Tests that resolve a configuration need no state directory, which sets this otherwise.
use_registries(find_registry)
TESTS = Path(__file__).parent
GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
# Each commit would start another process, which finds nothing to do.
_NO_MAINTENANCE = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "maintenance.auto", "GIT_CONFIG_VALUE_0": "false"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker of the whole suite begin with other files, and reuse the others' rewritten assertions.

    All workers have the same files to rewrite, which takes longer than the rest of collecting, and would do it at
    the same time.
    """
    whole = session.config.args == session.config.getini("testpaths")
    if whole and (worker := getattr(session.config, "workerinput", None)) is not None:
        files = sorted(str(path) for path in TESTS.rglob("test_*.py"))
        first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        session.config.args = files[first:] + files[:first]


def pytest_collection_finish() -> None:
    """Exclude ten thousand tests and their imports from garbage collection.

    Also make workers that use cases of the program start fork instead, and missions repeat failing tests less.
    """
    if "chargehand.app.worker" in sys.modules:
        forked.fork_detached()
    if "chargehand.app.composition" in sys.modules:
        forked.repeat_less()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that this machine cannot run; in CI a missing service fails instead.

    Sort the tests, because workers must agree on their order whichever order they collected them in. Those that
    may wait for the build of Gitea come last.
    """
    items.sort(key=lambda item: (item.get_closest_marker("needs_gitea") is not None, str(item.path)))
    in_ci = bool(os.environ.get("CI"))
    without_bwrap = not in_ci and not shutil.which("bwrap")
    for item in items:
        if without_bwrap and item.get_closest_marker("needs_bwrap"):
            item.add_marker(pytest.mark.skip(reason="bubblewrap is not installed"))
        if item.get_closest_marker("needs_container"):
            missing = container_kit.missing(docker=bool(item.get_closest_marker("soak")))
            if os.geteuid() != 0 or (missing and not in_ci):
                item.add_marker(pytest.mark.skip(reason=missing or "container tests are set up for root"))
        if not in_ci and item.get_closest_marker("needs_vm") and vm_kit.missing():
            item.add_marker(pytest.mark.skip(reason=vm_kit.missing()))
        if not in_ci and item.get_closest_marker("needs_chromium") and not find_chromium():
            item.add_marker(pytest.mark.skip(reason="chromium is not installed"))
        if not in_ci and item.get_closest_marker("needs_gitea") and gitea_kit.missing():
            item.add_marker(pytest.mark.skip(reason=gitea_kit.missing()))
        if item.get_closest_marker("needs_root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None, object, object]:
    """End the programs that a failing test leaves running, so that later tests are not blamed for them."""
    try:
        return (yield)
    except Exception as error:
        shared = {id(value) for value in getattr(item, "funcargs", {}).values()}
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for value in frame.f_locals.values():
                if isinstance(value, subprocess.Popen) and id(value) not in shared and value.poll() is None:
                    value.kill()
                    with suppress(subprocess.TimeoutExpired):
                        value.communicate(timeout=5)
        raise


def find_chromium() -> str | None:
    """Return the browser for tests; its headless build needs half the CPU time for a page."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


def examples(count: int) -> int:
    """Return the number of examples in this run for a property to which `scripts/soak` gives `count`."""
    assert settings.default is not None
    return max(1, count * settings.default.max_examples // 100)


def sampled(cases: Iterable[str], count: int) -> list[ParameterSet]:
    """Return cases for `parametrize`; the suite runs `count` of them, spread evenly, `scripts/soak` the others."""
    names = list(cases)
    chosen = {names[number * len(names) // count] for number in range(count)}
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.soak) for name in names]


def git(directory: Path, *arguments: str) -> str:
    """Run git as a person would, without the machine's own configuration."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **GIT_IDENTITY, **_NO_MAINTENANCE}
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_repository(directory: Path, files: Mapping[str, str]) -> Path:
    """Make a repository with one commit on `main`."""
    directory.mkdir(parents=True)
    git(directory, "init", "-q", "-b", "main")
    write_files(directory, files)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", "first")
    return directory


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write text files below a directory."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


EXPORTED = r"refs/(heads/chargehand/|notes/chargehand(-provenance)?$)"
"""The refs that a promotion writes into the user's repository."""


def repository_state(repository: Path, *, without: str = EXPORTED) -> str:
    """Return a digest of everything the user owns: refs, HEAD, index, configuration, hooks and work tree."""
    digest = hashlib.sha256()
    refs = [line for line in git(repository, "show-ref").splitlines() if not re.search(without, line)]
    digest.update("\n".join(refs).encode())
    own = ("HEAD", "index", "config", "hooks", "info", "packed-refs")
    roots = [repository / ".git" / name for name in own]
    work = [path for path in repository.iterdir() if path.name != ".git"]
    for path in sorted(p for root in (*roots, *work) for p in (root, *root.rglob("*"))):
        if path.is_symlink() or path.exists():
            digest.update(_described(path, repository))
    return digest.hexdigest()


def _described(path: Path, root: Path) -> bytes:
    info = path.lstat()
    content = b""
    if path.is_symlink():
        content = os.readlink(path).encode()
    elif path.is_file():
        content = path.read_bytes()
    return b"%s %o %d %s\n" % (bytes(path.relative_to(root)), info.st_mode, info.st_uid, content)


@pytest.fixture
def loop_run() -> Callable[..., object]:
    """Run a coroutine to its end."""
    return asyncio.run


_HASHES = {name: getattr(passwords, name) for name in ("NOBODY", "_hasher")}
_LIGHT_NOBODY = "$argon2id$v=19$m=8,t=1,p=1$0loWEK5xbvhD4AV7+JUzxA$5HqRSpy8pJvbYYuHvOBybEl8pv5jQZckGANH/5su8YI"
_create_trust_once = functools.cache(ssl.create_default_context)


@pytest.fixture
def shared_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all clients share one TLS context: loading the machine's authorities is most of a client's cost."""
    monkeypatch.setattr(ssl, "create_default_context", _create_trust_once)


@pytest.fixture(scope="session", autouse=True)
def light_hashes() -> Iterator[None]:
    """Hash passwords with minimal work in this process: hundreds of tests log in."""

    @functools.cache
    def hasher() -> PasswordHash:
        from pwdlib import PasswordHash
        from pwdlib.hashers.argon2 import Argon2Hasher

        return PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", hasher)
        patch.setattr(passwords, "NOBODY", _LIGHT_NOBODY)
        yield


@pytest.fixture
def real_hashes(light_hashes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash passwords as the product does."""
    for name, value in _HASHES.items():
        monkeypatch.setattr(passwords, name, value)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Run one PostgreSQL server for all tests of this process; no test stops it."""
    with cluster() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """Return the URL of a new, empty PostgreSQL database."""
    return postgres.database()


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Restore an earlier version's state directory and act as its owner, in their repository; yield their home."""
    from tests.saved_state import unpacked

    with unpacked() as (top, environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(top / "shop")
        yield top
