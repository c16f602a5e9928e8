"""Finds calls in reasoning, whether the model writes the reasoning into its text or the server sends it separately.

Reasoning normally contains no calls, but some models, such as Qwen3.5 and Kimi K2, sometimes make a call before they
end their thought. Tagged blocks in reasoning therefore count as calls if

1. the reasoning ends with the blocks, with only whitespace after and between them;
2. the answer contains only whitespace after the reasoning, and no other text, call or item;
3. the answer ended normally, and was not cut off.

A block that is followed by more text is only a mention of a call. A possible call is held back until this is decided.
Untagged calls in reasoning do not count.

``Thoughts`` finds reasoning in the text, between the markers of any model family, before the first visible character of
the answer. ``CallsInReasoning`` reads reasoning that the server sends separately. It moves calls at the end of the
reasoning into the text of the answer, which is otherwise empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from toolsim.core.events import (
    BackendEvent,
    Closed,
    Counted,
    Finished,
    NextMessage,
    Opened,
    ReasoningDelta,
    TextDelta,
)
from toolsim.core.plan import Plan
from toolsim.response.quotation import tagged_calls
from toolsim.response.segments import Block, BrokenCall, FenceMark, Fragment, Parser, ParserWrapper, Segment

IN_REASONING = "CALL_IN_REASONING"
"""The code of the warning that calls have been moved from the end of the reasoning into the text of the answer."""

THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[THINK]": "[/THINK]",  # Markers of Mistral models.
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",  # Markers of MiniMax models.
    "<longcat_think>": "</longcat_think>",
    "<|START_THINKING|>": "<|END_THINKING|>",  # Markers of Command models.
    "<|inner_prefix|>": "<|inner_suffix|>",  # Markers of Apertus.
    "◁think▷": "◁/think▷",  # Markers of Kimi models.
    "<|channel>thought": "<channel|>",  # Markers of Gemma models.
    "<|channel|>analysis<|message|>": "<|end|>",  # Markers of gpt-oss.
    "<|start|>assistant<|channel|>analysis<|message|>": "<|end|>",
}
"""Markers of thoughts; maps opening to closing markers."""

_LONGEST = max(map(len, THOUGHTS))
_SPACE = re.compile(r"\s*+")


def thought_at(text: str, at: int, *, final: bool = True) -> str | None:
    """Return the marker that opens a thought at ``at``, "" if no marker does, or None if more text is needed."""
    rest = text[at : at + _LONGEST]
    found = next((opening for opening in THOUGHTS if rest.startswith(opening)), "")
    is_undecided = not found and not final and any(opening.startswith(rest) for opening in THOUGHTS)
    return None if is_undecided else found


class LastCalls:
    """The blocks at the end of the reasoning so far, with the adjacent whitespace and markers.

    ``takes_bare``: whether to accept blocks that could also be a mention in a sentence (``Block.is_bare``).
    """

    def __init__(self, *, takes_bare: bool) -> None:
        self._takes_bare = takes_bare
        self._held: list[Block | FenceMark | str] = []

    def __len__(self) -> int:
        return len(self._held)

    def take(self, segments: Iterable[Segment | BrokenCall]) -> list[str]:
        """Process segments of the reasoning; return the segments that are certainly text."""
        out: list[str] = []
        for segment in segments:
            if (isinstance(segment, Block) and (self._takes_bare or not segment.is_bare)) or (
                isinstance(segment, FenceMark) and (self._held or segment.opening)
            ):
                self._held.append(segment)
            elif not isinstance(segment, Fragment):
                out += self.add(segment if isinstance(segment, str) else segment.raw)
        return out

    def add(self, text: str, *, is_text: bool = True) -> list[str]:
        """Process text that follows the held-back blocks. Return [] if the text is held back as well. Otherwise, return
        everything held back so far, followed by this text.

        ``is_text``: False for markers, which are held back like whitespace.
        """
        if self._held and (not is_text or text.isspace()):
            self._held.append(text)
            return []
        return [*self.as_text(), text] if text else []

    def as_text(self) -> list[str]:
        """Remove the held-back segments, and return them as text."""
        held, self._held = self._held, []
        return [segment if isinstance(segment, str) else segment.raw for segment in held]

    def as_calls(self) -> list[Block | FenceMark]:
        """Remove the held-back segments, and return them for use as calls. Text between the blocks is dropped if they
        are calls.
        """
        held, self._held = self._held, []
        return [FenceMark(segment, opening=False) if isinstance(segment, str) else segment for segment in held]


class Thoughts(ParserWrapper[Parser, LastCalls]):
    """Reads thoughts at the start of the text, and passes the text after them to ``inner``.

    ``new``: creates a parser for each thought.
    """

    def __init__(self, inner: Parser, new: Callable[[], Parser]) -> None:
        super().__init__(inner, LastCalls(takes_bare=False))
        self._new = new
        self._thought: Parser | None = None  # The parser of the open thought.
        self._end = ""  # The closing marker of the open thought.
        self._text = ""  # Undecided text, which may be the beginning of a marker.
        self._is_over = False  # Whether no further thought can follow.

    @property
    def in_block(self) -> bool:
        """Whether text is held back because it may be a call."""
        return super().in_block or (self._thought is not None and self._thought.in_block)

    def feed(self, text: str) -> Sequence[Segment]:
        """Return the segments that ``text`` completes."""
        return self._inner.feed(text) if self._is_over else self._read(self._text + text)

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. No text may be fed afterwards."""
        out: list[Segment | BrokenCall] = []
        if not self._is_over:
            out += self._read(self._text, final=True)
        if self._thought is not None:
            out += self._held.take(self._thought.finish(cut=cut))
        out += self._held.as_text() if cut else self._held.as_calls()
        return [*out, *self._inner.finish(cut=cut)]

    def _read(self, text: str, *, final: bool = False) -> Sequence[Segment]:
        out: list[Segment] = []
        at = 0
        while at < len(text):
            if self._thought is not None:
                found = text.find(self._end, at)
                end = found if found != -1 else len(text) if final else self._half_end(text, at)
                out += self._held.take(self._thought.feed(text[at:end]))
                at = end
                if found == -1:
                    break
                out += self._held.take(self._thought.finish(cut=True))
                out += self._held.add(self._end, is_text=False)
                self._thought = None
                at += len(self._end)
                continue
            found = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            out += self._held.add(text[at:found])
            at = found
            opening = thought_at(text, at, final=final)
            if opening is None:
                break
            out += self._held.as_text()
            if not opening:
                self._is_over = True
                return [*out, *self._inner.feed(text[at:])] if at < len(text) else out
            out.append(opening)
            at += len(opening)
            self._end = THOUGHTS[opening]
            self._thought = self._new()
        self._text = text[at:]
        return out

    def _half_end(self, text: str, start: int) -> int:
        """Return the start of an incomplete closing marker at the end of ``text``, or the length of ``text``."""
        sizes = range(min(len(self._end) - 1, len(text) - start), 0, -1)
        return len(text) - next((size for size in sizes if text.endswith(self._end[:size])), 0)


