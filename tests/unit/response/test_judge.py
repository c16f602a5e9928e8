"""Tests for the judge: each cell of the table in its docstring, and properties that hold for any text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.answers import plan as make_plan
from support.each import each
from support.turns import run_events
from toolsim.core.events import Closed, Finished, StructuredCall, StructuredDelta, TextDelta
from toolsim.core.plan import FIND_TOOLS, GUESSED_CALL, Plan, Tool, ToolChoice
from toolsim.core.report import Report
from toolsim.request.deferred_tools import FINDER
from toolsim.response.judge import Judge
from toolsim.response.parsed_call import Json, ParsedCall, read_json
from toolsim.response.segments import Block, Oversize
from toolsim.response.structured import StructuredCalls
from toolsim.response.verdict import JudgedCall, Rejected, Verdict, Violation
from toolsim.schema import MAX_SCHEMA_BYTES

TABLE = json.loads((Path(__file__).parents[2] / "cases" / "judge.json").read_text(encoding="utf-8"))
AUTO = ToolChoice()
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def plan_for(*tools: Tool, masked_tools: tuple[str, ...] = (), tool_choice: ToolChoice = AUTO, **policy: Any) -> Plan:
    return make_plan(
        "responses", "chat", True, tools, masked_tools=frozenset(masked_tools), tool_choice=tool_choice, policy=policy
    )


def json_block(body: str) -> Block:
    return Block("json", "<tool_call>", body, "</tool_call>")


def as_data(verdict: Verdict, block: Block) -> dict[str, Any]:
    match verdict:
        case JudgedCall(tool, arguments):
            return {"call": tool.name, "arguments": arguments}
        case Rejected(raw, reason):
            return {"text": reason} if raw == block.raw else {"text": reason, "raw": raw}
        case Violation(_, reason):
            return {"violation": reason}


@each("case", TABLE["cases"], ids=lambda case: case["case"])
def test_verdict_table(case: dict[str, Any]) -> None:
    """For each cell of the judge's table, the verdicts, warnings and repairs are as expected, and failures are counted
    by kind.
    """
    tools = [
        Tool(tool["name"], tool["name"], kind=tool.get("kind", "function"), parameters=tool.get("parameters"))
        if tool["name"] not in case.get("strict", [])
        else Tool(tool["name"], tool["name"], parameters=tool["parameters"], strict=True)
        for tool in TABLE["tools"]
    ]
    report = Report()
    judge = Judge(plan_for(*tools, masked_tools=tuple(TABLE["masked"]), repair=case.get("repair", "safe")), report)
    block = Block(case.get("form", "json"), "<tool_call>", case["body"], case.get("closing", "</tool_call>"))
    verdicts = judge.block(block)
    assert [as_data(verdict, block) for verdict in verdicts] == case["expect"]
    assert report.repairs == case.get("repairs", [])
    assert report.warnings == case.get("warnings", [])
    assert bool(report.parse_failures) == any("text" in expected for expected in case["expect"])
    assert bool(report.strict_failures) == any("violation" in expected for expected in case["expect"])


OBJECTS = st.dictionaries(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=8,
    ),
    max_size=5,
)
SPACES = st.text(" \t\r\n", max_size=3)


@st.composite
def object_texts(draw: st.DrawFn) -> str:
    """Generate the text of a JSON object, with arbitrary whitespace between its tokens."""

    def write(value: Any) -> str:
        gap = draw(SPACES)
        match value:
            case dict():
                members = [f"{dumped(key)}{gap}:{write(member)}{gap}" for key, member in value.items()]
                return f"{{{gap}{f',{gap}'.join(members)}}}"
            case list():
                return f"[{gap}{f'{gap},'.join(write(item) for item in value)}]"
        return dumped(value)

    def dumped(value: Any) -> str:
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    return write(draw(OBJECTS))


@given(object_texts(), SPACES, st.booleans(), st.booleans())
def test_arguments_are_verbatim(source: str, space: str, as_string: bool, strict: bool) -> None:
    """The client receives the exact text of the arguments, whether the model wrote them as an object or as a string."""
    written = json.dumps(source) if as_string else source
    judge = Judge(plan_for(Tool("f", "f", strict=strict)), report := Report())
    verdicts = judge.block(json_block(f'{space}{{"name"{space}:"f","arguments":{space}{written}{space}}}{space}'))
    assert [verdict.arguments for verdict in verdicts if isinstance(verdict, JudgedCall)] == [source]
    assert not report.repairs


SCRAPS = [
    *('{"name":"f"', '"name":"g"', '"function":', '"arguments":', '"input":', '"city":"x"', '"{', '}"', *"{}[],:\"'\\"),
    *("\\u12", "\n", "\x00", "\ud800", "NaN", "1e999", "9" * 5000, "True", "null", "```json\n", "```", "&lt;"),
    *("<name>f</name>", "<name>", "<a>", "</a>", "<a/>", "<arguments>", "</arguments>"),
]
FRAGMENTS = st.lists(
    st.sampled_from(SCRAPS) | st.text(max_size=5),
    max_size=14,
).map("".join)


@given(FRAGMENTS, st.sampled_from(["json", "xml"]), st.booleans(), st.sampled_from(["safe", "off"]), st.booleans())
@example('{"name":"f","arguments":' + '{"a":' * 100_000, "json", True, "safe", True)
@example('{"name":"f","arguments":{"a":' + "[" * 60_000 + "]" * 60_000 + "}}", "json", False, "safe", True)
@example('{"name":"f","arguments":{"city":' + "9" * 100_000 + "}}", "json", True, "safe", True)
@example("{'name':'f','arguments':{'city':'\\\ud800\n'}}", "json", False, "safe", True)
def test_any_body_has_a_verdict(body: str, form: Any, strict: bool, repair: str, closed: bool) -> None:
    """The judge returns at least one verdict for any body in any call form. The arguments of a call are an object, each
    error can be encoded as UTF-8, and a violation is always the last verdict.
    """
    tools = (Tool("f", "f", parameters=CITY, strict=strict), Tool("g", "g", kind="custom"))
    judge = Judge(plan_for(*tools, masked_tools=("m",), repair=repair), Report())
    verdicts = judge.block(Block(form, "<t>", body, "</t>" if closed else ""))
    assert verdicts
    for verdict in verdicts:
        match verdict:
            case JudgedCall(Tool(kind="function"), arguments):
                assert arguments.strip().startswith("{")
            case Violation(error):
                error.message.encode()
                assert verdict is verdicts[-1]
    assert strict or not any(isinstance(verdict, Violation) for verdict in verdicts)


def test_long_integers_are_accepted() -> None:
    """An integer with more digits than Python can convert is a valid integer, and reaches the client unchanged."""
    source = '{"n":-' + "9" * 5000 + "}"
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 0}}}
    judge = Judge(plan_for(Tool("f", "f", parameters=schema, strict=True)), Report())
    assert judge.block(json_block(f'{{"name":"f","arguments":{source}}}')) == [JudgedCall(judge.toolbox["f"], source)]


def test_violation_names_tool_value_and_expectation() -> None:
    """A violation of a strict tool's schema results in an error in OpenAI's format with status 422. The error names the
    tool, the value and the expected type.
    """
    judge = Judge(plan_for(Tool("f", "f", parameters=CITY, strict=True)), report := Report())
    [violation] = judge.block(json_block('{"name":"f","arguments":{"city":5}}'))
    assert isinstance(violation, Violation)
    error = violation.error
    assert (error.status, error.type, error.code, error.param) == (
        422,
        "invalid_request_error",
        "invalid_tool_call",
        "tools",
    )
    for part in ("the tool f", "/city: got number, expected string"):
        assert part in error.message
    assert report.strict_failures == ["SCHEMA_MISMATCH:f"]


def test_invented_name_is_not_logged() -> None:
    """A tool name that the model invented is logged only if it is valid as the name of a tool."""
    judge = Judge(plan_for(Tool("f", "f")), report := Report())
    judge.block(json_block('{"name":"my secret is 42"}'))
    assert report.parse_failures == ["UNKNOWN_TOOL:?"]


def test_name_that_matches_two_tools_is_unknown() -> None:
    """A misspelled name is treated as unknown if it matches two tools, or both an offered and a masked tool."""
    block = json_block('{"name":"FIND","arguments":{}}')
    for plan in (
        plan_for(Tool("find", "find"), Tool("Find", "Find")),
        plan_for(Tool("find", "find"), masked_tools=("Find",)),
    ):
        assert Judge(plan, Report()).block(block) == [Rejected(block.raw, "UNKNOWN_TOOL")]


def test_namespaced_names() -> None:
    """For a tool in a namespace, the model can write the namespace and the name with a dot between them. It can omit
    the namespace if the name is unambiguous.
    """
    tool = Tool("mcp__fs__read", "read", namespace="mcp__fs")
    judge = Judge(plan_for(tool, Tool("other", "other")), Report())
    for name in ("mcp__fs__read", "mcp__fs.read", "read"):
        assert judge.block(json_block(f'{{"name":"{name}"}}')) == [JudgedCall(tool, "{}")]


def test_number_of_calls_in_a_block_is_limited() -> None:
    """If a block contains more than 64 objects, the first 64 become calls, and the rest of the block becomes text."""
    verdicts = Judge(plan_for(Tool("f", "f")), Report()).block(json_block('{"name":"f"}' * 1000))
    assert [type(verdict) for verdict in verdicts] == [JudgedCall] * 64 + [Rejected]
    assert isinstance(verdicts[-1], Rejected)
    assert verdicts[-1].raw == '{"name":"f"}' * 936


def test_oversized_arguments_fail() -> None:
    """Arguments that exceed the size limit fail, whether or not the tool is strict. The limit is in bytes, and
    arguments of exactly the maximum size are accepted.
    """
    source = '{"a":"éé"}'
    for strict, limit, expected in ((False, 12, JudgedCall), (False, 11, Rejected), (True, 11, Violation)):
        judge = Judge(plan_for(Tool("f", "f", strict=strict), max_tool_bytes=limit), Report())
        [verdict] = judge.block(json_block(f'{{"name":"f","arguments":{source}}}'))
        assert isinstance(verdict, expected)
        if not isinstance(verdict, JudgedCall):
            assert verdict.reason == "ARGUMENTS_TOO_LARGE"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('<tool_call>{"name":"lax","arguments":"', Rejected),
        ('<tool_call> {"name" : "tight","arguments":"', Violation),
        ("<use_tool><name>lax</name><a>", Rejected),
        ("<use_tool>\n<name>tight</name><a>", Violation),
        ('<tool_call>{"arguments":"', Violation),
        ('<tool_call>{"name":"nobody","arguments":"', Violation),
    ],
)
def test_oversized_block_is_judged_by_its_tool(raw: str, expected: type) -> None:
    """An oversized tagged block is judged according to the tool whose name is at its beginning. If the block does not
    begin with the name of a known tool, it is a violation if any offered tool is strict.
    """
    judge = Judge(plan_for(Tool("lax", "lax"), Tool("tight", "tight", strict=True)), Report())
    [verdict] = judge.block(Oversize(raw))
    assert isinstance(verdict, expected)
    assert not isinstance(verdict, JudgedCall)
    assert verdict.reason == "ARGUMENTS_TOO_LARGE"
    if isinstance(verdict, Rejected):
        assert verdict.raw == raw


class TestStructured:
    """Tests for structured calls, which the backend has already parsed."""

    lax = Tool("f", "f", parameters=CITY)
    spaced = Tool("ns__f", "f", namespace="ns", parameters=CITY)
    patch = Tool("apply_patch", "apply_patch", kind="custom")

    def judge(self, **plan: Any) -> tuple[Judge, Report]:
        report = Report()
        return Judge(
            plan_for(self.lax, self.spaced, self.patch, masked_tools=("gone", "ns__gone"), **plan), report
        ), report

    def test_known_names_are_found(self) -> None:
        """A tool is found by its plain name, by the name that the model uses, or by its namespace and name. The
        arguments are kept verbatim.
        """
        judge, report = self.judge()
        arguments = '{ "city":"x"}'
        assert StructuredCalls(judge).verdicts(StructuredCall("f", arguments)) == [JudgedCall(self.lax, arguments)]
        assert StructuredCalls(judge).verdicts(StructuredCall("ns__f", arguments)) == [
            JudgedCall(self.spaced, arguments)
        ]
        assert StructuredCalls(judge).verdicts(StructuredCall("f", arguments, namespace="ns")) == [
            JudgedCall(self.spaced, arguments)
        ]
        assert report == Report()

    def test_masked_names_are_rejected(self) -> None:
        """A call to a masked tool is rejected, reported and counted, as is any call if the tool choice is "none"."""
        judge, report = self.judge()
        for call, name in (
            (StructuredCall("gone", "{}"), "gone"),
            (StructuredCall("gone", "{}", namespace="ns"), "ns__gone"),
        ):
            text = f"Call to {name}, not passed on because this tool may not be called here: {{}}"
            assert StructuredCalls(judge).verdicts(call) == [Rejected(text, "MASKED_TOOL")]
        assert report.parse_failures == ["MASKED_TOOL:gone", "MASKED_TOOL:ns__gone"]
        assert report.dropped_calls == ["STRUCTURED_CALL:gone", "STRUCTURED_CALL:ns__gone"]
        assert report.truncated
        judge, report = self.judge(tool_choice=ToolChoice("none"))
        [verdict] = StructuredCalls(judge).verdicts(StructuredCall("f", '{"city":"x"}'))
        assert isinstance(verdict, Rejected)
        assert report.dropped_calls == ["STRUCTURED_CALL:f"]

    def test_unknown_names_are_rejected_or_passed(self) -> None:
        """A call to an undeclared tool is rejected. If the operator's policy allows such calls, the call is passed on
        with a warning.
        """
        call = StructuredCall("own", "not json", kind="custom", namespace="x")
        judge, report = self.judge()
        [verdict] = StructuredCalls(judge).verdicts(call)
        assert isinstance(verdict, Rejected)
        assert verdict.raw.endswith("no such tool was declared: not json")
        assert report.dropped_calls == ["STRUCTURED_CALL:x__own"]
        judge, report = self.judge(unknown_tool="call")
        assert StructuredCalls(judge).verdicts(call) == [
            JudgedCall(Tool("own", "own", kind="custom", namespace="x"), "not json")
        ]
        assert report.warnings == ["UNKNOWN_TOOL:own"]

    def test_misspelled_name_is_repaired(self) -> None:
        """A misspelled tool name is repaired only if the arguments conform to the tool's schema. The call is therefore
        not announced before it is complete.
        """
        judge, report = self.judge()
        assert StructuredCalls(judge).verdicts(StructuredCall("functions.f", '{"city":"x"}')) == [
            JudgedCall(self.lax, '{"city":"x"}')
        ]
        assert report.repairs == ["TOOL_NAME:f"]
        assert isinstance(StructuredCalls(judge).verdicts(StructuredCall("F", '{"city":5}'))[0], Rejected)
        assert StructuredCalls(judge).arriving(StructuredDelta("0", "F", "", True)) is None
        assert StructuredCalls(judge).arriving(StructuredDelta("0", "f", "", True)) == self.lax

    @pytest.mark.parametrize(
        ("name", "arguments", "repairs"),
        [
            ("f<|channel|>commentary", '{"city":"x"}', ["TOOL_NAME:f"]),
            ("functionsf1", '{"city":"x"}', ["TOOL_NAME:f"]),
            ("f", '{"city":"x"}{"city":"x"}', ["REPEATED_ARGUMENTS:f"]),
            ("call_9", '{"name":"f","city":"x"}', ["NAME_INSIDE:f"]),
            ("f", '{"city</arg_key>":"x"}', ["LEFTOVER_MARKUP:f"]),
            ("f", '{"city</arg_key>\\n<arg_value>":"x</arg_value>"}', ["LEFTOVER_MARKUP:f"]),
            ("f", '{"city":"<|\\"|>x<|\\"|>"}', ["LEFTOVER_MARKUP:f"]),
        ],
    )
    def test_leftovers_of_servers_are_repaired(self, name: str, arguments: str, repairs: list[str]) -> None:
        """If repairs are enabled, typical errors that servers make in structured calls are repaired: leftover markup,
        duplicated arguments, and IDs in place of names.
        """
        judge, report = self.judge()
        assert StructuredCalls(judge).verdicts(StructuredCall(name, arguments)) == [
            JudgedCall(self.lax, '{"city":"x"}')
        ]
        assert report.repairs == repairs
        judge, report = self.judge(repair="off")
        assert JudgedCall(self.lax, '{"city":"x"}') not in StructuredCalls(judge).verdicts(
            StructuredCall(name, arguments)
        )
        assert not report.repairs

    def test_rejected_call_is_named_up_to_a_leaked_token(self) -> None:
        """Messages about a rejected call show the tool name that the model wrote, up to the first special token in it.
        A name that cannot be shown is replaced by a question mark.
        """
        for name, shown in (("read<|channel|>commentary", "read"), ("<|channel|>", "?"), ("a b", "?")):
            judge, report = self.judge()
            [verdict] = StructuredCalls(judge).verdicts(StructuredCall(name, "{}"))
            assert isinstance(verdict, Rejected)
            assert verdict.raw == f"Call to {shown}, not passed on because no such tool was declared: {{}}"
            assert report.parse_failures == [f"UNKNOWN_TOOL:{shown}"]
            assert report.dropped_calls == [f"STRUCTURED_CALL:{shown}"]

    def test_structured_call_is_validated(self) -> None:
        """Arguments that do not conform to the schema cause a warning, malformed arguments are repaired or rejected,
        and empty arguments become ``{}``.
        """
        judge, report = self.judge()
        assert StructuredCalls(judge).verdicts(StructuredCall("f", "")) == [JudgedCall(self.lax, "{}")]
        assert report.warnings == ["SCHEMA_MISMATCH:f"]
        assert StructuredCalls(judge).verdicts(StructuredCall("f", '{"city":"x",}')) == [
            JudgedCall(self.lax, '{"city":"x"}')
        ]
        assert report.repairs == ["TRAILING_COMMA:f"]
        assert report.dropped_calls == []
        [verdict] = StructuredCalls(judge).verdicts(StructuredCall("f", "oops"))
        assert isinstance(verdict, Rejected)
        assert (verdict.raw[-6:], verdict.reason) == (": oops", "MALFORMED_JSON")
        assert (report.parse_failures, report.dropped_calls) == (["MALFORMED_JSON:f"], ["STRUCTURED_CALL:f"])

    def test_truncated_call_is_rejected(self) -> None:
        """A truncated call is accepted only if its JSON is complete. Otherwise it is rejected, because its missing part
        cannot be guessed.
        """
        judge, report = self.judge()
        assert StructuredCalls(judge).verdicts(StructuredCall("f", '{"city":"x"}', whole=False)) == [
            JudgedCall(self.lax, '{"city":"x"}')
        ]
        for call in (
            StructuredCall("f", '{"city":"x"', whole=False),
            StructuredCall("apply_patch", "*** Begin", kind="custom", whole=False),
        ):
            [verdict] = StructuredCalls(judge).verdicts(call)
            assert isinstance(verdict, Rejected)
            assert (verdict.raw.endswith(call.arguments), verdict.reason) == (True, "MALFORMED_JSON")
        assert report.parse_failures == ["MALFORMED_JSON:f", "MALFORMED_JSON:apply_patch"]

    def test_call_without_a_name_is_rejected(self) -> None:
        """An empty call is dropped, and a call without a name is rejected. An accepted call always has arguments."""
        judge, report = self.judge(unknown_tool="call")
        assert StructuredCalls(judge).verdicts(StructuredCall("", "")) == []
        assert report.dropped_calls == ["STRUCTURED_CALL:?"]
        [verdict] = StructuredCalls(judge).verdicts(StructuredCall("", '{"city":"x"}'))
        assert isinstance(verdict, Rejected)
        assert verdict.raw.startswith("Call to a tool without a name, ")
        assert StructuredCalls(judge).verdicts(StructuredCall("own", "")) == [JudgedCall(Tool("own", "own"), "{}")]

    def test_custom_call_input_is_verbatim(self) -> None:
        """The input of a call to a custom tool is kept verbatim. If the backend treated the tool as a function, the
        input is extracted from the arguments.
        """
        judge, _ = self.judge()
        odd = '{"input":"x"}'
        assert StructuredCalls(judge).verdicts(StructuredCall("apply_patch", odd, kind="custom")) == [
            JudgedCall(self.patch, odd)
        ]
        assert StructuredCalls(judge).verdicts(StructuredCall("apply_patch", odd)) == [JudgedCall(self.patch, "x")]

    def test_structured_strict_violation_ends_the_turn(self) -> None:
        """A structured call that does not conform to a strict tool's schema is a violation, which ends the turn."""
        tool = Tool("f", "f", parameters=CITY, strict=True)
        [verdict] = StructuredCalls(Judge(plan_for(tool), Report())).verdicts(StructuredCall("f", "{}"))
        assert isinstance(verdict, Violation)

    @pytest.mark.parametrize(("name", "reason"), [("own", "UNKNOWN_TOOL"), ("gone", "MASKED_TOOL")])
    def test_unknown_name_next_to_a_strict_tool_is_a_violation(self, name: str, reason: str) -> None:
        """If any tool is strict, a call to a tool that is not offered is a violation. This applies to structured calls
        as well as to calls in text.
        """
        strict = Tool("s", "s", strict=True)
        judge = Judge(plan_for(self.lax, strict, masked_tools=("gone",)), report := Report())
        [verdict] = StructuredCalls(judge).verdicts(StructuredCall(name, "{}"))
        assert isinstance(verdict, Violation)
        assert report.strict_failures == [f"{reason}:{name}"]


