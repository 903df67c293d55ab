"""Ranking of the repository map on real bug fixes: `python -m benchmarks.map_ranking CLONES [MISSIONS.json...]`.

CLONES has a clone of each repository as `OWNER+NAME`, with the missions' commits. A mission has `repo`, `id`,
`base_commit`, `issue_text` and `gold_patch_paths`; by default they are those of `../shared/data/missions*.json`
beside this checkout, which are not part of it. With `--history N`, they are instead the newest N changes of CLONES
itself, a clone of any repository: those of one or two source files, with the subject of the commit as the request.

Counted are the missions whose fixed files are all listed in a map of `--tokens`, and the place of the first fixed
source file in the ranking. `--aider PYTHON` names an interpreter that has aider, whose map is asked with the same
budget; four bytes count as a token for every side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chargehand.knowledge._languages import is_test_file, language_of
from chargehand.knowledge._ranking import MapRequest
from chargehand.knowledge._rendering import render_files
from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.maps import RepositoryMap
from chargehand.workspace.depot import Depot

_AIDER = """
import os, re, sys, json, logging
from aider.repomap import RepoMap
class Model:
    def token_count(self, text): return len(text if isinstance(text, str) else str(text)) // 4
class Io:
    def read_text(self, name):
        try: return open(name, encoding="utf-8", errors="replace").read()
        except OSError: return None
    def tool_output(self, *a, **k): pass
    tool_warning = tool_error = tool_output
order = json.load(sys.stdin)
root = order["root"]; os.chdir(root)
files = [os.path.join(root, each) for each in order["files"]]
text = order["text"]
idents = set(re.split(r"\\W+", text))
names = {each for each in order["files"] if each in text or (os.path.basename(each) in text.split())}
stems = {os.path.splitext(os.path.basename(each))[0].lower(): each for each in order["files"]}
names |= {stems[i.lower()] for i in idents if len(i) >= 5 and i.lower() in stems}
made = RepoMap(map_tokens=order["tokens"], root=root, main_model=Model(), io=Io(), map_mul_no_files=1)
print(made.get_repo_map(set(), files, mentioned_fnames=names, mentioned_idents=idents) or "")
"""


_SHARED = Path(__file__).parents[2] / "shared" / "data"


class Score:
    """The figures of one side over all missions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listed: list[bool] = []
        self.sources: list[bool] = []
        self.places: list[int | None] = []
        self.seconds: list[float] = []

    def add(self, text: str, mission: dict[str, Any], seconds: float, order: Sequence[str] = ()) -> None:
        """Add the map of one mission, and the ranking if it is known."""
        lines = {line.rstrip(":") for line in text.splitlines()}
        gold = mission["gold_patch_paths"]
        source = [path for path in gold if language_of(path)]
        self.listed.append(all(path in lines for path in gold))
        self.sources.append(all(path in lines for path in source))
        places = [order.index(path) for path in source if path in order]
        self.places.append(min(places) if places else None)
        self.seconds.append(seconds)

    def line(self) -> str:
        """Return the figures as text."""
        count = len(self.listed)
        within = [sum(p is not None and p < most for p in self.places) for most in (1, 3, 5)]
        rank = statistics.fmean(0.0 if p is None else 1 / (1 + p) for p in self.places)
        return (
            f"{self.name:22} all files {sum(self.listed):3}/{count}  source files {sum(self.sources):3}/{count}  "
            f"first 1/3/5: {within[0]}/{within[1]}/{within[2]}  mean reciprocal rank {rank:.2f}  "
            f"median {statistics.median(self.seconds) * 1000:.0f} ms"
        )


def main() -> None:
    """Measure all missions and print the figures of each side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path)
    parser.add_argument("missions", type=Path, nargs="*", default=sorted(_SHARED.glob("missions*.json")))
    parser.add_argument("--history", type=int, metavar="N")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--aider", type=Path)
    options = parser.parse_args()
    if options.history is not None:
        missions = _read_history(options.clones, options.history)
    else:
        missions = [each for file in options.missions for each in json.loads(file.read_text())]
    if not missions:
        parser.error(f"there are no missions: name files of them, or put them in {_SHARED}")
    ours, plain, aider = Score("repository map"), Score("full text only"), Score("aider")
    with tempfile.TemporaryDirectory() as scratch:
        for mission in missions:
            name = mission["repo"].replace("/", "+")
            depot = Depot.open(Path(scratch, name), repository=(options.clones / name).resolve())
            base = depot.resolve_base(mission["base_commit"])
            with CodeIndex(depot.root, depot) as index:
                made = RepositoryMap(index, base.tree)
                made.bring()
                _measure(mission, made, depot, ours, plain, options.tokens)
            if options.aider is not None:
                with tempfile.TemporaryDirectory(dir=scratch) as checkout:
                    text, seconds = _ask_aider(options, mission, depot, base.commit, Path(checkout))
                aider.add(text, mission, seconds)
            print(
                mission["id"], ours.sources[-1], plain.sources[-1], aider.sources[-1:], ours.places[-1], flush=True
            )
    for score in (ours, plain, aider):
        if score.listed:
            print(score.line())


def _read_history(clone: Path, most: int) -> list[dict[str, Any]]:
    """Return the newest changes of one or two source files as missions."""
    words = ["git", "-C", str(clone), "log", "--no-merges", "--name-only", "--format=%x01%h%x00%P%x00%s%x00"]
    text = subprocess.run(words, capture_output=True, text=True, errors="surrogateescape", check=True).stdout
    missions = []
    for part in text.split("\1")[1:]:
        commit, parent, subject, listed = part.split("\0")
        paths = listed.split("\n")
        sources = [path for path in paths if path and language_of(path) and not is_test_file(path)]
        if parent and 1 <= len(sources) <= 2:
            missions.append(
                {
                    "repo": ".",
                    "id": commit,
                    "base_commit": parent,
                    "issue_text": subject,
                    "gold_patch_paths": sources,
                }
            )
        if len(missions) == most:
            break
    return missions


def _measure(
    mission: dict[str, Any], made: RepositoryMap, depot: Depot, ours: Score, plain: Score, tokens: int
) -> None:
    request = mission["issue_text"]
    text, seconds = _timed(lambda: made.render(request, tokens=tokens))
    ours.add(text, mission, seconds, made.rank(request))
    with made._graph() as graph:
        parsed = MapRequest.parse(request)
        found = list(graph.match_words(parsed.words, most=300).items())
        text, seconds = _timed(lambda: render_files(graph, parsed, found, depot, limit=4 * tokens))
        plain.add(text, mission, seconds, [graph.path_of(file) for file, _ in found])


def _timed(work: Callable[[], str]) -> tuple[str, float]:
    began = time.perf_counter()
    text = work()
    return text, time.perf_counter() - began


def _ask_aider(
    options: argparse.Namespace, mission: dict[str, Any], depot: Depot, commit: str, checkout: Path
) -> tuple[str, float]:
    archive = subprocess.run(
        ["git", f"--git-dir={depot.path}", "archive", commit], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive.stdout, check=True)
    files = [entry.path for entry in depot.entries(depot.tree_of(commit))]
    order = {"root": str(checkout), "files": files, "text": mission["issue_text"], "tokens": options.tokens}
    began = time.perf_counter()
    done = subprocess.run(
        [str(options.aider), "-c", _AIDER], input=json.dumps(order), capture_output=True, text=True, check=True
    )
    return done.stdout, time.perf_counter() - began


if __name__ == "__main__":
    main()
