"""Correct answers to BFCL's cases, from BFCL's own list, for testing the code that judges answers."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from toolsim.eval import bfcl_package
from toolsim.eval.bfcl_package import Decoded


def right_calls(entry: Mapping[str, Any], answers: Sequence[Any]) -> list[Decoded]:
    """Return the correct calls, with the first correct value of each argument and without optional arguments."""
    functions = {function["name"]: function["parameters"] for function in entry["function"]}
    return [
        {name.replace(".", "_"): _arguments(values, functions[name]) for name, values in answer.items()}
        for answer in answers
    ]


def _arguments(values: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    required = parameters.get("required", [])
    chosen = {}
    for key, right in values.items():
        filled = [value for value in right if value != ""]
        if filled and (key in required or "" not in right):
            chosen[key] = _plain(filled[0], parameters["properties"].get(key, {}))
        elif key in required:
            chosen[key] = ""
    return chosen


def _plain(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a correct value as a model would write it. For an object, BFCL lists the correct values of each key."""
    if isinstance(value, dict):
        return {key: _first(inner) for key, inner in value.items() if isinstance(inner, list) and "" not in inner}
    if isinstance(value, list) and schema.get("items", {}).get("type") == "dict":
        return [_plain(item, {}) if isinstance(item, dict) else item for item in value]
    return value


def _first(right: Sequence[Any]) -> Any:
    return right[0]


def right_turns(entry: Mapping[str, Any], answers: Sequence[Sequence[str]]) -> list[list[Decoded]]:
    """Return the correct calls for each turn of a multi-turn case. BFCL lists the calls as lines of Python code."""
    functions = {function["name"]: function["parameters"]["properties"] for function in entry["function"]}
    return [[_call(line, functions) for line in turn] for turn in answers]


def _call(line: str, functions: Mapping[str, Mapping[str, Any]]) -> Decoded:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    values = {key: ast.literal_eval(value) for key, value in zip(functions[call.func.id], call.args, strict=False)}
    return {call.func.id: values | {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}}


def load(category: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a category's entries, and its correct answers by ID. Entries without any correct call have no answer."""
    none = "irrelevance" in category
    return bfcl_package.load_entries(category), {} if none else bfcl_package.load_answers(category)
