"""The description of one virtual machine: its mounts, its start script, and QEMU's command line.

QEMU runs in bubblewrap, confined like a sandbox of the `process` tier. Apart from its program it sees two
directories: `SYSTEM`, shown to the machine read-only, is the root directory inside; `WORK` holds everything
writable. The workspace's layers are joined on the host, so writes go to the upper as in other tiers.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from chargehand.core.ports import Bind
from chargehand.sandbox.container.layout import ContainerContents, plan_contents
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.host_programs.search import is_below
from chargehand.sandbox.process.layout import (
    FILES,
    INSIDE_ID,
    ISOLATION,
    RUN,
    Layout,
    forwarded,
    staging_directory,
)
from chargehand.sandbox.vm_kernel import VirtualMachine

SYSTEM, WORK = "/export/system", "/export/work"
# A machine's memory in addition to that of its programs: for its kernel.
KERNEL_MB = 128
# Memory that QEMU may use in addition to the machine's: translated code, and I/O buffers.
OWN_MB = 512
_OWN_PROCESSES = 512
_TRANSLATED_MB = 128
# Devices that programs expect on any system; they reach no device of the host.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_MACHINE = "q35,usb=off,smm=off,vmport=off,sata=off,smbus=off,graphics=off"
# A panic ends the machine (panic=-1, and QEMU's -no-reboot). The rest shortens the start: no waiting for entropy,
# no self-tests, no probing of serial ports and timers, no clearing of memory that is new and zero anyway.
_KERNEL_WORDS = (
    *("quiet", "panic=-1", "random.trust_cpu=on", "cryptomgr.notests", "audit=0", "rcupdate.rcu_expedited=1"),
    *("8250.nr_uarts=0", "no_timer_check", "init_on_alloc=0", "zswap.enabled=0", "lsm=capability"),
)
# Without KVM there is no speculation to guard against, and translated code is cached by its address.
_TRANSLATED_WORDS = ("mitigations=off", "norandmaps")


def plan_machine(
    spec: SandboxSpec,
    machine: VirtualMachine,
    *,
    bwrap: str,
    code_size: int,
    cgroups: Sequence[Path] = (),
    links: Sequence[tuple[str, str]] = (),
) -> Layout:
    """Return the layout of one machine for the launcher; `links` are a toolchain's.

    `code_size` is the size in bytes of the code that the interpreter inside receives first.
    """
    layout = Layout(staging=staging_directory(), cgroups=cgroups)
    layout.arguments = [bwrap, *ISOLATION, "--hostname", "machine"]
    # QEMU itself: its program and libraries, a few devices, and the kernel it starts.
    layout.system_links()
    for name in _ETC:
        layout.arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    layout.arguments += ["--proc", "/proc", "--dev", "/dev"]
    if machine.accelerator == "kvm":
        layout.arguments += ["--dev-bind", "/dev/kvm", "/dev/kvm"]
    layout.bind("kernel", Bind(source=machine.boot.kernel, target="/kernel"))
    layout.bind("first-files", Bind(source=machine.boot.initramfs, target="/first-files"))
    # Its ports lead through the relay, so no socket of the host is mounted.
    alone = replace(spec, registries=None, gateway=None, egress=None)
    contents = plan_contents(alone, image="", fd=3, code_size=code_size)
    contents.command.append(f"NPROC={spec.limits.processes}")
    contents.links.update(links)
    contents.texts = {f"/etc/{name.removeprefix('etc-')}": text for name, text in FILES.items()}
    writable = _add_files(layout, contents, spec)
    script = start_script(contents, writable, relayed=bool(forwarded(spec)))
    layout.file("start.sh", script, f"{SYSTEM}{RUN}/start.sh")
    layout.seal()
    # QEMU has the host's sockets only as open descriptors: it could not open a path itself.
    layout.command = qemu_command(spec.limits, machine, relayed=bool(forwarded(spec)))
    return layout


def qemu_limits(limits: SandboxLimits) -> SandboxLimits:
    """Return the limits for the control group of a machine's QEMU."""
    memory = limits.memory_mb + KERNEL_MB + OWN_MB
    return replace(limits, memory_mb=memory, processes=_OWN_PROCESSES)


