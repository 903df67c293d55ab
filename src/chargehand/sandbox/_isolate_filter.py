"""The second system call filter, which the process of a snippet puts on over the sandbox's own.

The sandbox lets programs write, fork and open sockets among themselves. A snippet needs none of that, and what one
snippet leaves no other may find: it computes, reads what everybody may read, and writes to what it was given.
"""

from __future__ import annotations

import errno
import struct

from chargehand.sandbox._syscalls import Machine, allowed

_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EPERM
_LOAD, _JEQ, _JSET, _RET = 0x20, 0x15, 0x45, 0x06
_FLAGS = 16 + 8 * 2
"""Offset of the flags of openat(2) in `struct seccomp_data`; `_FIRST` is that of a first argument."""
_FIRST = 16
_WRITES = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and the bit of O_TMPFILE that is no other flag's."""
_KEPT = """
read readv pread64 preadv write writev close close_range lseek fstat stat lstat newfstatat statx access
faccessat faccessat2 readlink readlinkat getdents64 getcwd fstatfs statfs fcntl ioctl dup dup2 dup3 pipe pipe2
socketpair shutdown sendto recvfrom getsockname setsockopt getsockopt eventfd2 epoll_create epoll_create1
epoll_ctl epoll_wait epoll_pwait poll ppoll select pselect6 mmap munmap mprotect mremap madvise brk membarrier
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending sigaltstack setitimer getitimer alarm pause futex
restart_syscall sched_yield sched_getaffinity getrandom uname sysinfo times clock_gettime clock_getres
clock_nanosleep nanosleep gettimeofday time getpid getppid gettid getuid geteuid getgid getegid getresuid
getresgid getgroups getrusage getrlimit exit exit_group rseq set_robust_list arch_prctl getcpu
"""


def compile_snippet_filter(machine: Machine) -> bytes:
    """Return the filter as an array of `struct sock_filter`; see seccomp(2).

    It judges numbers of the machine's own architecture only: any other already ends the process in the filter
    below it.
    """
    numbers = allowed(machine)
    program = [_instruction(_LOAD, 0)]
    program += _judged(numbers["openat"], [_instruction(_LOAD, _FLAGS), _instruction(_JSET, _WRITES, 0, 1)])
    program += _judged(numbers["prlimit64"], [_instruction(_LOAD, _FIRST), _instruction(_JEQ, 0, 1, 0)])
    for name in _KEPT.split():
        if name in numbers:
            program += [_instruction(_JEQ, numbers[name], 0, 1), _instruction(_RET, _ALLOW)]
    return b"".join([*program, _instruction(_RET, _DENY)])


def _judged(number: int, test: list[bytes]) -> list[bytes]:
    """Return instructions for one call: `test` ends in a jump over the refusal that allows."""
    body = [*test, _instruction(_RET, _DENY), _instruction(_RET, _ALLOW)]
    return [_instruction(_JEQ, number, 0, len(body)), *body]


def _instruction(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("<HBBI", code, jt, jf, k & 0xFFFFFFFF)
