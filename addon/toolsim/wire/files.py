"""Binary content parts: documents in the format of each API, and the line that replaces an unsupported part.

|       | chat                     | Responses            | Messages                                   |
|-------|--------------------------|----------------------|--------------------------------------------|
| bytes | ``file.file_data``       | ``file_data``        | ``source``: base64 of a PDF, or plain text |
| URL   | not supported            | ``file_url``         | ``source.url``                             |
| ID    | ``file.file_id``         | ``file_id``          | ``source.file_id``, in a different store   |
| name  | ``file.filename``        | ``filename``         | ``title``                                  |

A backend of the part's own API receives the part as the client sent it. Base64 data, and content that only one API can
decrypt, is never shown to a model as text. For example, Claude Code sends each PDF that it reads, and a megabyte of a
PDF has 1.4 million characters in base64.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from mimetypes import guess_type
from typing import Any

from toolsim.core.policy import ApiName
from toolsim.wire.json_codec import dump
from toolsim.wire.json_fields import mapping, string

API_OF: Mapping[str, ApiName] = {
    **dict.fromkeys(("file",), "chat"),
    **dict.fromkeys(("input_file",), "responses"),
    **dict.fromkeys(("document", "image", "container_upload"), "messages"),
}
"""The API of each part type. The endpoint does not determine a part's API, because clients mix the shapes."""

_PDF = "application/pdf"
_FIELDS = ("file_id", "file_data", "filename", "file_url")
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?[^,]{0,200};base64,")
_SEALED = frozenset({"encrypted_content", "encrypted_index", "encrypted_stdout", "signature", "cache_control"})
_NOUNS = (("audio", "audio"), ("image", "image"), ("video", "video"), ("file", "document"), ("document", "document"))
_PLAIN_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class _File:
    """A document. ``data`` is the content of the file in base64."""

    name: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    id: str = ""


def _openai_fields(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a document in one of OpenAI's shapes, or {} for any other part."""
    fields = mapping(part.get("file")) if part.get("type") == "file" else part
    return {key: fields[key] for key in _FIELDS if isinstance(fields.get(key), str)} if _is_openai(part) else {}


def _is_openai(part: Mapping[str, Any]) -> bool:
    return part.get("type") in ("file", "input_file")


def _read(part: Mapping[str, Any]) -> _File | None:
    if _is_openai(part):
        fields = _openai_fields(part)
        name, data, url = (string(fields.get(key)) for key in ("filename", "file_data", "file_url"))
        found = _DATA_URL.match(data or url)
        media_type = (found[1] if found is not None else "") or guess_type(name)[0] or ""
        if found is not None:
            data, url = (data or url)[found.end() :], ""
        return _File(name, media_type, data, url, string(fields.get("file_id")))
    source = mapping(part.get("source"))
    if part.get("type") != "document" or source.get("type") not in ("base64", "url", "file"):
        return None
    name, media_type = string(part.get("title")), string(source.get("media_type"))
    return _File(name, media_type, *(string(source.get(key)) for key in ("data", "url", "file_id")))


def file_part(part: Mapping[str, Any], to: ApiName) -> dict[str, Any] | None:
    """Return a document in the format of the API ``to``, or None if the part is not a document or the API does not
    support it.
    """
    file = _read(part)
    if file is None:
        return None
    if to == "messages":
        source = _source(file)
        return source and {"type": "document", "source": source, **({"title": file.name} if file.name else {})}
    if _is_openai(part):
        # Parts of both OpenAI APIs have the same fields, and their IDs refer to the same file store.
        fields = dict(_openai_fields(part))
    else:
        fields = {"filename": file.name or ("document.pdf" if file.media_type == _PDF else "document")}
        if file.data:
            fields["file_data"] = f"data:{file.media_type or 'application/octet-stream'};base64,{file.data}"
        elif file.url:
            fields["file_url"] = file.url
    if to == "chat":
        fields.pop("file_url", None)
    if not fields.keys() & {"file_data", "file_url", "file_id"}:
        return None
    return {"type": "file", "file": fields} if to == "chat" else {"type": "input_file", **fields}


def _source(file: _File) -> dict[str, Any] | None:
    """Return the source of a PDF, a plain-text file or a URL for the Messages API, or None for any other document."""
    if file.data and file.media_type == _PDF:
        return {"type": "base64", "media_type": _PDF, "data": file.data}
    if file.data and file.media_type.startswith("text/"):
        try:
            text = b64decode(file.data, validate=True).decode()
        except ValueError:
            return None
        return {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "url", "url": file.url} if file.url else None


def described(part: Mapping[str, Any]) -> str:
    """Return the line of text that replaces a part. It names the part's kind, its name or media type, and its size."""
    kind = string(part.get("type"))
    noun = next((noun for piece, noun in _NOUNS if piece in kind), "")
    noun = noun or (kind if _PLAIN_NAME.fullmatch(kind) else "part")
    audio, source = mapping(part.get("input_audio")), mapping(part.get("source"))
    file = _read(part) or _File(
        media_type=string(source.get("media_type")) or string(audio.get("format")),
        data=string(source.get("data")) or string(audio.get("data")),
        id=string(source.get("file_id")) or string(part.get("file_id")),
    )
    name = " ".join((file.name or file.url or file.id or file.media_type).split())[:_MAX_NAME]
    size = _size(len(file.data) * 3 // 4 - file.data[-2:].count("=")) if file.data else ""
    return f"[{', '.join(piece for piece in (f'{noun} {name}'.strip(), size, 'not shown') if piece)}]"


def _size(count: int) -> str:
    if count < 1_000:
        return f"{count} B"
    return f"{count / 1_000:.0f} kB" if count < 999_500 else f"{count / 1_000_000:.1f} MB"


def legible(block: Mapping[str, Any]) -> str:
    """Return a block of an unknown type as JSON, without ciphertext, and with binary parts replaced by descriptions."""
    return dump({key: _legible(value) for key, value in block.items() if key not in _SEALED})


def _legible(value: Any) -> Any:
    if isinstance(value, list):
        return [_legible(item) for item in value]
    if not isinstance(value, dict):
        return value
    if mapping(value.get("source")).get("type") == "base64":
        return described(value)
    return {key: _legible(inner) for key, inner in value.items() if key not in _SEALED}
