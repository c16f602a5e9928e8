"""Parses calls in call syntax (``name(key=value)``), or in the notation that the history uses for calls (records).

    calls  := syntax | "[" syntax ("," syntax)* "]" | syntax (newline | ";") syntax …
    syntax := name "(" object ")" | name "(" [ value ("," value)* ] ")"
    value  := [ key ("=" | ":") ] literal       JSON's literals and Python's: 'a', True, None, (no names, no operators)
    record := "[function_call " (("id" | "call_id" | "name") "=" word)* "arguments=" (object | string) "]"

Python's quotes, escapes and keywords belong to the grammar of this form, so they do not count as repairs. The backslash
of an unknown escape is part of the text. Python's own parser reads constructs that exist only in Python (tuples, signs,
joined and prefixed strings, triple quotes, ``**{…}``); nothing is evaluated. Accepted values are constants, lists,
tuples, sets, dicts with string keys, signs before numbers, and strings without placeholders. An integer with leading
zeros is read as decimal. Items that are already JSON keep their source. All functions run in linear time and never
raise exceptions.

A model that writes Markdown may escape the underscores in names and keys. It then escapes underscores in strings, too,
so all of these backslashes are removed. Their removal counts as a repair.
"""

from __future__ import annotations

import ast
import codecs
import json
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace

from toolsim.response.parsed_call import Json, ParsedCall, Values, decode, json_object, read_value
from toolsim.response.repair import MISSING_BRACE, PYTHON_WORDS, repair_json

