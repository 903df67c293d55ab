"""Folded histories: beliefs for a set of arms, continued from a shorter history or from a checkpoint of one."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from chargehand.core.choices import ChoiceHistory, ChoiceOutcome
from chargehand.core.codec import unpack_as
from chargehand.decisions.arms import OPEN_TASKS, write_records
from chargehand.decisions.routing.checkpoint import FORM, decode_state, encode_state
from chargehand.decisions.routing.records import RouterBudget, RouterCandidate
from chargehand.decisions.routing.state import RouterState

# Folds in memory and checkpoints, of the arms used last; a checkpoint is made after so many more outcomes.
_FOLDS, _CHECKPOINTS, _MANY = 8, 4, 250


class _Fold(NamedTuple):
    """The state after `outcomes`; `saved` of them are in a checkpoint."""

    outcomes: tuple[ChoiceOutcome, ...]
    state: RouterState
    saved: int


class BeliefCheckpoint(Struct, frozen=True, array_like=True):
    """A state after the first `count` outcomes, which have this digest; `key` is the digest of arms and rates."""

    key: bytes
    count: int
    digest: bytes
    state: bytes


class BeliefCheckpoints(Struct, frozen=True, kw_only=True):
    """Checkpoints, those used last at the end; `form` names the program and the numbers that it computes."""

    form: str
    states: tuple[BeliefCheckpoint, ...]


class _BeliefFolds:
    """Folds and checkpoints by the digest of arms and rates, those used last at the end; thread-safe.

    They only save time: what is folded on from a checkpoint equals what is folded from the first outcome.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folds: OrderedDict[bytes, _Fold] = OrderedDict()
        self._checkpoints: OrderedDict[bytes, BeliefCheckpoint] = OrderedDict()

    def fold(
        self, outcomes: tuple[ChoiceOutcome, ...], candidates: Sequence[RouterCandidate], budget: RouterBudget
    ) -> RouterState:
        key = _digest((tuple(candidates), budget.false_green, budget.false_red))
        with self._lock:
            known, checkpoint = self._folds.get(key), self._checkpoints.get(key)
        # Mostly the same objects, which are compared by identity first.
        if known is None or outcomes[: len(known.outcomes)] != known.outcomes:
            start = _Fold((), RouterState(budget.false_green, budget.false_red), 0)
            known = (_restore(checkpoint, outcomes) if checkpoint else None) or start
        # The tasks that began last are those that are open.
        begun = dict.fromkeys([*known.state.tasks][-OPEN_TASKS:])
        records = write_records(outcomes[len(known.outcomes) :], begun)
        state = known.state.fold(records, candidates)
        with self._lock:
            self._folds[key] = _Fold(outcomes, state, known.saved)
            self._folds.move_to_end(key)
            while len(self._folds) > _FOLDS:
                self._folds.popitem(last=False)
        return state

    def load(self, content: bytes) -> None:
        try:
            found = unpack_as(content, BeliefCheckpoints)
        except msgspec.MsgspecError:
            return
        if found.form == FORM:
            with self._lock:
                self._checkpoints.update((each.key, each) for each in found.states)

    def save(self) -> bytes | None:
        with self._lock:
            folds = [*self._folds.items()][-_CHECKPOINTS:]
            grown = [(key, each) for key, each in folds if len(each.outcomes) - each.saved >= _MANY]
            for key, each in grown:
                try:
                    encoded = encode_state(each.state)
                except ValueError:
                    continue
                count = len(each.outcomes)
                self._checkpoints[key] = BeliefCheckpoint(key, count, _digest(each.outcomes), encoded)
                self._folds[key] = each._replace(saved=count)
            for key, _ in folds:
                if key in self._checkpoints:
                    self._checkpoints.move_to_end(key)
            while len(self._checkpoints) > _CHECKPOINTS:
                self._checkpoints.popitem(last=False)
            states = tuple(self._checkpoints.values())
        return msgspec.msgpack.encode(BeliefCheckpoints(form=FORM, states=states)) if grown else None


def _restore(checkpoint: BeliefCheckpoint, outcomes: tuple[ChoiceOutcome, ...]) -> _Fold | None:
    begin = outcomes[: checkpoint.count]
    if len(begin) != checkpoint.count or _digest(begin) != checkpoint.digest:
        return None
    try:
        return _Fold(begin, decode_state(checkpoint.state), checkpoint.count)
    except ValueError:
        return None


def _digest(value: object) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(value)).digest()


_folds = _BeliefFolds()


def fold_outcomes(
    history: ChoiceHistory, candidates: Sequence[RouterCandidate], budget: RouterBudget | None = None
) -> RouterState:
    """Return the beliefs after a history; `candidates` have the priors of the arms."""
    return _folds.fold(history.outcomes, candidates, budget or RouterBudget())


def load_checkpoints(content: bytes) -> None:
    """Use the checkpoints of `save_checkpoints`; others are ignored. The content must be free of damage."""
    _folds.load(content)


def save_checkpoints() -> bytes | None:
    """Return the checkpoints of the sets of arms used last, `None` if few outcomes were folded since."""
    return _folds.save()
