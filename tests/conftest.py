"""What every test shares: the ``support`` folder on the path, and no silent skips in CI."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# No deadlines: how long an example takes on a busy machine says nothing. ``make quick`` looks at fewer examples than
# ``make test``, ``make fuzz`` for much longer.
settings.register_profile("quick", deadline=None, max_examples=8)
settings.register_profile("fast", deadline=None)
settings.register_profile("deep", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# On someone's own machine a missing program skips its tests; CI installs them all, so there a skip is a failure.
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
    "needs langchain",
    "needs llama-index",
)


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """What a test starts here (a Master of mitmproxy's, the command) leaves its handlers and levels in the log."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    # A list at once: another thread may be making a logger.
    known = list(root.manager.loggerDict.values())
    loggers = (root, *(each for each in known if isinstance(each, logging.Logger)))
    levels = [(logger, logger.level) for logger in loggers]
    yield
    root.handlers[:] = handlers
    for logger, level in levels:
        if logger.level != level:
            logger.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds, or a real process: not in `make quick`")
    # mitmproxy's flow filters use the old names of pyparsing, and ldap3, which it imports, those of pyasn1.
    config.addinivalue_line("filterwarnings", "ignore::pyparsing.warnings.PyparsingDeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:(tagMap|typeMap) is deprecated:DeprecationWarning")


def _refuse_skip[Report: (pytest.TestReport, pytest.CollectReport)](report: Report) -> Report:
    if report.skipped and os.environ.get("CI") == "true" and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith(NEEDED_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test in CI that was skipped for want of a program."""
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module."""
    return _refuse_skip((yield))
