"""Raw system calls inside a real sandbox: each one judged by its arguments, and all other kernel entries."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.toolchain_kit import host_toolchain

from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.sandbox.contract import ExecResult, SandboxLimits, SandboxSpec
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.seccomp import allowed, host_architecture

pytestmark = pytest.mark.needs_bwrap
x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other entries exist on x86-64 only")

ARGUMENTS = [
    # call, arguments, answer
    ("clone", (0x10000000 | 17, 0, 0, 0, 0), "EPERM"),  # a user namespace
    ("clone", (0x40000000 | 17, 0, 0, 0, 0), "EPERM"),  # a network namespace
    ("clone", (0x00020000 | 17, 0, 0, 0, 0), "EPERM"),  # a mount namespace
    ("socket", (17, 3, 0), "EAFNOSUPPORT"),  # packets
    ("socket", (40, 1, 0), "EAFNOSUPPORT"),  # vsock: the host of a virtual machine
    ("socket", (38, 5, 0), "EAFNOSUPPORT"),  # the kernel's crypto
    ("socket", (16, 3, 15), "EPROTONOSUPPORT"),  # uevents
    ("socket", (2, 1, 132), "EPROTONOSUPPORT"),  # SCTP makes the host load a module
    ("socket", (2, 1, 262), "EPROTONOSUPPORT"),  # MPTCP
    ("socketpair", (16, 3, 0, 0), "EPERM"),
    ("mknodat", (-100, b"/tmp/null", 0o020666, 259), "EPERM"),  # a character device
    ("mknodat", (-100, b"/tmp/disk", 0o060666, 2048), "EPERM"),  # a block device
    ("ioctl", (0, 0x5412, b"x"), "EPERM"),  # TIOCSTI
    ("ioctl", (0, 0x541C, b"x"), "EPERM"),  # TIOCLINUX
    ("prlimit64", (1, 7, 0, 0), "EPERM"),
    ("sched_setaffinity", (1, 8, b"\xff" * 8), "EPERM"),
    ("sched_setscheduler", (1, 0, 0), "EPERM"),
    ("sched_setparam", (1, 0), "EPERM"),
    ("sched_setattr", (1, 0, 0), "EPERM"),
    # the same calls in a harmless form: the table can fail
    ("socket", (1, 1, 0), "done"),
    ("socket", (2, 1, 6), "done"),
    ("socket", (16, 3, 0), "done"),
    ("mknodat", (-100, b"/tmp/pipe", 0o010666, 0), "done"),
    ("sched_setaffinity", (0, 8, b"\xff" * 8), "done"),
    ("prlimit64", (0, 7, 0, 0), "done"),
]
BY_NUMBER = {
    # name -> number on x86-64, on arm64, answer
    "ptrace": (101, 117, "EPERM"),
    "process_vm_readv": (310, 270, "EPERM"),
    "process_vm_writev": (311, 271, "EPERM"),
    "pidfd_getfd": (438, 438, "EPERM"),
    "kcmp": (312, 272, "EPERM"),
    "unshare": (272, 97, "EPERM"),
    "setns": (308, 268, "EPERM"),
    "mount": (165, 40, "EPERM"),
    "umount2": (166, 39, "EPERM"),
    "pivot_root": (155, 41, "EPERM"),
    "chroot": (161, 51, "EPERM"),
    "open_tree": (428, 428, "EPERM"),
    "move_mount": (429, 429, "EPERM"),
    "fsopen": (430, 430, "EPERM"),
    "mount_setattr": (442, 442, "EPERM"),
    "bpf": (321, 280, "EPERM"),
    "perf_event_open": (298, 241, "EPERM"),
    "userfaultfd": (323, 282, "EPERM"),
    "keyctl": (250, 219, "EPERM"),
    "add_key": (248, 217, "EPERM"),
    "request_key": (249, 218, "EPERM"),
    "init_module": (175, 105, "EPERM"),
    "finit_module": (313, 273, "EPERM"),
    "delete_module": (176, 106, "EPERM"),
    "kexec_load": (246, 104, "EPERM"),
    "reboot": (169, 142, "EPERM"),
    "swapon": (167, 224, "EPERM"),
    "settimeofday": (164, 170, "EPERM"),
    "clock_settime": (227, 112, "EPERM"),
    "sethostname": (170, 161, "EPERM"),
    "open_by_handle_at": (304, 265, "EPERM"),
    "name_to_handle_at": (303, 264, "EPERM"),
    "fanotify_init": (300, 262, "EPERM"),
    "syslog": (103, 116, "EPERM"),
    "quotactl": (179, 60, "EPERM"),
    "acct": (163, 89, "EPERM"),
    "io_setup": (206, 0, "EPERM"),
    "memfd_secret": (447, 447, "EPERM"),
    "io_uring_setup": (425, 425, "ENOSYS"),
    "io_uring_enter": (426, 426, "ENOSYS"),
    "clone3": (435, 435, "ENOSYS"),
    "newer than the table": (600, 600, "ENOSYS"),
}
CALLS = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, arguments):
    words = [ctypes.c_char_p(bytes.fromhex(a)) if isinstance(a, str) else ctypes.c_long(a) for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""
THIRTY_TWO = """
void _start(void) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20));
    __asm__ volatile("int $0x80" : : "a"(1), "b"(7));
    for (;;) { }
}
"""
Python = Callable[..., ExecResult]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("calls") / "plain"
    place.mkdir()
    os.chown(place, *sandbox_ids())
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> Iterator[Callable[..., ExecResult]]:
    loop = asyncio.new_event_loop()
    tier = ProcessTier(host_toolchain())
    loop.run_until_complete(tier.__aenter__())
    plan = MountPlan(target="/workspace", plain=place)
    sandbox = loop.run_until_complete(tier.open(SandboxSpec(mounts=plan, limits=SandboxLimits(memory_mb=512))))
    yield lambda *argv: loop.run_until_complete(sandbox.exec(argv))
    loop.run_until_complete(sandbox.close())
    loop.run_until_complete(tier.close())
    loop.close()


def answers(run: Python, calls: list[tuple[int, list[int | str]]]) -> list[str]:
    """Make each call in a separate child, which a wrongly allowed call may end or replace."""
    program = f"""{CALLS}
