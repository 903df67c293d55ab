"""The agent CLIs that Chargehand knows, and how to start each one unattended: `clis/*.toml`.

Each runs without its own sandbox and its own questions (ours is around it), without telemetry and updates, in a
HOME made for the attempt, and calls its models only through the attempt's gateway.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import partial
from importlib import resources
from typing import Any, Literal

from msgspec import Struct, field

from chargehand.core.registry import Registry
from chargehand.sandbox.contract import WORKSPACE

# The attempt's gateway as seen by programs inside the sandbox.
GATEWAY = "http://127.0.0.1:8871"
OutputForm = Literal["stream_json", "opencode", "codex", "gemini"]
_TEMPLATE_LISTS = ("words", "resume", "tools")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class CliLaunch(Struct, frozen=True, kw_only=True):
    """The parameters of one start of a CLI; `gateway` is the address inside, `asks` lets it ask first (ACP).

    With `session` it resumes its own session, left by an earlier start in the same sandbox. With `tools` the
    gateway has an MCP server, which the program is configured for.
    """

    prompt: str
    model: str
    dialect: str
    token: str
    gateway: str = GATEWAY
    asks: bool = False
    session: str = ""
    cwd: str = WORKSPACE
    tools: bool = False


class CliSpec(Struct, frozen=True, kw_only=True):
    """One CLI as its file describes it.

    `dialects` are those it can speak, best first; `form` is the form of its output. `acp` are the words that start
    it as an ACP agent, `None` if it does not speak that protocol. `tells_its_end`: every good run ends with an
    "end" event. `reports_session_total`: a resumed run reports the tokens of its whole session. `tried` is the
    version it was tested with, "" for no version. `outside` says why it cannot work behind the gateway, so that
    only a substitute for it can be driven.

    `acp_tools_by_settings`: as an ACP agent it too learns of the gateway's tools by its settings, because it asks
    before each call of a tool that its session names.

    `template` holds `words`, `resume`, `environment` and `files` (below HOME) with `{placeholders}`: the fields of
    `CliLaunch` and `terms`. A table in place of a text is written as JSON. `when.NAME` is merged over the template
    for a launch that `asks`, for a launch that acts `alone`, for one with `tools`, or in that dialect. Among the
    words, `{resume}` and `{tools}` stand for the lists of these names, if the launch has a session or tools.
    """

    name: str
    program: str
    form: OutputForm
    dialects: tuple[str, ...]
    acp: tuple[str, ...] | None = None
    tells_its_end: bool = True
    reports_session_total: bool = False
    tried: str = ""
    outside: str = ""
    acp_tools_by_settings: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str) -> CliSpec:
        """Read a CLI's description from its file."""
        data = tomllib.loads((resources.files("chargehand.agents") / "clis" / f"{name}.toml").read_text("utf-8"))
        acp = data.pop("acp", None)
        template = {
            key: data.pop(key) for key in tuple(data) if isinstance(data[key], dict) or key in _TEMPLATE_LISTS
        }
        dialects = tuple(data.pop("dialects"))
        return cls(
            name=name, dialects=dialects, acp=None if acp is None else tuple(acp), template=template, **data
        )

    def words(self, launch: CliLaunch) -> tuple[str, ...]:
        """Return the arguments after the program's name."""
        template = self._template_for(launch)
        words: list[str] = []
        for word in template["words"]:
            if word == "{resume}":
                words += template["resume"] if launch.session else []
            elif word == "{tools}":
                words += template["tools"] if launch.tools else []
            else:
                words.append(word)
        return tuple(_fill_template(words, _launch_terms(template, launch)))

    def environment(self, launch: CliLaunch) -> dict[str, str]:
        """Return the variables that configure the program."""
        return self._fill_texts("environment", launch)

    def files(self, launch: CliLaunch) -> dict[str, str]:
        """Return the settings files, by their paths below HOME."""
        return self._fill_texts("files", launch)

    def _fill_texts(self, key: str, launch: CliLaunch) -> dict[str, str]:
        template = self._template_for(launch)
        filled = _fill_template(template.get(key, {}), _launch_terms(template, launch))
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in filled.items()}

    def _template_for(self, launch: CliLaunch) -> dict[str, Any]:
        template = dict(self.template)
        # The dialect last: its settings override those for asking or working alone.
        tools = ("tools",) if launch.tools else ()
        for condition in ("asks" if launch.asks else "alone", *tools, launch.dialect):
            template = _merge_tables(template, self.template.get("when", {}).get(condition, {}))
        return template


def _launch_terms(template: Mapping[str, Any], launch: CliLaunch) -> dict[str, str]:
    return {
        "prompt": launch.prompt,
        "model": launch.model,
        "model_json": json.dumps(launch.model),
        "token": launch.token,
        "gateway": launch.gateway,
        "session": launch.session,
        "cwd": launch.cwd,
        **template.get("terms", {}),
    }


def _merge_tables(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        merged[key] = _merge_tables(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged


def _fill_template(value: Any, terms: Mapping[str, str]) -> Any:
    """Put the terms into every text of a template, including keys."""
    if isinstance(value, str):
        # One pass, so that a prompt with `{token}` in it is passed on unchanged.
        return _PLACEHOLDER.sub(lambda found: terms.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [_fill_template(each, terms) for each in value]
    if isinstance(value, dict):
        return {_fill_template(key, terms): _fill_template(each, terms) for key, each in value.items()}
    return value


SPECS: Registry[CliSpec] = Registry("clis", "CLI")
for _name, _title in (
    ("claude", "Claude Code"),
    ("codex", "OpenAI Codex"),
    ("cursor", "Cursor"),
    ("gemini", "Gemini CLI"),
    ("opencode", "OpenCode"),
    ("qwen", "Qwen Code"),
):
    SPECS.register(_name, partial(CliSpec.read, _name), _title)
