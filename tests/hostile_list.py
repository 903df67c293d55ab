"""Every attack of a hostile agent: the program that makes it, the refusals to expect, and the defence.

`python -m tests.hostile_list` prints the table of docs/threat-model.md; a test compares the two.

A program is Python after `jail_kit.PRELUDE` and reports `{what: answer}`; an answer is `done`, or the name of the
error. Outside a sandbox, on the same ground, it has to be `done`: `plain` is this machine as it is, `namespaces`
are new user, mount, process and network namespaces, `root` is this machine with every right.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Ground = Literal["plain", "namespaces", "root"]
_ARM = platform.machine() in ("aarch64", "arm64")


def _nr(x86_64: int, arm64: int) -> int:
    return arm64 if _ARM else x86_64


ADD_KEY, BPF, CHROOT, HANDLE = _nr(248, 217), _nr(321, 280), _nr(161, 51), _nr(303, 264)
MOUNT, PERF, PERSONALITY, PIVOT, PTRACE = _nr(165, 40), _nr(298, 241), _nr(135, 92), _nr(155, 41), _nr(101, 117)
READV, SETNS, UMOUNT, UNSHARE, UFFD = _nr(310, 270), _nr(308, 268), _nr(166, 39), _nr(272, 97), _nr(323, 282)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attack of the list; `closer` names a test that examines it further.

    `lacking` are answers with which a machine outside the sandbox shows that it does not offer the feature at all.
    `limits` apply to a sandbox opened for this attack. If no single program can try an attack, `closer` alone
    proves it.
    """

    name: str
    stopped_by: str
    program: str = ""
    refusals: tuple[str, ...] = ("EPERM",)
    outside: Ground | None = None
    lacking: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    closer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Entries that an agent's shell script leaves in its tree.

    `found` is path and rule, `None` for a path that is not part of the tree. `impossible` maps tiers in which the
    script itself fails to the words of the failure.
    """

    name: str
    stopped_by: str
    script: str
    found: tuple[tuple[str, str | None], ...]
    impossible: Mapping[str, str] = field(default_factory=dict)


_ESCAPE = "tests/security/test_sandbox_escape.py"
_CALLS = "tests/security/test_sandbox_calls.py"
_MOUNTS, _FILTER, _NETWORK = (
    "a mount namespace of its own",
    "the filter of system calls",
    "an empty network namespace",
)
_VICTIM = "a process namespace of its own; process 1 is not dumpable"
_NO_SPECIAL_FILES = {"vm": "No such device or address"}
"""QEMU's 9p makes neither pipes nor sockets."""
GONE = ("ENOENT", "EACCES")

READING = (
    Attempt(
        name="read the host's home",
        stopped_by=_MOUNTS,
        program="tell({p: attempt(read, p) for p in (SECRET, HOME_SECRET)})",
        refusals=GONE,
        outside="plain",
        closer=f"{_ESCAPE}::test_files_of_the_host_are_not_visible",
    ),
    Attempt(
        name="read `/etc/shadow`",
        stopped_by=_MOUNTS,
        program="tell({p: attempt(read, p) for p in ('/etc/shadow', '/proc/self/root/etc/shadow')})",
        refusals=GONE,
        outside="root",
    ),
    Attempt(
        name="read the host's environment",
        stopped_by="an empty environment from the launcher on; process 1 is not dumpable",
        program="""
seen = {"own": "done" if "of-the-host" in str(os.environ) else "none"}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ") as file:
            seen["others"] = "done" if "of-the-host" in file.read() else seen.get("others", "none")
    except OSError:
        pass
tell(seen)
""",
        refusals=("none",),
        outside="plain",
        closer=f"{_ESCAPE}::test_the_environment_of_the_host_is_nowhere",
    ),
    Attempt(
        name="read `/proc/1/*`",
        stopped_by="process 1 is not dumpable",
        program="tell({n: attempt(read, f'/proc/{VICTIM}/{n}') for n in ('environ', 'maps', 'auxv', 'io')}"
        " | {'fd': attempt(os.listdir, f'/proc/{VICTIM}/fd')})",
        refusals=("EACCES", "EPERM"),
        outside="plain",
        closer=f"{_ESCAPE}::test_the_exec_server_cannot_be_read_written_or_asked_for_its_socket",
    ),
    Attempt(
        name="see the host's processes",
        stopped_by="a process namespace of its own",
        program="""
seen = "none"
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
    except OSError:
        continue
    seen = "done" if words[-2:-1] == [MARK] else seen
tell({"victim": seen})
""",
        refusals=("none",),
        outside="plain",
        closer=f"{_ESCAPE}::test_processes_of_the_host_do_not_exist_inside",
    ),
    Attempt(
        name="inherited descriptors",
        stopped_by="the launcher closes all but its own; the exec server's are closed at exec",
        program="""
fds = [int(name) for name in os.listdir("/proc/self/fd")]
tell({"beyond 2": "done" if [fd for fd in fds if fd > 2 and attempt(os.fstat, fd) == "done"] else "none"})
""",
        refusals=("none",),
        outside="plain",
        closer=f"{_ESCAPE}::test_only_the_three_standard_descriptors_are_open",
    ),
)