class CallsInReasoning:
    """Moves the calls at the end of one choice's reasoning into the choice's text, where the parser finds them.

    ``is_over``: whether all later events remain unchanged, so that they can bypass ``take``. ``has_found``: whether
    calls have been moved.
    """

    def __init__(self, sentinel: Parser) -> None:
        self._sentinel = sentinel
        self._like = ReasoningDelta("")  # The latest delta of the reasoning.
        self._calls = LastCalls(takes_bare=True)
        self.is_over = False
        self.has_found = False

    def take(self, event: BackendEvent) -> list[BackendEvent]:
        """Process one event. This method must not be called once ``is_over`` is true."""
        match event:
            case ReasoningDelta():
                self._like = event
                return self._reasoning(self._sentinel.feed(event.text))
            case Opened() | Counted() | NextMessage():
                return [event]
            case TextDelta(text=text) if not text.strip():
                return [event]
            case Finished(reason="stop") | Closed():
                return [*self._end(cut=False), event]
        return [*self._end(cut=True), event]

    def _reasoning(self, segments: Sequence[Segment | BrokenCall]) -> list[BackendEvent]:
        text = "".join(self._calls.take(segments))
        return [replace(self._like, text=text)] if text else []

    def _end(self, *, cut: bool) -> list[BackendEvent]:
        """Return the held-back calls: as reasoning if the answer was ``cut`` off or has other content, otherwise as
        text.
        """
        self.is_over = True
        events = self._reasoning(self._sentinel.finish(cut=cut))
        held = "".join(self._calls.as_text())
        self.has_found = bool(held) and not cut
        if held:
            events.append(TextDelta(held, self._like.choice) if self.has_found else replace(self._like, text=held))
        return events


def calls_in_reasoning_for(plan: Plan) -> CallsInReasoning | None:
    """Return the parser for an answer's reasoning, or None if no tools are offered or several choices are requested."""
    if not plan.tools or plan.choices != 1:
        return None
    return CallsInReasoning(Thoughts(tagged_calls(plan), lambda: tagged_calls(plan)))
