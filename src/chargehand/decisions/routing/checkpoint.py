"""Folded beliefs as bytes: every number exact, and the same memory order, so that later sums round alike."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from chargehand import __version__
from chargehand.core.codec import unpack_as
from chargehand.decisions.routing.records import RouterCandidate
from chargehand.decisions.routing.state import Array, KindBelief, RouterState, TaskBelief

# Other programs, libraries and processors may round differently.
FORM = f"1 {__version__} {np.__version__} {platform.machine()}"


class StoredArray(Struct, frozen=True, array_like=True):
    """Numbers of 64 bits, row by row."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: Array) -> StoredArray:
        """Return an array as bytes; raise `ValueError` if they do not describe it completely."""
        if array.dtype != np.float64 or not array.flags.c_contiguous:
            raise ValueError(f"an array of {array.dtype} in this memory order cannot be stored")
        return cls(array.shape, array.tobytes())

    def read(self) -> Array:
        """Return the array; raise `ValueError` if shape and size differ."""
        if min(self.shape, default=0) < 0 or math.prod(self.shape) * 8 != len(self.data):
            raise ValueError(f"{len(self.data)} bytes are no array of shape {self.shape}")
        return np.frombuffer(self.data).reshape(self.shape)


class StoredTask(Struct, frozen=True, kw_only=True):
    """The fields of `TaskBelief`."""

    kind: str
    difficulty: StoredArray
    families: Mapping[str, StoredArray]
    price: float
    price_variance: float | None
    tried: tuple[str, ...]


class StoredKind(Struct, frozen=True, kw_only=True):
    """The fields of `KindBelief`."""

    arms: tuple[RouterCandidate, ...]
    skills: StoredArray
    skill_covariances: StoredArray
    log_weights: StoredArray
    prices: StoredArray
    price_covariance: StoredArray
    squares: float
    count: float
    arm_squares: Mapping[str, float]
    costs: Mapping[str, tuple[int, float]]
    drift: Mapping[str, float]
    outcomes: int
    spent: float


class StoredState(Struct, frozen=True, kw_only=True):
    """The fields of `RouterState`."""

    false_green: float
    false_red: float
    kinds: Mapping[str, StoredKind]
    tasks: Mapping[str, StoredTask]
    last: str
    begun: int
    spent: float


def encode_state(state: RouterState) -> bytes:
    """Return a state as bytes; raise `ValueError` if they cannot describe it exactly."""
    return msgspec.msgpack.encode(state, enc_hook=_encode)


def decode_state(content: bytes) -> RouterState:
    """Return the state of `encode_state`; raise `ValueError` for other bytes."""
    try:
        found = unpack_as(content, StoredState)
    except msgspec.MsgspecError as error:
        raise ValueError(f"these are no beliefs: {error}") from error
    kinds = {name: KindBelief(**_read_fields(each)) for name, each in found.kinds.items()}
    tasks = {name: TaskBelief(**_read_fields(each)) for name, each in found.tasks.items()}
    return RouterState(**{**_read_fields(found), "kinds": kinds, "tasks": tasks})


def _encode(value: object) -> StoredArray:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"no field of beliefs is a {type(value).__name__}")
    return StoredArray.of(value)


def _read_fields(stored: Struct) -> dict[str, Any]:
    return {name: _read(value) for name, value in msgspec.structs.asdict(stored).items()}


def _read(value: Any) -> Any:
    if isinstance(value, StoredArray):
        return value.read()
    if isinstance(value, dict):
        return {key: _read(each) for key, each in value.items()}
    return value
