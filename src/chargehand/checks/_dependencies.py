"""Changes to a project's dependencies: the packages that manifests and lock files name, and their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from chargehand.checks._manifests import MANIFEST_OF, UNREADABLE, Dependencies, kind_of
from chargehand.checks.trees import TreeReader, is_regular
from chargehand.core.records import Change, Finding
from chargehand.core.text import printable, shown_path

# Bytes of the largest file that is parsed; the lock file of a large workspace has a few million.
_MAX_TEXT_BYTES = 8_000_000
# Names of dependencies that one message shows.
_MAX_NAMES = 8

# By path: the dependencies in a changed file before and after.
_Known = Mapping[str, tuple[Dependencies | None, Dependencies | None]]


# --- findings


def dependency_findings(
    changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Yield findings on changes of the project's dependencies."""
    ours = [change for change in changes if change.path in known]
    if not ours:
        return
    # Over all files: a source that another manifest already named is not new to the project.
    before = {place for old, _ in known.values() if old is not None for place in old.sources}
    for change in ours:
        path, (old, new) = change.path, known[change.path]
        if all(each is None or each.readable for each in (old, new)):
            was = old.named if old else {}
            now = new.named if new else {}
            added = sorted(set(now) - set(was))
            removed = sorted(set(was) - set(now))
            changed = sorted(name for name in set(was) & set(now) if was[name] != now[name])
            if added:
                yield _warning("dependency_changed", path, f"new dependencies: {_list(added)}")
            both = (("removed", removed), ("changed", changed))
            others = [f"{word} {_list(names)}" for word, names in both if names]
            if others:
                message = f"dependencies: {'; '.join(others)}"
                yield Finding(rule="dependency_changed", severity="info", path=path, message=message)
        if new is None:
            continue
        fresh = sorted(set(new.sources) - before)
        message = f"packages would come from a new source: {_list(fresh)}" if fresh else ""
        if not new.readable:
            message = f"{shown_path(path)} cannot be read, so the sources of packages are unknown"
        if message:
            # Not an error: a person may want a fork or a private index, and only a person can know.
            yield Finding(
                rule="dependency_source", severity="warning", path=path, message=message, needs_person=True
            )
    yield from _find_lock_mismatches(ours, known, reader, base_tree)


def _find_lock_mismatches(
    changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Find locks that changed without their manifest, and manifests that changed without their lock."""
    touched = {change.path for change in changes}
    for change in changes:
        folder, _, name = change.path.rpartition("/")
        if name in MANIFEST_OF and change.kind != "added":
            manifest = MANIFEST_OF[name]
            below = f"{folder}/" if folder else ""
            # One lock in a workspace's root serves the manifests of all its members.
            if not any(p.startswith(below) and p.rpartition("/")[2] == manifest for p in touched):
                what = "was deleted" if change.kind == "deleted" else "changed"
                yield _warning("lock_mismatch", change.path, f"it {what}, but no {manifest} did")
        old, new = known[change.path]
        if new is None or (old.named if old else {}) == new.named:
            continue
        directories = folder.split("/") if folder else []
        # A workspace member's lock may be in any directory above; a lock that the base lacks cannot be stale.
        places = ["/".join([*directories[:n], ""]) for n in range(len(directories), -1, -1)]
        locks = [f"{p}{lock}" for p in places for lock, manifest in MANIFEST_OF.items() if name == manifest]
        stale = next((lock for lock in locks if reader.lookup(base_tree, lock) is not None), None)
        if stale is not None and touched.isdisjoint(locks):
            message = f"its dependencies changed, but {shown_path(stale)} did not"
            yield _warning("lock_mismatch", change.path, message)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return printable(", ".join(names[:_MAX_NAMES]) + more)


def _warning(rule: str, path: str, message: str) -> Finding:
    return Finding(rule=rule, severity="warning", path=path, message=message)


# --- reading one file


def is_dependency_file(path: str) -> bool:
    """Return whether a file's name says that it names dependencies or their sources."""
    return kind_of(path) is not None


def dependencies_in(path: str, reader: TreeReader, mode: int | None, id: str | None) -> Dependencies | None:
    """Return the dependencies in a file of this mode and id; `None` for an absent or another kind of file."""
    kind = kind_of(path)
    if id is None or kind is None:
        return None
    try:
        return kind.read(_read_text(reader, mode, id))
    except UNREADABLE:
        return Dependencies(readable=False)


def _read_text(reader: TreeReader, mode: int | None, id: str) -> str:
    """Return a file's text; raises `ValueError` for a file that is too large, a link or a submodule."""
    if not is_regular(mode) or reader.blob_size(id) > _MAX_TEXT_BYTES:
        raise ValueError("not a file that can be parsed")
    return reader.read_blob(id, limit=_MAX_TEXT_BYTES).decode("utf-8", "replace")


def find_new_packages(
    changes: Iterable[Change], reader: TreeReader, is_ours: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the files in which a tree requires packages, or versions, that its base does not require.

    Removals, and a manifest's other content, do not count. An unreadable file counts. `is_ours` returns whether a
    path belongs to the project.
    """
    return tuple(
        change.path
        for change in changes
        if is_ours(change.path)
        and (now := _packages_in(change.path, reader, change.new_mode, change.new_id)) is not None
        and not now <= (_packages_in(change.path, reader, change.old_mode, change.old_id) or frozenset())
    )


def _packages_in(path: str, reader: TreeReader, mode: int | None, id: str | None) -> frozenset[str] | None:
    """Return packages with their versions from a manifest or a lock, `None` for any other file."""
    kind = kind_of(path)
    if id is None or kind is None or not kind.names_packages:
        return None
    try:
        text = _read_text(reader, mode, id)
        kind.read(text)  # packages of a file with unreadable sources are not trusted
        return kind.packages(text)
    except UNREADABLE:
        return frozenset({f"unreadable {id}"})
