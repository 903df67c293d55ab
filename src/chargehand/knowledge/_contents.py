"""Chooses the language of each file of a tree, and prepares its content for the parser."""

from __future__ import annotations

import codecs
import re
import stat
from pathlib import PurePosixPath

from chargehand.knowledge._languages import language_of, languages, text_files
from chargehand.knowledge._words import search_words
from chargehand.knowledge.records import ParsedFile

# Bytes of a source file; longer ones are generated, or data.
LONGEST_SOURCE = 1 << 20
_LONGEST_TEXT = 256 << 10
# A minified file: this long, and its lines are longer than people write.
_MINIFIED_BYTES, _MINIFIED_LINE = 20_000, 500
TEXT = "text"  # a file whose words can be searched, without a grammar
SCRIPT = "script"  # an executable file without a suffix: its first line names its language
_SHEBANG = re.compile(rb"#! *(?:\S*/env +(?:-\S+ +)*|\S*/)([A-Za-z+]+)")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def kind_of(path: str, mode: int) -> str:
    """Return the language of a file by its path, or `TEXT`, `SCRIPT`, or "" if only its path counts."""
    if (language := language_of(path)) is not None:
        return language
    place = PurePosixPath(path)
    if place.suffix.lower() in text_files().suffixes or place.name in text_files().names:
        return TEXT
    return SCRIPT if not place.suffix and mode & stat.S_IXUSR else ""


def script_language(content: bytes) -> str | None:
    """Return the language that a script's first line names, `None` if it is not in the table."""
    found = _SHEBANG.match(content[:200])
    name = "" if found is None else found[1].decode()
    return next((language for language, row in languages().items() if name in row.interpreters), None)


def reason_to_skip(content: bytes) -> str:
    """Return why a source file is not parsed, "" if it is."""
    if len(content) > LONGEST_SOURCE:
        return f"it is larger than {LONGEST_SOURCE >> 20} MiB"
    if b"\0" in content[:8000]:
        return "it is binary"
    if len(content) > _MINIFIED_BYTES and len(content) > _MINIFIED_LINE * (content.count(b"\n") + 1):
        return f"it is minified: its lines have more than {_MINIFIED_LINE} bytes on average"
    return ""


def to_utf8(content: bytes) -> bytes:
    """Return a source in UTF-8, if a byte order mark names its encoding; else as it is.

    Bytes of other encodings occur in comments and strings mostly: the grammars skip them there.
    """
    for mark, encoding in _BOMS:
        if content.startswith(mark):
            return content.decode(encoding, "replace").encode()
    return content


def parse_text(content: bytes) -> ParsedFile:
    """Return the words of a file without a grammar."""
    if len(content) > _LONGEST_TEXT or b"\0" in content[:8000]:
        return ParsedFile()
    return ParsedFile(words=" ".join(search_words(content.decode("utf-8", "replace"))))
