"""The judge: which call is good, which is repaired, which stays text, which ends the turn.

| what the model wrote                          | tool strict                | otherwise                  |
|-----------------------------------------------|----------------------------|----------------------------|
| arguments: an object, or a JSON string of one | call                       | call                       |
| arguments absent, null, ``""``                | ``{}``, then the schema    | ``{}``                     |
| schema mismatch                               | violation                  | call, warning              |
| mismatch undecided in time                    | violation                  | call, warning              |
| malformed JSON                                | violation                  | one repair pass, else text |
| unknown, masked or not-chosen name            | violation if any is strict | text                       |
| unknown, with ``unknown_tool=call``           | call, warning              | call, warning              |
| any of these, and a tool's output holds it    | text, warning              | text, warning              |

There are two kinds of repair. Unwrapping (several calls in one block, ``parameters`` for ``arguments``, a name with a
slip) leaves the arguments as the model wrote them, and is allowed for strict tools too. Changing the text of the JSON
is not. Either is accepted only if the result satisfies the tool's schema.

A call that an output of the same request holds, in all its letters, is quoted and not made: ``outputs`` says what
counts as the same. Calls that the backend emitted as such are judged by the same table (``structured``), but are not
text, and not compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolsimlib.errors import ApiError
from toolsimlib.plan import FIND_TOOLS, GUESSED_CALL, Plan, Tool
from toolsimlib.report import Report, code_of, entry, loggable_name
from toolsimlib.response.answer_format import AnswerFormat
from toolsimlib.response.arguments import Arguments, custom_input, function_arguments
from toolsimlib.response.call_forms import FOREIGN, read_form
from toolsimlib.response.checker import BUDGET_SECONDS, SCHEMA_UNSETTLED, UNSETTLED, SchemaChecker
from toolsimlib.response.pieces import Block, Oversize
from toolsimlib.response.repeated import REPEATED_KEYS, split_call
from toolsimlib.response.toolbox import Lookup, Toolbox
from toolsimlib.response.verdict import (
    ARGUMENTS_TOO_LARGE,
    INVALID_CALL,
    MALFORMED_JSON,
    QUOTED_CALL,
    SCHEMA_MISMATCH,
    TOOL_NAME,
    UNKNOWN_TOOL,
    Accepted,
    Call,
    Rejected,
    Verdict,
    Violation,
)
from toolsimlib.response.written import Written, name_of, read_json
from toolsimlib.schema import Finding
from toolsimlib.wire.local_tools import is_item

_MAX_HEADER = 2048
"""How many characters of an oversize block are searched for the tool's name."""

_MAX_SEARCHED = 1 << 30
"""Bytes of outputs that the calls of one answer are searched for; no model writes so many calls that more is needed.

What is written after that counts as quoted.
"""

_MAX_OFFERED = 500
"""How many characters of the names on offer an error message lists."""


_NO_ITEM = Finding("one of its numbers is too large", outline="a number is too large")


