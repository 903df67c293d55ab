"""The system call filter as a classic BPF program, an allow-list; see seccomp(2) and `linux/filter.h`."""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple

from chargehand.core.errors import TierUnavailableError
from chargehand.sandbox._syscalls import Machine, allowed

_AUDIT_ARCH: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16

# Calls that programs try and fall back from when the kernel does not know them: EPERM would break them.
_UNKNOWN_TO_US = {"clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426)}
_CLONE_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag of clone(2)
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10  # the network namespace is empty anyway
_PROTOCOLS = (0, 1, 6, 17, 58)  # default, ICMP, TCP, UDP, ICMPv6: any other makes the host load a module
_AF_NETLINK, _NETLINK_ROUTE = 16, 0  # getifaddrs() needs it, and it shows only the empty namespace
_S_IFCHR = 0x2000  # in the mode of character and block devices
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_PERSONALITIES = (0x0, 0xFFFFFFFF)
_ON_A_PROCESS = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")


class _Rule(NamedTuple):
    """A call that is judged by one argument: the low 32 bits must (not) match."""

    argument: int
    kind: str  # "mask_clear", "in", "not_in"
    values: Sequence[int]


def _instruction(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("<HBBI", code, jt, jf, k & 0xFFFFFFFF)


def _ret(value: int) -> bytes:
    return _instruction(_RET, value)


_DENY = _ret(_ERRNO | errno.EPERM)


def _by_argument(rule: _Rule) -> list[bytes]:
    """Return instructions that end in a verdict on the call whose number was matched."""
    body = [_instruction(_LOAD, _ARGS + 8 * rule.argument)]
    if rule.kind == "mask_clear":
        (mask,) = rule.values
        return [*body, _instruction(_JSET, mask, 0, 1), _DENY, _ret(_ALLOW)]
    hit, miss = (_ret(_ALLOW), _DENY) if rule.kind == "in" else (_DENY, _ret(_ALLOW))
    for value in rule.values:
        body += [_instruction(_JEQ, value, 0, 1), hit]
    return [*body, miss]


def _socket() -> list[bytes]:
    """Judge socket(2) by family and protocol; what is refused is answered as by a kernel that lacks it."""
    internet = _protocols(_PROTOCOLS, errno.EPROTONOSUPPORT)
    netlink = _protocols((_NETLINK_ROUTE,), errno.EPROTONOSUPPORT)
    body = [_instruction(_LOAD, _ARGS), _instruction(_JEQ, _AF_UNIX, 0, 1), _ret(_ALLOW)]
    body += [_instruction(_JEQ, _AF_INET, 1, 0), _instruction(_JEQ, _AF_INET6, 0, len(internet)), *internet]
    return [*body, _instruction(_JEQ, _AF_NETLINK, 0, len(netlink)), *netlink, _ret(_ERRNO | errno.EAFNOSUPPORT)]


def _protocols(values: Sequence[int], refusal: int) -> list[bytes]:
    body = [_instruction(_LOAD, _ARGS + 16)]
    for value in values:
        body += [_instruction(_JEQ, value, 0, 1), _ret(_ALLOW)]
    return [*body, _ret(_ERRNO | refusal)]


def _judged(numbers: dict[str, int], machine: Machine) -> dict[int, list[bytes]]:
    """Return the calls that are judged by their arguments, by number."""
    clone = _by_argument(_Rule(0, "mask_clear", (_CLONE_NAMESPACES,)))
    personality = {"x86_64": 135, "aarch64": 92}[machine]
    judged = {
        numbers["clone"]: clone,
        numbers["socket"]: _socket(),
        numbers["socketpair"]: _by_argument(_Rule(0, "in", (_AF_UNIX,))),
        numbers["mknodat"]: _by_argument(_Rule(2, "mask_clear", (_S_IFCHR,))),
        numbers["ioctl"]: _by_argument(_Rule(1, "not_in", _TERMINAL_INJECTION)),
        personality: _by_argument(_Rule(0, "in", _PERSONALITIES)),
        # Process 1 is the exec server: of the same user, and no program has to do with its limits.
        **{numbers[name]: _by_argument(_Rule(0, "not_in", (1,))) for name in _ON_A_PROCESS},
    }
    if "mknod" in numbers:
        judged[numbers["mknod"]] = _by_argument(_Rule(1, "mask_clear", (_S_IFCHR,)))
    return judged


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the numbers as closed ranges, in order."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def compile_filter(machine: Machine) -> bytes:
    """Return the filter for a machine as an array of `struct sock_filter`, for `bwrap --seccomp`.

    Calls of another architecture (32-bit entry points and x32 included) end the process.
    """
    numbers = allowed(machine)
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JEQ, _AUDIT_ARCH[machine], 1, 0),
        _ret(_KILL),
        _instruction(_LOAD, _NR),
        _instruction(_JGE, 0x40000000, 0, 1),  # the x32 bit
        _ret(_KILL),
    ]
    judged = _judged(numbers, machine)
    for number, body in judged.items():
        program += [_instruction(_JEQ, number, 0, len(body)), *body]
    plain = [number for number in numbers.values() if number not in judged]
    for low, high in _ranges(plain):
        program += _range(low, high)
    for pair in _UNKNOWN_TO_US.values():
        number = pair[0 if machine == "x86_64" else 1]
        program += [_instruction(_JEQ, number, 0, 1), _ret(_ERRNO | errno.ENOSYS)]
    # Calls newer than our table: as on an older kernel, so that programs fall back.
    program += [_instruction(_JGE, 451, 0, 1), _ret(_ERRNO | errno.ENOSYS), _DENY]
    return b"".join(program)


def _range(low: int, high: int) -> list[bytes]:
    if low == high:
        return [_instruction(_JEQ, low, 0, 1), _ret(_ALLOW)]
    return [_instruction(_JGE, low, 0, 2), _instruction(_JGE, high + 1, 1, 0), _ret(_ALLOW)]


def machine_name() -> Machine:
    """Return this machine's name; raises `TierUnavailableError` where we have no filter for it."""
    name = platform.machine()
    if name == "x86_64":
        return "x86_64"
    if name in ("aarch64", "arm64"):
        return "aarch64"
    raise TierUnavailableError(
        f"no system call filter for {name!r}", hint="use the container tier, or a machine of x86-64 or arm64"
    )
