"""A forge that fails as asked: a wrapper of any other one."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from chargehand.forges.contract import Forge, ForgeError, ForgeProblem

CHANGES = frozenset({
    *("change_issue", "add_comment", "edit_comment", "delete_comment"),
    *("open_request", "change_request"),
    *("ask_reviews", "reply", "merge", "set_status", "attach", "ensure_hook", "remove_hook"),
})  # fmt: skip
READS = frozenset({
    *("account", "repository", "right", "issues", "issue", "comments", "branch", "find_requests", "request"),
    *("reviews", "review_comments", "statuses", "read_log"),
})  # fmt: skip

if TYPE_CHECKING:
    _Forge = Forge
else:
    _Forge = object


class ForgeFault(Struct, frozen=True, kw_only=True):
    """A failure of the `call`-th call, counted from 1, of `method`; of any change if `method` is "".

    `when`: `before`, so that nothing was done; `lost_before` and `lost_after` say `may_have_acted`, and only the
    latter acted. `error` replaces the `ForgeError`, for example by a crash of the caller. `lasting`: later calls
    fail as well.
    """

    call: int = 1
    method: str = ""
    when: Literal["before", "lost_before", "lost_after"] = "before"
    problem: ForgeProblem = "unreachable"
    retry_seconds: float | None = None
    error: BaseException | None = None
    lasting: bool = False


class FlakyForge(_Forge):
    """A forge with faults; `calls` counts the calls of each method, `down` makes all of them fail.

    Faults may be added at any time, and count the calls since the start.
    """

    def __init__(self, forge: Forge, *faults: ForgeFault) -> None:
        self.kind, self.url = forge.kind, forge.url
        self.calls: Counter[str] = Counter()
        self.down = False
        self.faults = list(faults)
        self._forge = forge

    @property
    def changes(self) -> int:
        """The number of calls that asked for a change."""
        return sum(count for name, count in self.calls.items() if name in CHANGES)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._forge, name)
            return functools.partial(self._call, name, found) if name in CHANGES | READS else found

    def _call(self, name: str, method: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        self.calls[name] += 1
        if self.down:
            raise ForgeError("unreachable", "the forge is down")
        fault = next((each for each in self.faults if self._meets(each, name)), None)
        if fault is None:
            return method(*arguments, **options)
        if fault.when == "lost_after":
            done = method(*arguments, **options)
            if isinstance(done, Iterator):
                list(done)
        raise fault.error or ForgeError(
            fault.problem,
            f"{name} failed, as asked",
            retry_seconds=fault.retry_seconds,
            may_have_acted=fault.when != "before",
        )

    def _meets(self, fault: ForgeFault, name: str) -> bool:
        if fault.method != name and (fault.method or name not in CHANGES):
            return False
        count = self.calls[name] if fault.method else self.changes
        return count == fault.call or (fault.lasting and count > fault.call)