def test_unusable_schema_is_not_checked() -> None:
    """A schema that cannot be compiled accepts any value. It causes one warning and raises no exception."""
    judge = Judge(plan_for(Tool("f", "f", parameters={"$ref": "https://example.com/x"})), report := Report())
    for _ in range(2):
        [verdict] = judge.block(json_block('{"name":"f","arguments":{"a":1}}'))
        assert isinstance(verdict, JudgedCall)
    assert report.warnings == ["SCHEMA_UNUSABLE:f"]


def test_catastrophic_patterns_share_one_budget() -> None:
    """All schema checks of an answer share one time budget. When it is used up, calls are accepted unchecked, except
    that a call to a strict tool is a violation.
    """
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|a)*$"}}}
    judge = Judge(plan_for(Tool("f", "f", parameters=schema)), report := Report())
    judge._checker._seconds = 0.05
    verdicts = judge.block(json_block(f'{{"name":"f","arguments":{{"a":"{"a" * 60}!"}}}}' * 64))
    assert [type(verdict) for verdict in verdicts] == [JudgedCall] * 64
    assert report.warnings == ["SCHEMA_CHECK_TIMED_OUT:f"] * 64
    judge = Judge(plan_for(Tool("f", "f", parameters=schema, strict=True)), report := Report())
    [violation] = judge.block(json_block(f'{{"name":"f","arguments":{{"a":"{"a" * 60}!"}}}}' * 64))
    assert isinstance(violation, Violation)
    assert report.strict_failures == ["SCHEMA_CHECK_TIMED_OUT:f"]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name":"search","arguments":{"q":1}}', '{"q":1}'),
        ('{"name":"search","arguments":"{\\"q\\":1}"}', '{"q":1}'),
        ('{"name":"search"}', "{}"),
    ],
)
def test_undeclared_call_can_be_passed_on(written: str, arguments: str) -> None:
    """If the policy allows unknown tools, a call to an undeclared tool is passed on with a warning."""
    judge = Judge(plan_for(Tool("f", "f", strict=True), unknown_tool="call"), report := Report())
    [call] = judge.block(json_block(written))
    assert call == JudgedCall(Tool("search", "search"), arguments)
    assert (report.warnings, report.parse_failures) == (["UNKNOWN_TOOL:search"], [])


