"""The skills of a repository: the purpose of each, from the front matter of its SKILL.md; the rest is read later.

All of it is the repository's text, and is shown to a model as such.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from chargehand.core.text import printable, shown_path
from chargehand.sandbox.contract import Sandbox

# Directories whose subdirectories are skills; of two with one name the first is listed.
PLACES = (".chargehand/skills", ".claude/skills")
_MOST = 50
_HEAD_BYTES = 4_000
_LONGEST = 400
# NUL between the fields, and removed inside them: a file name or a header cannot forge another skill.
_LIST = """
for place in "$@"; do
  for file in "$place"/*/SKILL.md; do
    [ -f "$file" ] && printf '%s\\0' "$file" && head -c 4000 -- "$file" | tr -d '\\000' && printf '\\0'
  done
done
"""
_KEY = re.compile(r"(name|description):[ \t]*(.*)")


class Skill(Struct, frozen=True, kw_only=True):
    """One skill: its file, relative to the start directory of commands, its name and its purpose."""

    path: str
    name: str
    description: str


async def find_skills(sandbox: Sandbox, ups: Sequence[str] = ("",)) -> tuple[Skill, ...]:
    """Return the skills in directories of a workspace, at most 50; a file without a description does not count.

    `ups` lead to the directories, as `../` does to the parent.
    """
    limit, places = _MOST * (_HEAD_BYTES + 500), (up + place for up in reversed(ups) for place in PLACES)
    result = await sandbox.exec(["/bin/sh", "-c", _LIST, "sh", *places], output_limit=limit)
    fields = result.stdout.decode("utf-8", "replace").split("\0")
    found: dict[str, Skill] = {}
    for path, head in zip(fields[::2], fields[1::2], strict=False):
        skill = parse_skill(path, head)
        if skill is not None and len(found) < _MOST:
            found.setdefault(skill.name, skill)
    return tuple(found.values())


def parse_skill(path: str, head: str) -> Skill | None:
    """Parse the beginning of a skill file; return `None` without front matter that has a description.

    Only the parts of YAML that such headers use: plain and quoted values, and indented continuation lines.
    """
    lines = head.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---" or "---" not in (line.rstrip() for line in lines[1:]):
        return None
    said: dict[str, str] = {}
    key = ""
    for line in lines[1:]:
        if line.rstrip() == "---":
            break
        # Two of YAML's many keys, read by hand: a parser would have to handle a hostile file.
        if found := _KEY.fullmatch(line):
            key = found[1]
            said[key] = "" if found[2].strip() in ("|", ">", "|-", ">-") else found[2]
        elif line[:1] in (" ", "\t") and key:
            said[key] += f" {line}"
        elif line.strip():
            key = ""
    name = _clean(said.get("name", "")) or path.split("/")[-2]
    description = _clean(said.get("description", ""))
    return Skill(path=path, name=name, description=description) if description else None


def _clean(value: str) -> str:
    text = " ".join(printable(value).split())
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text[:_LONGEST]


def skill_list(skills: tuple[Skill, ...]) -> str:
    """Return the list of skills for a model, one line each."""
    return "\n".join(f"- {skill.name}: {skill.description} (read {shown_path(skill.path)})" for skill in skills)
