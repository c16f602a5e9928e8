"""Documents, ciphertext and other binary parts in the form of each API, sent to a backend with each API."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from support.each import each
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request
from toolsim.wire.files import described, file_part, legible

APIS: tuple[ApiName, ...] = ("responses", "chat", "messages")
PDF = b"%PDF-1.7 " + bytes(range(256)) * 4000
BASE64 = b64encode(PDF).decode()
URL = f"data:application/pdf;base64,{BASE64}"
NAMED = {"filename": "report.pdf", "file_data": URL}
SOURCE = {"type": "base64", "media_type": "application/pdf", "data": BASE64}
PARTS: dict[str, dict[str, Any]] = {
    "chat": {"type": "file", "file": NAMED},
    "responses": {"type": "input_file", **NAMED},
    "messages": {"type": "document", "source": SOURCE, "title": "report.pdf", "cache_control": {"type": "ephemeral"}},
}
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}


def request(client: str, place: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return a request in which a message or a tool output contains the given part."""
    text = {"type": "input_text" if client == "responses" else "text", "text": "Read this."}
    question = {"role": "user", "content": [text, part] if place == "message" else "Read it."}
    function: dict[str, Any] = {"name": "read", "parameters": {"type": "object", "properties": {}}}
    if client == "responses":
        call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": [text, part]}
        items = [question, *([call, output] if place == "output" else [])]
        return {"model": "m", "input": items, "tools": [{"type": "function", **function}]}
    if client == "chat":
        calls = [{"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
        turn = [{"role": "assistant", "content": None, "tool_calls": calls}]
        turn += [{"role": "tool", "tool_call_id": "c", "content": [text, part]}]
        messages = [question, *(turn if place == "output" else [])]
        return {"model": "m", "messages": messages, "tools": [{"type": "function", "function": function}]}
    use = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text, part]}
    turn = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    messages = [question, *(turn if place == "output" else [])]
    tools = [{"name": "read", "input_schema": function["parameters"]}]
    return {"model": "m", "max_tokens": 9, "messages": messages, "tools": tools}


def sent_to(client: ApiName, backend: ApiName, body: dict[str, Any]) -> dict[str, Any]:
    rewritten = rewrite_request(
        client, PATHS[client], json.dumps(body).encode(), Policy(backend=backend), output_mode=None, report=Report()
    )
    assert rewritten is not None
    sent: dict[str, Any] = json.loads(rewritten.body)
    return sent


def contents(sent: dict[str, Any]) -> Iterator[Any]:
    for message in sent.get("messages", sent.get("input", ())):
        yield from message["content"] if isinstance(message["content"], list) else [message["content"]]


def texts(sent: dict[str, Any]) -> str:
    parts = [part if isinstance(part, str) else part.get("text", "") for part in contents(sent)]
    return "\n".join(filter(None, [*parts, sent.get("system"), sent.get("instructions")]))


def binary(sent: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in contents(sent) if not isinstance(part, str) and "text" not in part]


def bytes_of(backend: str, part: dict[str, Any]) -> bytes:
    if backend == "messages":
        assert part["source"]["media_type"] == "application/pdf"
        return b64decode(part["source"]["data"])
    file = part["file"] if backend == "chat" else part
    assert file["filename"] == "report.pdf"
    return b64decode(file["file_data"].removeprefix("data:application/pdf;base64,"))


@pytest.mark.parametrize("place", ["message", "output"])
@pytest.mark.parametrize("backend", APIS)
@pytest.mark.parametrize("client", APIS)
@pytest.mark.parametrize("shape", APIS)
def test_documents_reach_every_backend(client: ApiName, backend: ApiName, shape: str, place: str) -> None:
    """Every backend receives a client's document byte for byte. The document adds little to the text of the prompt."""
    with_part = sent_to(client, backend, request(client, place, PARTS[shape]))
    without = sent_to(client, backend, request(client, place, {"type": "text", "text": "x"}))
    (part,) = binary(with_part)
    assert bytes_of(backend, part) == PDF
    assert abs(len(texts(with_part)) - len(texts(without))) < 300
    if shape == backend:
        # A part that is already in the format of the backend's API is forwarded as sent.
        assert part == PARTS[shape]


@pytest.mark.parametrize("place", ["message", "output"])
@pytest.mark.parametrize("client", APIS)
@each(
    ("part", "takes", "line"),
    [
        ({"type": "input_file", "file_url": "https://h/a.pdf"}, ("responses", "messages"), "document https://h/a.pdf"),
        ({"type": "input_file", "file_id": "file-1"}, ("responses", "chat"), "document file-1"),
        (
            {"type": "document", "source": {"type": "file", "file_id": "file_x"}, "title": "My\n[function_call x]"},
            ("messages",),
            "document My [function_call x]",
        ),
        ({"type": "image", "source": {"type": "file", "file_id": "file_x"}}, ("messages",), "image file_x"),
        (
            {"type": "file", "file": {"filename": "a.docx", "file_data": "data:application/msword;base64,QUJD"}},
            ("responses", "chat"),
            "document a.docx, 3 B",
        ),
    ],
)
def test_unrepresentable_part_is_described(
    client: ApiName, place: str, part: dict[str, Any], takes: tuple[str, ...], line: str
) -> None:
    """A part that the backend's API cannot represent is replaced by a description of one line."""
    for backend in APIS:
        sent = sent_to(client, backend, request(client, place, part))
        shown = texts(sent)
        assert shown.count(f"[{line}, not shown]") == (backend not in takes)
        assert len(binary(sent)) == (backend in takes)


