"""No decision depends on the words of a reply, only on its status and type; a scan of the source enforces it.

Modules that decide how an attempt ends or continues never search the output of an agent, a model or a program.
Code that searches texts for another reason is listed here, each place with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture.trees import parse

ROOT = Path(__file__).parents[2] / "src/chargehand"
SCANNED = sorted(path for package in ("agents", "missions") for path in (ROOT / package).rglob("*.py"))
SAID = {
    "answer",
    "content",
    "evidence",
    "output",
    "reason",
    "reply",
    "said",
    "stderr",
    "stdout",
    "summary",
    "text",
    "transcript",
    "words",
}
"""Names of variables that hold words of an agent, a model or a program."""
ASKS = {"startswith", "endswith", "find", "index", "count", "lower", "casefold", "fullmatch", "match", "search"}
"""Methods that search words."""
FILES = "texts of files and of patches, or where a text is cut to be shown"
OTHER_TEXTS = dict.fromkeys(
    (
        "agents/prompts.py",
        "agents/tool_specs.py",
        "agents/toolbox.py",
        "agents/tools/editing.py",
        "agents/tools/files.py",
        "agents/patches.py",
        "agents/patch/parsing.py",
    ),
    FILES,
)
"""Modules of `agents` that handle texts of other origins."""
STUCK = "whether a command went wrong, told by our own last line: a hint to a model that goes in circles"
ROLE = "a closed word of a role's file"
CHECK = "a closed word of ours for how a check ended"
PERSON = "what a person answers to a question is to be decided by"
SHELL = "the shell's own line about a program that it could not start, under a name that we give it"
PLAN = "the form of what a person or a planner wrote as a plan, which is checked"
ALLOWED = {
    ("missions/coordination/conditions.py", "_NOT_STARTED.search(ended.stderr)"): SHELL,
    ("missions/coordination/decisions.py", "answer.strip().lower()"): PERSON,
    ("missions/planning/expansion.py", "text.lower()"): PLAN,
    ("missions/planning/fields.py", "_NOT_IN_TEXT.search(text)"): PLAN,
    ("missions/planning/patterns.py", "'/' not in text.rstrip('/')"): PLAN,
    ("missions/planning/patterns.py", "_CONTROL.search(text)"): PLAN,
    ("missions/planning/patterns.py", "re.match('[A-Za-z]:[\\\\\\\\/]', text)"): PLAN,
    ("missions/planning/patterns.py", "text.endswith('/')"): PLAN,
    ("missions/planning/patterns.py", "text.find(']', at + 1 + (text[at:at + 1] in ('!', '^')))"): PLAN,
    ("missions/planning/patterns.py", "text.startswith('/')"): PLAN,
    ("missions/planning/patterns.py", "text.startswith(('!', '#'))"): PLAN,
    # file, the expression: why it decides nothing about an outcome by the words of an agent
    ("agents/acp/agent.py", "answer.get('stopReason') != 'end_turn'"): "a closed word of the protocol",
    ("agents/acp/client.py", "text.lower()"): PERSON,
    ("agents/native/loop.py", "text.endswith('[exit code 0]')"): STUCK,
    ("agents/roles.py", "role.output != 'change'"): ROLE,
    (
        "missions/attempt/watching.py",
        "gap == event.reason == 'new_directory'",
    ): "a closed word of the watcher's gaps",
    ("agents/roles.py", "role.output == 'change'"): ROLE,
    ("agents/_transcript.py", "_EXIT.search(text)"): STUCK,
    ("agents/_transcript.py", "_TIMED_OUT.search(text)"): STUCK,
    ("missions/attempt/admission.py", "answer.lower()"): PERSON,
    ("missions/attempt/admission.py", "answer.lower().startswith(_USE)"): PERSON,
    ("missions/attempt/context.py", "'tree' in output"): "a key of a recorded step, made by us",
    ("missions/verdict/judgement.py", "check.reason == 'collection_error'"): CHECK,
    ("missions/verdict/judgement.py", "known.reason == 'no_tests_ran'"): CHECK,
    ("missions/verdict/judgement.py", "check.reason == 'exit_code'"): CHECK,
    ("missions/attempt/log.py", "content.count(b'\\n')"): "how many lines our own file has",
    ("missions/_policy.py", "answer.strip().lower()"): PERSON,
    ("missions/fork.py", "text.lstrip().startswith('{')"): PERSON,
}


def found(tree: ast.AST) -> Iterator[str]:
    """Yield each expression that searches or compares such words."""
    for node in ast.walk(tree):
        compared = isinstance(node, ast.Compare) and _compares(node)
        if compared or (isinstance(node, ast.Call) and _searches(node)):
            yield ast.unparse(node)


def _compares(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    inside = any(isinstance(each, ast.In | ast.NotIn) for each in node.ops)
    if inside:
        return any(_is_said(side) for side in node.comparators)
    equal = any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops)
    constants = [side for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)]
    return equal and any(side.value for side in constants) and any(_is_said(side) for side in sides)


def _searches(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in ASKS:
        return False
    return _is_said(node.func.value) or any(_is_said(argument) for argument in node.args)


def _is_said(node: ast.expr) -> bool:
    """Return whether an expression holds such words, also decoded or trimmed."""
    if isinstance(node, ast.Name):
        return node.id in SAID
    if isinstance(node, ast.Attribute):
        return node.attr in SAID
    if isinstance(node, ast.Subscript):
        key = node.slice
        return (isinstance(key, ast.Constant) and key.value in SAID) or _is_said(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _is_said(node.func.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return any(_is_said(each) for each in node.args)
    return isinstance(node, ast.BinOp) and (_is_said(node.left) or _is_said(node.right))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_code_decides_by_the_text_of_a_reply() -> None:
    told = {(name(path), each) for path in SCANNED if name(path) not in OTHER_TEXTS for each in found(parse(path))}
    assert not sorted(told - set(ALLOWED)), "decide by type and status, or say in ALLOWED why this is no decision"
    assert not sorted(set(ALLOWED) - told), "these are gone: take them out of ALLOWED"


def test_deciding_modules_are_scanned() -> None:
    names = {name(path) for path in SCANNED}
    deciding = {
        "agents/messages.py",
        "agents/native/loop.py",
        "agents/programs/running.py",
        "missions/verdict/judgement.py",
    }
    assert deciding <= names
    assert len(names) > 60


@pytest.mark.parametrize(
    "planted",
    [
        "def ended(outcome):\n    return 'done' if b'PASS' in outcome.output else 'failed'",
        "done = 'PASS' in output",
        "done = 'tests pass' in result.stdout.decode().lower()",
        "done = re.search('success', message.payload.summary)",
        "done = _OK.fullmatch(said)",
        "done = reply.startswith('PASS')",
        "done = 'fail' not in log.said",
        "done = summary == 'PASS'",
        "done = summary.strip().lower() != 'failure'",
        "done = outcome.reason.endswith('done')",
        "done = str(reply).find('LGTM') >= 0",
        "done = any('ok' in record['output'] for record in records)",
    ],
)
def test_a_planted_decision_is_found(planted: str) -> None:
    assert list(found(ast.parse(planted)))


@pytest.mark.parametrize(
    "allowed",
    [
        "done = message.status == 'success'",
        "done = outcome.claim == 'done'",
        "first = summary.splitlines()[0]",
        "empty = summary == ''",
        "kind = payload.get('type')",
    ],
)
def test_decisions_by_status_are_not_reported(allowed: str) -> None:
    assert not list(found(ast.parse(allowed)))
