"""Detects the formatters that a project configures, and their files; nothing is run.

Each formatter writes, and is never asked to check: its changes are read from the two trees, in the same way for
all.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from chargehand.checks.stacks import Stack, table
from chargehand.checks.trees import TreeReader, is_regular

_COMMANDS = {
    "black": "black -q --",
    # Files that its configuration excludes stay unchanged, although they are named.
    "ruff": "ruff format -q --no-cache --force-exclude --",
    "prettier": "npx --no-install prettier --write --ignore-unknown --log-level warn --",
    "gofmt": "gofmt -w --",
    "rustfmt": "rustfmt --edition {edition} --",
    "clang-format": "clang-format -i --style=file --",
    "shfmt": "shfmt -w --",
}
_SUFFIXES = {
    "black": ".py .pyi",
    "ruff": ".py .pyi",
    "prettier": ".js .jsx .mjs .cjs .ts .tsx .mts .cts .json .css .scss .less .html .vue .md .mdx .yaml .yml "
    ".graphql",
    "gofmt": ".go",
    "rustfmt": ".rs",
    "clang-format": ".c .h .cc .cpp .cxx .hh .hpp .hxx .m .mm .proto",
    "shfmt": ".sh .bash",
}
_PRETTIER_FILES = (
    *(".prettierrc", ".prettierrc.json", ".prettierrc.yml", ".prettierrc.yaml", ".prettierrc.toml"),
    *(".prettierrc.js", ".prettierrc.cjs", ".prettierrc.mjs", "prettier.config.js", "prettier.config.cjs"),
    "prettier.config.mjs",
)
_NOT_OURS = frozenset({"node_modules", "vendor", "third_party", ".git", ".venv", "venv"})


class Formatter(Struct, frozen=True, kw_only=True):
    """A program that formats given files in place: those that end in one of `suffixes`.

    `why` is the file that configures it. It must accept paths after `command`.
    """

    name: str
    command: tuple[str, ...]
    suffixes: tuple[str, ...]
    why: str

    def takes(self, path: str) -> bool:
        """Return whether it formats the file at `path`; vendored and installed code is left unchanged."""
        return path.endswith(self.suffixes) and _NOT_OURS.isdisjoint(path.split("/")[:-1])


def detect_formatters(reader: TreeReader, tree: str) -> tuple[Formatter, ...]:
    """Return the formatters that a tree configures, at most one per language."""
    stack = Stack(reader, tree)

    def first(*names: str) -> str | None:
        return next((name for name in names if stack.has(name)), None)

    tools = table(stack.toml("pyproject.toml"), "tool")
    black = "pyproject.toml" if "black" in tools else None
    ruff = first("ruff.toml", ".ruff.toml") or ("pyproject.toml" if "ruff" in tools else None)
    # shfmt takes its style from .editorconfig, in a section such as `[*.sh]` or `[*.{sh,bash}]`.
    sections = [
        line.strip().strip("[]") for line in stack.text(".editorconfig").splitlines() if line.startswith("[")
    ]
    endings = [section.rpartition(".")[2].strip("{}").split(",") for section in sections]
    for_shell = any("sh" in map(str.strip, each) for each in endings)
    package = "package.json" if "prettier" in stack.json("package.json") else None
    named = {
        "black": black,
        "ruff": None if black else ruff,
        "prettier": first(*_PRETTIER_FILES) or package,
        "gofmt": first("go.mod"),
        "rustfmt": first("Cargo.toml"),
        "clang-format": first(".clang-format", "_clang-format"),
        "shfmt": ".editorconfig" if for_shell else None,
    }
    edition = table(stack.toml("Cargo.toml"), "package").get("edition")
    edition = edition if isinstance(edition, str) and edition.isdecimal() else "2021"
    return tuple(
        Formatter(
            name=name,
            command=tuple(_COMMANDS[name].format(edition=edition).split()),
            suffixes=tuple(_SUFFIXES[name].split()),
            why=why,
        )
        for name, why in named.items()
        if why is not None
    )


def formatted_by(
    reader: TreeReader, tree: str, formatters: Sequence[Formatter], *, within: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the files for each formatter, by its name.

    `within` lists files, or directories with their content; an empty list means the whole tree. Links are left
    out.
    """
    prefixes = [path.strip("/") for path in within if path.strip("/") not in ("", ".")]
    files = [
        path
        for path, mode, _ in reader.entries(tree)
        if is_regular(mode) and (not prefixes or any(f"{path}/".startswith(f"{prefix}/") for prefix in prefixes))
    ]
    return {each.name: tuple(path for path in files if each.takes(path)) for each in formatters}