def test_calls_that_are_never_passed_on() -> None:
    """A call to an undeclared tool is not passed on if its name is masked or invalid, if its arguments are invalid, or
    if the call will be retried.
    """
    plan = plan_for(Tool("f", "f"), masked_tools=("hidden",), unknown_tool="call")
    for body, reason in (
        ('{"name":"hidden","arguments":{}}', "MASKED_TOOL"),
        ('{"name":"no name","arguments":{}}', "UNKNOWN_TOOL"),
        ('{"name":"search","arguments":[1]}', "MALFORMED_JSON"),
    ):
        [verdict] = Judge(plan, Report()).block(json_block(body))
        assert isinstance(verdict, Rejected)
        assert verdict.reason == reason
    [verdict] = Judge(replace(plan, retries_allowed=frozenset({"UNKNOWN_TOOL"})), Report()).block(
        json_block('{"name":"search"}')
    )
    assert isinstance(verdict, Rejected)


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ('{"commands": ["ls"], "timeout_ms": 1e3}', True),
        ('{"commands": "ls"}', True),  # Repaired to ["ls"].
        ('{"commands": {"ls": 1}}', False),
        ("{}", False),
        ('{"commands" ["ls"]}', False),
        ('{"commands": ["ls"], "timeout_ms": 1e400}', False),
        ('{"commands": ["ls"], "timeout_ms": ' + "9" * 5000 + "}", False),
    ],
)
def test_shell_call_must_fit_its_schema(arguments: str, made: bool) -> None:
    """A shell call that does not conform to its schema remains text, even if the tool is not strict, because no shell
    item can represent it.
    """
    schema = {"type": "object", "properties": {"commands": {"type": "array", "minItems": 1}}, "required": ["commands"]}
    judge = Judge(plan_for(Tool("shell", "shell", kind="shell", parameters=schema)), Report())
    (verdict,) = judge.block(json_block(f'{{"name": "shell", "arguments": {arguments}}}'))
    assert isinstance(verdict, JudgedCall) is made
    assert made or isinstance(verdict, Rejected)
    written = read_json(f'{{"name": "shell", "arguments": {arguments}}}', closed=True, repair=True)
    untagged = judge.untagged(written, "UNTAGGED_BARE")
    assert (untagged is not None) is made


