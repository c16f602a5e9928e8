"""Tests for the turns of the demo, which are defined as data. ``tests/cli`` runs them with the real program."""

from __future__ import annotations

from support.each import each
from toolsim.backends.scripted.script import DIRECTIONS
from toolsim.cli.demo import TURNS, DemoTurn
from toolsim.wire.apis import CHAT, RESPONSES


def test_demo_covers_each_kind_of_turn() -> None:
    """The demo covers all stage directions and both APIs. It contains streamed and non-streamed turns, with and without
    tools.
    """
    texts = " ".join(turn.text for turn in TURNS)
    assert all(f"[{direction}]" in texts for direction in DIRECTIONS)
    assert {(turn.api, turn.stream) for turn in TURNS} == {(api, on) for api in (CHAT, RESPONSES) for on in (0, 1)}
    assert {turn.tools for turn in TURNS} == {True, False}
    assert any(turn.items for turn in TURNS)


@each("turn", TURNS, ids=lambda turn: turn.text)
def test_demo_turns_are_valid_requests(turn: DemoTurn) -> None:
    request = turn.api.read(turn.body())
    assert [tool.name for tool in request.tools] == (["get_weather", "search_notes"] if turn.tools else [])
    assert {tool.strict for tool in request.tools} <= {turn.strict}
    assert request.form.stream == turn.stream
