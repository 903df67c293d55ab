"""Transcripts of native agents, as short as possible but still realistic: loops, waits and work.

In each transcript of `LOOPS` (by pattern) the agent is stuck at the end; in those of `HONEST` it never is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chargehand.agents.stuck import EscalationLadder, LadderStep, ObservedCall, Stuck, StuckDetector, Turn


def bash(command: str, output: str, code: int | None = 0, *, changed: bool = False, seconds: float = 0.1) -> Turn:
    end = [f"[exit code {code}]"] if code is not None else []
    result = "\n".join([output, *end] if output else end)
    call = ObservedCall(name="bash", arguments={"command": command}, result=result, seconds=seconds)
    return Turn(text="", calls=(call,), changed=changed)


def read(path: str, text: str, offset: int = 1) -> Turn:
    return Turn(
        text="", calls=(ObservedCall(name="read", arguments={"path": path, "offset": offset}, result=text),)
    )


def edit(path: str, old: str, new: str, *, refused: str = "") -> Turn:
    call = ObservedCall(
        name="edit",
        arguments={"path": path, "old": old, "new": new},
        result=refused or f"changed {path}: 1 replacement",
        failed=bool(refused),
    )
    return Turn(text="", calls=(call,), changed=not refused)


def tool(name: str, result: str, **arguments: object) -> Turn:
    return Turn(text="", calls=(ObservedCall(name=name, arguments=arguments, result=result, seconds=0.1),))


def asks(question: str, answer: str) -> Turn:
    result = f"Message from the person:\n\n{answer}"
    return Turn(text="", calls=(ObservedCall(name="ask", arguments={"question": question}, result=result),))


def says(text: str) -> Turn:
    return Turn(text=text)


def together(*turns: Turn) -> Turn:
    return Turn(
        text="", calls=tuple(call for turn in turns for call in turn.calls), changed=any(t.changed for t in turns)
    )


FAILURE = "FAILED tests/test_date.py::test_leap - AssertionError: 28 != 29\n1 failed, 8 passed in {}s"

LOOPS: dict[str, tuple[str, list[Turn]]] = {
    "the same tests again and again": (
        "doom_loop",
        [bash("make lint", "all good"), *(bash("make lint", "all good") for _ in range(2))],
    ),
    "the same failing tests, timed differently": (
        "same_error",
        [bash("pytest -q", FAILURE.format(seconds), 1) for seconds in (0.31, 0.29, 1.02)],
    ),
    "test, fix, test, fix, and always the same failure": (
        "same_failure",
        [
            turn
            for number in range(6)
            for turn in (
                edit("date.py", f"return {'x' * number}", f"return {'y' * number}"),
                bash("pytest -q", FAILURE.format(0.2 + number / 100), 1),
            )
        ],
    ),
    "there and back": (
        "alternation",
        [
            edit("a.py", "<", "<="),
            edit("a.py", "<=", "<"),
            edit("a.py", "<", "<="),
            edit("a.py", "<=", "<"),
            edit("a.py", "<", "<="),
            edit("a.py", "<=", "<"),
        ],
    ),
    "an edit that never matches": (
        "same_error",
        [
            read("app.py", "1\tdef main():\n2\t    run( )"),
            edit("app.py", "run()", "run(1)", refused="`old` does not stand in app.py"),
            read("app.py", "1\tdef main():\n2\t    run( )"),
            edit("app.py", "  run()", "  run(1)", refused="`old` does not stand in app.py; nearest is line 2"),
            edit("app.py", "def main():\nrun()", "run(1)", refused="`old` does not stand in app.py"),
        ],
    ),
    "ls and cat": (
        "alternation",
        [turn for _ in range(3) for turn in (bash("ls", "a.py\nb.py"), bash("cat a.py", "print(1)"))],
    ),
    "three commands in turn": (
        "alternation",
        [
            turn
            for _ in range(3)
            for turn in (bash("ls", "a.py"), bash("cat a.py", "x"), bash("git status", "clean"))
        ][:8],
    ),
    "four commands in turn": (
        "alternation",
        [
            turn
            for _ in range(3)
            for turn in (bash("ls", "a.py"), bash("cat a.py", "x"), bash("git status", "clean"), bash("pwd", "/w"))
        ][:10],
    ),
    "two commands in each turn": (
        "alternation",
        [together(bash("ls", "a.py"), bash("cat a.py", "x")) for _ in range(3)],
    ),
    "counting attempts": (
        "counter",
        [bash(f"./deploy --attempt {n}", f"12:00:0{n} attempt {n}: nothing to do") for n in range(1, 7)],
    ),
    "a new temporary directory each time": (
        "same_error",
        [
            bash(f"make DIR=/tmp/tmp{name}", f"cc: /tmp/tmp{name}/a.c: no input at 0x7f0{number}", 2)
            for number, name in enumerate(("ab12cd34", "0011aabb", "zz_9yx8w"))
        ],
    ),
    "the clock": (
        "same_result",
        [bash("./status", f"2025-01-01T10:00:0{n}Z idle, {n} requests") for n in range(4)],
    ),
    "five commands in each turn": (
        "same_result",
        [together(*(bash(f"cat {name}.py", f"print({name!r})") for name in "abcde")) for _ in range(4)],
    ),
    "polling a server's tool without a pause": (
        "doom_loop",
        [tool("mcp_ci_status", "build 7: pending", build=7) for _ in range(3)],
    ),
    "an error that only its numbers tell apart": (
        "same_error",
        [bash(f"./load --port {8000 + n}", f"bind: port {8000 + n} is in use", 98) for n in range(6)],
    ),
    "talk between the same two calls": (
        "alternation",
        [
            turn
            for n in range(4)
            for turn in (says(f"Let me think, part {n}."), bash("ls", "a.py"), bash("cat a.py", "print(1)"))
        ][: 3 * 3],
    ),
    "talk": ("monologue", [bash("ls", "a.py"), *(says(f"I will now look at part {n}.") for n in range(3))]),
    "thinking aloud in the shell": (
        "no_progress",
        [bash("ls", "a.py"), *(bash(f"echo 'step {chr(97 + n)}'", f"step {chr(97 + n)}") for n in range(25))],
    ),
    "searches without a hit": (
        "no_progress",
        [
            bash("ls", "a.py"),
            *(bash(f"grep -rn {word} src", "", 1) for word in [f"name_{chr(97 + n)}" for n in range(25)]),
        ],
    ),
}

HONEST: dict[str, list[Turn]] = {
    "polling a server": [
        bash("python -m http.server 8000 >/tmp/log 2>&1 &", ""),
        *(bash("sleep 2; curl -s localhost:8000/health", "", 7) for _ in range(30)),
        bash("curl -s localhost:8000/health", "ok"),
    ],
    "polling a server's tool with sleep between": [
        turn
        for _ in range(30)
        for turn in (tool("mcp_ci_status", "build 7: pending", build=7), bash("sleep 20", ""))
    ],
    "a tool of a server that takes its time": [
        Turn(
            text="", calls=(ObservedCall(name="mcp_ci_wait", arguments={}, result="still building", seconds=75.0),)
        )
        for _ in range(20)
    ],
    "a long build in the background, asked for by its log": [
        bash("nohup make -j8 > build.log 2>&1 &", ""),
        *(
            turn
            for n in range(25)
            for turn in (bash("sleep 60 && tail -n 3 build.log", "cc -c core.c"), bash("pgrep make", "4242"))
        ),
        bash("tail -n 1 build.log", "done"),
    ],
    "questions to a person, one after the other": [
        asks(f"May I remove {name}?", answer)
        for name, answer in (("a", "yes"), ("b", "no"), ("c", "yes"), ("d", "no"))
    ],
    "the same question, answered anew": [
        turn
        for answer in ("wait until noon", "not yet, ask again later", "now go on")
        for turn in (asks("May I deploy?", answer), bash("sleep 30", ""))
    ],
    "waiting for a job, looking at it in between": [
        turn for _ in range(20) for turn in (bash("sleep 30", ""), bash("jobs", "[1]+ Running  make &"))
    ],
    "a long compile": [bash("make -j2", "[timed out after 600 s: everything was killed]", None) for _ in range(8)],
    "a slow test suite": [bash("cargo test", "test result: FAILED", 101, seconds=95.0) for _ in range(5)],
    "a growing log": [
        bash("tail -n 1 build.log", f"[{n * 10}%] Building C object {name}.c.o")
        for n, name in enumerate(("ab", "alloc", "buffer", "cache", "date", "error", "file", "graph"))
    ],
    "waiting in a loop of the shell": [
        bash("until pg_isready; do sleep 1; done", "accepting connections") for _ in range(5)
    ],
    "reading a large file": [
        read("data.csv", f"{n}\t{n * 7},{n * 13},{n}", offset=n) for n in range(1, 4000, 100)
    ],
    "reading with sed": [
        bash(f"sed -n '{n},{n + 99}p' data.csv", f"{n},{n + 1},{n + 2}") for n in range(1, 4000, 100)
    ],
    "fewer failures each time": [
        turn
        for left in range(12, 0, -1)
        for turn in (
            edit("date.py", f"month == {left}", f"month is {left}"),
            bash("pytest -q", f"{left} failed, {12 - left} passed in 0.4s", 1),
        )
    ],
    "the same green tests after each change": [
        turn
        for name in ("one", "two", "three", "four", "five", "six", "seven", "eight")
        for turn in (edit("a.py", name, name.upper()), bash("pytest -q", "9 passed in 0.41s"))
    ],
    "looking for a Python": [
        bash(f"python3.{n} --version", f"sh: python3.{n}: not found", 127) for n in range(9, 13)
    ],
    "asking whether files are there": [
        bash("test -f setup.cfg", "", 1),
        bash("test -f setup.py", "", 1),
        bash("test -f pyproject.toml", ""),
        edit("pyproject.toml", "1.0", "1.1"),
    ],
    "explaining between the calls": [
        turn for n in range(6) for turn in (says("Next part."), read(f"part{n}.py", f"class Part{chr(65 + n)}:"))
    ],
}


def look(turns: Iterable[Turn]) -> Stuck | None:
    """Return how the agent is stuck after its last turn, or `None`."""
    watch, found = StuckDetector(), None
    for turn in turns:
        found = watch.add(turn)
    return found


def next_step(turns: Sequence[Turn], taken: Sequence[LadderStep], *, others: int) -> LadderStep | None:
    """Return the step due after these turns, given the steps already taken."""
    ladder, steps = EscalationLadder(others=others), list(taken)
    for number, turn in enumerate(turns, 1):
        ladder.add(turn)
        while steps and steps[0].turn <= number:
            ladder.take(steps.pop(0))
    return ladder.due()
