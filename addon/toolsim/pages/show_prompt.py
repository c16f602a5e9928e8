"""Shows the prompt that the model received, including the manifest, and the model's text, both verbatim."""

from __future__ import annotations

from toolsim.core.conversation import Message
from toolsim.pages.page import Page
from toolsim.pages.read_answer import read_answer
from toolsim.pages.show_request import conversation_rows, part_text, read_conversation


def show_prompt(data: bytes) -> str:
    """Return the prompt in the body of a request, or the body itself if it contains no prompt.

    Never raises an exception.
    """
    page = Page()
    items = read_conversation(data)
    for item in items:
        page.gap()
        if isinstance(item, Message):
            page.verbatim(f"▌{item.role}")
            for part in item.parts:
                page.verbatim(part_text(part))
        else:
            # Structured calls and outputs are shown as text, as if the model had no tools of its own.
            for who, text in conversation_rows([item]):
                page.verbatim(f"▌{who}\n{text}")
    if not items:
        page.verbatim(data.decode(errors="replace"))
    return str(page)


def show_words(data: bytes) -> str:
    """Return the text in an answer's body, or the body itself if it contains no text. Never raises an exception."""
    page = Page()
    answer = read_answer(data)
    for choice in sorted(answer.pieces):
        page.gap()
        page.verbatim(answer.text(choice))
    if not any(map(answer.text, answer.pieces)):
        page.verbatim(data.decode(errors="replace"))
    return str(page)