PROCESSES = (
    Attempt(
        name="ptrace",
        stopped_by=f"{_FILTER}; {_VICTIM}",
        program=f"tell({{'seize': call({PTRACE}, 0x4206, VICTIM, 0, 0)}})",
        outside="plain",
        closer=f"{_ESCAPE}::test_the_exec_server_cannot_be_attached_to",
    ),
    Attempt(
        name="process_vm_readv",
        stopped_by=f"{_FILTER}; {_VICTIM}",
        program=f"""
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
mine, theirs = ctypes.create_string_buffer(8), Piece(ADDRESS, 8)
local = Piece(ctypes.addressof(mine), 8)
tell({{"read": call({READV}, VICTIM, ctypes.byref(local), 1, ctypes.byref(theirs), 1, 0)}})
""",
        outside="plain",
    ),
    Attempt(
        name="write through `/proc/PID/mem`",
        stopped_by="process 1 is not dumpable",
        program="""
def poke():
    fd = os.open(f"/proc/{VICTIM}/mem", os.O_RDWR)
    os.pwrite(fd, b"changed!", ADDRESS)
tell({"write": attempt(poke)})
""",
        refusals=("EACCES", "EPERM"),
        outside="plain",
    ),
    Attempt(
        name="steal a descriptor (`pidfd_getfd`)",
        stopped_by=f"{_FILTER}; {_VICTIM}",
        program="tell({fd: call(438, os.pidfd_open(VICTIM), fd, 0) for fd in range(3)})",
        outside="plain",
    ),
    Attempt(
        name="forge an exit code",
        stopped_by="replies carry a nonce that no child sees; process 1 is not dumpable",
        closer=f"{_ESCAPE}::test_an_exit_code_cannot_be_forged",
    ),
    Attempt(
        name="leave daemons behind",
        stopped_by="process 1 ends its whole namespace",
        closer="tests/integration/test_sandbox_soak.py::test_runs_leave_no_process_mount_or_file",
    ),
    Attempt(
        name="fork beyond the limit of processes",
        stopped_by="a control group where it can be had, else RLIMIT_NPROC in a user namespace of its own",
        program="""
import resource, signal
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
most = 60 if hard == resource.RLIM_INFINITY else min(60, hard)
resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))
children = []
def breed():
    for _ in range(200):
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)
said = attempt(breed)
for pid in children:
    os.kill(pid, 9)
tell({"200 forks": said if len(children) == 200 or len(children) <= 60 else f"{len(children)}"})
""",
        refusals=("EAGAIN",),
        outside="root",
        limits=(("processes", 60),),
    ),
    Attempt(
        name="fork bomb",
        stopped_by="the limit of processes; process 1 ends its whole namespace",
        closer=f"{_ESCAPE}::test_a_fork_bomb_does_not_affect_other_sandboxes",
    ),
)

