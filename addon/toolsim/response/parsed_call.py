"""Parses the body of a tagged block into calls. The judge looks up the tools later.

    json := call | "[" call* "]" | call call…       commas, semicolons and whitespace can separate calls
    call := {"name": …, "arguments": …}             in any spelling of ``call_keys``
          | {"function": …, "arguments": …}         the name as a string
          | {"function": call} | {"custom": call}   OpenAI's wrappers, and others
          | {"tool_calls": [call, …]}
    xml  := <name>…</name> (<key>value</key>)*

1. Values are never re-serialized: the arguments of a call are a slice of the model's text, so that 1.0 remains 1.0 and
   a long integer keeps its digits.
2. Text that the JSON parser rejects is repaired in a single pass (``repair``), and each repair has a code.
3. Every function runs in linear time and never raises exceptions.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from toolsim.core.plan import Tool
from toolsim.response.call_keys import (
    ARGUMENTS_KEYS,
    CALL_KEYS,
    HEAD_WITH_SLIPS,
    LIST_KEYS,
    NAME_KEYS,
    NAME_OR_WRAPPER_KEYS,
    WRAPPER_KEYS,
)
from toolsim.response.misspelled import corrected, misspelled, spellings_of
from toolsim.response.repair import CLOSERS, MISSING_BRACE, UNESCAPED_ARGUMENTS, repair_json, unescaped_arguments
from toolsim.response.segments import end_of
from toolsim.wire.json_codec import too_deep

ARGUMENTS_KEY = "ARGUMENTS_KEY"
FUNCTION_WRAPPER = "FUNCTION_WRAPPER"
NAME_KEY = "NAME_KEY"
FENCE_INSIDE = "FENCE_INSIDE"
EXTRA_BRACE = "EXTRA_BRACE"
MISSING_CLOSE = "MISSING_CLOSE"
MISSING_MARKER = "MISSING_MARKER"
DOUBLED_MARKER = "DOUBLED_MARKER"
MISSPELLED_MARKER = "MISSPELLED_MARKER"

MARKER_REPAIRS = frozenset((MISSING_CLOSE, MISSING_MARKER, DOUBLED_MARKER, MISSPELLED_MARKER))
"""The codes of repairs to markers. These repairs do not change values, so they are also made for strict tools."""

MAX_CALLS = 64
"""Maximum number of calls that are read from one block. The rest of the block becomes one broken call."""

_MAX_MEMBERS = 256
"""Maximum number of top-level members of a call: the name, the arguments, and a few additional members."""

_BLOCKS = ("use_tool", "tool_call")
"""Names of elements that enclose a call, and are therefore never parameters."""

_SPACE = re.compile(r"[ \t\r\n]*+")
_BETWEEN = re.compile(r"[\s,;]*+")
_NAMED = re.compile(rf"\s*+\[?\s*+{HEAD_WITH_SLIPS}")
_ELEMENT = re.compile(r"<([^<>/\s][^<>/]{0,255})(/?)>")
_ELEMENT_NAMED = re.compile(r"\s*+<name>([^<]{1,256})</name>")
_LAST_ELEMENT = re.compile(r"<([^<>/\s][^<>/]{0,255})>([^<]*+)(?:</[^<>]{1,256}>)?\s*\Z")
_LINE_OPENING = re.compile(r"<([\w.-]{1,256}+)>")
_LINE_CLOSING = re.compile(r"</([\w.-]{1,256}+)>\Z")
_TWICE = re.compile(r"(\w)\1")
_CDATA = "<![CDATA["
_ENTITY = re.compile(r"&(lt|gt|amp|quot|apos);")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value and its source text."""

    source: str
    value: Any


