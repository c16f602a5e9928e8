"""The script of one soak exchange. The client generates it and sends it in a question, and the backend follows it."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, dataclass
from typing import Literal

NONCE = re.compile(rb"n[0-9a-f]{16}z")
"""A pattern for nonces. Each exchange has its own nonce, which all texts of the exchange contain."""


@dataclass(frozen=True)
class Story:
    """The script of an exchange.

    ``dies_after``: the number of chunks after which the backend dies; ``aborts_after``: the number of bytes after which
    the client disconnects; -1 means never.
    """

    nonce: str
    api: Literal["chat", "responses"]
    stream: bool
    words: int
    calls: int
    padding: int
    dies_after: int = -1
    aborts_after: int = -1

    @property
    def text(self) -> str:
        """The text, apart from calls, that the client must receive."""
        return f"{self.nonce} " * self.words

    @property
    def pieces(self) -> list[str]:
        call = f'<tool_call>{{"name":"note","arguments":{{"about":"{self.nonce}"}}}}</tool_call>'
        answer = self.text + call * self.calls
        return [answer[at : at + 11] for at in range(0, len(answer), 11)]

    @property
    def question(self) -> str:
        return f"STORY{json.dumps(asdict(self))}END" + "x" * self.padding

    def body(self) -> bytes:
        """Return the client's request."""
        parameters = {"type": "object", "properties": {"about": {"type": "string"}}, "required": ["about"]}
        function = {"name": "note", "parameters": parameters, "strict": self.words % 2 == 0}
        common = {"model": "m", "stream": self.stream}
        if self.api == "chat":
            messages = [{"role": "user", "content": self.question}]
            tools: list[object] = [{"type": "function", "function": function}]
            return json.dumps({**common, "messages": messages, "tools": tools}).encode()
        tools = [{"type": "function", **function}]
        return json.dumps({**common, "input": self.question, "tools": tools}).encode()


def draw(chance: random.Random, deaths: float, aborts: float) -> Story:
    """Return a random story. ``deaths``, ``aborts``: the shares of stories in which the backend dies or the client
    disconnects.
    """
    words, calls = chance.randrange(1, 20), chance.choice((0, 0, 1, 1, 2, 5))
    fate = chance.random()
    return Story(
        nonce=f"n{chance.getrandbits(64):016x}z",
        api=chance.choice(("chat", "responses")),
        stream=chance.random() < 0.8,
        words=words,
        calls=calls,
        # One request in ten is large enough for a worker process.
        padding=50_000 if chance.random() < 0.1 else 0,
        dies_after=chance.randrange(0, 20) if fate < deaths else -1,
        aborts_after=chance.randrange(0, 3_000) if deaths <= fate < deaths + aborts else -1,
    )


def story_of(body: bytes) -> Story:
    """Return the story that a request to the backend contains."""
    document = json.loads(body)
    texts = [str(message.get("content")) for message in document["messages"]]
    found = re.search(r"STORY(\{.*?\})END", "".join(texts))
    assert found is not None, body[:500]
    return Story(**json.loads(found[1]))
