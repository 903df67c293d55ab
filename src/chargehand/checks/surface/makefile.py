"""The part of a Makefile that a check depends on: everything except provably irrelevant lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from chargehand.core.text import late_pattern

MAKEFILES = frozenset({"Makefile", "makefile", "GNUmakefile"})
_RULE = late_pattern(r"([^:=#]+?)\s*&?::?(?!=)(.*)")
_ASSIGNMENT = late_pattern(r"([\w.-]+)\s*(=|::?:?=|\+=|\?=|!=)(.*)", re.DOTALL)
_REFERENCE = late_pattern(r"(?<!\$)\$(?:[({]([\w.-]+)|([\w@<^+?*%]))")
_NAMED_IN_CALL = late_pattern(r"\$[({](?:call|value|origin|flavor)\s+([\w.-]+)")
_COMPUTED = late_pattern(r"\$[({][\w.-]*\$")
_INVOCATION = late_pattern(r"(?:\bg?make|\$[({]MAKE[)}])((?:[ \t]+[^\s;&|()]*(?:\([^)]*\))?[^\s;&|()]*)*)")
# Functions that act, or may act, when make expands them, in any use of the variable.
_ACTS = late_pattern(r"\$[({]\s*(?:(?:shell|eval|file|call|guile|foreach|load|error|let|value)\b|\$)|`")
# make itself, its built-in rules and its child processes read these even if no recipe names them: a variable that
# is already in the environment is passed to recipes with the Makefile's value.
_AMBIENT = late_pattern(
    r"\..*|SHELL|G?N?U?MAKE\w*|MFLAGS|VPATH|PATH|HOME|LANG|LC_\w+|TMPDIR|TERM|USER|CI|DEBUG|(?:LD|DYLD|GCC)_\w+"
    r"|PYTHON\w+|PYTEST\w*|TOX\w*|VIRTUAL_ENV|COVERAGE_\w+|PIP_\w+|UV_\w+|NODE_\w+|npm_\w+|NPM_\w+|JEST_\w+|GO[A-Z]\w*"
    r"|CARGO\w*|RUST\w*|JAVA_\w+|JDK_\w+|MAVEN_\w+|GRADLE_\w+|CLASSPATH|RUBY\w+|GEM_\w+|BUNDLE_\w+|PERL5\w+|BASH_ENV|ENV"
    r"|IFS|CDPATH|CTEST_\w+|CMAKE_\w+|CC|CXX|CPP|FC|AS|AR|RM|LD|LEX|YACC|LINT|CO|GET|TEX\w*|M2C|PC|WEAVE|TANGLE|CTANGLE"
    r"|CWEAVE|MAKEINFO|(?:C|CPP|CXX|LD|AS|AR|F|GO|L|P|R|Y|CO|G|LINT)FLAGS|LDLIBS|LOADLIBES|(?:COMPILE|LINK|PREPROCESS)\.\w+|OUTPUT_OPTION"
)
_CONDITION = late_pattern(r"(?:if(?:n?eq|n?def)\b|else\b|endif\b).*")
_INCLUDE = late_pattern(r"(?:-include|s?include)\s+(.*)")
_DEFINE = late_pattern(r"(?:(?:override|export|private)\s+)*define\b.*")
_USUAL = frozenset({"test", "tests", "check"})
_DEPTH = 8


class _Rule(Struct):
    """One rule of the file: the conditions around it, its targets, the text after the colon, and its recipe."""

    conditions: tuple[str, ...]
    header: str
    names: tuple[str, ...]
    needs: str
    recipe: list[str] = field(default_factory=list)

    @property
    def always(self) -> bool:
        """Whether it counts for any target: special, pattern and computed targets, and Makefiles."""
        return any(
            name.startswith(".") or "%" in name or "$" in name or name in MAKEFILES or name.endswith(".mk")
            for name in self.names
        )


class _ParsedMakefile(Struct):
    """A Makefile's statements. `unconditional` ones count for any target: `include`, `export`, unknown lines."""

    rules: list[_Rule] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    unconditional: list[str] = field(default_factory=list)
    phony: set[str] = field(default_factory=set)
    included: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def first(self) -> str | None:
        """The target that make chooses by default."""
        names = (rule.names[0] for rule in self.rules if rule.names)
        return next((name for name in names if not name.startswith(".") and "%" not in name), None)

    def needs(self, rule: _Rule) -> list[str]:
        """Return the targets that a rule leads to: its prerequisites, and goals of make in its recipe."""
        before, _, first_line = _expand(rule.needs, self).partition(";")
        found = [word for word in before.replace("|", " ").replace(":", " ").split() if "=" not in word]
        for line in (first_line, *rule.recipe):
            found += sorted(_goals(_expand(line, self, keep=("MAKE",)), self.first))
        return found

    def used_variables(self, text: Sequence[str]) -> tuple[dict[str, list[str]], bool]:
        """Return the assignments that `text` depends on, and whether it computes a name, which may then be any."""
        names = [name for name in self.variables if _AMBIENT.fullmatch(name)]
        waiting = list(text)
        used = dict[str, list[str]]()
        computed = False
        while waiting or names:
            for line in waiting:
                computed = computed or _COMPUTED.search(line) is not None
                names += [named or single for named, single in _REFERENCE.findall(line)]
                names += _NAMED_IN_CALL.findall(line)
            waiting = []
            while names:
                name = names.pop()
                if name in self.variables and name not in used:
                    used[name] = self.variables[name]
                    waiting += used[name]
        return dict(sorted(used.items())), computed

    def add_statement(self, line: str, conditions: tuple[str, ...]) -> list[_Rule]:
        """Add a line outside a recipe; return the rule that the recipe below it belongs to."""
        if found := _ASSIGNMENT.fullmatch(line):
            if found[2] == "!=" or _ACTS.search(found[3]):
                self.unconditional.append(line)
            text = line if not conditions else f"{line}\n{' '.join(conditions)}"
            self.variables.setdefault(found[1], []).append(text)
            return []
        found = _RULE.fullmatch(line)
        if found is None or found[1].split()[0] in {
            "export",
            "unexport",
            "override",
            "private",
            "include",
            "vpath",
        }:
            self.unconditional.append(line)
            if included := _INCLUDE.fullmatch(line):
                self.included += included[1].split()
            return []
        rule = _Rule(conditions, line, tuple(found[1].split()), found[2].strip())
        if rule.names == (".PHONY",) and "$" not in rule.needs and not conditions:
            self.phony |= set(rule.needs.split())
            return []
        self.rules.append(rule)
        return [rule]


