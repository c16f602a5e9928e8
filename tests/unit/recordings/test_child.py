"""Tests for the command line of a mitmdump child process, and for parsing its log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from toolsim.recordings import child


def test_command_line_of_the_proxy() -> None:
    """The command line for mitmdump loads the addon, listens on a free local port, and ends with the caller's
    arguments.
    """
    line = child.command(["-S", "f"], ["a=1", "b=2"])
    assert line[0] == sys.executable
    script = Path(line[line.index("-s") + 1])
    assert (script.name, script.is_file()) == ("toolsim.py", True)
    assert line[-6:] == ["-S", "f", "--set", "a=1", "--set", "b=2"]


def test_log_of_a_start_is_parsed() -> None:
    """The port is read from mitmdump's log in either format. An error line in the log raises an exception that contains
    that line.
    """
    assert child.port("[07:00:00.000] Loading script") is None
    assert child.port("[07:00:00.000] HTTP(S) proxy listening at 127.0.0.1:4711.\n") == 4711
    assert child.port('{"message": "HTTP(S) proxy listening at 127.0.0.1:4711."}\n') == 4711
    for line in ("[07:00:00.000] toolsim_x: no such option", '{"level": "error", "message": "toolsim_x: no such"}'):
        with pytest.raises(ValueError, match="no such"):
            child.port(f"{line}\nHTTP(S) proxy listening at 127.0.0.1:4711.\n")
    assert child.tail("x" * 10_000) == "x" * 2000
