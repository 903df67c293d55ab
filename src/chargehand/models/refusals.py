"""Classifies the refusals of providers by their status, code, and known words of their messages."""

from __future__ import annotations

import re
from typing import Literal

# `context`: the conversation is longer than the model takes. `key_refused`, `model_unknown`: by the provider.
# `upstream_page`: a web page instead of a document, sent by a proxy or from a wrong address.
RefusalCode = Literal["", "context", "key_refused", "model_unknown", "upstream_page"]

# OpenAI and Azure; vLLM and SGLang; Anthropic and Bedrock; Gemini; llama.cpp, Ollama and LM Studio; Mistral, Groq.
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|context_window_exceeded|model_context_window_exceeded"
    r"|maximum context length|prompt is too long|input is too long|(?:exceeds?|larger than|greater than)[^.]{0,40}"
    r"(?:context (?:length|size|window)|maximum number of tokens|max(?:imum)?(?: input)? tokens)"
    r"|context (?:length|size|window)[^.]{0,20} exceed"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)|too many tokens|too large for model",
    re.IGNORECASE,
)
# Not any XML: the documents of some providers' own refusals are XML.
_PAGE = re.compile(rb"\s*(?:<\?xml[^>]{0,100}>\s*)?<(?:!doctype html|html|head)\b", re.IGNORECASE)
# From this status on, a page of a proxy means an outage behind the proxy.
_OUTAGE = 500


def is_page(body: bytes) -> bool:
    """Return whether a body is a web page."""
    return _PAGE.match(body) is not None


def classify_refusal(status: int, text: str) -> RefusalCode:
    """Classify an error reply by its status and text; return "" if it is not classified."""
    if is_page(text.encode("utf-8", "replace")) and status < _OUTAGE:
        return "upstream_page"
    if status in (400, 413, 422, 500) and _OVERFLOW.search(text):
        return "context"
    if status in (401, 403):
        return "key_refused"
    return "model_unknown" if status == 404 else ""
