"""Definitions and calls of the repository map against other tools: `python -m benchmarks.map_truth CLONE...`.

Functions, methods and types of each clone's HEAD are compared by name and line: Python with `ast`, Go with
`go/ast` (if `go` is installed), C, Java and Rust with ctags (if it is installed; it knows no calls), JavaScript
and TypeScript with TypeScript's compiler (if `--typescript` names a directory with its `node_modules`). Calls are
compared by the called name and its line.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import which

from chargehand.knowledge._contents import reason_to_skip
from chargehand.knowledge._languages import language_of
from chargehand.knowledge._parser_process import ParserProcess

Places = set[tuple[str, int]]
_GO = """
package main
import ("encoding/json"; "go/ast"; "go/parser"; "go/token"; "os")
func main() {
  set := token.NewFileSet()
  file, err := parser.ParseFile(set, os.Args[1], nil, 0)
  if err != nil { os.Exit(3) }
  defs, calls := [][]any{}, [][]any{}
  at := func(id *ast.Ident) []any { return []any{id.Name, set.Position(id.Pos()).Line} }
  ast.Inspect(file, func(n ast.Node) bool {
    switch x := n.(type) {
    case *ast.FuncDecl: defs = append(defs, at(x.Name))
    case *ast.TypeSpec: defs = append(defs, at(x.Name))
    case *ast.InterfaceType:
      for _, m := range x.Methods.List { for _, id := range m.Names { defs = append(defs, at(id)) } }
    case *ast.CallExpr:
      switch f := x.Fun.(type) {
      case *ast.Ident: calls = append(calls, at(f))
      case *ast.SelectorExpr: calls = append(calls, at(f.Sel))
      }
    }
    return true
  })
  json.NewEncoder(os.Stdout).Encode([][][]any{defs, calls})
}
"""
_TYPESCRIPT = """
const ts = require("typescript"), fs = require("fs");
const text = fs.readFileSync(process.argv[1], "utf8");
const file = ts.createSourceFile(process.argv[1], text, ts.ScriptTarget.Latest, true);
const defs = [], calls = [];
const at = (id) => [id.text, file.getLineAndCharacterOfPosition(id.getStart()).line + 1];
const isFunction = (n) => n && (ts.isArrowFunction(n) || ts.isFunctionExpression(n));
const visit = (n) => {
  const named = ts.isFunctionDeclaration(n) || ts.isClassLike(n) || ts.isMethodDeclaration(n) || ts.isAccessor(n)
    || ts.isInterfaceDeclaration(n) || ts.isEnumDeclaration(n) || ts.isTypeAliasDeclaration(n)
    || ts.isMethodSignature(n)
    || ((ts.isVariableDeclaration(n) || ts.isPropertyAssignment(n)) && isFunction(n.initializer));
  if (named && n.name && (ts.isIdentifier(n.name) || ts.isPrivateIdentifier(n.name))) defs.push(at(n.name));
  if (ts.isConstructorDeclaration(n)) {
    const line = file.getLineAndCharacterOfPosition(n.getStart()).line + 1;
    defs.push(["constructor", line]);
  }
  if (ts.isBinaryExpression(n) && n.operatorToken.kind === ts.SyntaxKind.EqualsToken && isFunction(n.right)) {
    const name = ts.isPropertyAccessExpression(n.left) ? n.left.name : n.left;
    if (ts.isIdentifier(name)) defs.push(at(name));
  }
  if (ts.isCallExpression(n) || ts.isNewExpression(n)) {
    const name = ts.isPropertyAccessExpression(n.expression) ? n.expression.name : n.expression;
    if (ts.isIdentifier(name) || ts.isPrivateIdentifier(name)) calls.push(at(name));
  }
  ts.forEachChild(n, visit);
};
visit(file);
console.log(JSON.stringify([defs, calls]));
"""
_CTAGS_KINDS = {
    "c": ("C", "fgsut"),
    "java": ("Java", "cgim"),
    "rust": ("Rust", "fsgtPM"),
}
_OURS = frozenset({"function", "method", "class", "struct", "interface", "enum", "type", "macro", "test"})


def main() -> None:
    """Compare all files and print precision and recall for each language."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path, nargs="+")
    parser.add_argument("--typescript", type=Path)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    process = ParserProcess()
    with tempfile.TemporaryDirectory() as scratch:
        readers = _readers(Path(scratch), options.typescript)
        for clone in options.clones:
            for path in _files(clone):
                language = language_of(path.name)
                if language not in readers or reason_to_skip(path.read_bytes()):
                    continue
                truth = readers[language](path)
                if truth is None:
                    continue
                parsed = process.parse(language, path.read_bytes())
                kinds = (
                    _OURS - {"macro"}
                    if language == "c"
                    else _OURS - {"test"}
                    if language in ("javascript", "typescript")
                    else _OURS
                )
                defined = {(d.name, d.line) for d in parsed.definitions if d.kind in kinds}
                called = {(r.name, r.line) for r in parsed.references if r.kind == "call"}
                _count(counts.setdefault(f"{clone.name} {language} definitions", Counter()), defined, truth[0])
                if truth[1]:
                    _count(counts.setdefault(f"{clone.name} {language} calls", Counter()), called, truth[1])
    process.close()
    for name, count in counts.items():
        precision, recall = count["both"] / max(1, count["ours"]), count["both"] / max(1, count["theirs"])
        print(f"{name:50} {count['theirs']:6}  precision {precision:.3f}  recall {recall:.3f}")


