"""Setup of all tests: the ``support`` folder on the path, a clean log, and no silent skips in CI."""

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

# Hypothesis has no deadlines, since durations on a busy machine prove nothing. ``make test`` and ``make test-unit`` try
# fewer examples than ``make test-all``, and ``make fuzz`` runs much longer.
settings.register_profile("quick", deadline=None, max_examples=8)
settings.register_profile("fast", deadline=None)
settings.register_profile("deep", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# On a developer's machine a missing program skips its tests; CI installs all programs, so a skip is a failure there.
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
    """Collect garbage at the end of each file, so that a leaked socket fails a test of the file that leaked it.

    Otherwise the ResourceWarning fails a test of another file that happens to trigger the collection. Surviving objects
    are frozen, so the next file's collection does not visit them again and takes only milliseconds.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def restore_log() -> Iterator[None]:
    """Restore the log's handlers and levels. A test changes them if it starts mitmproxy's Master or the command."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    # Copy the values immediately, since another thread might be creating a logger.
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
    config.addinivalue_line("markers", "extended: costs many seconds, for what changes rarely: only in `make test-all`")
    # mitmproxy's flow filters use deprecated names of pyparsing, and ldap3, which mitmproxy imports, uses those of
    # pyasn1.
    config.addinivalue_line("filterwarnings", "ignore::pyparsing.warnings.PyparsingDeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:(tagMap|typeMap) is deprecated:DeprecationWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first, which are those with real programs, so that no worker ends up alone with one."""
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
    """Fail a test in CI that was skipped because a program is missing."""
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module in CI that was skipped because a program is missing."""
    return _refuse_skip((yield))
