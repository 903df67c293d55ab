"""Which formatters a project's own files name, and for which of its files; nothing is run.

Each is asked to write, never to check: what it changed is told from the two trees, the same way for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chargehand.checks.detection import Stack, table
from chargehand.checks.trees import TreeReader, is_regular

_PRETTIER = ".js .jsx .mjs .cjs .ts .tsx .mts .cts .json .css .scss .less .html .vue .md .mdx .yaml .yml .graphql"
_C = ".c .h .cc .cpp .cxx .hh .hpp .hxx .m .mm .proto"
_PRETTIER_FILES = (
    *(".prettierrc", ".prettierrc.json", ".prettierrc.yml", ".prettierrc.yaml", ".prettierrc.toml"),
    *(".prettierrc.js", ".prettierrc.cjs", ".prettierrc.mjs", "prettier.config.js", "prettier.config.cjs"),
    "prettier.config.mjs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatter:
    """A program that formats the files it is given in place: those that end in one of `suffixes`.

    `why` is the file that names it. It must take the paths after `command`.
    """

    name: str
    command: tuple[str, ...]
    suffixes: tuple[str, ...]
    why: str

    def takes(self, path: str) -> bool:
        """Tell whether it formats the file at `path`; those of vendored and hidden directories are nobody's."""
        return path.endswith(self.suffixes) and not _foreign(path)


def detect_formatters(reader: TreeReader, tree: str) -> tuple[Formatter, ...]:
    """Return the formatters that a tree's configuration names, at most one for a language."""
    stack = Stack(reader, tree)
    detected = (_python(stack), _prettier(stack), _go(stack), _rust(stack), _clang(stack), _shell(stack))
    return tuple(found for found in detected if found is not None)


def formatted_by(
    reader: TreeReader, tree: str, formatters: Sequence[Formatter], *, within: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the files that each formatter is to be given, by its name.

    `within` are files, or directories with all they hold; none stands for the whole tree. Links are left out.
    """
    prefixes = [path.strip("/") for path in within if path.strip("/") not in ("", ".")]
    files = [path for path, mode, _ in reader.entries(tree) if is_regular(mode) and _is_within(path, prefixes)]
    return {each.name: tuple(path for path in files if each.takes(path)) for each in formatters}


def _is_within(path: str, prefixes: Sequence[str]) -> bool:
    return not prefixes or any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def _foreign(path: str) -> bool:
    folders = path.split("/")[:-1]
    return any(name in {"node_modules", "vendor", "third_party", ".git", ".venv", "venv"} for name in folders)


def _python(stack: Stack) -> Formatter | None:
    tools = table(stack.toml("pyproject.toml"), "tool")
    suffixes = (".py", ".pyi")
    if "black" in tools:
        return Formatter(name="black", command=("black", "-q", "--"), suffixes=suffixes, why="pyproject.toml")
    named = _first(stack, "ruff.toml", ".ruff.toml") or ("pyproject.toml" if "ruff" in tools else None)
    if named is None:
        return None
    # What its configuration excludes stays as it is, although it is named.
    command = ("ruff", "format", "-q", "--no-cache", "--force-exclude", "--")
    return Formatter(name="ruff", command=command, suffixes=suffixes, why=named)


def _prettier(stack: Stack) -> Formatter | None:
    package = "package.json" if "prettier" in stack.json("package.json") else None
    named = _first(stack, *_PRETTIER_FILES) or package
    command = ("npx", "--no-install", "prettier", "--write", "--ignore-unknown", "--log-level", "warn", "--")
    return _formatter("prettier", command, _PRETTIER, named) if named else None


def _go(stack: Stack) -> Formatter | None:
    return _formatter("gofmt", ("gofmt", "-w", "--"), ".go", "go.mod") if stack.has("go.mod") else None


def _rust(stack: Stack) -> Formatter | None:
    if not stack.has("Cargo.toml"):
        return None
    edition = table(stack.toml("Cargo.toml"), "package").get("edition")
    words = ("--edition", edition) if isinstance(edition, str) and edition.isdecimal() else ("--edition", "2021")
    return _formatter("rustfmt", ("rustfmt", *words, "--"), ".rs", "Cargo.toml")


def _clang(stack: Stack) -> Formatter | None:
    named = _first(stack, ".clang-format", "_clang-format")
    return _formatter("clang-format", ("clang-format", "-i", "--style=file", "--"), _C, named) if named else None


def _shell(stack: Stack) -> Formatter | None:
    """Return shfmt where `.editorconfig`, which it reads, has a section for shell scripts."""
    sections = [line.strip() for line in stack.text(".editorconfig").splitlines() if line.startswith("[")]
    if not any("sh" in _words(section) for section in sections):
        return None
    return _formatter("shfmt", ("shfmt", "-w", "--"), ".sh .bash", ".editorconfig")


def _words(section: str) -> Iterator[str]:
    """Yield the endings that a section's pattern names: `[*.{sh,bash}]` has `sh` and `bash`."""
    pattern = section.strip("[]").rpartition(".")[2]
    return (word.strip() for word in pattern.strip("{}").split(","))


def _formatter(name: str, command: tuple[str, ...], suffixes: str, why: str) -> Formatter:
    return Formatter(name=name, command=command, suffixes=tuple(suffixes.split()), why=why)


def _first(stack: Stack, *names: str) -> str | None:
    return next((name for name in names if stack.has(name)), None)
