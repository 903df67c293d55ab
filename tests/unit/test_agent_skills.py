"""The front matter of a skill; a broken one does not break the list."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit._local_sandbox import LocalSandbox

from chargehand.agents.native.skills import Skill, find_skills, parse_skill, skill_list

PATH = ".claude/skills/tables/SKILL.md"


def described(*lines: str) -> Skill | None:
    return parse_skill(PATH, "\n".join(["---", *lines, "---", "# Tables", "description: not this"]))


@pytest.mark.parametrize(
    ("lines", "name", "description"),
    [
        (("name: rows", "description: Draw tables."), "rows", "Draw tables."),
        (('description: "Quoted: yes"', "license: MIT"), "tables", "Quoted: yes"),
        (("description: >-", "  one", "  two", "version: 3"), "tables", "one two"),
        (("description: one", "  two", "other: x", "  three"), "tables", "one two"),
        (("name: 'a'", "description: \x1b[31mred\u202e\t now"), "a", "red now"),
        (("description: " + "d" * 900,), "tables", "d" * 400),
    ],
)
def test_names_and_descriptions_are_parsed_from_headers(
    lines: tuple[str, ...], name: str, description: str
) -> None:
    assert described(*lines) == Skill(path=PATH, name=name, description=description)


@pytest.mark.parametrize(
    "head", ["", "# Tables", "---\nname: x\n---", "---\ndescription: never closed", "---\n---"]
)
def test_a_file_without_a_description_is_no_skill(head: str) -> None:
    assert parse_skill(PATH, head) is None


@given(st.text(max_size=200))
def test_a_skill_is_one_line_of_the_list(text: str) -> None:
    skill = parse_skill("a\nb/c/SKILL.md", f"---\ndescription: {text}\n---")
    if skill is not None:
        assert len(skill_list((skill,)).split("\n")) == 1


async def test_both_places_are_searched_and_the_first_of_a_name_counts(tmp_path: Path) -> None:
    for place, name, text in (
        (".claude", "one", "---\ndescription: of claude\n---"),
        (".chargehand", "one", "---\ndescription: of chargehand\n---"),
        (".claude", "two", "---\r\ndescription: two\0\r\n---\r\n"),
        (".claude", "three", "no header"),
    ):
        directory = tmp_path / place / "skills" / name
        directory.mkdir(parents=True)
        (directory / "SKILL.md").write_text(text, newline="")
    (tmp_path / ".claude/skills/loose.md").write_text("---\ndescription: x\n---")
    found = await find_skills(LocalSandbox(tmp_path))
    assert [(each.name, each.description) for each in found] == [("one", "of chargehand"), ("two", "two")]
    assert skill_list(found).splitlines()[0] == "- one: of chargehand (read .chargehand/skills/one/SKILL.md)"


async def test_the_list_is_empty_without_skills(tmp_path: Path) -> None:
    assert skill_list(await find_skills(LocalSandbox(tmp_path))) == ""
