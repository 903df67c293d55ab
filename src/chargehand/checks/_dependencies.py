"""What a change does to the project's dependencies: what comes in, from where, and whether locks went along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chargehand.checks._dependency_files import Dependencies
from chargehand.checks._reader import TreeReader
from chargehand.core.records import Change, Finding
from chargehand.core.text import printable, shown_path

_SHOWN = 8
_LOCKS: dict[str, tuple[str, ...]] = {
    # a lock file and the manifests it is made from
    **dict.fromkeys(("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml"), ("pyproject.toml",)),
    "Pipfile.lock": ("Pipfile",),
    **dict.fromkeys(
        ("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock"), ("package.json",)
    ),
    "Cargo.lock": ("Cargo.toml",),
    "go.sum": ("go.mod",),
}
_Known = Mapping[str, tuple[Dependencies | None, Dependencies | None]]
"""By path what a changed file said before and says now."""


def dependency_findings(
    changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Yield what the changes mean for what the project depends on."""
    ours = [change for change in changes if change.path in known]
    if not ours:
        return
    before = {place for old, _ in known.values() if old is not None for place in old.sources}
    for change in ours:
        old, new = known[change.path]
        yield from _named(change.path, old or Dependencies(), new or Dependencies())
        yield from _sources(change.path, new, before)
    yield from _locks_alone(ours)
    yield from _locks_left(ours, known, reader, base_tree)


def _named(path: str, old: Dependencies, new: Dependencies) -> Iterator[Finding]:
    if not old.readable or not new.readable:
        return
    added = sorted(set(new.named) - set(old.named))
    removed = sorted(set(old.named) - set(new.named))
    changed = sorted(n for n in set(old.named) & set(new.named) if old.named[n] != new.named[n])
    if added:
        yield _warning("dependency_changed", path, f"new dependencies: {_list(added)}")
    others = [f"{word} {_list(names)}" for word, names in (("removed", removed), ("changed", changed)) if names]
    if others:
        message = f"dependencies: {'; '.join(others)}"
        yield Finding(rule="dependency_changed", severity="info", path=path, message=message)


def _sources(path: str, new: Dependencies | None, before: set[str]) -> Iterator[Finding]:
    if new is None:
        return
    if not new.readable:
        message = f"{shown_path(path)} can not be read, so where packages would come from is unknown"
        yield _asking(path, message)
    elif fresh := sorted(set(new.sources) - before):
        yield _asking(path, f"packages would come from a place that is new here: {_list(fresh)}")


def _locks_alone(changes: Sequence[Change]) -> Iterator[Finding]:
    """Find locks that changed although nothing they are made from did, in their directory or below."""
    touched = [change.path for change in changes]
    for change in changes:
        folder, _, name = change.path.rpartition("/")
        if name not in _LOCKS or change.kind == "added":
            continue
        below = f"{folder}/" if folder else ""
        if not any(p.startswith(below) and p.rpartition("/")[2] in _LOCKS[name] for p in touched):
            what = "was deleted" if change.kind == "deleted" else "changed"
            yield _warning("lock_mismatch", change.path, f"it {what} and no {' or '.join(_LOCKS[name])} did")


def _locks_left(changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str) -> Iterator[Finding]:
    """Find locks of the base that stayed as they were although dependencies they are made from changed."""
    touched = {change.path for change in changes}
    for change in changes:
        old, new = known[change.path]
        if new is None or (old.named if old else {}) == new.named:
            continue
        *directories, name = change.path.split("/")
        places = ["/".join([*directories[:n], ""]) for n in range(len(directories), -1, -1)]
        locks = [f"{p}{lock}" for p in places for lock, made_from in _LOCKS.items() if name in made_from]
        there = next((lock for lock in locks if reader.lookup(base_tree, lock) is not None), None)
        if there is not None and touched.isdisjoint(locks):
            yield _warning(
                "lock_mismatch", change.path, f"its dependencies changed and {shown_path(there)} did not"
            )


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return printable(", ".join(names[:_SHOWN]) + more)


def _warning(rule: str, path: str, message: str) -> Finding:
    return Finding(rule=rule, severity="warning", path=path, message=message)


def _asking(path: str, message: str) -> Finding:
    # Not an error: a person may want a fork or an index of their own, and only a person can know.
    return Finding(rule="dependency_source", severity="warning", path=path, message=message, needs_person=True)
