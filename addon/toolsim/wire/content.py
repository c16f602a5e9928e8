"""Message content of all APIs: reads the client's parts, writes the backend's parts, and translates between APIs.

Text and images are accepted in the shape of any API on any endpoint, since clients mix the shapes. All other parts keep
their original shape (``Raw``) for a backend with the same API; ``files`` converts them for backends with other APIs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
from toolsim.core.policy import ApiName
from toolsim.wire.files import API_OF, described, file_part
from toolsim.wire.json_fields import expect, mapping, optional, required, string, wrong_type

# A Fernet token consists of a version byte (128), a 64-bit time in seconds, and 64 bytes or more.
_FERNET = re.compile(r"gAAAAA[\w-]{94,}={0,2}", re.ASCII)
CIPHERTEXT = "ciphertext"
"""Note on a message whose text only OpenAI's server can read."""
ROLES: Mapping[str, Role] = {role: role for role in get_args(Role)}


def read_parts(content: object, api_name: ApiName, param: str) -> tuple[Part, ...]:
    """Read a message's ``content``, which is null, a string or an array of parts.

    Raises BadRequest for any other value or an invalid part.
    """
    match content:
        case None:
            return ()
        case str():
            return (Text(content),)
        case list():
            return tuple(_read_part(part, api_name, f"{param}[{index}]") for index, part in enumerate(content))
        case _:
            raise wrong_type(content, "a string or an array of content parts", param)


def _read_part(part: object, api_name: ApiName, param: str) -> Part:
    if isinstance(part, str):
        return Text(part)
    part = expect(part, dict, param)
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return Text(required(part, "text", str, param))
        case "refusal":
            return Text(required(part, "refusal", str, param))
        case "image_url" | "input_image":
            return _read_image(part, api_name, param)
        case "encrypted_content":
            # A message from one of Codex's agents to another. Codex uses this type even if the text is not encrypted.
            content = required(part, "encrypted_content", str, param)
            return Raw(api_name, part) if is_ciphertext(content) else Text(content)
        case "image":
            return _read_source(part, param)
        case "document" if (text := document_text(part)) is not None:
            return Text(text)
        case kind:
            return Raw(API_OF.get(string(kind), api_name), part)


def document_text(part: Mapping[str, Any]) -> str | None:
    """Return the text of a Messages API document, preceded by its title, or None if the document is not plain text."""
    source = mapping(part.get("source"))
    if source.get("type") != "text":
        return None
    title = string(part.get("title"))
    return f"{title}\n{string(source.get('data'))}" if title else string(source.get("data"))


def _read_source(part: Mapping[str, Any], param: str) -> Part:
    """Read the source of an image in the Messages API."""
    source = required(part, "source", dict, param)
    param = f"{param}.source"
    match source.get("type"):
        case "url":
            return Image(required(source, "url", str, param))
        case "file":
            return Raw("messages", part)
    media_type, data = (required(source, key, str, param) for key in ("media_type", "data"))
    return Image(f"data:{media_type};base64,{data}")


def is_ciphertext(text: str) -> bool:
    """Return whether ``text`` is a Fernet token, the format in which OpenAI's server encrypts text to hide it from
    clients.
    """
    return _FERNET.fullmatch(text) is not None


def _read_image(part: Mapping[str, Any], api_name: ApiName, param: str) -> Part:
    match part.get("image_url"):
        case str(url):
            return Image(url, optional(part, "detail", str, param))
        case dict(image):
            url = required(image, "url", str, f"{param}.image_url")
            return Image(url, optional(image, "detail", str, f"{param}.image_url"))
        case None:  # The image is given as a file ID, which is valid only in the API that issued the ID.
            return Raw(api_name, part)
        case other:
            raise wrong_type(other, "a string or an object", f"{param}.image_url")


def translate_item(item: Item, to: ApiName, notes: list[str]) -> Item:
    """Return ``item`` for a backend of the API ``to``, and add a note for each unsupported part to ``notes``."""
    # OpenAI replaced the system role with the developer role, but many chat servers support only the system role.
    if isinstance(item, Message) and to == "chat" and item.role == "developer":
        item = Message("system", item.parts, item.name)
    return with_parts_for(item, to, notes)


def with_parts_for(item: Item, to: ApiName | None, notes: list[str]) -> Item:
    """Return ``item`` with only the parts that a backend of the API ``to`` supports.

    A part that the API does not support is replaced with a line of text that describes it, and a note is added to
    ``notes``. If ``to`` is None, every part other than text and images is replaced.
    """
    match item:
        case Message():
            parts = translate_parts(item.parts, to, notes)
            return item if parts is item.parts else Message(item.role, parts, item.name)
        case CallOutput():
            parts = translate_parts(item.parts, to, notes)
            return item if parts is item.parts else CallOutput(item.call_id, parts, item.name)
        case Call() | Thought() | HostedItem() | Declaration():
            return item


def translate_parts(parts: tuple[Part, ...], to: ApiName | None, notes: list[str]) -> tuple[Part, ...]:
    """Return ``parts`` for a backend of the API ``to``. See ``with_parts_for`` for details."""
    if all(not isinstance(part, Raw) or part.api_name == to for part in parts):
        return parts
    translated: list[Part] = []
    for part in parts:
        if not isinstance(part, Raw) or part.api_name == to:
            translated.append(part)
        elif to is not None and (own := _translate(part.part, to)) is not None:
            translated.append(Raw(to, own))
        else:
            notes.append("content part")
            translated.append(Text(described(part.part)))
    return tuple(translated)


def _translate(part: Mapping[str, Any], to: ApiName) -> Mapping[str, Any] | None:
    # Audio has the same shape in chat completions and in the Responses API.
    is_audio = part.get("type") == "input_audio" and to != "messages"
    return part if is_audio else file_part(part, to)


def has_files(items: Iterable[Item]) -> bool:
    """Return whether a conversation contains parts that only some backends support."""
    return any(isinstance(part, Raw) for item in items if isinstance(item, Message | CallOutput) for part in item.parts)


def chat_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Return ``parts`` as chat content: a string (accepted by every backend) if all are text, otherwise an array."""
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
    """Return the text of the leading messages that have one of the ``roles``, and the remaining messages.

    At least one message remains. The text is for APIs with a separate field for instructions, because some of their
    backends reject system messages among the other messages.
    """
    texts: list[str] = []
    for index, message in enumerate(messages):
        parts = [part.text for part in message.parts if isinstance(part, Text)]
        if message.role not in roles or len(parts) < len(message.parts) or index == len(messages) - 1:
            return "\n\n".join(texts), messages[index:]
        texts += parts
    return "", ()


def responses_content(role: Role, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Return ``parts`` as the content of a Responses message. The assistant's text has the type ``output_text``."""
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
