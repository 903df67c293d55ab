"""How each agent CLI is started without a person: words, environment, settings, and the form of what it writes.

Every one runs with its own sandbox and its own questions off (ours is around it), without telemetry and updates,
in a HOME that is made for the attempt, and calls its models through the attempt's gateway alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chargehand.agents._cli_forms import Form, codex, gemini, opencode, stream_json
from chargehand.core.config import CliName

GATEWAY = "http://127.0.0.1:8871"
_PROVIDER = "chargehand"
_STREAM = ("--output-format", "stream-json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one start of a CLI needs: `gateway` is its address inside, `asks` lets it ask before it acts (ACP).

    With `session` it goes on in that session of its own, which an earlier start in the same sandbox left.
    """

    prompt: str
    model: str
    dialect: str
    token: str
    gateway: str = GATEWAY
    asks: bool = False
    session: str = ""


def _no_environment(_: Launch) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CliSpec:
    """One CLI. `dialects` are those it can speak, the best first; `files` go below HOME.

    `acp` are the words with which it speaks the Agent Client Protocol, `None` where it does not. `whole` says that
    every good run ends with an "end" event, `sums` that a run which goes on in a session tells the tokens of all
    of it. `tried` is the version it was driven with, "" where it was not. `outside` says why it cannot work behind
    the gateway, so that only a stand-in for it can be driven.
    """

    name: CliName
    program: str
    dialects: tuple[str, ...]
    form: Form
    words: Callable[[Launch], tuple[str, ...]]
    environment: Callable[[Launch], Mapping[str, str]] = _no_environment
    files: Callable[[Launch], Mapping[str, str]] = _no_environment
    acp: tuple[str, ...] | None = None
    whole: bool = True
    sums: bool = False
    tried: str = ""
    outside: str = ""


def _claude_words(launch: Launch) -> tuple[str, ...]:
    options = ("--output-format", "stream-json", "--verbose", "--model", launch.model)
    return ("-p", launch.prompt, *options, "--dangerously-skip-permissions", *_resumed(launch))


def _resumed(launch: Launch) -> tuple[str, ...]:
    return ("--resume", launch.session) if launch.session else ()


def _claude_environment(launch: Launch) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": launch.gateway,
        "ANTHROPIC_API_KEY": launch.token,
        "ANTHROPIC_MODEL": launch.model,
        "ANTHROPIC_SMALL_FAST_MODEL": launch.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": launch.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": launch.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": launch.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "0",  # a whole call after the end, for a person who is not there
        "CLAUDE_CODE_SUBAGENT_MODEL": launch.model,
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",  # else it refuses to work without questions where it runs as root
    }


def _claude_files(launch: Launch) -> Mapping[str, str]:
    """Return the settings for its adapter (ACP): unasked it lets a model of its own judge what it does, not us."""
    if not launch.asks:
        return {}
    return {".claude/settings.json": json.dumps({"permissions": {"defaultMode": "default"}})}


def _qwen_words(launch: Launch) -> tuple[str, ...]:
    return ("-p", launch.prompt, "--auth-type", "openai", "--yolo", *_STREAM, *_resumed(launch))


def _qwen_environment(launch: Launch) -> Mapping[str, str]:
    return {
        "OPENAI_BASE_URL": f"{launch.gateway}/v1",
        "OPENAI_API_KEY": launch.token,
        "OPENAI_MODEL": launch.model,
        "QWEN_TELEMETRY_ENABLED": "false",
    }


def _qwen_files(launch: Launch) -> Mapping[str, str]:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
    }
    return {".qwen/settings.json": json.dumps(settings)}


def _opencode_words(launch: Launch) -> tuple[str, ...]:
    session = ("--session", launch.session) if launch.session else ()
    return ("run", "--format", "json", "-m", f"{_PROVIDER}/{launch.model}", *session, launch.prompt)


def _opencode_environment(launch: Launch) -> Mapping[str, str]:
    package = "@ai-sdk/anthropic" if launch.dialect == "anthropic" else "@ai-sdk/openai-compatible"
    provider = {
        "npm": package,
        "name": _PROVIDER,
        "options": {"baseURL": f"{launch.gateway}/v1", "apiKey": launch.token},
        "models": {launch.model: {"name": launch.model}},
    }
    acts = ("edit", "bash", "webfetch", "external_directory")
    settings = {
        "provider": {_PROVIDER: provider},
        "enabled_providers": [_PROVIDER],
        "model": f"{_PROVIDER}/{launch.model}",
        "small_model": f"{_PROVIDER}/{launch.model}",
        "permission": dict.fromkeys(acts, "ask") if launch.asks else {"*": "allow"},
        # A title for the session is a call to a model that nobody reads.
        "agent": {"title": {"disable": True}},
        "autoupdate": False,
        "share": "disabled",
    }
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }


