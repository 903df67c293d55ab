"""Typed reads that several threads begin at once, of classes that were never read before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from chargehand.core.codec import convert_to, decode_as, json_schema, unpack_as

RACE = """
import threading
from dataclasses import dataclass

import msgspec

from chargehand.core.codec import convert_to, decode_as, json_schema, unpack_as

document = {"first": "a", "inner": {"value": 1}}
{read}
done = []


def met():
    # Evaluated as the annotation below, once, in the middle of what msgspec learns of Outer.
    if not done:
        done.append(threading.Thread(target=lambda: done.append(read())))
        done[0].start()
        done[0].join(0.3)
    return int


{inner}:
    value: "met()"


{outer}:
    first: str
    inner: Inner


read()
done[0].join()
assert done[1] == read(), done
"""
READS = {
    "json": "raw = msgspec.json.encode(document)\nread = lambda: decode_as(raw, Outer)",
    "msgpack": "raw = msgspec.msgpack.encode(document)\nread = lambda: unpack_as(raw, Outer)",
    "convert": "read = lambda: convert_to(document, Outer)",
    "mixed": "read = lambda: (json_schema(Outer), convert_to([document], tuple[Outer, ...]))",
}
KINDS = {"struct": "class {}(msgspec.Struct)", "dataclass": "@dataclass\nclass {}"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_thread_that_comes_while_a_class_is_learnt_waits(tmp_path: Path, read: str, kind: str) -> None:
    script = RACE.replace("{read}", read)
    script = script.replace("{inner}", kind.format("Inner")).replace("{outer}", kind.format("Outer"))
    place = tmp_path / "race.py"
    place.write_text(script)
    environ = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run([sys.executable, place], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class Point(msgspec.Struct):
    x: int
    y: int | None = None


def test_typed_reads_raise_the_errors_of_msgspec() -> None:
    assert decode_as(b'{"x": 1}', Point) == unpack_as(msgspec.msgpack.encode({"x": 1}), Point) == Point(1)
    assert convert_to([{"x": 1}], tuple[Point, ...]) == (Point(1),)
    assert convert_to(None, Point | None) is None
    assert convert_to(SimpleNamespace(x=1, y=2), Point, from_attributes=True) == Point(1, 2)
    own, parts = json_schema(Point)
    assert own == {"$ref": "#/$defs/Point"}
    assert set(parts) == {"Point"}
    for read in (lambda: decode_as(b'{"x": "1"}', Point), lambda: convert_to({"x": "1"}, Point)):
        with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.x`"):
            read()
    with pytest.raises(msgspec.DecodeError):
        decode_as(b"{", Point)
    with pytest.raises(TypeError):  # a type that msgspec does not support gives no reader, the next time either
        decode_as(b"{}", list[int] | set[int])
    with pytest.raises(TypeError):
        decode_as(b"{}", list[int] | set[int])
