"""Tests in files whose paths do not mark them as tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chargehand.checks.paths import language_of


class InnerTests(dict[str, str]):
    """The base's text, by path, of changed code with tests inside, and of `support`: files that only tests use.

    A file of `support` counts as test code as a whole.
    """

    def __init__(self, texts: Mapping[str, str], support: Collection[str]) -> None:
        super().__init__(texts)
        self.support = frozenset(support)


def support_in(inner: Collection[str]) -> frozenset[str]:
    """Return the paths that are test code as a whole; of a plain collection, all except Rust's."""
    if isinstance(inner, InnerTests):
        return inner.support
    return frozenset(path for path in inner if language_of(path) != "rust")
