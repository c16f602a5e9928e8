"""The schema checks of one answer: one validator per tool, and one time budget for all of them.

While a value is checked against a schema, all other exchanges wait. Each single check is bounded (``toolsim.schema``),
but the next bytes of an answer may contain any number of calls. So all checks draw on one budget, including
compilation. Interruptions such as a garbage collection are not counted (``toolsim.schema.validator``). The budget
refills at a quarter of the time that passes: an answer at a model's pace never exhausts it, and a hostile one leaves
others most of the time. Without budget left a check is undecided, and the call passes with a warning. A strict tool's
call does not: its client was promised that arguments conform. So checks for strict tools may overdraw the budget,
enough for any sensible call.
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
"""Seconds that all schema checks may take without a refill: enough for arguments of 10,000 values."""

PATIENT_SECONDS = 1.0
"""The same in a separate process, where nothing else waits."""

_REFILL = 0.25

_STRICT_SECONDS = 0.025
"""Seconds by which checks for strict tools may overdraw the budget: at worst others wait 40 ms, once."""

UNSETTLED = CheckResult("it cannot be said in time whether they do", settled=False, outline="not checked in time")
"""Reported as a mismatch if the arguments of a strict tool could not be checked."""


class SchemaChecker:
    """Checks values against the schemas of tools; ``warn`` gets a code and a tool's name.

    ``seconds``: the budget when it is full.
    """

    def __init__(self, warn: Callable[[str, str], None], *, seconds: float = BUDGET_SECONDS) -> None:
        self._warn = warn
        self._validators: dict[str, Validator | None] = {}
        self._full = self._left = seconds
        self._spent_at = monotonic()

    def schema(self, tool: Tool) -> Validator | None:
        """Return the tool's compiled schema, None if it has no usable one."""
        if tool.name not in self._validators:
            self._validators[tool.name] = None
            if tool.parameters is not None:
                self._refill()
                began = thread_time()
                try:
                    self._validators[tool.name] = compile_schema(tool.parameters)
                except SchemaError:  # A strict tool with such a schema was already refused with a 400.
                    self._warn(SCHEMA_UNUSABLE, tool.name)
                # Once per schema, so it counts as one step at most: a pause looks the same from here.
                self._spend(min(thread_time() - began, STEP_SECONDS))
        return self._validators[tool.name]

    def mismatch(self, tool: Tool, value: Any) -> CheckResult | None:
        """Return the place and the reason where arguments break the tool's schema, None if they conform.

        If that stays undecided: ``UNSETTLED`` for a strict tool, else None.
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
        """Return whether arguments satisfy the tool's schema beyond doubt; without one any do. Never warns."""
        schema = self.schema(tool)
        return schema is None or self.conforms(schema, value)

    def conforms(self, schema: Validator, value: Any) -> bool:
        """Return whether ``value`` conforms to any one schema beyond doubt."""
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
