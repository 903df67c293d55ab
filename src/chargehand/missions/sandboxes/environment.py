"""The environment layer that `setup` makes, built once per key and shared by all workspaces on it.

The key covers everything that the result depends on (command, declared inputs, toolchain, tier). A layer is frozen
below the workspaces: a candidate cannot change it, and so cannot prepare its own verdict there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from chargehand.checks.detection import (
    NODE_PROGRAMS,
    could_not_run,
    detect_setups,
    find_new_packages,
    lacks_packages,
    leave_out_unread_requirements,
)
from chargehand.checks.installs import InstallReader, Setup
from chargehand.core.attempt_events import CommandFinished
from chargehand.core.errors import RefusedError
from chargehand.core.events import Payload
from chargehand.core.mission_events import ChangesReverted, SetupDetected
from chargehand.core.records import Base, CheckResult, Finding, Reverted, Verdict
from chargehand.core.text import late_pattern, printable
from chargehand.missions._policy import admit
from chargehand.missions.journal import SETUP, EventSink, Journal
from chargehand.missions.sandboxes.provisioning import (
    CARGO_HOME,
    GO_MODULES,
    MAVEN_SETTINGS,
    MAVEN_VARIABLES,
    OFFLINE,
    PACKAGES,
    VENV,
    BaseEnvironment,
    NetworkLog,
    SandboxProvisioner,
    SandboxRequest,
    as_egress_request,
)
from chargehand.missions.services import DepotReader, Registries, Services
from chargehand.policy.actions import Run
from chargehand.sandbox.contract import WORKSPACE, Sandbox
from chargehand.workspace.environment import EnvironmentLayers, FrozenLayer

_PYTHON_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile")
# Files at the top of a base that show which package clients it uses.
_CARGO_FILES, _GO_FILES, _MAVEN_FILES = ("Cargo.toml",), ("go.mod", "go.work"), ("pom.xml",)
_PYTHON_COMMAND = late_pattern(r"\b(pip3?|python3?)\b")
_CARGO_COMMAND, _GO_COMMAND = late_pattern(r"\bcargo\b"), late_pattern(r"\bgo\b")
_MAVEN_COMMAND = late_pattern(r"\bmvnw?\b")
_VENV_SECONDS = 120.0
# The effect of `ensurepip` for Python's bundled wheels, if they exist. It starts pip to install them, which takes
# ten times as long as all other steps of making an environment.
_UNPACK_PIP = """
import ensurepip, sys, sysconfig, zipfile
from pathlib import Path
wheels = [*Path(ensurepip.__file__).with_name("_bundled").glob("*.whl")]
if not any(wheel.name.startswith("pip-") for wheel in wheels):
    sys.exit(1)
for wheel in wheels:
    zipfile.ZipFile(wheel).extractall(sysconfig.get_path("purelib"))
text = f"#!{sys.executable}\\nimport sys\\nfrom pip._internal.cli.main import main\\nsys.exit(main())\\n"
for name in ("pip", "pip3", f"pip3.{sys.version_info.minor}"):
    script = Path(sysconfig.get_path("scripts"), name)
    script.write_text(text)
    script.chmod(0o755)