class ReachedPart(Struct, frozen=True, kw_only=True):
    """The part that some commands' goals run: target names, recipe lines with their variables, and `digest`.

    `files` are reached targets that make looks for in the tree: an existing one is not made again.
    """

    targets: frozenset[str]
    recipes: tuple[str, ...]
    files: frozenset[str]
    digest: object


def targets(source: str) -> frozenset[str]:
    """Return the names of all targets."""
    return frozenset(name for rule in _parse(source).rules for name in rule.names)


def used_part(source: str, commands: Sequence[str]) -> object:
    """Return the part for the commands' targets, comparable by `==`; `test` and `check` always count."""
    return reached_part(source, commands).digest


def whole_text(source: str, commands: Sequence[str]) -> object:
    """Return everything except comments and blank lines, comparable by `==`, for any commands."""
    return _parse(source).lines


def reached_part(source: str, commands: Sequence[str]) -> ReachedPart:
    """Return the part that the commands' targets reach; the whole Makefile if its text does not show that."""
    makefile = _parse(source)
    goals = set(_USUAL)
    for command in commands:
        goals |= _goals(command, makefile.first)
    always = [rule for rule in makefile.rules if rule.always]
    waiting = [*goals, *makefile.included]
    waiting += [word for rule in always for word in makefile.needs(rule)]
    reached: dict[str, list[_Rule]] = {}
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = [rule for rule in makefile.rules if name in rule.names and not rule.always]
            waiting += [word for rule in reached[name] for word in makefile.needs(rule)]
    kept = [rule for rule in makefile.rules if rule.always or any(name in reached for name in rule.names)]
    recipes = [line for rule in kept for line in (rule.needs, *rule.recipe)]
    used, computed = makefile.used_variables([*recipes, *makefile.unconditional])
    # make treats a carriage return as part of a recipe's line; a reader does not see it.
    opaque = (
        computed or ".RECIPEPREFIX" in makefile.variables or any("$" in name for name in reached) or "\r" in source
    )
    named = frozenset(name for name in reached if reached[name])
    digest = (
        [(rule.conditions, rule.header, rule.recipe) for rule in kept],
        makefile.unconditional,
        used,
        sorted(makefile.phony & set(reached)),
    )
    return ReachedPart(
        targets=named,
        recipes=tuple(_expand(line, makefile) for line in recipes),
        files=named - makefile.phony,
        digest=makefile.lines if opaque else digest,
    )


def _goals(command: str, first: str | None) -> set[str]:
    goals: set[str] = set()
    for found in _INVOCATION.finditer(command):
        words = {word.strip("\"'") for word in found[1].split() if not word.startswith("-") and "=" not in word}
        goals |= words or ({first} if first else set())
    return goals


def _expand(text: str, makefile: _ParsedMakefile, *, keep: Iterable[str] = (), depth: int = _DEPTH) -> str:
    """Replace names of plain variables with their values; text that make would compute is unchanged."""

    def value_of(found: re.Match[str]) -> str:
        lines = makefile.variables.get(found[1])
        if not lines or depth == 0 or found[1] in keep:
            return found[0]
        values = (match[3].strip() for line in lines if (match := _ASSIGNMENT.fullmatch(line)))
        return _expand(" ".join(values), makefile, keep=keep, depth=depth - 1)

    # Doubled references could grow without end: a text of this length is treated as unknown.
    expanded = re.sub(r"(?<!\$)\$[({]([\w.-]+)[)}]", value_of, text)
    return expanded if len(expanded) < 100_000 else "$(unknown)"


def _parse(source: str) -> _ParsedMakefile:
    makefile = _ParsedMakefile()
    current = list[_Rule]()
    conditions: list[str] = []
    defining = 0
    for line in re.sub(r"\\\r?\n[ \t]*", " ", source).split("\n"):
        stripped = line.strip()
        if not stripped or (stripped.startswith("#") and not defining and not line.startswith("\t")):
            continue  # a recipe may continue after an empty line or a comment
        makefile.lines.append(line)
        if defining or _DEFINE.fullmatch(stripped):
            defining += bool(_DEFINE.fullmatch(stripped)) - stripped.startswith("endef")
            makefile.unconditional.append(line.rstrip())
        elif line.startswith("\t") and current:
            current[-1].recipe.append(line)
        elif _CONDITION.fullmatch(stripped):
            if stripped.startswith("if"):
                conditions.append(stripped)
            elif conditions and stripped.startswith("else"):
                conditions[-1] += f" {stripped}"
            elif conditions:
                conditions.pop()
            makefile.unconditional.append(stripped)
            if current:  # it may be within the recipe
                current[-1].recipe.append(stripped)
        else:
            current = makefile.add_statement(stripped, tuple(conditions))
    return makefile
