"""Lines of code that tell a checker not to look: a linter or a type checker then passes whatever the file says."""

from __future__ import annotations

import re

from chargehand.core.text import late_pattern

# Of a whole file or of all rules. To leave out one rule on one line is what linters are meant to be told.
_SILENT = late_pattern(
    "|".join(
        (
            # Python
            r"#\s*(?:ruff|flake8)\s*:\s*noqa\b\s*$|#\s*pylint\s*:\s*(?:skip-file|disable\s*=\s*all)",
            r"#\s*mypy\s*:\s*(?:ignore-errors|disable-error-code|allow-|no-|follow-imports)|^\s*#\s*type\s*:\s*ignore\b",
            r"#\s*pyright\s*:\s*(?:basic|ignore(?!\[)|\w+\s*=\s*(?:false|none))|#\s*(?:isort|nosemgrep)\s*:\s*skip_?file",
            r"#\s*bandit\s*:\s*skip|#\s*coverage\s*:\s*ignore",
            # JavaScript
            r"@ts-nocheck|/\*+\s*(?:eslint|oxlint|tslint|stylelint)[-:]disable\s*(?:\*/|--)|\bbiome-ignore-all\b",
            r"\b(?:istanbul|c8|v8)\s+ignore\s+(?:file|start)\b|@no(?:flow|check)\b",
            # Go, Rust
            r"^//\s*nolint(?::all)?\s*$|^//\s*Code generated\b.*\bDO NOT EDIT\b",
            r"#!\[\s*(?:cfg_attr\([^\]]*)?(?:allow|expect)\s*\(|#!\[\s*rustfmt::skip",
            # The JVM, C, Ruby, PHP, shells
            r"@SuppressWarnings\(\s*\"all\"|@file\s*:\s*Suppress|\bCHECKSTYLE\s*:\s*OFF\b|\bnoinspection\s+ALL\b",
            r"\bNOLINTBEGIN\b|#\s*pragma\s+(?:GCC|clang)\s+(?:diagnostic\s+ignored|system_header)",
            r"\bcppcheck-suppress-file\b|\bLCOV_EXCL_START\b|\brubocop\s*:\s*disable\s+all\b|#\s*:nocov:",
            r"\bphpcs\s*:\s*ignoreFile\b|@phpcsSuppress\s*$|\bphpstan-ignore-file\b|#\s*shellcheck\s+disable\s*=\s*all\b",
        )
    ),
    re.MULTILINE,
)
_SHOWN = 80


def find_silenced(old: str | None, new: str | None) -> str | None:
    """Return the first line by which a checker looks at less of a file than before, `None` where none does."""
    if new is None:
        return None
    before = {found[0].strip() for found in _SILENT.finditer(old or "")}
    return next(
        (text[:_SHOWN] for found in _SILENT.finditer(new) if (text := found[0].strip()) not in before), None
    )
