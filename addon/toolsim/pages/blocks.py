"""Separates a model's text into prose and call blocks, as the proxy does for answers."""

from __future__ import annotations

from collections.abc import Iterator

from toolsim.response.calls_in_reasoning import Thoughts
from toolsim.response.segments import Block, Oversize
from toolsim.response.sentinel import Sentinel


def prose_and_blocks(text: str, tag: str = "tool_call") -> Iterator[tuple[str, bool]]:
    """Yield the consecutive parts of a text, each with a flag that indicates whether the part may be a call."""
    parser = Thoughts(Sentinel(tag), lambda: Sentinel(tag))
    prose: list[str] = []
    for piece in [*parser.feed(text), *parser.finish()]:
        match piece:
            case Block():
                if prose:
                    yield "".join(prose), False
                yield piece.raw, True
                prose = []
            case Oversize():
                prose.append(piece.raw)
            case str():
                prose.append(piece)
    if prose:
        yield "".join(prose), False
