"""Folded beliefs as bytes: every number exact, and the same memory order, so that later sums round alike."""

from __future__ import annotations

import math
import platform
from typing import Any

import msgspec
import numpy as np

from chargehand import __version__
from chargehand.core.codec import unpack_as
from chargehand.decisions.routing.state import RouterState

# Other programs, libraries and processors may round differently; the first number is that of the rules of folding.
FORM = f"2 {__version__} {np.__version__} {platform.machine()}"


def encode_state(state: RouterState) -> bytes:
    """Return a state as bytes; raise `ValueError` if they cannot describe it exactly."""
    return msgspec.msgpack.encode(state, enc_hook=_encode_array)


def decode_state(content: bytes) -> RouterState:
    """Return the state of `encode_state`; raise `ValueError` for other bytes."""
    try:
        return unpack_as(content, RouterState, hook=_decode_array)
    except msgspec.MsgspecError as error:
        raise ValueError(f"these are no beliefs: {error}") from error


def _encode_array(array: object) -> tuple[tuple[int, ...], bytes]:
    if not isinstance(array, np.ndarray) or array.dtype != np.float64 or not array.flags.c_contiguous:
        raise ValueError("only arrays of 64-bit floats in row order are stored")
    return array.shape, array.tobytes()


def _decode_array(kind: type, stored: Any) -> Any:
    try:
        shape, data = stored
        if min(shape) < 0 or math.prod(shape) * 8 != len(data):
            raise ValueError("shape and size differ")
        return np.frombuffer(data).reshape(shape)
    except TypeError as error:
        raise ValueError("this is no stored array") from error
