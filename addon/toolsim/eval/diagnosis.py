"""Assigns a label to a failed conversation. If several labels apply, the first in the life cycle of a call is used."""

from __future__ import annotations

import re

from toolsim.eval.call_as_text import looks_like_call
from toolsim.eval.case import Label, Verdict
from toolsim.eval.runtime.loop import Execution, Outcome

DONE = "Done."
"""The exact final text that a scenario requires."""

_BY_CODE: dict[str, Label] = {
    "UNKNOWN_TOOL": "wrong_tool",
    "TYPE_ERROR": "type_coercion",
    "PATH_NOT_FOUND": "wrong_value",
    "UNKNOWN_WORKSPACE": "wrong_value",
    "READ_ONLY": "wrong_value",
    "LOCKED": "wrong_value",
}
# Patterns for error messages of the JSON schema validator, and the labels for these errors.
_BY_MISMATCH: tuple[tuple[str, Label], ...] = (
    (r"is a required property", "missing_required"),
    (r"[Aa]dditional properties", "hallucinated_parameter"),
    (r": got \w+, expected ", "type_coercion"),
)


def diagnose(outcome: Outcome, goal: str | None, *, final: str = DONE) -> Verdict:
    """Return the verdict on a conversation. ``goal`` describes the goal that was not reached, or is None."""
    if goal is None and outcome.text.strip() == final and outcome.stop == "answer":
        return Verdict.passed()
    if not outcome.executions:
        return _without_calls(outcome)
    if goal is not None:
        failed = [execution for execution in outcome.executions if not execution.result.ok]
        if failed and failed[-1] is outcome.executions[-1]:
            return Verdict.failed(_label(failed[-1]), f"{goal}; {': '.join(failed[-1].result.errors)}")
        if outcome.answers[-1].finish == "length":
            return Verdict.failed("truncation", f"{goal}; cut off by the token limit")
        if looks_like_call(outcome.text):
            return Verdict.failed("malformed_json", f"{goal}; the next call was left as text: {_short(outcome.text)}")
    if outcome.stop == "max_turns":
        return Verdict.failed("turn_limit", f"the model was still making calls after {len(outcome.answers)} turns")
    if goal is not None:
        return Verdict.failed("wrong_state", goal)
    if outcome.stop == "tool_failed":
        last = {execution.call.name: execution for execution in outcome.executions}
        culprit = next(execution for execution in last.values() if not execution.result.ok)
        why = f"{culprit.call.name} failed with {', '.join(culprit.result.errors)}"
        return Verdict.failed(_label(culprit), f"the tool failure policy is violated: {why}")
    return Verdict.failed("wrong_final_text", f"expected {final!r}, got {_short(outcome.text)}")


def _without_calls(outcome: Outcome) -> Verdict:
    if outcome.answers[-1].finish == "length":
        return Verdict.failed("truncation", "cut off by the token limit before any call")
    if "<tool_call" in outcome.text:
        return Verdict.failed("malformed_json", f"the call was left as text: {_short(outcome.text)}")
    written = "the answer contains a call as text" if looks_like_call(outcome.text) else "no call"
    return Verdict.failed("no_call", f"{written}: {_short(outcome.text)}")


def _label(execution: Execution) -> Label:
    code, detail = execution.result.code, " ".join(execution.result.errors[1:])
    if code == "INVALID_JSON":
        return "escaping_error" if re.search("escape|control character", detail) else "malformed_json"
    if code == "INVALID_ARGUMENTS":
        return next((label for words, label in _BY_MISMATCH if re.search(words, detail)), "schema_violation")
    return _BY_CODE.get(code, "wrong_state")


def _short(text: str) -> str:
    return repr(text if len(text) <= 160 else f"{text[:160]}…")
