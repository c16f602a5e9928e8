"""Parses a call's arguments, in any form that models write, into text for the client and a value to be checked.

| tool     | what the model wrote                  | text for the client                            |
|----------|---------------------------------------|------------------------------------------------|
| function | an object, or a string with its JSON  | the object as the model wrote it               |
| function | nothing, null, an empty string        | ``{}``                                         |
| function | XML elements                          | an object; the schema determines the types     |
| function | one element that contains all others  | an object with the content of this element     |
| function | a string with the same object twice   | the object, once                               |
| function | values in call syntax                 | an object, by keyword or in the schema's order |
| custom   | ``{"input": "…"}``, as JSON or XML    | the input                                      |
| custom   | any other string                      | the string                                     |

The model saw a custom tool as a function with one string parameter, ``input``. This module does not add to the report
or return verdicts; the result None means that the arguments cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolsim.core.plan import Tool
from toolsim.response.checker import SchemaChecker
from toolsim.response.parsed_call import (
    ARGUMENTS_KEY,
    EXTRA_BRACE,
    Elements,
    Json,
    ParsedCall,
    Values,
    decode,
    json_object,
    read_elements,
    read_value,
    trim,
    unescape,
)
from toolsim.response.repair import repair_json
from toolsim.response.value_types import ElementTypes

DOUBLE_ENCODED = "DOUBLE_ENCODED"
REPEATED_ARGUMENTS = "REPEATED_ARGUMENTS"

Items = tuple[tuple[str, str], ...]
"""The names and raw contents of elements, in order."""

_WHOLE = ("arguments", "parameters")
"""Names of elements that enclose all arguments, unless the tool has a parameter with the same name."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Parsed arguments."""

    text: str
    """The arguments as JSON text, as the client receives them."""
    value: Any
    """The value for the schema check. For a custom tool, it is the same string as ``text``."""
    codes: tuple[str, ...] = ()
    """The codes of repairs that kept all values."""
    lossy_repairs: tuple[str, ...] = ()
    """The codes of repairs that changed text."""


_NONE = Arguments("{}", {})


def function_arguments(written: ParsedCall, tool: Tool, checker: SchemaChecker, *, repair: bool) -> Arguments | None:
    """Return the arguments of a call to a function tool, or None if they cannot be read."""
    if written.broken:
        return None
    given = written.given
    if isinstance(given, Elements):
        # An unknown parameter name may be a misspelled marker.
        if not written.is_clean and tool.declared and any(name not in tool.declared for name, _ in given.items):
            return None
        return _from_elements(given.items, tool, checker, repair=repair)
    if isinstance(given, Values):
        return _from_values(given.items, tool)
    codes = () if written.key == "arguments" else (ARGUMENTS_KEY,)
    if codes and not (repair and written.key):
        return None
    found = _from_json(given, repair=repair)
    return found and Arguments(found.text, found.value, (*codes, *found.codes), found.lossy_repairs)


def custom_input(written: ParsedCall, *, repair: bool) -> Arguments | None:
    """Return the input of a call to a custom tool, or None if it cannot be read."""
    if written.broken:
        return None
    named_input = written.key == "input"
    codes = () if named_input or written.key == "arguments" else (ARGUMENTS_KEY,)
    if codes and not (repair and written.key):
        return None
    match written.given:
        case Elements(items):
            return _input_of_elements(items, repair=repair)
        case Values(items=((None | "input", Json(value=str() as text)),)):
            return Arguments(text, text)
        case None | Json(value=None):
            return Arguments("", "", codes)
        case Json(value={"input": str() as text}):
            return Arguments(text, text, codes)
        case Json(value=str() as text):
            lossy_repairs: tuple[str, ...] = ()
            if not named_input:
                text, lossy_repairs = _unwrap_input(text, repair=repair)
            return Arguments(text, text, codes, lossy_repairs)
    return None


# -- arguments in JSON


def _from_json(given: Json | None, *, repair: bool) -> Arguments | None:
    match given:
        case None | Json(value=None):
            return _NONE
        case Json(source=source, value=dict() as value):
            return Arguments(source, value)
        case Json(value=str() as text):
            return _from_string(text, repair=repair)
    return None


