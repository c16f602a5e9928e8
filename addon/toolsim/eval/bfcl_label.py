"""Assigns one of the evaluation's labels to an incorrect answer to a BFCL case.

The package's checker reports only the first mistake. To find out whether the reason for a mistake is a value that was
escaped twice, this module unescapes the value and checks the answer again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from toolsim.eval import bfcl_package
from toolsim.eval.bfcl_package import Decoded, Entry
from toolsim.eval.case import Label
from toolsim.eval.runtime.turn import Answer, Call

# Matches markup which shows that the model tried to write a call.
_ATTEMPT = re.compile(r"<tool_call|<use_tool|\[TOOL_CALLS\]|<function=|<\|python_tag\|>")
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\"": '"', r"\'": "'", r"\\": "\\"}
_ESCAPE = re.compile(r"\\[nt\"'\\]")

_LABELS: dict[str, Label] = {
    "wrong_func_name": "wrong_tool",
    "missing_required": "missing_required",
    "missing_optional": "missing_required",
    "unexpected_param": "hallucinated_parameter",
}


def decode(calls: Sequence[Call]) -> list[Decoded] | None:
    """Return calls in the format of BFCL's checkers, or None if the arguments of any call are not a JSON object."""
    decoded = [(call.name, call.parsed()) for call in calls]
    found: list[Decoded] = [{name: arguments} for name, arguments in decoded if arguments is not None]
    return found if len(found) == len(decoded) else None


def label_unread(answer: Answer) -> Label:
    """Return the label for an answer without calls, or with arguments that are not JSON."""
    if answer.finish == "length":
        return "truncation"
    return "malformed_json" if answer.calls or _ATTEMPT.search(answer.text) else "no_call"


def label_wrong(functions: Sequence[Entry], calls: Sequence[Decoded], answers: Sequence[Any]) -> Label:
    """Return the label for incorrect ``calls``. ``answers`` maps each correct call's name to its correct arguments."""
    if len(calls) < len(answers):
        return "parallel_collapse"
    if len(calls) > len(answers):
        return "needless_call"
    left = list(calls)
    wrong = []
    for answer in answers:
        right = next((call for call in left if _error(functions, call, answer) is None), None)
        if right is None:
            wrong.append(answer)
        else:
            left.remove(right)
    for answer in wrong:
        name = _name(answer)
        same = next((call for call in left if name in call), None)
        if same is not None:
            return _label_arguments(functions, same, answer)
    return "wrong_tool"


def _label_arguments(functions: Sequence[Entry], call: Decoded, answer: Any) -> Label:
    kind, _, detail = (_error(functions, call, answer) or "").partition(":")
    if detail in _LABELS:
        return _LABELS[detail]
    if _error(functions, _each_text(call, _unescaped), answer) is None:
        return "escaping_error"
    if kind == "type_error":
        corrected = _error(functions, _each_text(call, _typed), answer) or ""
        return "schema_violation" if corrected.startswith("type_error") else "type_coercion"
    return "wrong_value"


def _error(functions: Sequence[Entry], call: Decoded, answer: Any) -> str | None:
    function = [candidate for candidate in functions if candidate["name"].replace(".", "_") == _name(answer)]
    return bfcl_package.error_of(function, [call], [answer], "simple_python") if function else "no_such_function"


def _name(answer: Any) -> str:
    return str(next(iter(answer))).replace(".", "_")


def _each_text(call: Decoded, change: Any) -> Decoded:
    def walk(value: Any) -> Any:
        match value:
            case str():
                return change(value)
            case list():
                return [walk(item) for item in value]
            case dict():
                return {key: walk(item) for key, item in value.items()}
            case _:
                return value

    return {name: walk(arguments) for name, arguments in call.items()}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)


def _typed(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
