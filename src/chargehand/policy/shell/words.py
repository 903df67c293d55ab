"""Words of a shell line: the possible values of each, as far as the line itself shows."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from chargehand.core.text import late_pattern
from chargehand.policy.actions import HOME

if TYPE_CHECKING:
    from tree_sitter import Node

# All texts that a word may be; empty: unknown.
Values = tuple[str, ...]
UNKNOWN: Values = ()
# Most texts that one word may be: `{a,b}{a,b}{a,b}…` grows without end, and more count as unknown.
_MOST = 16
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}
_ANSI = late_pattern(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|[0-7]{1,3}|.)", re.DOTALL)
_IN_QUOTES = late_pattern(r"\\([\\\"$`\n])")
_BARE = late_pattern(r"\\(.)", re.DOTALL)
_BRACES = late_pattern(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_OPAQUE_BRACE = late_pattern(r"(?<![$\\])\{[^}]*(?:,|\.\.)")
_READERS = frozenset({"read", "mapfile", "readarray", "getopts"})
_LITERAL = frozenset(
    {"word", "number", "test_operator", "extglob_pattern", "regex", "variable_name", "file_descriptor"}
)


def to_grammar(text: str) -> bytes:
    """Return text encoded for the grammar: each byte that is not ASCII as two letters of Latin-1.

    The grammar's scanner looks characters up in a table of 256 without a check, so that a higher one crashes the
    process. To a shell all characters outside ASCII are the same: a part of a word.
    """
    if text.isascii():
        return text.encode()
    data = text.encode("utf-8", "surrogatepass")
    return "".join(chr(b) if b < 0x80 else chr(0xC0 | b >> 4) + chr(0xC0 | b & 15) for b in data).encode()


def from_grammar(data: bytes) -> str:
    """Return the text that `to_grammar` encoded."""
    if data.isascii():
        return data.decode()
    letters = iter(data.decode())
    pieces = bytearray()
    for letter in letters:
        high = ord(letter)
        pieces.append(high if high < 0x80 else (high & 15) << 4 | ord(next(letters)) & 15)
    return pieces.decode("utf-8", "surrogatepass")


def node_text(node: Node) -> str:
    """Return the text of a node."""
    return from_grammar(node.text or b"")


class Variables:
    """The variables that a line sets; a variable set to an unknown value is unknown."""

    def __init__(self, root: Node) -> None:
        self._set: dict[str, list[Node | None]] = {}
        self._busy: set[str] = set()
        waiting = [root]
        while waiting:
            node = waiting.pop()
            waiting += node.named_children
            match node.type:
                case "variable_assignment":
                    target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
                    if target is None:
                        continue
                    plain = target.type == "variable_name" and all(child.type != "+=" for child in node.children)
                    if plain and value is None:
                        # X= is empty: it adds nothing that a rule would match.
                        self._set.setdefault(node_text(target), [])
                        continue
                    known = plain and value is not None and value.type != "array"
                    self._set.setdefault(node_text(target).partition("[")[0], []).append(value if known else None)
                case "for_statement" | "select_statement":
                    name = node.child_by_field_name("variable")
                    if name is not None:
                        values = node.children_by_field_name("value")
                        self._set.setdefault(node_text(name), []).extend(values or [None])
                case "command" | "declaration_command":
                    words = [node_text(child) for child in node.named_children]
                    # The values that these read, or print into a variable, are known only at run time.
                    if words and (words[0] in _READERS or (words[0] == "printf" and "-v" in words)):
                        for word in words[1:]:
                            self._set.setdefault(word, []).append(None)

    def values(self, name: str) -> Values:
        """Return the possible values of `$name`, before it is split into words."""
        if name == "HOME" and name not in self._set:
            return (HOME,)
        # `X=$X:a` refers to itself; values from outside the line are not known either.
        if name in self._busy or name not in self._set:
            return UNKNOWN
        self._busy.add(name)
        try:
            found = []
            for node in self._set[name]:
                words = [UNKNOWN] if node is None else self.expand(node)
                found.append(words[0] if len(words) == 1 else UNKNOWN)
        finally:
            self._busy.discard(name)
        values = tuple(dict.fromkeys(itertools.chain(*found)))
        return values if all(found) and len(values) <= _MOST else UNKNOWN

    @property
    def splits_as_usual(self) -> bool:
        """Whether words are split at blanks."""
        return "IFS" not in self._set

    def expand(self, node: Node) -> list[Values]:
        """Return the words that a node becomes, each with all its possible values."""
        text = node_text(node)
        if node.type in ("word", "concatenation", "brace_expression") and _OPAQUE_BRACE.search(text):
            braced = _expand_braces(text)
            return [(word,) for word in braced] if braced is not None else [UNKNOWN]
        values = self._values_of(node)
        if node.type not in ("simple_expansion", "expansion"):
            return [values]
        # bash splits the value of an unquoted variable into words.
        if not any(re.search(r"\s", value) for value in values):
            return [values] if self.splits_as_usual else [UNKNOWN]
        if len(values) > 1 or not self.splits_as_usual:
            return [UNKNOWN]
        return [(word,) for word in values[0].split()]

    def _values_of(self, node: Node) -> Values:
        text = node_text(node)
        match node.type:
            case kind if kind in _LITERAL:
                return (_BARE.sub(lambda found: "" if found[1] == "\n" else found[1], text),)
            case "raw_string":
                return (text[1:-1],)
            case "ansi_c_string":
                return ansi(text[2:-1])
            case "translated_string":
                return self._values_of(node.named_children[0]) if node.named_children else ("",)
            case "string" | "concatenation" | "command_name":
                return self._join_parts(node, quoted=node.type == "string")
            case "simple_expansion" | "expansion":
                names = node.named_children
                plain = len(names) == 1 and names[0].type == "variable_name" and len(node.children) <= 3
                if plain and re.fullmatch(r"\$(\w+|\{\w+\})", text):
                    return self.values(node_text(names[0]))
            case "process_substitution":
                return ("/dev/fd/63",)
            case "command_substitution":
                # The output of a few well-known commands; that of others is unknown.
                inner = text[2:-1] if text.startswith("$(") else text[1:-1]
                words = inner.split()
                makes = words[:1] == ["mktemp"] and not re.search(r"[;&|<>$`]", inner) and "-p" not in words
                tells = words in (["pwd"], ["git", "rev-parse", "--show-toplevel"])
                return ("/tmp/mktemp",) if makes else ("./.",) if tells else UNKNOWN
        return UNKNOWN

    def _join_parts(self, node: Node, *, quoted: bool) -> Values:
        """Return the possible values of a word from its parts; anything between the parts is text."""
        data = node.text or b""
        parts: list[Values] = []
        at = node.start_byte
        for child in node.named_children:
            parts.append(_between(data[at - node.start_byte : child.start_byte - node.start_byte], quoted))
            at = child.end_byte
            if child.type == "string_content":
                text = _IN_QUOTES.sub(lambda found: "" if found[1] == "\n" else found[1], node_text(child))
                parts.append((text,))
                continue
            values = self._values_of(child)
            # bash would split an unquoted variable's value into words; inside a word they are not separated.
            divided = child.type in ("simple_expansion", "expansion") and not quoted
            splits = not self.splits_as_usual or any(re.search(r"\s", value) for value in values)
            parts.append(UNKNOWN if divided and splits else values)
        parts.append(_between(data[at - node.start_byte :], quoted))
        found = [""]
        for part in parts:
            if not part or len(found) * len(part) > _MOST:
                return UNKNOWN
            found = [before + after for before in found for after in part]
        return tuple(found)


def _between(data: bytes, quoted: bool) -> Values:
    text = from_grammar(data)
    return (text.replace('"', ""),) if quoted else (_BARE.sub(r"\1", text.replace("\\\n", "")),)


def ansi(text: str) -> Values:
    """Return the value of `$'text'`, `UNKNOWN` if it has an unsupported escape."""

    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xuU" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        return _ESCAPES.get(code, code)

    try:
        return (_ANSI.sub(one, text),) if r"\c" not in text else UNKNOWN
    except (ValueError, OverflowError):
        return UNKNOWN


def _expand_braces(text: str) -> list[str] | None:
    """Return the words of a brace expansion without quotes and variables, `None` for any other."""
    if re.search(r"[\"'$`\\]", text):
        return None
    done: list[str] = []
    todo = [text]
    while todo:
        word = todo.pop(0)
        found = _BRACES.search(word)
        if found is None:
            done.append(word)
            continue
        first, _, last = found[1].partition("..")
        if "," in found[1]:
            parts = found[1].split(",")
        elif first.isdigit() and last.isdigit() and abs(int(last) - int(first)) < _MOST:
            low, high = sorted((int(first), int(last)))
            parts = [str(number) for number in range(low, high + 1)]
        else:
            parts = [first, last]  # a long range: only its two ends are judged
        todo += [word[: found.start()] + part + word[found.end() :] for part in parts]
        if len(todo) + len(done) > _MOST * 4:
            return None
    return done
