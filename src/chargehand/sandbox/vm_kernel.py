"""Virtual machines and their kernel, which is unpacked from Debian packages into the state directory."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from chargehand.core.errors import TierUnavailableError

SETUP = "chargehand sandbox setup vm"
PACKAGES = ("linux-image-amd64", "busybox-static")
_ABOUT = "about.json"
_SECONDS = 600.0
# Modules that a machine needs in addition to the kernel, with their dependencies; built-in ones are left out.
MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p")
_KERNEL = re.compile(r"boot/vmlinuz-(?P<version>[A-Za-z0-9.+~_-]+)")
_DEPENDS = re.compile(rb"(?:^|\0)depends=([A-Za-z0-9_,-]*)\0")
_HEADER_MAGIC, _MAGIC_AT = b"HdrS", 0x202
_SECTORS_AT, _PAYLOAD_AT, _SECTOR = 0x1F1, 0x248, 512
_XZ = b"\xfd7zXZ\0"
_ELF = b"\x7fELF"
_DIRECTORIES = ("bin", "dev", "modules", "proc", "new", "work")
_LARGEST_KERNEL = 256 << 20
# The first program inside: from here on everything comes by 9p, also the next script. Without a PATH the shell
# runs busybox's programs by itself, which needs /proc.
INIT = """#!/bin/busybox sh
export PATH=/none
/bin/busybox mount -t proc proc /proc
fail() { echo "chargehand: $1" > /dev/kmsg; reboot -f; }
mount -t devtmpfs -o nosuid dev /dev || fail "no devices"
for module in $(cat /modules/order); do insmod "/modules/$module" || fail "module $module"; done
options=trans=virtio,version=9p2000.L,msize=512000,nosuid,nodev
mount -t 9p -o "$options,ro,cache=loose" system /new || fail "no system"
mount -t 9p -o "$options,access=any,cache=mmap" work /work || fail "no workspace"
. /new/run/chargehand/start.sh
fail "not started"
"""


def is_wanted_file(name: str) -> bool:
    """Return whether a file of a kernel package or of busybox-static is needed here."""
    return (
        bool(_KERNEL.fullmatch(name))
        or name.endswith(("/modules.builtin", "/bin/busybox"))
        or name == "bin/busybox"
        or bool(re.search(r"/kernel/(drivers/(virtio|char)|fs/(9p|netfs|fscache)|net/9p)/[^/]+\.ko(\.xz)?$", name))
    )


def kernel_version(files: Mapping[str, bytes]) -> str:
    """Return the version of the only kernel among the files; raises `TierUnavailableError` otherwise."""
    found = [match["version"] for name in files if (match := _KERNEL.fullmatch(name))]
    if len(found) != 1:
        raise TierUnavailableError(
            f"{len(found)} kernels in the packages: {', '.join(found) or 'none'}",
            hint="give one package linux-image-…-amd64 and one busybox-static",
        )
    return found[0]


def extract_kernel(image: bytes) -> bytes:
    """Return the ELF kernel in a compressed one: the machine need not unpack it at each start.

    A kernel compressed other than with xz is returned as it is. Raises `TierUnavailableError` for other files.
    """
    if image[_MAGIC_AT : _MAGIC_AT + 4] != _HEADER_MAGIC or len(image) < _PAYLOAD_AT + 8:
        raise TierUnavailableError(
            "the package contains a vmlinuz that is not a kernel", hint="download it once more"
        )
    offset, size = struct.unpack_from("<II", image, _PAYLOAD_AT)
    # By the kernel's boot protocol 0 setup sectors mean 4; the boot sector comes before them.
    start = ((image[_SECTORS_AT] or 4) + 1) * _SECTOR + offset
    payload = image[start : start + size]
    if not payload.startswith(_XZ):
        return image
    try:
        kernel = lzma.LZMADecompressor().decompress(payload, _LARGEST_KERNEL)
    except lzma.LZMAError:
        return image
    return kernel if kernel.startswith(_ELF) else image


def order_modules(files: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Return file names and contents of the modules in the order in which they load.

    Raises `TierUnavailableError` for a module that is neither present nor built in.
    """
    modules = {_module_name(name): content for name, content in files.items() if re.search(r"\.ko(\.xz)?$", name)}
    packed = {_module_name(name) for name in files if name.endswith(".ko.xz")}
    lists = [content for name, content in files.items() if name.endswith("/modules.builtin")]
    builtin = {_module_name(line) for text in lists for line in text.decode().split()}
    order: list[tuple[str, bytes]] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen or name in builtin:
            return
        seen.add(name)
        if name not in modules:
            raise TierUnavailableError(
                f"this kernel has no module {name!r}", hint="take Debian's linux-image-amd64, not the cloud kernel"
            )
        content = lzma.decompress(modules[name]) if name in packed else modules[name]
        depends = _DEPENDS.search(content)  # declared in its section .modinfo
        for needed in depends[1].decode().split(",") if depends else ():
            if needed:
                visit(needed.replace("-", "_"))
        order.append((f"{name}.ko", content))

    for name in MODULES:
        visit(name.replace("-", "_"))
    return order


