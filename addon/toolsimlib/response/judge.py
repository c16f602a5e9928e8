"""The judge: which call is good, which is repaired, which stays text, which ends the turn.

| what the model wrote                          | tool strict                | otherwise                  |
|-----------------------------------------------|----------------------------|----------------------------|
| arguments: an object, or a JSON string of one | call                       | call                       |
| arguments absent, null, ``""``                | ``{}``, then the schema    | ``{}``                     |
| schema mismatch                               | violation                  | call, warning              |
| malformed JSON                                | violation                  | one repair pass, else text |
| unknown, masked or not-chosen name            | violation if any is strict | text                       |

Two kinds of repair. What only takes a wrapping off (several calls in one block, ``parameters`` for ``arguments``,
a name with a slip) leaves the arguments as the model wrote them, and is open to strict tools too. What
changes the text of the JSON is not. Either is accepted only if the result satisfies the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from toolsimlib.errors import ApiError
from toolsimlib.events import StructuredCall
from toolsimlib.plan import Plan, Tool
from toolsimlib.report import Report
from toolsimlib.response import written as body
from toolsimlib.response.repair import fit_name, mend
from toolsimlib.response.sentinel import Block
from toolsimlib.response.written import ARGUMENTS_KEY, Json, Written
from toolsimlib.schema import CHECK_SECONDS, Finding, SchemaError, Validator, compile_schema

# Reasons.
SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
MALFORMED_JSON = "MALFORMED_JSON"
UNKNOWN_TOOL = "UNKNOWN_TOOL"
MASKED_TOOL = "MASKED_TOOL"
ARGUMENTS_TOO_LARGE = "ARGUMENTS_TOO_LARGE"
# Warnings besides.
SCHEMA_UNSETTLED = "SCHEMA_UNSETTLED"
SCHEMA_UNUSABLE = "SCHEMA_UNUSABLE"
# Dropped.
STRUCTURED_CALL = "STRUCTURED_CALL"
# Repairs besides those of body and repair.
TOOL_NAME = "TOOL_NAME"
DOUBLE_ENCODED = "DOUBLE_ENCODED"

_ANSWER_SECONDS = 1.0
"""How long all schema checks of one answer may take together; what is left over counts as unsettled."""

_PRINTABLE_NAME = re.compile(r"[\w.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Call:
    """A call for the client. ``arguments``: JSON text of an object, or a custom tool's raw input."""

    tool: Tool
    arguments: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """No call: ``raw`` goes to the client as text; ``reason`` is one of the reasons above."""

    raw: str
    reason: str


@dataclass(frozen=True, slots=True)
class Violation:
    """The strict guarantee cannot be kept: the turn ends with ``error`` (HTTP 422, ``invalid_tool_call``)."""

    error: ApiError
    reason: str


Verdict = Call | Rejected | Violation


@dataclass(frozen=True, slots=True)
class _Settled:
    """Arguments found: ``text`` for the client, ``value`` for the schema, ``mends`` = what changed the text."""

    text: str
    value: Any
    mends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Named:
    """What a written name stands for: a tool, or the reason why none; ``slip`` = not written exactly."""

    tool: Tool | None = None
    reason: str = UNKNOWN_TOOL
    slip: bool = False


