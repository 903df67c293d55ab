"""The kernel that virtual machines run: kept in the state directory, put there by one command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chargehand.core.errors import TierUnavailableError
from chargehand.sandbox._vm_image import first_files, kernel_of, made_by, version_of, wanted
from chargehand.sandbox._vm_package import read_package

SETUP = "chargehand sandbox setup vm"
PACKAGES = ("linux-image-amd64", "busybox-static")
_ABOUT = "about.json"
_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What a machine starts from: the kernel and the archive of its first files, of a kernel's version."""

    kernel: Path
    first_files: Path
    version: str


def find_guest(images: Path) -> Guest:
    """Return the kernel in the directory; raises `TierUnavailableError` where none is set up, or an older one."""
    try:
        about = json.loads((images / _ABOUT).read_text())
        guest = Guest(
            kernel=images / about["directory"] / "kernel",
            first_files=images / about["directory"] / "first-files",
            version=about["version"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise TierUnavailableError("no kernel for virtual machines is set up", hint=f"run: {SETUP}") from None
    if about.get("made_by") != made_by() or not (guest.kernel.exists() and guest.first_files.exists()):
        raise TierUnavailableError(
            f"the kernel {guest.version!r} for virtual machines was set up by another version",
            hint=f"run: {SETUP}",
        )
    return guest


def set_up_guest(
    images: Path, *, packages: Sequence[Path] = (), environ: Mapping[str, str] | None = None
) -> Guest:
    """Make the kernel and its first files in the directory, of the packages given or else downloaded by apt.

    Needs no root: nothing is installed. Raises `TierUnavailableError` with the way out.
    """
    images.mkdir(parents=True, exist_ok=True, mode=0o755)
    with tempfile.TemporaryDirectory(dir=images, prefix="fresh-") as name:
        fresh = Path(name)
        chosen = list(packages) or _download(fresh, os.environ if environ is None else environ)
        files: dict[str, bytes] = {}
        for package in chosen:
            files |= read_package(package, wanted)
        version = version_of(files)
        place = images / f"{version}-{made_by()}"
        made = fresh / "made"
        made.mkdir(mode=0o755)
        kernel = next(content for path, content in files.items() if path == f"boot/vmlinuz-{version}")
        (made / "kernel").write_bytes(kernel_of(kernel))
        (made / "first-files").write_bytes(first_files(files))
        for path in made.iterdir():
            path.chmod(0o644)
        if place.exists():
            place.rename(fresh / "old")
        made.rename(place)
        about = {"version": version, "made_by": made_by(), "directory": place.name}
        (fresh / _ABOUT).write_text(json.dumps(about))
        (fresh / _ABOUT).replace(images / _ABOUT)
    return find_guest(images)


def _download(place: Path, environ: Mapping[str, str]) -> list[Path]:
    """Have apt fetch the packages into a directory: it checks their signatures, and installs nothing."""
    apt = shutil.which("apt-get", path=environ.get("PATH", os.defpath))
    if apt is None:
        raise TierUnavailableError(
            "apt-get: not found, so no kernel can be downloaded",
            hint=f"download Debian's {' and '.join(PACKAGES)} and run: {SETUP} --package FILE --package FILE",
        )
    _run(
        [apt, "download", "-q", "-o", "APT::Sandbox::User=root", _kernel_package(environ), PACKAGES[1]],
        place,
        environ,
    )
    return sorted(place.glob("*.deb"))


def _kernel_package(environ: Mapping[str, str]) -> str:
    """Return the package of the kernel that Debian's newest one leads to."""
    said = _run(["apt-cache", "depends", "--important", PACKAGES[0]], Path("/"), environ)
    named = [line.split()[-1] for line in said.splitlines() if "Depends: linux-image-" in line]
    return named[0] if named else PACKAGES[0]


def _run(argv: Sequence[str], place: Path, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            argv,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env={**environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TierUnavailableError(f"{argv[0]}: {error}", hint="see whether apt works here") from error
    if done.returncode != 0:
        raise TierUnavailableError(
            f"{' '.join(argv[:2])} failed: {done.stderr.strip()[-500:]!r}",
            hint="run apt-get update, and see whether the package sources hold linux-image-amd64",
        )
    return done.stdout