@dataclass(frozen=True, slots=True)
class Elements:
    """Arguments as XML elements: the name and raw content of each element, in order."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Values:
    """Arguments in the syntax of a function call, each with its keyword, or with None if it is positional."""

    items: tuple[tuple[str | None, Json], ...]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call as the model wrote it."""

    source: str
    """The text of the call."""
    name: str | None = None
    """The tool's name, or None if it cannot be read."""
    broken: bool = False
    """Whether the text after the name cannot be parsed."""
    given: Json | Elements | Values | None = None
    """The arguments, or None if they are missing."""
    key: str = ARGUMENTS_KEYS[0]
    """The key of the arguments in the JSON, or "" if there are several such keys."""
    codes: tuple[str, ...] = ()
    """The codes of repairs that left all values unchanged."""
    lossy_repairs: tuple[str, ...] = ()
    """The codes of repairs that changed text."""
    unknown: Mapping[str, Json] = field(default_factory=dict)
    """The values of keys that do not belong to a call."""
    is_bare: bool = False
    """Whether the block might be part of a sentence about calls (``Block.is_bare``). If so, the arguments must match
    the schema.
    """

    @property
    def is_clean(self) -> bool:
        """Whether the call's text, including its markers, needs no repair."""
        return not (self.broken or self.lossy_repairs or MARKER_REPAIRS.intersection(self.codes))

    def repaired(self, code: str) -> ParsedCall:
        """Return a copy of this call with the code of another repair. The repair must not have changed any values."""
        return replace(self, codes=tuple(dict.fromkeys([*self.codes, code])))


def json_object(members: Mapping[str, Json]) -> Json:
    """Return a JSON object with these members, each with its original source."""
    source = ",".join(f"{json.dumps(name, ensure_ascii=False)}:{member.source}" for name, member in members.items())
    return Json(f"{{{source}}}", {name: member.value for name, member in members.items()})


class _NotJson(ValueError):
    """Raised for NaN and Infinity. Python parses them, although JSON has no such values."""


def _refuse_constant(word: str) -> NoReturn:
    raise _NotJson(word)


def _long_integer(digits: str) -> int:
    """Parse an integer. If it has more digits than Python can convert, return 10**4299 or -(10**4299) instead.

    Only the schema check uses this number. The client receives the model's digits.
    """
    try:
        return int(digits)
    except ValueError:
        return -(10**4299) if digits.startswith("-") else 10**4299


# The first decoder runs entirely in C. The second calls back into Python for each integer, but is needed only for very
# long integers.
_decode_plain = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
_decode_long = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_long_integer).raw_decode


def decode(text: str, start: int) -> tuple[Any, int] | None:
    """Parse the JSON value that begins exactly at ``start``; return the value and its end, or None if there is no valid
    JSON.
    """
    got = _decode(text, start)
    return None if got is None or too_deep(text[start : got[1]]) else got


def _decode(text: str, start: int) -> tuple[Any, int] | None:
    try:
        try:
            return _decode_plain(text, start)
        except (json.JSONDecodeError, _NotJson):
            return None
        except ValueError:  # The integer has more than sys.get_int_max_str_digits() digits.
            return _decode_long(text, start)
    except (ValueError, RecursionError):
        return None


def read_value(text: str) -> Json | None:
    """Parse text that consists of one JSON value and whitespace, or return None for any other text. The value's
    ``source`` is the entire text.
    """
    got = decode(text, _skip(text, 0))
    return None if got is None or _skip(text, got[1]) != len(text) else Json(text, got[0])


def read_object(text: str, start: int) -> tuple[dict[str, Json], int] | None:
    """Parse the object that begins at ``start``, keeping each member's own source; return its members and its end, or
    None if it is invalid.
    """
    pairs = read_pairs(text, start)
    return None if pairs is None else (dict(pairs[0]), pairs[1])


def read_pairs(text: str, start: int) -> tuple[list[tuple[str, Json]], int] | None:
    """Parse the object that begins at ``start``; return its pairs in order, including repeated keys, and its end.

    Returns None if the text is not a valid object, or has too many members.
    """
    if not text.startswith("{", start):
        return None
    pairs: list[tuple[str, Json]] = []
    at = _skip(text, start + 1)
    if text.startswith("}", at):
        return pairs, at + 1
    for _ in range(_MAX_MEMBERS):
        key = decode(text, at) if text.startswith('"', at) else None
        if key is None or not text.startswith(":", colon := _skip(text, key[1])):
            return None
        at = _skip(text, colon + 1)
        value = decode(text, at)
        if value is None:
            return None
        pairs.append((key[0], Json(text[at : value[1]], value[0])))
        at = _skip(text, value[1])
        if text.startswith("}", at):
            return pairs, at + 1
        if not text.startswith(",", at):
            return None
        at = _skip(text, at + 1)
    return None


def read_items(text: str, start: int) -> list[Json] | None:
    """Parse the array that begins at ``start``, keeping each item's own source; return None if it is invalid or too
    long.
    """
    found: list[Json] = []
    at = _skip(text, start + 1)
    while (item := decode(text, at)) is not None and len(found) < _MAX_MEMBERS:
        found.append(Json(text[at : item[1]], item[0]))
        at = _skip(text, item[1])
        if text.startswith("]", at):
            return found
        at = _skip(text, at + 1)
    return None


