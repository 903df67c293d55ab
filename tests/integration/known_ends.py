"""Missions with known ends: the request of each, its result, and its cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_line import shell
from msgspec import Struct
from msgspec.structs import replace
from tests.native_kit import FINISH, call, says, scripted

from chargehand.core.records import MissionStatus
from chargehand.models.scripts import Script, ScriptLine

CHECK = "cat *.txt sub/* > /dev/null; grep -q aaa f.txt"
"""Opens all files, and requires one line of the base to stay."""
GREEN = shell("echo x > sub/made.txt")
USD = 10.0 / 1_000_000
IN, OUT = 1000, 100
"""The usage that each reply of a scripted model reports; `USD` is the price of one token."""

# Class and code of a cause; `None` for a success.
Cause = tuple[str, str] | None


class KnownEnd(Struct, frozen=True, kw_only=True):
    """The end of one mission of a case: its cause, and that of each of its attempts."""

    status: MissionStatus
    cause: Cause = None
    attempts: tuple[Cause, ...] = (None,)


class Case(Struct, frozen=True, kw_only=True):
    """A request whose missions (including tasks of a plan) end as in `ends`, after `replies` paid replies.

    `errors` calls end without a reply and cost nothing. `could` is false if something outside the work prevents
    its end. `act` is an action of a person, or a fault, during the mission.
    """

    asked: dict[str, Any]
    ends: tuple[KnownEnd, ...]
    replies: int = 0
    errors: int = 0
    act: str = ""
    could: bool = True
    plan: tuple[dict[str, Any], ...] = ()


def _one(status: MissionStatus, cause: Cause = None, **more: Any) -> tuple[KnownEnd, ...]:
    attempts = more.pop("attempts", (cause,))
    return (KnownEnd(status=status, cause=cause, attempts=attempts),)


RED, IDLE = ("check", "check_failed"), ("agent", "no_change")
FAILED, LATE = ("agent", "agent_failed"), ("budget", "time")
CANCELLED, FORBIDDEN = ("person", "cancelled"), ("check", "area_forbidden")
SECOND = shell(
    "if test -z $CHARGEHAND_REPORT; then echo b > f.txt; else echo aaa > f.txt; echo x > sub/made.txt; fi"
)
LONG = shell("echo x > sub/made.txt; sleep 120")
DONE = KnownEnd(status="promoted")
COORDINATOR = KnownEnd(status="promoted", attempts=())


def _task(name: str, agent: str = "", **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"Write {name}", "agent": agent or shell(f"echo x > sub/{name}.txt"), **more}


CASES: dict[str, Case] = {
    "green": Case(asked={"agent": GREEN}, ends=(DONE,)),
    "repaired": Case(
        asked={"agent": SECOND, "attempts": "2"},
        ends=(KnownEnd(status="promoted", attempts=(RED, None)),),
    ),
    "red": Case(
        asked={"agent": shell("echo b > f.txt"), "attempts": "2"},
        ends=_one("refused", RED, attempts=(RED, RED)),
    ),
    "no change": Case(asked={"agent": "command:true"}, ends=_one("refused", IDLE)),
    "exit": Case(asked={"agent": shell("echo x > sub/x.txt; exit 3")}, ends=_one("failed", FAILED)),
    "forbidden": Case(
        asked={"agent": shell("echo x > g.txt"), "forbid": ("g.txt",)},
        ends=_one("refused", FORBIDDEN),
    ),
    "late": Case(asked={"agent": LONG, "time": "2s"}, ends=_one("exhausted", LATE)),
    "cancelled": Case(asked={"agent": LONG}, ends=_one("cancelled", CANCELLED), act="cancel"),
    # Its worker is killed while the agent sleeps; the next worker restarts the attempt.
    "lost": Case(asked={"agent": shell("echo x > sub/made.txt; sleep 4")}, ends=(DONE,), act="kill"),
    "model": Case(asked={"agent": "native", "model": "good"}, ends=(DONE,), replies=2),
    # The provider answers 429 once: the call is retried, which does not count as another call.
    "busy": Case(asked={"agent": "native", "model": "busy"}, ends=(DONE,), replies=2),
    "provider": Case(
        asked={"agent": "native", "model": "bad"},
        ends=_one("waiting", ("provider", "provider_down"), attempts=(("provider", "model_failed"),)),
        errors=1,
        could=False,
    ),
    "dear": Case(
        asked={"agent": "native", "model": "dear", "budget": "0.0001"},
        ends=_one("exhausted", ("budget", "budget")),
        errors=1,
    ),
    "plan": Case(
        asked={"agent": "command:true"},
        plan=(_task("a"), _task("b", after=["a"])),
        ends=(COORDINATOR, DONE, DONE),
    ),
    "plan with a task left out": Case(
        asked={"agent": "command:true"},
        plan=(_task("a"), _task("bad", shell("exit 3"))),
        ends=(COORDINATOR, DONE, *_one("failed", FAILED)),
        act="skip",
    ),
    "plan with a conflict": Case(
        asked={"agent": "command:true"},
        plan=tuple(_task(name, shell("echo $CHARGEHAND_REQUEST | md5sum > sub/line.txt")) for name in ("a", "b")),
        # The later one is sent back once: that is a separate mission, with one more attempt.
        ends=(COORDINATOR, DONE, DONE, DONE),
    ),
}
MENDS = says("I write", call("bash", command="echo x > sub/made.txt"))
MODELS: dict[str, Script] = {
    "good": scripted((MENDS, FINISH)),
    "busy": Script(
        lines=(
            ScriptLine(turn=1, reply=replace(MENDS, fault="429/0")),
            ScriptLine(turn=1, reply=MENDS),
            ScriptLine(turn=2, reply=FINISH),
        )
    ),
    "bad": Script(lines=(ScriptLine(turn=1, reply=replace(MENDS, fault="400")),)),
    "dear": scripted((MENDS, *(says("Again", call("bash", command=f"echo {n}")) for n in range(9)))),
}


def configure(place: Path) -> None:
    """Write the scripted models, and the configuration that names them."""
    lines = []
    for name, script in MODELS.items():
        file = place / f"{name}.jsonl"
        file.write_bytes(script.dump())
        lines += [f"[models.{name}]", 'provider = "script"', f"script = {json.dumps(str(file))}", "price = 10.0"]
    directory = place / "config/chargehand"
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text("\n".join(lines) + "\n")


SAMPLE: dict[str, int] = {name: 1 for name in CASES if name != "plan with a conflict"} | {
    "green": 6,
    "repaired": 2,
    "red": 2,
    "no change": 2,
    "exit": 2,
}
ALL: dict[str, int] = {
    "green": 60,
    "repaired": 30,
    "red": 20,
    "no change": 15,
    "exit": 15,
    "forbidden": 10,
    "late": 8,
    "cancelled": 8,
    "lost": 6,
    "model": 8,
    "busy": 4,
    "provider": 4,
    "dear": 4,
    "plan": 4,
    "plan with a task left out": 2,
    "plan with a conflict": 2,
}
"""The number of missions of each case, 200 together."""
