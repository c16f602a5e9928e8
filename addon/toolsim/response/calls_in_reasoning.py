"""Finds calls in reasoning, whether the model writes the reasoning into its text or the server sends it separately.

Reasoning normally contains no calls, but some models, such as Qwen3.5 and Kimi K2, sometimes make a call before they
close their reasoning. Tagged blocks in reasoning therefore count as calls if

1. the reasoning ends with the blocks, with only whitespace after and between them;
2. the answer contains only whitespace after the reasoning, and no other text, call or item;
3. the answer ended normally, and was not cut off.

A block that is followed by more text is only a mention of a call. A possible call is held back until it is known
whether these conditions are met. Untagged calls in reasoning do not count.

``Thoughts`` finds reasoning that the model writes into its text, such as ``<think>…</think>``. It recognizes the
markers of all known model families, but only before the first visible character of the answer. ``CallsInReasoning``
reads reasoning that the server sends separately. It moves calls at the end of the reasoning into the text of the
answer, which is otherwise empty.
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
    "[THINK]": "[/THINK]",  # Mistral models.
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",  # MiniMax models.
    "<longcat_think>": "</longcat_think>",
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command models.
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus.
    "◁think▷": "◁/think▷",  # Kimi models.
    "<|channel>thought": "<channel|>",  # Gemma models.
    "<|channel|>analysis<|message|>": "<|end|>",  # gpt-oss.
    "<|start|>assistant<|channel|>analysis<|message|>": "<|end|>",
}
"""The markers around reasoning in a model's text. Maps opening markers to closing markers."""

_LONGEST = max(map(len, THOUGHTS))
_SPACE = re.compile(r"\s*+")


def thought_at(text: str, at: int, *, final: bool = True) -> str | None:
    """Return the opening marker of reasoning that begins at ``at``, or "" if there is no marker. Returns None if more
    text is needed to decide.
    """
    rest = text[at : at + _LONGEST]
    found = next((opening for opening in THOUGHTS if rest.startswith(opening)), "")
    is_undecided = not found and not final and any(opening.startswith(rest) for opening in THOUGHTS)
    return None if is_undecided else found


class LastCalls:
    """The tagged blocks at the end of the reasoning received so far, with the whitespace and markers around them.

    ``takes_bare``: whether to include blocks that might only mention a tag (``Block.is_bare``).
    """

    def __init__(self, *, takes_bare: bool) -> None:
        self._takes_bare = takes_bare
        self._held: list[Block | FenceMark | str] = []

    def __len__(self) -> int:
        return len(self._held)

    def take(self, segments: Iterable[Segment | BrokenCall]) -> list[str]:
        """Read segments of the reasoning, hold back the blocks at its end, and return all other text."""
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
        """Read text that follows the held-back blocks. If the text is visible, return the blocks as text,
        followed by this text.

        ``is_text``: False for the closing marker of the reasoning, which is held back like whitespace.
        """
        if self._held and (not is_text or text.isspace()):
            self._held.append(text)
            return []
        return [*self.as_text(), text] if text else []

    def as_text(self) -> list[str]:
        """Return the held-back blocks and the text between them as text, and clear them."""
        held, self._held = self._held, []
        return [segment if isinstance(segment, str) else segment.raw for segment in held]

    def as_calls(self) -> list[Block | FenceMark]:
        """Return the held-back blocks as possible calls, and clear them. The text between them becomes ``FenceMark``s,
        which are dropped if the blocks are calls.
        """
        held, self._held = self._held, []
        return [FenceMark(segment, opening=False) if isinstance(segment, str) else segment for segment in held]


class Thoughts(ParserWrapper[Parser, LastCalls]):
    """Finds reasoning at the start of the text, such as ``<think>…</think>``, and passes the rest of the text to
    ``inner``.

    ``new``: creates a parser for the text of each piece of reasoning.
    """

    def __init__(self, inner: Parser, new: Callable[[], Parser]) -> None:
        super().__init__(inner, LastCalls(takes_bare=False))
        self._new = new
        self._thought: Parser | None = None  # The parser of the current reasoning, or None outside reasoning.
        self._end = ""  # The closing marker of the current reasoning.
        self._text = ""  # Text that may be the beginning of a marker, and is read again with the next chunk.
        self._is_over = False  # Whether the answer has started. From then on, reasoning is not recognized.

    @property
    def in_block(self) -> bool:
        """Whether text is held back because it may be a call."""
        return super().in_block or (self._thought is not None and self._thought.in_block)

    def feed(self, text: str) -> Sequence[Segment]:
        """Read the next chunk of text, and return the segments that are now complete."""
        return self._inner.feed(text) if self._is_over else self._read(self._text + text)

    def finish(self, *, cut: bool = False) -> Sequence[Segment | BrokenCall]:
        """Return the remaining segments at the end of the text. Do not call ``feed`` afterwards."""
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
        """Return the position where the closing marker may begin at the end of ``text``, or the length of ``text`` if
        the marker cannot begin there.
        """
        sizes = range(min(len(self._end) - 1, len(text) - start), 0, -1)
        return len(text) - next((size for size in sizes if text.endswith(self._end[:size])), 0)


class CallsInReasoning:
    """Moves the calls at the end of one choice's reasoning into the choice's text, where the answer's parser finds
    them.

    ``is_over``: true once no further event would be changed. ``take`` must not be called afterwards. ``has_found``:
    whether calls have been moved.
    """

    def __init__(self, sentinel: Parser) -> None:
        self._sentinel = sentinel
        self._like = ReasoningDelta("")  # The latest reasoning delta, used as a template for further deltas.
        self._calls = LastCalls(takes_bare=True)
        self.is_over = False
        self.has_found = False

    def take(self, event: BackendEvent) -> list[BackendEvent]:
        """Process one event. Do not call this method once ``is_over`` is true."""
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
        """Return the held-back calls as text of the answer. If the answer was cut off or has other content (``cut``),
        return them as reasoning.
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
