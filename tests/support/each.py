"""Runs all cases of a test as a single pytest item, because the overhead of an item exceeds the cost of most cases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

_NAMED = type(pytest.param())


def each(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | Callable[[Any], Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test once per case, like ``pytest.mark.parametrize``, but as a single pytest item.

    All cases are run, and all failures are reported. The test is skipped only if every case is skipped. The cases share
    the test's fixtures, so the decorator is suitable only for tests without side effects.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values: list[dict[str, Any]] = []
    labels: list[object] = []
    for case in cases:
        is_named = isinstance(case, _NAMED)
        given = case.values if is_named else case if len(keys) > 1 else (case,)
        values.append(dict(zip(keys, given, strict=True)))
        if is_named and case.id:
            labels.append(case.id)
        else:
            labels.append([ids(value) for value in given] if callable(ids) else values[-1])
    assert values, f"no cases of {names}"
    if ids is not None and not callable(ids):
        labels = list(ids)

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def run(number: int, failed: list[Exception], skipped: list[str]) -> Any:
            return _noting(failed, skipped, labels[number])

        @functools.wraps(test)
        def plain(**fixtures: Any) -> None:
            failed, skipped = list[Exception](), list[str]()
            for number, value in enumerate(values):
                with run(number, failed, skipped):
                    test(**fixtures, **value)
            _report(failed, skipped, len(values))

        @functools.wraps(test)
        async def waiting(**fixtures: Any) -> None:
            failed, skipped = list[Exception](), list[str]()
            for number, value in enumerate(values):
                with run(number, failed, skipped):
                    await test(**fixtures, **value)
            _report(failed, skipped, len(values))

        wrapper: Any = waiting if inspect.iscoroutinefunction(test) else plain
        wanted = inspect.signature(test)
        assert set(keys) <= set(wanted.parameters), f"{test.__name__} takes no {names}"
        left = [parameter for name, parameter in wanted.parameters.items() if name not in keys]
        wrapper.__signature__ = wanted.replace(parameters=left)
        return wrapper  # type: ignore[no-any-return]

    return decorate


@contextmanager
def _noting(failed: list[Exception], skipped: list[str], case: object) -> Iterator[None]:
    try:
        yield
    except pytest.skip.Exception as skip:  # The exception that skips a case must not prevent later cases from running.
        skipped.append(str(skip))
    except Exception as error:
        error.add_note(f"in the case {case!r}")
        failed.append(error)


def _report(failed: list[Exception], skipped: list[str], count: int) -> None:
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {count} cases failed", failed)
    if len(skipped) == count:
        pytest.skip(skipped[0])
