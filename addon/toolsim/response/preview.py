"""The preview: a call's name and arguments read from a block that is still open, so that they stream as they arrive.

It reads one shape, ``{"name": "…", "arguments": "…`` or ``{…`` in any spelling of these keys (``call_keys``), possibly
within a wrapper or the first of a list, and silently gives up on any other: such a block is then buffered until it is
complete and judged. What it has returned is a verbatim prefix of the arguments.

    header ─▶ string ─▶ over        arguments as a JSON string: decoded, never in the middle of an escape
       │
       └────▶ object ─▶ over        arguments as an object: its own source, up to its last brace
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from json.decoder import scanstring  # type: ignore[attr-defined]

from toolsim.core.outputs import Outputs
from toolsim.core.plan import Tool
from toolsim.response.call_keys import ARGUMENTS, HEAD
from toolsim.response.pieces import IN_STRING, end_of

_HEADER = re.compile(rf'\s*(?:\[\s*)?{HEAD}\s*,\s*{ARGUMENTS}\s*(?=["{{])').match
_PLAIN_HEADER = re.compile(r'\s*(?:\[\s*)?\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=["{])').match
# Names are at most 128 characters long; a longer header holds something else, and so does longer whitespace before
# the object in a string of arguments. It is read again with each piece, so it must not grow.
_MAX_HEADER = 512
_STRING = re.compile(r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+').match
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z").match
# The escape of the first half of a surrogate pair; the backslash itself must not be escaped.
_FIRST_OF_PAIR = re.compile(r"(?:\A|[^\\])(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z").search
_OUTSIDE = re.compile(r'[^"{}\[\]]*+')
_NO_OUTPUTS = Outputs()


class Preview:
    """One open block. ``repair``: other spellings of the keys count.

    ``tool`` is set once the call may be announced: a tool on offer that is not strict.
    """

    def __init__(self, tools: Iterable[Tool], outputs: Outputs = _NO_OUTPUTS, *, repair: bool = True) -> None:
        self._outputs = outputs
        self._read_header = _HEADER if repair else _PLAIN_HEADER
        # A strict tool's call may not be announced before the judge has passed it.
        self._tools = {tool.name: tool for tool in tools if tool.kind == "function" and not tool.strict}
        self._candidate: Tool | None = None
        self._state = self._header
        self._is_over = False
        self._rest = ""
        self._sent: list[str] = []
        self._depth = 0
        self._in_string = False
        self.tool: Tool | None = None

    def feed(self, text: str) -> str:
        """Return the arguments that ``text``, a piece of the block's body, adds; "" while nothing can be sent."""
        if self._is_over:
            return ""
        self._rest += text
        delta = self._state()
        if delta:
            self._sent.append(delta)
        return delta

    def rest(self, name: str, arguments: str) -> str | None:
        """Return the part of the accepted call that was not sent yet, or None if something else was sent."""
        sent = "".join(self._sent)
        if self.tool is None or self.tool.name != name or not arguments.startswith(sent):
            return None
        return arguments[len(sent) :]

    def give_up(self) -> None:
        """Read no further."""
        self.tool = None
        self._stop()

    def _stop(self) -> str:
        self._is_over = True
        self._rest = ""
        return ""

    def _header(self) -> str:
        match = self._read_header(self._rest)
        if match is None or match.end() == len(self._rest):
            return self._stop() if len(self._rest) > _MAX_HEADER else ""
        self._candidate = self._tools.get(match["name"])
        if self._candidate is None or (self._outputs.text and self._outputs.hold(self._candidate.name)):
            # If an output names the tool, the call may be quoted, which only the whole one shows.
            return self._stop()
        quoted = self._rest[match.end()] == '"'
        self._rest = self._rest[match.end() + quoted :]
        self._state = self._string if quoted else self._object
        return self._state()

    def _string(self) -> str:
        """Decode a JSON string of arguments as far as it has arrived."""
        match = _STRING(self._rest)
        assert match is not None
        end = match.end()
        whole = end == len(self._rest)
        if whole and (half := _FIRST_OF_PAIR(self._rest)):
            end = half.start(1)
        text = self._rest[:end]
        if "\\" in text:
            text = scanstring(f'{text}"', 0)[0]
        if self.tool is None:
            if not text.strip():
                return "" if whole and len(self._rest) <= _MAX_HEADER else self._stop()
            if not text.lstrip().startswith("{"):
                return self._stop()
            self.tool = self._candidate
        self._rest = self._rest[end:]
        if not whole and not _HALF_ESCAPE(self._rest):
            self._stop()
        return text

    def _object(self) -> str:
        """Pass an object's own source on, up to its last brace."""
        self.tool = self._candidate
        text, at = self._rest, 0
        while at < len(text):
            if self._in_string:
                at = end_of(IN_STRING['"'], text, at)
                if at == len(text) or text[at] == "\\":  # The character after a backslash is still to come.
                    break
                self._in_string = False
            else:
                at = end_of(_OUTSIDE, text, at)
                if at == len(text):
                    break
                self._in_string = text[at] == '"'
                self._depth += (text[at] in "{[") - (text[at] in "}]")
                if self._depth == 0 and not self._in_string:
                    self._stop()
                    return text[: at + 1]
            at += 1
        self._rest = text[at:]
        return text[:at]


def as_block(name: str, arguments: str) -> str:
    """Return how a block's body with a call to the tool ``name`` begins; ``arguments``: the beginning of them."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}'
