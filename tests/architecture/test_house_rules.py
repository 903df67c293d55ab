"""House rules that no linter checks; each failure states the reason."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.architecture.trees import nodes as nodes_of

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")])
LONGEST_MODULE, LONGEST_FUNCTION, LARGEST_FOLDER = 550, 64, 25
BROAD_EXCEPTS = {
    # file below src/chargehand: number; each is the boundary of a process, connection, thread or given target
    "cli/terminal/failures.py": 1,
    "mcp/_calls.py": 1,
    "server/application.py": 1,
    "server/serving.py": 1,
    "server/_feed.py": 1,
    "app/worker.py": 2,
    "missions/delivery/targets.py": 1,
    "sandbox/process/sandbox_launcher.py": 1,
    "sandbox/process/exec_protocol.py": 1,
    "sandbox/inside/snippet.py": 2,
    "bench/inside/function_check.py": 1,
    "network/mirror/server.py": 3,
    "models/serving/admission.py": 1,
}
BEHIND_FACES = 0
IO_MODULES = {"socket", "subprocess", "sqlite3", "sqlalchemy", "asyncio", "shutil", "tempfile", "httpx"}


Modules = Mapping[Path, Sequence[ast.AST]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """The syntax nodes of each module."""
    return {path: nodes_of(path) for path in SOURCES}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "src/chargehand"))


def test_modules_and_functions_are_short(modules: Modules) -> None:
    assert not [name(path) for path in SOURCES if len(path.read_text().splitlines()) > LONGEST_MODULE]
    long = [
        f"{name(path)}: {node.name}"
        for path, nodes in modules.items()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not long, "a function needs more than a screen"


def test_folders_have_few_modules() -> None:
    folders = collections.Counter(path.parent for path in SOURCES)
    assert {name(folder): count for folder, count in folders.items() if count > LARGEST_FOLDER} == {}


def test_broad_excepts_are_only_at_listed_boundaries(modules: Modules) -> None:
    broad = collections.Counter(
        name(path)
        for path, nodes in modules.items()
        for node in nodes
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
    )
    assert not {path: count for path, count in broad.items() if count > BROAD_EXCEPTS.get(path, 0)}


def test_the_vocabulary_does_no_input_or_output(modules: Modules) -> None:
    for path in (ROOT / "src/chargehand/core").glob("*.py"):
        for node in modules[path]:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {part.split(".")[0] for part in names} & IO_MODULES, path


def test_no_wait_loses_a_cancellation() -> None:
    """`asyncio.wait_for` of Python 3.11 loses a cancellation that arrives as the awaited call ends.

    `asyncio.timeout` does not.
    """
    assert not [name(path) for path in SOURCES if "asyncio.wait_for" in path.read_text()]


def typed_reads(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the calls that would make msgspec learn a class."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    named = [(ast.unparse(call.func), call) for call in calls]
    learns = re.compile(r"msgspec\.(convert|inspect\.\w+|(\w+\.)?(Decoder|schema\w*))")
    return [
        name
        for name, call in named
        if learns.fullmatch(name)
        or (re.fullmatch(r"msgspec\.\w+\.decode", name) and any(key.arg == "type" for key in call.keywords))
    ]


def test_only_the_codec_module_makes_typed_msgspec_calls(modules: Modules) -> None:
    """If two threads let it learn one class at once, the process crashes: use `core.decode_as` and its like."""
    for read in ("json.decode(x, type=T)", "convert(x, T)", "msgpack.Decoder(T)", "json.schema(T)"):
        assert typed_reads(ast.walk(ast.parse(f"msgspec.{read}")))
    harmless = "msgspec.json.decode(x); msgspec.json.encode(x); msgspec.to_builtins(x)"
    assert not typed_reads(ast.walk(ast.parse(harmless)))
    asking = {
        path: text for path in SOURCES if "msgspec" in (text := path.read_text()) and path.name != "codec.py"
    }
    assert not [name(path) for path in asking if typed_reads(modules[path])]
    # `structs` copies and `field` declares: neither learns a class.
    hidden = re.compile(
        r"from msgspec(?!\.structs)(\.\w+)* import (?!structs$)(?!(Struct, )?field$).*\b[a-z]", re.M
    )
    assert not [name(path) for path in SOURCES if hidden.search(path.read_text())]


def test_dataclasses_are_used_only_if_a_struct_is_impossible(modules: Modules) -> None:
    """Creating a struct's class takes a tenth of the time, before the first line of a command runs.

    The options of a run are shown in a help, which must not import msgspec.
    """
    needed = re.compile(r"\b(init=False|repr=False|KW_ONLY)\b")
    classes = [
        (path, node)
        for path, nodes in modules.items()
        for node in nodes
        if isinstance(node, ast.ClassDef)
        and path.name != "run_options.py"
        and any("dataclass(" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert classes
    assert not [(name(path), node.name) for path, node in classes if not needed.search(ast.unparse(node))]


def test_no_module_is_named_utils_or_helpers() -> None:
    assert not [path for path in SOURCES if re.search(r"(^|_)(utils?|helpers?|misc|common)$", path.stem)]


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings on a forge: links become their text, punctuation is removed."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def test_links_of_the_docs_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            named = page.parent / path if path else page
            if "://" in target:
                continue
            if not named.exists() or (anchor and named.suffix == ".md" and anchor not in anchors(named)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_modules_named_in_the_architecture_page_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|toml))`", page)
    assert len(named) > 25
    assert [path for path in named if not (ROOT / "src/chargehand" / path).exists()] == []


def test_private_modules_are_imported_only_within_their_package(modules: Modules) -> None:
    """A package's face is the modules directly in its folder whose names have no leading underscore."""
    behind = []
    for path, nodes in modules.items():
        own = path.relative_to(ROOT / "src/chargehand").parts[0]
        for node in nodes:
            parts = node.module.split(".") if isinstance(node, ast.ImportFrom) and node.module else []
            if parts[:1] != ["chargehand"] or len(parts) < 3 or parts[1] in (own, "testing") or own == "testing":
                continue
            if len(parts) > 3 or parts[2].startswith("_"):
                behind.append(f"{name(path)}: {node.module}")
    assert len(behind) <= BEHIND_FACES, behind
