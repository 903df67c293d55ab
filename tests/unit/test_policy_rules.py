"""Rules of a person and of a repository: permitted content, and error messages."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from chargehand.app.configuration import override_rule
from chargehand.core.errors import ConfigError, NotFoundError, UsageError
from chargehand.policy.actions import FileWrite, Network, Other, Shell, Surroundings
from chargehand.policy.judgement import judge
from chargehand.policy.rules import Rules, Source
from chargehand.reports.reading import StateReader

ANY = "(principal, action, resource)"
AROUND = Surroundings()


def user(text: str) -> Rules:
    return Rules([Source(origin="user", name="policy.cedar", text=text)])


def repository(text: str) -> Rules:
    return Rules([Source(origin="repository", name="chargehand.cedar", text=text)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"// one\n\npermit {ANY};", ":3: a rule needs an @id"),
        ('@id("a") permit (principal, action, resource) when { context.progam == "x" };', "'a'"),
        ('@id("a")\npermit (principal, action == Action::"comand", resource);', "comand"),
        (f'@id("a") permit {ANY};\n@id("b") permit (principal action);', ":2: rule 'b'"),
        (f'@id("a") permit {ANY};\n@id("a") permit {ANY};', "the same id"),
        (f'@id("a") @decision("maybe") permit {ANY};', "@decision"),
        (f'@id("a") @decision("ask") forbid {ANY};', "@decision"),
        (f'@id("a") @resaon("x") permit {ANY};', "did you mean 'reason'?"),
        (f'@id("a") @overrides("git-push") permit {ANY};', "needs a @reason"),
        (f'@id("a") @overrides("git-psh") @reason("x") permit {ANY};', "did you mean 'git-push'?"),
        (f'@id("a") permit {ANY}', "policy.cedar:1"),
    ],
)
def test_a_wrong_rule_is_named_with_file_and_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        user(text).check()
    assert said in caught.value.message
    assert caught.value.code == "policy_invalid"
    assert caught.value.message.startswith("policy.cedar:")


@pytest.mark.parametrize("more", ["", '@overrides("git-push") @reason("x")'])
def test_a_repository_cannot_allow(more: str) -> None:
    with pytest.raises(ConfigError):
        repository(f'@id("a") {more} permit {ANY};').check()


def test_an_ask_rule_of_a_repository_does_not_weaken_a_deny() -> None:
    rules = repository(f'@id("a") @decision("ask") permit {ANY};')
    assert judge(Other(kind="forge", name="merge"), AROUND, rules).effect == "deny"
    assert judge(Shell(text="ls"), AROUND, rules).effect == "ask"
    assert judge(Shell(text="git push"), AROUND, rules).effect == "deny"


def test_an_override_disables_only_the_named_rule() -> None:
    rules = user(f'@id("a") @overrides("git-push") @reason("mirror") permit {ANY};')
    pushed = judge(Shell(text="git push"), AROUND, rules)
    assert (pushed.effect, pushed.rule, pushed.overridden) == ("allow", "user:a", ("git-push",))
    assert judge(Shell(text="git push https://evil.example/x"), AROUND, rules).effect == "deny"
    assert judge(Other(kind="forge", name="merge"), AROUND, rules).effect == "deny"


def test_an_override_does_not_set_aside_a_repositorys_rule() -> None:
    mine = Source(origin="user", name="u", text=f'@id("a") @overrides("git-push") @reason("m") permit {ANY};')
    theirs = Source(origin="repository", name="r", text=f'@id("a") forbid {ANY};')
    assert judge(Shell(text="git push"), AROUND, Rules([mine, theirs])).rule == "repository:a"


@pytest.mark.parametrize(
    ("path", "effect"),
    [
        ("src/a.py", "allow"),
        ("/tmp/x", "allow"),
        (".github/workflows/x.yml", "ask"),
        ("src/../.git/config", "deny"),
        ("chargehand.toml", "deny"),
        ("chargehand.cedar", "deny"),
        ("../x", "deny"),
        ("/etc/passwd", "deny"),
        (".env", "ask"),
        (".env.example", "allow"),
        ("größe mit leer.txt", "allow"),
    ],
)
def test_file_writes_are_judged_by_path(path: str, effect: str) -> None:
    assert judge(FileWrite(path=path), AROUND, Rules()).effect == effect


def test_links_are_followed_if_the_caller_resolves_paths() -> None:
    around = Surroundings(resolve=lambda path: path.replace("/workspace/link", "/workspace/.git"))
    assert judge(FileWrite(path="link/config"), around, Rules()).rule == "write-git"


@pytest.mark.parametrize(
    ("host", "effect"),
    [("localhost", "allow"), ("127.0.0.9", "allow"), ("a.example", "allow"), ("b.example", "deny")],
)
def test_hosts_are_judged_by_the_list(host: str, effect: str) -> None:
    assert judge(Network(host=host), Surroundings(hosts=("a.example",)), Rules()).effect == effect


def test_setup_may_install() -> None:
    assert judge(Shell(text="pip install -e ."), Surroundings(purpose="setup"), Rules()).effect == "allow"


def test_an_unbounded_program_is_asked_for() -> None:
    around = Surroundings(sandboxed=False)
    assert judge(Shell(text="some-tool"), around, Rules()).rule == "program-unbounded"


def test_a_line_with_too_many_parts_is_asked_for() -> None:
    assert judge(Shell(text="a;" * 1000), AROUND, Rules()).rule == "shell-unparsable"


def test_a_valid_override_is_written_and_an_invalid_override_changes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "chargehand" / "policy.cedar"
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "CHARGEHAND_HOME": str(tmp_path / "state")}
    when = 'context has line && context.line like "git fetch mirror*"'
    with StateReader.open(environ=environ, cwd=tmp_path) as reader:
        set_aside = partial(override_rule, reader)
        assert set_aside("git-fetch", reason='my "mirror"', when=when).path == str(path)
        set_aside("git-fetch", reason="again", when="context has program")
        before = path.read_text()
        with pytest.raises(ConfigError):
            set_aside("git-fetch", reason="x", when="context.line like 3")
        with pytest.raises(NotFoundError):
            set_aside("git-read", reason="x", when="")
        with pytest.raises(UsageError):
            set_aside("git-push", reason="  ", when="")
    assert path.read_text() == before
    loaded = user(before)
    assert [rule.id for rule in loaded.all if rule.origin == "user"] == [
        "user:allow-git-fetch",
        "user:allow-git-fetch-2",
    ]
