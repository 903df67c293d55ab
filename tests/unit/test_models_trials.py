"""Abilities that a probe tries out, on providers with and without them: stored, shown, and used."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.provider_kit import Provider, serving

from chargehand.cli.main import chargehand
from chargehand.models.probes import red_square


class Able(Provider):
    """A provider whose abilities can be switched off; it streams only if its `streams` is set."""

    sees, embeds, keeps = True, True, True

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/v1/models":
            self.asked.append((path, body))
            return 200, {"data": [{"id": "tiny", "max_model_len": 4096}]}
        if path == "/v1/embeddings":
            self.asked.append((path, body))
            return (200, {"data": [{"embedding": [1.0]}]}) if self.embeds else (404, {"error": "no such place"})
        if "image_url" in json.dumps(body):
            self.asked.append((path, body))
            return self._look(body)
        if body.get("max_tokens") == 16:
            self.asked.append((path, body))
            written = 16 if self.keeps else 500
            return 200, _whole("1\n2\n3", "length" if self.keeps else "stop", written)
        return super().answer(path, headers, body)

    def _look(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if not self.sees:
            return 400, {"error": {"message": "no pictures here"}}
        shown = next(part for part in body["messages"][0]["content"] if part["type"] == "image_url")
        picture = base64.b64decode(shown["image_url"]["url"].partition(",")[2])
        pixels = zlib.decompress(picture[picture.index(b"IDAT") + 4 :])
        return 200, _whole("Red." if pixels[1:4] == b"\xff\0\0" else "Blue.", "stop", 2)


def _whole(text: str, ended: str, written: int) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": ended}
    return {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": written}}


@pytest.fixture
def able(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Able]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with serving(Able()) as provider:
        place = tmp_path / "chargehand" / "config.toml"
        place.parent.mkdir()
        place.write_text(f'[models.m]\nbase_url = "{provider.address}/v1"\nmodel = "tiny"\nprice = 0\n')
        yield provider


def run(*words: str) -> Any:
    done = CliRunner().invoke(chargehand, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def facts() -> dict[str, Any]:
    found: dict[str, Any] = run("model", "show", "m")["facts"]
    return found


def test_probed_abilities_are_kept_and_shown_with_the_day(able: Able) -> None:
    assert facts()["takes"]["image"] == {"value": None, "source": None}
    (probed,) = run("model", "probe", "m")["models"]
    found = probed["abilities"]
    assert (found["images"], found["embeddings"], found["output_kept"]) == (True, True, True)
    # It answers with a whole reply although a stream is requested.
    assert (found["streams"], "not a stream" in found["tried"]["streams"]) == (False, True)
    known = facts()
    assert known["takes"]["image"] == {"value": True, "source": f"probe {found['day']}"}
    assert (known["context"]["value"], known["tools"]["value"], known["streams"]["value"]) == (4096, True, False)
    able.sees = able.embeds = able.keeps = False
    (again,) = run("model", "probe", "m")["models"]
    found = again["abilities"]
    assert (found["images"], found["embeddings"], found["output_kept"]) == (False, False, False)
    assert "no pictures here" in found["tried"]["images"]
    assert facts()["takes"]["image"]["value"] is False


def test_a_quick_probe_sends_a_single_chat_request_and_keeps_no_results(able: Able, tmp_path: Path) -> None:
    (probed,) = run("model", "probe", "m", "--quick")["models"]
    assert (probed["fine"], probed["abilities"]) == (True, None)
    assert [path for path, _ in able.asked] == ["/v1/chat/completions", "/v1/models"]
    assert not (tmp_path / "state" / "models.json").exists()


def test_an_inconclusive_probe_leaves_the_ability_unknown(able: Able, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Able, "_look", lambda *_: (429, {"error": {"message": "later"}}))
    (probed,) = run("model", "probe", "m")["models"]
    assert (probed["abilities"]["images"], "HTTP 429" in probed["abilities"]["tried"]["images"]) == (None, True)
    monkeypatch.setattr(Able, "_look", lambda *_: (200, _whole("I see no picture.", "stop", 4)))
    (probed,) = run("model", "probe", "m")["models"]
    assert probed["abilities"]["images"] is None


def test_the_catalogue_can_be_listed(able: Able) -> None:
    listed = run("model", "list", "--provider", "openai")["catalogue"]
    assert any(one["model"] == "gpt-4o" and one["takes"] == ["text", "image", "pdf"] for one in listed)
    done = CliRunner().invoke(chargehand, ["model", "list", "--provider", "opnai"])
    assert (done.exit_code, "did you mean 'openai'" in done.output) == (2, True)
    assert red_square().startswith(b"\x89PNG")
