"""The parser of shell lines under random input, and rules whose effect is flipped."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.policy.actions import (
    Command,
    Effect,
    FileWrite,
    GitAction,
    Network,
    Other,
    Run,
    RunKind,
    Shell,
    Snippet,
    Surroundings,
)
from chargehand.policy.judgement import judge
from chargehand.policy.rules import Rules, Source, statements

RULES = Rules()
AROUND = Surroundings()
NAMES = st.from_regex(r"[a-z]{3,8}", fullmatch=True).map("x-".__add__)
WORDS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=6)
COMMANDS = st.tuples(NAMES, st.lists(WORDS, max_size=3)).map(lambda made: (made[0], *made[1]))
_PIECES = st.sampled_from(
    [*"|&;<>(){}[]$`'\"\\ \n\t#!*?~=-", "git push", "rm -rf /", "$(", "${", "<<E", "E\n", "if ", "then ", "fi",
     "for x in ", "do ", "done", "case ",
     "esac", "&&", "||", ";;", "[[", "]]", "((", "))", "<(", "$'", "x=", "$x", "ü"]
)  # fmt: skip
FORMS = (
    "{0}",
    "{0} | cat",
    "true && {0}",
    "({0})",
    "echo $({0})",
    'echo "$({0})"',
    "f() {{ {0}; }}; f",
    "if {0}; then :; fi",
    "while {0}; do break; done",
    "env A=b {0}",
    "timeout 5 nice {0}",
    "find . -exec {0} \\;",
    "case x in x) {0};; esac",
    "sh -c {1}",
    "eval {1}",
    "bash <<'E-O-F'\n{0}\nE-O-F",
    "cat <<'E-O-F' | sh\n{0}\nE-O-F",
    "diff <({0}) /dev/null",
)


@given(st.lists(_PIECES | st.text(max_size=5), max_size=25).map("".join))
@settings(max_examples=examples(250), deadline=None)
def test_whatever_is_written_is_judged(line: str) -> None:
    judgement = judge(Shell(text=line), AROUND, RULES)
    assert judgement.effect in ("allow", "ask", "deny")
    if judgement.rule == "shell-unparsable":
        assert judgement.effect == "ask"


@given(st.text(st.characters(exclude_categories=["Cc"]), min_size=1))
@example("\udc80")
def test_no_text_is_lost_on_its_way_through_the_grammar(word: str) -> None:
    judgement = judge(Shell(text=f"x-tool {shlex.quote(word)}"), AROUND, RULES)
    assert f"x-tool {word}" in {part.text for part in judgement.parts}


@pytest.mark.parametrize(
    "line",
    [
        "a${\U000e48fb",
        "a$\U000dfe97",
        "cat <<E${\U000d63a6}\nE\n",
        "x@{\U000f9e38",
        "x-\ud800",
        "x=\udc80 git push",
    ],
)
def test_characters_far_beyond_a_table_of_the_grammar_do_no_harm(line: str) -> None:
    for text in (line, f"if {line}", f"{line}{line}" * 20, f"git push; echo {line}"):
        assert judge(Shell(text=text), AROUND, RULES).effect in ("allow", "ask", "deny")
    denied = judge(Shell(text="git push origin \U000e48fb"), AROUND, RULES)
    assert denied.effect == "deny"
    assert "\U000e48fb" in denied.subject


@pytest.mark.parametrize("line", ["git push (", "git push 'x", "if git push", "for", "git push $(", "((((", "\0"])
def test_an_unparsable_shell_line_needs_approval(line: str) -> None:
    judgement = judge(Shell(text=line), AROUND, RULES)
    assert (judgement.effect, judgement.rule) == ("ask", "shell-unparsable")


@given(st.lists(COMMANDS, min_size=1, max_size=4), st.lists(st.sampled_from(FORMS), min_size=4, max_size=4))
@settings(max_examples=examples(150), deadline=None)
def test_every_program_is_found_in_every_form(commands: list[tuple[str, ...]], forms: list[str]) -> None:
    lines = [shlex.join(command) for command in commands]
    parts = [form.format(line, shlex.quote(line)) for form, line in zip(forms, lines, strict=False)]
    judgement = judge(Shell(text="\n".join(parts)), AROUND, RULES)
    found = {part.text for part in judgement.parts if part.kind == "command"}
    assert {" ".join(command) for command in commands} <= found, judgement.parts


@given(COMMANDS)
@settings(max_examples=examples(60), deadline=None)
def test_an_argument_list_is_judged_without_parsing(command: tuple[str, ...]) -> None:
    judgement = judge(Command(argv=command), AROUND, RULES)
    assert judgement.parts[0].text == " ".join(command)


ACTIONS = {
    "command": Command(argv=("some-tool", "x")),
    "shell": Shell(text="some-tool x"),
    "write": FileWrite(path="a.txt"),
    "delete": FileWrite(path="a.txt", removal=True),
    "network": Network(host="localhost", port=80),
    "other": Other(kind="model", name="m"),
    "forge": Other(kind="forge", name="merge"),
    "plugin": Other(kind="plugin", name="p", facts={"hook": "after"}),
    "git": GitAction(words=("status",)),
    "snippet": Snippet(language="python", source="1"),
    "exec": Run(kind="exec", run=("ls", "-la"), trusted=True),
    "setup": Run(kind="setup", run="pip install -e . && make", trusted=True),
    "check": Run(kind="check", run="pytest -q"),
    "launch": Run(kind="launch", run=("codex", "exec"), trusted=True),
}
CEDAR = {"shell": "command", "git": "command", "forge": "other", "plugin": "other"}


def written(name: str, effect: Effect, text: str = "") -> str:
    asks = ' @decision("ask")' if effect == "ask" else ""
    word = "forbid" if effect == "deny" else "permit"
    return f'@id("mine"){asks} {word} (principal, action == Action::"{CEDAR.get(name, name)}", resource);\n{text}'


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("effect", ["allow", "ask", "deny"])
@pytest.mark.parametrize("origin", ["user", "repository"])
def test_a_flipped_rule_flips_the_effect(name: str, effect: Effect, origin: str) -> None:
    if origin == "repository" and effect == "allow":
        return
    source = Source(
        origin="user" if origin == "user" else "repository", name="x.cedar", text=written(name, effect)
    )
    judgement = judge(ACTIONS[name], AROUND, Rules([source]))
    if origin == "repository" and name in ("forge", "plugin"):  # denied before; a repository allows nothing more
        assert (judgement.effect, judgement.rule) == ("deny", "none")
        return
    assert judgement.effect == effect
    assert effect == "allow" or judgement.rule == f"{origin}:mine"


@pytest.mark.parametrize("rule", [rule for rule in RULES.all if rule.effect != "allow"], ids=lambda rule: rule.id)
def test_every_shipped_rule_can_be_set_aside(rule: object) -> None:
    text = f'@id("a") @overrides("{getattr(rule, "id")}") @reason("so") permit (principal, action, resource);'  # noqa: B009
    loaded = Rules([Source(origin="user", name="x.cedar", text=text)])
    assert [each.overrides for each in loaded.all if each.origin == "user"] == [getattr(rule, "id")]  # noqa: B009


@pytest.mark.parametrize("kind", ["forge", "plugin", "gît", ""])
def test_without_any_rule_the_answer_is_deny(kind: str) -> None:
    judgement = judge(Other(kind=kind, name="merge"), AROUND, RULES)
    assert (judgement.effect, judgement.rule) == ("deny", "none")


SHIPPED = {
    "exec": "exec-by-person",
    "setup": "setup-trusted",
    "check": "check-untrusted",
    "launch": "launch-agent",
    "snippet": "snippet",
}


@pytest.mark.parametrize("name", SHIPPED)
def test_each_kind_has_a_rule_that_says_why(name: str) -> None:
    judgement = judge(ACTIONS[name], AROUND, RULES)
    assert judgement.effect == "allow"
    assert SHIPPED[name] in {part.rule for part in judgement.parts}
    assert name in {part.kind for part in judgement.parts}


@pytest.mark.parametrize("kind", ["exec", "launch"])
def test_a_run_without_an_allowing_rule_is_denied(kind: RunKind) -> None:
    judgement = judge(Run(kind=kind, run=("ls",)), AROUND, RULES)
    assert (judgement.effect, judgement.rule) == ("deny", "none")


@given(st.sampled_from(["setup", "check"]), COMMANDS, st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_trust_is_all_that_parts_a_projects_commands_from_an_agents(
    kind: RunKind, command: tuple[str, ...], trusted: bool
) -> None:
    line = f"{shlex.join(command)} && git push && $UNKNOWN"
    judgement = judge(Run(kind=kind, run=line, trusted=trusted), AROUND, RULES)
    assert judgement.effect == ("allow" if trusted else "deny")
    assert trusted or judgement.rule == "git-push"


def test_shipped_rules_keep_the_schema_and_are_named_once() -> None:
    import cedarpy

    from chargehand.policy.rules import default_source, facts_schema

    checked = cedarpy.validate_policies(default_source().text, facts_schema())
    assert checked.validation_passed, checked.errors
    assert len(list(statements(default_source().text))) == len(RULES.all)
