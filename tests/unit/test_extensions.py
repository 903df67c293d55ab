"""Installed distributions add names only if the user's file enables them; a broken one breaks nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import chargehand.core
from chargehand.agents.clis import SPECS
from chargehand.agents.kinds import AGENTS
from chargehand.agents.opening import open_agent
from chargehand.app.agents import agent_option
from chargehand.app.selection.agents import named_agent
from chargehand.checks.runners.table import RUNNERS, runner_of
from chargehand.configuration.extensions import InstalledExtensions
from chargehand.configuration.keys import is_short_form
from chargehand.configuration.locations import UserFile
from chargehand.configuration.records import OptionValue, RepositoryFile, ResolvedConfig
from chargehand.configuration.resolve import resolve
from chargehand.core.config import AgentConfig
from chargehand.core.errors import ConfigError, NotFoundError
from chargehand.core.own_config import AlertsConfig
from chargehand.core.records import TierFacts
from chargehand.core.registry import Registered, Registry, use_extensions
from chargehand.credentials.credentials import KEY_SOURCES, open_credentials
from chargehand.models.registries import DIALECTS, PROVIDERS
from chargehand.policy.tiers import choose_tier
from chargehand.reports.alerting.channels import NOTIFIERS, ChannelFailedError, NoticeChannel, open_channels
from chargehand.sandbox.tiers import TIERS
from chargehand.workspace.drivers import DRIVERS

ACME = """
    from chargehand.agents.contract import Abilities, AgentAdapter
    from chargehand.checks.runners.base import Runner

    class Robot:
        kind, abilities, checkpoints_itself = "robot", Abilities(asks=True), False

        def __init__(self, setup):
            self.name, self.models = setup.name, setup.models

    class Bats(Runner):
        name, starts = "bats", ("bats",)

    class Pager:
        name = "pager"

        def send(self, notices):
            pass

    class Vault:
        def get(self, name):
            return "from the vault" if name == "VAULT_KEY" else None

    ROBOT = AgentAdapter(Robot.abilities, Robot)

    def open_pager(setup):
        return Pager()

    def open_vault(setup):
        return Vault()
