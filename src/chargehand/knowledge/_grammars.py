"""The grammars by name. Only the parser process imports this module: a faulty grammar must not end its caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tree_sitter_bash
import tree_sitter_c
import tree_sitter_c_sharp
import tree_sitter_cpp
import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_php
import tree_sitter_python
import tree_sitter_ruby
import tree_sitter_rust
import tree_sitter_typescript

GRAMMARS: Mapping[str, Callable[[], object]] = {
    "bash": tree_sitter_bash.language,
    "c": tree_sitter_c.language,
    "c_sharp": tree_sitter_c_sharp.language,
    "cpp": tree_sitter_cpp.language,
    "go": tree_sitter_go.language,
    "java": tree_sitter_java.language,
    "javascript": tree_sitter_javascript.language,
    "php": tree_sitter_php.language_php,
    "python": tree_sitter_python.language,
    "ruby": tree_sitter_ruby.language,
    "rust": tree_sitter_rust.language,
    "tsx": tree_sitter_typescript.language_tsx,
    "typescript": tree_sitter_typescript.language_typescript,
}
