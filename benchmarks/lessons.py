"""Simulates lessons of known effect until they are demoted: `python -m benchmarks.lessons [--lessons N]`.

Each fits 60 missions, one after the other. Prints Markdown.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from chargehand.knowledge.lessons_effect import choose_arm, measure_effect
from chargehand.store.lessons import LessonUse

# Chances of a green first attempt without and with the lesson, in per cent.
CASES = ((100, 0), (70, 0), (50, 30), (30, 30), (50, 50), (70, 70), (90, 90), (50, 60), (50, 70), (50, 90))
WITHIN = (5, 20, 60)


def missions_until_demoted(without: float, with_it: float, seed: str) -> int | None:
    """Return after how many missions one lesson was demoted, `None` if it was not."""
    chance = random.Random(seed)
    uses: list[LessonUse] = []
    while measure_effect(uses).status != "demoted":
        if len(uses) == WITHIN[-1]:
            return None
        shown = choose_arm(measure_effect(uses), "experiment", seed=f"{seed}/{len(uses)}")
        green = chance.random() < (with_it if shown else without)
        uses.append(LessonUse(lesson="l", mission=str(len(uses)), shown=shown, green=green, attempts=1))
    return len(uses)


def simulate(lessons: int) -> Iterator[str]:
    """Yield the lines of a table: how many lessons of each case are demoted within some missions."""
    yield " ".join(("| passes without | with it |", *(f"demoted within {most} |" for most in WITHIN)))
    yield " ".join(("| -: | -: |", *("-: |" for _ in WITHIN)))
    for without, with_it in CASES:
        found = [
            missions_until_demoted(without / 100, with_it / 100, f"{without}/{with_it}/{number}")
            for number in range(lessons)
        ]
        ended = [sum(each is not None and each <= most for each in found) for most in WITHIN]
        yield " ".join((f"| {without} % | {with_it} % |", *(f"{100 * each / lessons:.0f} % |" for each in ended)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.lessons")
    parser.add_argument("--lessons", type=int, default=300)
    print(*simulate(parser.parse_args().lessons), sep="\n")


if __name__ == "__main__":
    main()
