"""Tests for structured calls in which a server has left markers of the model's call format. The markers are removed,
but data must be kept.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.answers import plan, read, rewrite, tool
from support.emitted import BODIES, WHOLE, Emitted
from support.growth import LINEAR, growth
from toolsim.core.policy import ApiName
from toolsim.response.structured import without_leftovers

READ = tool("read", path="string", limit="integer")


@pytest.mark.parametrize(
    ("arguments", "becomes"),
    [
        ('{"path</arg_key>": "a"}', '{"path":"a"}'),
        ('{"path</arg_key>": "a", "limit": 2.50}', '{"path":"a","limit":2.50}'),
        ('{"<arg_key>path": "a"}', '{"path":"a"}'),
        ('{"path": "a</arg_value>"}', '{"path":"a"}'),
        ('{"path": "<|\\"|>a \\"b\\"<|\\"|>"}', '{"path":"a \\"b\\""}'),
        ('{"path": "a</arg_value>b"}', None),
        ('{"path": "<parameter=x>a</parameter>"}', None),
        ('{"file</arg_key>": "a"}', None),
        ('{"path": "a", "path</arg_key>": "b"}', None),
        ('{"path": ["<|\\"|>a<|\\"|>"]}', None),
        ('{"path</arg_key>": "a"', None),
        ('{"path": "a"}', None),
        ('["</arg_key>"]', None),
    ],
)
def test_markers_are_removed(arguments: str, becomes: str | None) -> None:
    """Leftover markers are removed from the ends of string values, and from keys if the schema declares the key without
    the markers. Other text is unchanged.
    """
    assert without_leftovers(arguments, READ) == becomes


PATH = tool("read", path="string")
EMITTED = [
    Emitted("read<|channel|>commentary", '{"path": "a"}'),
    Emitted("functionsread3", '{"path": "a"}'),
    Emitted("readread", '{"path": "a"}'),
    Emitted("readreadread", '{"path": "a"}{"path": "a"}'),
    Emitted("call_0a1b", '{"name": "read", "path": "a"}'),
    Emitted("read", '{"path</arg_key>": "a"}'),
    Emitted("read", '{"path": "a"}{"path": "a"}'),
]


@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
@pytest.mark.parametrize("backend", ["chat", "responses"])
@pytest.mark.parametrize("policy", [{}, {"stream_arguments": "incremental"}], ids=["buffered", "incremental"])
def test_official_clients_receive_the_call(client: ApiName, backend: ApiName, policy: dict[str, Any]) -> None:
    """Official clients receive the intended call even if markup is left over, whether the answer is streamed or not."""
    for call in EMITTED:
        for stream, bodies, kind in ((True, BODIES, "text/event-stream"), (False, WHOLE, "application/json")):
            the_plan = plan(client, backend, stream, [PATH], policy=policy)
            rewriter, frames = rewrite(the_plan, kind, bodies[backend]([call], "tool_calls"))
            seen = read(client, stream, frames, rewriter.status)
            # A key that has already been streamed can no longer be repaired.
            if policy and stream and "arg_key" in call.arguments:
                assert seen.items[0][:2] == ["call", "read"]
                continue
            (item,) = seen.items
            assert (item[1], json.loads(item[2])) == ("read", {"path": "a"}), call


def test_time_is_linear() -> None:
    """Long values and long keys that consist only of markers are cleaned in linear time."""

    def read(size: int) -> None:
        without_leftovers('{"path": "' + "<arg_key></arg_value>" * size + '"}', READ)
        without_leftovers('{"path' + " " * size + "</arg_key>" * size + '": "a"}', READ)

    assert growth(read, 2_000) < LINEAR
