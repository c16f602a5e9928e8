"""Tests for a model that repeats a call in each turn. toolsim adds a hint to the prompt, and finally answers instead of
the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import pytest
from support.answers import read
from support.line import Line
from support.mitmdump import Mitmdump
from support.text_backend import TextBackend, says
from support.wire import ApiName

APIS: dict[ApiName, str] = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ARGUMENTS = '{"city":"Bonn"}'
LINE = "You have called get_weather 3 times"
WORDS = "It rains."


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend(apis=tuple(APIS)) as backend:
        yield backend


def body(api: ApiName, outputs: list[str], *, stream: bool = False) -> dict[str, Any]:
    """Return a request whose history repeats the same call, once for each of the given outputs."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "Is it dry in Bonn?"}]
    for number, output in enumerate(outputs):
        call_id = f"call_{number}"
        if api == "responses":
            call = {"type": "function_call", "call_id": call_id, "name": "get_weather", "arguments": ARGUMENTS}
            items += [call, {"type": "function_call_output", "call_id": call_id, "output": output}]
        elif api == "messages":
            use = {"type": "tool_use", "id": call_id, "name": "get_weather", "input": json.loads(ARGUMENTS)}
            result = {"type": "tool_result", "tool_use_id": call_id, "content": output}
            reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
            items += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result, reminder]}]
        else:
            function = {"name": "get_weather", "arguments": ARGUMENTS}
            calls = [{"id": call_id, "type": "function", "function": function}]
            items += [{"role": "assistant", "content": None, "tool_calls": calls}]
            items += [{"role": "tool", "tool_call_id": call_id, "content": output}]
    asked: dict[str, Any] = {"model": "m", "stream": stream}
    if api == "responses":
        return asked | {"input": items, "tools": [{"type": "function", "name": "get_weather", "parameters": CITY}]}
    if api == "messages":
        return asked | {"messages": items, "max_tokens": 99, "tools": [{"name": "get_weather", "input_schema": CITY}]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    return asked | {"messages": items, "tools": [tool]}


@pytest.mark.slow
@pytest.mark.parametrize(("api", "served"), [*product(APIS, APIS)])
def test_repetitions_add_a_hint_then_end(api: ApiName, served: ApiName, backend: TextBackend) -> None:
    """When a call is repeated for the third time, a hint is added at a fixed position in the prompt. After the sixth
    repetition, toolsim ends the loop by answering itself.
    """
    with Mitmdump(backend.url, toolsim_backend=served) as proxy, Line(proxy.url) as line:
        prompts: list[str] = []
        for count in (2, 3, 4, 5):
            backend.play([says(WORDS)])
            line.post(f"/v1/{APIS[api]}", body(api, ["wet"] * count))
            prompts.append("\n".join(f"{role}: {text}" for role, text in backend.exchanges[0].transcript))
            assert prompts[-1].count(LINE) == (count >= 3)
        for before, after in pairwise(prompts):
            assert after.startswith(before)
        for stream in (False, True):
            backend.play([])
            reply = line.post(f"/v1/{APIS[api]}", body(api, ["wet"] * 6, stream=stream))
            (item,) = read(api, stream, [reply.body], reply.status).items
            assert item[0] == "text"
            assert "get_weather 6 times" in item[1]
            assert ARGUMENTS in item[1].replace(": ", ":")
            assert backend.exchanges == []
        backend.play([says(WORDS)])
        reply = line.post(f"/v1/{APIS[api]}", body(api, ["wet"] * 5 + ["dry"]))
        assert read(api, False, [reply.body]).items == [["text", WORDS]]
        proxy.wait_for("LOOP_ENDED:get_weather", count=2)
        metrics = line.request("GET", "/toolsim/metrics").body.decode()
        assert any("LOOP_ENDED" in each and each.endswith((" 2", " 2.0")) for each in metrics.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"toolsim_mode": "native"}, {"toolsim_retry": 1}, {"toolsim_loop_limit": 0}])
@pytest.mark.parametrize("api", APIS)
def test_loop_ends_with_native_tools_and_retries(api: ApiName, options: dict[str, Any], backend: TextBackend) -> None:
    """toolsim also ends a loop if native tools are used or retries are enabled. If the loop limit is 0, loops are not
    ended.
    """
    with Mitmdump(backend.url, toolsim_backend=api, **options) as proxy, Line(proxy.url) as line:
        for stream in (False, True):
            backend.play(lambda _: says(WORDS))
            reply = line.post(f"/v1/{APIS[api]}", body(api, ["wet"] * 6, stream=stream))
            (item,) = read(api, stream, [reply.body], reply.status).items
            if "toolsim_loop_limit" in options:
                assert item == ["text", WORDS]
                assert LINE not in str(backend.exchanges[0].transcript)
            else:
                assert "get_weather 6 times" in item[1]
                assert backend.exchanges == []
