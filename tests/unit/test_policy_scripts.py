"""Workspace files that programs execute are judged as far as they are shell commands."""

from __future__ import annotations

import json

import pytest
from tests.unit.test_policy_forbidden import FORBIDDEN

from chargehand.policy.actions import Command, Judgement, Shell, Surroundings
from chargehand.policy.judgement import judge
from chargehand.policy.rules import Rules, Source

RULES = Rules()


def judged(line: str, files: dict[str, str], rules: Rules = RULES) -> Judgement:
    around = Surroundings(script={f"/workspace/{name}": text for name, text in files.items()}.get)
    return judge(Shell(text=line), around, rules)


def package(command: str) -> str:
    return json.dumps({"scripts": {"x": command}}, indent=1)


RUNS = {
    "bash": ("bash run.sh --fast", "run.sh", "#!/bin/bash\nset -e\n{0}\n"),
    "sh": ("sh ./run.sh", "run.sh", "{0}\n"),
    "path": ("./tools/run", "tools/run", "#!/usr/bin/env -S bash -e\n# why\n{0}\n"),
    "no shebang": ("./run", "run", "{0}\n"),
    "source": ("source run.sh", "run.sh", "{0}\n"),
    "dot": (". ./run.sh && ls", "run.sh", "{0}\n"),
    "env": ("env CI=1 timeout 9 ./run.sh", "run.sh", "#!/bin/sh\n{0}\n"),
    "cd": ("cd tools && ./run.sh", "tools/run.sh", "#!/bin/sh\n{0}\n"),
    "find": ("find . -name x -exec sh run.sh {} +", "run.sh", "{0}\n"),
    "function": ("bash run.sh", "run.sh", "work() {{\n  {0}\n}}\nwork \"$@\"\n"),
    "make": ("make x", "Makefile", "all: y\nx: y\n\t@echo one\n\t-@{0}\ny:\n\techo y\n"),
    "make needs": ("make", "Makefile", "all: y\ny:\n\t{0}\n"),
    "make -C": ("make -C tools x", "tools/Makefile", "x: ; {0}\n"),
    "make -f": ("make -f build.mk", "build.mk", "x:\n\t{0}\n"),
    "make variable": ("make x", "Makefile", "DO = {0}\nx:\n\t$(DO)\n"),
    "npm": ("npm run x", "package.json", ""),
    "yarn": ("yarn x", "package.json", ""),
    "pnpm": ("pnpm --dir web run x", "web/package.json", ""),
}  # fmt: skip


@pytest.mark.parametrize("form", RUNS)
def test_a_forbidden_line_of_a_script_is_refused_with_its_line_number(form: str) -> None:
    for line, rule in FORBIDDEN:
        refused_with_its_line(form, line, rule)


def refused_with_its_line(form: str, line: str, rule: str) -> None:
    run, name, text = RUNS[form]
    content = text.format(line) if text else package(line)
    judgement = judged(run, {name: content})
    found = [part for part in judgement.parts if part.rule == rule]
    moved = name.startswith(("tools/", "web/")) and "/" not in run.split()[0]
    if moved and rule in ("write-ci", "write-own"):  # below another directory they are other files
        assert judgement.effect == "allow"
        return
    assert judgement.effect in ("deny", "ask"), judgement
    assert found or (moved and line.startswith("rm -rf .."))
    assert judgement.subject.endswith(")")
    where = judgement.subject.rpartition("(")[2]
    number = content.split(line)[0].count("\n") + 1
    if form != "make variable":
        assert where == f"{name}:{number})"


LEGITIMATE = {
    "#!/bin/bash\nset -eu\ncd \"$(dirname \"$0\")/..\"\nexec \"${PYTHON:-python}\" -m pytest \"$@\"\n": "bash",
    "tmp=$(mktemp -d)\ntrap 'rm -rf \"$tmp\"' EXIT\ncp a.txt \"$tmp\"/\n": "a directory that is made",
    "walk() { for f in \"$1\"/*; do [ -d \"$f\" ] && walk \"$f\"; done; }\nwalk src\n": "a circle",
    "$RUNNER --größe 'mit leer' | tee \"out dir/ünï.txt\"\n": "a program from outside",
    "cat <<'E'\nusage: git push is not done here; rm -rf /\nE\n": "help",
    "if [ (broken\n": "what is no bash",
    "\n".join(f"tool-{number} x" for number in range(700)): "a long one",
}  # fmt: skip


