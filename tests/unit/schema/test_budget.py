from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.each import each
from support.pauses import pause
from toolsim.schema import compile_schema
from toolsim.schema.validator import CHECK_SECONDS, STEP_SECONDS, running


def test_no_budget_is_active_after_a_check() -> None:
    """The time budget applies only to a single check. Afterward, no budget is active."""
    assert compile_schema({"$ref": "#"}).examine(1).settled is False
    with pytest.raises(LookupError):
        running.get()


def test_check_without_time_is_unsettled() -> None:
    """If a check has no time left, its result is unsettled (neither valid nor invalid), and the value is not
    rejected.
    """
    finding = compile_schema({"type": "string"}).examine(1, 0)
    assert (finding.mismatch, finding.settled) == (None, False)


@pytest.mark.slow
def test_busy_machine_does_not_spend_the_budget() -> None:
    """Time that the thread spends waiting does not count toward the time budget, so a violation is found even after a
    long wait.
    """

    class Late(list[object]):
        def __iter__(self) -> Iterator[object]:
            time.sleep(CHECK_SECONDS + 0.1)
            return super().__iter__()

    finding = compile_schema({"items": {"type": "string"}, "minItems": 1}).examine(Late([1]))
    assert finding.settled
    assert finding.mismatch is not None


class Paused(list[Any]):
    """An array that pauses the thread when it is iterated over, as a garbage collection would."""

    def __iter__(self) -> Iterator[Any]:
        pause()
        return super().__iter__()


def test_pause_does_not_spend_the_budget() -> None:
    """If a check is interrupted by a pause, at most ``STEP_SECONDS`` of the pause count toward the budget, although the
    thread's CPU time includes the entire pause.
    """
    finding = compile_schema({"items": {"type": "string"}}).examine(Paused([1]), 0.015)
    assert finding.settled
    assert finding.mismatch == "/0: got number, expected string"
    assert STEP_SECONDS <= finding.seconds < 0.015


MANY = [0] * 100_000
DRAFT7 = "http://json-schema.org/draft-07/schema#"


@each(
    ("schema", "value"),
    [
        ({"items": {}}, MANY),
        ({"items": {"$id": "https://x.test/i"}}, MANY),
        ({"items": {}, "prefixItems": [{}]}, MANY),
        ({"$schema": DRAFT7, "items": [{}], "additionalItems": {}}, MANY),
        ({"contains": {}}, MANY),
        ({"uniqueItems": True}, [MANY]),
        ({"uniqueItems": True}, [dict.fromkeys(map(str, range(len(MANY))), 0)]),
        ({"propertyNames": {}}, dict.fromkeys(map(str, range(len(MANY))), 0)),
        ({"additionalProperties": {}}, dict.fromkeys(map(str, range(len(MANY))), 0)),
        ({"patternProperties": {"^a": {}}}, dict.fromkeys(map(str, range(len(MANY))), 0)),
    ],
    ids=str,
)
def test_each_step_is_short(schema: dict[str, Any], value: Any) -> None:
    """Every loop over a value checks the remaining time, so a check exceeds its time budget only slightly."""
    validator = compile_schema(schema)
    validator.examine([0])
    started = time.thread_time()
    assert not validator.examine(value, STEP_SECONDS * 2).settled
    assert time.thread_time() - started < STEP_SECONDS * 10
