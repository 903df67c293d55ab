"""The programs that checks run, found by following the text of the base tree from their commands.

A word that may name a file counts, whether or not the file exists: an agent could create a file that a script
looks for and does not find. Imports of a program are followed only if it is a separate tool, not the project's
code.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

from msgspec import Struct

from chargehand.checks.paths import is_test_file, is_test_path
from chargehand.checks.surface.analysers import is_driver, leave_out_subjects
from chargehand.checks.surface.coverage import CoverageScope, read_coverage_scope
from chargehand.checks.surface.makefile import MAKEFILES, reached_part
from chargehand.checks.surface.parts import parse_object
from chargehand.checks.trees import TreeReader, text_of
from chargehand.core.text import late_pattern

# Bounds of the search: far more than a project's checks consist of.
_MOST_FILES = 300
_MOST_TEXT = 200_000
_MOUNTED = "/workspace/"
_SEPARATORS = late_pattern(r"""[\s;&|<>()\[\]{}"'`=,!]+""")
# A program of the project whose output a check compares, as in "test `./add 2 1` = 3", is the subject of the test.
_SUBJECT = late_pattern(r"`\s*\./[\w/-]+(?=[\s`])[^`\n]*`|\$\$?\(\s*\./[\w/-]+(?=[\s)])[^()\n]*\)")
# A command that an outside check runs in the sandbox of the tree.
_UNDER_TEST = late_pattern(r"\bunder-test\s[^\n;&|`)<>]*")
_COMMENT = late_pattern(r"(?:^|(?<=\s))#.*")
_VARIABLE = late_pattern(r"\$\w*|%~dp0|%\w+%")
_COMPUTED = late_pattern(r"\$\w+")
_COMPUTED_NAME = late_pattern(r"[\w./@$-]*\$\w+[\w.-]*\.(?:sh|bash|zsh|py|js|mjs|cjs|rb|pl)")
_ENTERED = late_pattern(
    r"(?:\b(?:cd|pushd)|\s(?:-C|--prefix|--cwd|--directory|--rootdir|-w|--workspace))[\s=]+[\"']?([\w./@-]+)"
)
_MODULE = late_pattern(r"(?:(?:^|\s)(?:-m|-p|--plugin)[\s=]*|PYTEST_PLUGINS=)([A-Za-z_][\w.]*)")
_LISTED = late_pattern(r"\bfor\s+\w+\s+in\s+([^;\n]+)|(?:^|[;&|\s])(?:\.|source|run-parts)\s+([^;&|\n]+)")
_SHELL = late_pattern(r".*\.(?:sh|bash|zsh|ksh|command|bats|ps1|bat|cmd)")
_PROGRAM = late_pattern(
    r"[\w./@+-]*\.(?:sh|bash|zsh|ksh|bats|py|js|mjs|cjs|jsx|ts|mts|cts|rb|pl|php|lua|mk|ps1|bat|cmd|awk|sed|jq|tcl|exp|fish)"
)
# A compiler's input is the code under test, unless its name says that it is the test.
_COMPILED = late_pattern(
    r"(?!.*(?:test|spec|check)).*\.(?:c|h|cc|cpp|cxx|hpp|hh|m|mm|s|go|rs|java|kt|scala|swift|zig|cs|hs|ml|f90|pas|d)"
)
_QUOTED = late_pattern(r"""["'`]([^"'`\n]+)["'`]""")
# Keys of JavaScript runners' settings that name files loaded before or in place of tests.
_LOADED = late_pattern(
    r"(?:setup\w*|global\w+|\w*[rR]unner|\w*[eE]nvironment|resolver|transform|\w*[rR]eporters?|snapshot\w+|\w*[sS]equencer"
    r"|require|import|preload|loader|file|spec|plugins?|extends|presets?|watchPlugins|moduleNameMapper|alias|projects)[\"']?\s*[:=]\s*"
    r"(\[[^\]]*\]|\{[^}]*\}|[\"'][^\"'\n]*[\"'])"
)
_SCRIPT_IMPORT = late_pattern(
    r"""(?:require\(|import\(|from\s|import\s)\s*["'](\.[\w./@+-]*)["']|^\s*(?:from|import)\s+(\.*[\w.]+)""",
    re.MULTILINE,
)
_SIBLINGS = late_pattern(r"^\s*from\s+\.+\s+import\s+([\w, ]+)", re.MULTILINE)
_DATA = late_pattern(r"[\w./@+-]+/[\w.@+-]+\.(?:json|ya?ml|toml|ini|cfg|conf|txt|xml|env)")
_LINK = 0o120000
_PLUGINS = late_pattern(r"pytest_plugins\s*=\s*([^\n]*(?:\n\s+[^\n]*)*)")
_JS_ENDS = ("", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".json", "/index.js", "/index.ts")
_NODE_CLIENT = late_pattern(
    r"\b(?:npm|pnpm|yarn|bun|npx|node|run-s|run-p|npm-run-all|concurrently|wireit|lerna|nx|turbo)\b"
)
_MAKE_VARIABLE = late_pattern(r"\$[({][^)}]*[)}]|\$\w")
_INCLUDED = late_pattern(r"^ *(?:-include|s?include)\s+([^#\n]+)", re.MULTILINE)
_MAKE = late_pattern(r"\bg?make\b|\$[({]MAKE[)}]")
_NPM_ALIASES = {"t": "test", "tst": "test", "it": "test", "cit": "test", "install-test": "test"}
# Settings that a program reads at its start, if these name further programs.
_READ_BY: Mapping[str, tuple[str, ...]] = {
    "tox": ("tox.ini", "tox.toml", "setup.cfg", "pyproject.toml"),
    "nox": ("noxfile.py",),
    "pytest": (
        *("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
        *("conftest.py", "tests/conftest.py", "test/conftest.py"),
    ),
    "poe": ("pyproject.toml",),
    "task": ("pyproject.toml", "Taskfile.yml", "Taskfile.yaml"),
    "hatch": ("pyproject.toml", "hatch.toml"),
    "pdm": ("pyproject.toml",),
    "invoke": ("tasks.py",),
    "inv": ("tasks.py",),
    "just": ("justfile", "Justfile", ".justfile"),
    "rake": ("Rakefile", "rakefile", "Rakefile.rb", "rakefile.rb"),
    "rspec": (".rspec",),
    "composer": ("composer.json",),
    "phpunit": ("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml"),
    "jest": tuple(f"jest.config.{end}" for end in ("js", "ts", "mjs", "cjs", "json")),
    "vitest": tuple(f"{name}.config.{end}" for name in ("vitest", "vite") for end in ("js", "ts", "mjs", "mts")),
    "mocha": tuple(f".mocharc{end}" for end in (".js", ".cjs", ".yaml", ".yml", ".json", ".jsonc", "")),
    "ava": ("ava.config.js", "ava.config.mjs", "ava.config.cjs"),
    "karma": ("karma.conf.js", "karma.conf.ts"),
    "playwright": ("playwright.config.js", "playwright.config.ts"),
    "bun": ("bunfig.toml",),
    "deno": ("deno.json", "deno.jsonc"),
    "cargo": (".cargo/config.toml", ".cargo/config"),
}
# Tables in pyproject.toml where programs keep their tasks.
_TASK_TABLES = {"tox": ("tox",), "poe": ("poe",), "task": ("taskipy",), "invoke": ("invoke",), "pdm": ("pdm",)}
_IMPORTED_AS_CODE = frozenset({"src", "lib", "app", "packages", "python"})


class Programs(Struct, frozen=True, kw_only=True):
    """The programs that a base's checks run: `paths` are files that their text names, `patterns` match more.

    `words` are all words of that text. `directories` are those that checks enter or import from. `made` are
    targets that make would look for and not find: a file of that name would keep it from running their recipes.
    `backends` contain code that builds the project. `coverage` is the scope of coverage, if a check starts it.
    """

    paths: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()
    directories: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    backends: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    coverage: CoverageScope = CoverageScope()

    def digest(self) -> str:
        """Return a digest of all fields."""
        parts = [sorted(each) for each in self._sets()]
        text = json.dumps([*parts, [each.pattern for each in self.patterns]])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _sets(self) -> tuple[frozenset[str], ...]:
        return self.paths, self.directories, self.made, self.backends, self.words

    def reason(self, path: str) -> str | None:
        """Return why a file at this path is, or would be, part of the checks' programs."""
        if (
            path in self.paths
            and not is_test_file(path)
            and not _COMPILED.fullmatch(posixpath.basename(path).lower())
        ):
            return "a check command names it, or a program that one runs does"
        if any(pattern.fullmatch(path) for pattern in self.patterns) and not is_test_path(path):
            return "a program that a check runs takes in all files with such names"
        folders = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        if any(folder in self.backends for folder in folders):
            return "it belongs to the build backend, which installs the project"
        if not self.made.isdisjoint((path, *folders)):
            return "make would take it for the result of a target and not run the target"
        return None

    def is_judged_code(self, path: str) -> bool:
        """Return whether a check starts a file that is code to be judged: `python3 calc.py --self-test`."""
        return path in self.paths and self.reason(path) is not None and not is_driver(path)


def find_programs(commands: Sequence[str], reader: TreeReader, tree: str, directory: str = "") -> Programs:
    """Return the programs that the commands run in a `directory` of `tree`. Raises the errors of `reader`."""
    search = _ProgramSearch(reader, tree, directory)
    for command in commands:
        search.take_words(command, directory)
    search.follow()
    return Programs(
        paths=frozenset(search.paths),
        patterns=tuple(re.compile(translate(pattern)) for pattern in sorted(search.patterns)),
        directories=frozenset(search.directories),
        made=frozenset(search.made),
        backends=frozenset(search.backends()),
        words=search.words(),
        coverage=search.coverage(),
    )


def find_outside_programs(commands: Sequence[str], reader: TreeReader, tree: str, directory: str = "") -> Programs:
    """Return the programs that outside checks name themselves, and all files in the same directories.

    They run on the base's files, and any files they name belong to the tree under test: nothing is followed.
    """
    search = _ProgramSearch(reader, tree, directory)
    for command in commands:
        search.take_words(_UNDER_TEST.sub(" ", command), directory)
    beside = {posixpath.dirname(path) for path in search.paths} - {"", directory, posixpath.dirname(directory)}
    return Programs(
        paths=frozenset(search.paths),
        patterns=tuple(re.compile(translate(f"{place}/*")) for place in sorted(beside)),
    )


@dataclass(slots=True)
class _ProgramSearch:
    """Follows the text of commands, scripts and settings; each file is read once."""

    reader: TreeReader
    tree: str
    start: str
    paths: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    directories: set[str] = field(init=False)
    made: set[str] = field(default_factory=set)
    _texts: list[str] = field(default_factory=list)
    _waiting: list[str] = field(default_factory=list)
    _read: set[str] = field(default_factory=set)
    _known: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directories = {self.start} - {""}

    def follow(self) -> None:
        """Read named files until there are no new ones."""
        followed = 0
        while followed < len(self._texts) or self._waiting:
            if self._waiting:
                self._take_file(self._waiting.pop())
                continue
            # Settings and task files are read for the text of all commands together.
            followed = len(self._texts)
            said = "\n".join(self._texts)
            words = set(re.findall(r"[\w.-]+", said))
            for place in ("", *sorted(self.directories)):
                if _NODE_CLIENT.search(said):
                    self._take_scripts(place, words)
                if _MAKE.search(said):
                    self._take_makefile(place, said)
                for program, files in _READ_BY.items():
                    if program in words or (program == "pytest" and "tox" in words):
                        for name in files:
                            self._take_settings(posixpath.join(place, name), program)

    def take_words(self, text: str, directory: str) -> None:
        """Collect the files named in a command line or in a shell script in `directory`."""
        text = _COMMENT.sub("", text) if "\n" in text else text
        self._texts.append(text)
        text = leave_out_subjects(text)
        entered = {self._place(name, directory) for name in _ENTERED.findall(text)}
        entered |= {self._place(name, base) for name in _ENTERED.findall(text) for base in ("", self.start)}
        self.directories |= entered
        bases = {"", self.start, directory, posixpath.dirname(directory), *entered}
        for word in _SEPARATORS.split(_SUBJECT.sub(" ", text)):
            for piece in {word, *word.split(":")}:
                self._name(piece, bases)
        # `tools/$name.sh` may be any of the scripts there.
        computed = {_COMPUTED.sub("*", word) for word in _SEPARATORS.split(text) if _COMPUTED_NAME.fullmatch(word)}
        self.patterns |= {self._place(word.removeprefix("*/"), base) for word in computed for base in bases}
        for module in _MODULE.findall(text):
            self._name_module(module, bases)
        for listed in _LISTED.findall(text):
            globs = [word for each in listed for word in each.split() if set("*?[") & set(word)]
            self.patterns |= {self._place(_without_variables(word), base) for word in globs for base in bases}
        for place in re.findall(r"\brun-parts\s+([\w./-]+)", text):
            self.patterns |= {f"{self._place(place, base)}/*" for base in bases}
        for value in re.findall(r"PYTHONPATH\s*=\s*[\"']?([\w./:$-]+)", text):
            self.directories |= {
                self._place(_without_variables(each), base)
                for each in value.split(":")
                for base in ("", self.start)
                if each
            }

    def words(self) -> frozenset[str]:
        """Return all words of the followed texts, in lower case."""
        return frozenset(re.findall(r"[a-z0-9]+", "\n".join(self._all_texts()).lower()))

    def _all_texts(self) -> list[str]:
        return [*self._texts, *(self._known.get(path) or "" for path in self._read)]

    def coverage(self) -> CoverageScope:
        """Return the scope of coverage if one of the programs starts it."""
        return read_coverage_scope(self._all_texts(), self._text, self.start)

    def backends(self) -> Iterator[str]:
        """Yield the directories of build backends within the tree."""
        system = self._toml(posixpath.join(self.start, "pyproject.toml")).get("build-system")
        paths = system.get("backend-path") if isinstance(system, dict) else None
        for each in paths if isinstance(paths, list) else ():
            if isinstance(each, str) and (place := self._place(each, self.start)):
                yield place

    def _place(self, word: str, directory: str) -> str:
        """Return a word as a path of the tree, or ""."""
        path = posixpath.normpath(posixpath.join(directory, word.removeprefix(_MOUNTED)))
        return "" if path in (".", "/") or path.startswith(("../", "/")) else path

    def _name(self, word: str, bases: Iterable[str], *, ends: Sequence[str] = ("",)) -> None:
        plain = _without_variables(word)
        # An absolute path names nothing in the tree, unless a variable preceded it.
        if plain != word or (word.startswith("/") and not word.startswith(_MOUNTED)):
            plain = plain.lstrip("/")
        if not plain or len(plain) > 300 or plain.startswith("-"):
            return
        ends = _JS_ENDS if plain.startswith(("./", "../")) else ends
        for base in bases:
            for end in ends:
                if (path := self._place(plain + end, base)) and path not in self.paths:
                    self.paths.add(path)
                    self._waiting.append(path)

    def _name_module(self, module: str, bases: Iterable[str]) -> None:
        path = module.replace(".", "/")
        roots = {*bases, *(posixpath.join(self.start, name) for name in ("src", "lib", "python"))}
        self._name(path, roots, ends=(".py", "/__main__.py", "/__init__.py"))

    def _text(self, path: str) -> str | None:
        if path not in self._known:
            entry = self.reader.lookup(self.tree, path)
            self._known[path] = None if entry is None else text_of(self.reader, *entry)
            if entry is not None and entry[0] == _LINK:
                target = self.reader.read_blob(entry[1], limit=4096).decode("utf-8", "replace")
                self._name(target, {posixpath.dirname(path)})
        return self._known[path]

    def _toml(self, path: str) -> dict[str, Any]:
        try:
            return tomllib.loads(self._text(path) or "")
        except (ValueError, RecursionError):
            return {}

    def _take_file(self, path: str) -> None:
        if path in self._read or len(self._read) > _MOST_FILES:
            return
        text = self._text(path)
        if text is None or len(text) > _MOST_TEXT:
            return
        self._read.add(path)
        directory, name = posixpath.split(path)
        if _SHELL.fullmatch(name) or ("." not in name and re.match(r"#!.*\b\w*sh\b", text)):
            self.take_words(text, directory)
        elif (
            name not in MAKEFILES and not is_test_file(path) and _IMPORTED_AS_CODE.isdisjoint(path.split("/")[:-1])
        ):
            self._take_program(path, text)

    def _take_program(self, path: str, text: str) -> None:
        """Collect the programs named in a program of another language, and its own modules."""
        directory = posixpath.dirname(path)
        bases = {"", directory}
        for quoted in _QUOTED.findall(text):
            for word in _SEPARATORS.split(quoted):
                if _PROGRAM.fullmatch(word) or _DATA.fullmatch(word):
                    self._name(word, bases)
        if not directory:  # files next to it are the project's own code
            return
        self.directories.add(directory)
        for names in _SIBLINGS.findall(text):
            for name in re.findall(r"\w+", names):
                self._name(name, {directory}, ends=(".py", "/__init__.py"))
        for script, module in _SCRIPT_IMPORT.findall(text):
            if script:
                within = self._place(script, directory)
                bases = {directory} if within.startswith(f"{directory}/") else set()
                self._name(script, bases)
            else:
                name = module.lstrip(".").replace(".", "/")
                self._name(name, {directory}, ends=(".py", "/__init__.py"))

    def _take_scripts(self, place: str, words: set[str]) -> None:
        path = posixpath.join(place, "package.json")
        try:
            document = parse_object(self._text(path) or "")
        except (ValueError, RecursionError):
            return
        workspaces = document.get("workspaces")
        listed = workspaces.get("packages") if isinstance(workspaces, dict) else workspaces
        members = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
        key = f"{place}/workspaces"
        # The scripts of the root may run the same script in each member.
        if members and key not in self._read:
            self._read.add(key)
            wanted = [
                re.compile(translate(posixpath.join(place, name.removeprefix("./").rstrip("/"))))
                for name in members
            ]
            for entry, _, _ in self.reader.entries(self.tree):
                directory, name = posixpath.split(entry)
                if name == "package.json" and any(pattern.fullmatch(directory) for pattern in wanted):
                    self.directories.add(directory)
        scripts = document.get("scripts")
        scripts = scripts if isinstance(scripts, dict) else {}
        named = words | {_NPM_ALIASES[word] for word in words & set(_NPM_ALIASES)}
        for name, command in scripts.items():
            main = name.removeprefix("pre").removeprefix("post")
            # A word such as `test:*` matches every script with that prefix.
            begins = name.partition(":")[0] in named
            if isinstance(command, str) and (name in named or main in named or begins):
                self._take_once(f"{path}#{name}", command, place)
        settings = {
            key: document[key] for key in ("jest", "mocha", "ava", "nyc", "c8", "vitest", "tap") if key in document
        }
        if settings and path not in self._read:
            self._read.add(path)
            self._take_loaded(json.dumps(settings), place)

    def _take_makefile(self, place: str, said: str) -> None:
        for name in MAKEFILES:
            text = self._text(posixpath.join(place, name))
            if text is None:
                continue
            self._take_included(text, place)
            part = reached_part(text, said.split("\n"))
            for line in part.recipes:
                self._take_once(f"{place}/{name}#{line}", line, place)
            for target in part.files:
                path = self._place(target, place)
                if path and self.reader.lookup(self.tree, path) is None:
                    self.made.add(path)

    def _take_included(self, text: str, place: str) -> None:
        """Follow the files that a Makefile includes, at any depth: they set its variables and recipes."""
        waiting = [text]
        while waiting and len(self._read) < _MOST_FILES:
            for names in _INCLUDED.findall(waiting.pop()):
                for word in names.split():
                    plain = self._place(_MAKE_VARIABLE.sub("", word).lstrip("/"), place)
                    if set("*?[%") & set(plain):
                        self.patterns.add(plain)
                    elif plain and plain not in self._read:
                        self._read.add(plain)
                        self.paths.add(plain)
                        waiting.append(self._text(plain) or "")

    def _take_once(self, key: str, text: str, place: str) -> None:
        if key not in self._read and len(self._read) < 20 * _MOST_FILES:
            self._read.add(key)
            self.take_words(text, place)

    def _take_settings(self, path: str, program: str) -> None:
        """Collect the programs that a settings file names for a program that reads it, and nothing else."""
        key = f"{path} {program}"
        text = None if key in self._read else self._text(path)
        if text is None or len(text) > _MOST_TEXT:
            return
        self._read.add(key)
        directory, name = posixpath.split(path)
        if name == "pyproject.toml":
            for each in _task_texts(self._toml(path), program):
                self.take_words(each, directory)
            options = self._toml(path).get("tool", {}).get("pytest", {})
            self._take_python_path(json.dumps(options), directory)
        elif name.endswith((".ini", ".cfg")) or name in {
            "tox.toml",
            "hatch.toml",
            "justfile",
            "Justfile",
            ".justfile",
        }:
            sections = re.split(r"(?m)^(?=\[)", text)
            # A file of several tools: one tool's commands are not another's.
            of_pytest = program == "pytest" and name in {"tox.ini", "setup.cfg"}
            wanted = r"\[(?:tool:)?pytest" if of_pytest else r"(?!\[(?:metadata|options|coverage|flake8|mypy))"
            kept = [each for each in sections if re.match(wanted, each)]
            self.take_words("\n".join(kept), directory)
            self._take_python_path("".join(kept), directory)
        elif name == "conftest.py":
            for found in _PLUGINS.findall(text):
                for module in _QUOTED.findall(found):
                    self._name_module(module, {"", directory})
        elif name.endswith((".py", ".rb")) or name.lower().startswith(
            ("rakefile", "taskfile", "composer", ".rspec")
        ):
            self.take_words("\n".join([text, *_QUOTED.findall(text)]), directory)
        else:
            self._take_loaded(text, directory)

    def _take_loaded(self, text: str, directory: str) -> None:
        for value in _LOADED.findall(text):
            for quoted in _QUOTED.findall(value):
                self._name(quoted.replace("<rootDir>/", "./"), {directory}, ends=_JS_ENDS)
        for script, _ in _SCRIPT_IMPORT.findall(text):
            self._name(script, {directory})

    def _take_python_path(self, text: str, directory: str) -> None:
        for value in re.findall(r"pythonpath[\"']?\s*[:=]\s*(\[[^\]]*\]|[^\n]+(?:\n\s+[^\n]+)*)", text):
            words = (word for word in _SEPARATORS.split(value) if word)
            self.directories |= {self._place(word, directory) for word in words}


def _without_variables(word: str) -> str:
    return _VARIABLE.sub("", word).lstrip("/") if _VARIABLE.search(word) else word


def _task_texts(document: Mapping[str, Any], program: str) -> list[str]:
    """Return the texts of a pyproject.toml that are commands of a program, its options, or build hooks."""
    tools = document.get("tool")
    tools = tools if isinstance(tools, dict) else {}
    hatch = tools.get("hatch")
    hatch = hatch if isinstance(hatch, dict) else {}
    pytest = tools.get("pytest")
    found: list[object] = [tools.get(name) for name in _TASK_TABLES.get(program, ())]
    found += [
        hatch.get("envs") if program == "hatch" else None,
        hatch.get("build"),
        tools.get("poetry", {}).get("build") if "poetry" in tools else None,
    ]
    options = pytest.get("ini_options", pytest) if isinstance(pytest, dict) else {}
    addopts = options.get("addopts") if isinstance(options, dict) else None
    found.append(" ".join(map(str, addopts)) if isinstance(addopts, list) else addopts)
    texts: list[str] = []
    while found:
        each = found.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, Mapping):
            found += [
                value
                for key, value in each.items()
                if key not in {"include", "packages", "sources", "only-include"}
            ]
        elif isinstance(each, list):
            found += each
    return texts