def test_oversized_schema_is_not_compiled() -> None:
    """A schema that exceeds the size limit is not compiled. Calls to its tool are accepted with a warning, regardless
    of their arguments.
    """
    report = Report()
    large = {**CITY, "description": "x" * MAX_SCHEMA_BYTES}
    judge = Judge(plan_for(Tool("f", "f", parameters=large)), report)
    (verdict,) = judge.block(json_block('{"name":"f","arguments":{}}'))
    assert isinstance(verdict, JudgedCall)
    assert [code for code in report.warnings if code.startswith("SCHEMA_MISMATCH")] == []
    assert report.warnings


def test_untagged_custom_call_needs_its_input() -> None:
    """Untagged arguments for a custom tool count as a call only if they contain the tool's input. The input is not
    checked against a schema.
    """
    judge = Judge(plan_for(Tool("run", "run", kind="custom")), Report())
    (accepted,) = judge.untagged([ParsedCall("", "run", given=Json('{"input":"x"}', {"input": "x"}))], "CODE") or ()
    assert (accepted.call.arguments, accepted.form, accepted.call.repairs) == ("x", "CODE", ())
    assert judge.untagged([ParsedCall("", "run", given=Json('{"other":"x"}', {"other": "x"}))], "CODE") is None


def test_violation_names_the_tool() -> None:
    """The error for a schema violation names the tool, or states that the name cannot be read."""
    judge = Judge(plan_for(Tool("f", "f", parameters=CITY, strict=True)), Report())
    for body, meant in (('{"name":"f","arguments":{}}', "the tool f"), ("{}", "a tool whose name cannot be read")):
        (verdict,) = judge.block(json_block(body))
        assert isinstance(verdict, Violation)
        assert verdict.error.message.startswith(f"The model called {meant} and failed (")


