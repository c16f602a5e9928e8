"""The schema checks of one answer: one validator per tool, and one time budget for all of them.

A client's schema meets a model's value on the event loop. Each check is bounded by itself (``toolsimlib.schema``), but
an answer may hold any number of calls; so all checks of an answer share a budget, and what is left over once it is
spent counts as unsettled, which passes with a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from toolsimlib.plan import Tool
from toolsimlib.schema import CHECK_SECONDS, Finding, SchemaError, Validator, compile_schema

SCHEMA_UNSETTLED = "SCHEMA_UNSETTLED"
SCHEMA_UNUSABLE = "SCHEMA_UNUSABLE"

MAX_ANSWER_SECONDS = 1.0
"""How long all schema checks of one answer may take together."""


class SchemaChecker:
    """Checks values against the schemas of tools; ``warn`` is told a code and a tool's name."""

    def __init__(self, warn: Callable[[str, str], None], seconds: float = MAX_ANSWER_SECONDS) -> None:
        self._warn = warn
        self._validators: dict[str, Validator | None] = {}
        self._seconds = seconds

    def schema(self, tool: Tool) -> Validator | None:
        """Return the tool's compiled schema, or None where it has none that can be used."""
        if tool.name not in self._validators:
            self._validators[tool.name] = None
            if tool.parameters is not None:
                try:
                    self._validators[tool.name] = compile_schema(tool.parameters)
                except SchemaError:  # A strict tool with such a schema was already refused with a 400.
                    self._warn(SCHEMA_UNUSABLE, tool.name)
        return self._validators[tool.name]

    def mismatch(self, tool: Tool, value: Any) -> Finding | None:
        """Return where and why arguments break the tool's schema, None if they do not (or nobody can say)."""
        schema = self.schema(tool)
        if schema is None:
            return None
        finding = self._examine(schema, value)
        if not finding.settled:
            self._warn(SCHEMA_UNSETTLED, tool.name)
        return None if finding.mismatch is None else finding

    def fits(self, tool: Tool, value: Any) -> bool:
        """Return whether arguments satisfy the tool's schema beyond doubt; without one any do. Nothing is warned of."""
        schema = self.schema(tool)
        if schema is None:
            return True
        finding = self._examine(schema, value)
        return finding.settled and finding.mismatch is None

    def conforms(self, schema: Validator, value: Any) -> bool:
        """Return whether ``value`` conforms to any one schema."""
        return self._examine(schema, value).mismatch is None

    def _examine(self, schema: Validator, value: Any) -> Finding:
        started = monotonic()
        finding = schema.examine(value, min(CHECK_SECONDS, self._seconds))
        self._seconds -= monotonic() - started
        return finding
