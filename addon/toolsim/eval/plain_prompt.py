"""Implements the ``prompt`` method: tools in a system message, and calls parsed with one regular expression.

The method represents code from tutorials, which people would use without toolsim. It has the Hermes call form, one
example of the syntax, no validation and no repair. A call that the parser cannot parse remains text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolsim.eval.runtime.prompt import calls_from_content_tags
from toolsim.eval.runtime.turn import Answer, Call, Message, Tool

_HEAD = """You can call these functions:
<tools>
{tools}
</tools>
To call a function, write a JSON object with its name and arguments inside <tool_call> tags, like this:
<tool_call>
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


class PlainPrompt:
    """The default PromptForm of the evaluation."""

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """Return the messages as plain text. The first system message describes the tools. Calls are tagged."""
        written = [_as_text(message) for message in messages]
        if not tools:
            return written
        declared = ({"type": "function", "function": tool.declaration()} for tool in tools)
        head = _HEAD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in declared))
        if written and written[0]["role"] == "system":
            written[0] = {"role": "system", "content": f"{written[0]['content']}\n\n{head}"}
        else:
            written.insert(0, {"role": "system", "content": head})
        return written

    def read(self, text: str) -> tuple[str, tuple[Call, ...]]:
        """Return the prose in a model's text, and the tagged calls."""
        answer = calls_from_content_tags(Answer(text))
        return answer.text, answer.calls


def _as_text(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    calls = [
        '<tool_call>\n{{"name": {}, "arguments": {}}}\n</tool_call>'.format(
            json.dumps(call["function"]["name"]), call["function"]["arguments"] or "{}"
        )
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": "\n".join([*filter(None, [message.get("content")]), *calls])}
