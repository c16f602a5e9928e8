r"""Gemma 4's calls: ``call:f{location:<|"|>Paris<|"|>,days:3,tags:[<|"|>a<|"|>]}``.

    calls  := call (("," | ";" | whitespace)* call)*
    call   := [":"] ["call:"] name (object | "(" [pairs] ")" | "(" object ")") ["<turn|>"]
    object := "{" [pairs] "}"
    pairs  := pair ("," pair)*                      keys bare, or quoted like strings
    pair   := key (":" | "=") value
    value  := string | object | array | word        a word is JSON's or Python's, a number, or a string without quotes
    string := '<|"|>' text '<|"|>' | JSON string | "'" text "'"

Some servers remove special tokens from the model's output, and therefore also the quotes. A string without quotes
extends to the next comma that precedes a key, or to the closing bracket. A string that lacks only its opening quotation
mark, or begins with an apostrophe instead, is read in the same way (``MISSING_MARKER``). A call cannot be parsed if it
contains half of a quotation mark (``<|``), or a string that does not end. Removing a doubled quotation mark is a repair
(``DOUBLED_MARKER``), as is adding brackets that are missing at the end (``MISSING_BRACE``). Parsing runs in linear
time, limits the nesting depth, and never raises exceptions.

FunctionGemma's calls use a different quotation mark: ``call:f{location:<escape>Paris<escape>}``.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from toolsim.response.parsed_call import (
    DOUBLED_MARKER,
    EXTRA_BRACE,
    MAX_CALLS,
    MISSING_MARKER,
    ParsedCall,
    decode,
    read_value,
)
from toolsim.response.repair import MISSING_BRACE, PYTHON_WORDS
from toolsim.response.segments import end_of

QUOTE = '<|"|>'
FUNCTION_GEMMA_QUOTE = "<escape>"
HEAD = r":?(?:call:)?\s{0,8}([\w./-]{1,128}(?::[\w./-]{1,128})*)\s{0,8}"

_HEAD = re.compile(rf"[\s,;]*+{HEAD}(?:(?P<object>(?=\{{)|\(\s*(?=\{{))|(?=\())")
_SPACE = re.compile(r"\s*+")
_KEY = re.compile(r"[\w.$-]{1,256}+(?=\s{0,8}[:=])")
_SINGLE_KEY = re.compile(r"'([^'\\<>]{1,256})'(?=\s{0,8}[:=])")
_ITEM = re.compile(r"[^,{}\[\]]*+")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.|'(?!\s*+[,}\])]))*+)'", re.DOTALL)
_DOUBLED = re.compile(rf"(?:{re.escape(QUOTE)})++(?!\s*+[,}}\])])")
_HALF_QUOTE = re.compile(r"(?:<|&lt;)\||\|(?:>|&gt;)")
_HALF_ESCAPE = re.compile(r"<\W{0,2}escape|escape\W{0,2}>", re.IGNORECASE)
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


def _word(stops: str, separator: str) -> re.Pattern[str]:
    """Return a pattern for a string without quotes. The string ends at one of the ``stops``, or at a comma that is
    followed by another key.
    """
    plain = rf"[^,{stops}]*+"
    return re.compile(rf"{plain}(?:,(?!\s*+[\w.$-]{{1,256}}+\s{{0,8}}{separator}){plain})*+")


_WORDS = {
    (bracket, separator): _word(r"{}\[\]()" if bracket == "(" else r"{}\[\]", separator)
    for bracket in "{("
    for separator in ":="
}
_MAX_DEPTH = 64
_MAX_APOSTROPHES = 8
_TURN_END = "<turn|>"
"""A marker that some models write at the end of a call."""


def read_gemma(body: str) -> list[ParsedCall]:
    """Parse a body that consists of calls. The result contains at least one call. Text that cannot be parsed becomes
    one broken call at the end.
    """
    if FUNCTION_GEMMA_QUOTE not in body or QUOTE in body:
        return _read(body)
    body = body.replace(FUNCTION_GEMMA_QUOTE, QUOTE)
    calls = _read(body)
    return [*calls[:-1], replace(calls[-1], broken=True)] if _HALF_ESCAPE.search(body) else calls


def _read(body: str) -> list[ParsedCall]:
    body = body.rstrip().removesuffix(_TURN_END).rstrip()
    calls: list[ParsedCall] = []
    at = 0
    while at < len(body) and len(calls) < MAX_CALLS:
        head = _HEAD.match(body, at)
        reader = _Reader(body)
        got = reader.members(head.end(), 0) if head else None
        arguments = read_value(got[0]) if got else None
        if head is None or got is None or arguments is None:
            break
        end = got[1]
        if head["object"]:
            end = end_of(_SPACE, body, end)
            if not body.startswith(")", end):
                break
            end += 1
        calls.append(
            ParsedCall(body[at:end], head[1], given=arguments, codes=reader.codes, lossy_repairs=reader.lossy_repairs)
        )
        at = end
    rest = body[at:].strip(" \t\r\n,;")
    if calls and rest and not rest.strip("})] "):
        calls[-1] = replace(calls[-1], lossy_repairs=(*calls[-1].lossy_repairs, EXTRA_BRACE))
    elif rest or not calls:
        head = _HEAD.match(body, at)
        calls.append(ParsedCall(body[at:], head[1] if head else None, broken=True))
    return calls


class _Reader:
    """Parses the members of one call. ``codes`` and ``lossy_repairs`` contain the codes of the call's repairs."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.codes: tuple[str, ...] = ()
        self.lossy_repairs: tuple[str, ...] = ()
        # Number of apostrophes that do not begin a string. Each of them causes a search to the end of the text.
        self._apostrophes = 0

    def members(self, at: int, depth: int) -> tuple[str, int] | None:
        """Parse the object or array that opens at ``at``. Return its JSON and its end, or None if it is malformed."""
        text = self._text
        opening = text[at]
        closing = _CLOSERS[opening]
        members: list[str] = []
        at = end_of(_SPACE, text, at + 1)
        while not text.startswith(closing, at):
            if at == len(text) and members:
                self.lossy_repairs = (MISSING_BRACE,)
                break
            key = separator = ""
            if opening != "[":
                named = self._key(at)
                if named is None:
                    return None
                key, separator, at = named
            word = _WORDS[opening, separator] if opening != "[" else _ITEM
            value = self._value(at, depth + 1, word)
            if value is None:
                return None
            members.append(key + value[0])
            at = end_of(_SPACE, text, value[1])
            if text.startswith(",", at):
                at = end_of(_SPACE, text, at + 1)
            elif at < len(text) and not text.startswith(closing, at):
                return None
        brackets = "[]" if opening == "[" else "{}"
        return f"{brackets[0]}{','.join(members)}{brackets[1]}", min(at + 1, len(text))

    def _key(self, at: int) -> tuple[str, str, int] | None:
        """Parse a key and its separator. Return the key and a colon as JSON, the separator, and the start of the value.

        Returns None if there is no valid key.
        """
        text = self._text
        key = None
        if (bare := _KEY.match(text, at)) is not None:
            key = (json.dumps(bare[0]), bare.end())
        elif (single := _SINGLE_KEY.match(text, at)) is not None:
            key = (json.dumps(single[1]), single.end())
        else:
            key = self._quoted(at)
        if key is None:
            return None
        at = end_of(_SPACE, text, key[1])
        return (f"{key[0]}:", text[at], end_of(_SPACE, text, at + 1)) if text.startswith((":", "="), at) else None

    def _value(self, at: int, depth: int, bare: re.Pattern[str]) -> tuple[str, int] | None:
        text = self._text
        if depth > _MAX_DEPTH:
            return None
        if text.startswith(("{", "["), at):
            return self.members(at, depth)
        if text.startswith((QUOTE, '"'), at) or self._single(at):
            return self._quoted(at)
        word = bare.match(text, at)
        if word is None:
            return None
        inner = word[0].strip()
        if (quoted := inner.removesuffix(QUOTE)) != inner:
            self.codes = (MISSING_MARKER,)
            inner = json.dumps(quoted.removeprefix("'"), ensure_ascii=False)
        if _HALF_QUOTE.search(quoted):
            return None
        inner = PYTHON_WORDS.get(inner, inner)
        value = read_value(inner)
        return (inner if value is not None else json.dumps(inner, ensure_ascii=False)), word.end()

    def _quoted(self, at: int) -> tuple[str, int] | None:
        text = self._text
        if text.startswith(QUOTE, at):
            start = at + len(QUOTE)
            if (more := _DOUBLED.match(text, start)) is not None:
                start, self.codes = more.end(), (DOUBLED_MARKER,)
            end = text.find(QUOTE, start)
            if end == -1:
                return None
            inner = text[start:end]
            end += len(QUOTE)
            while text.startswith(QUOTE, end):
                end, self.codes = end + len(QUOTE), (DOUBLED_MARKER,)
            return json.dumps(inner, ensure_ascii=False), end
        if (single := self._single(at)) is not None:
            return json.dumps(single[1].replace("\\'", "'"), ensure_ascii=False), single.end()
        got = decode(text, at) if text.startswith('"', at) else None
        return None if got is None else (text[at : got[1]], got[1])

    def _single(self, at: int) -> re.Match[str] | None:
        if self._apostrophes > _MAX_APOSTROPHES or not self._text.startswith("'", at):
            return None
        found = _SINGLE.match(self._text, at)
        self._apostrophes += found is None
        return found
