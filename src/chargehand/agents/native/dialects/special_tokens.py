"""Control tokens of chat templates in a conversation's text.

Many servers of open models tokenize message content with control tokens allowed: `<|im_start|>` in a file would
open a turn of its own. A zero-width joiner inside each token prevents that, and is removed from what the model
writes. Only the sent copy changes.
"""

from __future__ import annotations

import re
from typing import Any

_JOINER = "\u200d"
# Models copy the joiner as another invisible character, too; in JSON it may be escaped.
_INVISIBLE = r"(?:[\u200b\u200c\u200d\u2060\ufeff]|\\u200[bcd]|\\u2060|\\ufeff)"
_NAME = r'[^\s<>|"\u200b-\u200d\u2060\ufeff]'
_WIDE_NAME = r"[^\s<>｜\"\u200b-\u200d\u2060\ufeff]"
_BRACKETS = (
    *("|system|]", "|tool|]", "|assistant|]", "|user|]", "|endofturn|]", "INST]", "/INST]", "SYSTEM_PROMPT]"),
    *("/SYSTEM_PROMPT]", "AVAILABLE_TOOLS]", "/AVAILABLE_TOOLS]", "TOOL_RESULTS]", "/TOOL_RESULTS]"),
    *("TOOL_CALLS]", "e~["),
)
# The first character of a token, and what may follow it.
_SHAPES = (
    (
        "<",
        rf"\|{_NAME}{{1,64}}\|>|｜{_WIDE_NAME}{{1,64}}｜>|\|[a-z_]{{1,32}}>|[a-z_]{{1,32}}\|>"
        r"|start_of_turn>|end_of_turn>",
    ),
    (r"\[", "|".join(map(re.escape, _BRACKETS))),
    (r"\]", "|".join(map(re.escape, ("~b]", "~!b[")))),
)
_TOKEN = re.compile("|".join(f"{first}(?={rest})" for first, rest in _SHAPES))
_BROKEN = re.compile("|".join(f"(?<={first}){_INVISIBLE}(?={rest})" for first, rest in _SHAPES))
# Models that only their makers serve, with text as text.
_CLOSED = (
    *("claude", "cohere-", "command", "gemini", "grok", "muse-", "nova-", "sonar", "chatgpt", "codex"),
    *("computer-use", "dall-e", "ft:", "gpt-", "o1", "o3", "o4", "omni-", "sora", "text-", "tts-", "whisper"),
)


def may_read_tokens(model: str) -> bool:
    """Return whether a server of this model may take control tokens in text for real ones."""
    name = model.lower().removeprefix("~").rpartition("/")[2]
    return not name.startswith(_CLOSED) or name.startswith("gpt-oss")


def break_tokens(value: Any) -> Any:
    """Return text, or decoded JSON, with a joiner inside each token."""
    return _change(value, _TOKEN, lambda found: found[0] + _JOINER)


def restore_tokens(value: Any) -> Any:
    """Return a model's text, or decoded JSON, without the joiners inside tokens."""
    return _change(value, _BROKEN, lambda found: "")


def _change(value: Any, form: re.Pattern[str], change: Any) -> Any:
    if isinstance(value, str):
        return form.sub(change, value)
    if isinstance(value, dict):
        return {_change(key, form, change): _change(item, form, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_change(item, form, change) for item in value]
    return value