def _files(clone: Path) -> Iterator[Path]:
    listed = subprocess.run(["git", "-C", str(clone), "ls-files", "-z"], capture_output=True, check=True).stdout
    for name in listed.decode(errors="surrogateescape").split("\0"):
        if name and (path := clone / name).is_file() and not path.is_symlink():
            yield path


def _count(into: Counter[str], ours: Places, theirs: Places) -> None:
    into.update(ours=len(ours), theirs=len(theirs), both=len(ours & theirs))


def _readers(scratch: Path, typescript: Path | None) -> dict[str, Callable[[Path], tuple[Places, Places] | None]]:
    readers: dict[str, Callable[[Path], tuple[Places, Places] | None]] = {"python": _read_python}
    if which("go"):
        program = scratch / "places"
        (scratch / "places.go").write_text(_GO)
        subprocess.run(["go", "build", "-o", str(program), str(scratch / "places.go")], check=True, cwd=scratch)
        readers["go"] = lambda path: _read_json([str(program), str(path)])
    if typescript is not None:
        for language in ("javascript", "typescript"):
            readers[language] = lambda path: _read_json(
                ["node", "-e", _TYPESCRIPT, str(path.resolve())], cwd=typescript
            )
    if which("ctags"):
        for language in _CTAGS_KINDS:
            readers[language] = partial(_read_ctags, language)
    return readers


def _read_python(path: Path) -> tuple[Places, Places] | None:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return None
    defined, called = Places(), Places()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add((node.name, node.lineno))
            for each in node.decorator_list:  # the map counts these as calls, with or without arguments
                if isinstance(each, ast.Name | ast.Attribute):
                    called.add((_last_name(each), each.end_lineno or 0))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called.add((_last_name(node.func), node.func.end_lineno or 0))
    return defined, called


def _last_name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _read_json(words: list[str], *, cwd: Path | None = None) -> tuple[Places, Places] | None:
    done = subprocess.run(words, capture_output=True, check=False, cwd=cwd)
    if done.returncode:
        return None
    defined, called = json.loads(done.stdout)
    return {(name, line) for name, line in defined}, {(name, line) for name, line in called}


def _read_ctags(language: str, path: Path) -> tuple[Places, Places] | None:
    name, kinds = _CTAGS_KINDS[language]
    words = [f"--language-force={name}", f"--kinds-{name}={kinds}", "--fields=+n", "--output-format=json"]
    done = subprocess.run(["ctags", *words, "-f", "-", str(path)], capture_output=True, check=False)
    if done.returncode:
        return None
    tags = [json.loads(line) for line in done.stdout.decode(errors="replace").splitlines()]
    return {(tag["name"], tag["line"]) for tag in tags if "anon" not in tag["name"]}, Places()


if __name__ == "__main__":
    main()
