"""Tests that compare the token estimate with the counts from a real tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.core.events import Usage
from toolsim.request.estimate import estimated_tokens, estimated_usage

# For each text, the number of tokens that Qwen2.5's tokenizer produces.
COUNTED: dict[str, tuple[int, str]] = {
    "prose": (
        45,
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
        "foolishness, it was the epoch of belief, it was the epoch of incredulity.",
    ),
    "code": (
        53,
        'def mean(values: list[float]) -> float:\n    """Return the mean of some numbers."""\n    total = 0.0\n'
        "    for value in values:\n        total += value\n    return total / len(values) if values else 0.0\n",
    ),
    "schema": (
        89,
        '{"type": "function", "name": "get_weather", "description": "The current weather in a city.", "parameters": '
        '{"type": "object", "properties": {"city": {"type": "string", "description": "Its name, such as Paris"}, '
        '"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"], '
        '"additionalProperties": false}}',
    ),
    "numbers": (
        69,
        "On 2026-11-22 at 13:42:21 the value was 48151.62342 (up from 1024.5), which is 0.0625 of 770425.88.",
    ),
    "German": (
        33,
        "Das Wetter in München ist heute schön, aber morgen soll es regnen. Größere Änderungen erwarten wir erst am "
        "Ende der Woche.",
    ),
    "Russian": (
        37,
        "Погода в Москве сегодня хорошая, но завтра обещают дождь и сильный ветер, поэтому возьмите с собой зонт.",
    ),
    "Chinese": (24, "今天北京的天气很好，但是明天可能会下雨，请带上雨伞。周末的气温会降到零度以下。"),
}


def message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("name", COUNTED)
def test_estimate_is_near_the_real_count(name: str) -> None:
    """The token estimate is within 20% of the real count, except for numbers, because tokenizers split them
    differently.
    """
    count, text = COUNTED[name]
    estimated = estimated_tokens({"messages": [message(text)]}) - 4
    assert 0.8 * count <= estimated <= (1.35 if name == "numbers" else 1.2) * count


def test_apis_have_the_same_estimate() -> None:
    """A conversation has the same token estimate in both APIs. The estimate includes the instructions and the answer
    format.
    """
    text = COUNTED["prose"][1]
    whole = estimated_tokens({"messages": [message(text)]})
    assert whole == estimated_tokens({"input": text})
    assert whole == estimated_tokens({"input": [message([{"type": "input_text", "text": text}])]})
    assert estimated_tokens({"input": text, "instructions": text}) > 1.8 * whole
    schema = json.loads(COUNTED["schema"][1])
    assert estimated_tokens({"input": text, "text": {"format": schema}}) > whole + 60


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["content", "text", "output", "name", "role"]), inner
)))  # fmt: skip
def test_longer_request_has_no_lower_estimate(value: Any) -> None:
    """A longer request never has a lower token estimate, regardless of its content."""
    once, twice = estimated_tokens({"input": [value]}), estimated_tokens({"input": [value, value]})
    assert 4 <= once <= twice


def test_usage_counts_the_prompt() -> None:
    """The usage in an answer contains the same estimate for the prompt as the endpoints that count tokens. If the
    request body is invalid, the estimate is minimal.
    """
    body = {"model": "m", "messages": [message(COUNTED["prose"][1])]}
    read, wrote = estimated_tokens(body), estimated_tokens({"messages": [message(COUNTED["code"][1])]}) - 4
    sent = json.dumps(body).encode()
    assert estimated_usage(sent, COUNTED["code"][1]) == Usage(read, wrote, read + wrote, estimated=True)
    assert estimated_usage(b"?", "") == Usage(4, 0, 4, estimated=True)


def test_long_text_is_sampled() -> None:
    """The token estimate for a megabyte of text, which is based on samples, is close to the sum of the estimates for
    the text's parts.
    """
    texts = [text for _, text in COUNTED.values()]
    part = sum(estimated_tokens({"messages": [message(text)]}) - 4 for text in texts)
    many = (1 << 20) // sum(map(len, texts))
    messages = [message(text) for _ in range(many) for text in texts]
    assert estimated_tokens({"messages": messages}) == pytest.approx(many * part + 4 * len(messages), rel=0.05)


def test_long_request_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usage of a one-megabyte request is estimated without parsing, and is close to the estimate for the parsed
    request.
    """
    text = "".join(text for _, text in COUNTED.values()) + '"a\\b"\n\t'
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'iVBORw0KGgoAAAANSUhEUgAA' * 20_000}"}}
    body = {"messages": [*(message(text * 20) for _ in range(40)), message([image])]}
    exact = estimated_tokens(body)
    monkeypatch.setattr("toolsim.request.estimate.parse_object", None)
    sent = json.dumps(body, ensure_ascii=False).encode()
    assert estimated_usage(sent, "").input_tokens == pytest.approx(exact, rel=0.1)
    assert estimated_usage(b"[" * 200_000, "").input_tokens