def _skip(text: str, at: int) -> int:
    return end_of(_SPACE, text, at)


def read_json(body: str, *, closed: bool, repair: bool) -> list[ParsedCall]:
    """Parse the calls in a JSON body, in order. The result contains at least one call.

    Without ``repair``, the body must be one valid JSON call or a list of calls. Missing brackets at the end are added
    only if the body is ``closed`` by a tag. Text that cannot be parsed becomes one broken call at the end.
    """
    if repair and (inner := _fenced(body)) is not None:
        fenced = read_json(inner, closed=closed, repair=True)
        return [replace(call, codes=(FENCE_INSIDE, *call.codes)) for call in fenced]
    if not repair:
        return _read_strictly(body) or [ParsedCall(body, name_of(body), broken=True)]
    if (listed_calls := _tool_calls(body)) is not None:
        return listed_calls
    calls: list[ParsedCall] = []
    at = _space_end(body)
    listed = body.startswith("[", at)
    at = end_of(_BETWEEN, body, at + listed)
    while at < len(body):
        if (calls or listed) and CLOSERS.match(body, at):
            surplus = body[at:].split() != ["]"] if listed else True
            if surplus and calls:
                calls[-1] = replace(calls[-1], lossy_repairs=(*calls[-1].lossy_repairs, EXTRA_BRACE))
            break
        call, end = _next_call(body, at, closed=closed) if len(calls) < MAX_CALLS else (None, 0)
        if call is None:
            calls.append(ParsedCall(body[at:], name_of(body[at:]), broken=True))
            break
        calls.append(call)
        at = end_of(_BETWEEN, body, end)
    else:
        if listed and calls:
            calls[-1] = replace(calls[-1], lossy_repairs=(*calls[-1].lossy_repairs, MISSING_BRACE))
    return calls or [ParsedCall(body, broken=True)]


def _read_strictly(body: str) -> list[ParsedCall]:
    """Parse an object, or a list of objects, that is strictly JSON; return [] for any other text."""
    start = _skip(body, 0)
    if not body.startswith("[", start):
        got = read_object(body, start)
        return [_call(body, got[0], repair=False)] if got is not None and not body[got[1] :].strip() else []
    whole = decode(body, start)
    if whole is None or body[whole[1] :].strip():
        return []
    calls: list[ParsedCall] = []
    for item in read_items(body, start) or ():
        got = read_object(item.source, 0)
        if got is None:
            return []
        calls.append(_call(item.source, got[0], repair=False))
    return calls


def _fenced(body: str) -> str | None:
    """Return the content of a fence that makes up the entire body, or None if the body is not a fence."""
    bare = body.strip()
    line = bare.find("\n")
    if line == -1 or not bare.startswith("```") or not bare.endswith("```") or bare[3:line].strip("`\r \t").count(" "):
        return None
    return bare[line + 1 :].rstrip("`")


def _tool_calls(body: str) -> list[ParsedCall] | None:
    """Parse ``{"tool_calls": [call, …]}``; return None for any other body."""
    got = read_object(body, _space_end(body))
    if got is None or body[got[1] :].strip() or NAME_OR_WRAPPER_KEYS.intersection(got[0]):
        return None
    listed = next((got[0][key] for key in LIST_KEYS if key in got[0]), None)
    if listed is None or not isinstance(listed.value, list) or not listed.value:
        return None
    unknown = {key: value for key, value in got[0].items() if key not in LIST_KEYS and key not in CALL_KEYS}
    calls = read_json(listed.source, closed=True, repair=True)
    return [replace(call, codes=(FUNCTION_WRAPPER, *call.codes), unknown={**unknown, **call.unknown}) for call in calls]


def _space_end(text: str) -> int:
    return len(text) - len(text.lstrip())


