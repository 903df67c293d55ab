"""The system call filters, as classic BPF programs: for sandboxes, and stricter ones for snippets and parsers.

See seccomp(2) and `linux/filter.h`. All are allow-lists over the calls of `syscalls.txt`.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from chargehand.core.errors import TierUnavailableError

Architecture = Literal["x86_64", "aarch64"]
_AUDIT_ARCH: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`; each argument takes 8 bytes


def _instruction(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("<HBBI", code, jt, jf, k & 0xFFFFFFFF)


def _return_error(number: int) -> bytes:
    return _instruction(_RET, 0x00050000 | number)  # SECCOMP_RET_ERRNO


_ALLOW = _instruction(_RET, 0x7FFF0000)
_KILL = _instruction(_RET, 0x80000000)  # SECCOMP_RET_KILL_PROCESS
_DENY = _return_error(errno.EPERM)

# Programs try these and fall back if the kernel answers ENOSYS; EPERM would break them. clone3() takes its flags
# by a pointer, which no filter can follow: after ENOSYS, programs use clone(), whose flags are checked.
_ANSWERED_AS_UNKNOWN = {"clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426}
# The first number that syscalls.txt may lack only because the kernel is newer.
_FIRST_NEWER_CALL = 451
# x32 calls name the architecture of x86-64, and are recognised by this bit of their number.
_X32_BIT = 0x40000000
_CLONE_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag of clone(2)
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10  # the network namespace has only its loopback
_AF_NETLINK, _NETLINK_ROUTE = 16, 0  # getifaddrs() needs it, and it shows only that namespace
_PROTOCOLS = (0, 1, 6, 17, 58)  # default, ICMP, TCP, UDP, ICMPv6: any other makes the host load a module
_S_IFCHR = 0x2000  # set in the mode of character and of block devices
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_PERSONALITIES = (0x0, 0xFFFFFFFF)  # PER_LINUX, and the query: others make memory executable or predictable
_ON_A_PROCESS = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")

_SNIPPET_CALLS = """
read readv pread64 preadv write writev close close_range lseek fstat stat lstat newfstatat statx access
faccessat faccessat2 readlink readlinkat getdents64 getcwd fstatfs statfs fcntl ioctl dup dup2 dup3 pipe pipe2
socketpair shutdown sendto recvfrom getsockname setsockopt getsockopt eventfd2 epoll_create epoll_create1
epoll_ctl epoll_wait epoll_pwait poll ppoll select pselect6 mmap munmap mprotect mremap madvise brk membarrier
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending sigaltstack setitimer getitimer alarm pause futex
restart_syscall sched_yield sched_getaffinity getrandom uname sysinfo times clock_gettime clock_getres
clock_nanosleep nanosleep gettimeofday time getpid getppid gettid getuid geteuid getgid getegid getresuid
getresgid getgroups getrusage getrlimit exit exit_group rseq set_robust_list arch_prctl getcpu
"""
_PARSER_CALLS = """
read write close lseek fstat mmap munmap mprotect mremap madvise brk membarrier futex rt_sigaction rt_sigprocmask
rt_sigreturn restart_syscall sched_yield getrandom clock_gettime gettimeofday getpid exit exit_group
"""
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and the bit of O_TMPFILE that no other flag has.
_OPEN_FOR_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000


@functools.cache
def allowed(architecture: Architecture) -> dict[str, int]:
    """Return name and number of every call that a sandbox may make on an architecture."""
    column = 1 if architecture == "x86_64" else 2
    lines = Path(__file__).with_name("syscalls.txt").read_text().splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def host_architecture() -> Architecture:
    """Return this machine's architecture; raises `TierUnavailableError` if we have no filter for it."""
    name = platform.machine()
    if name == "x86_64":
        return "x86_64"
    if name in ("aarch64", "arm64"):
        return "aarch64"
    raise TierUnavailableError(
        f"no system call filter for {name!r}", hint="use the container tier, or a machine of x86-64 or arm64"
    )