KERNEL = (
    Attempt(
        name="mount",
        stopped_by=f"{_FILTER}; no capabilities",
        program=f"""
path = lambda text: ctypes.c_char_p(text.encode())
tell({{"tmpfs": call({MOUNT}, path("x"), path("/tmp"), path("tmpfs"), 0, None),
      "bind": call({MOUNT}, path("/"), path("/mnt"), None, 4096 | 16384, None)}})
""",
        outside="namespaces",
        closer=f"{_ESCAPE}::test_mounting_and_unmounting_is_refused",
    ),
    Attempt(
        name="umount of what covers `/proc`",
        stopped_by=f"{_FILTER}; no capabilities",
        program=f"tell({{p: call({UMOUNT}, ctypes.c_char_p(p.encode()), 2) for p in COVERS}})",
        outside="namespaces",
    ),
    Attempt(
        name="nested user namespaces",
        stopped_by=f"{_FILTER}; none are left to be made",
        program=f"tell({{'unshare': call({UNSHARE}, 0x10000000)}})",
        outside="plain",
        closer=f"{_ESCAPE}::test_no_namespace_can_be_made_or_entered",
    ),
    Attempt(
        name="clone3",
        stopped_by=f"{_FILTER}, which answers as a kernel without it",
        program="""
import struct
words = ctypes.create_string_buffer(struct.pack("11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0))
me = os.getpid()
said = call(435, words, 88)
if os.getpid() != me:
    os._exit(0)
tell({"with a user namespace": said})
""",
        refusals=("ENOSYS",),
        outside="plain",
    ),
    Attempt(
        name="setns",
        stopped_by=_FILTER,
        program=f"tell({{'uts': call({SETNS}, os.open('/proc/self/ns/uts', os.O_RDONLY), 0)}})",
        outside="namespaces",
    ),
    Attempt(
        name="pivot_root",
        stopped_by=_FILTER,
        program=f"""
path = lambda text: ctypes.c_char_p(text.encode())
call({MOUNT}, path("x"), path("/tmp"), path("tmpfs"), 0, None)
os.chdir("/tmp")
tell({{"pivot": call({PIVOT}, path("."), path("."))}})
""",
        outside="namespaces",
    ),
    Attempt(
        name="chroot",
        stopped_by=_FILTER,
        program=f"tell({{'chroot': call({CHROOT}, ctypes.c_char_p(b'/tmp'))}})",
        outside="namespaces",
    ),
    Attempt(
        name="device nodes",
        stopped_by=f"{_FILTER}; no capabilities; file systems without devices",
        program="tell({n: attempt(os.mknod, n, k | 0o666, os.makedev(*d)) for n, k, d in"
        " (('null', stat.S_IFCHR, (1, 3)), ('disk', stat.S_IFBLK, (254, 0)))})",
        outside="root",
        closer=f"{_ESCAPE}::test_no_device_node_and_no_forged_whiteout_can_be_made",
    ),
    Attempt(
        name="forged whiteouts",
        stopped_by=_FILTER,
        program="tell({'whiteout': attempt(os.mknod, 'gone', stat.S_IFCHR | 0o666, 0)})",
        outside="plain",
    ),
    Attempt(
        name="forged overlay xattrs",
        stopped_by="the kernel, which keeps them for itself; in other spaces nobody reads them",
        closer=f"{_ESCAPE}::test_forged_overlay_marks_have_no_effect",
    ),
    Attempt(
        name="setuid programs",
        stopped_by="no new privileges; one user in the namespace; file systems without setuid",
        program="tell({'root': attempt(os.setuid, 0), 'group': attempt(os.setgid, 0)})",
        refusals=("EPERM", "EINVAL"),
        outside="root",
        closer=f"{_ESCAPE}::test_setuid_programs_gain_no_privileges",
    ),
    Attempt(
        name="io_uring",
        stopped_by=f"{_FILTER}, which answers as a kernel without it",
        program="tell({'setup': call(425, 8, ctypes.create_string_buffer(256))})",
        refusals=("ENOSYS",),
        outside="plain",
        lacking=("ENOSYS", "EPERM", "ENOMEM"),
    ),
    Attempt(
        name="keyrings",
        stopped_by=_FILTER,
        program=f"tell({{'add': call({ADD_KEY}, b'user', b'chargehand', b'x', 1, -2)}})",
        outside="plain",
        lacking=("ENOSYS", "EPERM", "EACCES", "EDQUOT"),
        closer=f"{_CALLS}::test_calls_that_reach_beyond_a_sandbox",
    ),
    Attempt(
        name="bpf",
        stopped_by=f"{_FILTER}; no capabilities",
        program=f"tell({{'map': call({BPF}, 0, (ctypes.c_uint32 * 32)(2, 4, 4, 1), 128)}})",
        outside="root",
        lacking=("ENOSYS", "EPERM"),
    ),
    Attempt(
        name="perf",
        stopped_by=_FILTER,
        program=f"""
event = (ctypes.c_uint32 * 32)(1, 128)
event[10] = 0b1100001
tell({{"open": call({PERF}, event, 0, -1, -1, 0)}})
""",
        outside="plain",
        lacking=("ENOSYS", "EPERM", "EACCES", "ENOENT"),
    ),
    Attempt(
        name="userfaultfd",
        stopped_by=_FILTER,
        program=f"tell({{'open': call({UFFD}, 1)}})",
        outside="plain",
        lacking=("ENOSYS", "EPERM"),
    ),
    Attempt(
        name="personality",
        stopped_by=_FILTER,
        program=f"tell({{'no random addresses': call({PERSONALITY}, 0x0040000)}})",
        outside="plain",
    ),
    Attempt(
        name="name_to_handle_at",
        stopped_by=_FILTER,
        program=f"""
handle = (ctypes.c_uint32 * 34)(128)
mount = ctypes.c_int()
tell({{"handle": call({HANDLE}, -100, ctypes.c_char_p(b"/"), handle, ctypes.byref(mount), 0)}})
""",
        outside="plain",
        lacking=("EOPNOTSUPP",),
    ),
    Attempt(
        name="`core_pattern` and other settings of the kernel",
        stopped_by="`/proc/sys` is read-only or another user's",
        program="tell({p: attempt(lambda: os.close(os.open(p, os.O_WRONLY))) for p in"
        " ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/overcommit_memory')})",
        refusals=("EACCES", "EPERM", "EROFS"),
        outside="root",
        lacking=("EROFS",),
        closer=f"{_ESCAPE}::test_kernel_settings_cannot_be_written",
    ),
    Attempt(
        name="typing into a terminal (TIOCSTI)",
        stopped_by=f"{_FILTER}; a session without a terminal",
        program="""
import fcntl, pty
main, other = pty.openpty()
tell({"type": attempt(fcntl.ioctl, other, 0x5412, b"x")})
""",
        outside="root",
        lacking=("EIO", "EPERM"),
    ),
)

