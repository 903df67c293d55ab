"""Parses a shell line: every simple command in it, at any depth, and every redirected file."""

from __future__ import annotations

import functools
import itertools
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from chargehand.policy.actions import HOME
from chargehand.policy.shell.words import UNKNOWN, Values, Variables, node_text, to_grammar

if TYPE_CHECKING:
    from tree_sitter import Language, Node

# Longest line that is parsed, in characters.
LONGEST = 100_000
# Levels of the syntax tree that are walked: Python's stack allows a few hundred.
_DEEPEST = 150
_VARIANTS = 16
_FILTERS = frozenset({"sort", "uniq", "head", "tail", "grep", "egrep", "fgrep", "rg", "shuf", "tac", "cat", "tee"})
_ECHO_OPTIONS = ("-n", "-e", "-E", "-ne", "-en", "--")
_LISTING = ("--files-with-matches", "--files", "--files-without-match")


class Simple(Struct, frozen=True, kw_only=True):
    """A program with its words (`None`: unknown); `feed` is its input from a pipe or here-document.

    `feed` is `None` without input, and contains `None` for unknown input. `cwd` is `None` if the line changes to
    an unknown directory. `number` is its first line in the text.
    """

    argv: tuple[str | None, ...]
    cwd: str | None
    via: tuple[str, ...] = ()
    feed: tuple[str | None, ...] | None = None
    number: int = 1

    def directory_after(self) -> str | None:
        """Return the directory in which `cd`, `pushd` or `popd` leaves the shell, `None` if unknown."""
        words = [word for word in self.argv[1:] if word is None or not word.startswith("-") or word == "-"]
        if not words and self.argv[0] == "cd":
            return HOME
        target = words[0] if words else None
        if self.argv[0] == "popd" or target is None or target == "-" or target.startswith("+"):
            return None
        if target.startswith("~"):
            target = HOME + target[1:] if target[1:2] in ("", "/") else "/home"
        if target.startswith("/"):
            return posixpath.normpath(target)
        return None if self.cwd is None else posixpath.normpath(posixpath.join(self.cwd, target))

    def echoed(self) -> tuple[str | None, ...]:
        """Return the output of `echo` or `printf`, as far as known."""
        words = [word for word in self.argv[1:] if word not in _ECHO_OPTIONS]
        if any(word is None for word in words):
            return (None,)
        if posixpath.basename(self.argv[0] or "") == "echo":
            return (" ".join(word or "" for word in words),)
        shape, *rest = [word or "" for word in words] or [""]
        text = shape.replace("\\n", "\n").replace("\\t", "\t").replace("\\0", "\n")
        if "%" not in text:
            return (text,) if "\\" not in text else (None,)
        return tuple(rest) if set(text.split()) <= {"%s", "%s\n"} and rest else (None,)


class Redirect(Struct, frozen=True, kw_only=True):
    """A file that the shell itself opens; `path` is `None` if unknown."""

    path: str | None
    writes: bool
    cwd: str | None
    via: tuple[str, ...] = ()
    number: int = 1


class Parsed(Struct, frozen=True, kw_only=True):
    """The parsed effects of a line; `problem` gives the reason if it could not be parsed, else ""."""

    commands: tuple[Simple, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    functions: frozenset[str] = frozenset()
    recursive: bool = False
    problem: str = ""


@functools.cache
def _language() -> Language:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def parse(text: str, *, cwd: str | None, via: tuple[str, ...] = ()) -> Parsed:
    """Return the effects of a line, as far as bash's grammar shows them; never raises."""
    import tree_sitter

    if len(text) > LONGEST:
        return Parsed(problem=f"it has {len(text)} characters, more than {LONGEST}")
    if "\0" in text:
        return Parsed(problem="it has a NUL character")
    # bashlex refuses everyday bash that this grammar accepts: `case`, `[[`, quoted here-documents, arrays. A
    # parser for each line: attempts are judged in several threads, and two threads must not share a parser.
    tree = tree_sitter.Parser(_language()).parse(to_grammar(text))
    # Half a line is not judged: the part that the grammar could not read may be the one that matters.
    if tree.root_node.has_error:
        return Parsed(problem="it is incomplete, or not bash")
    level = [tree.root_node]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in node.named_children]
    if level:
        return Parsed(problem="it is nested too deeply")
    walk = _Walk(Variables(tree.root_node), cwd, via)
    walk.visit(tree.root_node)
    return Parsed(
        commands=tuple(walk.commands),
        redirects=tuple(walk.redirects),
        functions=frozenset(walk.functions),
        recursive=walk.recursive,
    )