def _next_call(body: str, at: int, *, closed: bool) -> tuple[ParsedCall | None, int]:
    if got := read_object(body, at):
        members, end = got
        return _call(body[at:end], members, repair=True), end
    quote = unescaped_arguments(body, at)
    if quote is not None and (value := decode(body, _skip(body, quote + 1))):
        unquoted = _skip(body, value[1])
        text = body[at:quote] + body[quote + 1 : unquoted] + body[unquoted + 1 :]
        if body.startswith('"', unquoted) and (got := read_object(text, 0)):
            members, length = got
            end = at + length + 2
            return replace(_call(body[at:end], members, repair=True), lossy_repairs=(UNESCAPED_ARGUMENTS,)), end
    repaired = repair_json(body, at, closed=closed)
    if repaired is not None and (got := read_object(repaired.text, 0)) and got[1] == len(repaired.text):
        call = _call(body[at : repaired.end], got[0], repair=True)
        return replace(call, lossy_repairs=repaired.codes), repaired.end
    return None, at


def _call(source: str, members: dict[str, Json], *, repair: bool) -> ParsedCall:
    codes: tuple[str, ...] = ()
    unknown: dict[str, Json] = {}
    names = [key for key in NAME_KEYS if key in members] if repair else ["name"]
    if not names:
        for key in WRAPPER_KEYS:
            inner = read_object(members[key].source, 0) if key in members else None
            if inner is not None:
                unknown = {other: members[other] for other in members if other not in CALL_KEYS and other != key}
                members, codes = inner[0], (FUNCTION_WRAPPER,)
                names = [key for key in NAME_KEYS if key in members]
                break
        else:
            names = ["function"]
    # An object may have two keys for the tool's name, because one of them may be a parameter.
    named = names[0] if names else "name"
    if named in NAME_KEYS[1:]:
        codes = (*codes, NAME_KEY)
    unknown |= {
        key: value for key, value in members.items() if key != named and (key not in CALL_KEYS or key in NAME_KEYS)
    }
    name = members[named].value if named in members else None
    given = members.get(ARGUMENTS_KEYS[0])
    aliases = [key for key in ARGUMENTS_KEYS[1:] if key in members]
    key = ARGUMENTS_KEYS[0]
    if (given is None or given.value is None) and aliases:
        key = aliases[0] if len(aliases) == 1 else ""
        given = members[aliases[0]]
    found = name if isinstance(name, str) and name.strip() else None
    return ParsedCall(source, found, given=given, key=key, codes=codes, unknown=unknown)


def respelled(
    read: Callable[[str], list[ParsedCall]],
    body: str,
    markers: tuple[str, ...],
    openers: tuple[tuple[str, str], ...] = (),
) -> list[ParsedCall]:
    """Parse a body. If this fails, correct all misspelled markers, and parse the body again (``misspelled``)."""
    calls = read(body)
    if not calls[-1].broken or (right := corrected(body, markers, openers)) == body:
        return calls
    again = read(right)
    return calls if again[-1].broken else [call.repaired(MISSPELLED_MARKER) for call in again]


def name_of(source: str) -> str | None:
    """Return the tool's name from the beginning of a malformed body, or None if there is no name."""
    found = _NAMED.match(source) or _ELEMENT_NAMED.match(source)
    return found[1] if found and found[1].strip() else None


def read_xml(body: str) -> ParsedCall:
    """Parse ``<name>x</name><param>value</param>…``.

    Models do not escape values, so a value ends only at the first closing tag with its own name.
    """
    lossy_repairs: tuple[str, ...] = ()
    codes: list[str] = []
    elements = read_elements(body, codes)
    if elements is None and (elements := _read_lines(body)) is not None:
        codes = [MISSPELLED_MARKER]
    if elements is None and (last := _LAST_ELEMENT.search(body)) is not None:
        # The last value has no closing tag, or a wrong one. The value then extends to the end of the block.
        elements = read_elements(f"{body[: last.end(2)]}</{last[1]}>")
        lossy_repairs = (MISSING_CLOSE,)
    # A nested block means that the outer block was not closed.
    if not elements or elements[0][0] != "name" or any(name in _BLOCKS for name, _ in elements):
        return ParsedCall(body, name_of(body), broken=True)
    name = unescape(elements[0][1]).strip()
    return ParsedCall(
        body, name or None, given=Elements(tuple(elements[1:])), codes=tuple(codes), lossy_repairs=lossy_repairs
    )


