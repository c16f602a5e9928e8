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

from toolsimlib.errors import BadRequest
from toolsimlib.events import BackendEvent, Closed, Counted, Finished, Opened, TextDelta, Usage

MODEL = "toolsim-scripted"
HEADING = "# CLIENT TOOL CATALOG"

# Short enough that tags, names and escapes are cut in the middle, as a model's tokens cut them.
_PIECE = 7
# Far above any catalogue's need; a schema that refers to itself would have no end otherwise.
_MAX_DEPTH = 12
_MAX_NODES = 2_000
_MAX_QUOTE = 300

_BLOCK = re.compile(r'<([A-Za-z_][\w.-]*)>\s*\{\s*"name"\s*:\s*"([^"\\]+)"')
_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


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

    chat = True

    async def start(self) -> None:
        """Need nothing."""

    async def stop(self) -> None:
        """Own nothing."""

    async def models(self) -> Sequence[str]:
        """Return its one name."""
        return [MODEL]

    async def answer(self, body: Mapping[str, Any]) -> AsyncGenerator[BackendEvent]:
        """Answer one request body; its tokens are words, and counted as such. Raises errors.BadRequest."""
        transcript = read(body)
        model = body.get("model")
        yield Opened(model=model if isinstance(model, str) and model else MODEL)
        text = write(transcript)
        for piece in pieces(text):
            yield TextDelta(piece)
        heard, spoken = sum(len(said.text.split()) for said in transcript), len(text.split())
        yield Finished("stop")
        yield Counted(Usage(input_tokens=heard, output_tokens=spoken, total_tokens=heard + spoken))
        yield Closed()


def read(body: Mapping[str, Any]) -> list[Said]:
    """Return the transcript of a Responses body (``instructions``, ``input``) or a chat body (``messages``)."""
    items = body.get("input", body.get("messages"))
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise BadRequest("expected 'input' or 'messages'", "input")
    transcript = []
    if isinstance(instructions := body.get("instructions"), str):
        transcript.append(Said("system", instructions))
    said = (item for item in items if isinstance(item, dict) and isinstance(item.get("role"), str))
    return transcript + [Said(item["role"], _text(item.get("content"))) for item in said]


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


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
    arguments = json.dumps(example(offer.parameters))
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

    The catalogue's example block shows the sentinel's tag and the tool to call: the forced one, or else the first. The
    schema is the first JSON object at the end of a line, from the line on that begins with that tool's name.
    """
    catalogue = next((said.text[at:] for said in transcript if (at := said.text.find(HEADING)) >= 0), "")
    shown = _BLOCK.search(catalogue)
    if shown is None:
        return None
    tag, name = shown.groups()
    entry = re.search(rf"^\W*{re.escape(name)}\b", catalogue, re.MULTILINE)
    for line in catalogue[entry.start() :].splitlines() if entry else ():
        start = line.find("{")
        with contextlib.suppress(ValueError, RecursionError):
            schema = json.loads(line[start:]) if start >= 0 else None
            if isinstance(schema, dict) and "arguments" not in schema:
                return Offer(tag, name, schema)
    return Offer(tag, name, {})


def example(schema: object) -> Any:
    """Make a value from a JSON schema: enough for types, enums, bounds, formats and local references.

    ``pattern`` and the conditional keywords are not obeyed; a schema that refers to itself ends in null.
    """
    return _Sampler(schema).value(schema, "value", 0)


class _Sampler:
    def __init__(self, root: object) -> None:
        self._root = root
        self._nodes = 0

    def value(self, schema: object, name: str, depth: int) -> Any:
        self._nodes += 1
        if depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            return None
        if not isinstance(schema, Mapping):
            return f"example {name}"
        if "const" in schema:
            return schema["const"]
        for keyword in ("enum", "examples"):
            if isinstance(values := schema.get(keyword), list) and values:
                return values[0]
        if "default" in schema:
            return schema["default"]
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(self._resolve(reference), name, depth + 1)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(options := schema.get(keyword), list) and options:
                named = [option for option in options if option != {"type": "null"}] or options
                return self.value(named[0], name, depth + 1)
        match self._type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, name, depth)
            case "integer":
                return int(self._number(schema))
            case "number":
                return self._number(schema)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._string(schema, name)

    def _type(self, schema: Mapping[str, Any]) -> object:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        if kind is None and "properties" in schema:
            kind = "object"
        if kind is None and schema is self._root:
            kind = "object"
        return kind

    def _resolve(self, reference: str) -> object:
        found = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            properties = {}
        required = schema.get("required")
        names = required if isinstance(required, list) and required else list(properties)
        return {name: self.value(properties.get(name), name, depth + 1) for name in names if isinstance(name, str)}

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        count = _whole(schema.get("minItems"), 1)
        first = schema.get("prefixItems")
        if isinstance(first, list) and first:
            return [self.value(each, name, depth + 1) for each in first]
        if schema.get("maxItems") == 0:
            return []
        return [self.value(schema.get("items"), name, depth + 1) for _ in range(min(max(count, 1), 20))]

    @staticmethod
    def _number(schema: Mapping[str, Any]) -> int | float:
        number: int | float = 1
        step = _whole(schema.get("multipleOf"), 1)
        for keyword, shift in (("minimum", 0), ("exclusiveMinimum", 1)):
            bound = schema.get(keyword)
            if isinstance(bound, int | float) and not isinstance(bound, bool):
                number = max(number, bound + shift)
        for keyword, shift in (("maximum", 0), ("exclusiveMaximum", 1)):
            bound = schema.get(keyword)
            if isinstance(bound, int | float) and not isinstance(bound, bool):
                number = min(number, bound - shift)
        if step > 1 and number > 0:
            number = -(-number // step) * step
        return number

    @staticmethod
    def _string(schema: Mapping[str, Any], name: str) -> str:
        kind = schema.get("format")
        text = _FORMATS.get(kind, "") if isinstance(kind, str) else ""
        text = text or f"example {name}"
        text = text.ljust(min(_whole(schema.get("minLength"), 0), 1000), ".")
        return text[: _whole(schema.get("maxLength"), len(text))]


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
