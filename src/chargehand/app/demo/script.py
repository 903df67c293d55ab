"""The scripted replies of the demo's model, each sent only if it answers the preceding messages."""

from __future__ import annotations

from msgspec.structs import replace

from chargehand.missions.fork import ForkPoint, ReplyEdit
from chargehand.models.contract import Usage
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script

MODEL = "scripted"
# USD per million tokens: play money, since no tokens are generated.
PRICE_IN = 3.0
PRICE_OUT = 15.0


def _call(name: str, **arguments: object) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def _finish(summary: str) -> ScriptedCall:
    return _call("finish", summary=summary, evidence=["python3 -m unittest discover: OK"])


_TESTS = _call("bash", command="python3 -m unittest discover")
_PASSED = "OK\n[exit code 0]"
_PATCH = """\
*** Begin Patch
*** Update File: shop/cart.py
@@
-    return price - price * percent // 100
+    return price * (100 - percent) // 100
*** Update File: tests/test_cart.py
@@
         self.assertEqual(discounted(1000, 20), 800)
+
+    def test_fraction(self) -> None:
+        self.assertEqual(discounted(333, 10), 299)
*** End Patch
"""


def _reply(text: str, *tools: ScriptedCall, used: tuple[int, int]) -> ScriptedReply:
    return ScriptedReply(text=text, tools=tools, usage=Usage(input=used[0], output=used[1]))


# In order: the attempt, text that the newest messages must contain, and the reply.
_REPLIES: tuple[tuple[int, str, ScriptedReply], ...] = (
    (
        1,
        "Fix the discount",
        _reply(
            "First I read the code and find its callers.",
            _call("read", path="shop/cart.py"),
            _call("search", pattern=r"discounted\("),
            used=(1520, 74),
        ),
    ),
    (
        1,
        "return price * percent // 100",
        _reply(
            "It returns the discount itself. I take it off the price.",
            _call(
                "edit",
                path="shop/cart.py",
                old="return price * percent // 100",
                new="return price - price * percent // 100",
            ),
            _TESTS,
            used=(1910, 138),
        ),
    ),
    (1, _PASSED, _reply("", _finish("The discount is fixed and every test passes."), used=(2190, 61))),
    (
        2,
        "500 != 499",
        _reply(
            "I rounded the discount down, so the shop kept half a cent. I round the price.",
            _call("apply_patch", patch=_PATCH),
            _TESTS,
            used=(2960, 241),
        ),
    ),
    (2, _PASSED, _reply("", _finish("The price is rounded down now; I added a test."), used=(3340, 66))),
)
_LINES = Script.of(*(reply for _, _, reply in _REPLIES)).lines
SCRIPT = Script(
    lines=tuple(
        replace(line, attempt=attempt, expect=(heard,))
        for line, (attempt, heard, _) in zip(_LINES, _REPLIES, strict=True)
    ),
    note="replies of the model of `chargehand demo`",
)
# The reply to the report of the failures.
FORK_AT = ForkPoint(attempt=2, turn=1)
# The fork's reply in its place.
STUBBORN = ReplyEdit(
    text="My first version is right.",
    tools=({"name": "finish", "arguments": {"summary": "Nothing to fix.", "evidence": []}},),
)
