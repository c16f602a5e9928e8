"""Tests for the ``toolsim``, ``native`` and ``prompt`` methods."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from toolsim.eval.case import Case, Cell, Verdict
from toolsim.eval.methods import CONTENT_TAGS, Methods, Target, prompted, with_content_tags
from toolsim.eval.proxy_process import Proxies
from toolsim.eval.runtime.turn import Answer, Call, Message, Request, Send, Tool

TOOLS = (Tool("echo", "", {"type": "object"}),)
REQUEST = Request(({"role": "user", "content": "Hello"},), TOOLS)
TAGGED = '<tool_call>{"name": "echo", "arguments": {}}</tool_call>'


async def play(send: Send) -> Verdict:
    return Verdict.passed()


def says(text: str, seen: list[Request]) -> Send:
    async def send(request: Request) -> Answer:
        seen.append(request)
        return Answer(text)

    return send


async def test_prompt_method_describes_tools_as_text() -> None:
    """The ``prompt`` method describes the tools as text instead of sending them, and parses calls in the
    answer's text.
    """
    seen: list[Request] = []
    answer = await prompted(says(TAGGED, seen), Case("s", "c", play))(REQUEST)
    assert seen[0].tools == ()
    assert "<tools>" in seen[0].messages[0]["content"]
    assert (answer.calls, answer.text, answer.finish) == ((Call("tag_1", "echo", "{}"),), "", "tool_calls")


async def test_without_tools_no_text_is_parsed_as_a_call() -> None:
    """If a request has no tools, neither the ``prompt`` method nor the content-tag fallback parses text as a call."""
    plain = Request(REQUEST.messages)
    for send in (prompted(says(TAGGED, []), Case("s", "c", play)), with_content_tags(says(TAGGED, []))):
        assert (await send(plain)) == Answer(TAGGED)


async def test_suite_can_provide_a_prompt_form() -> None:
    """A suite can provide its own prompt form, which replaces the built-in prompt and parser."""

    class Form:
        def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
            return [{"role": "user", "content": "[echo()] please"}]

        def read(self, text: str) -> tuple[str, tuple[Call, ...]]:
            return "", (Call("x", text, "{}"),)

    seen: list[Request] = []
    answer = await prompted(says("[echo()]", seen), Case("s", "c", play, form=Form()))(REQUEST)
    assert seen[0].messages[0]["content"] == "[echo()] please"
    assert answer.calls == (Call("x", "[echo()]", "{}"),)


async def test_content_tag_fallback() -> None:
    """With the content-tag fallback, a call between tags in the text of an answer counts as a call."""
    assert (await with_content_tags(says(TAGGED, []))(REQUEST)).calls == (Call("tag_1", "echo", "{}"),)


async def test_only_toolsim_method_starts_a_proxy() -> None:
    """The ``native`` and ``prompt`` methods send requests directly to the server, without a proxy and without
    recordings.
    """
    async with aclosing(Proxies("http://127.0.0.1:9/v1")) as proxies:
        methods = Methods(Target("http://127.0.0.1:9/v1"), proxies)
        for cell in (
            Cell("m", "p", "native", "chat"),
            Cell("m", "p", "prompt", "chat"),
            Cell("m", "p", "native", "chat", False, CONTENT_TAGS),
        ):
            assert (await methods.open(cell, Case("s", "c", play), "m"))[1] is None
        await methods.close()
