"""The record of one exchange, from which its log line, headers, metrics, flow comment and pages are created."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

MAX_NAMES = 64
"""Maximum number of names in each list of a report's summary. A model can invent any number of names, but the summary
has to fit on one line.
"""

_MAX_BLOCKS = 1000
"""Maximum number of blocks in a report. The content views would not be readable with more."""

# ``_RARE_FIELDS`` are omitted from ``as_dict`` if they are empty. ``_REQUEST_FIELDS`` describe the client's request, so
# ``add`` copies them from the first round's report.
_RARE_FIELDS = (
    *("user", "rounds", "round", "part_of", "retries", "mcp_calls", "profile", "usage_estimated"),
    "unanswered_calls",
)
_REQUEST_FIELDS = (
    *("client", "backend", "model", "profile", "stream", "tools", "echoed_calls", "outputs_replaced", "dropped"),
    "unanswered_calls",
)
_JOINED_FIELDS = (
    "parse_failures",
    "strict_failures",
    "repairs",
    "untagged",
    "warnings",
    "mismatches",
    "dropped_calls",
    "retries",
)
_END_FIELDS = ("tool_cutoff", "truncated", "mode", "stop_after_tools_mode", "finish", "error")

_TALLIED = {
    "calls": "call",
    "parse_failures": "parse failure",
    "strict_failures": "strict failure",
    "repairs": "repair",
    "untagged": "untagged call",
    "warnings": "warning",
    "dropped_calls": "dropped call",
}


_HINTS = {
    "LOOP_ENDED": "toolsim_loop_limit=0 lets the model repeat a call",
    "EMPTY_ANSWER": "toolsim_fix_empty_final=on retries after a tool output",
    **dict.fromkeys(("NO_CALL", "ANSWER_MISMATCH"), "toolsim_retry=1 retries the model"),
}
"""Hints on which option to change in response to a warning, by warning code."""
_NO_SEARCH = "TOOL_DROPPED:web_search"
_SEARCHER = 'to run searches, set "web_search" for a server in toolsim_mcp_config'


def remedy(warning: str) -> str:
    """Return a hint on which option to change in response to a warning, or "" if there is no such option."""
    return _SEARCHER if warning.startswith(_NO_SEARCH) else _HINTS.get(code_of(warning), "")


_LOGGABLE_NAME = re.compile(r"[\w.:/-]{1,128}")
# Parts of a call form that a server can leave in a tool name: <|channel|>, <｜tool▁sep｜>, [ARGS], <tool_call>, (), {.
_SPECIAL_TOKEN = re.compile(r"\s*+(?:[<({]|\[[A-Z]).*", re.DOTALL)


def name_before_token(name: str) -> str:
    """Return a name up to the first special token or bracket that a server has left in the name."""
    return _SPECIAL_TOKEN.sub("", name, count=1)


def loggable_name(name: str) -> str:
    """Return a name up to the first special token, or "?" if even that is not safe to log. A model can write any text
    as a name.
    """
    name = name_before_token(name)
    return name if _LOGGABLE_NAME.fullmatch(name) else "?"


def entry(code: str, name: str | None = None) -> str:
    """Return the entry for a ``code`` and, if given, the ``name`` of the tool. Entries are strings, so that reports are
    plain data.
    """
    return code if name is None else f"{code}:{name}"


def code_of(entry: str) -> str:
    """Return the code of an ``entry`` without the tool's name, so that metrics do not need a series for each tool."""
    return entry.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Tally:
    """One kind of entry that a report counts. ``key`` is the report's field, and ``noun`` is its name in the singular,
    as shown to people.

    ``entries`` contains one entry per occurrence, as in the report. Entries for calls are tool names.
    """

    key: str
    noun: str
    entries: tuple[str, ...]

    @property
    def codes(self) -> list[str]:
        """The code of each entry, without a tool name. Entries for calls have no code, so they remain unchanged."""
        return list(self.entries) if self.key == "calls" else [code_of(counted) for counted in self.entries]

    @property
    def title(self) -> str:
        """The plural of ``noun``, used as a title."""
        return f"{self.noun}s"


def tallies(report: Mapping[str, Any]) -> list[Tally]:
    """Return a tally for each kind of entry in a report. The report is a dict from a flow, so its values can have any
    type.
    """
    values = {key: report.get(key) for key in _TALLIED}
    return [
        Tally(key, _TALLIED[key], tuple(map(str, value)) if isinstance(value, list) else ())
        for key, value in values.items()
    ]


