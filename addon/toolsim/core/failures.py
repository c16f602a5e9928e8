"""Logs and counts exceptions that are bugs in toolsim."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Failures:
    """Counts the failures of a process. ``count`` is exported as the metric ``internal_errors_total``."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, task: str, problem: BaseException | str) -> None:
        """Log and count a failure. ``task`` completes the sentence "toolsim failed to …".

        ``problem`` is the exception, or its traceback from a worker process.
        """
        self.count += 1
        if isinstance(problem, str):
            logger.error("toolsim failed to %s; please report this.\n%s", task, problem)
        else:
            logger.error("toolsim failed to %s; please report this.", task, exc_info=problem)


FAILURES = Failures()
"""The failures of this process."""
