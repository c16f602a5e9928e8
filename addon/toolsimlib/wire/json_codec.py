"""JSON text as it goes over the wire."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def dump(value: Any) -> str:
    """Return compact JSON in one line; a lone surrogate, which UTF-8 cannot carry, is escaped."""
    text = _encoder.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def dump_string(text: str) -> str:
    """Return one JSON string, quotes included: the hot path of every delta."""
    if text.isascii():
        return encode_basestring(text)
    return dump(text)
