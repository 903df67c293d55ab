"""A server driven by the same commands: with `--server` they print the same as on the machine itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests.server_kit import Served, serving

from chargehand.operations.commands import served_commands
from chargehand.policy.access import SCOPES

pytestmark = pytest.mark.needs_bwrap


class Remote:
    """A person at another machine, with only a token, an empty home, and the address of a server."""

    def __init__(self, place: Path, served: Served) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.cli, self.url = Cli(place, fresh=True), served.url
        bearer: str = served.token(*SCOPES).headers["Authorization"]
        self.token = bearer.partition(" ")[2]

    def say(self, *words: str, as_json: bool = True) -> Completed:
        environ = {"CHARGEHAND_TOKEN": self.token}
        result = self.cli.say("--server", self.url, *words, cwd=self.cli.place, environ=environ, as_json=as_json)
        assert not self.cli.home.exists(), list(self.cli.home.rglob("*"))  # the client stores nothing
        return result


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def repo(cli: Cli) -> Path:
    return repository(cli.place / "repo")


@pytest.fixture(scope="module")
def promoted(cli: Cli, repo: Path) -> str:
    return str(cli.run(repo).document["mission"])


@pytest.fixture(scope="module")
def waiting(cli: Cli, repo: Path) -> str:
    return str(cli.run(repo, agent=shell("sed -i s/a/b/ f.txt; touch conftest.py")).document["mission"])


@pytest.fixture(scope="module")
def served(cli: Cli, repo: Path, promoted: str, waiting: str) -> Iterator[Served]:
    with serving(cli.environ, repo) as made:
        yield made


@pytest.fixture(scope="module")
def remote(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Remote:
    return Remote(tmp_path_factory.mktemp("elsewhere"), served)


LOOKS = (
    # the remote words, and the local ones if they differ: a remote command names the local one's checkout
    (("mission list", "--all"), ()),
    (("mission list", "--repo", "repo", "--limit", "1"), ("mission list", "--limit", "1")),
    (("mission list", "--all", "--status", "waiting"), ()),
    (("mission show", "{promoted}"), ()),
    (("mission log", "{promoted}"), ()),
    (("mission log", "{waiting}", "--transcript"), ()),
    (("mission watch", "{promoted}"), ()),
    (("mission report", "{promoted}"), ()),
    (("mission diff", "{promoted}"), ()),
    (("mission diff", "{promoted}", "--stat"), ()),
    (("mission rollback", "{promoted}", "--dry-run"), ()),
    (("checkpoint list", "{promoted}"), ()),
    (("checkpoint show", "{checkpoint}", "--mission", "{promoted}"), ()),
    (("checkpoint diff", "base", "{checkpoint}", "--mission", "{promoted}", "--inverse"), ()),
    (("checkpoint undo", "{waiting}", "--dry-run"), ()),
    (("checkpoint restore", "{waiting}", "base", "--file", "f.txt", "--dry-run"), ()),
    (("artifact list", "{promoted}"), ()),
    (("artifact show", "{artifact}"), ()),
    (("project list",), ()),
    (("project show", "--repo", "repo"), ("project show",)),
    (("project log", "--repo", "repo"), ("project log",)),
    (("agent list", "--repo", "repo"), ("agent list",)),
    (("agent probe", "command:true", "--repo", "repo"), ("agent probe", "command:true")),
    (("role list", "--repo", "repo"), ("role list",)),
    (("role show", "reviewer"), ("role show", "reviewer")),
    (("team list",), ()),
    (("model list", "--repo", "repo"), ("model list",)),
    (("model list", "--provider", "openai"), ()),
    (("model show", "openai:gpt-5", "--repo", "repo"), ("model show", "openai:gpt-5")),
    (("model probe", "--quick", "--repo", "repo"), ("model probe", "--quick")),
    (("model stats", "--all"), ()),
    (("model invoice", "--all"), ()),
    (("stats", "--repo", "repo"), ("stats",)),
    (("alerts test",), ()),
    (("config show", "--repo", "repo"), ("config show",)),
    (("config show", "--origin", "--repo", "repo"), ("config show", "--origin")),
    (("policy show", "--repo", "repo"), ("policy show",)),
    (("policy show", "--facts"), ()),
    (("policy test", "--", "git", "push", "origin", "main"), ()),
    (("policy test", "--shell", "rm -rf /", "--repo", "repo"), ("policy test", "--shell", "rm -rf /")),
    (("policy why", "{promoted}", "--all"), ()),
    (("audit verify",), ()),
    (("audit verify", "{promoted}", "--deep"), ()),
    (("audit provenance", "{promoted}"), ()),
    (("audit export", "{promoted}"), ()),
    (("audit export", "--all"), ()),
    (("action list", "--running"), ()),
    (("action list",), ()),
    (("action show", "{action}"), ()),
    (("action log", "{action}"), ()),
    (("action log", "{action}", "--follow"), ()),
    (("action cancel", "{action}"), ()),
    (("decision why", "{promoted}"), ()),
    (("decision list", "--limit", "5"), ()),
    (("decision replay",), ()),
    (("decision rollouts",), ()),
    (("decision reliability",), ()),
    (("decision forecasts", "--limit", "5"), ()),
    (("mission forecast", "{promoted}"), ()),
    (("knowledge list",), ()),
    (("knowledge show", "failure-cause"), ()),
    (("knowledge query", "failure-cause", "cause", "changed", "--given", "end=crashed"), ()),
    (("knowledge query", "failure-cause", "cause", "--given", "changed=yes:0.7,no:0.3", "--number", "0"), ()),
    (("knowledge export", "promotion-risk"), ()),
    (("memory list",), ("memory list", "--all")),
    (("user list",), ()),
    (("token list",), ()),
    (("user log", "--limit", "3"), ()),
)  # fmt: skip


def words_of(told: tuple[str, ...], names: dict[str, str]) -> list[str]:
    return [*told[0].split(), *(word.format(**names) for word in told[1:])]


@pytest.fixture(scope="module")
def names(cli: Cli, repo: Path, promoted: str, waiting: str) -> dict[str, str]:
    cli.say("exec", "--detach", "--", "echo", "hello", cwd=repo)
    action = json.loads(cli.say("action", "list", cwd=repo).stdout)[0]["action"]
    cli.say("action", "log", action, "--follow", cwd=repo)
    artifacts = cli.say("artifact", "list", promoted, cwd=repo).document["artifacts"]
    checkpoints = cli.say("checkpoint", "list", promoted, cwd=repo).document["checkpoints"]
    return {
        "promoted": promoted,
        "waiting": waiting,
        "action": action,
        "artifact": artifacts[0]["id"],
        "checkpoint": checkpoints[-1]["commit"],
    }


@pytest.mark.parametrize(("there", "here"), LOOKS, ids=lambda words: " ".join(words))
def test_a_remote_command_prints_the_same_json_as_the_local_command(
    cli: Cli, repo: Path, remote: Remote, names: dict[str, str], there: tuple[str, ...], here: tuple[str, ...]
) -> None:
    local = cli.say(*words_of(here or there, names), cwd=repo)
    told = remote.say(*words_of(there, names))
    assert told.stdout == local.stdout, (told, local)
    assert (told.code, told.stderr) == (local.code, local.stderr)
    assert local.stdout or there[0] in ("project log", "mission log", "policy why", "mission forecast"), local


@pytest.mark.parametrize(
    "words",
    [
        # outputs that the same code writes as on the machine itself
        ("mission list", "--all"),
        ("mission diff", "{promoted}"),
        ("mission report", "{promoted}"),
        ("artifact show", "{artifact}"),
        ("policy show", "--cedar"),
        ("policy show", "--facts"),
        ("knowledge export", "failure-cause"),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_remote_command_prints_the_same_text_as_the_local_command(
    cli: Cli, repo: Path, remote: Remote, names: dict[str, str], words: tuple[str, ...]
) -> None:
    result = words_of(words, names)
    assert remote.say(*result, as_json=False).stdout == cli.say(*result, cwd=repo, as_json=False).stdout


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("mission show", "{promoted}"), "promoted"),
        (("mission log", "{promoted}"), "mission.created"),
        (("mission watch", "{waiting}"), "check_surface"),
        (("checkpoint list", "{promoted}"), "COMMIT"),
        (("mission diff", "{promoted}", "--stat"), "f.txt"),
        (("policy why", "{promoted}", "--all"), "rule "),
        (("project log", "--repo", "repo"), "action.created"),
        (("action log", "{action}"), "hello"),
        (("audit verify",), "signed_heads"),
        (("user log",), "token.create"),
        (("stats",), "missions.total"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_person_gets_facts_and_tables(
    remote: Remote, names: dict[str, str], words: tuple[str, ...], shown: str
) -> None:
    result = remote.say(*words_of(words, names), as_json=False)
    assert (result.code, result.stderr) == (0, "")
    assert shown in result.stdout, result


def masked(result: Completed) -> tuple[int, str, str]:
    """Return the output without parts that differ between missions: ids, hashes and numbers."""

    def mask(text: str) -> str:
        text = re.sub(r"chg_[\w-]+", "SECRET", text)
        text = re.sub(r"\b[almtq]-[0-9a-z]{8,}|\b[0-9a-f]{12,64}\b|chargehand_[\w-]+", "ID", text)
        text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)", "TIME", text)
        return re.sub(r"\d+(\.\d+)?(e-\d+)?|mend-\w+", "N", text)

    return result.code, mask(result.stdout), mask(result.stderr)


CHANGES = (
    # in this order, each on separate missions; `@` becomes the end of names that differ on each side
    ("run", "mend", "--agent", "command:true", "--check", "true", "--detach"),
    ("mission pause", "{waiting}", "--reason", "wait"),
    ("mission resume", "{waiting}"),
    ("mission send", "{waiting}", "mind the gap", "--critical"),
    ("mission answer", "{waiting}", "yes"),
    ("mission answer", "{waiting}"),
    ("mission fork", "{waiting}", "--at", "1.1", "--detach"),
    ("mission plan", "{waiting}", "--start", "a"),
    ("mission plan", "{waiting}"),
    ("checkpoint undo", "{waiting}"),
    ("checkpoint restore", "{waiting}", "{first}"),
    ("mission promote", "{waiting}", "--tree", "0123"),
    ("mission promote", "{waiting}", "--reason", "looked at"),
    ("mission rollback", "{waiting}"),
    ("mission rollback", "{waiting}"),
    ("feedback", "{waiting}", "bad", "--note", "it breaks"),
    ("feedback", "{waiting}", "good", "--attempt", "1", "--hunk", "f.txt:1"),
    ("feedback", "{waiting}", "good", "--hunk", "f.txt:9"),
    ("feedback", "{waiting}"),
    ("feedback", "{waiting}", "--retract"),
    ("feedback", "{waiting}", "--retract"),
    ("decision look", "{waiting}"),
    ("mission discard", "{other}"),
    ("mission cancel", "{other}"),
    ("mission continue", "{other}", "and more", "--detach", "--attempts", "1"),
    ("mission cancel", "{other}"),
    ("action answer", "{action}", "yes"),
    ("knowledge import", "net@", "{network}"),
    ("knowledge import", "net@", "{cases}"),
    ("knowledge update", "net@", "{cases}"),
    ("knowledge update", "net@", "{network}"),
    ("knowledge remove", "net@"),
    ("memory add", "mind the gap", "--paths", "f.*"),
    ("memory show", "l-none"),
    ("memory share", "l-none"),
    ("memory forget", "l-none"),
    ("user add", "ada@", "--role", "operator", "--no-password"),
    ("user add", "ada@", "--role", "king", "--no-password"),
    ("user role", "ada@", "viewer"),
    ("user link", "ada@", "https://login.example", "subject of ada@"),
    ("user unlink", "https://login.example", "subject of ada@"),
    ("user unlink", "https://login.example", "subject of ada@"),
    ("user disable", "ada@"),
    ("user enable", "ada@"),
    ("token create", "ci", "--user", "ada@", "--days", "3"),
    ("token revoke", "t-none"),
    ("user remove", "ada@"),
)


def test_a_remote_command_has_the_same_effect_as_the_local_command(
    cli: Cli, repo: Path, remote: Remote, names: dict[str, str], waiting: str
) -> None:
    agent = shell("sed -i s/a/b/ f.txt; touch conftest.py")
    own = [{"waiting": str(cli.run(repo, agent=agent).document["mission"])} for _ in range(2)]
    for each in own:
        each["other"] = str(cli.run(repo, agent=agent).document["mission"])
        listed = cli.say("checkpoint", "list", each["waiting"], cwd=repo).document["checkpoints"]
        each |= {"action": names["action"], "first": listed[0]["commit"]}
        each |= {"network": str(cli.place / "network.ndjson"), "cases": str(cli.place / "cases.ndjson")}
    (cli.place / "network.ndjson").write_text('{"node": "a", "states": ["x", "y"], "table": [[0.5, 0.5]]}')
    (cli.place / "cases.ndjson").write_text('{"a": "x"}\n{}\n')
    for change in CHANGES:
        here, there = (
            [word.format(**each).replace("@", end) for word in (*change[0].split(), *change[1:])]
            for each, end in zip(own, ("l", "r"), strict=True)
        )
        if change[0] in ("run", "memory add"):
            there += ["--repo", "repo"]
        local, told = masked(cli.say(*here, cwd=repo)), masked(remote.say(*there))
        assert [
            part.replace("adar", "adal").replace("netr", "netl") if isinstance(part, str) else part
            for part in told
        ] == list(local), change


def test_alerts_are_those_that_the_server_watches_for(cli: Cli, repo: Path, remote: Remote) -> None:
    # The server may look between the two calls.
    local, told, short = (
        {key: value for key, value in result.document.items() if key not in ("looked", "watched")}
        for result in (cli.say("alerts", "list", cwd=repo), remote.say("alerts", "list"), remote.say("alerts"))
    )
    assert told == short == local
    assert told.keys() == {"raised", "ended", "channels"}
    assert remote.say("alerts", "--prometheus").error["code"] == "option_local"


def test_a_test_notice_sent_by_the_server_fails_as_the_local_notice(
    cli: Cli, repo: Path, served: Served, remote: Remote
) -> None:
    # The server has no such page: the notice fails at once, and for good.
    cli.say("config", "set", "alerts.webhook", f"{served.url}/nowhere", cwd=repo)
    local, told = cli.say("alerts", "test", cwd=repo), remote.say("alerts", "test")
    cli.say("config", "unset", "alerts.webhook", cwd=repo)
    assert (told.code, told.stdout) == (local.code, local.stdout)
    assert told.code == 1
    assert told.document["channels"] == [{"channel": "webhook", "problem": "the answer was 405"}]


def test_every_command_with_a_route_is_tried() -> None:
    tried = {words[0] for words, _ in LOOKS} | {words[0] for words in CHANGES}
    assert served_commands() - tried == {"user password", "alerts list"}