def _codex_words(launch: Launch) -> tuple[str, ...]:
    settings = _codex_settings(launch)
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    # Not --ephemeral: what it keeps of the session lies in the HOME of the attempt, and lets it go on there.
    alone = ("--ignore-user-config", "--skip-git-repo-check", "-s", "danger-full-access")
    session = ("resume", launch.session) if launch.session else ()
    return ("exec", "--json", *alone, "-m", launch.model, *options, *session, launch.prompt)


def _codex_files(launch: Launch) -> Mapping[str, str]:
    """Return the settings for an adapter (ACP), which is not given our words; `exec` is told to pass them over."""
    own = {
        "model": json.dumps(launch.model),
        "sandbox_mode": '"danger-full-access"',
        "approval_policy": '"untrusted"' if launch.asks else '"never"',
    }
    settings = {**own, **_codex_settings(launch)}
    return {".codex/config.toml": "".join(f"{name} = {value}\n" for name, value in settings.items())}


def _codex_settings(launch: Launch) -> Mapping[str, str]:
    endpoint = f'name="{_PROVIDER}",base_url="{launch.gateway}/v1",env_key="CHARGEHAND_TOKEN",wire_api="responses"'
    return {
        "model_provider": f'"{_PROVIDER}"',
        f"model_providers.{_PROVIDER}": "{" + endpoint + "}",
        "analytics.enabled": "false",
        "check_for_update_on_startup": "false",
    }


def _codex_environment(launch: Launch) -> Mapping[str, str]:
    return {"CHARGEHAND_TOKEN": launch.token}


def _gemini_words(launch: Launch) -> tuple[str, ...]:
    return ("-p", launch.prompt, "-m", launch.model, "--yolo", *_STREAM, *_resumed(launch))


def _gemini_environment(launch: Launch) -> Mapping[str, str]:
    return {
        "GOOGLE_GEMINI_BASE_URL": launch.gateway,
        "GEMINI_API_KEY": launch.token,
        "GEMINI_MODEL": launch.model,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_TELEMETRY_ENABLED": "false",
    }


def _gemini_files(launch: Launch) -> Mapping[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
    }
    return {".gemini/settings.json": json.dumps(settings)}


def _cursor_words(launch: Launch) -> tuple[str, ...]:
    options = ("--force", "--trust", "--workspace", "/workspace", "--model", launch.model)
    return ("-p", *_STREAM, *options, *_resumed(launch), launch.prompt)


def _cursor_environment(launch: Launch) -> Mapping[str, str]:
    return {"CURSOR_API_KEY": launch.token}


SPECS: Mapping[CliName, CliSpec] = {
    spec.name: spec
    for spec in (
        CliSpec(
            name="claude",
            program="claude",
            dialects=("anthropic",),
            form=stream_json,
            words=_claude_words,
            environment=_claude_environment,
            files=_claude_files,
            tried="2.1.197",
        ),
        CliSpec(
            name="codex",
            program="codex",
            dialects=("responses",),
            form=codex,
            words=_codex_words,
            environment=_codex_environment,
            files=_codex_files,
            sums=True,
            tried="0.169.0",
        ),
        CliSpec(
            name="cursor",
            program="cursor-agent",
            dialects=(),
            form=stream_json,
            words=_cursor_words,
            environment=_cursor_environment,
            outside="it calls its vendor's own service with its vendor's key, which no sandbox is given",
        ),
        CliSpec(
            name="gemini",
            program="gemini",
            dialects=("gemini",),
            form=gemini,
            words=_gemini_words,
            environment=_gemini_environment,
            files=_gemini_files,
            acp=("--acp",),
            tried="0.61.0",
        ),
        CliSpec(
            name="opencode",
            program="opencode",
            dialects=("openai", "anthropic"),
            form=opencode,
            words=_opencode_words,
            environment=_opencode_environment,
            acp=("acp",),
            whole=False,
            tried="1.18.33",
        ),
        CliSpec(
            name="qwen",
            program="qwen",
            dialects=("openai",),
            form=stream_json,
            words=_qwen_words,
            environment=_qwen_environment,
            files=_qwen_files,
            acp=("--acp", "--auth-type", "openai"),
            sums=True,
            tried="0.15.10",
        ),
    )
}