@pytest.mark.parametrize(
    ("named", "asks", "stands_for"),
    [(True, True, FIND_TOOLS), (True, False, "f"), (False, True, "f")],
)
def test_wrong_guess_becomes_a_lookup(named: bool, asks: bool, stands_for: str) -> None:
    """A call with invalid arguments is replaced with a lookup of the tool's schema if the model has not seen the schema
    and lookups are possible.
    """
    plan = plan_for(FINDER, Tool("f", "f", parameters=CITY))
    asking = frozenset({GUESSED_CALL} if asks else ())
    plan = replace(plan, tools_to_look_up=frozenset({"f"} if named else ()), retries_allowed=asking, finder=FIND_TOOLS)
    [call] = Judge(plan, Report()).block(json_block('{"name":"f","arguments":{"town":"Bonn"}}'))
    assert isinstance(call, JudgedCall)
    assert call.tool.name == stands_for
    assert (json.loads(call.arguments) == {"names": ["f"]}) == (named and asks)


def test_missing_input_is_named() -> None:
    """If a call to a custom tool lacks the input, the reason for the rejection describes the arguments that are
    expected.
    """
    [rejected] = Judge(plan_for(Tool("f", "f", kind="custom")), Report()).block(
        json_block('{"name":"f","arguments":{"in":1}}')
    )
    assert isinstance(rejected, Rejected)
    assert rejected.expected == 'arguments {"input": "…"}'


