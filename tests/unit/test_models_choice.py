"""Models by name, their keys and addresses, the results of one call, and the choice of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.provider_kit import Provider, serving

from chargehand.app.providers.ollama import find_ollama, ollama_address
from chargehand.app.providers.probe import ModelProbe, probe_model
from chargehand.app.providers.served import (
    address_of,
    has_key,
    model_config,
    served_model,
)
from chargehand.app.selection.choice import DEFAULT_MODELS, AgentChoice, agent_choice, choose_for_request
from chargehand.core.config import AgentConfig, Config, LimitsConfig, ModelConfig
from chargehand.core.errors import ConfigError, NotFoundError, UsageError
from chargehand.models.catalogue import find_price
from chargehand.models.registries import key_name
from chargehand.network.addresses import is_loopback

KEY = "sesame-1234567890"
CLOSED = "http://127.0.0.1:1"


def _choose(
    config: Config | None = None,
    *,
    keys: Mapping[str, str] | None = None,
    ollama: Sequence[str] = (),
    programs: Sequence[str] = (),
    agent: str | None = None,
    model: str | None = None,
) -> AgentChoice:
    chosen, reasons = choose_for_request(
        config or Config(),
        {},
        keys or {},
        agent=agent,
        model=model,
        which=lambda name: f"/bin/{name}" if name in programs else None,
        ollama=lambda environ: ollama,
    )
    return agent_choice(chosen, reasons)


# --- names, keys, addresses


def test_a_model_is_an_entry_or_a_short_form() -> None:
    config = Config(
        models={"local": ModelConfig(base_url="http://127.0.0.1:1/v1", model="qwen"), "bare": ModelConfig()}
    )
    assert model_config(config, "local") is config.models["local"]
    assert model_config(config, "bare").model == "bare"
    assert model_config(config, "ollama:qwen3:8b") == ModelConfig(provider="ollama", model="qwen3:8b")
    for unknown in ("locl", "openai:", "openai-compatible:x", "x:y"):
        with pytest.raises(NotFoundError, match="no model named") as caught:
            model_config(config, unknown)
        assert "anthropic:MODEL" in caught.value.hint
    with pytest.raises(NotFoundError) as near:
        model_config(config, "locl")
    assert near.value.hint.startswith("did you mean 'local'? known: bare, local")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (ModelConfig(provider="openai"), "OPENAI_API_KEY"),
        (ModelConfig(provider="anthropic"), "ANTHROPIC_API_KEY"),
        (ModelConfig(provider="ollama"), None),
        (ModelConfig(provider="openai", base_url="https://else.org/v1"), None),
        (ModelConfig(provider="anthropic-compatible", base_url="https://else.org"), None),
        (ModelConfig(provider="openai", base_url="https://else.org/v1", key="ELSE_KEY"), "ELSE_KEY"),
    ],
)
def test_the_default_key_is_used_only_for_its_provider(config: ModelConfig, name: str | None) -> None:
    assert key_name(config) == name
    assert has_key(config, {"OPENAI_API_KEY": "", "ELSE_KEY": ""}) == (name is None)


def test_a_missing_key_or_base_url_is_an_error_with_a_hint() -> None:
    model = ModelConfig(provider="openai", model="gpt-x")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set") as keyless:
        served_model("big", model, keys={}, limits=LimitsConfig())
    assert keyless.value.code == "no_key"
    assert "chargehand secret set OPENAI_API_KEY" in keyless.value.hint
    assert "export OPENAI_API_KEY" in keyless.value.hint
    with pytest.raises(ConfigError) as lost:
        served_model("big", ModelConfig(model="x"), keys={}, limits=LimitsConfig())
    assert (lost.value.code, "models.big.base_url" in lost.value.hint) == ("no_base_url", True)


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("127.0.0.1:99", "http://127.0.0.1:99"),
        ("http://localhost:99/", "http://localhost:99"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("[::1]:99", "http://[::1]:99"),
        ("ollama.example.org", None),
        ("192.0.2.1:11434", None),
        ("https://127.0.0.1", None),
        ("127.0.0.1:port", None),
    ],
)
def test_ollama_is_looked_for_on_this_machine_only(said: str, address: str | None) -> None:
    assert ollama_address({"OLLAMA_HOST": said}) == address


def test_addresses() -> None:
    assert address_of("m", ModelConfig(provider="openai")) == "https://api.openai.com/v1"
    assert address_of("m", ModelConfig(provider="anthropic")) == "https://api.anthropic.com"
    environ = {"OLLAMA_HOST": "127.0.0.1:99"}
    assert address_of("m", ModelConfig(provider="ollama"), environ=environ) == "http://127.0.0.1:99/v1"
    assert [is_loopback(f"http://{host}/") for host in ("localhost", "[::1]", "10.0.0.1", "127.0.0.1.org")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_served_model() -> None:
    local = ModelConfig(base_url="http://127.0.0.1:1/v1", model="qwen", price=0.0, max_output=99)
    served = served_model("mine", local, keys={}, limits=LimitsConfig())
    assert (served.name, served.model, served.dialect, served.max_output) == ("mine", "qwen", "openai", 99)
    assert served.price is not None
    assert served.price.input == 0
    anthropic = ModelConfig(provider="anthropic", model="nobody-knows-it")
    unknown = served_model("a", anthropic, keys={"ANTHROPIC_API_KEY": KEY}, limits=LimitsConfig())
    assert (unknown.dialect, unknown.price) == ("anthropic", None)
    assert KEY not in repr(unknown)


@pytest.mark.parametrize("model", DEFAULT_MODELS.values())
def test_the_default_models_have_a_published_price(model: str) -> None:
    config = model_config(Config(), model)
    price = find_price(config.provider, config.model or "", config, assume=None)
    assert price is not None
    assert price.source == "genai-prices"


# --- one call


def _probe(provider: Provider, keys: Mapping[str, str] | None = None, /, **said: Any) -> ModelProbe:
    whole: dict[str, Any] = {"base_url": f"{provider.address}/v1", "model": "tiny", "price": 0.0, **said}
    return asyncio.run(probe_model("m", ModelConfig(**whole), keys=keys or {}, limits=LimitsConfig(), seconds=5.0))


def test_a_model_that_works() -> None:
    with serving(Provider(key=KEY)) as provider:
        probe = _probe(provider, {"M_KEY": KEY}, key="M_KEY")
    assert (probe.fine, probe.reachable, probe.answered, probe.tools, probe.listed) == (
        True,
        True,
        True,
        True,
        True,
    )
    assert (probe.error, probe.price_source) == ("", "configured")
    path, body = provider.asked[0]
    assert (path, body["max_tokens"], len(body["tools"])) == ("/v1/chat/completions", 64, 1)


def test_a_model_that_speaks_as_anthropic_does() -> None:
    with serving(Provider(key=KEY, ends="tool_use")) as provider:
        said = {"provider": "anthropic-compatible", "base_url": provider.address, "key": "M_KEY"}
        probe = _probe(provider, {"M_KEY": KEY}, **said)
    assert (probe.fine, probe.tools, probe.listed) == (True, True, True)
    assert [path for path, _ in provider.asked] == ["/v1/messages", "/v1/models"]


@pytest.mark.parametrize(("ends", "tools", "fine"), [("stop", False, False), ("length", None, True)])
def test_a_model_that_calls_no_tool(ends: str, tools: bool | None, fine: bool) -> None:
    with serving(Provider(calls_tools=False, ends=ends)) as provider:
        probe = _probe(provider)
    assert (probe.answered, probe.tools, probe.fine) == (True, tools, fine)


def test_a_probe_of_a_model_without_tools_sends_no_tools() -> None:
    with serving(Provider(calls_tools=False, ends="stop")) as provider:
        probe = _probe(provider, tools=False)
    assert (probe.fine, probe.tools) == (True, None)
    assert "tools" not in provider.asked[0][1]


def test_a_probe_reports_a_rejected_key_without_showing_the_key() -> None:
    with serving(Provider(key="another")) as provider:
        probe = _probe(provider, {"M_KEY": KEY}, key="M_KEY")
    assert (probe.reachable, probe.answered, probe.fine) == (True, False, False)
    assert probe.error == "the key is not accepted (status 401): wrong key: [redacted:M_KEY]"
    assert KEY not in repr(probe)


def test_a_wrong_model_names_the_nearest() -> None:
    with serving(Provider()) as provider:
        probe = _probe(provider, model="tinny")
    assert probe.error == "status 404: no such model; it has no model 'tinny': did you mean 'tiny'?"
    assert probe.listed is False


def test_a_probe_reports_an_unreachable_provider_or_a_missing_key() -> None:
    silent = _probe(Provider(address=CLOSED))
    assert (silent.reachable, silent.fine) == (False, False)
    assert "cannot reach" in silent.error
    keyless = _probe(Provider(address=CLOSED), key="M_KEY")
    assert "chargehand secret set M_KEY" in keyless.error


def test_a_script_is_read_and_not_asked(tmp_path: Path) -> None:
    lost = asyncio.run(
        probe_model("s", ModelConfig(provider="script"), keys={}, limits=LimitsConfig(), environ={})
    )
    assert (lost.fine, "names no file" in lost.error) == (False, True)
    gone = ModelConfig(provider="script", script=str(tmp_path / "gone.jsonl"))
    assert "is not there" in asyncio.run(probe_model("s", gone, keys={}, limits=LimitsConfig())).error


def test_installed_ollama_models_are_listed_in_order_of_preference() -> None:
    models = (
        {"name": "small:1b", "size": 1},
        {"name": "large:70b", "size": 70},
        {"name": "qwen-coder:7b", "size": 7},
        {"name": "nomic-embed-text", "size": 99},
        {"size": 5},
    )
    with serving(Provider(ollama=models)) as provider:
        assert find_ollama({"OLLAMA_HOST": provider.address}) == ["qwen-coder:7b", "large:70b", "small:1b"]
    assert find_ollama({"OLLAMA_HOST": CLOSED}) == []
    assert find_ollama({"OLLAMA_HOST": "ollama.example.org"}) == []


# --- the choice

_ONE = AgentConfig(command=("x",))
_LOCAL = ModelConfig(base_url="http://127.0.0.1:1/v1", model="qwen")
_REMOTE = ModelConfig(provider="openai", model="gpt")


def test_an_explicit_agent_or_model_is_chosen() -> None:
    config = Config(agents={"one": _ONE, "two": _ONE}, models={"local": _LOCAL})
    assert _choose(config, agent="two") == AgentChoice(agent="two", model=None, why="--agent")
    assert _choose(agent="command:x y") == AgentChoice(agent="command:x y", model=None, why="--agent")
    assert _choose(agent="native:openai:gpt").model == "openai:gpt"
    assert _choose(config, agent="native", model="local") == AgentChoice(
        agent="native", model="local", why="--agent"
    )
    assert _choose(config, agent="one", model="local").model == "local"
    assert _choose(model="ollama:x") == AgentChoice(agent="native", model="ollama:x", why="--model")
    with pytest.raises(NotFoundError, match="no model named 'gone'"):
        _choose(config, agent="native:gone")
    with pytest.raises(NotFoundError, match="no model named 'gone'"):
        _choose(config, agent="one", model="gone")
    with pytest.raises(NotFoundError, match="no agent named 'gone'"):
        _choose(config, agent="gone")


def test_the_only_configured_agent_takes_precedence_over_models() -> None:
    config = Config(agents={"one": _ONE}, models={"local": _LOCAL})
    assert _choose(config, keys={"OPENAI_API_KEY": KEY}) == AgentChoice(
        agent="one", model=None, why="the only one configured"
    )
    thinker = Config(agents={"thinker": AgentConfig(kind="native")}, models={"local": _LOCAL})
    assert _choose(thinker).agent == "thinker"
    assert _choose(thinker).model == "local"
    with pytest.raises(UsageError) as several:
        _choose(Config(agents={"one": _ONE, "two": _ONE}))
    assert several.value.code == "agent_ambiguous"


def test_a_configured_model_takes_precedence_over_keys() -> None:
    keys = {"ANTHROPIC_API_KEY": KEY}
    one = _choose(Config(models={"local": _LOCAL}), keys=keys)
    assert (one.agent, one.model, one.why) == ("native", "local", "local, the only model configured")
    several = Config(models={"a": _REMOTE, "b": _LOCAL, "c": _LOCAL})
    assert _choose(several, keys=keys).model == "b"
    assert _choose(several, keys=keys).why == "b, the first of 3 models that has its key"
    assert _choose(several, keys={"OPENAI_API_KEY": KEY}).model == "a"


def test_keys_then_ollama() -> None:
    both = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
    assert _choose(keys=both, ollama=["q"]).model == DEFAULT_MODELS["anthropic"]
    assert _choose(keys={"OPENAI_API_KEY": KEY}, ollama=["q"]).model == DEFAULT_MODELS["openai"]
    assert KEY not in _choose(keys=both).why
    assert _choose(ollama=["qwen3:8b", "x"]).model == "ollama:qwen3:8b"
    assert _choose(agent="native", ollama=["q"]).why == "--agent, ollama:q: Ollama runs on this machine"


def test_without_agent_or_model_the_error_hints_at_keys_and_programs() -> None:
    with pytest.raises(UsageError) as none:
        _choose(programs=["claude", "codex"])
    assert none.value.code == "no_agent"
    assert none.value.message.endswith("found on PATH: claude, codex (`chargehand agent list` says how)")
    ways = none.value.hint.splitlines()
    for way, words in zip(ways, ("run: chargehand model add", '--agent "command:'), strict=True):
        assert words in way
    with pytest.raises(UsageError) as modelless:
        _choose(agent="native")
    assert modelless.value.code == "no_model"
