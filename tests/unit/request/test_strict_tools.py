from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool
from toolsim.request.forms import entries
from toolsim.request.strict_tools import check_strict
from toolsim.schema import MAX_SCHEMA_BYTES


def tools(count: int = 3, **schema: object) -> list[Tool]:
    return [Tool(f"f{at}", f"f{at}", parameters={"type": "object", **schema}, strict=True) for at in range(count)]


def test_cached_tools_are_not_written_again() -> None:
    """The catalog entry of a tool object is written only once, even if the object appears in several lists. For an
    equal but distinct object, the entry is written again.
    """
    written: list[str] = []

    def write(tool: Tool, sentinel: str) -> str:
        written.append(tool.name)
        return f"{sentinel} {tool.name}"

    same = tools()
    assert entries(same, write, "t") == entries(list(same), write, "t") == "t f0\nt f1\nt f2"
    assert written == ["f0", "f1", "f2"]
    assert entries(same[:2], write, "t") == "t f0\nt f1"
    assert entries(same, write, "u") == "u f0\nu f1\nu f2"
    assert entries(tools(), write, "t") == "t f0\nt f1\nt f2"
    assert len(written) == 11


def test_cached_tools_stay_alive() -> None:
    """A cached entry keeps its tool objects in memory. Otherwise a new object could have the same ``id()`` and get
    the wrong entry.
    """
    for round_number in range(200):
        one = [Tool(f"g{round_number}", "g")]
        assert entries(one, lambda tool, _: tool.name, "t") == f"g{round_number}"
        del one
        gc.collect(0)


def check(tools: Sequence[Tool]) -> None:
    declared = [{"type": "function", "name": tool.name} for tool in tools]
    check_strict(ClientRequest("responses", {"tools": declared}, (), tools=tuple(tools)))


def test_invalid_schema_is_reported_each_time() -> None:
    """The error about a strict tool's invalid schema is raised every time the schema is checked. Schemas of other tools
    are not checked.
    """
    good, bad = tools(1), tools(1, properties={"a": {"$ref": "#/gone"}})
    bad = [replace(bad[0], name="bad", wire_name="bad")]
    for _ in range(2):
        check(good)
        with pytest.raises(BadRequest, match=r"Invalid schema for function 'bad': .*does not resolve") as raised:
            check([*good, *bad])
        assert raised.value.error.param == "tools[1].parameters"
    with pytest.raises(BadRequest, match="too large"):
        check(tools(1, description="x" * MAX_SCHEMA_BYTES))
    check([Tool("f", "f", parameters=bad[0].parameters)])


def test_patterns_of_strict_tools_share_a_limit() -> None:
    """One limit applies to the patterns of all strict tools together. Otherwise a request with many patterns could
    block the proxy for a second.
    """
    for strict, count, problem in ((True, 4, False), (True, 8, True), (False, 8, False)):
        named = [{"properties": {"a": {"pattern": f"^(?:{count}{at}{strict}){{600}}"}}} for at in range(count)]
        offered = [Tool(f"f{at}", "f", parameters=schema, strict=strict) for at, schema in enumerate(named)]
        if problem:
            with pytest.raises(BadRequest, match="at most 25000 atoms"):
                check(offered)
        else:
            check(offered)