def _add_files(layout: Layout, contents: ContainerContents, spec: SandboxSpec) -> list[tuple[str, str]]:
    """Show root directory and workspace; return the writable places: name below `WORK` and path inside."""
    for name in ("proc", "dev", "etc", "home", "opt", "var", "run", "usr", *contents.scratch):
        layout.arguments += ["--perms", "0755", "--dir", f"{SYSTEM}/{name.lstrip('/')}"]
    writable = [("workspace", spec.mounts.target)]
    layout.arguments += ["--perms", "0755", "--dir", f"{SYSTEM}{spec.mounts.target}"]
    if spec.mounts.plain is None:
        layout.overlay("workspace", replace(spec.mounts, target=f"{WORK}/workspace"))
    for number, bind in enumerate(contents.binds):
        if is_below(bind.target, spec.mounts.target):
            below = bind.target.removeprefix(spec.mounts.target)
            layout.bind(f"bind-{number}", replace(bind, target=f"{WORK}/workspace{below}"))
            continue
        if not bind.writable:
            layout.bind(f"bind-{number}", replace(bind, target=f"{SYSTEM}{bind.target}"))
            continue
        place = f"{SYSTEM}{bind.target}"
        layout.arguments += ["--dir", place] if bind.source.is_dir() else ["--ro-bind", layout.empty(), place]
        layout.bind(f"bind-{number}", replace(bind, target=f"{WORK}/bind-{number}"))
        writable.append((f"bind-{number}", bind.target))
    for path, target in contents.links.items():
        layout.arguments += ["--symlink", target, f"{SYSTEM}{path}"]
    for number, (path, text) in enumerate(contents.texts.items()):
        layout.file(f"text-{number}", text, f"{SYSTEM}{path}")
    layout.hide_credentials(spec.binds, root=SYSTEM)
    return writable


def start_script(contents: ContainerContents, writable: Sequence[tuple[str, str]], *, relayed: bool) -> str:
    """Return the script that the machine's first program runs: it mounts, and starts the interpreter."""
    lines = ["mount -t tmpfs -o nosuid,nodev,mode=755,size=64k dev /new/dev"]
    for name in _DEVICES:
        lines.append(f"touch /new/dev/{name}; mount --bind /dev/{name} /new/dev/{name}")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        lines.append(f"ln -s /proc/self/fd/{number} /new/dev/{name}")
    lines += [
        "ln -s /proc/self/fd /new/dev/fd; ln -s pts/ptmx /new/dev/ptmx",
        "mkdir /new/dev/pts /new/dev/shm",
        "mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=620 pts /new/dev/pts",
    ]
    for path, megabytes in contents.scratch.items():
        options = (
            f"nosuid,nodev,size={megabytes}m,nr_inodes={megabytes * 256},mode=1777,uid={INSIDE_ID},gid={INSIDE_ID}"
        )
        lines.append(f"mount -t tmpfs -o {options} scratch {shlex.quote(f'/new{path}')}")
    for name, target in writable:
        lines.append(f"mount --bind /work/{name} {shlex.quote(f'/new{target}')}")
    lines.append("ifconfig lo 127.0.0.1 up")
    ports = (3, 4) if relayed else (3,)
    for number, fd in enumerate(ports, 1):
        lines += [
            f"while set -- /dev/vport*p{number}; [ ! -c $1 ]; do sleep 0.01; done",
            f"exec {fd}<>$1",
        ]
    variables = [f"export {name}={shlex.quote(value)}" for name, value in contents.variables.items()]
    command = shlex.join([*contents.python, *contents.command])
    return "\n".join([*lines, *variables, f"exec /bin/busybox switch_root /new {command}", ""])


def qemu_command(limits: SandboxLimits, machine: VirtualMachine, *, relayed: bool) -> list[str]:
    """Return QEMU's words; `{sock}` and `{others[0]}` stand for the descriptors of its ports."""
    # `none`: links and modes stay as they are. `remap`: layers of two file systems may share inode numbers.
    share = "local,security_model=none,multidevs=remap"
    kvm = machine.accelerator == "kvm"
    kernel = _KERNEL_WORDS if kvm else (*_KERNEL_WORDS, *_TRANSLATED_WORDS)
    words = [
        *(machine.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", _MACHINE, "-smp", str(machine.cpus), "-m", f"{limits.memory_mb + KERNEL_MB}M"),
        *("-accel", "kvm" if kvm else f"tcg,thread=multi,tb-size={_TRANSLATED_MB}"),
        *("-cpu", "host" if kvm else "max,la57=off"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *("-kernel", "/kernel", "-initrd", "/first-files", "-append", " ".join(kernel)),
        *("-fsdev", f"{share},id=system,path={SYSTEM},readonly=on"),
        *("-device", "virtio-9p-pci,fsdev=system,mount_tag=system"),
        *("-fsdev", f"{share},id=work,path={WORK}", "-device", "virtio-9p-pci,fsdev=work,mount_tag=work"),
        *("-device", "virtio-serial-pci,max_ports=4"),
        *("-chardev", "socket,id=exec,fd={sock}", "-device", "virtserialport,chardev=exec,nr=1"),
    ]
    if relayed:
        words += ["-chardev", "socket,id=relay,fd={others[0]}", "-device", "virtserialport,chardev=relay,nr=2"]
    return words