NETWORK = (
    Attempt(
        name="netlink",
        stopped_by=_FILTER,
        program="tell({'uevents': attempt(lambda: socket.socket(16, 3, 15).close())})",
        refusals=("EPROTONOSUPPORT",),
        outside="plain",
        closer=f"{_ESCAPE}::test_other_kinds_of_sockets_do_not_exist",
    ),
    Attempt(
        name="vsock",
        stopped_by=_FILTER,
        program="tell({'open': attempt(lambda: socket.socket(40, 1).close())})",
        refusals=("EAFNOSUPPORT",),
        outside="plain",
        lacking=("EAFNOSUPPORT",),
    ),
    Attempt(
        name="packet sockets",
        stopped_by=_FILTER,
        program="tell({'open': attempt(lambda: socket.socket(17, 3).close())})",
        refusals=("EAFNOSUPPORT",),
        outside="namespaces",
    ),
    Attempt(
        name="TCP out",
        stopped_by=f"{_NETWORK}; a proxy outside lets listed hosts through",
        closer="tests/integration/test_egress_namespaces.py",
    ),
    Attempt(
        name="the host's loopback",
        stopped_by=_NETWORK,
        program="""
line = socket.socket()
line.settimeout(5)
tell({"tcp": attempt(line.connect, ("127.0.0.1", TCP))})
""",
        refusals=("ECONNREFUSED", "ENETUNREACH"),
        outside="plain",
        closer=f"{_ESCAPE}::test_the_loopback_of_the_host_is_unreachable",
    ),
    Attempt(
        name="UDP and DNS",
        stopped_by=_NETWORK,
        program="""
line = socket.socket(type=socket.SOCK_DGRAM)
line.settimeout(5)
def ask():
    line.connect(("127.0.0.1", UDP))
    line.send(b"question")
    line.recv(100)
tell({"answer": attempt(ask)})
""",
        refusals=("ECONNREFUSED", "ENETUNREACH"),
        outside="plain",
    ),
    Attempt(
        name="abstract and path sockets of the host",
        stopped_by=f"{_NETWORK}; {_MOUNTS}",
        program="tell({p: attempt(socket.socket(socket.AF_UNIX).connect, p) for p in (ABSTRACT, PATH)})",
        refusals=("ECONNREFUSED", "ENOENT", "EACCES"),
        outside="plain",
    ),
    Attempt(
        name="a token after its agent ended",
        stopped_by="the gateway, which forgets tokens at freeze and closes its socket",
        closer="tests/integration/test_command_endpoint.py::test_a_revoked_token_gets_401_and_then_the_endpoint_closes",
    ),
    Attempt(
        name="the registry mirror as a way out",
        stopped_by="the mirror, which knows registries' own paths only and is there for setup alone",
        closer="tests/unit/test_mirror_routes.py",
    ),
)

