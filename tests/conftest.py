"""Setup for all tests: adds the ``support`` folder to the path, restores logging, and makes CI fail on missing
programs."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Hypothesis deadlines are disabled, since durations on a busy machine prove nothing. ``make test`` and
# ``make test-unit`` run fewer examples than ``make test-all``, and ``make fuzz`` runs far more.
settings.register_profile("quick", deadline=None, max_examples=8)
settings.register_profile("fast", deadline=None)
settings.register_profile("deep", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# On a developer's machine, tests whose program is missing are skipped. CI installs all programs, so there a skip is a
# failure.
NEEDED_IN_CI = (
    "needs node",
    "needs codex",
    "needs opencode",
    "needs copilot",
    "needs qwen",
    "needs chromium",
    "needs prometheus",
    "needs BFCL",
    "needs xgrammar",
    "needs xllamacpp",
    "needs langchain",
    "needs llama-index",
)


@pytest.fixture(autouse=True, scope="module")
def collect_garbage() -> Iterator[None]:
    """Collect garbage after each file, so that a leaked socket causes a failure in the file that leaked it.

    Otherwise the ResourceWarning would cause a failure in another file that happens to trigger a collection. Surviving
    objects are frozen, so later collections do not visit them again and take only milliseconds.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def restore_log() -> Iterator[None]:
    """Restore the log handlers and levels, which change if a test starts mitmproxy's Master or the command."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    # Copy the values at the beginning, because another thread might create a logger during the loop.
    known = list(root.manager.loggerDict.values())
    loggers = (root, *(logger for logger in known if isinstance(logger, logging.Logger)))
    levels = [(logger, logger.level) for logger in loggers]
    yield
    root.handlers[:] = handlers
    for logger, level in levels:
        if logger.level != level:
            logger.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds, or a real process: not in `make test-unit`")
    config.addinivalue_line(
        "markers", "ci: many attacks, cases or real programs, or documented commands: not in `make test`"
    )
    config.addinivalue_line("markers", "extended: costs many seconds, for what changes rarely: only in `make test-all`")
    # mitmproxy's flow filters use names that pyparsing has deprecated. ldap3, which mitmproxy imports, uses names that
    # pyasn1 has deprecated.
    config.addinivalue_line("filterwarnings", "ignore::pyparsing.warnings.PyparsingDeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:(tagMap|typeMap) is deprecated:DeprecationWarning")


def pytest_collection() -> None:
    """Disable garbage collection while tests are collected, which creates many objects and hardly any garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Enable garbage collection, but exclude the objects that exist now, since they last until the end."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow files with real programs first, so that no worker is still busy when all others are done."""
    items.sort(key=lambda item: "unit" in item.path.parts)


def _refuse_skip[Report: (pytest.TestReport, pytest.CollectReport)](report: Report) -> Report:
    if report.skipped and os.environ.get("CI") == "true" and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith(NEEDED_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, report a test that was skipped because a program is missing as failed."""
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, report a module that was skipped because a program is missing as failed."""
    return _refuse_skip((yield))
