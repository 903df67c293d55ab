"""The launcher: one long-lived, single-threaded process that starts every sandbox of a Chargehand process.

Bubblewrap's die-with-parent follows the *thread* that started it, so sandboxes must not be started from a pool of
threads. The launcher ends, and every sandbox with it, when the socket to its owner closes: a `kill -9` of the
owner leaves nothing. For each sandbox it forks a child. In a new mount namespace, the child mounts the workspace
and the sized temporary file systems below a staging directory that no other process sees, drops root if it had it,
and becomes bubblewrap.

Run by the host's isolated interpreter, to which it is sent compiled. It imports only C modules of the standard
library, and `ctypes`: each command that opens a sandbox waits for this start, which other imports would double.
Requests and replies are `marshal`led, one per packet of the inherited socket.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:
    import _signal as signal
    import _socket as socket

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
# Directories that every Linux has; the first that exists is covered in the child's mount namespace.
STAGING = ("/mnt", "/media", "/srv", "/tmp")
PACKET = 1 << 17

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2); raises `OSError` that names the target."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(_libc.mount(*arguments), f"mount {kind or 'bind'} on {target}")


def enter_namespaces(uid: int, gid: int) -> None:
    """Enter a new mount namespace; without privileges through a user namespace that maps only us."""
    flags = _CLONE_NEWNS if uid == 0 else _CLONE_NEWNS | _CLONE_NEWUSER
    _check(_libc.unshare(flags), "unshare")
    if uid != 0:
        # The kernel lets an unprivileged user map itself only after setgroups() is given up.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    # Distributions share "/" between namespaces: our mounts would appear on the host.
    mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def stage(mounts: list[dict[str, Any]], staging: str) -> None:
    """Mount everything below `staging`."""
    # As descriptors: a path below /mnt would no longer be found once that is covered.
    opened = {path: os.open(path, os.O_PATH) for entry in mounts for path in entry.get("sources", ())}
    mount("chargehand", staging, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    for entry in mounts:
        kind = entry["kind"]
        target = f"{staging}/{entry['name']}"
        paths = [f"/proc/self/fd/{opened[path]}" for path in entry.get("sources", ())]
        if kind == "file":
            _write(target, entry["text"])
            continue
        if kind == "bind" and not os.path.isdir(paths[0]):
            _write(target, "")
        else:
            os.mkdir(target)
        if kind == "bind":
            mount(paths[0], target, "", _MS_BIND | _MS_REC)
        elif kind == "tmpfs":
            mount("chargehand", target, "tmpfs", _MS_NOSUID | _MS_NODEV, entry["options"])
        else:
            upper, work, *lowers = paths
            options = f"upperdir={upper},workdir={work},lowerdir={':'.join(lowers)}{entry['options']}"
            mount("chargehand", target, "overlay", _MS_NOSUID | _MS_NODEV, options)
    for fd in opened.values():
        os.close(fd)


def _die_with(parent: int) -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:  # it died before this was set: no signal would ever come
        os._exit(125)


def _become_sandbox(request: dict[str, Any], fds: list[int]) -> None:
    """Become a sandbox, in the forked child; never returns."""
    sock, errors, bpf, *others = fds
    try:
        os.dup2(errors, 2)
        # A new process group: until bubblewrap has started its child, only the group names both.
        os.setsid()
        _die_with(request["launcher"])
        for path in request["cgroups"]:
            _write(f"{path}/cgroup.procs", "0")
        enter_namespaces(os.geteuid(), os.getegid())
        stage(request["mounts"], request["staging"])
        # Only now: mounts and control groups need root, but bubblewrap and all later programs must not have it.
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(request["gid"], request["gid"], request["gid"])
            os.setresuid(request["uid"], request["uid"], request["uid"])
            _die_with(request["launcher"])  # the kernel forgets it when the user changes
        for fd in (sock, bpf, *others):
            os.set_inheritable(fd, True)
        argv = [
            word.format(sock=sock, bpf=bpf, others=others) if "{" in word else word for word in request["argv"]
        ]
        # Python ignores it, and an ignored signal stays ignored across exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(argv[0], argv, {})
    except BaseException as error:
        os.write(2, f"launcher: {error}\n".encode())
    os._exit(125)


class Launcher:
    """Forks sandboxes on request and reports their ends."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.names: dict[int, str] = {}
        self.cgroups: dict[int, list[str]] = {}
        self.left: list[str] = []  # control groups of ended sandboxes: their owner removes them if still alive
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the owner closes its end; then kill the remaining sandboxes."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if self.wake_read in ready:
                    os.read(self.wake_read, 4096)
                # Without children, waitpid() raises instead of returning 0.
                while self.names and (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                    pid, status = ended
                    self.left = [path for path in self.left if os.path.exists(path)] + self.cgroups.pop(pid)
                    self._report(self.names.pop(pid), os.waitstatus_to_exitcode(status))
                if self.control.fileno() in ready and not self._receive():
                    return
        finally:
            self._end_all()

    def _receive(self) -> bool:
        try:
            data, ancillary, _, _ = self.control.recvmsg(PACKET, socket.CMSG_LEN(8 * 4))
        except ConnectionResetError:
            return False
        if not data:
            return False
        fds = [fd for _, _, numbers in ancillary for fd in memoryview(numbers).cast("i")]
        for fd in fds:
            os.set_inheritable(fd, False)
        request = marshal.loads(data)
        if request["op"] == "open":
            self._open(request, fds)
            return True
        for pid, name in self.names.items():
            if name == request["id"]:
                _kill_sandbox(pid)
        return True

    def _open(self, request: dict[str, Any], fds: list[int]) -> None:
        request["launcher"] = os.getpid()
        # A fork and not a new interpreter: starting one costs 10 ms, and this process has one thread.
        try:
            pid = os.fork()
        except OSError as error:
            os.write(fds[1], f"launcher: {error}\n".encode())
            self._report(request["id"], -1)
        else:
            if pid == 0:
                _become_sandbox(request, fds)
            self.names[pid] = request["id"]
            self.cgroups[pid] = request["cgroups"]
            self.control.send(marshal.dumps({"id": request["id"], "pid": pid}))
        finally:
            for fd in fds:
                os.close(fd)

    def _report(self, name: str, exit_code: int) -> None:
        self.control.send(marshal.dumps({"id": name, "exit_code": exit_code}))

    def _end_all(self) -> None:
        for pid, directories in self.cgroups.items():
            for state in (f"{directory}/freezer.state" for directory in directories):
                if os.path.exists(state):
                    _write(state, "THAWED")  # version 1 holds back SIGKILL while frozen
            _kill_sandbox(pid)
        for pid, directories in self.cgroups.items():
            os.waitpid(pid, 0)
            for directory in directories:
                _remove_cgroup(directory)
        for directory in self.left:
            _remove_cgroup(directory)


def _kill_sandbox(bubblewrap: int) -> None:
    """Kill process 1 of the namespace: bubblewrap ends when the kernel has ended everything inside.

    Killing only bubblewrap would report the end too early. If it has no child yet, kill its whole process group,
    since it may start its child at this very moment.
    """
    try:
        with open(f"/proc/{bubblewrap}/task/{bubblewrap}/children") as file:
            children = file.read().split()
    except OSError:  # a kernel that does not list children
        children = []
    if not children:
        os.kill(bubblewrap, signal.SIGKILL)
    # A negative number is a process group.
    for pid in map(int, children or (-bubblewrap,)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _remove_cgroup(directory: str) -> None:
    """Remove a cgroup once the kernel has released its last process, which takes seconds on a busy machine."""
    for _ in range(2500):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError:
            select.select([], [], [], 0.002)
        else:
            return


def main() -> None:
    """Serve on the descriptor given as first argument; hold the one given as fourth, if any, to the end."""
    # A core dump of a process inside would put the agent's data into a file of the host.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides; a Ctrl-C reaches the whole terminal group
    fd, *held = map(int, (sys.argv[1], *sys.argv[4:]))
    os.closerange(3, fd)  # descriptors that our starter left open and inheritable must not reach a sandbox
    os.closerange(max(fd, *held, 0) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for each in (fd, *held):
        os.set_inheritable(each, False)
    try:
        Launcher(socket.socket(fileno=fd)).run()
    except BrokenPipeError:
        return


if __name__ == "__main__":
    main()
