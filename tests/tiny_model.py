"""A language model of a few kilobytes with random weights, as a GGUF file, and the server that runs it.

`python tiny_model.py DIRECTORY` needs only `xllamacpp` and the standard library. It writes the model, serves it
with llama.cpp's own OpenAI server until its input ends, and prints the address.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_EMBED, _HEADS, _FEED, _CONTEXT, _ALIGN = 32, 2, 64, 8_192, 32
_U32, _F32, _STRING, _ARRAY, _I32, _BOOL = 4, 6, 8, 9, 5, 7
_UNKNOWN, _CONTROL, _NORMAL, _BYTE, _OWN = 2, 3, 1, 6, 4
CALLS = {"2": 100, "354": 90}
"""The `logit_bias` that makes it end if the grammar permits, and otherwise start a tool call."""
_TEMPLATE = """{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each call return <tool_call>
{"name": NAME, "arguments": OBJECT}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The form of tool calls for the model, that of the Hermes family: the server derives its grammar from it."""


def write_model(path: Path) -> None:
    """Write a llama of one layer whose tokens are the bytes."""
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *map(chr, range(32, 127)), "<tool_call>\n"]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * 95, _OWN]
    values: dict[str, tuple[int, Any]] = {
        "general.architecture": (_STRING, "llama"),
        "llama.context_length": (_U32, _CONTEXT),
        "llama.embedding_length": (_U32, _EMBED),
        "llama.block_count": (_U32, 1),
        "llama.feed_forward_length": (_U32, _FEED),
        "llama.attention.head_count": (_U32, _HEADS),
        "llama.attention.layer_norm_rms_epsilon": (_F32, 1e-5),
        "llama.rope.dimension_count": (_U32, _EMBED // _HEADS),
        "llama.vocab_size": (_U32, len(tokens)),
        "tokenizer.ggml.model": (_STRING, "llama"),
        "tokenizer.ggml.tokens": (_ARRAY, (_STRING, tokens)),
        "tokenizer.ggml.scores": (_ARRAY, (_F32, [0.0] * len(tokens))),
        "tokenizer.ggml.token_type": (_ARRAY, (_I32, kinds)),
        "tokenizer.ggml.bos_token_id": (_U32, 1),
        "tokenizer.ggml.eos_token_id": (_U32, 2),
        "tokenizer.ggml.unknown_token_id": (_U32, 0),
        "tokenizer.ggml.add_space_prefix": (_BOOL, False),
        "tokenizer.chat_template": (_STRING, _TEMPLATE),
    }
    square = ("attn_q", "attn_k", "attn_v", "attn_output")
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (_EMBED, len(tokens)),
        "output_norm.weight": (_EMBED,),
        "output.weight": (_EMBED, len(tokens)),
        "blk.0.attn_norm.weight": (_EMBED,),
        "blk.0.ffn_norm.weight": (_EMBED,),
        **{f"blk.0.{name}.weight": (_EMBED, _EMBED) for name in square},
        "blk.0.ffn_gate.weight": (_EMBED, _FEED),
        "blk.0.ffn_up.weight": (_EMBED, _FEED),
        "blk.0.ffn_down.weight": (_FEED, _EMBED),
    }
    path.write_bytes(_file(values, shapes))


def _file(values: Mapping[str, tuple[int, Any]], shapes: Mapping[str, Sequence[int]]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(values))
    head += b"".join(
        _text(key) + struct.pack("<I", kind) + _value(kind, value) for key, (kind, value) in values.items()
    )
    chance, data, infos = random.Random(7), b"", b""
    for name, shape in shapes.items():
        size = 1
        for side in shape:
            size *= side
        infos += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(array("f", [chance.gauss(0, 0.4) for _ in range(size)]).tobytes())
    return _padded(head + infos) + data


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _text(value)
    if kind == _ARRAY:
        of, items = value
        return struct.pack("<IQ", of, len(items)) + b"".join(_value(of, item) for item in items)
    return struct.pack({_U32: "<I", _F32: "<f", _I32: "<i", _BOOL: "<?"}[kind], value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGN)


def _serve(place: Path) -> None:
    import xllamacpp

    write_model(place / "tiny.gguf")
    params = xllamacpp.CommonParams()
    params.model.path = str(place / "tiny.gguf")
    params.n_ctx, params.n_parallel, params.n_predict = _CONTEXT, 2, 48
    params.port, params.warmup, params.use_jinja = 0, False, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