class Judge:
    """Judges the calls of one answer against its plan, and counts in its report."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._repair = plan.policy.repair == "safe"
        self._tools = {tool.name: tool for tool in plan.tools}
        self._validators: dict[str, Validator | None] = {}
        self._seconds = _ANSWER_SECONDS

    def block(self, block: Block) -> list[Verdict]:
        """Return the verdicts on what one block holds, in source order; nothing follows a Violation."""
        if block.form == "xml":
            written = body.read_xml(block.body)
            if written.name is None:
                # Such a block is talk about the form: no tool was meant.
                return [self._reject(block.raw, MALFORMED_JSON, None)]
            return [self._judge(written, block.raw)]
        calls = body.read_json(block.body, closed=bool(block.closing), repair=self._repair)
        verdicts: list[Verdict] = []
        for written in calls:
            verdicts.append(self._judge(written, block.raw if len(calls) == 1 else written.source))
            if isinstance(verdicts[-1], Violation):
                break
        if len(verdicts) > 1 and all(isinstance(verdict, Rejected) for verdict in verdicts):
            # Nothing in it is a call: the client sees the block as the model wrote it.
            first = verdicts[0]
            assert isinstance(first, Rejected)
            return [Rejected(block.raw, first.reason)]
        return verdicts

    def oversize(self, raw: str) -> Verdict:
        """Return the verdict on the beginning of a block that is over the size limit."""
        _, _, inside = raw.partition(">")
        name = body.name_of(inside[:2048])
        named = self._find(name) if name is not None else _Named()
        strict = named.tool.strict if named.tool else self._plan.any_strict
        limit = self._plan.policy.max_tool_args_bytes
        return self._fail(strict, raw, ARGUMENTS_TOO_LARGE, name, f"arguments of at most {limit} bytes, got more")

    def structured(self, call: StructuredCall) -> list[Verdict]:
        """Return the verdict on a call that the backend emitted as a true call; [] = dropped.

        Its name may be one that toolsim never offered (the backend has tools of its own): such a call is passed on.
        One without a name is none.
        """
        name = f"{call.namespace}__{call.name}" if call.namespace else call.name
        if not call.name or self._plan.choice.mode == "none" or name in self._plan.masked:
            self._count(self._report.dropped, (STRUCTURED_CALL,), name)
            return []
        tool = self._structured_tool(call)
        if tool is None:
            self._warn(UNKNOWN_TOOL, call.name)
            own = Tool(call.name, call.name, kind=call.kind, namespace=call.namespace)
            return [Call(own, call.arguments or ("{}" if call.kind == "function" else ""))]
        raw = self._as_text(call)
        if not call.whole and (call.kind == "custom" or body.read_value(call.arguments) is None):
            # No slip to be mended: nobody knows how it would have gone on.
            return [self._fail(tool.strict, raw, MALFORMED_JSON, tool.name, "a whole call, got one that was cut off")]
        if tool.kind == "custom" and call.kind == "custom":
            return [self._custom(tool, call.arguments, raw, ())]
        written = Written(raw, tool.name, arguments=Json(call.arguments, call.arguments))
        return [(self._custom_written if tool.kind == "custom" else self._arguments)(tool, written, raw, ())]

    def _structured_tool(self, call: StructuredCall) -> Tool | None:
        if call.namespace is None and call.name in self._tools:
            return self._tools[call.name]
        fits = [tool for tool in self._plan.tools if tool.wire_name == call.name]
        exact = [tool for tool in fits if tool.namespace == call.namespace]
        if exact:
            return exact[0]
        return fits[0] if call.namespace is None and len(fits) == 1 else None

    def _as_text(self, call: StructuredCall) -> str:
        """Show a structured call that is none, as a block of the text would have been shown."""
        tag = self._plan.policy.sentinel
        shown = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        return f"<{tag}>{shown}</{tag}>"

    def _find(self, written: str) -> _Named:
        if written in self._tools:
            return _Named(self._tools[written])
        if written in self._plan.masked:
            return _Named(reason=MASKED_TOOL)
        if not self._repair:
            return _Named()
        spellings = [(name, name) for name in (*self._tools, *self._plan.masked)]
        spellings += [
            (spelling, tool.name)
            for tool in self._plan.tools
            if tool.namespace
            for spelling in (tool.wire_name, f"{tool.namespace}.{tool.wire_name}")
        ]
        fit = fit_name(written, spellings)
        if fit in self._plan.masked:
            return _Named(reason=MASKED_TOOL)
        return _Named(self._tools[fit], slip=True) if fit is not None else _Named()

    def _judge(self, written: Written, raw: str) -> Verdict:
        if written.name is None:
            return self._fail(
                self._plan.any_strict, raw, MALFORMED_JSON, None, "a JSON object with name and arguments, got none"
            )
        named = self._find(written.name)
        tool = named.tool
        if tool is None:
            offered = ", ".join(self._tools) or "none"
            return self._fail(
                self._plan.any_strict, raw, named.reason, written.name, f"one of the tools on offer: {offered[:500]}"
            )
        codes = (*written.codes, TOOL_NAME) if named.slip else written.codes
        if tool.kind == "custom":
            return self._custom_written(tool, written, raw, codes)
        return self._arguments(tool, written, raw, codes)

    def _arguments(self, tool: Tool, written: Written, raw: str, codes: tuple[str, ...]) -> Verdict:
        """Judge a function call: find its arguments, then ask the schema."""
        settled: _Settled | None
        if written.broken:
            settled = None
        elif written.elements is not None:
            settled = self._elements(tool, written.elements)
        else:
            given = written.arguments
            if (given is None or given.value is None) and written.spare:
                given = next(iter(written.spare.values())) if self._repair and len(written.spare) == 1 else _NOTHING
                codes = (*codes, ARGUMENTS_KEY)
            settled = self._settle(given)
        mends = (*written.mends, *settled.mends) if settled else ()
        if settled is None or (mends and tool.strict):
            return self._fail(tool.strict, raw, MALFORMED_JSON, tool.name, "arguments that are one JSON object")
        if self._too_large(settled.text):
            return self._too_large_verdict(tool, raw)
        mismatch = self._examine(tool, settled.value)
        # Several calls in one block are each judged as if it stood alone; every other repair must satisfy the schema.
        repaired = mends or any(code != body.SEVERAL_CALLS for code in codes)
        if mismatch is not None:
            if tool.strict:
                expected = f"arguments that conform to its schema, got {mismatch}"
                return self._fail(True, raw, SCHEMA_MISMATCH, tool.name, expected)
            if repaired:
                return self._reject(raw, UNKNOWN_TOOL if TOOL_NAME in codes else MALFORMED_JSON, tool.name)
            self._warn(SCHEMA_MISMATCH, tool.name)
        self._count(self._report.repairs, (*codes, *mends), tool.name)
        return Call(tool, settled.text)

    def _settle(self, given: Json | None) -> _Settled | None:
        """Return the arguments that a JSON value stands for, None where it is not an object in any form."""
        match given:
            case None | Json(value=None):
                return _Settled("{}", {})
            case Json(source=source, value=dict() as value):
                return _Settled(source, value)
            case Json(value=str() as text):
                return self._settle_text(text)
        return None

    def _settle_text(self, text: str) -> _Settled | None:
        if text.strip() in {"", "null"}:
            return _Settled("{}", {})
        match body.read_value(text):
            case Json(value=dict() as value):
                return _Settled(text, value)
            case Json(value=str() as inner) if self._repair:
                match body.read_value(inner):
                    case Json(value=dict() as value):
                        return _Settled(inner, value, (DOUBLE_ENCODED,))
            case None if self._repair:
                return _mended(text)
        return None

    # Custom tools: the model was shown a function with one string parameter ``input``.

    def _custom_written(self, tool: Tool, written: Written, raw: str, codes: tuple[str, ...]) -> Verdict:
        text: str | None = None
        mends = written.mends
        if written.broken:
            pass
        elif written.elements is not None:
            text = _custom_elements(written.elements)
        else:
            given = written.arguments if written.arguments is not None else written.spare.get("input")
            if given is None and len(written.spare) == 1 and self._repair:
                given = next(iter(written.spare.values()))
                codes = (*codes, ARGUMENTS_KEY)
            match given:
                case None | Json(value=None):
                    text = ""
                case Json(value={"input": str() as text}):
                    pass
                case Json(value=str() as whole) if written.arguments is None and "input" in written.spare:
                    text = whole
                case Json(value=str() as whole):
                    text, more = self._custom_input(whole)
                    mends += more
        if text is None or (mends and tool.strict):
            return self._fail(tool.strict, raw, MALFORMED_JSON, tool.name, 'arguments {"input": "…"}')
        return self._custom(tool, text, raw, (*codes, *mends))

    def _custom_input(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Return the input that ``arguments`` as a string stands for: its member ``input``, or else the string."""
        match body.read_value(text):
            case Json(value={"input": str() as inner}):
                return inner, ()
            case None if self._repair:
                match _mended(text):
                    case _Settled(value={"input": str() as inner}, mends=mends):
                        return inner, mends
        return text, ()

    def _custom(self, tool: Tool, text: str, raw: str, codes: tuple[str, ...]) -> Verdict:
        if self._too_large(text):
            return self._too_large_verdict(tool, raw)
        self._count(self._report.repairs, codes, tool.name)
        return Call(tool, text)

    # The XML form: values typed by the schema.

    def _elements(self, tool: Tool, elements: tuple[tuple[str, str], ...]) -> _Settled | None:
        """Return the arguments that elements stand for: an object of them, or the one element that holds it whole."""
        schema = self._validator(tool)
        declared = (tool.parameters or {}).get("properties")
        match elements:
            case ((("arguments" | "parameters") as only, content),) if not (
                isinstance(declared, Mapping) and only in declared
            ):
                whole = _whole(content)
                if isinstance(whole, _Settled):
                    return whole
                elements = whole if whole is not None else elements
        grouped: dict[str, list[str]] = {}
        for key, text in elements:
            grouped.setdefault(key, []).append(body.trim(body.unescape(text)))
        parts: list[str] = []
        value: dict[str, Any] = {}
        for key, texts in grouped.items():
            typed = self._typed(texts, schema.property(key) if schema else None)
            if typed is None:
                return None
            parts.append(f"{json.dumps(key, ensure_ascii=False)}:{typed.source}")
            value[key] = typed.value
        return _Settled("{" + ",".join(parts) + "}", value)

    def _typed(self, texts: list[str], schema: Validator | None) -> Json | None:
        """Give the content of equally named elements the type that their property's schema asks for.

        Several are an array, if the schema knows arrays; None where it does not. One is a string wherever a string
        conforms, then JSON, then the only item of an array.
        """
        if len(texts) == 1:
            single = self._typed_text(texts[0], schema)
            if schema is None or self._conforms(schema, single.value) or "array" not in schema.types():
                return single
            listed = self._listed(texts, schema)
            return listed if self._conforms(schema, listed.value) else single
        return self._listed(texts, schema) if schema and "array" in schema.types() else None

    def _listed(self, texts: list[str], schema: Validator) -> Json:
        item = schema.items()
        items = [self._typed_text(text, item) for text in texts]
        return Json("[" + ",".join(each.source for each in items) + "]", [each.value for each in items])

    def _typed_text(self, text: str, schema: Validator | None) -> Json:
        string = Json(json.dumps(text, ensure_ascii=False), text)
        if schema is None or self._conforms(schema, text):
            return string
        bare = text.strip()
        # Python's words for JSON's, which models like to write where no quotes are needed.
        bare = bare.lower() if bare in {"True", "False", "None"} else bare
        value = body.read_value("null" if bare == "none" else bare)
        if value is None:
            return string
        # Where nothing conforms the schema's own type decides what the complaint will be about.
        return value if self._conforms(schema, value.value) or "string" not in schema.types() else string

    # Schema, limits, counts.

    def _validator(self, tool: Tool) -> Validator | None:
        if tool.name not in self._validators:
            self._validators[tool.name] = None
            if tool.parameters is not None:
                try:
                    self._validators[tool.name] = compile_schema(tool.parameters)
                except SchemaError:  # a 400 if the tool is strict: the request's side has seen to that
                    self._warn(SCHEMA_UNUSABLE, tool.name)
        return self._validators[tool.name]

    def _examine(self, tool: Tool, value: Any) -> str | None:
        validator = self._validator(tool)
        if validator is None:
            return None
        finding = self._timed(validator, value)
        if not finding.settled:
            self._warn(SCHEMA_UNSETTLED, tool.name)
        return finding.mismatch

    def _conforms(self, schema: Validator, value: Any) -> bool:
        return self._timed(schema, value).mismatch is None

    def _timed(self, schema: Validator, value: Any) -> Finding:
        started = monotonic()
        finding = schema.examine(value, min(CHECK_SECONDS, self._seconds))
        self._seconds -= monotonic() - started
        return finding

    def _too_large(self, text: str) -> bool:
        limit = self._plan.policy.max_tool_args_bytes
        # No character has more than four bytes: most texts need no encoding to be measured.
        return len(text) > limit // 4 and len(text.encode("utf-8", "surrogatepass")) > limit

    def _too_large_verdict(self, tool: Tool, raw: str) -> Verdict:
        limit = self._plan.policy.max_tool_args_bytes
        return self._fail(
            tool.strict, raw, ARGUMENTS_TOO_LARGE, tool.name, f"arguments of at most {limit} bytes, got more"
        )

    def _fail(self, strict: bool, raw: str, reason: str, name: str | None, expected: str) -> Verdict:
        if not strict:
            return self._reject(raw, reason, name)
        self._count(self._report.strict_failures, (reason,), name)
        written = f"the tool {_shown(name)}" if name is not None else "a tool whose name cannot be read"
        message = f"The model called {written} and failed ({reason}): expected {expected}."
        return Violation(
            ApiError(message, type="invalid_request_error", code="invalid_tool_call", param="tools", status=422), reason
        )

    def _reject(self, raw: str, reason: str, name: str | None) -> Rejected:
        self._count(self._report.parse_failures, (reason,), name)
        return Rejected(raw, reason)

    def _warn(self, code: str, name: str) -> None:
        self._count(self._report.warnings, (code,), name)

    def _count(self, counts: list[str], codes: tuple[str, ...], name: str | None) -> None:
        counts += [code if name is None else f"{code}:{_shown(name)}" for code in codes]


