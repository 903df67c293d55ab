"""Small requests to providers of the newer dialects, and the real call of `model probe` with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.provider_kit import Provider, serving

from chargehand.app.providers.probe import probe_model
from chargehand.core.config import LimitsConfig, ModelConfig
from chargehand.models.contract import Dialect
from chargehand.models.dialects.table import DIALECTS
from chargehand.models.probes import small_answer
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply, render


class Newer(Provider):
    """Answers in one of the newer dialects."""

    said = ScriptedReply(tools=(ScriptedCall(name="ready", arguments={}),))
    dialect: Dialect = "gemini"

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append((path, body))
        if headers.get("x-goog-api-key", headers.get("authorization")) not in ("k", "Bearer k"):
            return 401, {"error": {"message": "who are you?"}}
        if path.endswith("/models"):
            rows = [{"name": "models/tiny", "id": "tiny"}]
            return 200, {"models": rows} if self.dialect == "gemini" else {"data": rows}
        (whole,) = render(DIALECTS[self.dialect], self.said, model="tiny", stream=False)
        return 200, json.loads(whole)


class Keys:
    def __init__(self, key: str) -> None:
        self.key = key

    def get(self, name: str) -> str | None:
        return self.key


@pytest.mark.parametrize(
    ("provider", "dialect", "path"),
    [
        ("gemini", "gemini", "/v1beta/models/tiny:generateContent"),
        ("openai-responses", "responses", "/v1/responses"),
    ],
)
async def test_a_provider_of_a_newer_dialect_is_probed_in_it(provider: Any, dialect: Dialect, path: str) -> None:
    newer = Newer()
    newer.dialect = dialect
    with serving(newer):
        config = ModelConfig(provider=provider, model="tiny", base_url=newer.address, key="KEY")
        good = await probe_model("m", config, keys=Keys("k"), limits=LimitsConfig())
        wrong = await probe_model("m", config, keys=Keys("x"), limits=LimitsConfig())
        newer.said = ScriptedReply(text="no tools here")
        deaf = await probe_model("m", config, keys=Keys("k"), limits=LimitsConfig())
    assert (good.fine, good.tools, good.listed, good.error) == (True, True, True, "")
    assert newer.asked[0][0] == path
    assert "not accepted" in wrong.error
    assert (deaf.answered, deaf.tools, deaf.fine) == (True, False, False)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "responses", "gemini"])
def test_what_is_no_reply_is_no_message(dialect: Dialect) -> None:
    assert not small_answer(dialect, {"hello": 1}).message