@pytest.mark.parametrize("text", LEGITIMATE, ids=LEGITIMATE.values())
def test_dynamic_commands_of_legitimate_scripts_are_allowed(text: str) -> None:
    judgement = judged("./scripts/test größe", {"scripts/test": text})
    assert judgement.effect == "allow", [part for part in judgement.parts if part.effect != "allow"]


def test_the_same_words_in_a_line_are_asked_for() -> None:
    assert judged("$RUNNER x", {}).effect == "ask"


def test_scripts_of_scripts_are_looked_into_and_circles_end() -> None:
    files = {"a.sh": "sh b.sh\nsh c.sh", "b.sh": "sh a.sh\n. ./b.sh\nls", "c.sh": "\n\ngit push"}
    judgement = judged("bash a.sh; bash a.sh", files)
    assert (judgement.effect, judgement.rule) == ("deny", "git-push")
    assert judgement.subject == "git push (c.sh:3)"
    assert len(judgement.parts) < 12


def test_nesting_is_bounded() -> None:
    files = {f"{number}.sh": f"sh {number + 1}.sh" for number in range(40)}
    judgement = judged("sh 0.sh", files)
    assert judgement.effect == "allow"
    assert len(judgement.parts) < 15
    assert judgement.rule == "opaque-script"


def test_many_scripts_are_bounded() -> None:
    many = {f"{number}.sh": "\n".join(f"tool-{number}-{each}" for each in range(90)) for number in range(9)}
    judgement = judged("; ".join(f"sh {number}.sh" for number in range(9)), many)
    assert judgement.effect == "allow"
    assert len(judgement.parts) < 350
    assert any("more than 300" in part.text for part in judgement.parts)


@pytest.mark.parametrize(
    "line",
    [
        "python x.py",
        "python -c 'import os'",
        "node x.js",
        "./x",
        "./tool.bin",
        "make all",
        "npm run y",
        "perl -e 1",
    ],
)
def test_opaque_programs_are_allowed_for_the_reason_that_the_sandbox_bounds_them(line: str) -> None:
    files = {"x": "#!/usr/bin/env python3\nimport os\n", "tool.bin": "\x7fELF\0", "x.py": "git push"}
    judgement = judged(line, files)
    assert (judgement.effect, judgement.rule) == ("allow", "opaque-script")
    assert "sandbox bounds" in judgement.reason


def test_without_a_sandbox_a_script_of_unknown_text_needs_approval() -> None:
    judgement = judge(Command(argv=("python", "x.py")), Surroundings(sandboxed=False), RULES)
    assert (judgement.effect, "opaque-unbounded") == (
        "ask",
        next(p.rule for p in judgement.parts if p.kind == "shell"),
    )


def test_a_script_written_by_the_same_command_is_marked_as_unknown() -> None:
    judgement = judged("echo 'git push' > run.sh; sh run.sh", {"run.sh": "ls"})
    assert judgement.effect == "allow"
    assert any("written as well" in part.text for part in judgement.parts)
    assert judged("touch run.sh; sh run.sh", {"run.sh": "git push"}).effect == "deny"


def test_words_from_a_file_are_words() -> None:
    files = {"list": "build\n../../etc\n"}
    assert judged("xargs -a list rm -rf", files).rule == "delete-outside"
    assert judged("xargs --arg-file=list rm -rf", {"list": "build dist\n"}).effect == "allow"
    assert judged("xargs -a missing rm -rf", {}).rule == "delete-unknown"


def test_a_makefiles_variables_are_put_in() -> None:
    recipe = ("rm -rf $(D)/etc $$HOME", "$(CC) -o x x.c", "$(foreach x,a b,$(x))", "$@ $(shell git push)")
    text = "\n\t".join(("D ?= ../..\nall:", *recipe))
    rules = {part.rule for part in judged("make", {"Makefile": text}).parts}
    assert {"delete-outside", "git-push"} <= rules
    assert judged("make D=build -j4", {"Makefile": "D = /\nall:\n\trm -rf $(D)/x\n"}).effect == "allow"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"scripts": 3}', '{"scripts": {"x": 3}}', "[" * 100_000])
def test_an_invalid_package_json_is_ignored(text: str) -> None:
    assert judged("npm run x", {"package.json": text}).effect == "allow"


def test_a_rule_may_mind_scripts() -> None:
    text = '@id("no-scripts") forbid (principal, action == Action::"command", resource) when { context.script };'
    rules = Rules([Source(origin="repository", name="r", text=text)])
    assert judged("sh x.sh", {"x.sh": "ls"}, rules).rule == "repository:no-scripts"
    assert judged("ls", {}, rules).effect == "allow"
