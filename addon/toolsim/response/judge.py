"""The judge: decides whether the client receives a call unchanged, after a repair, as text, or as an error that ends
the turn.

| row | what the model wrote                          | tool strict                | otherwise                  |
|-----|-----------------------------------------------|----------------------------|----------------------------|
| 1   | no name                                       | violation if any is strict | text                       |
| 2   | a name that is unknown, masked or not chosen  | violation if any is strict | text                       |
| 3   | an unknown name, with ``unknown_tool=call``   | call, with a warning       | call, with a warning       |
| 4   | malformed arguments                           | violation                  | one repair pass, else text |
| 5   | arguments that are too large                  | violation                  | text                       |
| 6   | a mismatch for a tool shown only by its name  | a lookup of the tool       | a lookup of the tool       |
| 7   | schema mismatch, or check not completed       | violation                  | row 8                      |
| 8   | a mismatch of a repaired call, of an item, or | –                          | text                       |
|     | of a possible mention of a call (``is_bare``) |                            |                            |
| 9   | any other mismatch                            | –                          | call, with a warning       |
| 10  | everything else                               | call                       | call                       |
| 11  | any of these, if a tool's output contains it  | text, with a warning       | text, with a warning       |

``decide`` implements rows 1 to 10 of this table. The module ``arguments`` parses the arguments. An item (row 8) is a
call to a tool that has its own type in the client's API, such as a shell. The API cannot represent an item whose
arguments do not match its schema.

There are two kinds of repairs. Some leave the arguments as the model wrote them, for example by correcting a misspelled
name, or the key ``parameters`` to ``arguments``. These repairs are also allowed for strict tools. Others change the
text of the JSON, and are not allowed for strict tools. A repair is accepted only if the result satisfies the tool's
schema. Finally, if the arguments still do not match, their types are corrected (``value_types``).

If a tool output in the request contains the same call verbatim, the model is assumed to quote it, and the call is not
made; ``outputs`` defines which calls are equal. Structured calls from the backend are judged by the same table
(``structured``), but are not compared with tool outputs. Untagged calls are accepted only if they are certainly valid
(``untagged``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from toolsim.core.errors import ApiError
from toolsim.core.plan import FIND_TOOLS, GUESSED_CALL, Plan, Tool
from toolsim.core.report import Report, code_of, entry, loggable_name
from toolsim.response.answer_format import AnswerFormat
from toolsim.response.arguments import Arguments, custom_input, function_arguments
from toolsim.response.call_forms import FOREIGN, custom_rows, read_form
from toolsim.response.checker import BUDGET_SECONDS, SCHEMA_CHECK_TIMED_OUT, UNSETTLED, SchemaChecker
from toolsim.response.object_shapes import REPEATED_KEYS, name_inside, split_call, unwrap
from toolsim.response.parsed_call import MARKER_REPAIRS, Json, ParsedCall, name_of, read_json
from toolsim.response.segments import Block, Oversize, utf8_length
from toolsim.response.toolbox import Lookup, Toolbox
from toolsim.response.value_types import VALUE_TYPE, correct_types
from toolsim.response.verdict import (
    ARGUMENTS_TOO_LARGE,
    INVALID_CALL,
    MALFORMED_JSON,
    QUOTED_CALL,
    SCHEMA_MISMATCH,
    TOOL_NAME,
    UNKNOWN_TOOL,
    Accepted,
    JudgedCall,
    Rejected,
    Verdict,
    Violation,
)
from toolsim.schema import CheckResult
from toolsim.wire.hosted_items import search_for
from toolsim.wire.local_tools import is_item

_MAX_HEADER = 2048
"""Number of characters at the beginning of an oversize block that are searched for the tool's name."""

_MAX_SEARCHED = 1 << 30
"""Maximum number of bytes that are searched for quotations per answer. Real answers never reach this limit. Once the
limit is reached, every further call is treated as a quotation.
"""

_MAX_OFFERED = 500
"""Maximum length of the list of offered names in an error message, in characters."""

