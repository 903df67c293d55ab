"""Packages are read and a machine's first files are built from them; a damaged one is refused by name."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.errors import TierUnavailableError
from chargehand.sandbox.vm_kernel import (
    extract_kernel,
    find_kernel,
    kernel_version,
    make_initramfs,
    order_modules,
    read_package,
    set_up_kernel,
)

VERSION = "6.1.0-1-amd64"
MODULES = f"lib/modules/{VERSION}/kernel"


def package(files: dict[str, bytes], *, compression: str = "xz") -> bytes:
    """Return a Debian package of these files."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode=f"w:{compression}") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", f"data.tar.{compression}": inner.getvalue()}
    whole = b"!<arch>\n"
    for name, content in members.items():
        whole += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        whole += content + b"\n" * (len(content) % 2)
    return whole


def module(*needs: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0name=x\0"


def kernel(payload: bytes) -> bytes:
    """Return a compressed kernel whose setup code takes two sectors."""
    image = bytearray(3 * 512)
    image[0x1F1] = 2
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 0, len(payload))
    return bytes(image) + payload


ELF = b"\x7fELF" + bytes(1000)
KERNEL = {
    f"boot/vmlinuz-{VERSION}": kernel(lzma.compress(ELF)),
    f"lib/modules/{VERSION}/modules.builtin": b"kernel/drivers/virtio/virtio_mmio.ko\nkernel/fs/netfs/netfs.ko\n",
    f"{MODULES}/drivers/virtio/virtio_pci.ko": module("virtio", "virtio_pci_legacy_dev"),
    f"{MODULES}/drivers/virtio/virtio_pci_legacy_dev.ko": module(),
    f"{MODULES}/drivers/virtio/virtio.ko": module(),
    f"{MODULES}/drivers/char/virtio_console.ko.xz": lzma.compress(module("virtio")),
    f"{MODULES}/net/9p/9pnet.ko": module(),
    f"{MODULES}/net/9p/9pnet_virtio.ko": module("virtio", "9pnet"),
    f"{MODULES}/fs/9p/9p.ko": module("9pnet", "netfs"),
    f"{MODULES}/sound/unwanted.ko": module(),
}
BUSYBOX = {"bin/busybox": b"\x7fELF static"}


@pytest.mark.parametrize("compression", ["xz", "gz"])
def test_only_the_needed_files_of_a_package_are_read(tmp_path: Path, compression: str) -> None:
    (tmp_path / "a.deb").write_bytes(package(KERNEL, compression=compression))
    files = read_package(tmp_path / "a.deb")
    assert files == {name: body for name, body in KERNEL.items() if "unwanted" not in name}


@given(cut=st.integers(0, 2000), at=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_damaged_package_is_refused_or_read_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, byte: int
) -> None:
    whole = bytearray(package(BUSYBOX))
    whole[min(at, len(whole) - 1)] = byte
    path = tmp_path_factory.mktemp("damaged") / "a.deb"
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    try:
        files = read_package(path)
    except TierUnavailableError:
        return
    assert set(files) <= set(BUSYBOX)


def test_kernel_modules_are_ordered_by_dependency_without_builtin_modules() -> None:
    order = [name for name, _ in order_modules(KERNEL)]
    assert order == [
        *("virtio.ko", "virtio_pci_legacy_dev.ko", "virtio_pci.ko", "virtio_console.ko"),
        *("9pnet.ko", "9pnet_virtio.ko", "9p.ko"),
    ]
    assert dict(order_modules(KERNEL))["virtio_console.ko"] == module("virtio")


def test_a_kernel_without_a_module_is_refused() -> None:
    cloud = {name: body for name, body in KERNEL.items() if "/9p" not in name}
    with pytest.raises(TierUnavailableError, match="9pnet_virtio") as caught:
        order_modules(cloud)
    assert "not the cloud kernel" in caught.value.hint


def test_a_kernel_is_unpacked_if_possible_and_an_invalid_file_rejected() -> None:
    assert extract_kernel(kernel(lzma.compress(ELF))) == ELF
    for packed in (kernel(b"(\xb5/\xfd other"), kernel(b"\xfd7zXZ\0 damaged"), kernel(lzma.compress(b"no ELF"))):
        assert extract_kernel(packed) == packed
    for wrong in (b"", b"x" * 5000):
        with pytest.raises(TierUnavailableError, match="not a kernel"):
            extract_kernel(wrong)


def test_the_first_files_are_an_archive_that_cpio_reads() -> None:
    data, names = make_initramfs(KERNEL | BUSYBOX), []
    while True:
        assert data[:6] == b"070701"
        mode, size, length = (int(data[at : at + 8], 16) for at in (14, 54, 94))
        name = data[110 : 110 + length - 1].decode()
        body = data[(110 + length + 3) // 4 * 4 :][:size]
        if name == "TRAILER!!!":
            break
        names.append(name)
        if name == "init":
            assert (mode, body[:18]) == (0o100755, b"#!/bin/busybox sh\n")
        data = data[((110 + length + 3) // 4 * 4 + size + 3) // 4 * 4 :]
    assert {"bin/busybox", "init", "modules/9p.ko", "modules/order", "new", "work"} <= set(names)
    with pytest.raises(TierUnavailableError, match="busybox"):
        make_initramfs(KERNEL)


def test_setup_requires_a_single_kernel_and_is_repeatable(tmp_path: Path) -> None:
    for name, files in (("k", KERNEL), ("b", BUSYBOX), ("two", KERNEL | {"boot/vmlinuz-7": b""})):
        (tmp_path / f"{name}.deb").write_bytes(package(files))
    images = tmp_path / "images"
    with pytest.raises(TierUnavailableError) as caught:
        find_kernel(images)
    assert caught.value.hint == "chargehand sandbox setup vm"
    for _ in range(2):
        guest = set_up_kernel(images, packages=[tmp_path / "k.deb", tmp_path / "b.deb"])
        assert (guest.version, guest.kernel.read_bytes()) == (VERSION, ELF)
        assert {path.name for path in images.iterdir()} == {"about.json", guest.kernel.parent.name}
    for wrong in (["b"], ["two", "b"]):
        with pytest.raises(TierUnavailableError, match="kernels in the packages"):
            set_up_kernel(images, packages=[tmp_path / f"{name}.deb" for name in wrong])
    assert find_kernel(images) == guest
    assert kernel_version(KERNEL) == VERSION
    (images / "about.json").write_text('{"version": "1", "directory": "x", "made_by": "older"}')
    with pytest.raises(TierUnavailableError, match="another version"):
        find_kernel(images)


def test_without_apt_the_packages_to_download_are_named(tmp_path: Path) -> None:
    with pytest.raises(TierUnavailableError) as caught:
        set_up_kernel(tmp_path / "images", environ={"PATH": str(tmp_path)})
    assert "--package FILE" in caught.value.hint
    assert list((tmp_path / "images").iterdir()) == []
