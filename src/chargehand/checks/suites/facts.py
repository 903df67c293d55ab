"""Facts about the tests of a file, by which two versions of it are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

EMPTY_BODY = "empty body"


class Case(Struct, frozen=True, kw_only=True):
    """One test. `marks` are the source texts that keep it from running or from checking anything.

    `variants` is the number of literal parameter sets, `None` if the source does not show it. `looser` holds
    tolerances that grow as the test weakens, `stricter` those that shrink (digits), by name. A tolerance that the
    test leaves to its library appears with the library's default. `body` is a digest of the test's lines without
    its name, "" if it was not computed.
    """

    name: str
    scope: str = ""
    line: int = 0
    marks: tuple[str, ...] = ()
    assertions: int = 0
    variants: int | None = None
    looser: Mapping[str, float] = field(default_factory=dict)
    stricter: Mapping[str, float] = field(default_factory=dict)
    approximations: int = 0
    body: str = ""

    def loosened_since(self, old: Case) -> Iterator[str]:
        """Yield which tolerances are wider than those of the same test before."""
        for name, value in self.looser.items():
            if name in old.looser and value > old.looser[name]:
                yield f"{name} was {old.looser[name]:g}, is {value:g}"
        for name, value in self.stricter.items():
            if name in old.stricter and value < old.stricter[name]:
                yield f"{name} was {old.stricter[name]:g}, is {value:g}"
        if self.approximations > old.approximations and self.assertions <= old.assertions:
            yield "an exact comparison became an approximate one"
            return
        before = max(
            [*old.looser.values(), *(_tolerance(digits) for digits in old.stricter.values())], default=None
        )
        if before is None:
            return
        # If `rel=1e-9` became `abs=1`, there is no old `abs`: compare with the largest old tolerance instead.
        fresh = [(name, value, value) for name, value in self.looser.items() if name not in old.looser]
        fresh += [(name, n, _tolerance(n)) for name, n in self.stricter.items() if name not in old.stricter]
        yield from (
            f"{name} is {value:g}, and nothing was above {before:g}"
            for name, value, is_now in fresh
            if is_now > before
        )


class Suite(Struct, frozen=True, kw_only=True):
    """The tests of one file; `marks` apply to all of them, `blank` is true if it has only white space."""

    cases: tuple[Case, ...] = ()
    marks: tuple[str, ...] = ()
    blank: bool = False


def _tolerance(digits: float) -> float:
    """Return the tolerance of a number of equal decimal places, bounded so that no float overflows."""
    return float(10 ** -max(-300.0, min(300.0, digits)))
