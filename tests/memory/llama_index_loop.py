"""A program that runs a LlamaIndex loop with ``track_previous_responses``, which sends only new items.

It runs in a separate environment, because it needs an older release of the OpenAI SDK than the other clients. Its only
argument is a JSON object: ``base_url``, ``model``, ``streamed``, ``questions``. It prints one line of JSON, with the
final text, the calls and their IDs for each question.
"""

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses


def get_weather(city: str) -> str:
    """Describe the sky over a city."""
    return f"The sky over {city} is clear."


def main() -> None:
    asked = json.loads(sys.argv[1])
    llm = OpenAIResponses(
        model=asked["model"],
        api_base=asked["base_url"],
        api_key="none",
        max_retries=0,
        context_window=100_000,
        track_previous_responses=True,
    )
    tool = FunctionTool.from_defaults(get_weather)
    outcomes = []
    for question in asked["questions"]:
        calls, ids = [], []
        new = [ChatMessage(role="user", content=question)]
        while new:
            if asked["streamed"]:
                *_, answer = llm.stream_chat_with_tools([tool], chat_history=new)
            else:
                answer = llm.chat_with_tools([tool], chat_history=new)
            new = []
            for call in llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False):
                calls.append((call.tool_name, call.tool_kwargs))
                ids.append(call.tool_id)
                output = get_weather(**call.tool_kwargs)
                new.append(ChatMessage(role="tool", content=output, additional_kwargs={"tool_call_id": call.tool_id}))
        outcomes.append({"text": answer.message.content or "", "calls": calls, "ids": ids})
    print(json.dumps(outcomes))


main()
