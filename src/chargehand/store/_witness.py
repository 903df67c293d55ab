"""What signed heads say of a log, wherever both were read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chargehand.core.errors import UsageError
from chargehand.store._chain import AuditProblem, problem
from chargehand.store._heads import SignedFile
from chargehand.store._keys import KnownKeys
from chargehand.store._signing import SignedHead


class Witnesses:
    """Compares signed heads with the keys of a log, and counts those that hold."""

    def __init__(self, known: KnownKeys) -> None:
        self._known = known
        self._held: set[SignedHead] = set()
        self._seen = False

    @property
    def held(self) -> int:
        """How many heads hold."""
        return len(self._held)

    @property
    def keys(self) -> tuple[str, ...]:
        """The ids of the keys that signed them."""
        return tuple(sorted({head.key for head in self._held}))

    def key_problems(self) -> Iterator[AuditProblem]:
        """Yield what is wrong with the keys; asked for when all heads were looked at."""
        for fault in self._known.faults:
            yield problem("", None, "key_changed", fault)
        if self._seen and not self._known.keys and not self._known.faults:
            yield problem("", None, "key_missing", "there are signed heads and no key to check them with")

    def file_problems(self, file: SignedFile, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
        """Yield what is wrong with a kept file, at the place that its name tells."""
        try:
            head = SignedHead.decode(file.content)
        except UsageError as error:
            self._seen = True
            yield problem(file.mission, file.seq, "head_changed", error.message)
            return
        if (head.mission, head.seq) != (file.mission, file.seq):
            told = f"its file is of line {file.seq}, its content of line {head.seq} of {head.mission!r}"
            yield problem(file.mission, file.seq, "head_changed", told)
        else:
            yield from self.head_problems(head, hashes=hashes)

    def head_problems(self, head: SignedHead, *, hashes: Mapping[int, str]) -> Iterator[AuditProblem]:
        """Yield where a head and the lines of its mission (`hashes`) disagree, or the signature is not good."""
        self._seen = True
        key = self._known.keys.get(head.key)
        if key is None and self._known.keys:
            told = f"it is signed by key {head.key}, which is not this log's"
            yield problem(head.mission, head.seq, "key_unknown", told)
        elif key is not None and not head.signed_by(key):
            # What nobody signed says nothing of the log, so the two are not compared.
            yield problem(head.mission, head.seq, "head_forged", "its signature is not its key's")
            return
        wrong = list(_line_problems(head, hashes))
        yield from wrong
        if key is not None and not wrong:
            self._held.add(head)


def _line_problems(head: SignedHead, hashes: Mapping[int, str]) -> Iterable[AuditProblem]:
    last = max(hashes, default=0)
    if head.seq > last:
        told = f"the log ends at {last}, a head was signed at {head.seq} on {head.time}"
        yield problem(head.mission, last + 1, "tail_missing", told)
    elif hashes.get(head.seq) != head.hash:
        yield problem(head.mission, head.seq, "head_changed", "the head that was signed and the line do not agree")
