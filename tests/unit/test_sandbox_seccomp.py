"""The system call filter, run as the kernel runs it: listed calls are allowed, and nothing else."""

from __future__ import annotations

import errno
import hashlib
import struct
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chargehand.core.errors import TierUnavailableError
from chargehand.sandbox import seccomp as _seccomp
from chargehand.sandbox.seccomp import Architecture, allowed, compile_filter, host_architecture

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
ARCH: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES: tuple[Architecture, ...] = ("x86_64", "aarch64")
JUDGED = {"clone", "socket", "socketpair", "ioctl", "mknod", "mknodat", *_seccomp._ON_A_PROCESS}
DIGESTS: dict[Architecture, str] = {
    "x86_64": "2905cb5e9c8c23108bec4276839c1bab9cc42a361f657f9788bd4262758f2759",
    "aarch64": "f5f2f080d12e6eb6e1675c4b8fbd9384c6e0abe5ae8571b5b89571c1aa2ce31e",
}
"""A change here changes the rights of every sandbox: review each call that was added or removed."""
words = st.integers(0, 2**64 - 1)
each_machine = pytest.mark.parametrize("machine", MACHINES)


def run(program: bytes, number: int, *arguments: int, arch: int) -> int:
    """Interpret the classic BPF instructions of a filter; raises on any other."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<iIQ6Q", number - (1 << 32) if number >> 31 else number, arch, 0, *padded)
    accumulator = place = 0
    while True:
        code, jump_true, jump_false, k = struct.unpack_from("<HBBI", program, place * 8)
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x06:
            return int(k)
        else:
            taken = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            place += jump_true if taken else jump_false


class Filter:
    def __init__(self, machine: Architecture) -> None:
        self.machine = machine
        self.program = compile_filter(machine)
        self.numbers = allowed(machine)

    def __call__(self, call: str | int, *arguments: int) -> int:
        number = self.numbers[call] if isinstance(call, str) else call
        return run(self.program, number, *arguments, arch=ARCH[self.machine])


@each_machine
def test_the_filter_meets_the_limits_of_the_kernel(machine: Architecture) -> None:
    program = compile_filter(machine)
    assert len(program) % 8 == 0
    assert len(program) // 8 <= 4096
    for place in range(len(program) // 8):
        code, jump_true, jump_false, _ = struct.unpack_from("<HBBI", program, place * 8)
        if code not in (0x20, 0x06):
            assert place + 1 + max(jump_true, jump_false) < len(program) // 8
    assert struct.unpack_from("<H", program, len(program) - 8) == (0x06,)


@each_machine
def test_its_bytes_are_always_the_same(machine: Architecture) -> None:
    assert hashlib.sha256(compile_filter(machine)).hexdigest() == DIGESTS[machine]


def test_its_bytes_do_not_hang_on_the_process() -> None:
    program = (
        "import hashlib; from chargehand.sandbox.seccomp import compile_filter as c;"
        f"print(*(hashlib.sha256(c(m)).hexdigest() for m in {MACHINES!r}))"
    )
    for seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        )
        assert said.stdout.split() == list(DIGESTS.values())


@each_machine
def test_every_number_is_judged_by_the_list(machine: Architecture) -> None:
    judge = Filter(machine)
    plain = {number for name, number in judge.numbers.items() if name not in JUDGED}
    judged = {judge.numbers[name] for name in JUDGED if name in judge.numbers}
    judged.add({"x86_64": 135, "aarch64": 92}[machine])
    for number in range(1024):
        if number in judged:
            continue
        verdict = judge(number)
        assert (verdict == ALLOW) == (number in plain), number
        if number not in plain:
            assert verdict in (ERRNO | errno.EPERM, ERRNO | errno.ENOSYS), number


@each_machine
def test_calls_that_programs_fall_back_from_are_unknown(machine: Architecture) -> None:
    judge = Filter(machine)
    for number in (425, 426, 435, 467, 470, 600, 0x3FFFFFFF):
        assert judge(number) == ERRNO | errno.ENOSYS


@each_machine
@given(number=st.integers(0, 2**32 - 1), arch=st.integers(0, 2**32 - 1))
@example(number=1, arch=0x40000003)  # 32-bit x86
@example(number=1, arch=0x40000028)  # 32-bit arm
def test_another_architecture_is_killed(machine: Architecture, number: int, arch: int) -> None:
    if arch != ARCH[machine]:
        assert run(compile_filter(machine), number, arch=arch) == KILL


@each_machine
@given(number=st.integers(0x40000000, 0xFFFFFFFF))
@example(number=0x40000000 | 39)
def test_the_second_entry_of_x86_is_killed(machine: Architecture, number: int) -> None:
    assert run(compile_filter(machine), number, arch=ARCH[machine]) == KILL


@each_machine
@given(flags=words)
@example(flags=0x10000000 | 17)
@example(flags=0x00020000)
@example(flags=(1 << 40) | 17)
def test_clone_makes_no_namespace(machine: Architecture, flags: int) -> None:
    makes = flags & 0x7E020000
    assert Filter(machine)("clone", flags) == (ERRNO | errno.EPERM if makes else ALLOW)


@each_machine
@given(family=st.integers(0, 50), kind=words, protocol=st.integers(0, 300), high=st.integers(0, 2**32 - 1))
@example(family=16, kind=3, protocol=0, high=1)
@example(family=16, kind=3, protocol=15, high=0)
@example(family=2, kind=1, protocol=132, high=0)
@example(family=10, kind=2, protocol=17, high=0)
def test_sockets(machine: Architecture, family: int, kind: int, protocol: int, high: int) -> None:
    """The kernel takes an `int`: the upper half must not matter."""
    verdict = Filter(machine)("socket", family | high << 32, kind, protocol | high << 32)
    if family == 1 or (family in (2, 10) and protocol in (0, 1, 6, 17, 58)) or (family, protocol) == (16, 0):
        assert verdict == ALLOW
    else:
        refusal = errno.EPROTONOSUPPORT if family in (2, 10, 16) else errno.EAFNOSUPPORT
        assert verdict == ERRNO | refusal


@each_machine
@given(low=st.integers(0, 2**32 - 1), high=st.integers(0, 2**32 - 1))
@example(low=0x5412, high=7)
@example(low=1, high=0)
@example(low=0, high=1)
def test_calls_judged_by_a_single_argument(machine: Architecture, low: int, high: int) -> None:
    judge, value = Filter(machine), low | high << 32
    refuse = ERRNO | errno.EPERM
    assert judge("ioctl", 0, value) == (refuse if low in (0x5412, 0x541C) else ALLOW)
    assert judge("socketpair", value) == (ALLOW if low == 1 else refuse)
    assert judge("mknodat", 0, 0, value) == (refuse if low & 0x2000 else ALLOW)
    assert judge("prlimit64", value) == (refuse if low == 1 else ALLOW)
    assert judge("sched_setscheduler", value) == (refuse if low == 1 else ALLOW)
    personality = {"x86_64": 135, "aarch64": 92}[machine]
    assert judge(personality, value) == (ALLOW if low in (0, 0xFFFFFFFF) else refuse)


def test_mknod_is_refused_only_for_devices() -> None:
    judge = Filter("x86_64")
    for kind, verdict in ((0o020000, 1), (0o060000, 1), (0o010000, ALLOW), (0o140000, ALLOW), (0o100000, ALLOW)):
        assert judge("mknod", 0, kind | 0o666) == (verdict if verdict == ALLOW else ERRNO | errno.EPERM)


def test_dangerous_calls_are_on_no_list() -> None:
    names = {
        *(
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "pidfd_getfd",
            "mount",
            "umount2",
            "unshare",
            "setns",
        ),
        *("pivot_root", "chroot", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key"),
        *("io_uring_setup", "open_by_handle_at", "name_to_handle_at", "kexec_load", "init_module", "clone3"),
        *("move_mount", "open_tree", "fsopen", "mount_setattr", "fanotify_init", "io_setup", "personality"),
    }
    for machine in MACHINES:
        assert not names & set(allowed(machine))
        assert len(set(allowed(machine).values())) == len(allowed(machine))


def test_a_machine_without_a_filter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for known, expected in (("x86_64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64")):
        monkeypatch.setattr("platform.machine", lambda known=known: known)
        assert host_architecture() == expected
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(TierUnavailableError, match="riscv64") as caught:
        host_architecture()
    assert caught.value.exit_code == 5
