"""The output of one choice: its calls, one at a time, each followed by the events that arrived while it was open.

1. A call that the judge has accepted is emitted in full, unless it exceeds the limit on calls or repeats another call.
   A call over the limit is dropped. It also ends the turn if text after a call would do so.
2. With incremental arguments, a call within the limit is announced before it is complete. A call in an open block is
   announced as soon as its header is readable (``Preview``). A structured call is announced while the backend is
   emitting it, unless it may repeat a call that arrived as text. A call that is run between the rounds
   (``Plan.hosted``) is never announced, because the client receives other items for it. In a non-streamed answer, the
   calls have the same order, but no call is sent before it is complete.
3. An announcement is final. If the judge accepts a call that begins with the part that the client has received, the
   rest of the call is emitted. Otherwise, the announced call ends as incomplete, and the choice ends as cut off.
4. Calls are emitted one at a time: while a call is open, no other call is announced or made, and all other output is
   emitted after it.
5. If dozens of calls wait for an open call, the open call is broken, because models do not make that many calls before
   the first call has ended.
6. In the output mode obsidian-xml, a call is followed by its text, so that a client that stops at the first text has
   already received the call.
7. Some backends send a call both as text **and** as a structured call. If both calls were passed on, a tool that writes
   would write twice. Each call of one kind is therefore paired with an equivalent call of the other kind, if there is
   one, and the later call of each pair is dropped. With ``toolsim_tool_block_dedup``, every repetition is dropped.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from json.decoder import scanstring  # type: ignore[attr-defined]

from toolsim.core.events import (
    CallDelta,
    CallEnded,
    CallStarted,
    ClientEvent,
    ItemStatus,
    StructuredCall,
    StructuredDelta,
    TextDelta,
)
from toolsim.core.outputs import Outputs
from toolsim.core.plan import Plan, Tool
from toolsim.core.report import Report, entry
from toolsim.response.call_keys import ARGUMENTS, HEAD
from toolsim.response.parsed_call import use_tool_text
from toolsim.response.segments import IN_STRING, end_of
from toolsim.response.verdict import JudgedCall
from toolsim.wire.json_codec import load

MAX_WAITING = 64
"""Maximum number of calls that wait for an open call. Emitting them in one step takes 0.05 ms each."""


_HEADER = re.compile(rf'\s*(?:\[\s*)?{HEAD}\s*,\s*{ARGUMENTS}\s*(?=["{{])').match
_PLAIN_HEADER = re.compile(r'\s*(?:\[\s*)?\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=["{])').match
# Maximum length of a header, in characters. Names have at most 128 characters, so a longer header does not belong to a
# call. The limit also applies to whitespace before the object in a string of arguments. The header is read again with
# each delta, so its length must be bounded.
_MAX_HEADER = 512
_STRING = re.compile(r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+').match
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z").match
# The escape of the first half of a surrogate pair; the backslash must not itself be escaped.
_FIRST_OF_PAIR = re.compile(r"(?:\A|[^\\])(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z").search
_OUTSIDE = re.compile(r'[^"{}\[\]]*+')
_NO_OUTPUTS = Outputs()


class Preview:
    """Reads a call's name and arguments from a block that is still open, so that they are streamed as they arrive.

    It parses one shape, ``{"name": "…", "arguments": "…`` or ``{…`` in any spelling of these keys (``call_keys``),
    possibly within a wrapper or as the first call of a list. It silently gives up on any other shape; the block is then
    buffered until it is complete and has been judged. The returned deltas together are a verbatim prefix of the
    arguments.

        header ─▶ string ─▶ end         arguments as a JSON string: decoded, never in the middle of an escape
           │
           └────▶ object ─▶ end         arguments as an object: its own source, up to its last brace

    ``repair``: whether other spellings of the keys are accepted.

    ``tool``: the called tool, set as soon as the call can be announced. Only an offered tool that is not strict
    qualifies.
    """

    def __init__(self, tools: Iterable[Tool], outputs: Outputs = _NO_OUTPUTS, *, repair: bool = True) -> None:
        self._outputs = outputs
        self._read_header = _HEADER if repair else _PLAIN_HEADER
        # A strict tool's call must not be announced before the judge has accepted it.
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
        """Return the arguments that ``text``, the next part of the block's body, adds; "" if no arguments can be sent
        yet.
        """
        if self._is_over:
            return ""
        self._rest += text
        delta = self._state()
        if delta:
            self._sent.append(delta)
        return delta

    def rest(self, name: str, arguments: str) -> str | None:
        """Return the unsent part of the accepted call's arguments, or None if the call differs from the part already
        sent.
        """
        sent = "".join(self._sent)
        if self.tool is None or self.tool.name != name or not arguments.startswith(sent):
            return None
        return arguments[len(sent) :]

    def give_up(self) -> None:
        """Stop parsing, so that the call is not announced."""
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
        if self._candidate is None or (self._outputs.text and self._outputs.contains(self._candidate.name)):
            # If an output contains the tool's name, the call may be a quotation. This is decided only when the call is
            # complete.
            return self._stop()
        quoted = self._rest[match.end()] == '"'
        self._rest = self._rest[match.end() + quoted :]
        self._state = self._string if quoted else self._object
        return self._state()

    def _string(self) -> str:
        """Decode the part of a JSON string of arguments that has been received."""
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
        """Return the source of an object of arguments as it arrives, up to its last brace."""
        self.tool = self._candidate
        text, at = self._rest, 0
        while at < len(text):
            if self._in_string:
                at = end_of(IN_STRING['"'], text, at)
                if at == len(text) or text[at] == "\\":  # The character after the backslash has not arrived yet.
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
    """Return the beginning of a block's body with a call to the tool ``name``; ``arguments``: the beginning of the
    arguments.
    """
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}'


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call."""

    made: bool = False
    """Whether the call was made."""
    broke: bool = False
    """Whether the call differs from the announced call. The announced call has then ended as incomplete (rule 3)."""
    end: str = ""
    """The reason why the call ends the turn, or "" if the turn continues."""


class ClientCalls:
    """The calls of one choice and its other output, in the order of emission.

    ``has_broken``: whether any call was left incomplete. ``made``: the number of complete calls emitted. ``preview``:
    the preview of the open block, or None.
    """

    def __init__(self, plan: Plan, report: Report, numbers: Iterator[int], choice: int) -> None:
        self._plan = plan
        self._report = report
        self._numbers = numbers
        self._choice = choice
        self._seen_calls = SeenCalls(drops_all=plan.policy.tool_block_dedup)
        # A limit of 0 means unlimited.
        self._limit = 1 if plan.one_call or plan.legacy_functions else plan.policy.tool_block_max
        self._out: list[ClientEvent] = []
        self._behind: list[ClientEvent] = []  # Events that arrived while a call was open (rule 4).
        self._postponed: list[StructuredCall | JudgedCall] = []  # Calls completed while another call was open.
        self._open: Preview | None = None  # The preview of the announced call that has not ended.
        self._key: str | None = None  # The key of the open call's deltas, or None if the call is in a block.
        self.preview: Preview | None = None
        self.has_broken = False
        self.made = 0

    def emit(self, *events: ClientEvent) -> None:
        """Emit events that do not belong to a call; if a call is open, they are emitted after it."""
        (self._out if self._open is None else self._behind).extend(events)

    def take(self) -> list[ClientEvent]:
        """Remove and return the events for the client."""
        out, self._out = self._out, []
        return out

    @property
    def is_exhausted(self) -> bool:
        """Whether the maximum number of calls has been made."""
        return 0 < self._limit <= self.made

    @property
    def has_block(self) -> bool:
        """Whether part of a block has been read, or a call has been announced."""
        return self.preview is not None or self._open is not None

    @property
    def is_open(self) -> bool:
        """Whether an announced call has not ended yet."""
        return self._open is not None

    @property
    def is_arriving(self) -> bool:
        """Whether the open call is a structured call that is still arriving."""
        return self._open is not None and self._key is not None

    def is_arriving_as(self, key: str) -> bool:
        """Whether the open call is the structured call whose deltas have this ``key``."""
        return self._open is not None and self._key == key

    def make(self, call: JudgedCall, key: str | None = None) -> CallOutcome:
        """Emit a call that the judge has accepted, unless it is over the limit or a repetition.

        ``key``: for a structured call, the key of its deltas, or "" if there were none.
        """
        if self.is_exhausted:
            return CallOutcome(end=self.skip(call.tool.name))
        if self._seen_calls.take(call.tool.name, call.arguments, structured=key is not None):
            self._report.warnings.append(entry("DUPLICATE_CALL", call.tool.name))
            return CallOutcome()
        announced = self._open if self._key == key else None
        is_sent = announced is not None and self._plan.stream
        rest = announced.rest(call.tool.name, call.arguments) if announced and is_sent else call.arguments
        if rest is None:
            # The judge accepted a call that differs from the announced call, perhaps because it was repaired.
            return CallOutcome(broke=self.break_off())
        events: list[ClientEvent] = [] if is_sent else [self._started(call.tool)]
        if rest:
            events.append(CallDelta(rest, self._choice))
        if announced:
            self._out += events
            self._end("completed", call.repairs)
        else:
            self.emit(*events, CallEnded("completed", self._choice, call.repairs))
        if self._plan.policy.output_mode == "obsidian-xml":
            gap = self._plan.policy.tool_block_delimiter if self.made else ""
            self.emit(TextDelta(gap + use_tool_text(call.tool, call.arguments), self._choice))
        self._report.calls.append(call.tool.name)
        self.made += 1
        first_ends = self._plan.stops_after_tools and self._plan.policy.stop_after_tools_mode == "first"
        return CallOutcome(made=True, end="first call" if first_ends else "")

    def skip(self, name: str | None = None) -> str:
        """Drop a call that exceeds the limit; return the reason why it ends the turn, or "" if the turn continues."""
        stops = self._plan.stops_after_tools
        self._report.drop_call(None if stops else name)
        return f"more than {self._limit} calls" if stops else ""

    def fragment(self, text: str) -> None:
        """Process the next part of the open block's body (rule 2)."""
        if self.preview is None:
            self.preview = self._new_preview()
        self._read(self.preview, text, None)

    def _new_preview(self) -> Preview:
        tools = (tool for tool in self._plan.tools if tool.name not in self._plan.hosted)
        return Preview(tools, self._plan.outputs, repair=self._plan.policy.repair == "safe")

    def streams(self, body: str) -> bool:
        """Return whether arguments in a block with this body can be streamed before the block is complete."""
        return self._plan.stream and self._plan.announces_early and self._new_preview().feed(body) != ""

    def arriving(self, delta: StructuredDelta, tool: Tool | None) -> None:
        """Process a delta of a structured call. The call can be announced only if ``tool`` is given."""
        if self._open is not None and self._key == delta.key:
            self._read(self._open, delta.text, delta.key)
        elif tool is not None and not self._seen_calls.may_be_repeated:
            self._read(Preview([tool]), as_block(tool.name, delta.text), delta.key)

    def _read(self, preview: Preview, text: str, key: str | None) -> None:
        arguments = preview.feed(text)
        if preview is not self._open and preview.tool is not None:
            if self.is_open or self.is_exhausted:
                preview.give_up()
                return
            self._open = preview
            self._key = key
            if self._plan.stream:
                self._out.append(self._started(preview.tool))
        if arguments and self._plan.stream:
            self._out.append(CallDelta(arguments, self._choice))

    def postpone(self, call: StructuredCall | JudgedCall) -> bool:
        """Keep a call until the open call has ended; return whether so many calls wait that the open call broke (rule
        5).
        """
        self._postponed.append(call)
        return len(self._postponed) > MAX_WAITING and self.break_off()

    def take_postponed(self) -> list[StructuredCall | JudgedCall]:
        """Remove and return the postponed calls; return [] while a call is open."""
        if self.is_open or not self._postponed:
            return []
        calls, self._postponed = self._postponed, []
        return calls

    def end_block(self) -> bool:
        """Forget the open block; return whether an announced call in it is incomplete."""
        self.preview = None
        return not self.is_arriving and self.break_off()

    def break_off(self) -> bool:
        """End the open call, if any, as incomplete; return whether the client has received the call's beginning."""
        if self._open is None:
            return False
        self._open.give_up()  # If the block continues, the call is not announced a second time.
        if not self._plan.stream:
            self._close()
            return False
        self.has_broken = True
        self._end("incomplete")
        return True

    def _end(self, status: ItemStatus, repairs: tuple[str, ...] = ()) -> None:
        self._out.append(CallEnded(status, self._choice, repairs))
        self._close()

    def _close(self) -> None:
        self._out += _joined(self._behind)
        self._open = None
        self._behind = []

    def _started(self, tool: Tool) -> CallStarted:
        number = next(self._numbers)
        return CallStarted(number, tool.wire_name, tool.kind, tool.namespace, self._choice, tool.encrypted)


def _joined(events: Iterable[ClientEvent]) -> Iterator[ClientEvent]:
    """Yield events with adjacent text deltas joined, because there can be a hundred thousand of them."""
    for kind, same in groupby(events, type):
        if kind is TextDelta:
            texts = [event for event in same if isinstance(event, TextDelta)]
            yield TextDelta("".join([event.text for event in texts]), texts[0].choice)
        else:
            yield from same


type _Meaning = tuple[str, str]


class SeenCalls:
    """The calls of one choice, used to drop repeated calls (rule 7). ``drops_all``: drop every repetition."""

    def __init__(self, *, drops_all: bool) -> None:
        self._drops_all = drops_all
        self._seen: set[_Meaning] = set()
        # Calls that arrived as text, parsed only when a structured call requires it.
        self._unparsed: list[_Meaning] = []
        # The calls of each kind, structured or not, that have no counterpart of the other kind yet.
        self._unpaired: dict[bool, Counter[_Meaning]] = {False: Counter(), True: Counter()}

    @property
    def may_be_repeated(self) -> bool:
        """Whether a structured call may be a repetition of a call that arrived as text."""
        return bool(self._unparsed) or self._unpaired[False].total() > 0

    def take(self, name: str, arguments: str, *, structured: bool) -> bool:
        """Record a call. Return whether it repeats an earlier call, and must therefore be dropped.

        ``structured``: whether the backend emitted it as a structured call.
        """
        if self._drops_all:
            meaning = _meaning(name, arguments)
            is_known = meaning in self._seen
            self._seen.add(meaning)
            return is_known
        if not structured and not self._unpaired[True]:
            self._unparsed.append((name, arguments))
            return False
        self._unpaired[False].update(_meaning(*call) for call in self._unparsed)
        self._unparsed = []
        meaning = _meaning(name, arguments)
        counterparts = self._unpaired[not structured]
        if counterparts[meaning] > 0:
            counterparts[meaning] -= 1
            return True
        self._unpaired[structured][meaning] += 1
        return False


def _meaning(name: str, arguments: str) -> _Meaning:
    """Return a key that is equal for equivalent calls: the tool and the values, regardless of their notation."""
    try:
        value = load(arguments, parse_float=_number)
    except (ValueError, RecursionError):
        return name, arguments.strip()
    return name, json.dumps(value, sort_keys=True)


def _number(text: str) -> float | int:
    """Return a JSON number as an int if it is integral, because 1.0 and 1 are the same number."""
    number = float(text)
    return int(number) if number.is_integer() else number