@dataclass(slots=True)
class Report:
    """Counts and names that describe an exchange, without argument values and without text from the conversation.

    A report is mutable, because each module adds its findings. An *entry* is a code, optionally followed by a tool's
    name (``entry``).
    """

    user: str = ""
    """The user's name in the key file."""
    client: str = ""
    backend: str = ""
    model: str = ""
    profile: str = ""
    """The name of the profile that was applied to the request."""
    stream: bool = False
    tools: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    parse_failures: list[str] = field(default_factory=list)
    """Parse failures, as entries. ``strict_failures``, ``repairs``, ``untagged`` and ``warnings`` also contain entries.
    """
    strict_failures: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    untagged: list[str] = field(default_factory=list)
    """Untagged calls, as entries. The code of each entry is the name of the call form."""
    warnings: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    """The tool, the location and the types involved in each schema violation, without values
    ("get_weather:/days: got string, expected integer").
    """
    unanswered_calls: list[str] = field(default_factory=list)
    """The IDs of the request's calls without an output."""
    dropped_calls: list[str] = field(default_factory=list)
    """Entries for calls that the client does not receive: calls beyond the client's or the operator's limit, refused
    structured calls, and calls that the model itself rejected (``rounds/opinion.py``). Calls that the model rejected do
    not count for ``truncated``.
    """
    tool_call_ids: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    """Token counts by kind."""
    usage_estimated: bool = False
    """Whether some of ``tokens`` are estimates because the backend did not report them."""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    """The call blocks in the order in which they were judged. Each has these keys: ``choice``; ``start`` and ``end``
    (offsets in that choice's text, in characters); ``verdicts`` ("call NAME", "passed over NAME", "text REASON",
    "failure REASON", "retried REASON"); ``repairs``; and ``untagged`` and ``warnings``, if there are any, as in the
    report's fields.
    """
    echoed_calls: int = 0
    outputs_replaced: int = 0
    dropped: list[str] = field(default_factory=list)
    tool_cutoff: str | None = None
    """The reason why toolsim ended the turn before the backend did."""
    truncated: bool = False
    """Whether the client's answer is incomplete because a call was dropped or the end of the answer is missing."""
    mode: str = "openai-json"
    stop_after_tools_mode: str = "off"
    """When the turn ends after calls: "first" (after the first call), "burst" (at the first text after calls), or
    "off".
    """
    finish: str | None = None
    error: str | None = None
    rounds: int = 0
    """The number of rounds (``rounds/``) that the answer took; 0 for an answer without rounds."""
    round: int = 0
    """The number of the round that this report describes, counted from 1."""
    part_of: str = ""
    """The ID of the client's flow, if this report describes a round."""
    retries: list[str] = field(default_factory=list)
    """The reasons for retries, as entries."""
    mcp_calls: list[str] = field(default_factory=list)
    """The calls to MCP tools, as entries with outcome and tool ("OK:files.read_file")."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, because mitmproxy must be able to save ``flow.metadata``."""
        values = {key: getattr(self, key) for key in _FIELDS}
        return {key: _copied(value) for key, value in values.items() if value or key not in _RARE_FIELDS}

    def add(self, other: Report) -> None:
        """Add the report of a round. Failures and repairs are appended. The last round determines how the answer ends.

        Calls and token counts are not added, because a round's report does not show which of its calls were emitted or
        how many tokens all rounds used.
        """
        if not self.rounds:
            for name in _REQUEST_FIELDS:
                setattr(self, name, getattr(other, name))
        for name in _JOINED_FIELDS:
            getattr(self, name).extend(getattr(other, name))
        for name in _END_FIELDS:
            setattr(self, name, getattr(other, name))
        self.rounds += 1

    def replace_with(self, other: Report) -> None:
        """Replace all values with the values of ``other``, a copy of this report to which findings were added."""
        for name in _FIELDS:
            setattr(self, name, getattr(other, name))

    def drop_call(self, name: str | None = None, code: str = "OVER_LIMIT") -> None:
        """Record that the client does not receive a call. ``code`` is the reason. ``name`` is None if the call's tool
        is not known yet.
        """
        self.dropped_calls.append(entry(code, name))
        self.truncated = True

    @contextmanager
    def add_block(self, choice: int, start: int, end: int) -> Iterator[list[str]]:
        """Record a block and its position in the text of ``choice``. Findings added within this context belong to the
        block.

        The caller appends the verdicts on the block's calls to the yielded list.
        """
        outcomes: list[str] = []
        findings = {"repairs": self.repairs, "untagged": self.untagged, "warnings": self.warnings}
        before = {kind: len(entries) for kind, entries in findings.items()}
        yield outcomes
        if len(self.blocks) < _MAX_BLOCKS:
            found = {kind: new for kind, entries in findings.items() if (new := entries[before[kind] :])}
            place = {"choice": choice, "start": start, "end": end}
            self.blocks.append({**place, "verdicts": outcomes, "repairs": [], **found})

    def tallies(self) -> list[Tally]:
        """Return a tally for each kind of entry that this report counts."""
        return tallies({key: getattr(self, key) for key in _TALLIED})

    def summary(self) -> dict[str, Any]:
        """Return the fields of the report's one-line summary: whether the answer has calls, their number, and all
        non-empty fields of the report except ``blocks``, which only the content views need.
        """
        fields = {key: value for key in _FIELDS if (value := getattr(self, key)) and key != "blocks"}
        for key, value in fields.items():
            if isinstance(value, list):
                more = [f"and {len(value) - MAX_NAMES} more"] if len(value) > MAX_NAMES else []
                fields[key] = [*value[:MAX_NAMES], *more]
            elif isinstance(value, dict):
                fields[key] = dict(value)
        if self._lacks_calls:
            fields["tool_call_truncated"] = True
        return fields | {"has_tool_calls": bool(self.calls), "tool_call_count": len(self.calls)}

    @property
    def _lacks_calls(self) -> bool:
        """Whether the answer is incomplete because calls were dropped, rather than because of its length."""
        return self.truncated and bool(self.dropped_calls)

    def for_clients(self) -> dict[str, Any]:
        """Return the summary for the comment at the end of a stream. It also has fields with the names that toolsim's
        predecessor used.
        """
        return self.summary() | {
            "tool_call_truncated": self._lacks_calls,
            "stop_after_tools_mode": self.stop_after_tools_mode,
        }


_FIELDS = tuple(defined.name for defined in fields(Report))


def _copied(value: Any) -> Any:
    """Return a field's value with all its lists and dicts copied."""
    if isinstance(value, list):
        # A report can have thousands of strings in a list, so lists of strings are copied in one step. Only the blocks
        # are dicts.
        return list(value) if not value or isinstance(value[0], str) else [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value