MARKDOWN_ESCAPES = "MARKDOWN_ESCAPES"
ESCAPED = "\\_"
_STRING_OR_ESCAPED = re.compile(r""""(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'|\\_""", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.:/-]*+(?=\()")
_KEY = re.compile(r"\s*+([A-Za-z_]\w*+)\s*+(?:=(?!=)|:(?![:=]))")
# Matches a value up to the next comma. Strings and brackets are skipped as units, since commas inside them are content.
_TOKEN = re.compile(r""""(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'|[\[{(]|[\]})]|,|[^"'\[\]{}(),]++""", re.DOTALL)
# Escapes that JSON lacks: characters by number or name, and line continuations.
_ESCAPE = re.compile(
    r"\\(?:(x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|[0-3]?[0-7]{1,2}|N\{[^{}]{1,80}\}|[av])|(\r?\n)|.)", re.DOTALL
)
_RECORD = re.compile(
    r"""\[function_call(?P<words>(?:\s+(?:id|call_id|name)\s*=\s*(?:"[^"\\\]]{1,256}"|[^\s"\]=]{1,256}))+)\s+arguments\s*=\s*"""
)
_RECORD_NAME = re.compile(r"""\sname\s*=\s*(?:"([^"]+)"|(\S+))""")
_MAX_VALUES = 64
"""Maximum number of values in a call. No tool has this many parameters, so a longer list is not a call."""


def without_escapes(text: str) -> str:
    """Return the text of calls without the backslashes that some models write before underscores, as in Markdown.

    The text is unchanged if all such backslashes are in strings, because they might be part of a value.
    """
    if ESCAPED not in text or all(found[0] != ESCAPED for found in _STRING_OR_ESCAPED.finditer(text)):
        return text
    return text.replace(ESCAPED, "_")


def read_call(text: str) -> ParsedCall | None:
    """Parse ``text`` as ``name(…)``; return None if it is not a single call with literal values."""
    named = _NAME.match(text)
    if named is None or not text.endswith(")"):
        return None
    inner = text[named.end() + 1 : -1]
    if inner.lstrip().startswith("{") and (whole := _literal(inner)) and isinstance(whole.value, dict):
        return ParsedCall(text, named[0], given=whole)
    values = _values(inner)
    if values is None:
        found = read_python(text)
        values = found[0][1] if found is not None and len(found) == 1 else None
    return None if values is None else ParsedCall(text, named[0], given=Values(values))


def read_calls(text: str) -> list[ParsedCall]:
    """Parse ``text`` as a single call, a list or a sequence of calls. The result contains at least one call.

    If one of the brackets around a list is missing, it is added. Any other text is returned as one broken call.
    """
    bare = text.strip()
    if bare.startswith("[") != bare.endswith("]"):
        listed = read_calls(f"{bare}]" if bare.startswith("[") else f"[{bare}")
        if not listed[-1].broken:
            return [replace(call, lossy_repairs=(MISSING_BRACE,)) for call in listed]
    parts = _split(bare[1:-1]) if bare.startswith("[") and bare.endswith("]") else [bare]
    calls = [read_call(part.strip()) for part in parts or ()]
    if (None in calls or not calls) and (found := read_python(bare)):
        calls = [ParsedCall(source, name, given=Values(values)) for name, values, source in found]
    named = _NAME.match(bare.lstrip("[ "))
    if None in calls or not calls:
        return [ParsedCall(text, named[0] if named else None, broken=True)]
    return [call for call in calls if call is not None]


def read_strings(text: str) -> list[ParsedCall | None]:
    """Parse ``text`` as a list of strings that contain ``name(…)``; return None for each item that is not a call."""
    listed = _literal(text)
    items = listed.value if listed is not None and isinstance(listed.value, list) else [None]
    return [read_call(item.strip()) if isinstance(item, str) else None for item in items]


def read_record(text: str) -> ParsedCall | None:
    """Parse the model's copy of a call in the history: ``[function_call … name=x arguments=…]``. Return None for any
    other text.
    """
    head = _RECORD.match(text)
    name = _RECORD_NAME.search(head["words"]) if head else None
    if head is None or name is None or not text.endswith("]"):
        return None
    arguments = _literal(text[head.end() : -1])
    return None if arguments is None else ParsedCall(text, name[1] or name[2], given=arguments)


def _values(inner: str) -> tuple[tuple[str | None, Json], ...] | None:
    parts = _split(inner)
    if parts is None:
        return None
    values: list[tuple[str | None, Json]] = []
    for part in parts:
        key = _KEY.match(part)
        value = _literal(part[key.end() :] if key else part)
        if value is None or (key is None and values and values[-1][0] is not None):
            return None
        values.append((key[1] if key else None, value))
    return tuple(values)


def _split(inner: str) -> list[str] | None:
    """Split a string at its top-level commas; one trailing comma is allowed. Return None if the string is malformed."""
    if not inner.strip():
        return []
    parts: list[str] = []
    depth = start = at = 0
    while at < len(inner):
        token = _TOKEN.match(inner, at)
        if token is None:
            return None
        match token[0]:
            case "[" | "{" | "(":
                depth += 1
            case "]" | "}" | ")":
                depth -= 1
            case "," if depth == 0:
                parts.append(inner[start:at])
                start = token.end()
        at = token.end()
        if len(parts) > _MAX_VALUES or depth < 0:
            return None
    if inner[start:].strip():
        parts.append(inner[start:])
    return parts


def _literal(text: str) -> Json | None:
    """Convert a literal to JSON, or return None if the text is not a literal."""
    bare = text.strip()
    bare = PYTHON_WORDS.get(bare, bare)
    if value := read_value(bare):
        return None if value.value in (math.inf, -math.inf) else value
    bare = _ESCAPE.sub(_as_json, bare)
    # ``repair_json`` replaces Python's quotes and keywords. It needs an object or array, so brackets are added.
    repaired = repair_json(f"[{bare}]", closed=False)
    if repaired is None or repaired.end != len(bare) + 2:
        return None
    source = repaired.text[1:-1].strip()
    got = decode(source, 0)
    return Json(source, got[0]) if got and got[1] == len(source) else None


def _as_json(escape: re.Match[str]) -> str:
    """Convert a Python escape to JSON. Unknown escapes, and escapes that also exist in JSON, remain unchanged."""
    char, line = escape.groups()
    if line:
        return ""
    if not char:
        return escape[0]
    try:
        found = codecs.decode(escape[0], "unicode_escape")
    except UnicodeDecodeError:  # Python has no character with this number or name.
        return escape[0]
    # The character is written as a number, because it might be the quote that ends the string.
    return f"\\u{ord(found):04x}" if found <= "\uffff" else json.dumps(found)[1:-1]


# -- constructs that only Python's own parser can read


Items = tuple[tuple[str | None, Json], ...]
"""The values of one call, each with its keyword, or with None if it has no keyword."""

_MAX_LENGTH = 100_000
"""Maximum number of characters passed to Python's parser, which needs a lot of memory per character."""

_MAX_DEPTH = 64
_MAX_CALLS = 64
_WORDS = {"true": True, "false": False, "null": None}
_BRACKETS = re.compile(r"[\[({]")
_LEADING_ZEROS = re.compile(r"(?<=[=,(\[{:\s])([+-]?)0++(?=[1-9]\d*\s*[,)\]}])")


class _NoLiteral(Exception):
    """Raised for a Python expression that is not a literal."""


def read_python(text: str) -> list[tuple[str, Items, str]] | None:
    """Parse ``text`` as calls in a list or on separate lines; return the name, values and source of each call.

    Returns None if the text is not a sequence of calls.
    """
    if len(text) > _MAX_LENGTH or len(_BRACKETS.findall(text)) > _MAX_LENGTH // 10:
        return None
    tree = _parsed(text)
    if tree is None and (decimal := _LEADING_ZEROS.sub(r"\1", text)) != text:
        text = decimal
        tree = _parsed(text)
    try:
        return [_call(node, text) for node in _nodes(tree)] if tree is not None and tree.body else None
    except (_NoLiteral, RecursionError):
        return None


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about unknown escapes. Here, these escapes are just text.
            return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _nodes(tree: ast.Module) -> Iterator[ast.expr]:
    if len(tree.body) > _MAX_CALLS:
        raise _NoLiteral
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            raise _NoLiteral
        yield from statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]


