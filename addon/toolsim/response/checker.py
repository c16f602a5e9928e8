"""The schema checks of one answer: one validator per tool, and a shared time budget.

While a schema check runs, all other exchanges wait. Each check has a time limit (``toolsim.schema``), but an answer can
contain any number of calls. All checks of an answer, and the compilation of the schemas, therefore share one time
budget. Interruptions such as garbage collection are not counted (``toolsim.schema.validator``). The budget is refilled
by a quarter of the elapsed time. An answer at the normal speed of a model never exhausts it, and an answer that is
designed to waste time leaves most of the time to other exchanges. When the budget is exhausted, a check is not
completed, and the client receives the call with a warning. The checks of strict tools can exceed the budget, because
the client was promised arguments that conform to the schema. The additional time is enough for any sensible call.
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
"""Initial time budget for all schema checks of an answer, in seconds. It is enough for arguments with 10,000 values."""

PATIENT_SECONDS = 1.0
"""Time budget, in seconds, for all schema checks of an answer if the checks run in a separate process, where they do
not delay other exchanges.
"""

_REFILL = 0.25

_STRICT_SECONDS = 0.025
"""Additional time for the checks of strict tools when the budget is exhausted, in seconds. In the worst case, the
checks block all other exchanges for 40 ms.
"""

UNSETTLED = CheckResult("the check did not finish in time", settled=False, outline="not checked in time")
"""The result for a strict tool if the check of a call's arguments did not finish in time."""


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
        """Return the tool's compiled schema, or None if the tool has no schema or an invalid one."""
        if tool.name not in self._validators:
            self._validators[tool.name] = None
            if tool.parameters is not None:
                self._refill()
                began = thread_time()
                try:
                    self._validators[tool.name] = compile_schema(tool.parameters)
                except SchemaError:  # A strict tool with an unusable schema has already been refused with a 400.
                    self._warn(SCHEMA_UNUSABLE, tool.name)
                # At most one step is charged, because the measured time might include an interruption that cannot be
                # detected.
                self._spend(min(thread_time() - began, STEP_SECONDS))
        return self._validators[tool.name]

    def mismatch(self, tool: Tool, value: Any) -> CheckResult | None:
        """Return where and why arguments violate the tool's schema, or None if they conform or there is no usable
        schema.

        If the check cannot be completed, returns ``UNSETTLED`` for a strict tool, and None for any other tool.
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
        """Return whether arguments match the tool's schema. Returns True if the tool has no usable schema, and False if
        the check does not finish in time.
        """
        schema = self.schema(tool)
        return schema is None or self.conforms(schema, value)

    def conforms(self, schema: Validator, value: Any) -> bool:
        """Return whether ``value`` conforms to ``schema``. Returns False if the check does not finish in time."""
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
