"""Tests for correcting the types of arguments according to the tool's schema, in tagged, untagged and native calls with
all APIs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import plan, read, rewrite
from support.each import each
from support.emitted import BODIES, WHOLE, Emitted
from support.growth import LINEAR, growth
from support.wire import backend_answer
from toolsim.core.events import StructuredCall
from toolsim.core.plan import Tool
from toolsim.core.policy import ApiName
from toolsim.core.report import Report
from toolsim.response.checker import SchemaChecker
from toolsim.response.judge import Judge
from toolsim.response.parsed_call import Json, read_json
from toolsim.response.segments import Block
from toolsim.response.structured import StructuredCalls
from toolsim.response.value_types import VALUE_TYPE, correct_types
from toolsim.response.verdict import JudgedCall, Rejected, Verdict, Violation

TABLE = json.loads((Path(__file__).parents[2] / "cases" / "value_types.json").read_text(encoding="utf-8"))
APIS: tuple[ApiName, ...] = ("chat", "responses", "messages")


def tool_with(schema: dict[str, Any], *, strict: bool = False) -> Tool:
    """Return a tool whose only argument, ``value``, has the given schema."""
    parameters = {"$defs": TABLE["defs"], "type": "object", "properties": {"value": schema}, "required": ["value"]}
    return Tool("f", "f", parameters=parameters, strict=strict)


def judged(tool: Tool, arguments: str, **policy: Any) -> dict[str, tuple[Sequence[Verdict], Report]]:
    """Return the verdicts and reports for a call in each call form. If the untagged call remains text, its verdicts are
    ``[]``.
    """
    text = f'{{"name": "f", "arguments": {arguments}}}'
    tagged, bare, native = (Judge(plan("responses", "chat", True, [tool], policy=policy), Report()) for _ in range(3))
    accepted = bare.untagged(read_json(text, closed=True, repair=True), "UNTAGGED_BARE") or []
    for one in accepted:
        bare.count_untagged(one)
    return {
        "tagged": (tagged.block(Block("json", "<tool_call>", text, "</tool_call>")), tagged.report),
        "untagged": ([one.call for one in accepted], bare.report),
        "native": (StructuredCalls(native).verdicts(StructuredCall("f", arguments)), native.report),
    }


@each("case", TABLE["cases"], ids=lambda case: case["case"])
def test_case(case: dict[str, Any]) -> None:
    """A value is corrected in the same way in every call form, and the correction is counted as a repair. Other values
    remain unchanged.
    """
    given_text = f'{{"value": {case["given"]}}}'
    becomes, is_right = case["becomes"], case["becomes"] == case["given"]
    for form, (verdicts, report) in judged(tool_with(case["schema"]), given_text).items():
        if becomes is None:
            assert not verdicts if form == "untagged" else report.warnings == ["SCHEMA_MISMATCH:f"]
            assert all(isinstance(verdict, JudgedCall) and verdict.arguments == given_text for verdict in verdicts)
            assert not report.repairs
            continue
        (verdict,) = verdicts
        assert isinstance(verdict, JudgedCall)
        assert verdict.arguments == (given_text if is_right else f'{{"value":{becomes}}}')
        assert verdict.repairs == (() if is_right else (VALUE_TYPE,))
        assert report.repairs == ([] if is_right else ["VALUE_TYPE:f"])
        assert not report.warnings


@each("case", [case for case in TABLE["cases"] if case["becomes"] not in (None, case["given"])])
def test_corrections_can_be_off(case: dict[str, Any]) -> None:
    """Values for a strict tool are never corrected. With ``repair=off``, no values are corrected."""
    arguments = f'{{"value": {case["given"]}}}'
    for verdicts, report in judged(tool_with(case["schema"], strict=True), arguments).values():
        assert not any(isinstance(verdict, JudgedCall) for verdict in verdicts)
        assert not report.repairs
    for verdicts, report in judged(tool_with(case["schema"]), arguments, repair="off").values():
        assert all(isinstance(verdict, JudgedCall) and verdict.arguments == arguments for verdict in verdicts)
        assert not report.repairs


def test_types_are_corrected_after_other_repairs() -> None:
    """Types are corrected after the text and the tool's name have been repaired."""
    tool = tool_with({"type": "integer"})
    for name, arguments in (("f", '{"value": "5",}'), ("functions.f", '{"value": "5"}')):
        judge = Judge(plan("responses", "chat", True, [tool]), Report())
        block = Block("json", "<tool_call>", f'{{"name": "{name}", "arguments": {arguments}}}', "</tool_call>")
        (verdict,) = judge.block(block)
        assert isinstance(verdict, JudgedCall)
        assert (verdict.arguments, verdict.repairs[-1], len(verdict.repairs)) == ('{"value":5}', VALUE_TYPE, 2)


def test_untyped_values_need_no_repair() -> None:
    """In call forms without types, values are converted to the schema's types even with ``repair=off``. This does not
    count as a repair.
    """
    text = "<tool_call><function=f><parameter=value>5</parameter></function></tool_call>"
    for strict in (True, False):
        the_plan = plan("responses", "chat", False, [tool_with({"type": "integer"}, strict=strict)])
        rewriter, frames = rewrite(the_plan, *backend_answer("chat", False, [text]))
        assert read("responses", False, frames, rewriter.status).items == [["call", "f", '{"value":5}']]