class Judge:
    """Judges the calls of one answer against its plan, and counts the outcomes in its report.

    ``seconds``: the time budget of its schema checks (see ``checker``).
    """

    def __init__(self, plan: Plan, report: Report, *, seconds: float = BUDGET_SECONDS) -> None:
        self.plan = plan
        self.report = report
        self._repair = plan.policy.repair == "safe"
        self.toolbox = Toolbox(plan)
        self._searched = 0  # Bytes of outputs that have been searched (_MAX_SEARCHED).
        self._checker = SchemaChecker(self.warn, seconds=seconds, max_schema_bytes=plan.policy.max_schema_bytes)
        # What an answer in words has to be; None if anything will do, or the backend can write nothing but calls.
        self.answer_format: AnswerFormat | None = None
        if plan.answer_format is not None and plan.tools and plan.constraint is None:
            self.answer_format = AnswerFormat(plan.answer_format, self._checker)

    def block(self, block: Block | Oversize) -> list[Verdict]:
        """Return the verdicts on what one block holds, in source order; nothing follows a Violation."""
        if isinstance(block, Oversize):
            return [self._oversize(block.raw)]
        if block.form == "xml":
            calls = read_form(block.opening, block.body)
            if not self._repair:
                calls = [replace(call, broken=call.broken or bool(call.mends)) for call in calls]
            if calls[0].name is None:
                # The model is describing the syntax, not calling a tool.
                return [self.reject(block.raw, MALFORMED_JSON, None)]
        else:
            calls = read_json(block.body, closed=bool(block.closing), repair=self._repair)
        quoted = [written for written in calls if self._is_quoted(written)]
        if quoted and (len(quoted) == len(calls) or _is_indivisible(block.body, calls)):
            return [self._quote(quoted[0], block.raw)]
        if block.form == "json":
            calls = [part for call in calls for part in ([call] if call in quoted else self._split([call]))]
        repairs, warnings = len(self.report.repairs), len(self.report.warnings)
        # In another form's own tags a model may be quoting what it has read: an unknown name there ends nothing.
        in_ours = block.opening not in FOREIGN
        verdicts: list[Verdict] = []
        for written in calls:
            if written in quoted:
                verdicts.append(self._quote(written, written.source))
                continue
            verdicts.append(self._judge(written, block.raw if len(calls) == 1 else written.source, in_ours))
            if isinstance(verdicts[-1], Violation):
                return verdicts
        rejected = [verdict for verdict in verdicts if isinstance(verdict, Rejected)]
        if rejected and (len(rejected) == len(calls) > 1 or _is_indivisible(block.body, calls)):
            # The client sees the block as the model wrote it.
            del self.report.repairs[repairs:]
            self.report.warnings[warnings:] = [
                warning for warning in self.report.warnings[warnings:] if code_of(warning) == QUOTED_CALL
            ]
            return [replace(rejected[0], raw=block.raw)]
        return verdicts

    def _oversize(self, raw: str) -> Verdict:
        """Return the verdict on the beginning of a block that is over the size limit."""
        _, _, inside = raw.partition(">")
        name = name_of(inside[:_MAX_HEADER])
        lookup = self.toolbox.written(name) if name is not None else Lookup()
        strict = lookup.tool.strict if lookup.tool else self.plan.any_strict
        limit = self.plan.policy.max_tool_args_bytes
        return self.fail(strict, raw, ARGUMENTS_TOO_LARGE, name, f"arguments of at most {limit} bytes, got more")

    def untagged(self, calls: Sequence[Written | None], code: str) -> list[Accepted] | None:
        """Return the calls that an untagged form stands for, None if it is text.

        Nothing is counted, and nothing is ever a violation: most such forms are text. So every call must be beyond
        doubt: a name on offer, arguments that are present and fit the schema, strict or not, and no other keys.
        """
        accepted = [self._accept(written, code) for written in self._split(calls)]
        if None in accepted:
            return None
        is_quoted = any(written is not None and self._is_quoted(written) for written in calls)
        return [replace(call, is_quoted=is_quoted) for call in accepted if call is not None]

    def count_untagged(self, accepted: Accepted) -> None:
        """Count a call that was accepted, and its repairs."""
        name = accepted.call.tool.name
        self._count(self.report.untagged, (accepted.form,), name)
        self._count(self.report.repairs, accepted.repairs, name)

    def count_quoted(self, accepted: Accepted) -> None:
        """Count a call that was accepted, but is quoted."""
        self.warn(QUOTED_CALL, accepted.call.tool.name)

    def count_lost(self) -> None:
        """Count a call that was lost: its block never became one, and passes as text (see ``sentinel``)."""
        self._count(self.report.parse_failures, (MALFORMED_JSON,), None)

    def _accept(self, written: Written | None, code: str) -> Accepted | None:
        if written is None or written.name is None or written.broken or written.unknown:
            return None
        lookup = self.toolbox.written(written.name)
        tool = lookup.tool
        if tool is None:
            return None
        found = self._arguments(written, tool)
        if found is None or self._too_large(found.text):
            return None
        if tool.kind != "custom" and not self._fits(tool, written, found):
            lookup_call = self._lookup_instead(tool) if found.value and not _is_schema(found.value, tool) else None
            return Accepted(lookup_call, code) if lookup_call else None
        mends = (*written.mends, *found.mends)
        if mends and tool.strict:
            return None
        codes = (*written.codes, TOOL_NAME) if lookup.inexact else written.codes
        return Accepted(Call(tool, found.text), code, (*codes, *found.codes, *mends))

    def _arguments(self, written: Written, tool: Tool) -> Arguments | None:
        if tool.kind == "custom":
            return custom_input(written, repair=self._repair)
        return function_arguments(written, tool, self._checker, repair=self._repair)

    def _is_quoted(self, written: Written) -> bool:
        """Return whether an output holds the call, and it is not one that the model has made before."""
        outputs = self.plan.outputs
        if not outputs.text:
            return False
        self._searched += len(outputs.text)
        if self._searched <= _MAX_SEARCHED and not outputs.hold(written.source):
            return False
        tool = self.toolbox.written(written.name).tool if written.name is not None else None
        found = self._arguments(written, tool) if tool is not None else None
        return tool is None or found is None or not outputs.answer(tool.name, found.text)

    def _quote(self, written: Written, raw: str) -> Rejected:
        self.warn(QUOTED_CALL, written.name)
        return Rejected(raw, QUOTED_CALL, written.name)

    def _fits(self, tool: Tool, written: Written, found: Arguments) -> bool:
        given = written.arguments or next(iter(written.aliased.values()), None)
        if not written.values and (given is None or given.value in (None, "")):
            return False  # Without arguments it may just as well be the name of something.
        fits = not _is_schema(found.value, tool) and self._checker.fits(tool, found.value)
        return fits and (not tool.must_fit or is_item(found.text))

    def _split[W: (Written, Written | None)](self, calls: Sequence[W]) -> list[W | Written]:
        """Return the calls, and split each that several have collapsed into, if the schema allows nothing else."""
        return [part for call in calls for part in (self._split_one(call) if call is not None else [call])]

    def _split_one(self, written: Written) -> list[Written]:
        tool = self.toolbox.written(written.name).tool if written.name is not None and self._repair else None
        if tool is None or tool.kind != "function":
            return [written]
        return split_call(
            written,
            self._checker.schema(tool) if written.arguments else None,
            accepts=lambda call: self._accept(call, REPEATED_KEYS) is not None,
            fits=lambda value: self._checker.fits(tool, value),
        )

    def _judge(self, written: Written, raw: str, in_ours: bool) -> Verdict:
        """Judge one call. ``in_ours``: it stands in our own tags, so it is a call whatever its tool is."""
        strict = in_ours and self.plan.any_strict
        if written.name is None:
            return self.fail(strict, raw, MALFORMED_JSON, None, "a JSON object with name and arguments, got none")
        lookup = self.toolbox.written(written.name)
        tool = lookup.tool
        if tool is None and in_ours and lookup.may_pass:
            self.warn(UNKNOWN_TOOL, written.name)
            return self._function(Tool(written.name, written.name), written, raw, written.codes)
        if tool is None:
            return self.fail(strict, raw, lookup.reason, written.name, self.on_offer())
        codes = (*written.codes, TOOL_NAME) if lookup.inexact else written.codes
        return self.judge_arguments(tool, written, raw, codes)

    def on_offer(self) -> str:
        """Return what a call of an unknown tool would have needed."""
        return f"one of the tools on offer: {(', '.join(self.toolbox.names) or 'none')[:_MAX_OFFERED]}"

    def judge_arguments(self, tool: Tool, written: Written, raw: str, codes: tuple[str, ...]) -> Verdict:
        """Judge a call whose tool is known; ``codes``: how its name was repaired."""
        judge = self._custom if tool.kind == "custom" else self._function
        return judge(tool, written, raw, codes)

    def _function(self, tool: Tool, written: Written, raw: str, codes: tuple[str, ...]) -> Verdict:
        """Judge a call to a function tool: find its arguments, then ask the schema."""
        found = function_arguments(written, tool, self._checker, repair=self._repair)
        mends = (*written.mends, *found.mends) if found else ()
        if found is None or (mends and tool.strict):
            return self.fail(tool.strict, raw, MALFORMED_JSON, tool.name, "arguments that are one JSON object")
        if self._too_large(found.text):
            return self._fail_too_large(tool, raw)
        codes = (*codes, *found.codes)
        broken = self._checker.mismatch(tool, found.value)
        if broken is None and tool.must_fit and not is_item(found.text):
            broken = _NO_ITEM
        # Each of several calls in one block is judged as if it stood alone; a repaired one must satisfy the schema.
        repaired = mends or codes
        if broken is not None and (lookup_call := self._lookup_instead(tool)):
            return lookup_call
        if broken is not None:
            self.report.mismatches.append(entry(tool.name, broken.outline))
            expected = f"arguments that conform to its schema; {broken.mismatch}"
            if tool.strict:
                reason = SCHEMA_UNSETTLED if broken is UNSETTLED else SCHEMA_MISMATCH
                return self.fail(True, raw, reason, tool.name, expected)
            if repaired or tool.must_fit:
                reason = UNKNOWN_TOOL if TOOL_NAME in codes else MALFORMED_JSON if repaired else SCHEMA_MISMATCH
                return self.reject(raw, reason, tool.name, expected)
            self.warn(SCHEMA_MISMATCH, tool.name)
        self._count(self.report.repairs, (*codes, *mends), tool.name)
        return Call(tool, found.text)

    def _lookup_instead(self, tool: Tool) -> Call | None:
        """Return the lookup that replaces a call that does not fit, if the model has not seen its tool's entry.

        None for any other tool, and once anything was looked up. Weak models guess rather than ask.
        """
        if tool.name not in self.plan.named or GUESSED_CALL not in self.plan.asks:
            return None
        return Call(self.toolbox[FIND_TOOLS], json.dumps({"names": [tool.name]}))

    def _custom(self, tool: Tool, written: Written, raw: str, codes: tuple[str, ...]) -> Verdict:
        """Judge a call to a custom tool: any input is valid, so it only has to be found."""
        found = custom_input(written, repair=self._repair)
        mends = (*written.mends, *found.mends) if found else ()
        if found is None or (mends and tool.strict):
            return self.fail(tool.strict, raw, MALFORMED_JSON, tool.name, 'arguments {"input": "…"}')
        return self.judge_input(tool, found.text, raw, (*codes, *found.codes, *mends))

    def judge_input(self, tool: Tool, text: str, raw: str, codes: tuple[str, ...]) -> Verdict:
        """Judge the input of a custom tool, which is only measured."""
        if self._too_large(text):
            return self._fail_too_large(tool, raw)
        self._count(self.report.repairs, codes, tool.name)
        return Call(tool, text)

    # Limits, failures, counts.

    def _too_large(self, text: str) -> bool:
        limit = self.plan.policy.max_tool_args_bytes
        # No character has more than four bytes: most texts need no encoding to be measured.
        return len(text) > limit // 4 and len(text.encode("utf-8", "surrogatepass")) > limit

    def _fail_too_large(self, tool: Tool, raw: str) -> Verdict:
        limit = self.plan.policy.max_tool_args_bytes
        return self.fail(
            tool.strict, raw, ARGUMENTS_TOO_LARGE, tool.name, f"arguments of at most {limit} bytes, got more"
        )

    def fail(self, strict: bool, raw: str, reason: str, name: str | None, expected: str) -> Verdict:
        """Return the verdict on what cannot be a call: a violation if a ``strict`` tool is concerned."""
        if not strict:
            return self.reject(raw, reason, name, expected)
        self._count(self.report.strict_failures, (reason,), name)
        written = f"the tool {loggable_name(name)}" if name is not None else "a tool whose name cannot be read"
        message = f"The model called {written} and failed ({reason}): expected {expected}."
        error = ApiError(message, type="invalid_request_error", code=INVALID_CALL, param="tools", status=422)
        return Violation(error, reason, raw, name, expected)

    def reject(self, raw: str, reason: str, name: str | None, expected: str = "") -> Rejected:
        """Count what is not a call, and return the verdict."""
        self._count(self.report.parse_failures, (reason,), name)
        return Rejected(raw, reason, name, expected)

    def warn(self, code: str, name: str | None) -> None:
        """Add a warning about a tool."""
        self._count(self.report.warnings, (code,), name)

    def _count(self, counts: list[str], codes: tuple[str, ...], name: str | None) -> None:
        counts += [code if name is None else f"{code}:{loggable_name(name)}" for code in codes]


def _is_indivisible(body: str, calls: Sequence[Written]) -> bool:
    """Return whether a block counts only as a whole: none of it is a call if a part is not.

    An array does, and so does a call with words behind it. Objects side by side are independent calls.
    """
    return body.lstrip().startswith("[") or any(call.broken and call.source[:1] not in {"{", ""} for call in calls)


def _is_schema(value: Mapping[str, Any], tool: Tool) -> bool:
    """Return whether ``value`` is a JSON schema: then it declares a tool and is not a call."""
    declared = (tool.parameters or {}).get("properties")
    if isinstance(declared, Mapping) and "properties" in declared:
        return False
    return value.get("type") == "object" and isinstance(value.get("properties"), dict)
