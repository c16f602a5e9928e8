"""A mitmproxy script for ``bench.entered``: records in which of toolsim's files functions run between two signals."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import CodeType
from typing import Any

_TOOL = sys.monitoring.PROFILER_ID
_entered: set[str] = set()


def _start(code: CodeType, _offset: int) -> None:
    _, found, name = code.co_filename.rpartition("/addon/toolsim/")
    if found:
        _entered.add(name)


def _begin(*_: Any) -> None:
    _entered.clear()
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.PY_START | sys.monitoring.events.PY_RESUME)


def _end(*_: Any) -> None:
    sys.monitoring.set_events(_TOOL, 0)
    with open(os.environ["TOOLSIM_ENTERED"], "w", encoding="utf-8") as file:
        json.dump(sorted(_entered), file)


sys.monitoring.use_tool_id(_TOOL, "toolsim")
sys.monitoring.register_callback(_TOOL, sys.monitoring.events.PY_START, _start)
sys.monitoring.register_callback(_TOOL, sys.monitoring.events.PY_RESUME, _start)
signal.signal(signal.SIGUSR1, _begin)
signal.signal(signal.SIGUSR2, _end)
