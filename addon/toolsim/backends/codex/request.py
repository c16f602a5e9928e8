"""Converts a client's request to the parameters of Codex's methods, without I/O.

The conversation is converted to message items for ``thread/inject_items``. Settings for which Codex has no parameter
are dropped (``temperature``, ``top_p``, ``max_output_tokens``, …). An answer format is also requested in the prompt,
because not every model behind Codex follows ``outputSchema``, and there is no parameter for ``json_object``. Images at
URLs are rejected with a 400, because Codex accepts only data URLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolsim.core.conversation import ClientRequest, Image, Message, Part, Role, Text
from toolsim.core.errors import BadRequest
from toolsim.request.manifest import whole_answer_rule
from toolsim.wire.files import described
from toolsim.wire.json_fields import string
from toolsim.wire.responses.request import model_settings


@dataclass(frozen=True, slots=True)
class CodexRequest:
    """A conversation as message items, and the parameters for ``thread/start``, its ``config``, and ``turn/start``."""

    items: tuple[Mapping[str, Any], ...]
    thread: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    turn: Mapping[str, Any] = field(default_factory=dict)


def codex_request(request: ClientRequest) -> CodexRequest:
    """Convert a Responses request to the parameters for Codex. Items other than messages are dropped.

    Raises BadRequest if there is no message, or if an image is not a data URL.
    """
    items = [_item("developer", [Text(request.instructions)])]
    turn: dict[str, Any] = {}
    if request.answer_format is not None:
        # The rule for the answer format precedes the conversation. Otherwise, it would have to move with each new
        # message, and the prompts of a conversation would not share a prefix.
        items.append(_item("developer", [Text(whole_answer_rule(request.answer_format))]))
        if request.answer_format["type"] == "json_schema":
            turn["outputSchema"] = request.answer_format.get("schema")
    items += [_item(item.role, item.parts) for item in request.items if isinstance(item, Message)]
    items = [item for item in items if item["content"]]
    if not items:
        raise BadRequest(
            "There is nothing to answer: 'input' contains no message.", "input", "missing_required_parameter"
        )
    effort, summary, verbosity = model_settings(request)
    if effort:
        turn["effort"] = effort
    if summary:
        turn["summary"] = summary
    return CodexRequest(
        tuple(items),
        thread={"model": request.form.model} if request.form.model else {},
        config={"model_verbosity": verbosity} if verbosity else {},
        turn=turn,
    )


def _item(role: Role, parts: Iterable[Part]) -> dict[str, Any]:
    # Codex silently drops system messages.
    role = "developer" if role == "system" else role
    content = [_content(role, part) for part in parts if part != Text("")]
    return {"type": "message", "role": role, "content": content}


def _content(role: Role, part: Part) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    match part:
        case Text(text):
            return {"type": kind, "text": text}
        case Image(url, detail):
            if not url.startswith("data:"):
                raise BadRequest("The codex backend accepts images only as data URLs.", "input", "invalid_value")
            return {"type": "input_image", "image_url": url, **({"detail": detail} if detail else {})}
        case _:
            # Only OpenAI's server can interpret other types of parts, such as files. They are replaced with their text,
            # or else with a description.
            return {"type": kind, "text": string(part.part.get("text")) or described(part.part)}