def compile_filter(architecture: Architecture) -> bytes:
    """Return the sandbox's filter as an array of `struct sock_filter`, for `bwrap --seccomp`.

    Calls of another architecture (including 32-bit entry points and x32) end the process.
    """
    numbers = allowed(architecture)
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JEQ, _AUDIT_ARCH[architecture], 1, 0),
        _KILL,
        _instruction(_LOAD, _NR),
        _instruction(_JGE, _X32_BIT, 0, 1),
        _KILL,
    ]
    by_argument = {
        numbers["clone"]: _deny_bits(0, _CLONE_NAMESPACES),
        numbers["socket"]: _judge_socket(),
        numbers["socketpair"]: _deny_unless(0, (_AF_UNIX,)),
        numbers["mknodat"]: _deny_bits(2, _S_IFCHR),
        numbers["ioctl"]: _deny_if(1, _TERMINAL_INJECTION),
        {"x86_64": 135, "aarch64": 92}[architecture]: _deny_unless(0, _PERSONALITIES),
        # Process 1 is the exec server: it has the same user, and no program may change its limits.
        **{numbers[name]: _deny_if(0, (1,)) for name in _ON_A_PROCESS},
    }
    if "mknod" in numbers:
        by_argument[numbers["mknod"]] = _deny_bits(1, _S_IFCHR)
    for number, body in by_argument.items():
        program += [_instruction(_JEQ, number, 0, len(body)), *body]
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers.values()) - set(by_argument)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    for low, high in ranges:
        if low == high:
            program += [_instruction(_JEQ, low, 0, 1), _ALLOW]
        else:
            program += [_instruction(_JGE, low, 0, 2), _instruction(_JGE, high + 1, 1, 0), _ALLOW]
    for number in _ANSWERED_AS_UNKNOWN.values():
        program += [_instruction(_JEQ, number, 0, 1), _return_error(errno.ENOSYS)]
    # Calls newer than our table get the answer of an older kernel, so that programs fall back.
    program += [_instruction(_JGE, _FIRST_NEWER_CALL, 0, 1), _return_error(errno.ENOSYS), _DENY]
    return b"".join(program)


def _load_argument(index: int) -> bytes:
    """Return the instruction that loads the low 32 bits of an argument: only these are checked."""
    return _instruction(_LOAD, _ARGUMENTS + 8 * index)


def _deny_bits(index: int, mask: int) -> list[bytes]:
    return [_load_argument(index), _instruction(_JSET, mask, 0, 1), _DENY, _ALLOW]


def _deny_if(index: int, values: Sequence[int]) -> list[bytes]:
    return [_load_argument(index), *_compare(values, _DENY), _ALLOW]


def _deny_unless(index: int, values: Sequence[int], refusal: bytes = _DENY) -> list[bytes]:
    return [_load_argument(index), *_compare(values, _ALLOW), refusal]


def _compare(values: Sequence[int], verdict: bytes) -> list[bytes]:
    return [word for value in values for word in (_instruction(_JEQ, value, 0, 1), verdict)]


def _judge_socket() -> list[bytes]:
    """Judge socket(2) by family and protocol; a refusal looks like a kernel without support."""
    unsupported = _return_error(errno.EPROTONOSUPPORT)
    internet = _deny_unless(2, _PROTOCOLS, unsupported)
    netlink = _deny_unless(2, (_NETLINK_ROUTE,), unsupported)
    return [
        _load_argument(0),
        *_compare((_AF_UNIX,), _ALLOW),
        _instruction(_JEQ, _AF_INET, 1, 0),
        _instruction(_JEQ, _AF_INET6, 0, len(internet)),
        *internet,
        _instruction(_JEQ, _AF_NETLINK, 0, len(netlink)),
        *netlink,
        _return_error(errno.EAFNOSUPPORT),
    ]


def compile_snippet_filter(architecture: Architecture) -> bytes:
    """Return the filter that a snippet's process adds to the sandbox's filter, as `struct sock_filter`s.

    The sandbox lets programs write, fork and open sockets among themselves. A snippet needs none of these, and
    must leave nothing that another could find: it computes, reads files that every user may read, and writes to
    its given descriptors. The filter compares numbers only: calls of another architecture already end the process
    in the filter below it.
    """
    numbers = allowed(architecture)
    read_only = _deny_bits(2, _OPEN_FOR_WRITING)
    # prlimit64 is the C library's getrlimit: allowed for the process itself (0), not for others.
    own_limits = [_load_argument(0), _instruction(_JEQ, 0, 1, 0), _DENY, _ALLOW]
    program = [_instruction(_LOAD, _NR)]
    for name, body in (("openat", read_only), ("prlimit64", own_limits)):
        program += [_instruction(_JEQ, numbers[name], 0, len(body)), *body]
    for name in _SNIPPET_CALLS.split():
        if name in numbers:  # arm64 lacks some, and has the newer form of each
            program += [_instruction(_JEQ, numbers[name], 0, 1), _ALLOW]
    # Refused and not killed: a snippet sees an exception that it can handle.
    return b"".join([*program, _DENY])


def compile_parser_filter(architecture: Architecture) -> bytes:
    """Return the filter of a process that only computes on its open pipes, as `struct sock_filter`s.

    It can open, start, signal and connect to nothing: a fault in a parser that hostile content exploits yields
    false results and no more. Calls of another architecture end the process.
    """
    numbers = allowed(architecture)
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JEQ, _AUDIT_ARCH[architecture], 1, 0),
        _KILL,
        _instruction(_LOAD, _NR),
    ]
    for name in _PARSER_CALLS.split():
        if name in numbers:
            program += [_instruction(_JEQ, numbers[name], 0, 1), _ALLOW]
    return b"".join([*program, _DENY])
