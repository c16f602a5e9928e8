"""A language model of a few kilobytes with random weights, as a GGUF file that llama.cpp can load and run.

The file format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

_UINT32, _FLOAT32, _STRING, _ARRAY, _INT32 = 4, 6, 8, 9, 5
_ALIGNMENT = 32
_WIDTH, _HIDDEN = 32, 64
# The first three tokens are special. They are followed by one token per byte, so the model can write any text.
_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
_UNKNOWN, _CONTROL, _NORMAL, _BYTE = 2, 3, 1, 6
_KINDS = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, _NORMAL]


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _number(kind: int, form: str, value: float) -> bytes:
    return struct.pack(f"<I{form}", kind, value)


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    return struct.pack("<IIQ", _ARRAY, kind, len(values)) + b"".join(values)


def _metadata() -> dict[str, bytes]:
    numbers = {
        "context_length": 16_384,
        "embedding_length": _WIDTH,
        "block_count": 1,
        "feed_forward_length": _HIDDEN,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "rope.dimension_count": _WIDTH,
        "vocab_size": len(_TOKENS),
    }
    return {
        "general.architecture": struct.pack("<I", _STRING) + _text("llama"),
        **{f"llama.{name}": _number(_UINT32, "I", value) for name, value in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": _number(_FLOAT32, "f", 1e-5),
        "tokenizer.ggml.model": struct.pack("<I", _STRING) + _text("llama"),
        "tokenizer.ggml.tokens": _array(_STRING, [_text(token) for token in _TOKENS]),
        "tokenizer.ggml.scores": _array(_FLOAT32, [struct.pack("<f", 0.0)] * len(_TOKENS)),
        "tokenizer.ggml.token_type": _array(_INT32, [struct.pack("<i", kind) for kind in _KINDS]),
        "tokenizer.ggml.bos_token_id": _number(_UINT32, "I", 1),
        "tokenizer.ggml.eos_token_id": _number(_UINT32, "I", 2),
    }


def _tensors() -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yield the name and dimensions of each tensor, fastest-varying dimension first."""
    square, vocabulary = (_WIDTH, _WIDTH), (_WIDTH, len(_TOKENS))
    yield "token_embd.weight", vocabulary
    yield "output_norm.weight", (_WIDTH,)
    yield "output.weight", vocabulary
    yield from ((f"blk.0.attn_{name}.weight", square) for name in ("q", "k", "v", "output"))
    yield from ((f"blk.0.{name}_norm.weight", (_WIDTH,)) for name in ("attn", "ffn"))
    yield from ((f"blk.0.ffn_{name}.weight", (_WIDTH, _HIDDEN)) for name in ("gate", "up"))
    yield "blk.0.ffn_down.weight", (_HIDDEN, _WIDTH)


def write_tiny_model(file: Path) -> None:
    """Write the model to a file."""
    metadata, tensors = _metadata(), list(_tensors())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(name) + value for name, value in metadata.items())
    draw, weights = random.Random(1), b""
    for name, dimensions in tensors:
        head += _text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, 0, len(weights))
        count = dimensions[0] * (dimensions[1] if len(dimensions) > 1 else 1)
        weights += struct.pack(f"<{count}f", *(draw.gauss(0, 1) for _ in range(count)))
        weights += bytes(-len(weights) % _ALIGNMENT)
    file.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + weights)