@pytest.mark.parametrize("client", APIS)
@pytest.mark.parametrize("backend", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_official_clients_receive_the_corrected_call(client: ApiName, backend: ApiName, stream: bool) -> None:
    """Official clients receive the corrected call, whether the backend uses native tools or text."""
    the_plan = plan(client, backend, stream, [tool_with({"type": "array", "items": {"type": "integer"}})])
    arguments = '{"value": "[1, 2]"}'
    kind = "text/event-stream" if stream else "application/json"
    native = (kind, (BODIES if stream else WHOLE)[backend]([Emitted("f", arguments)], "tool_calls"))
    text = backend_answer(backend, stream, [f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'])
    for answer in (native, text):
        rewriter, frames = rewrite(the_plan, *answer)
        (item,) = read(client, stream, frames, rewriter.status).items
        assert (item[1], json.loads(item[2])) == ("f", {"value": [1, 2]})


@pytest.mark.parametrize("backend", ["chat", "responses"])
def test_streamed_values_are_not_corrected(backend: ApiName) -> None:
    """The types of arguments in a streamed call are not corrected, because the client has already received them. The
    next call in the same block is corrected.
    """
    tool = tool_with({"type": "integer"})
    the_plan = plan("responses", backend, True, [tool], policy={"stream_arguments": "incremental"})
    call = '{"name": "f", "arguments": {"value": "5"}}'
    for answer, arguments in (
        (BODIES[backend]([Emitted("f", '{"value": "5"}')], "tool_calls"), ['{"value": "5"}']),
        (backend_answer(backend, True, [f"<tool_call>{call}</tool_call>"])[1], ['{"value": "5"}']),
        (backend_answer(backend, True, [f"<tool_call>{call}{call}</tool_call>"])[1], ['{"value": "5"}', '{"value":5}']),
    ):
        for cut in (0, 1):
            seen = read("responses", True, rewrite(the_plan, "text/event-stream", answer, cut)[1])
            assert seen.items == [["call", "f", given] for given in arguments]
            assert seen.finish == "completed"


SCALARS = st.sampled_from(["5", "true", "None", "x", "", "[1]", '["a"]', '{"a": "1"}', 5, 2.5, True, None])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner), max_leaves=8
)
SCHEMAS = st.recursive(
    st.sampled_from(
        [{}, *({"type": name} for name in ("string", "integer", "number", "boolean", "null", "array", "object"))]
    ),
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        st.dictionaries(st.sampled_from("ab"), inner).map(lambda of: {"type": "object", "properties": of}),
        st.lists(inner, min_size=1, max_size=2).map(lambda of: {"anyOf": of}),
    ),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_corrected_value_fits_its_schema(schema: dict[str, Any], value: Any) -> None:
    """A value is corrected only if the result conforms to the schema. A correction never creates a new string."""
    checker = SchemaChecker(lambda *_: None, seconds=60)
    tool = tool_with(schema)
    validator = checker.schema(tool)
    assert validator is not None
    arguments = {"value": value}
    found = Json(json.dumps(arguments), arguments)
    corrected = correct_types(found, validator, checker)
    if checker.fits(tool, arguments):
        assert corrected is None
    if corrected is not None:
        assert checker.fits(tool, corrected.value)
        assert json.loads(corrected.source) == corrected.value
        assert correct_types(corrected, validator, checker) is None
        assert strings(corrected.value) <= strings(value)


def strings(value: Any) -> set[str]:
    """Return all strings in a value, including strings in JSON that is itself inside a string."""
    match value:
        case str():
            try:
                inner = json.loads(value)
            except ValueError:
                return {value}
            return {value} | (set() if isinstance(inner, str) else strings(inner))
        case list():
            return {text for item in value for text in strings(item)}
        case dict():
            return {text for item in value.values() for text in strings(item)}
    return set()


@pytest.mark.parametrize("inner", ['"1"', '["1"]', '{"a": "1"}', '"x"'])
def test_effort_is_bounded(inner: str) -> None:
    """If thousands of values, or deeply nested arrays, have wrong types, toolsim stops correcting them after a limited
    amount of work.
    """

    def wide(size: int) -> None:
        arguments = '{"value": [' + ", ".join([inner] * size) + "]}"
        judged(tool_with({"type": "array", "items": {"type": "integer"}}), arguments)

    def deep(size: int) -> None:
        items: dict[str, Any] = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}
        tool = Tool("f", "f", parameters={**items, "properties": {"value": {"$ref": "#/$defs/t"}}})
        size = size // 20
        judged(tool, '{"value": ' + "[" * size + inner + "]" * size + "}")

    assert growth(wide, 2_000) < LINEAR
    assert growth(deep, 2_000) < LINEAR


def test_violations_and_malformed_arguments_are_unchanged() -> None:
    """If a value for a strict tool has the wrong type, the call is a violation. Malformed arguments remain text."""
    ((verdict,), report) = judged(tool_with({"type": "integer"}, strict=True), '{"value": "5"}')["tagged"]
    assert isinstance(verdict, Violation)
    assert report.strict_failures == ["SCHEMA_MISMATCH:f"]
    ((verdict,), _) = judged(tool_with({"type": "integer"}), '{"value" "5"}')["tagged"]
    assert isinstance(verdict, Rejected)