@pytest.mark.parametrize("strict", [False, True])
def test_oversized_custom_input_fails(strict: bool) -> None:
    """The size limit for arguments also applies to the input of a custom tool."""
    plan = plan_for(Tool("f", "f", kind="custom", strict=strict), max_tool_bytes=4)
    fits, over = (
        Judge(plan, Report()).block(json_block(f'{{"name":"f","input":"{text}"}}'))[0] for text in ("éé", "ééx")
    )
    assert isinstance(fits, JudgedCall)
    assert isinstance(over, Violation if strict else Rejected)
    assert over.reason == "ARGUMENTS_TOO_LARGE"


def test_tool_declaration_is_not_an_untagged_call() -> None:
    """Untagged arguments that look like the declaration of a tool do not count as a call, unless the tool has
    properties with these names.
    """
    declared = {"type": "object", "properties": {"city": {}}}
    text = json.dumps({"name": "f", "arguments": declared})
    for properties, made in (({"type": {}, "properties": {}}, 1), ({"city": {"type": "string"}}, 0)):
        offered = Tool("f", "f", parameters={"type": "object", "properties": properties})
        emitted, report, _ = run_events(plan_for(offered), [TextDelta(text), Finished("stop"), Closed()])
        assert len(report.calls) == made
        assert (TextDelta(text) in emitted) == (not made)
