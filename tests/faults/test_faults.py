"""A sample of ``make faults``: in each type of turn, the outermost functions and some random functions fail once."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from faults.scenarios import SCENARIOS
from faults.trial import ERRORS, World, world

SEED = int(os.environ.get("FAULTS_SEED", "1"))
SAMPLE = 6
# The first functions of toolsim that mitmproxy calls. If one of them raises an exception, no other function of toolsim
# can handle it.
OUTERMOST = (
    "guarded.py:GuardedStream._handle_event:",
    "guarded.py:GuardedStream.watched:",
    "fast_path.py:FastPath.data_received:",
    "chunks.py:JoiningReader.__call__:",
    "addon.py:ToolSim.requestheaders:",
    "addon.py:ToolSim.request:",
    "addon.py:ToolSim.responseheaders:",
    "addon.py:ToolSim.response:",
    "guard.py:Clearance.http_connect:",
    "guard.py:Clearance.server_connected:",
    "internal_flow.py:FlowHandler.log:",
    "internal_flow.py:FlowHandler.drain_writers:",
    "internal_flow.py:_OwnClient._handle_event:",
    "rounds/server.py:_Answers.answer:",
)

# A turn of a real proxy for each function takes time, so `make test` omits every second scenario.
PARAMETERS = [pytest.param(name, marks=[pytest.mark.ci] * (number % 2)) for number, name in enumerate(SCENARIOS)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("stores")) as found:
        yield found


@pytest.mark.parametrize("name", PARAMETERS)
def test_function_fails_once(name: str, place: World) -> None:
    """If a function fails once, the turn that called it is correct or fails cleanly, and the next turn is correct."""
    draw = random.Random(f"{SEED} {name}")
    functions = place.functions(SCENARIOS[name])
    outermost = [function for function in functions if any(place in function for place in OUTERMOST)]
    chosen = [*outermost, *draw.sample(functions, SAMPLE)]
    results = [place.run(SCENARIOS[name], function, draw.choice(ERRORS)) for function in chosen]
    assert [result for result in results if result is not None and result.is_bad] == []
    assert any(result is not None and result.outcome != "right" for result in results)
