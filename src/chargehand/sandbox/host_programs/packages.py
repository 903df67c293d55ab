"""Python packages of the host: hidden from sandboxes, except those that a person lists.

Sandboxes see an interpreter with its standard library. If they also saw packages that a project happens to import,
its checks could pass by accident: on this machine only, or with an installed copy of the project itself.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from chargehand.core.errors import ConfigError
from chargehand.core.ports import Bind

ALL = "all"
"""Used instead of names: every package of the host is shown."""
_NOTHING = Path(__file__).with_name("no_packages")
_DIRECTORIES = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages")
_SYSTEM_PREFIXES = ("/usr", "/usr/local")
# The package itself does not need a requirement that only an extra adds.
_NAME, _EXTRA = re.compile(r"[A-Za-z0-9][\w.-]*"), re.compile(r";.*\bextra\s*==")


def package_directories(prefixes: Iterable[str]) -> list[str]:
    """Return the directories of third-party packages of some prefixes, and of the system's interpreters."""
    patterns = (
        f"{glob.escape(prefix)}/{name}" for prefix in (*prefixes, *_SYSTEM_PREFIXES) for name in _DIRECTORIES
    )
    return sorted({place for pattern in patterns for place in glob.glob(pattern)})


def hide_packages(directories: Sequence[str], names: Sequence[str], *, scratch: Path, target: str) -> list[Bind]:
    """Return the mounts that hide all packages in these directories except `names` and their requirements.

    Shown packages are mounted below `target`; each directory is replaced by links to them, made in `scratch`.
    Raises `ConfigError` for a name that no directory has.
    """
    if ALL in names:
        return []
    wanted = {_normalise(name): name for name in names}
    binds = []
    found = set[str]()
    for number, directory in enumerate(directories):
        entries, here = _entries_of(directory, wanted) if wanted else ([], set())
        found |= here
        if not entries:
            binds.append(Bind(source=_NOTHING, target=directory))
            continue
        inside = f"{target}/packages-{number}"
        # Named by its content, so made only once.
        digest = hashlib.sha256("\n".join([inside, *entries]).encode()).hexdigest()[:16]
        links = scratch / f"packages-{digest}"
        links.mkdir(mode=0o755, parents=True, exist_ok=True)
        for entry in entries:
            if not (links / entry).is_symlink():
                (links / entry).symlink_to(f"{inside}/{entry}")
        binds += [Bind(source=links, target=directory), Bind(source=Path(directory), target=inside)]
    if missing := sorted(wanted.keys() - found):
        raise ConfigError(
            f"no Python package {wanted[missing[0]]!r} is installed on this machine",
            hint="correct sandbox.host_packages in your own configuration file",
        )
    return binds


def _entries_of(directory: str, wanted: Iterable[str]) -> tuple[list[str], set[str]]:
    """Return the entries of wanted packages and their requirements in a directory, and the packages found."""
    from importlib import metadata  # 15 ms of every start, and most people list no package

    installed = {_normalise(each.metadata["Name"]): each for each in metadata.distributions(path=[directory])}
    here = set[str]()
    todo = [name for name in wanted if name in installed]
    while todo:
        name = todo.pop()
        if name in here:
            continue
        here.add(name)
        required = [each for each in installed[name].requires or () if not _EXTRA.search(each)]
        found = (_NAME.match(each) for each in required)
        todo += [needed for match in found if match and (needed := _normalise(match[0])) in installed]
    files = (file for name in here for file in installed[name].files or ())
    return sorted({file.parts[0] for file in files} - {"..", "__pycache__"}), here


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
