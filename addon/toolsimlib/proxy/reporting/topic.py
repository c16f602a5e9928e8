"""What a request is about, for one line of a list: what the user wrote, which turn it is, of which conversation.

The APIs have no field for that: each request holds the whole conversation so far. A turn starts with the user's
message; each answer to calls is one more step of it. Two requests belong to one conversation if the second starts with
everything that the first one held. So a history is identified by a chain of digests, one per item. Instructions are
left out, since clients put the time of day in them; long texts count by their beginnings, since clients append to them.
Identical conversations count as one until they diverge.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from toolsimlib.conversation import Call, CallOutput, Item, Message

MAX_WORDS = 60
"""Characters of the user's message: what a column of a list shows."""

# Enough to recognise a conversation, and little enough for a history of 100,000 items.
_MAX_ITEMS = 2_000
_MAX_TEXT = 200
# Requests that are cached, at some 100 bytes each.
_MAX_KNOWN = 10_000
# Programs add context to what their users write, in tags: <environment_details>…</environment_details>.
_TAG = re.compile(r"</?([A-Za-z_][\w-]*)(?: [^<>]{0,200})?>")
_MAX_SEARCHED = 8_000


@dataclass(frozen=True, slots=True)
class Topic:
    """``words``: the user's latest message, shortened. ``turn`` and ``step`` count from 1. ``keys``: the digests."""

    words: str = ""
    turn: int = 1
    step: int = 1
    keys: tuple[bytes, ...] = ()

    def where(self, conversation: int) -> str:
        """Return the position of the request in that conversation, such as "#3 turn 2 step 4"."""
        return f"#{conversation} turn {self.turn}" + (f" step {self.step}" if self.step > 1 else "")


def topic_of(items: Sequence[Item]) -> Topic:
    """Return what a request with these items is about."""
    turn, step, words = 0, 1, ""
    before: Item | None = None
    for item in items:
        if isinstance(item, Message) and item.role == "user":
            if not (isinstance(before, Message) and before.role == "user"):
                turn, step = turn + 1, 1
            words = item.text or words
        elif isinstance(item, CallOutput) and not isinstance(before, CallOutput):
            step += 1
        before = item if not (isinstance(item, Message) and item.role in ("system", "developer")) else before
    return Topic(_shorten(words), max(turn, 1), step, tuple(_keys(items)))


class Conversations:
    """Numbers conversations in the order in which they start."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._count = 0

    def number(self, topic: Topic) -> int:
        """Return the number of the conversation that a request continues, or a new one."""
        known = (self._known[key] for key in reversed(topic.keys) if key in self._known)
        number = next(known, 0)
        if not number:
            self._count += 1
            number = self._count
        if topic.keys:
            self._known[topic.keys[-1]] = number
            self._known.move_to_end(topic.keys[-1])
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return number


def _keys(items: Sequence[Item]) -> Iterator[bytes]:
    key = b""
    for item in items[:_MAX_ITEMS]:
        match item:
            case Message(role="user" | "assistant"):
                text = f"{item.role} {item.text[:_MAX_TEXT].strip()}"
            case Call() | CallOutput():
                text = f"{type(item).__name__} {item.call_id}"
            case _:
                continue
        key = blake2b(key + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        yield key


def _shorten(text: str) -> str:
    text = text[:_MAX_SEARCHED]
    bare = _without_context(text)
    if not bare.strip():
        bare = _TAG.sub(" ", text)
    line = " ".join(bare.split())
    return line if len(line) <= MAX_WORDS else f"{line[: MAX_WORDS - 1]}…"


def _without_context(text: str) -> str:
    """Return a text without its tagged parts."""
    parts, done = [], 0
    last = {tag[1]: tag.start() for tag in _TAG.finditer(text) if tag[0].startswith("</")}
    for tag in _TAG.finditer(text):
        if tag.start() >= done and not tag[0].startswith("</") and last.get(tag[1], -1) > tag.start():
            parts += [text[done : tag.start()], " "]
            done = text.index(f"</{tag[1]}", tag.end())
            done = text.index(">", done) + 1
    return "".join([*parts, text[done:]])
