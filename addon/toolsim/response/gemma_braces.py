r"""Gemma 4's calls: ``call:f{location:<|"|>Paris<|"|>,days:3,tags:[<|"|>a<|"|>]}``.

    call   := [":"] "call:" name object ["<turn|>"]
    object := "{" [pair ("," pair)*] "}"            keys bare, or quoted like strings
    pair   := key ":" value
    value  := string | object | array | word        a word is JSON's, a number, or a string that lost its quotes
    string := '<|"|>' text '<|"|>' | JSON string

A server that drops special tokens drops the quotes: a string then extends to the next comma that a key follows, or to
the closing bracket. Linear, bounded in depth; nothing raises.
"""

from __future__ import annotations

import json
import re

from toolsim.response.pieces import end_of
from toolsim.response.written import Written, decode, read_value

QUOTE = '<|"|>'
HEAD = r":?call:\s{0,8}([\w.:/-]{1,128})\s{0,8}"

_HEAD = re.compile(rf"\s*{HEAD}(?=\{{)")
_SPACE = re.compile(r"\s*+")
_KEY = re.compile(r"[\w.$-]{1,256}+(?=\s{0,8}:)")
_WORD = re.compile(r"[^,{}\[\]]*+(?:,(?!\s*+[\w.$-]{1,256}+\s{0,8}:)[^,{}\[\]]*+)*+")
_ITEM = re.compile(r"[^,{}\[\]]*+")
_MAX_DEPTH = 64
_TURN_END = "<turn|>"
"""What some models close a call with."""


def read_gemma(body: str) -> list[Written]:
    """Read ``call:f{…}`` that is all of the body."""
    head = _HEAD.match(body)
    body = body.rstrip().removesuffix(_TURN_END)
    got = _members(body, head.end(), 0) if head else None
    arguments = read_value(got[0]) if got and not body[got[1] :].strip() else None
    if head is None or arguments is None:
        return [Written(body, head[1] if head else None, broken=True)]
    return [Written(body, head[1], arguments=arguments)]


def _members(text: str, at: int, depth: int) -> tuple[str, int] | None:
    """Read the object or the array whose bracket is at ``at``; return it as JSON, and its end."""
    opening = text[at]
    closing = "}" if opening == "{" else "]"
    members: list[str] = []
    at = end_of(_SPACE, text, at + 1)
    while not text.startswith(closing, at):
        key = ""
        if opening == "{":
            named = _key(text, at)
            if named is None:
                return None
            key, at = named
        value = _value(text, at, depth + 1, _WORD if key else _ITEM)
        if value is None:
            return None
        members.append(key + value[0])
        at = end_of(_SPACE, text, value[1])
        if text.startswith(",", at):
            at = end_of(_SPACE, text, at + 1)
        elif not text.startswith(closing, at):
            return None
    return f"{opening}{','.join(members)}{closing}", at + 1


def _key(text: str, at: int) -> tuple[str, int] | None:
    """Read a key and its colon; return them as JSON, and where the value begins."""
    key = _quoted(text, at)
    if key is None and (bare := _KEY.match(text, at)) is not None:
        key = (json.dumps(bare[0]), bare.end())
    if key is None:
        return None
    colon = end_of(_SPACE, text, key[1])
    return (f"{key[0]}:", end_of(_SPACE, text, colon + 1)) if text.startswith(":", colon) else None


def _value(text: str, at: int, depth: int, bare: re.Pattern[str]) -> tuple[str, int] | None:
    if depth > _MAX_DEPTH:
        return None
    if text.startswith(("{", "["), at):
        return _members(text, at, depth)
    if text.startswith((QUOTE, '"'), at):
        return _quoted(text, at)
    word = bare.match(text, at)
    if word is None or word.end() == len(text):
        return None
    inner = word[0].strip()
    value = read_value(inner)
    return (inner if value is not None else json.dumps(inner, ensure_ascii=False)), word.end()


def _quoted(text: str, at: int) -> tuple[str, int] | None:
    if text.startswith(QUOTE, at):
        end = text.find(QUOTE, at + len(QUOTE))
        inner = text[at + len(QUOTE) : end]
        return None if end == -1 else (json.dumps(inner, ensure_ascii=False), end + len(QUOTE))
    got = decode(text, at) if text.startswith('"', at) else None
    return None if got is None else (text[at : got[1]], got[1])
