"""Calls whose values only Python's own parser can read: tuples, signs, joined strings, ``**{…}``.

Constants, lists, tuples, sets, dicts with string keys, signs before numbers and strings without placeholders are
values; no names but JSON's ``true``, ``false`` and ``null``, and no operators. An integer with leading zeros is read as
decimal. Nothing is evaluated, and nothing raises.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Iterator

from toolsim.response.written import Json, json_object

Values = tuple[tuple[str | None, Json], ...]
"""The values of one call, each with its keyword or None."""

_MAX_LENGTH = 100_000
"""Characters that are parsed: Python's parser takes many times as much memory."""

_MAX_DEPTH = 64
_MAX_CALLS = 64
_MAX_VALUES = 64
_WORDS = {"true": True, "false": False, "null": None}
_BRACKETS = re.compile(r"[\[({]")
_LEADING_ZEROS = re.compile(r"(?<=[=,(\[{:\s])([+-]?)0++(?=[1-9]\d*\s*[,)\]}])")


class _NoLiteral(Exception):
    """Something other than a literal stands where a value belongs."""


def read_python(text: str) -> list[tuple[str, Values, str]] | None:
    """Read calls that are all of ``text``, in a list or on lines of their own: name, values and source of each.

    None: the text is anything else.
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
            warnings.simplefilter("ignore")  # About escapes that Python does not know: they are text.
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


def _call(node: ast.expr, text: str) -> tuple[str, Values, str]:
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
    """Return the value of a literal."""
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
    except ValueError as error:  # An integer with more digits than Python prints.
        raise _NoLiteral from error
