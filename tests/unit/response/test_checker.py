from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

import pytest
from support.answers import tool
from support.pauses import pause
from toolsim.core.plan import Tool
from toolsim.response import checker as room
from toolsim.response.checker import BUDGET_SECONDS, UNSETTLED, SchemaChecker
from toolsim.schema import MAX_SCHEMA_BYTES, Validator, compile_schema

ENDLESS = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|a)*$"}}}


def checker(seconds: float = 1.0) -> tuple[SchemaChecker, list[tuple[str, str]]]:
    warnings: list[tuple[str, str]] = []
    return SchemaChecker(lambda code, name: warnings.append((code, name)), seconds=seconds), warnings


def test_mismatch_names_place_and_type() -> None:
    """``mismatch`` returns the location and the expected type of the first mismatch, or None if the value conforms to
    the schema.
    """
    checks, warnings = checker()
    assert checks.mismatch(tool("f", city="string"), {"city": "Bonn"}) is None
    found = checks.mismatch(tool("f", city="string"), {"city": 5})
    assert found is not None
    assert found.mismatch == found.outline == "/city: got number, expected string"
    assert warnings == []


def test_schema_is_compiled_once() -> None:
    """A tool's schema is compiled on first use and then cached. Arguments of a tool without a schema are not
    checked.
    """
    checks, _ = checker()
    city = tool("f", city="string")
    assert checks.schema(city) is checks.schema(city)
    assert checks.schema(Tool("any", "any")) is None
    assert checks.mismatch(Tool("any", "any"), {"a": 1}) is None
    assert checks.fits(Tool("any", "any"), {"a": 1})


def test_unusable_schema_causes_one_warning() -> None:
    """If a schema cannot be compiled, any value is accepted, and a single warning is reported on the first use."""
    checks, warnings = checker()
    remote = Tool("f", "f", parameters={"$ref": "https://example.com/x"})
    assert [checks.mismatch(remote, {"a": 1}) for _ in range(2)] == [None, None]
    assert warnings == [("SCHEMA_UNUSABLE", "f")]


def test_all_checks_share_one_budget() -> None:
    """A hundred checks of an endless pattern stay within the shared time budget, and each is reported as timed out."""
    checks, warnings = checker(0.05)
    started = monotonic()
    for _ in range(100):
        assert checks.mismatch(Tool("f", "f", parameters=ENDLESS), {"a": "a" * 60 + "!"}) is None
    assert monotonic() - started < 2
    assert warnings == [("SCHEMA_CHECK_TIMED_OUT", "f")] * 100


def test_timed_out_check_is_unsettled() -> None:
    """If a check runs out of time, ``mismatch`` returns ``UNSETTLED``, and both ``conforms`` and ``fits`` return
    false.
    """
    checks, warnings = checker(0.02)
    strict = Tool("s", "s", parameters=ENDLESS, strict=True)
    value = {"a": "a" * 60 + "!"}
    assert checks.mismatch(strict, value) is UNSETTLED
    schema = checks.schema(strict)
    assert schema is not None
    assert not checks.conforms(schema, value)
    assert not checks.fits(strict, value)
    assert warnings == []


def test_strict_checks_can_overdraw_the_budget() -> None:
    """A strict tool's arguments are still checked if the time budget has just been used up, but not if it is heavily
    overdrawn.
    """
    checks, _ = checker(0.015)
    strict = tool("s", True, city="string")
    checks.schema(strict)
    checks._left, checks._spent_at = 0.0, monotonic()
    assert checks.mismatch(strict, {"city": "Bonn"}) is None
    checks._left, checks._spent_at = -1.0, monotonic()
    assert checks.mismatch(strict, {"city": "Bonn"}) is UNSETTLED


def test_budget_refills_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time budget refills by a quarter of the elapsed time, up to its initial value."""
    now = 100.0
    monkeypatch.setattr("toolsim.response.checker.monotonic", lambda: now)
    checks, _ = checker(0.03)
    fits = tool("f", city="string")
    assert checks.fits(fits, {"city": "Bonn"})
    checks._left = -1.0
    assert not checks.fits(fits, {"city": "Bonn"})
    now += 3.9
    assert not checks.fits(fits, {"city": "Bonn"})
    now += 0.2
    assert checks.fits(fits, {"city": "Bonn"})
    now += 1_000
    assert checks.fits(fits, {"city": "Bonn"})
    assert 0 < checks._left <= 0.03


def test_oversized_schema_is_not_checked() -> None:
    """An oversized schema causes a warning, and calls to its tool are not checked."""
    warnings: list[tuple[str, str]] = []
    checks = SchemaChecker(lambda code, name: warnings.append((code, name)))
    large = {"type": "object", "description": "x" * MAX_SCHEMA_BYTES, "properties": {"city": {"type": "string"}}}
    assert checks.mismatch(Tool("f", "f", parameters=large), {"city": 5}) is None
    assert warnings == [("SCHEMA_UNUSABLE", "f")]


def test_value_is_checked_against_a_property_schema() -> None:
    checks, _ = checker()
    schema = checks.schema(tool("f", days="integer"))
    assert schema is not None
    days = schema.property("days")
    assert days is not None
    assert checks.conforms(days, 3)
    assert not checks.conforms(days, "3")


@pytest.mark.parametrize("strict", [False, True])
def test_pause_does_not_spend_the_budget(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Python's garbage collection runs during a check, its time is not charged to the time budget. A valid call to a
    strict tool is still accepted, and the next call is still checked.
    """

    def interrupted(parameters: Mapping[str, Any]) -> Validator:
        pause()
        return compile_schema(parameters)

    class Paused(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            pause()
            return super().__getitem__(key)

    monkeypatch.setattr(room, "compile_schema", interrupted)
    checks, warnings = checker(BUDGET_SECONDS)
    city = tool("f", strict, city="string")
    assert checks.mismatch(city, Paused(city="Bonn")) is None
    found = checks.mismatch(city, {"city": 5})
    assert found is not None
    assert found.mismatch == "/city: got number, expected string"
    assert warnings == []