def _call(node: ast.expr, text: str) -> tuple[str, Items, str]:
    if not isinstance(node, ast.Call):
        raise _NoLiteral
    values: list[tuple[str | None, Json]] = [(None, _json(value, 0)) for value in node.args]
    for keyword in node.keywords:
        if keyword.arg is not None:
            values.append((keyword.arg, _json(keyword.value, 0)))
        elif isinstance(keyword.value, ast.Dict):
            values += _members(keyword.value, 0).items()
        else:
            raise _NoLiteral
    if len(values) > _MAX_VALUES:
        raise _NoLiteral
    return _name(node.func), tuple(values), ast.get_source_segment(text, node) or text


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_name(value)}.{name}"
    raise _NoLiteral


def _json(node: ast.expr, depth: int) -> Json:
    """Convert a Python literal to JSON. Raises _NoLiteral if the node is not a literal or is nested too deeply."""
    if depth > _MAX_DEPTH:
        raise _NoLiteral
    match node:
        case ast.Constant(value=bool() | None | str() | int() | float() as value):
            return _constant(value)
        case ast.Name(id=word) if word in _WORDS:
            return _constant(_WORDS[word])
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=ast.Constant(value=int() | float() as number)) if (
            not isinstance(number, bool)
        ):
            return _constant(-number if isinstance(sign, ast.USub) else number)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            values = [_json(item, depth + 1) for item in items]
            return Json(f"[{','.join(value.source for value in values)}]", [value.value for value in values])
        case ast.Dict():
            return json_object(_members(node, depth))
        case ast.JoinedStr(values=parts):
            return _constant("".join(str(_json(part, depth + 1).value) for part in parts))
    raise _NoLiteral


def _members(node: ast.Dict, depth: int) -> dict[str, Json]:
    members: dict[str, Json] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise _NoLiteral
        members[key.value] = _json(value, depth + 1)
    return members


def _constant(value: str | float | bool | None) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        raise _NoLiteral
    try:
        return Json(json.dumps(value, ensure_ascii=False), value)
    except ValueError as error:  # The integer has more digits than Python can convert to text.
        raise _NoLiteral from error
