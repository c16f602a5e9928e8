"""Renders the page for an answer: the model's text, the verdicts on its blocks, and the answer that the client
received.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolsim.core.events import PassThrough, StructuredCall
from toolsim.core.report import code_of, remedy, tallies
from toolsim.pages.blocks import prose_and_blocks
from toolsim.pages.json_text import compact, pretty
from toolsim.pages.page import Page, clip, plural
from toolsim.pages.read_answer import Piece, ReadAnswer, TextBlock, read_answer
from toolsim.wire.json_fields import count, mapping, mappings, string

_BAR = "│ "
_INPUT_BAR = "┆ "
_MAX_ENTRIES = 20

# Explanations of the codes in reports.
_CODES = {
    "MALFORMED_JSON": "its JSON cannot be parsed",
    "SCHEMA_MISMATCH": "its arguments do not match the tool's schema",
    "UNKNOWN_TOOL": "the tool is not on offer",
    "MASKED_TOOL": "the request does not allow the tool",
    "ARGUMENTS_TOO_LARGE": "its arguments are too large",
}


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts about an answer in addition to its body. Times are in seconds."""

    status: int = 200
    report: Mapping[str, Any] | None = None
    """The value of ``flow.metadata["toolsim"]``, which may contain anything. Its verdicts are about the body from
    the backend.
    """
    received: bytes | None = None
    """The body from the backend if ``show_answer`` receives the body for the client, otherwise None."""
    own: bool = False
    """Whether ``show_answer`` receives the body from the backend, rather than the body for the client."""
    first_byte: float | None = None
    seconds: float | None = None


def show_answer(data: bytes, facts: AnswerFacts) -> str:
    """Return the page for an answer with the body ``data``. Takes linear time, and never raises an exception."""
    report = mapping(facts.report)
    answer = read_answer(data)
    page = Page()
    page.title("ANSWER", _facts(answer, facts, report))
    if not answer.known:
        _unreadable(page, data)
    received = read_answer(facts.received) if facts.received else None
    if received is not None and received.known and received.pieces:
        page.heading("THE MODEL WROTE")
        _choices(page, received, report)
        # If the parts of the backend's answer and the client's answer are equal, only field names and IDs were
        # rewritten.
        if received.pieces == answer.pieces and not received.calls:
            page.gap()
            page.line("The client got the same text.", 0)
        elif answer.pieces:
            page.heading("THE CLIENT GOT")
            _choices(page, answer, None)
    elif answer.pieces:
        page.heading("THE MODEL WROTE" if facts.own else "THE ANSWER")
        _choices(page, answer, report if facts.own or not report else None)
    elif answer.known and answer.error is None:
        page.heading("THE ANSWER")
        page.line("is empty.")
    _errors(page, answer, received)
    _verdicts(page, report)
    _missing(page, report, own=facts.own)
    return str(page)


def _facts(answer: ReadAnswer, facts: AnswerFacts, report: Mapping[str, Any]) -> Iterator[str]:
    yield str(facts.status)
    yield answer.model or string(report.get("model"))
    yield f"streamed in {plural(answer.events, 'event')}" if answer.events else "whole"
    yield _finish(answer, report)
    if usage := answer.usage:
        cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
        thought = f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else ""
        yield f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out{thought}"
    if facts.seconds is not None:
        first = f" (first byte {facts.first_byte:.2f} s)" if facts.first_byte is not None else ""
        yield f"{facts.seconds:.2f} s{first}"


def _finish(answer: ReadAnswer, report: Mapping[str, Any]) -> str:
    if answer.error is not None or report.get("error"):
        code = answer.error and (answer.error.code or answer.error.type)
        return f"failed: {string(report.get('error')) or code or 'error'}"
    if finish := string(report.get("finish")):
        return finish
    if answer.known and not answer.whole:
        return "not finished"
    reason = answer.reasons.get(0, "")
    return "tool_calls" if reason == "stop" and answer.calls else reason


def _unreadable(page: Page, data: bytes) -> None:
    if not data.strip():
        page.heading("THE ANSWER")
        page.line("The client received none of this text." if not data else "Only whitespace.")
        return
    page.heading("THE ANSWER", "in an unknown format")
    page.text(pretty(data.decode(errors="replace")))


# -- parts of an answer --


def _choices(page: Page, answer: ReadAnswer, report: Mapping[str, Any] | None) -> None:
    """Write the parts of all choices.

    For the answer from the backend, the verdicts in ``report`` are shown below the blocks. For the answer to the
    client, which contains no blocks, ``report`` is None.
    """
    for choice in sorted(answer.pieces):
        if len(answer.pieces) > 1:
            page.gap()
            page.line(f"choice {choice}")
        marks = _Marks(report, choice) if report is not None else None
        for piece in answer.pieces[choice]:
            page.gap()
            _piece(page, piece, marks)


