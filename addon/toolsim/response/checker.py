"""The schema checks of one answer: one validator per tool, and a shared time budget.

A schema check blocks all other exchanges. Each single check is bounded (``toolsim.schema``),
but the next bytes of an answer may contain any number of calls. So all checks, including compilation, share one
budget. Interruptions such as a garbage collection are not counted (``toolsim.schema.validator``). The budget
refills at a quarter of the elapsed time: an answer at a model's pace never exhausts it, and a hostile one leaves
most of the time to others. When the budget is exhausted, a check is undecided, and the call passes with a warning.
The exception is a strict tool, whose client was promised that arguments conform. So checks for strict tools may
overdraw the budget by enough for any sensible call.
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
"""Seconds that all schema checks may take without a refill: enough for arguments with 10,000 values."""

PATIENT_SECONDS = 1.0
"""The same in a separate process, where nothing else is blocked."""

_REFILL = 0.25

_STRICT_SECONDS = 0.025
"""Seconds by which checks for strict tools may overdraw the budget; in the worst case others wait 40 ms, once."""

UNSETTLED = CheckResult("the check did not finish in time", settled=False, outline="not checked in time")
"""The mismatch reported if the arguments of a strict tool could not be checked."""


class SchemaChecker:
    """Checks values against the schemas of tools; ``warn`` is called with a code and a tool's name.

    ``seconds``: the size of the budget.
    """

    def __init__(self, warn: Callable[[str, str], None], *, seconds: float = BUDGET_SECONDS) -> None:
        self._warn = warn
        self._validators: dict[str, Validator | None] = {}
        self._full = self._left = seconds
        self._spent_at = monotonic()

    def schema(self, tool: Tool) -> Validator | None:
        """Return the tool's compiled schema, or None if it has no usable one."""
        if tool.name not in self._validators:
            self._validators[tool.name] = None
            if tool.parameters is not None:
                self._refill()
                began = thread_time()
                try:
                    self._validators[tool.name] = compile_schema(tool.parameters)
                except SchemaError:  # A strict tool with such a schema has already been refused with a 400.
                    self._warn(SCHEMA_UNUSABLE, tool.name)
                # Happens once per schema. It counts as at most one step, since a pause cannot be told apart from it.
                self._spend(min(thread_time() - began, STEP_SECONDS))
        return self._validators[tool.name]

    def mismatch(self, tool: Tool, value: Any) -> CheckResult | None:
        """Return where and why arguments violate the tool's schema, or None if they conform.

        If the check is undecided: ``UNSETTLED`` for a strict tool, otherwise None.
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
        """Return whether arguments definitely match the tool's schema; without a schema any do. Never warns."""
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