def _read_lines(body: str) -> list[tuple[str, str]] | None:
    """Parse elements, one per line. If one of an element's tags is misspelled or missing, the other tag determines the
    name. Returns None for any other text.
    """
    found: list[tuple[str, str]] = []
    lines = [*filter(None, map(str.strip, body.split("\n")))]
    for at, line in enumerate(lines, 1):
        opening, closing = _LINE_OPENING.match(line), _LINE_CLOSING.search(line)
        names = {name for tag in (opening, closing) if tag for name in [tag[1]]}
        if len(found) > _MAX_MEMBERS or not names:
            return None
        # Models omit and add letters equally often. The longer name is preferred, unless it contains a doubled letter.
        name = max(names, key=lambda name: (-len(_TWICE.findall(name)), len(name)))
        if len(names) > 1 and not names - {name} <= misspelled(name):
            return None
        before = f"<{name}>" if line.startswith(f"<{name}>") else spellings_of(f"<{name}>").at(line, 0)
        after = f"</{name}>" if line.endswith(f"</{name}>") else spellings_of(f"</{name}>").before(line[len(before) :])
        value = line[len(before) : len(line) - len(after)]
        if "<" in value or ">" in value or (at == len(lines) and not after):
            return None
        found.append((name, value))
    return found


def read_elements(text: str, codes: list[str] | None = None) -> list[tuple[str, str]] | None:
    """Parse a sequence of elements as pairs of name and raw content; return None for any other text.

    Whitespace between elements is allowed. If ``codes`` is given, doubled tags are accepted, and the code of this
    repair is stored in ``codes``.
    """
    found: list[tuple[str, str]] = []
    at = _skip(text, 0)
    while at < len(text):
        if len(found) > _MAX_MEMBERS:
            return None
        tag = _ELEMENT.match(text, at)
        if tag is None:
            return None
        name, at = tag[1].rstrip(), tag.end()
        content = ""
        if not tag[2]:
            closing = f"</{name}>"
            if codes is not None and text.startswith(tag[0], again := _skip(text, at)):
                at = again + len(tag[0])
                codes[:] = [DOUBLED_MARKER]
            # In a CDATA section, the closing tag of the element is part of the content.
            data = text.find("]]>", at) if text.startswith(_CDATA, _skip(text, at)) else -1
            end = text.find(closing, max(at, data))
            if end == -1:
                return None
            content, at = text[at:end], end + len(closing)
            while codes is not None and text.startswith(closing, again := _skip(text, at)):
                at = again + len(closing)
                codes[:] = [DOUBLED_MARKER]
        found.append((name, content))
        at = _skip(text, at)
    return found


def unescape(text: str) -> str:
    """Replace XML's five predefined entities in a single pass. Any other ``&`` or ``<`` is literal, as is all text in a
    CDATA section.
    """
    bare = text.strip()
    if _is_cdata(bare):
        # A CDATA section cannot contain its end marker, so XML writers split a text that contains ``]]>`` into two
        # sections.
        return bare[len(_CDATA) : -3].replace(f"]]]]>{_CDATA}>", "]]>")
    return _ENTITY.sub(lambda entity: _ENTITIES[entity[1]], text)


def escape(text: str) -> str:
    """Return text that ``unescape`` converts back to ``text``, unless ``text`` looks like a CDATA section.

    Such text is returned unchanged, so ``unescape`` returns only the content of the section.
    """
    return text if _is_cdata(text.strip()) else text.replace("&", "&amp;")


def _is_cdata(bare: str) -> bool:
    return bare.startswith(_CDATA) and bare.endswith("]]>")


def trim(text: str) -> str:
    """Strip one newline from each end of a value that is on separate lines; all other whitespace is content."""
    inner = text.removeprefix("\r").removeprefix("\n") if text.startswith(("\n", "\r\n")) else ""
    return inner[:-1].removesuffix("\r") if inner.endswith("\n") else text


def use_tool_text(tool: Tool, arguments: str) -> str:
    """Return one call as canonical ``<use_tool>`` text, with escaped values, and parameters in the schema's order.

    Strings are written as text, all other values as the JSON that the model wrote. ``arguments`` is the JSON text of an
    object, or a custom tool's input, which becomes the single parameter ``input``.
    """
    members, _ = read_object(arguments.lstrip(), 0) or ({}, 0)
    values = {name: of.value if isinstance(of.value, str) else of.source for name, of in members.items()}
    if tool.kind == "custom":
        values = {"input": arguments}
    order = [name for name in tool.declared if name in values]
    lines = ["<use_tool>", f"  <name>{html.escape(tool.name, quote=False)}</name>"]
    lines += [
        f"  <{name}>{html.escape(values[name], quote=False)}</{name}>" for name in dict.fromkeys([*order, *values])
    ]
    return "\n".join([*lines, "</use_tool>"])