def _from_string(text: str, *, repair: bool) -> Arguments | None:
    if text.strip() in {"", "null"}:
        return _NONE
    match read_value(text):
        case Json(value=dict() as value):
            return Arguments(text, value)
        case Json(value=str() as inner) if repair:
            match read_value(inner):
                case Json(value=dict() as value):
                    return Arguments(inner, value, lossy_repairs=(DOUBLE_ENCODED,))
        case None if repair:
            return _repeated(text) or _repaired(text)
    return None


def _repeated(text: str) -> Arguments | None:
    """Return the object if the text consists of the same object repeated two or more times, otherwise None."""
    start = len(text) - len(text.lstrip())
    first = decode(text, start) if text.startswith("{", start) else None
    if first is None or not isinstance(first[0], dict):
        return None
    # Servers that concatenate the deltas of a call twice repeat the text exactly.
    source, rest = text[start : first[1]], text[first[1] :].rstrip()
    if not rest or rest != source * (len(rest) // len(source)):
        return None
    return Arguments(source, first[0], codes=(REPEATED_ARGUMENTS,))


def _repaired(text: str) -> Arguments | None:
    repaired = repair_json(text, len(text) - len(text.lstrip()))
    if repaired is None or text[repaired.end :].strip(" \t\r\n}]"):
        return None
    lossy_repairs = repaired.codes if repaired.end == len(text.rstrip()) else (*repaired.codes, EXTRA_BRACE)
    match read_value(repaired.text):
        case Json(value=dict() as value):
            return Arguments(repaired.text, value, lossy_repairs=lossy_repairs)
    return None


def _unwrap_input(text: str, *, repair: bool) -> tuple[str, tuple[str, ...]]:
    """Return the input in a string of arguments: the value of the ``input`` member, or else the string itself."""
    match read_value(text):
        case Json(value={"input": str() as inner}):
            return inner, ()
        case None if repair:
            match _repaired(text):
                case Arguments(value={"input": str() as inner}, lossy_repairs=lossy_repairs):
                    return inner, lossy_repairs
    return text, ()


# -- arguments in call syntax


def _from_values(values: tuple[tuple[str | None, Json], ...], tool: Tool) -> Arguments | None:
    """Return a JSON object with all values. A value without a keyword belongs to the schema's property at the same
    position.

    Returns None if there are more values than properties, or if a property would receive two values.
    """
    names = list(tool.declared)
    members: dict[str, Json] = {}
    for position, (keyword, value) in enumerate(values):
        if keyword is None and position >= len(names):
            return None
        name = names[position] if keyword is None else keyword
        if name in members:
            return None
        members[name] = value
    whole = json_object(members)
    return Arguments(whole.source, whole.value)


# -- arguments as XML elements


def _from_elements(elements: Items, tool: Tool, checker: SchemaChecker, *, repair: bool) -> Arguments | None:
    """Return an object with all elements, or the content of the single element that contains all arguments. Returns
    None if the elements cannot be converted.
    """
    match elements:
        case ((only, content),) if only in _WHOLE and only not in tool.declared:
            whole = _inside(content, repair=repair)
            if isinstance(whole, Arguments):
                return whole
            elements = whole if whole is not None else elements
    found = ElementTypes(checker, repair=repair).object(elements, checker.schema(tool))
    return None if found is None else Arguments(found.source, found.value)


def _inside(content: str, *, repair: bool) -> Arguments | Items | None:
    """Parse an element that contains all arguments, either as one JSON object or as nested elements. Return None for
    any other content.
    """
    texts = (unescape(content), content)
    for text in texts:
        match read_value(text):
            case Json(value=dict() as value):
                return Arguments(text.strip(), value)
    inner = read_elements(content)
    if inner is None and repair:
        return next(filter(None, map(_repaired, texts)), None)
    return None if inner is None else tuple(inner)


def _input_of_elements(elements: Items, *, repair: bool) -> Arguments | None:
    """Return the input of a custom tool from XML elements: an ``<input>``, alone or inside ``<arguments>`` or
    ``<parameters>``.

    If there are no elements, the input is empty. Returns None for any other elements.
    """
    match elements:
        case ():
            return Arguments("", "")
        case (("input" | "arguments" | "parameters" as key, content),):
            if key != "input":
                match _inside(content, repair=repair):
                    case Arguments(value={"input": str() as text}, lossy_repairs=lossy_repairs):
                        return Arguments(text, text, lossy_repairs=lossy_repairs)
                    case (("input", inner),):
                        content = inner
            text = trim(unescape(content))
            return Arguments(text, text)
    return None