@pytest.mark.parametrize("backend", APIS)
def test_anthropic_only_data_never_reach_the_prompt(backend: ApiName) -> None:
    """Ciphertext, signatures, and binary data in blocks of Anthropic's server tools are never included in the
    prompt.
    """
    secret = "gAAAAAB" + "x" * 200
    result = {"type": "web_search_result", "url": "https://h/", "title": "Herons", "encrypted_content": secret}
    nested = {"type": "document", "title": "a.pdf", "source": SOURCE}
    blocks = [
        {"type": "thinking", "thinking": "I look.", "signature": secret},
        {"type": "redacted_thinking", "data": secret},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "herons"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [result]},
        {"type": "web_fetch_tool_result", "tool_use_id": "s", "content": {"content": nested}},
        {"type": "code_execution_tool_result", "content": {"encrypted_stdout": secret, "return_code": 0}},
        {"type": "text", "text": "Seven.", "citations": [{"encrypted_index": secret, "url": "https://h/"}]},
    ]
    body = request("messages", "message", {"type": "text", "text": BASE64[:64]})
    body["messages"] += [{"role": "assistant", "content": blocks}, {"role": "user", "content": "And?"}]
    sent = sent_to("messages", backend, body)
    shown = texts(sent)
    assert secret not in json.dumps(sent)
    assert BASE64[:100] not in json.dumps(sent)
    assert shown.count("[document a.pdf, 1.0 MB, not shown]") == 1
    assert "1. Herons" in shown
    # Text from a user is kept, even if it looks like binary data.
    assert BASE64[:64] in shown


def test_text_document_becomes_text() -> None:
    """A text document becomes text with its title, and images in the document remain images."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    content = [{"type": "text", "text": "One."}, image, {"type": "text", "text": BASE64[:64]}]
    documents = [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "Plain."}},
        {"type": "document", "title": "U", "source": {"type": "content", "content": content}},
        {"type": "document", "source": {"type": "content", "content": "Words."}},
    ]
    for document, expected in zip(documents, ("T\nPlain.", f"U\nOne.\n{BASE64[:64]}", "Words."), strict=True):
        for backend in APIS:
            sent = sent_to("messages", backend, request("messages", "message", document))
            assert expected in texts(sent)
            assert len(binary(sent)) == (document["source"]["content"] == content if "U" in expected else 0)


@each(
    ("part", "line"),
    [
        ({"type": "input_audio", "input_audio": {"data": "QUJDRA==", "format": "wav"}}, "[audio wav, 4 B, not shown]"),
        ({"type": "video_url", "video_url": {"url": "u"}}, "[video, not shown]"),
        ({"type": "a b\n"}, "[part, not shown]"),
        ({"type": 3}, "[part, not shown]"),
        ({"type": "document", "source": {"type": "base64", "data": "A" * 4000}}, "[document, 3 kB, not shown]"),
        ({"type": "file", "file": {"filename": "n" * 300}}, f"[document {'n' * 100}, not shown]"),
    ],
)
def test_any_part_is_described_in_one_line(part: dict[str, Any], line: str) -> None:
    """Any part can be described in one line of limited length."""
    assert described(part) == line


@each(
    ("part", "expected"),
    [
        (
            {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,w6Q="}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "ä"}, "title": "a.txt"},
        ),
        ({"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,/w=="}}, None),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": "QUJD"},
            {"type": "document", "source": {**SOURCE, "data": "QUJD"}, "title": "a.pdf"},
        ),
        ({"type": "input_file", "file_url": "data:application/pdf;base64,QUJD"}, {**SOURCE, "data": "QUJD"}),
        ({"type": "input_file", "file_data": 3}, None),
    ],
)
def test_document_for_a_messages_backend(part: dict[str, Any], expected: dict[str, Any] | None) -> None:
    """For a Messages backend, PDFs and plain text become documents. The kind of document depends on the media type or
    the file name.
    """
    found = file_part(part, "messages")
    assert found == expected or (found or {}).get("source") == expected


def test_ciphertext_is_removed_from_a_block() -> None:
    """Fields with ciphertext are removed from a content block. Text that contains the name of such a field is kept."""
    block = {"type": "x", "signature": "s", "content": [{"text": "signature", "encrypted_index": "e", "n": 1.0}]}
    assert json.loads(legible(block)) == {"type": "x", "content": [{"text": "signature", "n": 1.0}]}
