"""The syntax trees of the product's modules, parsed once for all rules: parsing takes longer than any rule."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the tree of a source file, which no rule may change."""
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a source file's tree."""
    return tuple(ast.walk(parse(path)))
