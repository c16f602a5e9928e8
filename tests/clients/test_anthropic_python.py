"""Anthropic's SDK for Python: ``create``, ``stream=True``, the ``stream()`` helper, counting, models and errors."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from clients.cases import MODEL, ONE_CALL, TOOLS, Case, Outcome, Stage, every_case, run_tool
from support.text_backend import refuses, says

Json = dict[str, Any]
every_mode = pytest.mark.parametrize("mode", ["create", "stream", "helper"])
PROMPT = [{"role": "user", "content": "What is the weather?"}]


def connect(stage: Stage) -> anthropic.Anthropic:
    base_url = stage.base_url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=10)


def tools(strict: bool) -> list[Any]:
    return [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"], "strict": strict}
        for tool in TOOLS
    ]


def turn(client: anthropic.Anthropic, mode: str, messages: list[Any], strict: bool) -> tuple[str | None, list[Json]]:
    """Run one turn; return its stop reason and content blocks."""
    request: Json = {"model": MODEL, "max_tokens": 512, "messages": messages, "tools": tools(strict)}
    if mode == "create":
        message = client.messages.create(**request)
        return message.stop_reason, [block.to_dict() for block in message.content]
    if mode == "helper":
        with client.messages.stream(**request) as helper:
            message = helper.get_final_message()
        return message.stop_reason, [block.to_dict() for block in message.content]
    blocks: list[Json] = []
    pieces: dict[int, str] = {}
    reason = None
    with client.messages.create(**request, stream=True) as stream:
        for event in stream:
            match event.type:
                case "content_block_start":
                    assert event.index == len(blocks)
                    blocks.append(event.content_block.to_dict())
                case "content_block_delta" if event.delta.type == "input_json_delta":
                    pieces[event.index] = pieces.get(event.index, "") + event.delta.partial_json
                case "content_block_delta" if event.delta.type == "text_delta":
                    blocks[event.index]["text"] += event.delta.text
                case "content_block_stop" if event.index in pieces:
                    blocks[event.index]["input"] = json.loads(pieces[event.index])
                case "message_delta":
                    reason = event.delta.stop_reason
    return reason, blocks


def loop(client: anthropic.Anthropic, mode: str, prompt: str, strict: bool) -> Outcome:
    outcome, messages = Outcome(), list[Any]([{"role": "user", "content": prompt}])
    while True:
        reason, blocks = turn(client, mode, messages, strict)
        uses = [block for block in blocks if block["type"] == "tool_use"]
        assert reason == ("tool_use" if uses else "end_turn")
        if not uses:
            outcome.text = "".join(block["text"] for block in blocks)
            return outcome
        messages.append({"role": "assistant", "content": blocks})
        results = []
        for use in uses:
            outcome.calls.append((use["name"], use["input"]))
            outcome.ids.append(use["id"])
            results.append(
                {"type": "tool_result", "tool_use_id": use["id"], "content": run_tool(use["name"], use["input"])}
            )
        messages.append({"role": "user", "content": results})


def run(client: anthropic.Anthropic, mode: str, prompt: str, strict: bool = False) -> Outcome:
    try:
        return loop(client, mode, prompt, strict)
    except anthropic.AnthropicError as error:
        return Outcome(error=str(error))


@every_case
@every_mode
def test_tool_loop(stage: Stage, mode: str, case: Case) -> None:
    """Through the proxy, the client completes the tool loop in each case."""
    with connect(stage) as client:
        stage.run_case(case, lambda prompt: run(client, mode, prompt, case.strict))


@every_mode
def test_errors_have_the_sdks_classes(stage: Stage, mode: str) -> None:
    """An error from the backend or from toolsim is raised as the SDK's exception class for the error's status."""
    stage.backend.play([refuses(429, "Slow down.")])
    with connect(stage) as client:
        with pytest.raises(anthropic.RateLimitError) as limited:
            turn(client, mode, PROMPT, False)
        body: Any = limited.value.body
        assert body["error"] == {"type": "rate_limit_error", "message": "Slow down."}
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].role"):
            turn(client, mode, [{"role": "robot", "content": "x"}], False)


def test_token_count(stage: Stage) -> None:
    """The token count is an estimate of the prompt that the model would receive, including tools."""
    with connect(stage) as client:
        bare = client.messages.count_tokens(model=MODEL, messages=PROMPT)  # type: ignore[arg-type]
        counted = client.messages.count_tokens(model=MODEL, messages=PROMPT, tools=tools(False))  # type: ignore[arg-type]
    assert 0 < bare.input_tokens < counted.input_tokens


def test_model_list(stage: Stage) -> None:
    """The backend's model list is returned in the format that the SDK expects."""
    with connect(stage) as client:
        names = [model.id for model in client.models.list()]
    assert names


def test_image_and_failed_tool(stage: Stage) -> None:
    """If a request contains an image and a failed tool's output, the prompt shows the image and states the failure."""
    stage.backend.play([says("Hm.")])
    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    use = {"type": "tool_use", "id": "toolu_001", "name": "get_weather", "input": {"city": "Paris"}}
    failed = {"type": "tool_result", "tool_use_id": "toolu_001", "content": "no radar", "is_error": True}
    asked = [
        {"role": "user", "content": [png, {"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [failed]},
    ]
    with connect(stage) as client:
        assert turn(client, "create", asked, False) == ("end_turn", [{"type": "text", "text": "Hm."}])
    shown = str(stage.backend.exchanges[0].transcript)
    assert "data:image/png;base64,aGk=" in shown
    assert "The tool failed." in shown


def test_tool_runner(stage: Stage) -> None:
    """The SDK's tool runner runs the tool, and returns the model's final text."""
    stage.prepare(ONE_CALL)

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Describe the sky over a city."""
        return run_tool("get_weather", {"city": city})

    with connect(stage) as client:
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=512, tools=[get_weather], messages=[{"role": "user", "content": "Weather?"}]
        )
        message = runner.until_done()
    assert message.content[-1].text == ONE_CALL.words  # type: ignore[union-attr]
