"""Builds the bytes that backends send: simulated answers in every API, streamed or not.

This module deliberately shares no code with toolsim, because otherwise toolsim would read its own output in tests. An
answer is built step by step. Each step returns its frames, so that a server can pace them, and ``whole`` returns the
same answer as one document. Chat frames are ASCII with escapes, as Python servers write them. Responses frames are
UTF-8, as OpenAI writes them. The tests of the readers cover the faults of real backends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Json = dict[str, Any]
ApiName = Literal["chat", "responses", "messages"]

DONE = b"data: [DONE]\n\n"
CREATED = 1764967971

# The request fields that a response object repeats. OpenAI's own answers always contain them.
FULL_RESPONSE: Json = {
    "background": False,
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "user": None,
    "metadata": {},
}


def usage(api_name: ApiName, tokens_in: int, tokens_out: int, cached: int = 0, reasoning: int = 0) -> Json:
    """Return a usage object in the format of the API ``api_name``."""
    total = {"total_tokens": tokens_in + tokens_out}
    if api_name == "chat":
        return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, **total}
    if api_name == "messages":
        cache = {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
        return {"input_tokens": tokens_in - cached, **cache, "output_tokens": tokens_out}
    return {
        "input_tokens": tokens_in,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        **total,
    }


def frame(data: Json) -> bytes:
    """Return one frame of a chat stream with this JSON data."""
    return f"data: {json.dumps(data)}\n\n".encode()


def event_frame(data: Json) -> bytes:
    """Return one frame of a Responses stream with this JSON data."""
    return f"event: {data['type']}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


class ChatAnswer:
    """A chat backend's answer. ``counts``: its usage object, or None if it reports no usage."""

    api_name: ApiName = "chat"

    def __init__(
        self, *, id: str = "c", model: str = "text-model", created: int = CREATED, counts: Json | None = None
    ) -> None:
        self._head: Json = {"id": f"chatcmpl-{id}", "created": created, "model": model, "system_fingerprint": None}
        self._counts = counts
        self._text: list[str] = []
        self._thought: list[str] = []
        self._call: Json | None = None
        self._arguments: list[str] = []

    def chunk(self, delta: Json, finish: str | None = None, index: int = 0) -> bytes:
        """Return a frame that contains one chunk with this delta and finish reason."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._frame({"choices": [choice]} | ({"usage": None} if self._counts else {}))

    def _frame(self, fields: Json) -> bytes:
        return frame({**self._head, "object": "chat.completion.chunk", **fields})

    def begin(self) -> list[bytes]:
        return [self.chunk({"role": "assistant", "content": "", "refusal": None})]

    def begin_message(self) -> list[bytes]:
        return []

    def add_reasoning(self, piece: str) -> list[bytes]:
        self._thought.append(piece)
        return [self.chunk({"reasoning_content": piece})]

    def add_text(self, piece: str) -> list[bytes]:
        self._text.append(piece)
        return [self.chunk({"content": piece})]

    def begin_call(self, name: str) -> list[bytes]:
        """Start the only structured call of this answer; its arguments follow in deltas."""
        self._call = {"id": "call_c", "type": "function", "function": {"name": name, "arguments": ""}}
        return [self.chunk({"tool_calls": [{"index": 0, **self._call}]})]

    def add_arguments(self, piece: str) -> list[bytes]:
        """Add a delta to the arguments of the current call."""
        self._arguments.append(piece)
        return [self.chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})]

    def end_call(self) -> list[bytes]:
        return []

    def end(self, finish: str = "stop") -> list[bytes]:
        counted = [self._frame({"choices": [], "usage": self._counts})] if self._counts else []
        return [self.chunk({}, finish), *counted, DONE]

    def fail(self, error: Json) -> list[bytes]:
        return [frame({"error": error})]

    def whole(self, finish: str = "stop") -> Json:
        """Return the answer so far as a single JSON document."""
        message: Json = {"role": "assistant", "content": "".join(self._text), "refusal": None, "annotations": []}
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._call:
            function = self._call["function"] | {"arguments": "".join(self._arguments)}
            message["tool_calls"] = [self._call | {"function": function}]
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}]
        counted = {"usage": self._counts} if self._counts else {}
        return {**self._head, "object": "chat.completion", "choices": choices, **counted}


class ResponsesAnswer:
    """A Responses backend's answer. ``fields``: additional fields of the response object, such as ``FULL_RESPONSE``."""

    api_name: ApiName = "responses"

    def __init__(
        self,
        *,
        id: str = "b",
        model: str = "text-model",
        created: int = CREATED,
        counts: Json | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._head: Json = {"id": f"resp_{id}", "object": "response", "created_at": created, "model": model}
        self._fields = dict(fields or {})
        self._counts = counts
        self._id = id
        self._sequence = 0
        self._output: list[Json] = []
        self._text: list[str] | None = None
        self._thought: list[str] | None = None
        self._call: Json = {}
        self._arguments: list[str] = []

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return event_frame({"type": kind, "sequence_number": number, **fields})

    def _response(self, status: str, output: Sequence[Json], **fields: Any) -> Json:
        counts = self._counts if status in ("completed", "incomplete") else None
        return {**self._head, "status": status, "output": list(output), "usage": counts, **self._fields, **fields}

    def begin(self) -> list[bytes]:
        response = self._response("in_progress", [])
        return [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    # ─ output items: only one is open at a time ─

    def _at(self) -> Json:
        kind = "rs" if self._thought is not None else "msg"
        return {"item_id": f"{kind}_{self._id}", "output_index": len(self._output)}

    def _added(self, item: Json) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._output), item=item)

    def _done(self, item: Json) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def item(self, item: Json) -> list[bytes]:
        """Add a complete item, for example a call."""
        return [*self._end_thought(), self._added(item), self._done(item)]

    def begin_call(self, name: str) -> list[bytes]:
        """Start a call; its arguments follow in deltas."""
        names = {"id": f"fc_{self._id}", "call_id": f"call_{self._id}", "name": name}
        self._call, self._arguments = {"type": "function_call", **names}, []
        return [*self._end_thought(), self._added({**self._call, "arguments": "", "status": "in_progress"})]

    def add_arguments(self, piece: str) -> list[bytes]:
        """Add a delta to the arguments of the current call."""
        self._arguments.append(piece)
        at = {"item_id": self._call["id"], "output_index": len(self._output)}
        return [self._event("response.function_call_arguments.delta", **at, delta=piece)]

    def end_call(self) -> list[bytes]:
        text = "".join(self._arguments)
        at = {"item_id": self._call["id"], "output_index": len(self._output)}
        done = self._event("response.function_call_arguments.done", **at, arguments=text)
        return [done, self._done({**self._call, "arguments": text, "status": "completed"})]

    def add_reasoning(self, piece: str) -> list[bytes]:
        """Add a delta to the reasoning summary."""
        frames: list[bytes] = []
        if self._thought is None:
            self._thought = []
            at = self._at() | {"summary_index": 0}
            frames.append(self._added({"id": at["item_id"], "type": "reasoning", "summary": []}))
            part = {"type": "summary_text", "text": ""}
            frames.append(self._event("response.reasoning_summary_part.added", **at, part=part))
        self._thought.append(piece)
        frames.append(self._event("response.reasoning_summary_text.delta", **self._at(), summary_index=0, delta=piece))
        return frames

    def _end_thought(self) -> list[bytes]:
        if self._thought is None:
            return []
        summary = [{"type": "summary_text", "text": "".join(self._thought)}]
        item = {"id": self._at()["item_id"], "type": "reasoning", "summary": summary}
        self._thought = None
        return [self._done(item)]

    def _message(self, status: str, parts: Sequence[Json]) -> Json:
        return {"id": f"msg_{self._id}", "type": "message", "status": status, "role": "assistant", "content": parts}

    @staticmethod
    def _part(text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def begin_message(self) -> list[bytes]:
        """Start the message. ``add_text`` does this if no message has been started."""
        frames = self._end_thought()
        self._text = []
        frames.append(self._added(self._message("in_progress", [])))
        part = self._part("")
        return [*frames, self._event("response.content_part.added", **self._at(), content_index=0, part=part)]

    def add_text(self, piece: str) -> list[bytes]:
        frames = [] if self._text is not None else self.begin_message()
        assert self._text is not None
        self._text.append(piece)
        fields = {**self._at(), "content_index": 0, "delta": piece, "logprobs": []}
        return [*frames, self._event("response.output_text.delta", **fields)]

    # ─ the end ─

    @staticmethod
    def _outcome(finish: str) -> tuple[str, Json]:
        if finish == "stop":
            return "completed", {}
        reason = "max_output_tokens" if finish == "length" else finish
        return "incomplete", {"incomplete_details": {"reason": reason}}

    def end(self, finish: str = "stop") -> list[bytes]:
        status, details = self._outcome(finish)
        frames = self._end_thought()
        if self._text is not None:
            text = "".join(self._text)
            at = self._at() | {"content_index": 0}
            frames.append(self._event("response.output_text.done", **at, text=text, logprobs=[]))
            frames.append(self._event("response.content_part.done", **at, part=self._part(text)))
            frames.append(self._done(self._message(status, [self._part(text)])))
            self._text = None
        return [*frames, self._event(f"response.{status}", response=self._response(status, self._output, **details))]

    def error(self, error: Json) -> list[bytes]:
        """Return an error event, as sent by a backend that fails in the middle of a stream."""
        return [self._event("error", **error)]

    def failed(self, error: Json) -> list[bytes]:
        """End the answer as failed."""
        return [self._event("response.failed", response=self._response("failed", [], error=error))]

    def fail(self, error: Json) -> list[bytes]:
        failure = {"code": error.get("code") or error.get("type"), "message": error["message"]}
        return [*self.error({**failure, "param": None}), *self.failed(failure)]

    def whole(self, finish: str = "stop") -> Json:
        """Return the answer so far as a single JSON document."""
        status, details = self._outcome(finish)
        self._end_thought()
        output = list(self._output)
        if self._text is not None:
            output.append(self._message(status, [self._part("".join(self._text))]))
        return self._response(status, output, **details)


class MessagesAnswer:
    """A Messages backend's answer. ``counts``: its usage object, or None for counts of zero."""

    api_name: ApiName = "messages"
    REASONS: Mapping[str, str] = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}

    def __init__(self, *, id: str = "a", model: str = "text-model", counts: Json | None = None) -> None:
        self._head: Json = {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": model}
        self._counts = counts or {"input_tokens": 0, "output_tokens": 0}
        self._content: list[Json] = []
        self._open = ""

    def begin(self) -> list[bytes]:
        counts = self._counts | {"output_tokens": 1}
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}
        return [event_frame({"type": "message_start", "message": message}), event_frame({"type": "ping"})]

    def begin_message(self) -> list[bytes]:
        return []

    def _block(self, kind: str, **fields: Any) -> list[bytes]:
        frames = self._end_block()
        self._open = kind
        self._content.append({"type": kind, **fields})
        at = len(self._content) - 1
        return [*frames, event_frame({"type": "content_block_start", "index": at, "content_block": self._content[-1]})]

    def _end_block(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        return [event_frame({"type": "content_block_stop", "index": len(self._content) - 1})]

    def _delta(self, kind: str, key: str, piece: str) -> bytes:
        at = len(self._content) - 1
        return event_frame({"type": "content_block_delta", "index": at, "delta": {"type": kind, key: piece}})

    def add_reasoning(self, piece: str) -> list[bytes]:
        frames = [] if self._open == "thinking" else self._block("thinking", thinking="", signature="")
        frames.append(self._delta("thinking_delta", "thinking", piece))
        self._content[-1]["thinking"] += piece
        return frames

    def add_text(self, piece: str) -> list[bytes]:
        frames = [] if self._open == "text" else self._block("text", text="")
        frames.append(self._delta("text_delta", "text", piece))
        self._content[-1]["text"] += piece
        return frames

    def begin_call(self, name: str) -> list[bytes]:
        """Start a call; its arguments follow in deltas."""
        frames = self._block("tool_use", id=f"toolu_b{len(self._content)}", name=name, input={})
        self._arguments: list[str] = []
        return frames

    def add_arguments(self, piece: str) -> list[bytes]:
        self._arguments.append(piece)
        return [self._delta("input_json_delta", "partial_json", piece)]

    def end_call(self) -> list[bytes]:
        self._content[-1]["input"] = json.loads("".join(self._arguments) or "{}")
        return self._end_block()

    def end(self, finish: str = "stop") -> list[bytes]:
        reason = self.REASONS.get(finish, finish)
        delta = {"stop_reason": reason, "stop_sequence": None}
        counts = {"output_tokens": self._counts["output_tokens"]}
        ended = event_frame({"type": "message_delta", "delta": delta, "usage": counts})
        return [*self._end_block(), ended, event_frame({"type": "message_stop"})]

    def fail(self, error: Json) -> list[bytes]:
        return [event_frame({"type": "error", "error": {"type": "api_error", "message": error["message"]}})]

    def whole(self, finish: str = "stop") -> Json:
        """Return the answer so far as a single JSON document."""
        ended = {"stop_reason": self.REASONS.get(finish, finish), "stop_sequence": None, "usage": self._counts}
        return {**self._head, "content": self._content, **ended}


BackendAnswer = ChatAnswer | ResponsesAnswer | MessagesAnswer
ANSWERS: dict[ApiName, type[BackendAnswer]] = {
    "chat": ChatAnswer,
    "responses": ResponsesAnswer,
    "messages": MessagesAnswer,
}


def backend_answer(api_name: ApiName, stream: bool, pieces: Sequence[str], finish: str = "stop") -> tuple[str, bytes]:
    """Return the content type and body of a text backend's answer with 3 input and 4 output tokens."""
    answer = ANSWERS[api_name](counts=usage(api_name, 3, 4))
    frames = [*answer.begin(), *answer.begin_message()]
    for piece in pieces:
        frames += answer.add_text(piece)
    if stream:
        return "text/event-stream", b"".join([*frames, *answer.end(finish)])
    return "application/json", json.dumps(answer.whole(finish)).encode()


# ─ for backends that write their frames one by one ─


def chat_frame(content: str | None = None, finish: str | None = None, index: int = 0) -> bytes:
    """Return one frame of a chat stream with this content or finish reason."""
    return ChatAnswer().chunk({} if content is None else {"content": content}, finish, index)


def chat_whole(content: str) -> bytes:
    """Return a non-streamed chat answer without token counts."""
    answer = ChatAnswer()
    answer.add_text(content)
    return json.dumps(answer.whole()).encode()


def chat_stream(*texts: str, ended: bool = True) -> bytes:
    """Return a chat stream without token counts. If not ``ended``, it stops after its texts, without a terminator."""
    answer = ChatAnswer()
    frames = [frame for text in texts for frame in answer.add_text(text)]
    return b"".join([*frames, *(answer.end() if ended else [])])