def _piece(page: Page, piece: Piece, marks: _Marks | None) -> None:
    match piece:
        case TextBlock(kind="text"):
            if marks is None:
                page.text(piece.text.strip("\r\n"))
                return
            for part, verdict in marks.split(piece.text):
                if verdict is None:
                    if part.strip():
                        page.gap()
                        page.text(part.strip("\r\n"))
                else:
                    page.gap()
                    page.text(part, bar=_BAR)
                    page.text(f"╰─ {verdict}")
        case TextBlock():
            page.line(f"({piece.kind})")
            page.text(piece.text, bar=_BAR)
        case StructuredCall():
            name = f"{piece.namespace}.{piece.name}" if isinstance(piece.namespace, str) else piece.name
            page.line(f"→ {clip(name, 128)}" + (f"   {clip(piece.call_id, 80)}" if piece.call_id else ""))
            if piece.kind == "custom":
                page.text(piece.arguments, 2, bar=_INPUT_BAR)
            else:
                page.text(pretty(piece.arguments), 2)
        case PassThrough():
            page.line(f"({clip(string(piece.item.get('type')), 60)}, as sent by the backend)")
            page.text(pretty(compact(piece.item)), 2)


class _Marks:
    """Splits the text of one choice into prose and blocks.

    The report contains the offsets of the blocks. If there is no report, the blocks are found by their tags.
    """

    def __init__(self, report: Mapping[str, Any], choice: int) -> None:
        self._blocks = [block for block in mappings(report.get("blocks")) if block.get("choice", 0) == choice]
        self._judged = "blocks" in report
        self._next = 0
        self._at = 0

    def split(self, text: str) -> Iterator[tuple[str, str | None]]:
        """Yield the parts of the choice's next text, each with a description of its verdict, or None for prose."""
        if not self._judged:
            for piece, is_block in prose_and_blocks(text):
                yield piece, "a block" if is_block else None
            return
        done = 0
        while self._next < len(self._blocks):
            block = self._blocks[self._next]
            start, end = count(block, "start") - self._at, count(block, "end") - self._at
            if start >= len(text):
                break
            self._next += 1
            if done <= start < end <= len(text):
                yield text[done:start], None
                yield text[start:end], _verdict(block)
                done = end
        yield text[done:], None
        self._at += len(text)


def _verdict(block: Mapping[str, Any]) -> str:
    """Return a description of the verdict on a block, with its repairs and warnings."""
    words = [_spelled_out(verdict) for verdict in _texts(block.get("verdicts"))]
    for kind, title in (("untagged", "without a tag"), ("repairs", "repaired")):
        if codes := [code_of(found) for found in _texts(block.get(kind))]:
            words.append(f"{title}: {', '.join(codes)}")
    warnings = dict.fromkeys(code_of(warning) for warning in _texts(block.get("warnings")))
    if new := [_explained(code) for code in warnings if not any(code in word for word in words)]:
        words = [word.replace("✓", "⚠", 1) for word in words] + new
    return clip(" · ".join(words) or "no verdict", 1000)


def _texts(values: object) -> list[str]:
    return [string(value) for value in values] if isinstance(values, list) else []


def _explained(code: str) -> str:
    return f"{_CODES[code]} ({code})" if code in _CODES else code


def _spelled_out(verdict: str) -> str:
    kind, _, rest = verdict.partition(" ")
    match kind:
        case "call":
            return f"✓ call of {rest}"
        case "passed":
            return f"– {verdict}"
        case "text":
            return f"✗ left as text: {_explained(rest)}"
        case "failure":
            return f"✗ ends the answer with an error: {_explained(rest)}"
    return verdict


# -- the report --


def _errors(page: Page, answer: ReadAnswer, received: ReadAnswer | None) -> None:
    error = answer.error
    if error is not None:
        page.heading("ERROR", " · ".join(filter(None, (error.type, error.code, error.param))))
        page.text(error.message)
    if received is not None and received.error is not None and received.error != error:
        page.heading("THE BACKEND'S ERROR", received.error.code or "")
        page.text(received.error.message)


def _verdicts(page: Page, report: Mapping[str, Any]) -> None:
    lines = list(_report_lines(report))
    if lines:
        page.heading("REPORT")
        width = max(len(name) for name, _ in lines)
        for name, text in lines:
            page.text(f"{name.ljust(width)}  {text}")


def _report_lines(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for tally in tallies(report):
        if tally.entries and tally.key != "calls":
            count = len(tally.entries)
            more = f" and {count - _MAX_ENTRIES} more" if count > _MAX_ENTRIES else ""
            yield tally.title, ", ".join(clip(text, 200) for text in tally.entries[:_MAX_ENTRIES]) + more
            if tally.key == "warnings" and not report.get("retries"):
                yield from (("", text) for text in dict.fromkeys(filter(None, map(remedy, tally.entries))))
    if mismatches := _texts(report.get("mismatches")):
        yield "mismatches", clip("; ".join(mismatches[:_MAX_ENTRIES]), 1000)
    if cutoff := string(report.get("tool_cutoff")):
        yield "ended early", cutoff
    if report.get("truncated") is True and not report.get("dropped_calls"):
        yield "truncated", "the backend's answer was cut off"
    if profile := string(report.get("profile")):
        yield "profile", profile
    if (mode := string(report.get("mode"))) and mode != "openai-json":
        yield "output mode", mode


def _missing(page: Page, report: Mapping[str, Any], *, own: bool) -> None:
    """Write how many bytes of a stream were forwarded but not recorded."""
    missing = mapping(report.get("missing_bytes"))
    for side, whose in (("backend", "the backend's answer"), ("client", "the client's answer")):
        number = count(missing, side)
        if number and not (own and side == "client"):
            page.gap()
            page.line(f"⚠ {number:,} more bytes of {whose} were forwarded, but not recorded.", 0)
