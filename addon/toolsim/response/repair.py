r"""Safe repairs of calls, for small errors ("slips") whose correction is obvious.

The slips and their repairs:

    {"a": 1,}               {"a": 1}            TRAILING_COMMA
    {'a': 'it\'s'}          {"a": "it's"}       SINGLE_QUOTES
    {"a": True, "b": None}  {"a": true, …}      PYTHON_LITERAL
    {a: 1}                  {"a": 1}            UNQUOTED_KEY
    {"a": "x<newline>y"}    {"a": "x\ny"}       RAW_CONTROL
    {"a": "\d"}             {"a": "\\d"}        BAD_ESCAPE
    {"a": {"b": 1}          {"a": {"b": 1}}     MISSING_BRACE
    {"a": {"b": 1]}         {"a": {"b": 1}}     WRONG_BRACKET

1. Values are never guessed. Therefore, an unterminated string, a missing comma and a missing colon are not repaired. A
   wrong bracket is repaired only if no text except brackets follows, because the value is then unambiguous.
2. A repaired call is accepted only if it satisfies the tool's schema, which the caller checks.
3. A repair is a single pass with a bounded number of steps, because text with too many slips is not a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from toolsim.core.report import name_before_token

TRAILING_COMMA = "TRAILING_COMMA"
SINGLE_QUOTES = "SINGLE_QUOTES"
RAW_CONTROL = "RAW_CONTROL"
BAD_ESCAPE = "BAD_ESCAPE"
MISSING_BRACE = "MISSING_BRACE"
WRONG_BRACKET = "WRONG_BRACKET"
PYTHON_LITERAL = "PYTHON_LITERAL"
UNQUOTED_KEY = "UNQUOTED_KEY"
UNESCAPED_ARGUMENTS = "UNESCAPED_ARGUMENTS"

_MAX_DEPTH = 512
"""Maximum number of open brackets. Real calls never have that many, and JSON parsers reject deeper nesting."""

_MAX_STEPS = 20_000
"""Maximum number of brackets and slips in a text that is repaired (rule 3)."""

_VALID_STRING = r'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"'
# Text that can be copied unchanged: valid strings, commas before a value, empty objects and arrays, numbers, and
# whitespace.
_RUN = re.compile(
    r"(?:[^\"'{}\[\],A-Za-z_]++|(?![TFN])[A-Za-z_]\w*+(?!\s*+:)|"
    + _VALID_STRING
    + r"|,(?!\s*+(?:[}\]]|\Z))|\{\s*+\}|\[\s*+\])++"
)
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""JSON's literals, by their spelling in Python."""
CLOSERS = re.compile(r"[\s}\]]*+\Z")
"""A pattern for closing brackets up to the end of the text."""
_DOUBLE = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_SINGLE = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
_SINGLE_INNER = re.compile(r"\\(.)|\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([\"\\/bfnrt]|u[0-9a-fA-F]{4})|('?))")
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x20)} | {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_CONTROL = re.compile(r"[\x00-\x1f]")
_WORD = re.compile(r"[A-Za-z_]\w*+(\s*+:)?")

_UNESCAPED = re.compile(r'"(?:arguments|parameters)"\s*+:\s*+"(?=\s*+\{)')

_MAX_NAME = 256
"""Maximum length of a misspelled name, in characters. This is twice the API's limit for tool names."""

_AFFIXES = re.compile(r"^(?:functions?|tools?|default_api)[./:]+|:\d+$", re.IGNORECASE)
# The recipient of a message in gpt-oss's form, after the role and the channel.
_RECIPIENT = re.compile(r".*\bto=(?=\w)", re.DOTALL)
# A name in Kimi's form, functions.exec:5, without its separators.
_PREFIX = re.compile(r"functions?[._:]?", re.IGNORECASE)
_SEPARATOR = tuple("._:/-")
_SEPARATORS = re.compile(r"[._:/-]+")


@dataclass(frozen=True, slots=True)
class RepairedJson:
    """Repaired JSON text."""

    text: str
    end: int
    """The position in the original text at which the repaired JSON ends."""
    codes: tuple[str, ...]
    """The codes of the slips that were repaired, without duplicates."""


def repair_json(text: str, start: int = 0, *, closed: bool = True) -> RepairedJson | None:
    """Repair the object or array that begins at ``start``. Return None if it cannot be repaired safely.

    ``closed``: whether the text is complete, in which case missing brackets are added at the end. The result is not
    always valid JSON.
    """
    if text[start : start + 1] not in {"{", "["}:
        return None
    out: list[str] = []
    codes: dict[str, None] = {}
    stack: list[str] = []
    at = start
    for _ in range(_MAX_STEPS):
        if at == len(text):
            if not closed:
                return None
            codes[MISSING_BRACE] = None
            out += reversed(stack)
            return RepairedJson("".join(out), at, tuple(codes))
        # The first bracket must be pushed onto the stack, even if it opens an empty object or array.
        if stack and (run := _RUN.match(text, at)):
            out.append(run[0])
            at = run.end()
            continue
        match char := text[at]:
            case "{" | "[":
                stack.append("}" if char == "{" else "]")
                if len(stack) > _MAX_DEPTH:
                    return None
                out.append(char)
                at += 1
            case "}" | "]":
                wanted = stack.pop()
                if wanted != char and WRONG_BRACKET not in codes:
                    if not (closed and CLOSERS.match(text, at)):
                        return None
                    codes[WRONG_BRACKET] = None
                out.append(wanted)
                at += 1
                if not stack:
                    return RepairedJson("".join(out), at, tuple(codes))
            case ",":  # A bracket or the end of the text follows.
                codes[TRAILING_COMMA] = None
                at += 1
            case '"' | "'":
                string = (_DOUBLE if char == '"' else _SINGLE).match(text, at)
                if string is None:  # The end of the string is missing, perhaps together with a part of the value.
                    return None
                inner = string[1]
                if char == "'":
                    codes[SINGLE_QUOTES] = None
                    inner = _SINGLE_INNER.sub(_requote, inner)
                out.append(f'"{_clean(inner, codes)}"')
                at = string.end()
            case _:
                word = _WORD.match(text, at)
                if word is None:
                    return None
                if word[1]:
                    codes[UNQUOTED_KEY] = None
                    out.append(f'"{word[0][: -len(word[1])]}":')
                elif word[0] in PYTHON_WORDS:
                    codes[PYTHON_LITERAL] = None
                    out.append(PYTHON_WORDS[word[0]])
                else:
                    return None
                at = word.end()
    return None


def _requote(match: re.Match[str]) -> str:
    match match[0]:
        case '"':
            return '\\"'
        case "\\'":
            return "'"
    return match[0]


def _escape(match: re.Match[str]) -> str:
    return match[0] if match[1] else match[2] or "\\\\"


def _clean(inner: str, codes: dict[str, None]) -> str:
    # Escapes are replaced first. A backslash directly before a raw newline is not an escape.
    escaped = _ESCAPE.sub(_escape, inner)
    if escaped != inner:
        codes[BAD_ESCAPE] = None
        inner = escaped
    if _CONTROL.search(inner):
        codes[RAW_CONTROL] = None
        inner = inner.translate(_CONTROLS)
    return inner


def unescaped_arguments(text: str, start: int) -> int | None:
    """Return the position of the quote before arguments with unescaped quotes, as in ``"arguments":"{"k":1}"``. Returns
    None if there are no such arguments.
    """
    found = _UNESCAPED.search(text, start)
    return None if found is None else found.end() - 1


def fit_name(written: str, names: Iterable[tuple[str, str]]) -> str | None:
    """Return the tool that a misspelled name refers to, or None if no tool matches or several tools match.

    The following corrections are tried in this order until a tool matches: a special token and text after the name
    (``f<|channel|>commentary``); a prefix or number that some models add (``functions.f:0``); different case; different
    separators; a prefix without its separator (``functionsf``); a repeated name (``ff``); a namespace before the name.

    ``names``: pairs of a spelling and the tool that it means. Masked tools are included, because a misspelled name of a
    masked tool must not be corrected to the name of a similar tool.
    """
    if len(written) > _MAX_NAME:
        return None
    spellings = list(names)
    bare = name_before_token(_RECIPIENT.sub("", written)).strip()
    plain = _AFFIXES.sub("", bare).strip()
    for wanted, form in (
        ({bare}, str),
        ({plain}, str),
        ({plain.casefold()}, str.casefold),
        ({common_spelling(bare)}, common_spelling),
        ({common_spelling(plain)}, common_spelling),
        (set(map(common_spelling, _run_together(bare))), common_spelling),
        (set(map(common_spelling, _repeated(plain))), common_spelling),
        ({common_spelling(plain.rpartition(":")[2])}, common_spelling),
    ):
        if fits := {tool for spelling, tool in spellings if form(spelling) in wanted}:
            return fits.pop() if len(fits) == 1 else None
    return None


def _run_together(name: str) -> list[str]:
    """Return the tool names that may be meant by a name with a prefix but no separators, such as ``functionsexec12``.

    The last digits may be the number of the call rather than part of the name.
    """
    prefix = _PREFIX.match(name)
    inner = "" if prefix is None else name[prefix.end() :]
    digits = len(inner) - len(inner.rstrip("0123456789"))
    return [inner[: len(inner) - count].rstrip("._:") for count in range(digits + 1)] if inner else []


def _repeated(name: str) -> list[str]:
    """Return every name that yields ``name`` when it is repeated two or more times, with or without separators."""
    found: list[str] = []
    for length in range(2, len(name) // 2 + 1):
        unit, at = name[:length], length
        while name.startswith(unit, at + (name[at : at + 1] in _SEPARATOR)):
            at += length + (name[at] in _SEPARATOR)
        if at == len(name):
            found.append(unit)
    return found


@lru_cache(maxsize=4096)
def common_spelling(name: str) -> str:
    """Return a name for comparisons: in lowercase, and with any run of ``.``, ``_``, ``:``, ``/`` and ``-`` as one
    ``_``.
    """
    return _SEPARATORS.sub("_", name).casefold()