def _module_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".xz").removesuffix(".ko").replace("-", "_")


def make_initramfs(files: Mapping[str, bytes]) -> bytes:
    """Return the archive that the kernel starts from: busybox, the modules, and `INIT`."""
    busybox = next((content for name, content in files.items() if name.endswith("bin/busybox")), None)
    if busybox is None:
        raise TierUnavailableError(
            "the packages do not contain busybox", hint="give the package busybox-static too"
        )
    modules = order_modules(files)
    archive = bytearray()
    for number, name in enumerate(_DIRECTORIES, 1):
        archive += _entry(number, name, stat.S_IFDIR | 0o755, b"")
    plain = {"bin/busybox": busybox, "init": INIT.encode()} | {f"modules/{name}": body for name, body in modules}
    plain["modules/order"] = " ".join(name for name, _ in modules).encode()
    for number, (name, content) in enumerate(plain.items(), len(_DIRECTORIES) + 1):
        executable = name in ("init", "bin/busybox")
        archive += _entry(number, name, stat.S_IFREG | (0o755 if executable else 0o644), content)
    return bytes(archive + _entry(0, "TRAILER!!!", 0, b""))


def _entry(number: int, name: str, mode: int, content: bytes) -> bytes:
    """Return one file of a `newc` archive; owner root, no time."""
    called = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(called), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + called
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def recipe_digest() -> str:
    """Return a digest of the recipe for these files: if our code changes, they are made again."""
    return hashlib.sha256("\0".join((INIT, *MODULES, *_DIRECTORIES)).encode()).hexdigest()[:16]


_MAGIC = b"!<arch>\n"
_HEADER = 60
_END = b"`\n"
_LARGEST_MEMBER = 512 << 20
# Not zst: `tarfile` reads it only from Python 3.14 on.
_COMPRESSIONS = ("data.tar", "data.tar.gz", "data.tar.xz", "data.tar.bz2")


def read_package(path: Path) -> dict[str, bytes]:
    """Return the contents of a Debian package's files that `is_wanted_file` accepts, by names without `./`.

    Raises `TierUnavailableError` that names the file if it is not a Debian package.
    """
    try:
        found: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(_read_data_member(path)), mode="r:*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isfile() and is_wanted_file(name):
                    file = archive.extractfile(member)
                    found[name] = file.read(_LARGEST_MEMBER) if file else b""
        return found
    except (OSError, ValueError, EOFError, tarfile.TarError) as error:
        raise TierUnavailableError(
            f"{str(path)!r} is not a Debian package: {error}",
            hint="give the .deb file of a kernel or busybox-static",
        ) from error


