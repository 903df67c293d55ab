"""Text that a person types or configures: errors name wrong words and the way out; odd words arrive whole."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from command_line import FILES, MEND, PASSES, Cli, repository, shell
from tests.conftest import git, make_repository, repository_state, write_files

from chargehand.core.text import printable

pytestmark = pytest.mark.needs_bwrap

NAUGHTY = Path(__file__).parents[3] / "shared/data/naughty_strings.json"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("shared") / "repo")


def run_words(*words: str, agent: str = MEND) -> tuple[str, ...]:
    return ("run", "mend", "--agent", agent, *PASSES, *words)


def test_invalid_arguments_start_no_mission(cli: Cli, shared: Path, tmp_path: Path) -> None:
    before = repository_state(shared)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "zero.txt").write_bytes(b"mend\0it")
    (tmp_path / "long.txt").write_text("x" * 100_001)
    wrong = {
        ("run", "mend", "--agnet", MEND): ("usage", "--agent"),
        ("rnu", "mend"): ("usage", "rnu"),
        ("run", "mend", "--time", "soon", "--agent", MEND): ("config_invalid", "soon"),
        ("run", "mend", "--attempts", "0", "--agent", MEND): ("config_invalid", "0"),
        ("run", "  ", "--agent", MEND): ("usage", "empty"),
        ("run", "--agent", MEND, "--file", str(tmp_path / "gone")): ("usage", "gone"),
        ("run", "--agent", MEND, "--file", str(tmp_path / "latin.txt")): ("usage", "UTF-8"),
        ("run", "--agent", MEND, "--file", str(tmp_path / "zero.txt")): ("usage", "zero byte"),
        ("run", "--agent", MEND, "--file", str(tmp_path / "long.txt")): ("request_too_long", "100001"),
        ("run", "mend", "--agent", "command:sed 'oops"): ("config_invalid", "sed 'oops"),
        ("run", "mend", "--check-file", "/etc/passwd:../x", "--agent", MEND): ("usage", "../x"),
        ("mission", "show", "m-nothing"): ("not_found", "m-nothing"),
    }
    for words, (code, named) in wrong.items():
        result = cli.say(*words, cwd=shared)
        assert (result.code, result.stdout, result.error["code"]) == (2, "", code), result
        assert named in result.error["message"] + result.error["hint"], result
    assert cli.missions(shared) == []
    assert repository_state(shared) == before


def test_an_unknown_agent_error_lists_the_known_agents(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path / "person"), repository(tmp_path / "repo")
    none = cli.refused("not_found", 2, *run_words(agent="fixr"), cwd=repo)
    assert "'fixr'" in none["message"]
    agents = '[agents.fixer]\ncommand = ["true"]\n[agents.other]\ncommand = ["true"]\n'
    write_files(cli.place, {".config/chargehand/config.toml": agents})
    near = cli.refused("not_found", 2, *run_words(agent="fixr"), cwd=repo)
    assert "'fixer'" in near["hint"]
    far = cli.refused("not_found", 2, *run_words(agent="zzz"), cwd=repo)
    assert "fixer, native, other" in far["hint"]
    cli.refused("agent_ambiguous", 2, "run", "mend", cwd=repo)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[project]\n\nchekcs = []\n", (":3", "chekcs", "'checks'")),
        ("[project]\nchecks = [\n", (":3",)),
        ('[limits]\ntime = "soon"\n', (":2", "time", "soon")),
        ("[projct]\n", (":1", "projct", "'project'")),
        ("[project]\nchecks = 1\n", (":2", "checks")),
    ],
)
def test_malformed_repository_configuration(cli: Cli, tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    repo = make_repository(tmp_path / "repo", {**FILES, "chargehand.toml": text})
    before = repository_state(repo)
    result = cli.say(*run_words(), cwd=repo)
    assert (result.code, result.stdout, result.error["code"]) == (2, "", "config_invalid"), result
    for part in ("chargehand.toml", *named):
        assert part in result.error["message"] + result.error["hint"], result
    assert repository_state(repo) == before


def test_configuration_that_is_no_text(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    (repo / "chargehand.toml").write_bytes(b"[project]\nsetup = '\xff'\n")
    assert "chargehand.toml" in cli.refused("config_invalid", 2, *run_words(), cwd=repo)["message"]


def test_trust_applies_only_to_the_exact_configuration(cli: Cli, tmp_path: Path) -> None:
    wants = '[sandbox]\ntoolchain = ["/opt"]\n'
    repo = make_repository(tmp_path / "repo", {**FILES, "chargehand.toml": wants})
    before = repository_state(repo)
    asked = cli.refused("trust_needed", 3, *run_words("--yes"), cwd=repo)
    assert "sandbox.toolchain" in asked["message"]
    assert "chargehand project trust" in asked["hint"]
    assert cli.missions(repo) == []
    cli.refused("trust_unasked", 2, "project", "trust", cwd=repo)
    trusted = cli.say("project", "trust", "--yes", cwd=repo)
    assert (trusted.code, trusted.document["trusted"]) == (0, True), trusted
    assert repository_state(repo) == before
    assert cli.run(repo).code == 0
    write_files(repo, {"chargehand.toml": wants + "# changed\n"})
    git(repo, "commit", "-qam", "changed")
    cli.refused("trust_needed", 3, *run_words(), cwd=repo)


def test_trust_is_taken_back(cli: Cli, tmp_path: Path) -> None:
    wants = '[sandbox]\ntoolchain = ["/opt"]\n'
    repo = make_repository(tmp_path / "repo", {**FILES, "chargehand.toml": wants})
    other = make_repository(tmp_path / "other", {**FILES, "chargehand.toml": wants})
    never = cli.say("project", "untrust", cwd=repo)
    assert (never.code, never.document["revoked"]) == (0, 0), never
    assert "was trusted, so nothing changed" in cli.say("project", "untrust", cwd=repo, as_json=False).stdout
    cli.say("project", "trust", "--yes", cwd=other)
    cli.say("project", "trust", "--yes", cwd=repo)
    write_files(repo, {"chargehand.toml": wants + "# changed\n"})
    git(repo, "commit", "-qam", "changed")
    cli.say("project", "trust", "--yes", cwd=repo)
    assert cli.run(repo).code == 0
    before = repository_state(repo)
    # Run from another directory; it also takes back the grant made before the change.
    taken = cli.say("project", "untrust", "--repo", str(repo), cwd=tmp_path, as_json=False)
    assert (taken.code, taken.stderr) == (0, ""), taken
    assert taken.stdout == f"no longer trusted: {repo} (2 grants taken back)\n"
    assert cli.say("project", "show", cwd=repo).document["trusted"] is False
    cli.refused("trust_needed", 3, *run_words(), cwd=repo)
    assert repository_state(repo) == before
    git(repo, "checkout", "-q", "HEAD~1")
    cli.refused("trust_needed", 3, *run_words(), cwd=repo)
    git(repo, "checkout", "-q", "-")
    assert cli.say("project", "show", cwd=other).document["trusted"] is True
    assert cli.say("project", "trust", "--yes", cwd=repo).document["trusted"] is True
    assert cli.run(repo).code == 0
    cli.refused("not_a_repository", 2, "project", "untrust", "--repo", "nowhere", cwd=repo)


def test_request_of_100_kilobytes_reaches_the_agent_whole(cli: Cli, shared: Path, tmp_path: Path) -> None:
    text = ("mend it\n" + "why: " + "ü" * 70 + "\n" + "x" * 100_000)[:99_900]
    text = text.encode()[:100_000].decode(errors="ignore")
    (tmp_path / "request.txt").write_text(text)
    agent = "command:python3 -c \"import os; open('f.txt', 'w').write(os.environ['CHARGEHAND_REQUEST'])\""
    result = cli.say("run", "--file", str(tmp_path / "request.txt"), "--agent", agent, *PASSES, cwd=shared)
    assert result.code == 0, result
    assert git(shared, "show", f"{result.document['branch']}:f.txt") == text
    assert git(shared, "log", "-1", "--format=%s", result.document["branch"]) == "mend it"


def naughty() -> list[str]:
    """Return up to six strings with control or bidirectional characters, then an even sample of all."""
    if not NAUGHTY.exists():
        return []
    strings = [text for text in json.loads(NAUGHTY.read_text()) if text.strip() and "\0" not in text]
    worst = [text for text in strings if re.search(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\ufeff]", text)]
    return worst[:6] + strings[:: len(strings) // 15]


@pytest.mark.skipif(not NAUGHTY.exists(), reason="the strings are not at hand")
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in (1, 2, 3))])
def test_naughty_requests(cli: Cli, tmp_path: Path, part: int) -> None:
    repo = repository(tmp_path / "repo")
    before = repository_state(repo)
    agent = shell('printf %s \\"$CHARGEHAND_REQUEST\\" > f.txt')
    for text in naughty()[part::4]:
        result = cli.say("run", "--agent", agent, *PASSES, "--", text, cwd=repo)
        assert result.code == 0, (text, result)
        branch, commit = result.document["branch"], result.document["commit"]
        assert re.fullmatch(r"chargehand/[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?", branch), branch
        title, _, body = git(repo, "log", "-1", "--format=%B", commit).partition("\n")
        assert title == printable(title).strip()
        assert 0 < len(title) <= 72, title
        assert f"Mission: {result.document['mission']}\n" in body
        assert bytes_at(repo, f"{commit}:f.txt") == text.encode()
    assert repository_state(repo) == before


def bytes_at(repo: Path, name: str) -> bytes:
    """Return the exact bytes of a file in a commit."""
    return subprocess.run(["git", "-C", repo, "cat-file", "blob", name], capture_output=True, check=True).stdout