FILES = (
    Attempt(
        name="write to `/usr`",
        stopped_by="read-only mounts",
        program="""
seen = {p: attempt(lambda: os.close(os.open(p, os.O_RDWR))) for p in ("/usr/bin/env", "/etc/passwd")}
tell(seen | {"mode": attempt(os.chmod, "/usr", stat.S_IMODE(os.stat("/usr").st_mode))})
""",
        refusals=("EROFS", "EACCES", "EPERM"),
        outside="root",
        lacking=("ETXTBSY",),
        closer=f"{_ESCAPE}::test_the_base_and_the_system_cannot_be_changed",
    ),
    Attempt(
        name="hard links to the host's files",
        stopped_by=f"{_MOUNTS}; none spans two mounts",
        program="tell({p: attempt(os.link, p, f'linked{n}') for n, p in enumerate(LINKED)})",
        refusals=("EXDEV", "ENOENT", "EACCES", "EPERM", "EROFS"),
        outside="plain",
    ),
    Attempt(
        name="a sparse file of 1 TB",
        stopped_by="RLIMIT_FSIZE; at the checkpoint the limits of a workspace",
        program="open('big', 'w').close(); tell({'truncate': attempt(os.truncate, 'big', 1 << 40)})",
        refusals=("EFBIG",),
        outside="plain",
        lacking=("EFBIG",),
        closer=f"{_ESCAPE}::test_a_huge_sparse_file_is_refused",
    ),
    Attempt(
        name="filling `/tmp`, `/dev/shm` and the home, by bytes and by inodes",
        stopped_by="sized file systems",
        program="""
def fill(place):
    with open(f"{place}/full", "wb") as file:
        for _ in range(8):
            file.write(b"x" * (1 << 20))
def inodes(place):
    for number in range(1200):
        open(f"{place}/{number}", "w").close()
tell({f"{what.__name__} {n}": attempt(what, place) for what in (fill, inodes) for n, place in enumerate(SCRATCH)})
""",
        refusals=("ENOSPC",),
        outside="plain",
        limits=(("tmp_mb", 4),),
        closer=f"{_ESCAPE}::test_scratch_space_has_an_end",
    ),
    Attempt(
        name="memory bomb",
        stopped_by="a control group where it can be had, else RLIMIT_AS of each process",
        program="""
pid = os.fork()
if pid == 0:
    try:
        held = bytearray(b"x" * (300 << 20))
    except MemoryError:
        os._exit(12)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
tell({"300 MiB": {0: "done", 12: "ENOMEM", -9: "killed"}.get(status, str(status))})
""",
        refusals=("ENOMEM", "killed", "ended"),
        outside="plain",
        limits=(("memory_mb", 96),),
        closer=f"{_ESCAPE}::test_a_memory_bomb_does_not_affect_other_sandboxes",
    ),
)
ATTEMPTS = (*READING, *PROCESSES, *KERNEL, *NETWORK, *FILES)