_NOTHING = Json("", ())
"""Not an object in any form."""


def _shown(name: str) -> str:
    """Return a name that is fit for a log: one that the model made up may be anything."""
    return name if _PRINTABLE_NAME.fullmatch(name) else "?"


def _mended(text: str) -> _Settled | None:
    mended = mend(text, len(text) - len(text.lstrip()))
    if mended is None or text[mended.end :].strip(" \t\r\n}]"):
        return None
    codes = mended.codes if mended.end == len(text.rstrip()) else (*mended.codes, body.EXTRA_BRACE)
    match body.read_value(mended.text):
        case Json(value=dict() as value):
            return _Settled(mended.text, value, codes)
    return None


def _whole(content: str) -> _Settled | tuple[tuple[str, str], ...] | None:
    """Read an element that holds all arguments: as one JSON object, or as elements inside of it."""
    for text in (body.unescape(content), content):
        match body.read_value(text):
            case Json(value=dict() as value):
                return _Settled(text.strip(), value)
    inner = body.read_elements(content)
    return None if inner is None else tuple(inner)


def _custom_elements(elements: tuple[tuple[str, str], ...]) -> str | None:
    match elements:
        case ():
            return ""
        case (("input" | "arguments" | "parameters" as key, content),):
            if key != "input":
                match _whole(content):
                    case _Settled(value={"input": str() as text}):
                        return text
                    case (("input", inner),):
                        content = inner
            return body.trim(body.unescape(content))
    return None
