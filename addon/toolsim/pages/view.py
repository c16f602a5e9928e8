"""Implements the content views ``toolsim`` and ``toolsim-prompt``, for mitmweb, the console and ``mitmdump -vvv``.

``toolsim`` renders a turn as a readable page, and is selected automatically. ``toolsim-prompt`` has to be selected by
name. It shows the prompt exactly as the model received it, including the entire manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mitmproxy.contentviews import Contentview, Metadata, SyntaxHighlight
from mitmproxy.http import HTTPFlow, Message, Request

from toolsim.proxy import route
from toolsim.proxy.metadata import NOTE, REPORT
from toolsim.proxy.mitmproxy12 import backup
from toolsim.wire.json_fields import mapping

NAME = "toolsim"
PROMPT_NAME = "toolsim-prompt"

# The priority of the view ``toolsim``. mitmproxy's own views return 1 for the content that suits them best.
_OURS = 2.0
_NOT_OURS = -1.0


class TurnView(Contentview):
    """Shows the request or the answer of an exchange as a page."""

    @property
    def name(self) -> str:
        """The name of the view in menus and commands."""
        return NAME

    @property
    def syntax_highlight(self) -> SyntaxHighlight:
        """No syntax highlighting, since the page has its own markup."""
        return "none"

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        """Return the page for a request or an answer."""
        # The modules with the pages are imported when they are first used, so that the proxy starts quickly.
        from toolsim.pages.show_answer import AnswerFacts, show_answer
        from toolsim.pages.show_request import RequestFacts, show_request

        flow, message = metadata.flow, metadata.http_message
        if not isinstance(flow, HTTPFlow):
            return show_request(data, RequestFacts())
        reported = report(flow)
        if isinstance(message, Request):
            original = backup.incoming_request(flow)
            return show_request(data, RequestFacts(body(original) if original is not None else None, reported))
        response = flow.response
        facts = AnswerFacts(
            status=response.status_code if response is not None else 0,
            report=reported,
            received=received(flow),
            own=_side(flow) == "backend",
            first_byte=_seconds(flow, response.timestamp_start if response is not None else None),
            seconds=_seconds(flow, response.timestamp_end if response is not None else None),
        )
        return show_answer(data, facts)

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        """Return a high priority for the bodies of exchanges, and for bodies that look like those of an API."""
        flow, message = metadata.flow, metadata.http_message
        if not isinstance(flow, HTTPFlow) or not isinstance(message, Message):
            return _NOT_OURS
        if report(flow) is not None:
            return _OURS
        if route.api_of(flow.request.method, flow.request.path) is None:
            return _NOT_OURS
        return _OURS if _looks_ours(data, message) else _NOT_OURS


def _looks_ours(data: bytes, message: Message) -> bool:
    if isinstance(message, Request):
        return data.lstrip()[:1] == b"{" and (b'"messages"' in data or b'"input"' in data)
    kind = message.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "text/event-stream" or (kind == "application/json" and data.lstrip()[:1] == b"{")


def report(flow: HTTPFlow) -> Mapping[str, Any] | None:
    """Return the report of a finished exchange, or None if toolsim did not handle the exchange."""
    found = flow.metadata.get(REPORT)
    return found if isinstance(found, dict) else None


def is_exchange(flow: HTTPFlow) -> bool:
    """Return whether a flow is an exchange with a model, even if toolsim did not change its request or answer."""
    return report(flow) is not None or route.api_of(flow.request.method, flow.request.path) is not None


def body(message: Message | None) -> bytes:
    """Return a message's body, decoded if possible, or b"" if there is no body."""
    content: bytes | None = message.get_content(strict=False) if message is not None else None
    return content or b""


def received(flow: HTTPFlow) -> bytes | None:
    """Return the backend's original answer. Return None if the flow itself contains it, or if it was not recorded."""
    response = backup.incoming_response(flow) if report(flow) is not None else None
    return body(response) if response is not None else None


def _side(flow: HTTPFlow) -> object:
    """Return the side ("client" or "backend") whose bodies a flow contains, or None if the flow does not record a side.

    A recording consists of two flows, which state their sides. After a flow has been reverted in mitmproxy, the side is
    "backend".
    """
    return (report(flow) or {}).get("side") or mapping(flow.metadata.get(NOTE)).get("side")


def _seconds(flow: HTTPFlow, until: float | None) -> float | None:
    began = flow.request.timestamp_start
    return max(until - began, 0.0) if until else None


class PromptView(Contentview):
    """Shows a request's prompt and an answer's model text, both verbatim."""

    @property
    def name(self) -> str:
        """The name of the view in menus and commands."""
        return PROMPT_NAME

    @property
    def syntax_highlight(self) -> SyntaxHighlight:
        """No syntax highlighting, since a prompt may contain several languages."""
        return "none"

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        """Return the prompt if the message is a request, or the model's text if it is an answer."""
        from toolsim.pages.show_prompt import show_prompt, show_words

        flow = metadata.flow
        if isinstance(metadata.http_message, Request) or not isinstance(flow, HTTPFlow):
            return show_prompt(data)
        written = received(flow)
        return show_words(data if written is None else written)

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        """Return a negative priority, because this view is only selected by name."""
        return _NOT_OURS


VIEWS = (TurnView(), PromptView())
