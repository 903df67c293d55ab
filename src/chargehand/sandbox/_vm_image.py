"""The kernel and the first file system of a virtual machine, made of files from Debian's packages.

`newc` archives as in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst; the header of a
compressed kernel as in Documentation/x86/boot.rst.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import stat
import struct
from collections.abc import Mapping, Sequence

from chargehand.core.errors import TierUnavailableError

MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p")
"""What a machine needs beside the kernel, with what these need; what is built into the kernel is left out."""
_KERNEL = re.compile(r"boot/vmlinuz-(?P<version>[A-Za-z0-9.+~_-]+)")
_DEPENDS = re.compile(rb"(?:^|\0)depends=([A-Za-z0-9_,-]*)\0")
_HEADER_MAGIC, _MAGIC_AT = b"HdrS", 0x202
_SECTORS_AT, _PAYLOAD_AT, _SECTOR = 0x1F1, 0x248, 512
_XZ = b"\xfd7zXZ\0"
_ELF = b"\x7fELF"
_DIRECTORIES = ("bin", "dev", "modules", "proc", "new", "work")
_LARGEST_KERNEL = 256 << 20
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
"""The first program inside: from here on everything comes by 9p, also what is done next. Without a PATH the shell
runs busybox's programs by itself, which needs /proc."""


def wanted(name: str) -> bool:
    """Tell whether a file of a kernel's or of busybox-static's package is of any use here."""
    return (
        bool(_KERNEL.fullmatch(name))
        or name.endswith(("/modules.builtin", "/bin/busybox"))
        or name == "bin/busybox"
        or bool(re.search(r"/kernel/(drivers/(virtio|char)|fs/(9p|netfs|fscache)|net/9p)/[^/]+\.ko(\.xz)?$", name))
    )


def version_of(files: Mapping[str, bytes]) -> str:
    """Return the version of the one kernel among the files; raises `TierUnavailableError` where there is none."""
    found = [match["version"] for name in files if (match := _KERNEL.fullmatch(name))]
    if len(found) != 1:
        raise TierUnavailableError(
            f"{len(found)} kernels in the packages: {', '.join(found) or 'none'}",
            hint="give one package linux-image-…-amd64 and one busybox-static",
        )
    return found[0]


def kernel_of(image: bytes) -> bytes:
    """Return the ELF kernel in a compressed one: the machine need not unpack it at each start.

    One that is compressed otherwise than with xz comes back as it is. Raises `TierUnavailableError` for no kernel.
    """
    if image[_MAGIC_AT : _MAGIC_AT + 4] != _HEADER_MAGIC or len(image) < _PAYLOAD_AT + 8:
        raise TierUnavailableError("the package holds a vmlinuz that is no kernel", hint="download it once more")
    offset, size = struct.unpack_from("<II", image, _PAYLOAD_AT)
    start = ((image[_SECTORS_AT] or 4) + 1) * _SECTOR + offset
    payload = image[start : start + size]
    if not payload.startswith(_XZ):
        return image
    try:
        kernel = lzma.LZMADecompressor().decompress(payload, _LARGEST_KERNEL)
    except lzma.LZMAError:
        return image
    return kernel if kernel.startswith(_ELF) else image


def needed_modules(files: Mapping[str, bytes], names: Sequence[str] = MODULES) -> list[tuple[str, bytes]]:
    """Return file names and contents of the modules in the order in which they load.

    Raises `TierUnavailableError` for one that is neither there nor built in.
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
        for needed in _needs(content):
            visit(needed)
        order.append((f"{name}.ko", content))

    for name in names:
        visit(name.replace("-", "_"))
    return order


def _module_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".xz").removesuffix(".ko").replace("-", "_")


def _needs(module: bytes) -> list[str]:
    """Return what a module says of itself that it needs (its section .modinfo)."""
    found = _DEPENDS.search(module)
    return [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []


def first_files(files: Mapping[str, bytes]) -> bytes:
    """Return the archive that the kernel starts from: busybox, the modules, and `INIT`."""
    busybox = next((content for name, content in files.items() if name.endswith("bin/busybox")), None)
    if busybox is None:
        raise TierUnavailableError("the packages hold no busybox", hint="give the package busybox-static too")
    modules = needed_modules(files)
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


def made_by() -> str:
    """Return what names the way in which these files are made: other code of ours, other files."""
    return hashlib.sha256("\0".join((INIT, *MODULES, *_DIRECTORIES)).encode()).hexdigest()[:16]