"""
ACME_NAMES = {
    "agents": "robot = acme_code:ROBOT\nnative = acme_code:ROBOT",
    "notifiers": "pager = acme_code:open_pager",
    "runners": "bats = acme_code:Bats",
    "key_sources": "acme-safe = acme_code:open_vault",
    "dialects": "morse = acme_code:Bats",
}
Install = Callable[[str, str, Mapping[str, str]], None]
ROBOT_AGENT = '[agents.r]\nkind = "robot"\n'


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a distribution: its name, its module's text, its entry points by kind."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, code: str, points: Mapping[str, str]) -> None:
        about = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(
            "".join(f"[chargehand.{kind}]\n{lines}\n" for kind, lines in points.items())
        )
        (tmp_path / f"{name.partition('-')[0]}_code.py").write_text(textwrap.dedent(code))

    yield install
    use_extensions(None)
    for name in ("acme_code", "wreck_code"):
        sys.modules.pop(name, None)


@pytest.fixture
def acme(install: Install) -> None:
    install("acme-robots", ACME, ACME_NAMES)


@pytest.fixture
def wreck(install: Install) -> None:
    """Install a distribution whose module cannot be imported."""
    points = dict.fromkeys((*ACME_NAMES, "clis", "providers", "tiers"), "wreck = wreck_code:X")
    install("wreck", "import a_module_that_is_missing", points)


def configured(*enabled: str, text: str = "", **more: Any) -> ResolvedConfig:
    head = f"[extensions]\nenabled = {list(enabled)}\n" if enabled else ""
    return resolve(user=UserFile(path=Path("/home/me/config.toml"), text=head + text), **more)


def channels() -> tuple[NoticeChannel, ...]:
    stopping = threading.Event()
    config = AlertsConfig(webhook="http://127.0.0.1:1/x")
    return open_channels(config, keys=open_credentials({}, Path("/none")), environ={}, stopping=stopping)


@pytest.mark.usefixtures("acme")
def test_a_kind_of_agent_is_refused_until_its_distribution_is_enabled() -> None:
    with pytest.raises(ConfigError, match=r"config\.toml:2: unknown agent kind 'robot'") as caught:
        configured(text=ROBOT_AGENT)
    line = 'enabled = ["acme-robots"]'
    assert line in caught.value.hint
    assert "[extensions]" in caught.value.hint
    with pytest.raises(ConfigError, match="unknown agent kind") as caught:
        named_agent(configured().config, "robot:x")
    assert line in caught.value.hint
    with pytest.raises(NotFoundError) as unknown:
        AGENTS.find("robot")
    assert line in unknown.value.hint
    assert "acme_code" not in sys.modules, "nothing of it is imported"
    # The same line, added to the file, enables it.
    config = configured(text=f"[extensions]\n{line}\n{ROBOT_AGENT}").config
    agent = open_agent("r", config.agents["r"], models=("m",))
    assert (agent.kind, agent.name, agent.models) == ("robot", "r", ("m",))
    assert named_agent(config, "robot:any words") == AgentConfig(kind="robot", command=("any", "words"))


@pytest.mark.usefixtures("acme")
def test_the_names_of_distributions_are_compared_as_package_indexes_do() -> None:
    assert "robot" in (configured("Acme_Robots") and AGENTS)
    assert "robot" not in (configured("acme") and AGENTS)
    assert "robot" not in (configured() and AGENTS), "no longer enabled"


@pytest.mark.usefixtures("acme")
def test_resolving_options_alone_enables_and_disables_nothing() -> None:
    resolve()
    assert 'enabled = ["acme-robots"]' in AGENTS.explain("robot")
    configured("acme-robots")
    resolve()
    assert "robot" in AGENTS


@pytest.mark.usefixtures("acme")
def test_an_unknown_name_leads_to_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError) as caught:
        configured("acme-robots", text='[agents.r]\nkind = "robbot"\n')
    assert caught.value.hint == "did you mean 'robot'? known: command, native, cli, acp, patch, robot"
    with pytest.raises(NotFoundError, match="unknown agent kind 'zzz'") as unknown:
        AGENTS.find("zzz")
    assert unknown.value.hint == "known: acp, cli, command, native, patch, robot"


@pytest.mark.usefixtures("acme")
def test_an_extension_never_replaces_a_built_in_name() -> None:
    configured("acme-robots")
    assert AGENTS.names().count("native") == 1
    assert AGENTS.find("native").abilities.judged
    assert "morse" not in DIALECTS


def test_only_the_users_own_file_enables() -> None:
    theirs = RepositoryFile(content=b'[extensions]\nenabled = ["acme-robots"]\n', commit="0" * 40)
    cases: tuple[dict[str, Any], ...] = (
        {"repository": theirs},
        {"repository": theirs, "is_trusted": lambda digest: True},
        {"environ": {"CHARGEHAND_EXTENSIONS_ENABLED": "acme-robots"}},
        {"options": {"extensions.enabled": OptionValue(value="acme-robots", name="--extensions")}},
    )
    for sources in cases:
        with pytest.raises(ConfigError, match="counts only in your own configuration file"):
            configured(**sources)


@pytest.mark.usefixtures("acme")
def test_a_repository_needs_trust_to_use_an_extensions_kind_of_agent() -> None:
    theirs = RepositoryFile(content=ROBOT_AGENT.encode(), commit="0" * 40)
    resolved = configured("acme-robots", repository=theirs)
    assert resolved.config.agents == {}
    assert [(key.key, key.reason) for key in resolved.untrusted] == [
        ("agents.r.kind", "runs an extension outside of the sandbox")
    ]
    trusted = configured("acme-robots", repository=theirs, is_trusted=lambda digest: True)
    assert trusted.config.agents["r"].kind == "robot"


def test_enabled_extensions_are_shown_with_their_origin() -> None:
    resolved = configured("acme-robots")
    assert resolved.config.extensions.enabled == ("acme-robots",)
    assert resolved.origins["extensions.enabled"] == "/home/me/config.toml"
    assert configured().origins["extensions.enabled"] == "default"


@pytest.mark.usefixtures("acme")
def test_a_notifier_a_runner_and_a_source_of_keys_count_while_enabled(tmp_path: Path) -> None:
    configured()
    assert [channel.name for channel in channels()] == ["webhook"]
    assert runner_of("bats tests").name == "plain"
    assert open_credentials({}, tmp_path).get("VAULT_KEY") is None
    configured("acme-robots")
    assert [channel.name for channel in channels()] == ["webhook", "pager"]
    assert (runner_of("bats tests").name, runner_of("pytest").name) == ("bats", "pytest")
    keys = open_credentials({"OTHER_KEY": "x"}, tmp_path)
    assert (keys.get("VAULT_KEY"), keys.describe("VAULT_KEY")) == ("from the vault", "acme-safe")
    assert (keys.describe("OTHER_KEY"), keys.get("MISSING_KEY")) == ("environment", None)


@pytest.mark.usefixtures("wreck")
def test_a_broken_extension_is_named_and_breaks_nothing_else(tmp_path: Path) -> None:
    config = configured("wreck", text='[agents.w]\nkind = "wreck"\n[agents.fine]\ncommand = ["true"]\n').config
    assert open_agent("fine", config.agents["fine"], models=()).kind == "command"
    assert runner_of("python -m pytest -q").name == "pytest"
    assert open_credentials({"SOME_KEY": "x"}, tmp_path).get("SOME_KEY") == "x"
    assert (is_short_form("openai:m"), is_short_form("wreck-less:m")) == (True, False)
    assert agent_option("claude") == "cli:claude"
    own, broken = channels()
    assert own.name == "webhook"
    problem = "of the distribution 'wreck' cannot be loaded: ModuleNotFoundError: No module named 'a_module"
    for work in (
        lambda: open_agent("w", config.agents["w"], models=()),
        # By its exit code alone it could pass where the extension would refuse it.
        lambda: runner_of("make check"),
        lambda: is_short_form("wreck:m"),
        lambda: TIERS.find("wreck"),
        lambda: open_credentials({}, tmp_path).get("SOME_KEY"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            work()
        assert "extensions.enabled" in caught.value.hint
    with pytest.raises(ChannelFailedError, match=problem):
        broken.send([])


@pytest.mark.usefixtures("acme")
def test_a_name_that_two_enabled_distributions_offer_is_refused(install: Install) -> None:
    install("wreck", "", {"agents": "robot = wreck_code:X"})
    configured("acme-robots", "wreck")
    with pytest.raises(ConfigError, match="'robot' is offered by acme-robots and wreck"):
        AGENTS.find("robot")


def test_entry_points_are_read_only_for_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: asked.append(group) or ())
    use_extensions(InstalledExtensions(()))
    try:
        assert AGENTS.find("native") is AGENTS["native"]
        assert runner_of("make check").name == "plain"
        assert "robot" not in AGENTS
        assert len(list(KEY_SOURCES)) == 8
        assert asked == []
        assert AGENTS.explain("robot") == ""
        assert asked == ["chargehand.agents"]
        assert DIALECTS.explain("morse") == ""
        assert asked == ["chargehand.agents"], "nothing can be added to dialects"
    finally:
        use_extensions(None)


@pytest.mark.parametrize("words", [("--help",), ("mission", "list")])
def test_commands_start_without_reading_entry_points(words: tuple[str, ...], tmp_path: Path) -> None:
    place = tmp_path / "chargehand/config.toml"
    place.parent.mkdir()
    place.write_text('[agents.mine]\nkind = "cli"\ncli = "claude"\n')
    code = f"""
        import sys
        from chargehand.cli.main import main
        sys.argv = ["chargehand", *{words!r}]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        assert "importlib.metadata" not in sys.modules
    """
    environ = {
        "CHARGEHAND_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    run = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(run, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tier_of_unknown_strength_is_taken_only_by_name() -> None:
    facts = TierFacts(wish="cloud", trusted=False, network=True, documentation=False, origin="--sandbox")
    choice = choose_tier(facts, ())
    assert (choice.tier, choice.needed) == ("cloud", "vm")
    assert choice.reason == "--sandbox"


def test_a_fault_of_a_built_in_name_is_not_hidden() -> None:
    registry: Registry[object] = Registry("things", "thing")
    registry.register("gone", "chargehand.core.errors:NothingOfThatName", "")
    with pytest.raises(AttributeError):
        registry.find("gone")
    assert registry.get("other") is None
    assert Registered("a", "b") == Registered("a", "b")


def test_no_literal_of_core_lists_implementations() -> None:
    registries = (AGENTS, SPECS, PROVIDERS, TIERS, DRIVERS, DIALECTS, RUNNERS, NOTIFIERS, KEY_SOURCES)
    found = []
    for path in Path(chargehand.core.__file__).parent.glob("*.py"):
        for values in literals(path.read_text()):
            # One name can be a word of another vocabulary: the agent kind `command`, say.
            found += [(path.name, each.group, values) for each in registries if len(values & set(each)) > 1]
    assert found == []
    assert list(literals('Tier = Literal["process", "vm"]')) == [{"process", "vm"}]


def literals(source: str) -> Iterator[set[object]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
            words = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            yield {each.value for each in words if isinstance(each, ast.Constant)}
