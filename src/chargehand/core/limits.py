"""The sections of the configuration on limits, the sandbox and secrets, and the documentation of each key."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct


class KeySpec(Struct, frozen=True):
    """The documentation, format and merge rule of one configuration key; read from `Annotated`.

    `meet` says how the repository's value is merged: `min` (numbers), `intersect` or `union` (lists), `repo` (the
    repository may set it freely), `user` (only the user's file, the environment or the command line may; the
    repository's value needs trust) or `file` (only the user's file may). `form` is the format of a text or number:
    `command`, `setup` (a command or empty), `argv`, `area`, `path`, `host`, `url`, `http`, `name`, `optional` (a
    name or empty), `secret` (the name of a secret), `variable` (NAME=value), `model`, `agent` (as after --agent),
    `place` (a path in a store), `mail`, `server` (HOST or HOST:PORT), `login`, `seconds`, `percent`, `share`
    (between 0 and 1), `tokens`, `money` (0 is free) or `budget` (more than 0). `empty` says what an empty list of
    an `intersect` key allows: `all` or `none`. `host` marks a program that runs on the host if there is no
    sandbox: the repository's value then needs trust. `names` is the kind of registered names that a text must be
    one of, followed by further accepted words.
    """

    doc: str
    meet: str = "user"
    form: str = ""
    empty: str = "none"
    host: bool = False
    names: str = ""


class LimitsConfig(Struct, frozen=True, kw_only=True):
    """[limits]: upper limits of a mission: time, attempts and money."""

    time: Annotated[float, KeySpec("time for a whole mission", meet="min", form="seconds")] = 1800.0
    model_silence: Annotated[
        float,
        KeySpec(
            "time a model has for the next part of its reply; then it is asked again, or the next model",
            meet="min",
            form="seconds",
        ),
    ] = 300.0
    check_time: Annotated[float, KeySpec("time for one check", meet="min", form="seconds")] = 900.0
    fault_time: Annotated[
        float,
        KeySpec(
            "time for trying small faults that changed tests should notice; one second turns this off",
            meet="min",
            form="seconds",
        ),
    ] = 120.0
    attempts: Annotated[int, KeySpec("how often the agent may try", meet="min")] = 1
    budget_usd: Annotated[float, KeySpec("money for a whole mission in USD", meet="min", form="budget")] = 5.0
    attempt_usd: Annotated[
        float | None, KeySpec("money for one attempt in USD; absent: the mission's", meet="min", form="budget")
    ] = None
    task_usd: Annotated[
        float | None,
        KeySpec(
            "money for one task of a mission in USD, all attempts together; absent: the mission's",
            meet="min",
            form="budget",
        ),
    ] = None
    # No `meet`: a repository must not decide how soon a person has to answer.
    question_seconds: Annotated[
        float | None,
        KeySpec("time in which a question can be answered; absent: for ever; the user's own word", form="seconds"),
    ] = None
    # Per day: an amount without a period would lock the user out for ever.
    user_usd: Annotated[
        float | None,
        KeySpec(
            "money for all that one user starts in a day (UTC), in all projects, in USD; absent: no limit",
            form="budget",
        ),
    ] = None
    day_usd: Annotated[float | None, KeySpec("USD for all calls of a day (UTC); absent: any", form="budget")] = (
        None
    )
    assume_usd_per_mtok: Annotated[
        float | None,
        KeySpec(
            "price assumed for remote models of unknown price, USD per million tokens; absent: they are refused",
            form="money",
        ),
    ] = None
    state_mb: Annotated[
        int,
        KeySpec("disk of all projects' depots, bases, layers and workspaces together in MiB; the user's own word"),
    ] = 10240
    workspace_age: Annotated[
        float,
        KeySpec("age at which a workspace that no mission needs is removed; the user's own word", form="seconds"),
    ] = 86400.0


class SandboxConfig(Struct, frozen=True, kw_only=True):
    """[sandbox]: where agents and checks run."""

    # No `meet`: the repository must not choose its own confinement. Not `auto` by default: without a container
    # engine the first mission of a new repository would be refused.
    tier: Annotated[
        str,
        KeySpec(
            "process, container, vm, auto (by sensitivity), or none (no sandbox: your own risk)",
            names="tiers none auto",
        ),
    ] = "process"
    container_program: Annotated[
        str | None,
        KeySpec("container engine, podman or docker, by name or path; absent: the first that works", form="name"),
    ] = None
    container_image: Annotated[
        str | None,
        KeySpec(
            "image that the engine has, with python3, sh and the project's programs; absent: the host's own /usr",
            form="name",
        ),
    ] = None
    network: Annotated[
        tuple[str, ...],
        KeySpec(
            "hosts that agents, setup and `exec` may reach, `private:` before private ones; empty: no host",
            meet="intersect",
            form="host",
        ),
    ] = ()
    host_packages: Annotated[
        tuple[str, ...],
        KeySpec(
            "Python packages of this machine that sandboxes show, with their dependencies; `all`: every package; "
            "empty: no package, as setup installs a project's dependencies",
            form="name",
        ),
    ] = ()
    network_checks: Annotated[bool, KeySpec("whether checks may reach the hosts of network too")] = False
    network_mb_in: Annotated[int, KeySpec("data that one sandbox receives from hosts, in MiB", meet="min")] = 2048
    network_mb_out: Annotated[int, KeySpec("data that one sandbox sends to hosts, in MiB", meet="min")] = 256
    network_requests: Annotated[int, KeySpec("requests to hosts per second; more wait", meet="min")] = 50
    network_connections: Annotated[int, KeySpec("connections to hosts at once", meet="min")] = 64
    network_idle: Annotated[
        float, KeySpec("idle time after which a connection is closed", meet="min", form="seconds")
    ] = 120.0
    toolchain: Annotated[
        tuple[str, ...], KeySpec("host directories shown read-only, first on PATH", form="path")
    ] = ()
    memory_mb: Annotated[int, KeySpec("memory in MiB", meet="min")] = 4096
    processes: Annotated[int, KeySpec("processes and threads", meet="min")] = 512
    tmp_mb: Annotated[int, KeySpec("size of /tmp, and of the home, in MiB each", meet="min")] = 1024
    open_files: Annotated[int, KeySpec("files that one process has open", meet="min")] = 4096
    file_mb: Annotated[int | None, KeySpec("size of one file in MiB; absent: disk_mb", meet="min")] = None
    output_mb: Annotated[int, KeySpec("output of one command on its two streams, in MiB", meet="min")] = 256
    cpu_percent: Annotated[
        int | None,
        KeySpec("share of processor time in percent, 100 for one processor; absent: all of them", meet="min"),
    ] = None
    cpu_time: Annotated[
        float | None,
        KeySpec("processor time of everything in one sandbox; absent: no limit", meet="min", form="seconds"),
    ] = None
    disk_mb: Annotated[
        int, KeySpec("files that an attempt, a check or `exec` writes in MiB, ignored ones too", meet="min")
    ] = 1024
    files: Annotated[
        int, KeySpec("files that an attempt, a check or `exec` writes, ignored ones too", meet="min")
    ] = 100_000
    # Separate limits: packages of a large project take more than any change to it.
    setup_disk_mb: Annotated[int, KeySpec("files that setup writes in MiB", meet="min")] = 8192
    setup_files: Annotated[int, KeySpec("files that setup writes", meet="min")] = 1_000_000


# The sources of secrets that need no entry, in their usual order.
LOCAL_SOURCES = ("environment", "keyring", "file")
