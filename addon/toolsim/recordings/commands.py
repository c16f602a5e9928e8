"""mitmproxy commands for recorded exchanges. Their implementation is imported when a command is called."""

from __future__ import annotations

import logging
from pathlib import Path

import mitmproxy.types
from mitmproxy import command
from mitmproxy.exceptions import CommandError, FlowReadException

logger = logging.getLogger(__name__)


class Commands:
    """An addon with the commands ``toolsim.replay`` and ``toolsim.pseudonymise``."""

    @command.command("toolsim.replay")  # type: ignore[untyped-decorator]
    def replay(self, path: mitmproxy.types.Path) -> None:
        """Replay recorded exchanges (a file or a folder) through the addon, and log the differences.

        Options that are set explicitly override the recorded options, so that their effect can be seen.
        """
        from toolsim.recordings.replay import replay_file, summary
        from toolsim.recordings.stored import flow_files

        files = flow_files([Path(path).expanduser()])
        if not files:
            raise CommandError(f"toolsim.replay: no .flow file at {path}")
        results = [replay_file(file) for file in files]
        for result in results:
            logger.log(logging.INFO if result.same else logging.WARNING, "%s", result)
        logger.info("%s", summary(results))

    @command.command("toolsim.pseudonymise")  # type: ignore[untyped-decorator]
    def pseudonymise(self, path: mitmproxy.types.Path) -> None:
        """Permanently replace all text in recorded exchanges (a file or folder) with pseudonyms of equal length."""
        from toolsim.recordings.pseudonymise import pseudonymise
        from toolsim.recordings.stored import flow_files

        files = flow_files([Path(path).expanduser()])
        for file in files:
            try:
                pseudonymise(file)
            except (OSError, ValueError, FlowReadException) as problem:
                raise CommandError(f"toolsim.pseudonymise: {file}: {problem}") from problem
        logger.info("toolsim pseudonymized %d recorded exchanges", len(files))
