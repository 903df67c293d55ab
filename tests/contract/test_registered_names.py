"""Every registered name keeps the contract of its kind, and no name is left out."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

import pytest

from chargehand.agents.clis import SPECS
from chargehand.agents.kinds import AGENTS
from chargehand.checks.junit import TestCounts
from chargehand.checks.runners.base import CheckScript, Outcome, Runner
from chargehand.checks.runners.table import RUNNERS
from chargehand.core.clock import SystemClock
from chargehand.core.own_config import AlertsConfig, SecretSourceConfig
from chargehand.core.ports import KeySource
from chargehand.core.registry import Registry
from chargehand.credentials.credentials import KEY_SOURCES, KeySetup, SecretsFile
from chargehand.forges.registries import FORGES
from chargehand.models.dialects.base import ModelDialect
from chargehand.models.registries import DIALECTS, PROVIDERS
from chargehand.reports.alerting.channels import NOTIFIERS, ChannelFailedError, ChannelSetup
from chargehand.reports.alerting.watch import trial_notice
from chargehand.sandbox.contract import ExecResult
from chargehand.sandbox.tiers import TIERS
from chargehand.testing.names.suites import DialectContract, KeySourceContract, NotifierContract, RunnerContract
from chargehand.workspace.drivers import DRIVERS

HERE = Path(__file__).parent
REGISTRIES: tuple[Registry[Any], ...] = (
    AGENTS, SPECS, DIALECTS, PROVIDERS, TIERS, DRIVERS, RUNNERS, NOTIFIERS, KEY_SOURCES, FORGES,
)  # fmt: skip
# Sources of keys that are servers, each with the line of its suite.
STORES = {"vault": "class TestVault(KeySourceContract)", "aws": "class TestAws(KeySourceContract)"}
# The suites of kinds that need more than one line for each name.
SUITES = {
    "process": ("test_sandbox_contract.py", "class TestProcessTier(SandboxContract)"),
    "container": ("test_sandbox_contract.py", "class ContainerContract(SandboxContract)"),
    "vm": ("test_sandbox_vm.py", "class TestVm(SandboxContract)"),
    "command": ("test_agent_contract.py", "class TestCommand(AgentContract)"),
    "native": ("test_agent_contract.py", "class TestNative(AgentContract)"),
    "cli": ("test_agent_contract.py", "class TestCli(AgentContract)"),
    "acp": ("test_agent_contract.py", "class TestAcp(AgentContract)"),
    "patch": ("test_agent_contract.py", "class TestPatch(AgentContract)"),
    "local": ("test_forges_local.py", "class TestLocal(ForgeContract)"),
    "gitea": ("test_forges_gitea.py", "class TestGitea(ForgeContract)"),
    "github": ("test_forges_github.py", "class TestGithub(ForgeContract)"),
    "gitlab": ("test_forges_gitlab.py", "class TestGitlab(ForgeContract)"),
}


@pytest.mark.parametrize("name", [*TIERS, *AGENTS, *FORGES])
def test_a_tier_a_kind_of_agent_and_a_forge_have_their_suite(name: str) -> None:
    module, line = SUITES[name]
    assert line in (HERE / module).read_text()


@pytest.mark.parametrize(
    ("registry", "name"),
    [pytest.param(each, name, id=f"{each.group}-{name}") for each in REGISTRIES for name in each],
)
def test_a_name_leads_to_its_implementation(registry: Registry[Any], name: str) -> None:
    found = registry.find(name)
    assert found is registry[name], "one implementation, however often it is looked up"
    assert getattr(found, "name", name) == name
    assert registry.summary(name)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_speaks_a_registered_dialect(name: str) -> None:
    spec = PROVIDERS[name]
    assert spec.dialect in DIALECTS
    assert spec.address.startswith(("https://", "http://127.0.0.1")) or not (spec.address or spec.key)


@pytest.mark.parametrize("name", SPECS)
def test_a_cli_speaks_registered_dialects(name: str) -> None:
    assert set(SPECS[name].dialects) <= set(DIALECTS)


class TestDialects(DialectContract):
    @pytest.fixture(params=DIALECTS)
    def dialect(self, request: pytest.FixtureRequest) -> ModelDialect:
        return DIALECTS[request.param]


class TestRunners(RunnerContract):
    @pytest.fixture(params=RUNNERS)
    def runner(self, request: pytest.FixtureRequest) -> Runner:
        return RUNNERS[request.param]


class _Keys:
    def get(self, name: str) -> str | None:
        return NotifierContract.secret


CLOSED = "127.0.0.1:1"
FAILING: Mapping[str, AlertsConfig] = {
    "desktop": AlertsConfig(),
    "webhook": AlertsConfig(desktop=False, webhook=f"http://{CLOSED}/x", webhook_secret="THE_KEY"),
    "mail": AlertsConfig(desktop=False, mail_to=("a@b.example",), mail_server=CLOSED, mail_password="THE_KEY"),
}


class TestNotifiers(NotifierContract):
    failure: ClassVar = ChannelFailedError

    @pytest.fixture(params=NOTIFIERS)
    def unreachable(self, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any, Any, Any]:
        program = tmp_path / "notify-send"
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
        stopping = threading.Event()
        stopping.set()  # no pause before a retry

        def setup(config: AlertsConfig) -> ChannelSetup:
            environ = {"PATH": str(tmp_path), "DBUS_SESSION_BUS_ADDRESS": "x"}
            return ChannelSetup(config=config, keys=_Keys(), environ=environ, stopping=stopping)

        notice = trial_notice(SystemClock().now())
        failing = setup(FAILING[request.param])
        return NOTIFIERS[request.param], setup(AlertsConfig(desktop=False)), failing, notice


class TestKeySources(KeySourceContract):
    @pytest.fixture(params=[name for name in KEY_SOURCES if name not in STORES])
    def source(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeySource:
        kept = {"THE_KEY": self.value}
        place = tmp_path / "secrets.json"
        place.write_text(json.dumps({"secrets": kept}))
        place.chmod(0o600)
        backend = type(
            "Backend", (), {"name": "memory", "get_password": lambda self, service, name: kept.get(name)}
        )
        keyring, core = ModuleType("keyring"), ModuleType("keyring.core")
        vars(keyring)["get_keyring"] = backend
        vars(core)["recommended"] = lambda found: True
        monkeypatch.setitem(sys.modules, "keyring", keyring)
        monkeypatch.setitem(sys.modules, "keyring.core", core)
        config = SecretSourceConfig(
            path=str(tmp_path / request.param),
            key_file=str(tmp_path / "key"),
            command=("sh", "-c", 'test "$0" = THE_KEY && printf %s s3cret-of-the-test || true', "{name}"),
        )
        (tmp_path / "key").write_bytes(bytes(32))
        (tmp_path / "key").chmod(0o600)
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "THE_KEY").write_text(self.value)
        made = KEY_SOURCES[request.param](KeySetup(kept, tmp_path, config, "mine"))
        if request.param == "encrypted":
            with cast(SecretsFile, made).changing() as content:
                content.secrets = kept
        return made


@pytest.mark.parametrize("name", STORES)
def test_a_store_of_secrets_has_its_suite(name: str) -> None:
    assert STORES[name] in (HERE / "test_secret_stores.py").read_text()


class Lax(Runner):
    """Passes whatever happened, and loses the command."""

    name = "lax"

    def outcome(self, result: ExecResult, text: str, report: TestCounts | None) -> Outcome:
        return Outcome(status="passed")

    def script(self, command: str) -> CheckScript:
        return CheckScript("true")


class Chatty:
    """Fails with the secret, and always opens a channel."""

    name = "chatty"

    def __init__(self, setup: ChannelSetup) -> None:
        self._key = setup.keys.get("THE_KEY")

    def send(self, notices: Sequence[object]) -> None:
        raise ChannelFailedError(f"refused {self._key}")


def test_the_suites_notice_what_breaks_a_promise() -> None:
    setup = ChannelSetup(config=AlertsConfig(), keys=_Keys(), environ={}, stopping=threading.Event())
    opened = (Chatty, setup, setup, None)
    runners, notifiers, sources = RunnerContract(), TestNotifiers(), KeySourceContract()
    for check in (
        lambda: runners.test_only_an_exit_code_of_0_can_pass(Lax(), ""),
        lambda: runners.test_a_run_that_was_ended_never_passes(Lax()),
        lambda: runners.test_its_script_runs_the_command(Lax()),
        lambda: notifiers.test_it_opens_no_channel_unless_configured(opened),
        lambda: notifiers.test_a_failed_delivery_is_an_error_without_the_secret(opened),
        lambda: sources.test_a_missing_key_is_no_error(_Keys()),
    ):
        with pytest.raises(AssertionError):
            check()