def _read_data_member(path: Path) -> bytes:
    """Return the member that holds the files; raises `ValueError`, `OSError`."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin as one")
        seen = []
        while header := file.read(_HEADER):
            if len(header) < _HEADER or header[58:] != _END:
                raise ValueError("the header of a member is damaged")
            name = header[:16].decode("ascii").strip().rstrip("/")
            size = int(header[48:58])
            if not 0 <= size <= _LARGEST_MEMBER:
                raise ValueError(f"a member of {size} bytes")
            if name in _COMPRESSIONS:
                data = file.read(size)
                if len(data) < size:
                    raise ValueError(f"{name} is cut off")
                return data
            seen.append(name)
            # Members of an ar archive begin at even offsets.
            file.seek(size + size % 2, io.SEEK_CUR)
        raise ValueError(f"it has {', '.join(seen) or 'no members'}, but not {' or '.join(_COMPRESSIONS)}")


class VmKernel(Struct, frozen=True, kw_only=True):
    """A machine's boot files: the kernel, its initramfs (`first-files` on disk), the kernel's version."""

    kernel: Path
    initramfs: Path
    version: str


class VirtualMachine(Struct, frozen=True, kw_only=True):
    """A machine's configuration: QEMU's program, its boot files, the accelerator, the number of processors."""

    qemu: str
    boot: VmKernel
    accelerator: Literal["kvm", "tcg"]
    cpus: int


def find_kernel(images: Path) -> VmKernel:
    """Return the kernel in `images`; raises `TierUnavailableError` if it is missing or of another version."""
    try:
        about = json.loads((images / _ABOUT).read_text())
        found = VmKernel(
            kernel=images / about["directory"] / "kernel",
            initramfs=images / about["directory"] / "first-files",
            version=about["version"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise TierUnavailableError("no kernel for virtual machines is set up", hint=SETUP) from None
    if about.get("made_by") != recipe_digest() or not (found.kernel.exists() and found.initramfs.exists()):
        raise TierUnavailableError(
            f"the kernel {found.version!r} for virtual machines was set up by another version",
            hint=SETUP,
        )
    return found


def set_up_kernel(
    images: Path, *, packages: Sequence[Path] = (), environ: Mapping[str, str] | None = None
) -> VmKernel:
    """Make the kernel and its first files in the directory, from the given packages or downloaded by apt.

    Needs no root: nothing is installed. Raises `TierUnavailableError` with the remedy.
    """
    images.mkdir(parents=True, exist_ok=True, mode=0o755)
    with tempfile.TemporaryDirectory(dir=images, prefix="fresh-") as name:
        fresh = Path(name)
        chosen = list(packages)
        if not chosen:
            environ = os.environ if environ is None else environ
            apt = shutil.which("apt-get", path=environ.get("PATH", os.defpath))
            if apt is None:
                raise TierUnavailableError(
                    "apt-get: not found, so no kernel can be downloaded",
                    hint=f"download Debian's {' and '.join(PACKAGES)} and run: "
                    f"{SETUP} --package FILE --package FILE",
                )
            # Debian's newest kernel is a package that only depends on the package that holds it.
            said = _run(["apt-cache", "depends", "--important", PACKAGES[0]], Path("/"), environ)
            named = [line.split()[-1] for line in said.splitlines() if "Depends: linux-image-" in line]
            wanted = (named[0] if named else PACKAGES[0], PACKAGES[1])
            # It checks their signatures, and installs nothing. As root: apt's user may not write into our
            # directory.
            _run([apt, "download", "-q", "-o", "APT::Sandbox::User=root", *wanted], fresh, environ)
            chosen = sorted(fresh.glob("*.deb"))
        files: dict[str, bytes] = {}
        for package in chosen:
            files |= read_package(package)
        version = kernel_version(files)
        place = images / f"{version}-{recipe_digest()}"
        made = fresh / "made"
        made.mkdir(mode=0o755)
        kernel = next(content for path, content in files.items() if path == f"boot/vmlinuz-{version}")
        (made / "kernel").write_bytes(extract_kernel(kernel))
        (made / "first-files").write_bytes(make_initramfs(files))
        for path in made.iterdir():
            path.chmod(0o644)
        if place.exists():
            # rename(2) replaces a directory only if it is empty.
            place.rename(fresh / "old")
        made.rename(place)
        about = {"version": version, "made_by": recipe_digest(), "directory": place.name}
        (fresh / _ABOUT).write_text(json.dumps(about))
        # Last: the kernel is found only through this file.
        (fresh / _ABOUT).replace(images / _ABOUT)
    return find_kernel(images)


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
            hint="run apt-get update, and check that the package sources have linux-image-amd64",
        )
    return done.stdout
