"""The quick search for words before patterns misses nothing: no key, id or varying word remains in recordings."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.redaction import KEY_SHAPES, REDACTED, Redactor
from chargehand.models.request_matching import ID_FORM, RunNames

KEYS = [
    *(f"gh{kind}_{'a1' * 12}" for kind in "pousr"),
    *("sk-" + "a1" * 10, "github_pat_" + "a" * 24, "glpat-" + "b" * 20, "AIza" + "c" * 35, "xoxb-" + "1" * 12),
    *("AKIA" + "A1" * 8, "ASIA" + "B2" * 8, "Bearer abc123defg", "bEaReR\t" + "z" * 24),
]
texts = st.text("ab1 -_\n.skBearer", max_size=12)


@given(st.lists(texts | st.sampled_from(KEYS), max_size=6).map("".join))
def test_the_redactor_finds_every_match_of_the_key_pattern(text: str) -> None:
    assert Redactor().text(text) == KEY_SHAPES.sub(lambda found: (found[1] or "") + REDACTED, text)


@given(st.lists(texts | st.sampled_from(["token-4711", "token-47", "4711-x"]), max_size=6).map("".join))
def test_the_redactor_finds_every_known_secret(text: str) -> None:
    hidden = Redactor({"A": "token-4711", "B": "4711-x"}).text(text)
    assert ("token-4711" in text or "4711-x" in text) == ("[redacted:" in hidden)


ids = st.uuids().map(str)


@given(st.lists(st.text("-0af ", max_size=9) | ids, max_size=5).map("".join))
def test_every_id_gets_a_name(text: str) -> None:
    found = list(dict.fromkeys(ID_FORM.findall(text)))
    names = RunNames()
    kept = names.name_request(text)
    assert kept.count("{{chargehand-id-") == len(ID_FORM.findall(text))
    assert names.expand(kept) == text
    assert names.name_reply(" ".join(found)) == " ".join(
        f"{{{{chargehand-id-{number}}}}}" for number in range(1, len(found) + 1)
    )


def test_an_id_not_seen_in_a_request_is_left_unchanged() -> None:
    own = str(uuid.uuid4())
    assert RunNames().name_reply({"id": own}) == {"id": own}
