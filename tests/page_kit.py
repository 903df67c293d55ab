"""Follows a page of the docs as a user: saves its files, runs its commands, and compares their output with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from chargehand.app.demo.project import write_configuration
from chargehand.app.selection.choice import AGENT_PROGRAMS
from chargehand.configuration.locations import user_config_path
from tests.terminal_kit import Terminal
from tests.used_state import used_state

STEP = re.compile(r"(?:[Ss]ave this as `(?P<file>[^`]+)`:\n\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
QUESTION = re.compile(
    r"^((?:Check with|Another check|Which one|Your answer).*?(?:\[\S*\]|\)): ?)(.*)$", re.MULTILINE
)
LEFT_OUT = "…"
# Parts that differ for every user: ids, commits, times, seconds, users and paths.
CHANGING = (
    (r"\bm-[0-9a-z]{14,26}\b", "MISSION"),
    (r"\b[0-9a-f]{12,64}\b", "COMMIT"),
    (r"\b\d{4}-\d\d-\d\dT[0-9:.]+\+00:00", "MOMENT"),
    (r"\b\d+\.\d( s\b|$)", "SECONDS"),
    (r"\b\d+:\d\d\b", "TIME"),
    (r"os:\w+", "PERSON"),
    (r"/\S*/hello/", "PLACE"),
    (r"^Log intact: .*", "INTACT"),
    (r" +", " "),
)


class Step(Struct, frozen=True, kw_only=True):
    """A file to save, a command with its output, or a text that the command before it shows."""

    file: str = ""
    command: str = ""
    text: str = ""


def steps(page: str) -> Iterator[Step]:
    for found in STEP.finditer(page):
        if found["file"]:
            yield Step(file=found["file"], text=found["text"])
        elif found["language"] == "console":
            for part in re.split(r"^\$ ", found["text"], flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                yield Step(command=command, text=shown)
        else:
            yield Step(text=found["text"])


def normalise(text: str) -> list[str]:
    for pattern, word in CHANGING:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return [line.rstrip() for line in text.splitlines()]


def comes_out(shown: str, out: str) -> bool:
    """Return whether the output is as shown, apart from the omitted parts."""
    parts: list[list[str]] = [[]]
    for line in normalise(shown):
        parts = [*parts, []] if line == LEFT_OUT else [*parts[:-1], [*parts[-1], line]]
    lines, place = normalise(out), 0
    for number, part in enumerate(parts):
        if number == len(parts) - 1 and part:  # nothing is omitted after it
            return lines[-len(part) :] == part and (number > 0 or len(lines) == len(part))
        starts = [0] if number == 0 else range(place, len(lines) - len(part) + 1)
        start = next((each for each in starts if lines[each : each + len(part)] == part), None)
        if start is None:
            return False
        place = start + len(part)
    return len(parts) > 1 or not lines


def find_replies(shown: str) -> list[tuple[str, str]]:
    """Return the questions in an output, each with its reply."""
    return QUESTION.findall(shown)


def answer(shown: Terminal, replies: Sequence[tuple[str, str]]) -> str:
    """Answer questions at a terminal, wait for the command's success, and return everything that it printed."""
    try:
        for question, reply in replies:
            shown.until(question)
            shown.say(f"{reply}\n")
        assert shown.end() == 0, shown.shown
    finally:
        shown.close()
    return shown.raw


def is_drawn(shown: str, drawn: str) -> bool:
    """Return whether all that is shown was drawn at a terminal, in this order, however its lines were wrapped."""
    printed, place = _squeeze(drawn), 0
    for part in re.split(rf"^{LEFT_OUT}$", shown, flags=re.MULTILINE):
        place = printed.find(_squeeze(part), place)
        if place < 0:
            return False
        place += len(_squeeze(part))
    return True


def _squeeze(text: str) -> str:
    # The progress line, erased in its place or after its end; colours.
    text = re.sub(r"[^\n]*(\n[^\n]*\x1b\[1A)?\x1b\[2K|\x1b\[[0-?]*[ -/]*[@-~]|\r", "", text)
    return re.sub(r"\s", "", "\n".join(normalise(text)))


def _path_without_agents() -> str:
    """Return PATH without the directories of agent programs, which `init` would offer."""
    places = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(
        place for place in places if not any((Path(place) / name).exists() for name in AGENT_PROGRAMS)
    )


class Reader:
    """A user who follows the page, in a separate home."""

    def __init__(self, place: Path) -> None:
        home, programs = place / "home", place / "bin"
        for made in (home, programs):
            made.mkdir()
        program = programs / "chargehand"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m chargehand "$@"\n')
        program.chmod(0o755)
        (home / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n")
        self.place = place
        self.environment = {
            "PATH": f"{programs}:{_path_without_agents()}",
            "OLLAMA_HOST": "127.0.0.1:1",
            "HOME": str(home),
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "LANG": "C.UTF-8",
        }

    def save(self, step: Step) -> None:
        file = self.place / step.file
        file.parent.mkdir(exist_ok=True)
        file.write_text(step.text)

    def run(self, command: str) -> str:
        """Run a command as a shell does, in the directory where the last one ended; return its output."""
        left = self.place.parent / "directory"
        script = f"{command}\ncode=$?\npwd > {left}\nexit $code\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        wanted = re.search(r"# exits (\d)", command)
        assert done.returncode == int(wanted[1] if wanted else 0), (command, done.stdout)
        self.place = Path(left.read_text().strip())
        return done.stdout

    def follow(self, page: str) -> int:
        """Save the files, run the commands, compare the outputs that are shown; return the number of commands."""
        count = 0
        for step in steps(page):
            if step.file:
                self.save(step)
            elif step.command:
                out = self.run(step.command)
                assert not step.text or comes_out(step.text, out), f"$ {step.command}\n{out}"
                count += 1
        return count

    def open(self, command: str) -> Terminal:
        """Start a command at a terminal."""
        return Terminal(("/bin/sh", "-c", command), cwd=self.place, environment=self.environment)

    def watch(self, command: str) -> str:
        """Run a command at a terminal to its end; return everything that it drew, one picture after the other."""
        shown = self.open(command)
        try:
            assert shown.end() == 0, shown.shown
        finally:
            shown.close()
        for begin in ("\x1b[H", "\x1b[?1049l"):  # the start of each picture, and the return to the normal screen
            shown.raw = shown.raw.replace(begin, "\n")
        return shown.shown


def reader_with_model(directory: Path) -> Reader:
    """Return a user with the demo's scripted model."""
    (directory / "work").mkdir()
    reader = Reader(directory / "work")
    write_configuration(user_config_path(reader.environment), directory)
    return reader


def read_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)
