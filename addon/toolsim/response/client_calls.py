"""Emits the calls of one choice, one at a time. Events that arrive while a call is being streamed are emitted after the
call.

1. A call that the judge has accepted is emitted in full, unless it exceeds the limit on calls or repeats another call.
   A call over the limit is dropped. If the plan ends the turn at any text after a call, a call over the limit also ends
   the turn.
2. If the plan requests incremental arguments, a call within the limit is announced to the client before it is complete,
   and its arguments are streamed. A call in a tagged block is announced as soon as the tool's name has been read
   (``Preview``). A structured call is announced while the backend is sending it, unless it may repeat a call that
   arrived as text. A call that toolsim itself runs between the rounds (``Plan.hosted``) is never announced, because the
   client receives other items for it. In a non-streamed answer, the calls have the same order, but no call is sent
   before it is complete.
3. An announcement cannot be revoked. If the judge accepts the call, and the part that the client has received is
   unchanged, the rest of the call is emitted. Otherwise, the announced call ends as incomplete, and the choice ends as
   cut off.
4. Calls are emitted one at a time: while a call is open, no other call is announced or made, and all other output is
   emitted after it.
5. If more than ``MAX_WAITING`` calls wait for the end of an announced call, the announced call ends as incomplete.
   Models do not make that many calls before the first call has ended.
6. In the obsidian-xml output mode, a call is followed by the same call as XML text, so that a client that stops at the
   first text has already received the call.
7. Some backends send a call both as text **and** as a structured call. If the client received both, it would run the
   tool twice. Each call in text is therefore paired with an equivalent structured call, if there is one, and the later
   call of each pair is dropped. With ``toolsim_tool_block_dedup``, every repetition is dropped.
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
"""Maximum number of calls that wait for the end of an announced call. They are emitted in one step, which takes 0.05 ms
per call.
"""


_HEADER = re.compile(rf'\s*(?:\[\s*)?{HEAD}\s*,\s*{ARGUMENTS}\s*(?=["{{])').match
_PLAIN_HEADER = re.compile(r'\s*(?:\[\s*)?\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=["{])').match
# Maximum length of the text before a call's arguments (the name and the keys), in characters. Names have at most 128
# characters, so a longer text does not belong to a call. The text is read again with each delta, so it must be short.
_MAX_HEADER = 512
_STRING = re.compile(r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+').match
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z").match
# Matches the escape of the first half of a surrogate pair (``\ud83d``) at the end of the text. The backslash must not
# itself be escaped.
_FIRST_OF_PAIR = re.compile(r"(?:\A|[^\\])(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z").search
_OUTSIDE = re.compile(r'[^"{}\[\]]*+')
_NO_OUTPUTS = Outputs()


class Preview:
    """Reads a call's name and arguments from a block that is still open, so that they can be streamed as they arrive.

    It parses ``{"name": "…", "arguments": "…`` and ``{"name": "…", "arguments": {…``, with any spelling of these keys
    (``call_keys``), inside a wrapper object, or as the first call of a list. It silently gives up on any other text,
    and the block is then buffered until it is complete and has been judged. Together, the returned deltas are the
    verbatim beginning of the arguments.

        header ─▶ string ─▶ end         arguments as a JSON string: decoded, never in the middle of an escape
           │
           └────▶ object ─▶ end         arguments as an object: as the model wrote it, up to its last brace

    ``repair``: whether other spellings of the keys are accepted.

    ``tool``: the tool that is called, or None until the call can be announced. Calls to strict tools are not announced.
    """

    def __init__(self, tools: Iterable[Tool], outputs: Outputs = _NO_OUTPUTS, *, repair: bool = True) -> None:
        self._outputs = outputs
        self._read_header = _HEADER if repair else _PLAIN_HEADER
        # A call to a strict tool must not be announced before the judge has accepted it.
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
        """Read the next part of the block's body, and return the part of the arguments that can be sent now, which may
        be "".
        """
        if self._is_over:
            return ""
        self._rest += text
        delta = self._state()
        if delta:
            self._sent.append(delta)
        return delta

    def rest(self, name: str, arguments: str) -> str | None:
        """Return the part of the accepted call's arguments that has not been sent, or None if the call differs from the
        part that has been sent.
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
            # If a tool output contains the tool's name, the model may be quoting a call. This can be decided only when
            # the call is complete.
            return self._stop()
        quoted = self._rest[match.end()] == '"'
        self._rest = self._rest[match.end() + quoted :]
        self._state = self._string if quoted else self._object
        return self._state()

    def _string(self) -> str:
        """Decode the received part of the JSON string that contains the arguments."""
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
        """Return the received part of the object that contains the arguments, up to its last brace."""
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
    """Return the beginning of a block's body that contains a call to the tool ``name``."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}'


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call."""

    made: bool = False
    """Whether the call was emitted."""
    broke: bool = False
    """Whether the call differs from the announced call, so that the announced call has ended as incomplete (rule 3)."""
    end: str = ""
    """The reason why the call ends the turn, or "" if the turn continues."""


class ClientCalls:
    """The calls and other output of one choice, in the order in which the client receives them.

    ``has_broken``: whether any call was left incomplete. ``made``: the number of complete calls emitted. ``preview``:
    the preview of the block that is being read, or None.
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
        self._behind: list[ClientEvent] = []  # Events that arrived while a call was being streamed (rule 4).
        self._postponed: list[
            StructuredCall | JudgedCall
        ] = []  # Calls completed while another call was being streamed.
        self._open: Preview | None = None  # The preview of the announced call, which has not ended yet.
        self._key: str | None = None  # The key of the announced structured call, or None if the call is in a block.
        self.preview: Preview | None = None
        self.has_broken = False
        self.made = 0

    def emit(self, *events: ClientEvent) -> None:
        """Emit events that do not belong to a call. If a call is being streamed, they are emitted after the call."""
        (self._out if self._open is None else self._behind).extend(events)

    def take(self) -> list[ClientEvent]:
        """Remove and return the events for the client."""
        out, self._out = self._out, []
        return out

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit on calls has been reached."""
        return 0 < self._limit <= self.made

    @property
    def has_block(self) -> bool:
        """Whether a block is being read, or an announced call is still in progress."""
        return self.preview is not None or self._open is not None

    @property
    def is_open(self) -> bool:
        """Whether an announced call is still in progress."""
        return self._open is not None

    @property
    def is_arriving(self) -> bool:
        """Whether the announced call is a structured call that is still arriving from the backend."""
        return self._open is not None and self._key is not None

    def is_arriving_as(self, key: str) -> bool:
        """Whether the announced call is the structured call whose deltas have this ``key``."""
        return self._open is not None and self._key == key

    def make(self, call: JudgedCall, key: str | None = None) -> CallOutcome:
        """Emit a call that the judge has accepted, unless it exceeds the limit on calls or repeats another call.

        ``key``: the key of a structured call's deltas, "" for a structured call that arrived without deltas, or None
        for a call in text.
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
            # The accepted call differs from the part that the client has received, perhaps because the call was
            # repaired.
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
        """Process the next part of a block's body while the block is being read (rule 2)."""
        if self.preview is None:
            self.preview = self._new_preview()
        self._read(self.preview, text, None)

    def _new_preview(self) -> Preview:
        tools = (tool for tool in self._plan.tools if tool.name not in self._plan.hosted)
        return Preview(tools, self._plan.outputs, repair=self._plan.policy.repair == "safe")

    def streams(self, body: str) -> bool:
        """Return whether the beginning of this block has been streamed to the client. ``body``: the complete body."""
        return self._plan.stream and self._plan.announces_early and self._new_preview().feed(body) != ""

    def arriving(self, delta: StructuredDelta, tool: Tool | None) -> None:
        """Process a delta of a structured call. ``tool``: the tool if the call can be announced, otherwise None."""
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
        """Keep a call until the announced call has ended. Return whether the announced call ended as incomplete because
        too many calls are waiting (rule 5).
        """
        self._postponed.append(call)
        return len(self._postponed) > MAX_WAITING and self.break_off()

    def take_postponed(self) -> list[StructuredCall | JudgedCall]:
        """Return the postponed calls, and clear them. Returns [] while a call is being streamed."""
        if self.is_open or not self._postponed:
            return []
        calls, self._postponed = self._postponed, []
        return calls

    def end_block(self) -> bool:
        """End the block that is being read. Return whether a call that was announced from this block ended as
        incomplete.
        """
        self.preview = None
        return not self.is_arriving and self.break_off()

    def break_off(self) -> bool:
        """End the announced call, if any, as incomplete. Return whether the client has received the beginning of the
        call.
        """
        if self._open is None:
            return False
        self._open.give_up()  # If the block continues, its call must not be announced again.
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
    """Yield the events, with adjacent text deltas joined. Otherwise, a long answer could contain a hundred thousand
    text deltas.
    """
    for kind, same in groupby(events, type):
        if kind is TextDelta:
            texts = [event for event in same if isinstance(event, TextDelta)]
            yield TextDelta("".join([event.text for event in texts]), texts[0].choice)
        else:
            yield from same


type _Meaning = tuple[str, str]


class SeenCalls:
    """The calls of one choice, used to find repeated calls (rule 7).

    ``drops_all``: whether every repeated call is dropped. Otherwise, a call is dropped only if the backend has sent it
    both as text and as a structured call.
    """

    def __init__(self, *, drops_all: bool) -> None:
        self._drops_all = drops_all
        self._seen: set[_Meaning] = set()
        # Calls found in text. Their arguments are parsed only if a structured call has to be compared with them.
        self._unparsed: list[_Meaning] = []
        # Unpaired calls with the number of their occurrences: structured calls (True), and calls found in text (False).
        self._unpaired: dict[bool, Counter[_Meaning]] = {False: Counter(), True: Counter()}

    @property
    def may_be_repeated(self) -> bool:
        """Whether a structured call may repeat a call that arrived as text."""
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
    """Return the tool and the values of a call, in a notation that is the same for equivalent calls."""
    try:
        value = load(arguments, parse_float=_number)
    except (ValueError, RecursionError):
        return name, arguments.strip()
    return name, json.dumps(value, sort_keys=True)


def _number(text: str) -> float | int:
    """Return a JSON number as an int if it is integral, because 1.0 and 1 are the same number."""
    number = float(text)
    return int(number) if number.is_integer() else number
