"""The tags of the user's repository that a base reaches, for `git describe` in the agent's repository."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from chargehand.workspace.repository import Repository
from chargehand.workspace.tree.objects import ObjectWriter

_TAGS = b"refs/tags/"
_HEADER = b"# pack-refs with: peeled fully-peeled sorted \n"
_TAGGED = re.compile(rb"object ([0-9a-f]{40})\ntype tag\n")


class Tags(Struct, frozen=True):
    """Tags as git packs them: the content of `packed-refs`, and the tag objects by raw id."""

    packed_refs: bytes
    objects: dict[bytes, bytes]

    def write(self, git: Path) -> None:
        """Write the tags into a repository that holds the objects they point to."""
        if self.packed_refs:
            (git / "packed-refs").write_bytes(_HEADER + self.packed_refs)
        with ObjectWriter(git / "objects") as writer:
            for raw, content in self.objects.items():
                writer.add_as(raw, "tag", content)


def tags_key(found: Repository) -> str:
    """Return a key that changes with any tag of a repository, empty if it has no tags; starts no process."""
    state = hashlib.sha256()
    told = False
    tables = found.common_dir / "reftable/tables.list"
    if tables.exists():
        state.update(tables.read_bytes())
        told = True
    packed = found.common_dir / "packed-refs"
    if packed.exists():
        for line in packed.read_bytes().split(b"\n"):
            if b" " + _TAGS in line:
                state.update(line + b"\n")
                told = True
    for directory, _, names in sorted(os.walk(found.common_dir / "refs/tags")):
        for name in sorted(names):
            path = Path(directory, name)
            with suppress(FileNotFoundError):  # the user's git may be packing it right now
                state.update(os.fsencode(path) + b"\0" + path.read_bytes())
                told = True
    return state.hexdigest()[:16] if told else ""


def read_tags(found: Repository, commit: str, *, history: bool) -> Tags:
    """Return the tags of all that `commit` reaches; without `history` only those of the commit itself.

    A commit that the repository does not have reaches no tags.
    """
    reach = f"--merged={commit}" if history else f"--points-at={commit}"
    asked = found.git.run("for-each-ref", "--format=%(objectname) %(objecttype) %(refname)", reach, "refs/tags")
    listed = [line.split(b" ", 2) for line in asked.out.splitlines()] if asked.code == 0 else []
    objects: dict[bytes, bytes] = {}
    ids = [each for each, kind, _ in listed if kind == b"tag"]
    # A tag may point to another tag: one process for each level.
    while ids:
        answer = found.git.run("cat-file", "--batch", input=b"".join(each + b"\n" for each in ids)).out
        at = 0
        fresh = []
        for each in ids:
            end = answer.find(b"\n", at)
            words = answer[at:end].split(b" ")
            at = end + 1
            if len(words) != 3:  # missing
                continue
            content = answer[at : at + int(words[2])]
            at += len(content) + 1
            if words[1] == b"tag":
                objects[each] = content
                fresh += _TAGGED.findall(content[:60])
        ids = [each for each in fresh if each not in objects]
    lines = []
    for each, kind, name in sorted(listed, key=lambda line: line[2]):
        peeled = each
        while peeled in objects:
            peeled = objects[peeled][len("object ") :][:40]
        # A tag whose object cannot be read is left out, as if it did not exist.
        if kind == b"commit" or peeled != each:
            lines.append(b"%s %s\n" % (each, name) + (b"^%s\n" % peeled if peeled != each else b""))
    return Tags(b"".join(lines), {bytes.fromhex(each.decode()): content for each, content in objects.items()})
