"""The schema checks of one answer: one validator per tool, and a shared time budget.

A schema check blocks all other exchanges. Each check is bounded (``toolsim.schema``), but the next bytes of an answer
can contain any number of calls. All checks, including compilation, therefore share one budget. Interruptions such as a
garbage collection are not counted (``toolsim.schema.validator``). The budget refills at a quarter of the elapsed time:
an answer at a model's pace never exhausts it, and a hostile answer leaves most of the time to other exchanges. When the
budget is exhausted, a check is undecided, and the call passes with a warning. Strict tools are an exception, because
their client was promised arguments that conform: their checks can overdraw the budget, by enough for any sensible call.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, thread_time
from typing import Any

from toolsim.core.plan import Tool
from toolsim.schema import STEP_SECONDS, CheckResult, SchemaError, Validator, compile_schema

SCHEMA_CHECK_TIMED_OUT = "SCHEMA_CHECK_TIMED_OUT"
SCHEMA_UNUSABLE = "SCHEMA_UNUSABLE"

BUDGET_SECONDS = 0.015
"""Time budget of all schema checks without a refill, in seconds: enough for arguments with 10,000 values."""

PATIENT_SECONDS = 1.0
"""Time budget of all schema checks in a separate process, where they do not block other work, in seconds."""

_REFILL = 0.25

_STRICT_SECONDS = 0.025
"""Maximum time, in seconds, by which checks for strict tools can exceed the budget. In the worst case, other exchanges
wait 40 ms, once.
"""

UNSETTLED = CheckResult("the check did not finish in time", settled=False, outline="not checked in time")
"""The result of an undecided check of a strict tool's arguments."""


class SchemaChecker:
    """Checks values against the schemas of tools, within a budget of ``seconds``.

    ``warn``: called with the code of a warning and a tool's name.
    """

    def __init__(self, warn: Callable[[str, str], None], *, seconds: float = BUDGET_SECONDS) -> None:
        self._warn = warn
        self._validators: dict[str, Validator | None] = {}
        self._full = self._left = seconds
        self._spent_at = monotonic()

    def schema(self, tool: Tool) -> Validator | None:
        """Return the tool's compiled schema, or None if the tool has no usable schema."""
        if tool.name not in self._validators:
            self._validators[tool.name] = None
            if tool.parameters is not None:
                self._refill()
                began = thread_time()
                try:
                    self._validators[tool.name] = compile_schema(tool.parameters)
                except SchemaError:  # A strict tool with an unusable schema has already been refused with a 400.
                    self._warn(SCHEMA_UNUSABLE, tool.name)
                # A schema is compiled only once. This counts as at most one step, because a pause in it cannot be
                # recognized.
                self._spend(min(thread_time() - began, STEP_SECONDS))
        return self._validators[tool.name]

    def mismatch(self, tool: Tool, value: Any) -> CheckResult | None:
        """Return where and why arguments violate the tool's schema, or None if they conform.

        Returns ``UNSETTLED`` for an undecided check of a strict tool's arguments, and None for other undecided checks.
        """
        schema = self.schema(tool)
        if schema is None:
            return None
        finding = self._examine(schema, value, overdraw=_STRICT_SECONDS if tool.strict else 0)
        if finding.mismatch is not None or finding.settled:
            return None if finding.mismatch is None else finding
        if tool.strict:
            return UNSETTLED
        self._warn(SCHEMA_CHECK_TIMED_OUT, tool.name)
        return None

    def fits(self, tool: Tool, value: Any) -> bool:
        """Return whether arguments definitely match the tool's schema. True if the tool has no schema. Never warns."""
        schema = self.schema(tool)
        return schema is None or self.conforms(schema, value)

    def conforms(self, schema: Validator, value: Any) -> bool:
        """Return whether ``value`` definitely conforms to the given schema."""
        finding = self._examine(schema, value)
        return finding.settled and finding.mismatch is None

    def _examine(self, schema: Validator, value: Any, overdraw: float = 0) -> CheckResult:
        self._refill()
        finding = schema.examine(value, max(self._left + overdraw, 0))
        self._spend(finding.seconds)
        return finding

    def _refill(self) -> None:
        now = monotonic()
        self._left = min(self._left + _REFILL * (now - self._spent_at), self._full)

    def _spend(self, seconds: float) -> None:
        self._left -= seconds
        self._spent_at = monotonic()
