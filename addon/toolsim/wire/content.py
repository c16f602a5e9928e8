"""Message content of both dialects: reads the client's parts, writes the backend's, translates between them.

Text and images are read in either dialect's shape on either endpoint, since clients mix them. Every other part keeps
its own shape (``Raw``) for a backend of the same dialect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from toolsim.core.conversation import (
    Call,
    CallOutput,
    Declaration,
    HostedItem,
    Image,
    Item,
    Message,
    Part,
    Raw,
    Role,
    Text,
    Thought,
)
from toolsim.core.plan import ApiName
from toolsim.wire.json_fields import expect, optional, required, wrong_type

# Version 128 and a 64-bit time in seconds, then 64 bytes or more.
_FERNET = re.compile(r"gAAAAA[\w-]{94,}={0,2}", re.ASCII)
_FILE_FIELDS = ("file_id", "file_data", "filename")
CIPHERTEXT = "ciphertext"
"""The note of a message whose words only OpenAI's server can read."""
ROLES: Mapping[str, Role] = {role: role for role in get_args(Role)}


def read_parts(content: object, dialect: ApiName, param: str) -> tuple[Part, ...]:
    """Read ``content``: null (no parts), a string (one part) or an array of parts. Raises BadRequest."""
    match content:
        case None:
            return ()
        case str():
            return (Text(content),)
        case list():
            return tuple(_read_part(part, dialect, f"{param}[{index}]") for index, part in enumerate(content))
        case _:
            raise wrong_type(content, "a string or an array of content parts", param)


def _read_part(part: object, dialect: ApiName, param: str) -> Part:
    if isinstance(part, str):
        return Text(part)
    part = expect(part, dict, param)
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return Text(required(part, "text", str, param))
        case "refusal":
            return Text(required(part, "refusal", str, param))
        case "image_url" | "input_image":
            return _read_image(part, dialect, param)
        case "encrypted_content":
            # The message to an agent: the client takes plain words for ciphertext if nothing says that they are plain.
            content = required(part, "encrypted_content", str, param)
            return Raw(dialect, part) if is_ciphertext(content) else Text(content)
        case _:
            return Raw(dialect, part)


def is_ciphertext(text: str) -> bool:
    """Return whether a text is a Fernet token, which OpenAI's server encrypts and decrypts for its clients."""
    return _FERNET.fullmatch(text) is not None


def _read_image(part: Mapping[str, Any], dialect: ApiName, param: str) -> Part:
    match part.get("image_url"):
        case str(url):
            return Image(url, optional(part, "detail", str, param))
        case dict(image):
            url = required(image, "url", str, f"{param}.image_url")
            return Image(url, optional(image, "detail", str, f"{param}.image_url"))
        case None:  # An image by file id, which only its own dialect knows.
            return Raw(dialect, part)
        case other:
            raise wrong_type(other, "a string or an object", f"{param}.image_url")


def translate_item(item: Item, to: ApiName, notes: list[str]) -> Item:
    """Return ``item`` as a backend of the dialect ``to`` takes it; what it has no form for is added to ``notes``."""
    match item:
        case Message():
            # Many chat servers do not know the developer role; it replaced the system role.
            role: Role = "system" if to == "chat" and item.role == "developer" else item.role
            parts = translate_parts(item.parts, to, notes)
            return item if parts is item.parts and role == item.role else Message(role, parts, item.name)
        case CallOutput():
            parts = translate_parts(item.parts, to, notes)
            return item if parts is item.parts else CallOutput(item.call_id, parts, item.name)
        case Call() | Thought() | HostedItem() | Declaration():
            return item


def translate_parts(parts: tuple[Part, ...], to: ApiName, notes: list[str]) -> tuple[Part, ...]:
    """Return ``parts`` as a backend of the dialect ``to`` takes them; ``notes`` as in ``translate_item``."""
    if not any(isinstance(part, Raw) for part in parts):
        return parts
    translated = [_translate(part, to) for part in parts]
    notes.extend("content part" for part in translated if part is None)
    return tuple(part for part in translated if part is not None)


def _translate(part: Part, to: ApiName) -> Part | None:
    if not isinstance(part, Raw) or part.dialect == to:
        return part
    match part.part.get("type"):
        case "input_audio":  # The same shape in both.
            return Raw(to, part.part)
        case "input_file" if to == "chat":
            file = {key: part.part[key] for key in _FILE_FIELDS if part.part.get(key) is not None}
            # Chat cannot fetch a file by URL.
            return Raw(to, {"type": "file", "file": file}) if "file_id" in file or "file_data" in file else None
        case "file" if to == "responses" and isinstance(part.part.get("file"), dict):
            file = part.part["file"]
            return Raw(to, {"type": "input_file", **{key: file[key] for key in _FILE_FIELDS if key in file}})
        case _:
            return None


def chat_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Write ``parts`` as chat content: one string if all is text (the form that every backend takes), else an array."""
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return [_chat_part(part) for part in parts]


def _chat_part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(url, detail):
            image = {"url": url} if detail is None else {"url": url, "detail": detail}
            return {"type": "image_url", "image_url": image}
        case Raw():
            return dict(part.part)


def split_instructions(messages: Sequence[Message], *roles: Role) -> tuple[str, Sequence[Message]]:
    """Return the texts of these roles before a conversation as one, and the rest: one message at least, if any.

    For APIs that have a place of its own for them; some of their backends take no such message anywhere else.
    """
    texts: list[str] = []
    for index, message in enumerate(messages):
        parts = [part.text for part in message.parts if isinstance(part, Text)]
        if message.role not in roles or len(parts) < len(message.parts) or index == len(messages) - 1:
            return "\n\n".join(texts), messages[index:]
        texts += parts
    return "", ()


def responses_content(role: Role, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Write ``parts`` as the content array of a Responses message; an assistant's text is output."""
    return [_responses_part(role, part) for part in parts]


def _responses_part(role: Role, part: Part) -> dict[str, Any]:
    match part:
        case Text():
            if role == "assistant":
                return {"type": "output_text", "text": part.text, "annotations": []}
            return {"type": "input_text", "text": part.text}
        case Image(url, detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
        case Raw():
            return dict(part.part)
