"""The record of one exchange: the source of its log line, headers, metrics, comment and pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

MAX_NAMES = 64
"""A model may invent any number of names; a one-line summary has to stay one line."""

_MAX_BLOCKS = 1000
"""Blocks listed for the pages, which show their place beside the model's words: nobody reads more."""

# Fields that only some answers have; those that a round's report repeats from the client's request.
_RARE_FIELDS = ("rounds", "round", "part_of", "retries", "mcp_calls", "profile")
_REQUEST_FIELDS = (
    *("client", "backend", "model", "profile", "stream", "tools", "echoed_calls", "outputs_replaced", "dropped"),
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


REMEDIES = {
    "EMPTY_ANSWER": "toolsim_fix_empty_final=on asks again after an output",
    **dict.fromkeys(("NO_CALL", "ANSWER_MISMATCH"), "toolsim_retry=1 asks the model again"),
}
"""What an operator can set against a warning, by its code."""


_LOGGABLE_NAME = re.compile(r"[\w.:/-]{1,128}")
# <|channel|>, <｜tool▁sep｜>, [ARGS], <tool_call>, (), {: what a server left in a name although it belongs to the form.
_SPECIAL_TOKEN = re.compile(r"\s*+(?:[<({]|\[[A-Z]).*", re.DOTALL)


def name_before_token(name: str) -> str:
    """Return a name up to the special token or bracket that a server left in it."""
    return _SPECIAL_TOKEN.sub("", name, count=1)


def loggable_name(name: str) -> str:
    """Return a name that is safe to log, up to a special token in it: a model may make up anything."""
    name = name_before_token(name)
    return name if _LOGGABLE_NAME.fullmatch(name) else "?"


def entry(code: str, name: str | None = None) -> str:
    """Return the entry for a ``code`` that applies to the tool ``name``; a list of such strings is plain data."""
    return code if name is None else f"{code}:{name}"


def code_of(entry: str) -> str:
    """Return the code of an ``entry``, without the tool's name, so that metrics need no series per tool."""
    return entry.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Tally:
    """One kind of thing that a report counts: ``key`` is its field, ``noun`` its readable name, in the singular.

    ``entries``: one per thing counted, as in the report; for calls the names of the tools.
    """

    key: str
    noun: str
    entries: tuple[str, ...]

    @property
    def codes(self) -> list[str]:
        """The entries without the names of tools; those of calls are only names, and unchanged."""
        return list(self.entries) if self.key == "calls" else [code_of(counted) for counted in self.entries]

    @property
    def title(self) -> str:
        """The noun in the plural."""
        return f"{self.noun}s"


def tallies(report: Mapping[str, Any]) -> list[Tally]:
    """Return everything that a report counts, from the plain data in a flow, which may be anything."""
    values = {key: report.get(key) for key in _TALLIED}
    return [
        Tally(key, _TALLIED[key], tuple(map(str, value)) if isinstance(value, list) else ())
        for key, value in values.items()
    ]


@dataclass(slots=True)
class Report:
    """Counts and names, never argument values or texts. The only mutable record: each module adds what only it knows.

    An *entry* is a code, perhaps with a tool's name (``entry``).
    """

    client: str = ""
    backend: str = ""
    model: str = ""
    profile: str = ""
    """The name of the profile with whose values the request was rewritten."""
    stream: bool = False
    tools: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    parse_failures: list[str] = field(default_factory=list)
    """Entries, like the next four."""
    strict_failures: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    untagged: list[str] = field(default_factory=list)
    """Calls without a tag, by the form that they were found in."""
    warnings: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    """For each schema violation the tool's name and the place, without values
    ("get_weather:/days: got string, expected integer")."""
    dropped_calls: list[str] = field(default_factory=list)
    """Entries of those withheld from the client: beyond its or the operator's limit, emitted as calls by a backend and
    refused, or rejected by the model itself (``rounds/opinion.py``), which truncates nothing."""
    tool_call_ids: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    """As the backend counted them, by kind."""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    """The call blocks in the order of their verdicts, each as ``choice``; ``start`` and ``end`` (characters in that
    choice's text); ``verdicts`` ("call NAME", "passed over NAME", "text REASON", "failure REASON", "asked again
    REASON"); ``repairs``; and ``untagged`` and ``warnings``, if there are any, as above."""
    echoed_calls: int = 0
    outputs_replaced: int = 0
    dropped: list[str] = field(default_factory=list)
    tool_cutoff: str | None = None
    """Why we ended the turn before the backend did."""
    truncated: bool = False
    """Whether the client's answer lacks something: a dropped call, or the rest of an unfinished answer."""
    mode: str = "openai-json"
    stop_after_tools_mode: str = "off"
    """What would end the turn: the option's value, or off."""
    finish: str | None = None
    error: str | None = None
    rounds: int = 0
    """How many turns of the model the answer took (``rounds/``), 0 outside of it."""
    round: int = 0
    """In the report of one of them: which it is, from 1."""
    part_of: str = ""
    """The flow that a round is part of."""
    retries: list[str] = field(default_factory=list)
    """Entries: why the model was asked again."""
    mcp_calls: list[str] = field(default_factory=list)
    """The calls of MCP tools, as entries of outcome and tool ("OK:files.read_file")."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as ``flow.metadata`` requires (it must stay savable)."""
        values = {key: getattr(self, key) for key in _FIELDS}
        return {key: _copied(value) for key, value in values.items() if value or key not in _RARE_FIELDS}

    def add(self, other: Report) -> None:
        """Add the report of a round: failures and repairs are concatenated, the last ending counts.

        A round does not know which of its calls were emitted, nor the totals of all rounds.
        """
        if not self.rounds:
            for name in _REQUEST_FIELDS:
                setattr(self, name, getattr(other, name))
        for name in _JOINED_FIELDS:
            getattr(self, name).extend(getattr(other, name))
        for name in _END_FIELDS:
            setattr(self, name, getattr(other, name))
        self.rounds += 1

    def become(self, other: Report) -> None:
        """Take over all that another one says: a copy that has been added to elsewhere."""
        for name in _FIELDS:
            setattr(self, name, getattr(other, name))

    def drop_call(self, name: str | None = None, code: str = "OVER_LIMIT") -> None:
        """Record that a call is not passed on, and why; its name may not be known yet."""
        self.dropped_calls.append(entry(code, name))
        self.truncated = True

    @contextmanager
    def block(self, choice: int, start: int, end: int) -> Iterator[list[str]]:
        """List a block at its place in the text of ``choice``, with all that is found in it until the context ends.

        What becomes of its calls is appended to the list meanwhile.
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
        """Return everything that this report counts."""
        return tallies({key: getattr(self, key) for key in _TALLIED})

    def summary(self) -> dict[str, Any]:
        """Return the one-line summary: whether there were calls and how many, and all fields that are not empty.

        It omits the blocks, which are for the pages, and which the other fields summarise.
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
        """Whether the answer is truncated because calls were dropped, and not because of its length."""
        return self.truncated and bool(self.dropped_calls)

    def for_clients(self) -> dict[str, Any]:
        """Return the summary for a stream's last comment, with the predecessor's fields under its names."""
        return self.summary() | {
            "tool_call_truncated": self._lacks_calls,
            "stop_after_tools_mode": self.stop_after_tools_mode,
        }


_FIELDS = tuple(defined.name for defined in fields(Report))


def _copied(value: Any) -> Any:
    """Return a field's value, with copies of the lists and dicts in it."""
    if isinstance(value, list):
        # Either names and entries, of which there may be thousands, or the dicts of blocks.
        return list(value) if not value or isinstance(value[0], str) else [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value