class _Walk(Struct):
    """Walks a line in its order of execution; `inside` are the functions whose bodies are being walked."""

    variables: Variables
    cwd: str | None
    via: tuple[str, ...]
    commands: list[Simple] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    inside: list[str] = field(default_factory=list)
    recursive: bool = False

    def visit(self, node: Node, feed: tuple[str | None, ...] | None = None) -> None:
        before, via = self.cwd, self.via
        match node.type:
            case "command":
                self._visit_command(node, feed)
            case "declaration_command" | "unset_command":
                others = [child for child in node.named_children if child.type != "variable_assignment"]
                words = [word for child in others for word in self.variables.expand(child)]
                self._add([(node.children[0].type,), *words], None, node)
                self._children(node)
            case "pipeline":
                for child in node.named_children:
                    first = len(self.commands)
                    self.visit(child, feed)
                    feed = feed_of(self.commands[first:], feed)
                    self.cwd = before  # each part of a pipe runs in a separate shell
            case "redirected_statement":
                self._visit_redirected(node, feed)
            case "subshell" | "command_substitution" | "process_substitution":
                form = {"command_substitution": ("$()",), "process_substitution": ("<()",)}
                self.via = (*via, *form.get(node.type, ()))
                self._children(node, feed)
                self.cwd, self.via = before, via
            case "if_statement" | "case_statement" | "while_statement" | "for_statement" | "c_style_for_statement":
                self._children(node, feed)
                # The directory afterwards depends on the branch that ran.
                self.cwd = before if self.cwd == before else None
            case "function_definition":
                self._visit_function(node)
            case "file_redirect" | "herestring_redirect" | "heredoc_redirect":
                self._visit_redirect(node)
            case _:
                self._children(node, feed)

    def _children(self, node: Node, feed: tuple[str | None, ...] | None = None) -> None:
        for child in node.named_children:
            self.visit(child, feed)

    def _visit_function(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        before = self.cwd
        self.inside.append(node_text(name) if name is not None else "")
        self.functions.add(self.inside[-1])
        body = node.child_by_field_name("body")
        # The body is judged here, where it is defined, called or not; a call of it is not judged again.
        for child in (*([body] if body is not None else []), *node.children_by_field_name("redirect")):
            self.visit(child)
        self.inside.pop()
        self.cwd = before

    def _visit_redirected(self, node: Node, feed: tuple[str | None, ...] | None) -> None:
        body = node.child_by_field_name("body")
        redirects = node.children_by_field_name("redirect")
        given = [text for redirect in redirects for text in self._fed_in(redirect)]
        feed = tuple(given) if given else feed
        more = [word for redirect in redirects for word in self._stray_words(redirect)]
        first = len(self.commands)
        # The grammar assigns words after a redirection to it (`git > log push`): give them back to the command.
        if body is not None and body.type == "command":
            self._visit_command(body, feed, more)
        elif body is not None:
            self.visit(body, feed)
        for redirect in redirects:
            self._visit_redirect(redirect, feed_of(self.commands[first:], feed))

    def _fed_in(self, redirect: Node) -> list[str | None]:
        """Return the input from a here-document or here-string."""
        if redirect.type == "herestring_redirect":
            words = [word for child in redirect.named_children for word in self.variables.expand(child)]
            return [value for word in words for value in (word or (None,))]
        if redirect.type == "file_redirect":
            return [None] if any(child.type == "<" for child in redirect.children) else []
        if redirect.type != "heredoc_redirect":
            return []
        body = next((child for child in redirect.named_children if child.type == "heredoc_body"), None)
        if body is None:
            return [""]
        start = next((node_text(child) for child in redirect.named_children if child.type == "heredoc_start"), "")
        # After a quoted word the text is literal; after a plain one bash expands it first.
        quoted = start[:1] in ("'", '"', "\\")
        live = any(child.type != "heredoc_content" for child in body.named_children)
        return [None] if live and not quoted else [node_text(body)]

    def _stray_words(self, redirect: Node) -> list[Values]:
        """Return the words after a redirection that belong to the command itself."""
        found = redirect.children_by_field_name("argument")
        if redirect.type == "file_redirect":
            found = redirect.children_by_field_name("destination")[1:]
        stray = [word for child in found for word in self.variables.expand(child)]
        nested = [
            word for child in redirect.children_by_field_name("redirect") for word in self._stray_words(child)
        ]
        return [*stray, *nested]

    def _visit_redirect(self, node: Node, feed: tuple[str | None, ...] | None = None) -> None:
        if node.type == "file_redirect":
            operator = next((child.type for child in node.children if not child.is_named), ">")
            for target in node.children_by_field_name("destination")[:1]:
                text, words = node_text(target), self.variables.expand(target)
                if (operator in (">&", "<&") and text.rstrip("-").isdigit()) or text == "-":
                    continue  # another descriptor, not a file
                writes, number = ">" in operator, target.start_point[0] + 1
                for value in words[0] or (None,) if len(words) == 1 else (None,):
                    self.redirects.append(
                        Redirect(path=value, writes=writes, cwd=self.cwd, via=self.via, number=number)
                    )
        if node.type != "heredoc_redirect":
            self._children(node)
            return
        for child in node.named_children:
            # `cat <<E | sh`: the rest of the line is below the here-document
            self.visit(child, feed if child.type == "pipeline" else None)

    def _visit_command(self, node: Node, feed: tuple[str | None, ...] | None, more: Sequence[Values] = ()) -> None:
        words: list[Values] = []
        for child in node.named_children:
            if child.type == "command_name":
                words += [word for part in child.named_children for word in self.variables.expand(part)]
            elif child.type.endswith("_redirect"):
                self._visit_redirect(child)
                words += self._stray_words(child)
                feed = tuple(self._fed_in(child)) or feed
            elif child.type != "variable_assignment":
                words += self.variables.expand(child)
        for child in node.named_children:
            if not child.type.endswith("_redirect"):
                self._children(child) if child.type == "command_name" else self.visit(child)
        self._add([*words, *more], feed, node)

    def _add(self, words: Sequence[Values], feed: tuple[str | None, ...] | None, node: Node) -> None:
        if not words:
            return
        # Every combination is judged, so that `for x in a b; do rm $x` names both files. A product of many words
        # grows without end: if it is too large, a word of many values counts as unknown.
        known: list[tuple[str | None, ...]] = [word if word != UNKNOWN else (None,) for word in words]
        count = 1
        for index, word in enumerate(known):
            count *= len(word)
            if count > _VARIANTS:
                known[index] = (None,)
                count //= len(word)
        for argv in itertools.product(*known):
            number = node.start_point[0] + 1
            command = Simple(argv=argv, cwd=self.cwd, via=self.via, feed=feed, number=number)
            self.commands.append(command)
            self.recursive |= argv[0] is not None and argv[0] in self.inside
            if argv[0] in ("cd", "pushd", "popd"):
                self.cwd = command.directory_after()


def feed_of(commands: Sequence[Simple], feed: tuple[str | None, ...] | None) -> tuple[str | None, ...]:
    """Return the output of a part of a pipe, as far as known: lines of text, or names of files."""
    if len(commands) != 1:
        return (None,)
    argv = commands[0].argv
    program = posixpath.basename(argv[0] or "")
    words = argv[1:]
    plain = [word for word in words if word is None or not word.startswith("-")]
    if program in ("echo", "printf"):
        return commands[0].echoed()
    if program == "find":
        return tuple(None if root == "$" else f"{root}/*" for root in find_roots(words))
    # A pattern represents file names known only at run time: a rule then applies if it matches any of them.
    if program in ("ls", "fd", "fdfind"):
        return tuple(None if word is None else f"{word}/*" for word in plain) or ("*",)
    if program == "git" and words[:1] in (("ls-files",), ("diff",), ("status",)):
        return ("./*",)
    # With -l grep prints names of files, not their lines.
    short = [word for word in words if word and word.startswith("-") and not word.startswith("--")]
    lists = any(word in _LISTING for word in words) or any({"l", "L"} & set(word) for word in short)
    if program in ("grep", "rg", "egrep", "fgrep") and lists:
        return tuple(None if word is None else f"{word}/*" for word in plain[1:]) or ("*",)
    if program in _FILTERS and feed is not None and len(plain) <= ("grep" in program or program == "rg"):
        return feed
    return (None,)


def find_roots(words: Sequence[str | None]) -> tuple[str, ...]:
    """Return the directories at which `find` begins, an unknown one as "$"."""
    roots: list[str] = []
    for word in words:
        if word is not None and (word.startswith("-") or word in ("(", "!")):
            if word in ("-H", "-L", "-P"):
                continue
            break
        roots.append("$" if word is None else word)
    return tuple(roots) or (".",)
