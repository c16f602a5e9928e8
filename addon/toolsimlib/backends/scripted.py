"""A scripted text-only model: what a model would write, without one.

It sees what any text-only backend sees, and nothing else: the transcript. From the tool catalogue in it, it calls the
forced tool, or else the first, with arguments made from the tool's schema; once it sees the output, it answers in
words. It says in its words that it is scripted. Equal transcripts give equal answers.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolsimlib.conversation import ClientRequest, Message, Text
from toolsimlib.events import BackendEvent, Closed, Counted, Finished, Opened, TextDelta, Usage
from toolsimlib.request.example import example_arguments
from toolsimlib.wire.dialect import CHAT, RESPONSES

MODEL = "toolsim-scripted"
HEADING = "# CLIENT TOOL CATALOG"

# Short enough that tags, names and escapes are cut in the middle, as a model's tokens cut them.
_PIECE = 7
_MAX_QUOTE = 300

_ENTRY = re.compile(r"^- (?P<name>\S+)(?: \[strict\])?\n  parameters: (?P<parameters>\{.*\})$", re.MULTILINE)
_BLOCK = re.compile(r'^<(?P<tag>[^<>\s]+)>\{"name":', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the transcript, as text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What the catalogue offers to call: the sentinel's tag, and the forced or first tool with its schema."""

    tag: str
    name: str
    parameters: Mapping[str, Any]


class ScriptedBackend:
    """The scripted model as a backend for the loopback; reads Responses bodies and chat bodies."""

    apis = (RESPONSES, CHAT)

    async def start(self) -> None:
        """Need nothing."""

    async def stop(self) -> None:
        """Own nothing."""

    async def models(self) -> Sequence[str]:
        """Return its one name."""
        return [MODEL]

    async def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        """Answer one request; its tokens are words, and counted as such."""
        transcript = read(request)
        yield Opened(model=request.form.model or MODEL)
        text = write(transcript)
        for piece in pieces(text):
            yield TextDelta(piece)
        heard, spoken = sum(len(said.text.split()) for said in transcript), len(text.split())
        yield Finished("stop")
        yield Counted(Usage(input_tokens=heard, output_tokens=spoken, total_tokens=heard + spoken))
        yield Closed()


def read(request: ClientRequest) -> list[Said]:
    """Return the transcript: the instructions, then the messages, as text."""
    instructions = [Said("system", request.instructions)] if request.instructions else []
    messages = [item for item in request.items if isinstance(item, Message)]
    return instructions + [Said(message.role, _text(message)) for message in messages]


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Text))


def pieces(text: str) -> Iterator[str]:
    """Cut a text as a model streams it."""
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def write(transcript: Sequence[Said]) -> str:
    """Return the scripted model's whole answer, call blocks included."""
    outputs = _outputs(transcript)
    if outputs:
        quoted = "; ".join(outputs)[:_MAX_QUOTE]
        return f"I am toolsim's scripted backend, not a model. The tool answered: {quoted}"
    offer = find_offer(transcript)
    if offer is None:
        return "I am toolsim's scripted backend, not a model. I was offered no tool, so all I can do is to say so."
    arguments = json.dumps(example_arguments(offer.parameters))
    call = json.dumps({"name": offer.name, "arguments": arguments})
    return f"<{offer.tag}>{call}</{offer.tag}>"


def _outputs(transcript: Sequence[Said]) -> list[str]:
    """Return the outputs that have come in since the assistant last spoke."""
    outputs: list[str] = []
    for said in reversed(transcript):
        if said.role == "assistant":
            break
        if said.role == "user":
            records = re.findall(r"^\[function_call_output .*?\boutput=(.*)\]\s*$", said.text, re.MULTILINE)
            outputs[:0] = records
    # What is quoted must not become a call.
    return [output.replace("<", "‹") for output in outputs]


def find_offer(transcript: Sequence[Said]) -> Offer | None:
    """Read the catalogue out of the transcript; None when there is none.

    The tool to call is the catalogue's first, the forced one if one is forced; the tag is that of the example block.
    What the client can word freely is indented in a catalogue, so all lines of interest start at the margin.
    """
    for said in transcript:
        catalogue = said.text[said.text.find(HEADING) :] if HEADING in said.text else ""
        entry, block = _ENTRY.search(catalogue), _BLOCK.search(catalogue)
        if entry is not None and block is not None:
            with contextlib.suppress(ValueError, RecursionError):
                return Offer(block["tag"], entry["name"], json.loads(entry["parameters"]))
    return None