_ENTRIES = "rules of a tree's entries, at the checkpoint"
TREES = (
    Planted(
        name="`.git/hooks`, filters and configuration",
        stopped_by="nothing: its `.git` is disposable, and the host never runs git on it",
        script="printf '#!/bin/sh\\ntouch /tmp/ran\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit;"
        "git config core.fsmonitor /tmp/evil; git config filter.x.clean /tmp/evil",
        found=((".git/hooks/pre-commit", None), (".git/config", None)),
    ),
    Planted(
        name="a renamed `.git`",
        stopped_by=_ENTRIES,
        script="cp -r .git .GIT; mkdir 'git~1'; mv .git moved",
        found=((".GIT", "entry_nested_git"), ("git~1", "entry_nested_git"), ("moved", "entry_nested_git")),
    ),
    Planted(
        name="a nested `sub/.git/config`",
        stopped_by=_ENTRIES,
        script="mkdir -p sub/.git; echo '[core] fsmonitor = /tmp/evil' > sub/.git/config",
        found=(("sub/.git", "entry_nested_git"),),
    ),
    Planted(
        name="symlinks out",
        stopped_by=_ENTRIES,
        script="ln -s /etc/passwd absolute; ln -s ../../up relative; ln -s .git/config inward",
        found=tuple((name, "entry_link_out") for name in ("absolute", "relative", "inward")),
    ),
    Planted(
        name="names with a newline, an escape or bytes that are no UTF-8",
        stopped_by=_ENTRIES,
        script="touch \"$(printf 'a\\nb')\" \"$(printf 'a\\033[31mb')\" \"$(printf 'a\\377b')\"",
        found=(("a\nb", "entry_name"), ("a\x1b[31mb", "entry_name"), ("a\udcffb", "entry_name")),
    ),
    Planted(
        name="fifo in the tree",
        stopped_by=_ENTRIES,
        script="mkfifo pipe",
        found=(("pipe", "entry_special"),),
        impossible=_NO_SPECIAL_FILES,
    ),
    Planted(
        name="socket in the tree",
        stopped_by=_ENTRIES,
        script="python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
        found=(("sock", "entry_special"),),
        impossible=_NO_SPECIAL_FILES,
    ),
    Planted(
        name="setuid bits in the tree",
        stopped_by=_ENTRIES,
        script="cp /bin/sh s; chmod u+s s; cp s g; chmod 2755 g",
        found=(("s", "entry_setuid"), ("g", "entry_setuid")),
    ),
    Planted(
        name="filling the disk with files or bytes",
        stopped_by="limits of a workspace, at the checkpoint",
        script="mkdir a; for i in $(seq 100); do echo $i > a/$i; done; echo x > z; head -c 2M /dev/zero > fat",
        found=(("z", "quota"), ("fat", "quota")),
    ),
)


def table() -> str:
    """Return the table of the threat model."""
    lines = ["| an attempt | what stops it | tried by |", "| -- | -- | -- |"]
    for one in ATTEMPTS:
        here = ["the list"] if one.program else []
        closer = [f"[{one.closer.rpartition('/')[2].partition('.py')[0]}](../{one.closer.partition('::')[0]})"]
        tried = ", ".join([*here, *(closer if one.closer else [])])
        lines += [f"| {one.name} | {one.stopped_by} | {tried} |"]
    lines += [f"| {one.name} | {one.stopped_by} | the list |" for one in TREES]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
