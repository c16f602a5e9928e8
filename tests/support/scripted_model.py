"""A text model that answers the questions of `toolsim tune` correctly only under certain settings.

It infers the setting from the request body, as any backend could. Under other settings, it answers with text where
calls are expected.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, override

from toolsim.eval.learn.question_bank import Question, questions
from toolsim.rounds.opinion import CALL_RULE, RULE

NAME = "scripted/model:1b"
WORDS = "I would rather talk about something else."


@dataclass(frozen=True, slots=True)
class Seen:
    """The setting that a request reveals: the form of its tools, how calls are enforced, and how history is shown."""

    form: str
    enforced: str
    history: str


Good = Callable[[Seen, Question], bool]
"""A function that returns whether the model answers a question correctly under a setting."""
Fault = Callable[[int], tuple[int, Mapping[str, str]] | None]
"""A function that maps the number of a request (from 1) to the status and headers of a failure, or to None for a normal
answer.
"""


def seen(body: Mapping[str, Any]) -> Seen:
    """Return the setting that a request body reveals."""
    shown = "\n".join(str(message.get("content")) for message in body["messages"])
    if "tools" in body:
        form = "native"
    elif "<tools>" in shown:
        form = "hermes"
    elif "```typescript" in shown:
        form = "typescript"
    elif "  parameters: {" in shown:
        form = "schemas"
    elif "one after the other" in shown:
        form = "lines"
    else:
        form = "calls"
    enforced = "gbnf" if "grammar" in body else "json_schema" if "response_format" in body else ""
    return Seen(form, enforced, "record" if "[function_call name=" in shown else "")


class ScriptedModel:
    """Serves the model's chat completions in separate threads.

    ``needless``: whether the model makes calls where none is expected. When asked to confirm such a call, it says no.
    ``engine``: "llama.cpp", or "" for an unknown engine.
    """

    def __init__(
        self,
        good: Good = lambda *_: True,
        *,
        needless: bool = False,
        fault: Fault = lambda _: None,
        engine: str = "",
        seconds: float = 0.0,
    ) -> None:
        self._good, self._needless, self._fault = good, needless, fault
        self._engine, self._seconds = engine, seconds
        self._by_text = {self._key(question.messages): question for question in questions()}
        self.requests = 0
        self.keys: set[str] = set()
        self._lock = threading.Lock()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            @override
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self._send(200, {"object": "list", "data": [{"id": NAME, "object": "model"}]})
                elif self.path == "/props" and model._engine == "llama.cpp":
                    self._send(200, {"default_generation_settings": {}})
                else:
                    self._send(404, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                if not self.path.endswith("/chat/completions"):
                    self._send(404, {})
                elif "messages" not in body:
                    self._send(400, {"error": {"message": "messages is missing"}})
                else:
                    status, answer, headers = model.answer(body, self.headers.get("authorization", ""))
                    self._send(status, answer, headers)

            def _send(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **(headers or {})}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: Mapping[str, Any], key: str) -> tuple[int, Mapping[str, Any], Mapping[str, str]]:
        """Return the status, body and headers of the answer to a request body."""
        with self._lock:
            self.requests += 1
            self.keys.add(key)
            fault = self._fault(self.requests)
        time.sleep(self._seconds)
        if fault is not None:
            status, headers = fault
            return status, {"error": {"message": f"HTTP {status}"}}, headers
        message = self._message(body)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": NAME, "choices": [choice]}
        return 200, answer | {"usage": usage}, {}

    def _message(self, body: Mapping[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        if any(message["content"] in (RULE, CALL_RULE) for message in messages):
            asked = str(messages[-1]["content"]).partition("A request: ")[2].partition("\n\n")[0]
            question = self._by_text.get(asked)
            return {"content": "yes" if question is not None and question.calls else "no"}
        question = self._question(messages)
        is_shown = "tools" in body or "# CLIENT TOOL CATALOG" in json.dumps(messages)
        is_right = self._good(seen(body), question)
        calls = [
            (call["name"], {name: values[0] for name, values in call["arguments"].items()}) for call in question.calls
        ]
        if not question.calls and is_shown and (self._needless or not is_right):
            # The client receives this call under any setting, because its arguments conform to the schema.
            calls, is_right = [(question.tools[0].name, _any(question.tools[0].parameters))], True
        if not calls or not is_right:
            return {"content": f"{WORDS} {' '.join(question.says) if is_right else ''}"}
        if "tools" in body:
            functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
            return {
                "content": None,
                "tool_calls": [
                    {"id": f"c{n}", "type": "function", "function": function} for n, function in enumerate(functions)
                ],
            }
        if "response_format" in body:
            return {"content": json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])}
        return {
            "content": "\n".join(
                f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
                for name, arguments in calls
            )
        }

    def _question(self, messages: list[dict[str, Any]]) -> Question:
        """Return the question that is asked at the end of a conversation."""
        said = [str(message["content"]) for message in messages if message["role"] == "user"]
        for text in reversed(said):
            for key, question in self._by_text.items():
                if key in text:
                    return question
        raise AssertionError(messages)

    @staticmethod
    def _key(messages: tuple[dict[str, Any], ...]) -> str:
        return [str(message["content"]) for message in messages if message["role"] == "user"][-1]


def _any(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that conform to a schema."""
    some = {"string": "x", "number": 1, "integer": 1, "boolean": True}
    return {
        name: part["enum"][0] if "enum" in part else some[part["type"]] for name, part in schema["properties"].items()
    }