"""
# Without network, package clients wait and retry, for minutes and for each package.
_FAIL_AT_ONCE = {
    "PIP_RETRIES": "0",
    "PIP_TIMEOUT": "5",
    "UV_OFFLINE": "1",
    "POETRY_REQUESTS_MAX_RETRIES": "0",
    "npm_config_fetch_retries": "0",
    "npm_config_offline": "true",
    "YARN_HTTP_RETRY": "0",
    "CARGO_NET_OFFLINE": "true",
    "GOPROXY": "off",
    "BUNDLE_RETRY": "0",
    "COMPOSER_DISABLE_NETWORK": "1",
}
_TAIL_BYTES = 2000
# The largest input that is parsed for a key: a lock file of megabytes takes seconds, at each mission's start.
_PARSED_BYTES = 200_000


async def base_environment(
    services: Services,
    journal: EventSink,
    base: Base,
    *,
    setup: str | None,
    directory: str = "",
    provisioner: SandboxProvisioner | None = None,
) -> BaseEnvironment:
    """Return the environment of a base; make its layer by running `setup` in a directory if it is missing.

    Writes of setup to tracked paths are dropped and recorded as reverted by the rule `setup_tracked`. Raises
    `RefusedError` (`setup_failed`) with the end of the output if the command fails, `policy_denied` if a rule
    denies it.
    """
    bare = BaseEnvironment(base=base, directory=directory)
    if not setup:
        return bare
    layers = EnvironmentLayers(services.depot)
    key = _layer_key(services, layers, bare, setup)
    found = layers.find(key)
    if found is None:
        provisioner = provisioner or SandboxProvisioner(services, journal)
        found = (await _build_layer(services, journal, layers, provisioner, bare, setup, key)).path
    return replace(bare, layer=found, setup=setup)


def find_made_setup(services: Services, base: Base, directory: str) -> str | None:
    """Return the detected setup whose layer an earlier mission on this base made; may block."""
    layers, bare = EnvironmentLayers(services.depot), BaseEnvironment(base=base, directory=directory)
    suggested = detect_setups(DepotReader(services.depot), base.tree, directory)
    return next((each for each in suggested if layers.find(_layer_key(services, layers, bare, each))), None)


async def needed_setup(
    services: Services,
    journal: Journal,
    environment: BaseEnvironment,
    verdict: Verdict,
    *,
    provisioner: SandboxProvisioner,
    tried: Sequence[str] = (),
) -> str | None:
    """Return the first setup suggested by a base's files that works there.

    The search starts only if the base's checks seem to lack installable packages. With `tried` setups, and
    `verdict` from the last one's environment, the next is returned only if a check could not run at all. A
    recorded step: a worker that resumes the mission uses the same environment. Raises `RefusedError`
    (`setup_failed`) of the first suggestion if all fail.
    """
    base, directory = environment.base, environment.directory

    async def find() -> object:
        failed = [check for check in verdict.checks if check.status != "passed" and check.artifact]
        artifacts = services.store.artifacts
        kept = (check.artifact or "" for check in failed)
        # A damaged output shows no missing packages.
        texts = (
            artifacts.get(each).decode(errors="replace") if artifacts.is_intact(each) else "" for each in kept
        )
        lacking = (
            could_not_run(check.reason) if tried else lacks_packages(check.reason, text)
            for check, text in zip(failed, texts, strict=True)
        )
        if not any(lacking):
            return {"command": None}
        suggested = [
            each for each in detect_setups(DepotReader(services.depot), base.tree, directory) if each not in tried
        ]
        layers = EnvironmentLayers(services.depot)
        # A setup that worked before comes first: a failing command is not run again in each mission.
        known = [each for each in suggested if layers.find(_layer_key(services, layers, environment, each))]
        failure: RefusedError | None = None
        for command in (*known, *suggested):
            try:
                await base_environment(
                    services, journal, base, setup=command, directory=directory, provisioner=provisioner
                )
            except RefusedError as error:
                if error.code != "setup_failed":
                    raise
                failure = failure or error
            else:
                return {"command": command}
        if failure is not None and not tried:
            raise failure
        return {"command": None}

    def events(output: dict[str, Any]) -> Sequence[Payload]:
        return (SetupDetected(command=output["command"]),) if output["command"] else ()

    found: Any = await journal.step("setup/detected", [base.tree, *tried], find, events=events)
    command: str | None = found["command"]
    return command


@dataclass(eq=False, slots=True)
class CandidateLayers:
    """The environments of candidate trees: the base's, or a private one if a tree changes the installed packages.

    A base that needs no setup proves nothing about a tree that requires packages: such a tree gets the setup that
    its files suggest.

    A private layer is removed at the end of the block. It is made without network unless `project.setup_network`
    lets the candidate's inputs reach the registries: an agent wrote them. If its setup fails, the checks run on
    the base's layer, `findings` says so, and `matches` is false: the results do not apply to the environment that
    the tree requires.
    """

    services: Services
    journal: EventSink
    provisioner: SandboxProvisioner
    base_environment: BaseEnvironment
    findings: list[Finding] = field(init=False, default_factory=list)
    matches: bool = field(init=False, default=True)
    _made: dict[str, BaseEnvironment] = field(init=False, default_factory=dict)
    _own: list[FrozenLayer] = field(init=False, default_factory=list)
    _layers: EnvironmentLayers = field(init=False)

    def __post_init__(self) -> None:
        self._layers = EnvironmentLayers(self.services.depot)

    async def __aenter__(self) -> CandidateLayers:
        return self

    async def __aexit__(self, *error: object) -> None:
        for layer in self._own:
            await asyncio.to_thread(self._layers.remove, layer)

    async def environment(self, tree: str) -> BaseEnvironment:
        """Return the environment that a workspace of `tree` starts from."""
        changed, commands = self._find_setups(tree)
        if not changed:
            return self.base_environment
        bare = replace(self.base_environment, layer=None, setup=None)
        keys = [_layer_key(self.services, self._layers, bare, each, tree=tree) for each in commands]
        if (known := "/".join(keys)) in self._made:
            return self._made[known]
        message = "asks for other packages than the base, and no setup installs them, so the checks ran without"
        finding = Finding(
            rule="setup_missing", severity="warning", path=changed[0], message=message, needs_person=True
        )
        for key, setup in zip(keys, commands, strict=True):
            found = self._layers.find(key)  # of a base commit with the same inputs
            if found is None:
                try:
                    layer = await _build_layer(
                        self.services, self.journal, self._layers, self.provisioner, bare, setup, key, tree=tree
                    )
                except RefusedError as error:
                    if error.code != "setup_failed":
                        raise
                    finding = self._explain_failure(changed[0], error)
                    # A failure on the base too does not count against the tree, and the next one may succeed.
                    if setup == commands[-1] or not await self._fails_on_base(setup):
                        break
                    continue
                self._own.append(layer)
                found = layer.path
            self._made[known] = replace(bare, layer=found, setup=setup)
            return self._made[known]
        self.matches = False
        self.findings += [finding] if not self.findings else []
        self._made[known] = self.base_environment
        return self.base_environment

    def explain(self, checks: Iterable[CheckResult]) -> tuple[Finding, ...]:
        """Return the findings; if `checks` failed in the base's layer, they say that approval cannot help."""
        failed = [check.name for check in checks if check.status != "passed" and not check.base_tests]
        if self.matches or not failed:
            return tuple(self.findings)
        why = f"; {printable(failed[0])} failed there, so the tree cannot be approved before its own setup works"
        return tuple(replace(each, message=each.message + why) for each in self.findings)

    def asks_for_others(self, tree: str) -> bool:
        """Return whether a tree requires other packages than the base."""
        return bool(self._find_setups(tree)[0])

    def is_private(self, environment: BaseEnvironment) -> bool:
        """Whether the layer of an environment was made for its own tree."""
        return any(environment.layer == layer.path for layer in self._own)

    def _find_setups(self, tree: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the files that make a tree need a different environment, and commands that may build it."""
        project, base, setup = (
            self.services.config.project,
            self.base_environment.base,
            self.base_environment.setup,
        )
        reader, directory = DepotReader(self.services.depot), self.base_environment.directory
        if setup:
            # The setup for a mere version bump would fail without network, and no package depends on it.
            described = Setup(command=setup, versions=project.setup_network)
            changed = self._layers.changed(
                base, tree, inputs=project.setup_inputs, describe=InstallReader(reader, described)
            )
            # Inputs named by a person are all meant.
            if not project.setup_inputs:
                trees = (base.tree, tree)
                changed = leave_out_unread_requirements(changed, reader, trees, directory, setup)
            return changed, (setup,)
        changed = find_new_packages(self.services.depot.diff(base.tree, tree), reader, directory)
        # If a person wants no setup, the search is skipped.
        return changed, detect_setups(reader, tree, directory) if changed and project.setup is None else ()

    async def _fails_on_base(self, setup: str) -> bool:
        base, directory = self.base_environment.base, self.base_environment.directory
        project, reader = self.services.config.project, DepotReader(self.services.depot)
        if not project.setup_network or setup not in detect_setups(reader, base.tree, directory):
            return False
        try:
            await base_environment(
                self.services, self.journal, base, setup=setup, directory=directory, provisioner=self.provisioner
            )
        except RefusedError as error:
            return error.code == "setup_failed"
        return False

    def _explain_failure(self, path: str, error: RefusedError) -> Finding:
        if self.services.config.project.setup_network:
            message = f"setup fails with it: {error.message}"
            return Finding(rule="setup_failed", severity="error", path=path, message=message)
        message = (
            "changes what setup installs, and setup failed without network, so the checks ran in the base's "
            "environment; `chargehand config set project.setup_network true` lets setup reach the registries"
        )
        return Finding(rule="setup_offline", severity="warning", path=path, message=message, needs_person=True)


def _layer_key(
    services: Services, layers: EnvironmentLayers, bare: BaseEnvironment, setup: str, *, tree: str | None = None
) -> str:
    return layers.key(
        bare.base,
        command=setup,
        inputs=services.config.project.setup_inputs,
        toolchain=services.toolchain,
        tier=services.tier_name,
        tree=tree,
        directory=bare.directory,
        describe=InstallReader(DepotReader(services.depot), Setup(command=setup), most_bytes=_PARSED_BYTES),
    )


async def _build_layer(
    services: Services,
    journal: EventSink,
    layers: EnvironmentLayers,
    provisioner: SandboxProvisioner,
    bare: BaseEnvironment,
    setup: str,
    key: str,
    *,
    tree: str | None = None,
) -> FrozenLayer:
    """Make a layer by running setup on the base or on a candidate's tree."""
    action = Run(kind="setup", run=setup, trusted=services.is_trusted(setup))
    await admit(services, journal, action, purpose="setup", directory=bare.directory)
    names = (*_PYTHON_FILES, *_CARGO_FILES, *_GO_FILES, *_MAVEN_FILES)
    place = f"{bare.directory}/" if bare.directory else ""
    files = frozenset(name for name in names if services.depot.lookup(bare.base.tree, place + name))
    python = bool(_PYTHON_COMMAND.search(setup) or files.intersection(_PYTHON_FILES))
    online = tree is None or services.config.project.setup_network
    clients = _client_variables(setup, files) if online else {}
    async with contextlib.AsyncExitStack() as stack:
        registries = await stack.enter_async_context(_open_registries(services, journal)) if online else None
        egress = await stack.enter_async_context(provisioner.egress(purpose=SETUP)) if online else None
        workspace = await stack.enter_async_context(provisioner.workspace(bare, purpose=SETUP, tree=tree))
        request = SandboxRequest(
            purpose=SETUP if online else OFFLINE,
            registries=registries,
            egress=egress,
            path=(*((f"{VENV}/bin",) if python else ()), f"{NODE_PROGRAMS}/bin"),
            variables={
                **({**registries.environment(), **clients} if registries else _FAIL_AT_ONCE),
                **({"UV_PROJECT_ENVIRONMENT": VENV} if python else {}),
            },
        )
        async with provisioner.sandbox(workspace, bare, request) as sandbox:
            # Tools that look at every file would mistake the clients' files there for the project's own.
            await _write_settings(sandbox, f"{PACKAGES}/.gitignore", "*\n")
            if registries and "CARGO_HOME" in clients:
                await _write_settings(sandbox, f"{CARGO_HOME}/config.toml", registries.cargo_settings())
            maven = registries if "MAVEN_OPTS" in clients else None
            if maven:
                await _write_settings(sandbox, MAVEN_SETTINGS, maven.maven_settings(offline=False))
            if python:
                await _run(services, journal, sandbox, f"python3 -m venv --without-pip {VENV}", _VENV_SECONDS)
                unpack = [f"{VENV}/bin/python", "-I", "-c", _UNPACK_PIP]
                if (await sandbox.exec(unpack, timeout=_VENV_SECONDS)).exit_code != 0:
                    await _run(services, journal, sandbox, f"python3 -m venv {VENV}", _VENV_SECONDS)
            await _run(services, journal, sandbox, setup, services.config.limits.check_time)
            if maven:  # otherwise it would look up each package again
                await _write_settings(sandbox, MAVEN_SETTINGS, maven.maven_settings(offline=True))
        # Only with the sandbox closed: no process of setup may write while the layer is taken.
        frozen = await asyncio.to_thread(layers.freeze, workspace, key, tree=tree)
    if frozen.dropped:
        dropped = tuple(Reverted(path=path, rule="setup_tracked") for path in frozen.dropped)
        journal.record(ChangesReverted(attempt="", reverted=dropped))
    return frozen


def _client_variables(setup: str, files: frozenset[str]) -> Mapping[str, str]:
    """Return the variables of a setup with network, for the clients that its command or the base's files show."""
    found = {}
    if files.intersection(_CARGO_FILES) or _CARGO_COMMAND.search(setup):
        found["CARGO_HOME"] = f"{WORKSPACE}/{CARGO_HOME}"
    if files.intersection(_GO_FILES) or _GO_COMMAND.search(setup):
        found["GOMODCACHE"] = f"{WORKSPACE}/{GO_MODULES}"
    if files.intersection(_MAVEN_FILES) or _MAVEN_COMMAND.search(setup):
        found |= MAVEN_VARIABLES
    return found


async def _write_settings(sandbox: Sandbox, name: str, text: str) -> None:
    """Write a file for package clients next to their downloads; it stays in the layer."""
    path = f"{WORKSPACE}/{name}"
    write = 'umask 022 && mkdir -p "${1%/*}" && cat > "$1"'
    done = await sandbox.exec(["/bin/sh", "-c", write, "sh", path], stdin=text.encode(), timeout=60.0)
    if done.exit_code != 0:
        raise RefusedError(
            f"setup failed: cannot write {path}",
            code="setup_failed",
            hint=f"the repository must not contain a file {PACKAGES!r}",
        )


@contextlib.asynccontextmanager
async def _open_registries(services: Services, journal: EventSink) -> AsyncIterator[Registries]:
    """Open the mirror for one setup; its requests are logged like those of a sandbox."""
    requests = NetworkLog(journal, clock=services.clock, purpose=SETUP, attempt=None)
    async with services.open_registries(lambda request: requests.see(as_egress_request(request))) as opened:
        try:
            yield opened
        finally:
            requests.finish()


async def _run(services: Services, journal: EventSink, sandbox: Sandbox, command: str, seconds: float) -> None:
    """Run one command of a setup and record it; raises `RefusedError` (`setup_failed`) if it fails."""
    result = await sandbox.exec(["/bin/sh", "-c", command], timeout=seconds, output_limit=4_000_000)
    output = result.stdout + result.stderr
    artifact = services.store.artifacts.put(output, kind="setup", mission=journal.mission)
    journal.record(
        CommandFinished(
            sandbox=sandbox.id,
            argv=("/bin/sh", "-c", command),
            exit_code=result.exit_code,
            seconds=result.seconds,
            timed_out=result.timed_out,
            truncated=result.truncated,
            artifact=artifact,
            limit=result.limit,
        )
    )
    if result.exit_code != 0:
        ended = f"setup failed: {command!r} ended with exit code {result.exit_code}"
        if result.timed_out:
            ended = f"setup was stopped at its time limit: {command!r} after {result.seconds:.0f} s"
        elif result.limit in ("disk", "files"):
            key = f"sandbox.setup_{'disk_mb' if result.limit == 'disk' else 'files'}"
            ended = f"setup wrote more than {key} allows and was stopped: {command!r}"
        elif result.limit is not None:
            ended = f"setup was ended by its limit of {result.limit}: {command!r}"
        tail = printable(output[-_TAIL_BYTES:].decode(errors="replace")).strip()
        last = f"its last output was:\n{tail}" if tail else "it printed nothing"
        raise RefusedError(
            f"{ended}; {last}",
            code="setup_failed",
            hint="correct project.setup (`chargehand project setup` runs it), or set setup = '' to do without",
        )