for number, arguments in json.loads({json.dumps(json.dumps(calls))}):
    inner, outer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = call(number, arguments)
        os.write(outer, said.encode())
        os._exit(0)
    os.close(outer)
    said = os.read(inner, 64).decode()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(said or f"signal {{-status}}")
    os.close(inner)
"""
    result = run("python3", "-I", "-c", program)
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode().splitlines()


def test_calls_that_are_judged_by_an_argument(run: Python) -> None:
    numbers = allowed(host_architecture())
    words = [[a.hex() + "00" if isinstance(a, bytes) else a for a in arguments] for _, arguments, _ in ARGUMENTS]
    seen = answers(run, [(numbers[name], each) for (name, _, _), each in zip(ARGUMENTS, words, strict=True)])
    told = [(name, arguments, how) for (name, arguments, _), how in zip(ARGUMENTS, seen, strict=True)]
    assert told == ARGUMENTS


def test_calls_that_reach_beyond_a_sandbox(run: Python) -> None:
    column = {"x86_64": 0, "aarch64": 1}[host_architecture()]
    calls = [(int(row[column]), [-1, -1, -1, -1, -1, -1]) for row in BY_NUMBER.values()]
    seen = dict(zip(BY_NUMBER, answers(run, list(calls)), strict=True))
    assert seen == {name: row[2] for name, row in BY_NUMBER.items()}


@x86_64
def test_every_number_of_x32_ends_its_program(run: Python) -> None:
    numbers = [0, 1, 2, 39, 57, 59, 101, 165, 272, 435, 512, 513, 520, 521, 540, 546, 547, 1023]
    seen = answers(run, [(0x40000000 | number, [-1, -1, -1]) for number in numbers])
    assert set(seen) == {"signal 31"}


@x86_64
@pytest.mark.parametrize("number", [1, 20, 26, 120, 190])
def test_a_32_bit_entry_ends_its_program(run: Python, number: int) -> None:
    """The numbers are those of i386: exit, getpid, ptrace, clone and vfork."""
    code = bytes([0xB8, *number.to_bytes(4, "little"), 0x31, 0xDB, 0xCD, 0x80, 0xC3]).hex()
    program = f"""{CALLS}
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex({code!r}))
print("before", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("after")
"""
    result = run("python3", "-I", "-c", program)
    assert result.stdout == b"before\n"
    assert result.exit_code in (159, 139)  # SIGSYS; SIGSEGV if the kernel has no 32-bit entry


@x86_64
def test_a_32_bit_program_does_not_get_to_its_first_call(run: Python, place: Path, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "small.c").write_text(THIRTY_TWO)
    words = ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie", "-fno-stack-protector")
    subprocess.run(["gcc", *words, "-o", place / "small", tmp_path / "small.c"], check=True)
    outside = subprocess.run([place / "small"], check=False).returncode
    assert outside in (7, -11), "outside of a sandbox it ends by itself, or the kernel has no 32-bit entry"
    assert run("./small").exit_code == (159 if outside == 7 else 139)