_NO_ITEM = CheckResult("one of its numbers is too large", outline="a number is too large")


class Judge:
    """Judges the calls of one answer against its plan, and counts the outcomes in its report.

    ``seconds``: the time budget of the schema checks (see ``checker``).
    """

    def __init__(self, plan: Plan, report: Report, *, seconds: float = BUDGET_SECONDS) -> None:
        self.plan = plan
        self.report = report
        self.toolbox = Toolbox(plan)
        self._custom = custom_rows(plan.policy.forms)
        self._repair = plan.policy.repair == "safe"
        self._limit = plan.policy.max_tool_bytes
        self._searched = 0  # Number of bytes of tool outputs searched so far. The limit is _MAX_SEARCHED.
        self._checker = SchemaChecker(self.warn, seconds=seconds)
        # The JSON format of an answer without calls, or None if no format is required, or if the backend can write only
        # calls.
        self.answer_format: AnswerFormat | None = None
        if plan.answer_format is not None and plan.tools and plan.constraint is None:
            self.answer_format = AnswerFormat(plan.answer_format, self._checker)

    def decide(
        self, written: ParsedCall, raw: str, lookup: Lookup, *, in_own_tag: bool = True, corrects: bool = True
    ) -> Verdict:
        """Return the verdict on one call, by rows 1 to 10 of the table.

        ``raw``: the text for the client if the call is not made. ``lookup``: the result of looking up the tool's name.
        ``in_own_tag``: whether the call is in toolsim's own tags, or is a structured call. If so, it is certainly meant
        as a call, even if the tool is unknown. ``corrects``: whether the types of the arguments may be corrected, which
        is possible until the client has received some of the arguments.
        """
        any_strict = in_own_tag and self.plan.any_strict
        # 1. The name is missing, so the model might have meant a strict tool.
        if written.name is None:
            expected = "a JSON object with name and arguments, got none"
            return self.fail(any_strict, raw, MALFORMED_JSON, None, expected)
        tool = lookup.tool
        # 2. The model might have meant a strict tool here, too, and misspelled its name beyond repair.
        if tool is None and not (in_own_tag and lookup.may_pass):
            return self.fail(any_strict, raw, lookup.reason, written.name, self._on_offer())
        # 3. The operator allows calls to unknown tools. They have no schema, so any object matches.
        if tool is None:
            self.warn(UNKNOWN_TOOL, written.name)
            tool = Tool(written.name, written.name)
        # 4. A repair that changes text is a guess. The client of a strict tool was promised that no call is guessed.
        found = self._arguments(written, tool)
        if found is None or (tool.strict and (written.lossy_repairs or found.lossy_repairs)):
            expected = 'arguments {"input": "…"}' if tool.kind == "custom" else "arguments that are one JSON object"
            return self.fail(tool.strict, raw, MALFORMED_JSON, tool.name, expected)
        # 5. The size is measured after decoding: escapes and surrounding quotes do not count.
        if utf8_length(found.text) > self._limit:
            return self.fail(tool.strict, raw, ARGUMENTS_TOO_LARGE, tool.name, self._size_expected())
        broken = self._mismatch(tool, found)
        # The last repair corrects the types of the arguments.
        if broken is not None and corrects and (corrected := self._corrected(tool, found)) is not None:
            broken, found = None, corrected
        # 6. Weak models guess the arguments instead of looking up the tool. The guessed call is replaced by the lookup.
        if broken is not None and (question := self._lookup_instead(tool)) is not None:
            return question
        if broken is not None:
            self.report.mismatches.append(entry(tool.name, broken.outline))
            expected = f"arguments that conform to its schema; {broken.mismatch}"
            # 7. A check that was not completed does not satisfy a strict tool's guarantee.
            if tool.strict and broken is UNSETTLED:
                return self.fail(True, raw, SCHEMA_CHECK_TIMED_OUT, tool.name, expected)
            if tool.strict:
                return self.fail(True, raw, SCHEMA_MISMATCH, tool.name, expected)
            # 8. The repair was a wrong guess, since the result does not match. The reported reason depends on the part
            # that was repaired.
            if TOOL_NAME in lookup.codes:
                return self.reject(raw, UNKNOWN_TOOL, tool.name, expected)
            if _repairs(written, lookup, found) or written.is_bare:
                rejected = self.reject(raw, MALFORMED_JSON, tool.name, expected)
                return replace(rejected, is_unreadable=not MARKER_REPAIRS.isdisjoint(written.codes))
            if tool.must_fit:
                return self.reject(raw, SCHEMA_MISMATCH, tool.name, expected)
            # 9. The client checks the arguments, too, and can report the mismatch to the model.
            self.warn(SCHEMA_MISMATCH, tool.name)
        # 10. Repairs are counted only now, because the call could have been rejected up to this point.
        repairs = _repairs(written, lookup, found)
        self._count(self.report.repairs, repairs, tool.name)
        return JudgedCall(tool, found.text, repairs)

    # -- tagged calls

    def block(self, block: Block | Oversize, *, is_announced: bool = False) -> list[Verdict]:
        """Return the verdicts on the calls in one block, in the order of the text. A Violation is always the last
        verdict.

        ``is_announced``: whether the client has already received the beginning of the first call.
        """
        # 5. The rest of the block was not read, and is therefore unknown.
        if isinstance(block, Oversize):
            return [self._oversize(block.raw)]
        calls = self._read(block)
        # 1. XML without a name is text even if a tool is strict, because it probably only describes the syntax.
        if block.form == "xml" and calls[0].name is None:
            return [replace(self.reject(block.raw, MALFORMED_JSON, None), is_unreadable=True)]
        is_indivisible = _is_indivisible(block.body, calls)
        quoted = [written for written in calls if self._is_quoted(written)]
        # 11. If an output contains the entire block, or part of an indivisible block, the block is quoted.
        if quoted and (is_indivisible or len(quoted) == len(calls)):
            return [self._quote(quoted[0], block.raw)]
        repairs, warnings = len(self.report.repairs), len(self.report.warnings)
        verdicts = self._decide_each(block, calls, quoted, is_announced=is_announced)
        rejected = [verdict for verdict in verdicts if isinstance(verdict, Rejected)]
        # A violation ends the turn, regardless of other verdicts.
        if not rejected or isinstance(verdicts[-1], Violation):
            return verdicts
        # The client receives the entire block as text, so repairs and warnings about its calls are removed from the
        # report.
        if is_indivisible or len(rejected) == len(verdicts) > 1:
            self._uncount(repairs, warnings)
            return [replace(rejected[0], raw=block.raw)]
        return verdicts

    def _decide_each(
        self, block: Block, calls: Sequence[ParsedCall], quoted: Sequence[ParsedCall], *, is_announced: bool
    ) -> list[Verdict]:
        """Return the verdicts on the calls in a block, up to the first Violation. The calls in ``quoted`` are not made
        (row 11).
        """
        parts: list[ParsedCall] = []
        for written in calls:
            # A quoted call remains text, so it is not split. In forms other than JSON, each part is already one call.
            if written in quoted:
                parts.append(written)
            else:
                parts += [self.named(written)] if block.form == "xml" else self._split(written)
        # Text in the markers of a model family might be a quotation, so an unknown name in it does not end the turn.
        opening = block.meant or block.opening
        in_own_tag = opening not in FOREIGN and opening not in self._custom and not block.meant
        verdicts: list[Verdict] = []
        for written in parts:
            if written in quoted:
                verdicts.append(self._quote(written, written.source))
                continue
            # If a block contains only one call, the call's text includes the tags.
            raw = block.raw if len(parts) == 1 else written.source
            corrects = bool(verdicts) or not is_announced
            lookup = self.toolbox.written(written.name)
            verdicts.append(self.decide(written, raw, lookup, in_own_tag=in_own_tag, corrects=corrects))
            if isinstance(verdicts[-1], Violation):
                break
        return verdicts

    def _read(self, block: Block) -> list[ParsedCall]:
        calls = self._read_body(block)
        return [reduce(ParsedCall.repaired, block.codes, call) for call in calls] if block.codes else calls

    def _read_body(self, block: Block) -> list[ParsedCall]:
        if block.form == "json":
            calls = read_json(block.body, closed=bool(block.closing), repair=self._repair)
            if not self._repair:
                return calls
            # A call that lacks a name or arguments may have them in an unusual position in the object.
            return [part for call in calls for part in unwrap(call, self.toolbox.parameters, marked=True)]
        opening = block.meant or block.opening
        form_calls = read_form(opening, block.body, self._custom.get(opening))
        calls = [replace(call, is_bare=block.is_bare) for call in form_calls]
        if self._repair:
            return calls
        return [replace(call, broken=not call.is_clean) for call in calls]

    def _oversize(self, raw: str) -> Verdict:
        """Return the verdict on the beginning of a block that exceeds the size limit (row 5)."""
        _, _, inside = raw.partition(">")
        name = name_of(inside[:_MAX_HEADER])
        tool = self.toolbox.written(name).tool
        # 1 and 2. If the tool is unknown, the model might have meant a strict tool.
        strict = self.plan.any_strict if tool is None else tool.strict
        return self.fail(strict, raw, ARGUMENTS_TOO_LARGE, name, self._size_expected())

    # -- untagged calls

    def untagged(self, calls: Sequence[ParsedCall | None], code: str) -> list[Accepted] | None:
        """Return untagged calls if all of them are certainly valid. Otherwise, return None, and they are treated as
        text.

        Most text that looks like an untagged call is just text. Therefore, the result is never a violation, and nothing
        is counted in the report. Every call must have the name of an offered tool, arguments that match the tool's
        schema (whether or not the tool is strict), and no other keys.
        """
        accepted: list[Accepted] = []
        # A name without arguments counts as a call only if another call in the list has arguments.
        has_arguments = len(calls) > 1 and any(written is not None and _has_arguments(written) for written in calls)
        for written in calls:
            # If one item of a list is not a call, the entire list is text.
            if written is None:
                return None
            for part in self._split(written):
                call = self._accept(part, code, may_lack_arguments=has_arguments)
                if call is None:
                    return None
                accepted.append(call)
        # 11. The calls belong together, so if one of them is quoted, all of them are.
        is_quoted = any(written is not None and self._is_quoted(written) for written in calls)
        return [replace(call, is_quoted=is_quoted) for call in accepted]

    def count_untagged(self, accepted: Accepted) -> None:
        """Count an untagged call that is made, and its repairs."""
        name = accepted.call.tool.name
        self._count(self.report.untagged, (accepted.form,), name)
        self._count(self.report.repairs, accepted.call.repairs, name)

    def count_lost(self) -> None:
        """Count a lost call: text that the model meant as a call, but in which the sentinel did not find a block."""
        self._count(self.report.parse_failures, (MALFORMED_JSON,), None)

    def _accept(self, written: ParsedCall, code: str, *, may_lack_arguments: bool = False) -> Accepted | None:
        """Return an untagged call if it is certainly valid according to rows 1 to 8, otherwise None."""
        lookup = self.toolbox.written(written.name)
        tool = lookup.tool
        # 1 to 3. An object with unknown keys might be data rather than a call.
        if tool is None or written.broken or written.unknown:
            return None
        found = self._arguments(written, tool)
        # 4 and 5. The arguments must be well-formed, and not too large.
        if found is None or utf8_length(found.text) > self._limit:
            return None
        is_present = may_lack_arguments or _has_arguments(written)
        if tool.kind != "custom" and not (is_present and self._fits(tool, found)):
            if not found.value or _is_schema(found.value, tool):
                return None
            # 6 to 8. As with tagged calls, a guess is replaced by a lookup of the tool.
            corrected = self._corrected(tool, found)
            if corrected is None:
                question = self._lookup_instead(tool)
                return None if question is None else Accepted(question, code)
            found = corrected
        # 4. The client of a strict tool was promised that no call is guessed.
        if tool.strict and (written.lossy_repairs or found.lossy_repairs):
            return None
        return Accepted(JudgedCall(tool, found.text, _repairs(written, lookup, found)), code)

    def _fits(self, tool: Tool, found: Arguments) -> bool:
        fits = not _is_schema(found.value, tool) and self._checker.fits(tool, found.value)
        return fits and (not tool.must_fit or is_item(found.text))

    # -- conditions of the rows

    def _arguments(self, written: ParsedCall, tool: Tool) -> Arguments | None:
        if tool.kind == "custom":
            return custom_input(written, repair=self._repair)
        return function_arguments(written, tool, self._checker, repair=self._repair)

    def _mismatch(self, tool: Tool, found: Arguments) -> CheckResult | None:
        """Return the mismatch of the arguments, or None if they match. A custom tool's input always matches."""
        if tool.kind == "custom":
            return None
        broken = self._checker.mismatch(tool, found.value)
        if broken is None and tool.must_fit and not is_item(found.text):
            return _NO_ITEM
        return broken

    def _corrected(self, tool: Tool, found: Arguments) -> Arguments | None:
        """Return the arguments with corrected types, or None if they cannot be corrected.

        The arguments of strict tools are not corrected, because toolsim promises not to change their values.
        """
        schema = self._checker.schema(tool) if self._repair and not tool.strict and tool.kind != "custom" else None
        given = Json(found.text.strip(), found.value)
        corrected = correct_types(given, schema, self._checker) if schema is not None else None
        if corrected is None or (tool.must_fit and not is_item(corrected.source)):
            return None
        return Arguments(corrected.source, corrected.value, found.codes, (*found.lossy_repairs, VALUE_TYPE))

    def _lookup_instead(self, tool: Tool) -> JudgedCall | None:
        """Return the lookup that replaces a mismatched call to a tool whose definition the model has not seen.

        Returns None if the tool does not have to be looked up, or the lookup is impossible.
        """
        plan = self.plan
        if tool.name not in plan.tools_to_look_up:
            return None
        if plan.finder == FIND_TOOLS:
            names = json.dumps({"names": [tool.name]})
            return JudgedCall(self.toolbox[FIND_TOOLS], names) if GUESSED_CALL in plan.retries_allowed else None
        # toolsim can answer the lookup only if it runs the search itself. Otherwise, the client would have to run it.
        if plan.finder not in plan.hosted:
            return None
        return JudgedCall(self.toolbox[plan.finder], json.dumps(search_for(plan.finder, tool)))

    def _split(self, written: ParsedCall) -> list[ParsedCall]:
        """Split a call that contains the arguments of several calls, if the schema allows this. Otherwise, return only
        ``written``.
        """
        written = self.named(written)
        tool = self.toolbox.written(written.name).tool
        # Splitting a call is a repair that requires a schema. Only function tools have a schema from the client.
        if not self._repair or tool is None or tool.kind != "function":
            return [written]
        return split_call(
            written,
            self._checker.schema(tool) if written.given is not None else None,
            accepts=lambda call: self._accept(call, REPEATED_KEYS) is not None,
            fits=lambda value: self._checker.fits(tool, value),
        )

    def named(self, written: ParsedCall) -> ParsedCall:
        """If the name of a call is an ID, and the name of an offered tool is in the arguments, return the call to that
        tool. Otherwise, return the call unchanged.
        """
        inner = name_inside(written) if self._repair else written
        is_named = inner is not written and inner.name is not None and self.toolbox.offers(inner.name)
        return inner if is_named and not self.toolbox.offers(written.name or "") else written

    def _is_quoted(self, written: ParsedCall) -> bool:
        """Return whether a tool output contains the call, in which case the model is probably quoting it (row 11)."""
        outputs = self.plan.outputs
        if not outputs.text:
            return False
        # If too much text has been searched, the outputs are not searched again, and the call is treated as quoted.
        self._searched += len(outputs.text)
        if self._searched <= _MAX_SEARCHED and not outputs.contains(written.source):
            return False
        tool = self.toolbox.written(written.name).tool
        if tool is None or (found := self._arguments(written, tool)) is None:
            return True
        # Some tools echo their arguments. If the output only echoes the same call from earlier in the conversation, the
        # model may make the call again.
        return not outputs.answer(tool.name, found.text)

    def _quote(self, written: ParsedCall, raw: str) -> Rejected:
        self.warn(QUOTED_CALL, written.name)
        return Rejected(raw, QUOTED_CALL, written.name)

    def _size_expected(self) -> str:
        return f"arguments of at most {self._limit} bytes, got more"

    def _on_offer(self) -> str:
        return f"one of the tools on offer: {(', '.join(self.toolbox.names) or 'none')[:_MAX_OFFERED]}"

    # -- results

    def fail(self, strict: bool, raw: str, reason: str, name: str | None, expected: str) -> Verdict:
        """Return the verdict on an invalid call: a violation if ``strict`` is true, otherwise a rejection.

        ``strict``: whether the tool is strict, or might be strict if it is unknown.
        """
        if not strict:
            return replace(self.reject(raw, reason, name, expected), is_unreadable=reason == MALFORMED_JSON)
        self._count(self.report.strict_failures, (reason,), name)
        called = "a tool whose name cannot be read"
        if name is not None:
            called = f"the tool {loggable_name(name)}"
        message = f"The model called {called} and failed ({reason}): expected {expected}."
        error = ApiError(message, type="invalid_request_error", code=INVALID_CALL, param="tools", status=422)
        return Violation(error, reason, raw, name, expected)

    def reject(self, raw: str, reason: str, name: str | None, expected: str = "") -> Rejected:
        """Count a parse failure, and return the verdict that the client receives the call as text."""
        self._count(self.report.parse_failures, (reason,), name)
        return Rejected(raw, reason, name, expected)

    def warn(self, code: str, name: str | None) -> None:
        """Add a warning about a tool to the report."""
        self._count(self.report.warnings, (code,), name)

    def _count(self, counts: list[str], codes: tuple[str, ...], name: str | None) -> None:
        counts += [entry(code, None if name is None else loggable_name(name)) for code in codes]

    def _uncount(self, repairs: int, warnings: int) -> None:
        """Remove repairs and warnings from the report, except for the first ``repairs`` repairs and the first
        ``warnings`` warnings.

        Warnings about quoted calls are kept.
        """
        del self.report.repairs[repairs:]
        later = self.report.warnings[warnings:]
        self.report.warnings[warnings:] = [warning for warning in later if code_of(warning) == QUOTED_CALL]


def _has_arguments(written: ParsedCall) -> bool:
    """Return whether a call has arguments."""
    given = written.given
    return given is not None and (given.items != () if not isinstance(given, Json) else given.value not in (None, ""))


def _repairs(written: ParsedCall, lookup: Lookup, found: Arguments) -> tuple[str, ...]:
    """Return the codes of all repairs of one call; repairs that changed text are last."""
    return (*written.codes, *lookup.codes, *found.codes, *written.lossy_repairs, *found.lossy_repairs)


def _is_indivisible(body: str, calls: Sequence[ParsedCall]) -> bool:
    """Return whether a block is indivisible, which means that its parts are either all calls or all text.

    Arrays are indivisible, as are calls that are followed by other text. Adjacent objects are independent calls.
    """
    return body.lstrip().startswith("[") or any(call.broken and call.source[:1] not in {"{", ""} for call in calls)


def _is_schema(value: Mapping[str, Any], tool: Tool) -> bool:
    """Return whether ``value`` is the JSON schema of a tool's declaration rather than the arguments of a call."""
    if "properties" in tool.declared:
        return False
    return value.get("type") == "object" and isinstance(value.get("properties"), dict)
