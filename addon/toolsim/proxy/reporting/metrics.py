"""Metrics of all exchanges, in version 0.0.4 of Prometheus's text format.

Names follow Prometheus's conventions: base units, and ``_total`` for counters. A series with labels known in advance
exists from the start, at 0; otherwise the first event of its kind would not show as an increase. The names of models,
tools and error codes come from clients, models and backends, and may be any text. So the number of series in a family
is limited, and all further label values are counted as ``other``. Models and tools are labels only if the operator
enables them.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from mitmproxy import version as mitmproxy_version

from toolsim.core.report import Report, code_of
from toolsim.proxy.legacy import RENAMED_METRICS
from toolsim.version import __version__
from toolsim.wire.apis import APIS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_SERIES = 1000
"""Maximum number of series per family. The limit keeps Prometheus and its dashboards fast, and bounds the memory."""
MAX_VALUE = 128
"""Maximum length of a label's value, in characters."""

DURATIONS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
FIRST_BYTES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)

_APIS = tuple(APIS)
_STREAM = ("false", "true")
_OTHER = "other"

_FAULTS = ("MALFORMED_JSON", "SCHEMA_MISMATCH", "UNKNOWN_TOOL", "MASKED_TOOL", "ARGUMENTS_TOO_LARGE")
_ERRORS = (
    "backend_unavailable",
    "backend_timeout",
    "backend_truncated",
    "backend_bad_answer",
    "invalid_tool_call",
    "invalid_answer",
)
# The outcomes of an MCP tool call and of its approval (``mcp/outcome.py``).
_OUTCOMES = ("OK", "TOOL_FAILED", "SERVER_FAILED", "OUTPUT_TOO_LARGE", "REFUSED", "LIMIT", "APPROVAL_REQUESTED")
_CUTOFFS = ("text after tools", "first call", "more than 1 calls")
_TOKENS = ("input", "output", "cached", "reasoning")
_WARNINGS = (
    *("NO_CALL", "EMPTY_ANSWER", "ANSWER_MISMATCH", "DUPLICATE_CALL", "LOOP_ENDED"),
    *("UNANSWERED_CALL", "CALL_AS_TEXT", "TOOL_DROPPED", "NO_API", "CIPHERTEXT"),
)
# Maps fields of the report to the help texts of their metrics and the codes that are known in advance.
_TALLIES: Mapping[str, tuple[str, Sequence[str]]] = {
    "parse_failures": ("Call blocks that were left as text, by reason.", _FAULTS),
    "strict_failures": ("Calls that violated a strict tool's schema, by reason.", _FAULTS),
    "repairs": ("Repaired calls, by fault.", ()),
    "untagged": ("Untagged calls, by form.", ()),
    "warnings": ("Warnings, by kind.", _WARNINGS),
    "dropped_calls": ("Calls withheld from the client, by reason.", ("OVER_LIMIT", "STRUCTURED_CALL")),
}

Labels = tuple[tuple[str, str], ...]
Known = Mapping[str, Sequence[str]] | None


class Family:
    """A counter or gauge with all its series. ``known`` contains the label values whose series exist from the start."""

    def __init__(self, name: str, explanation: str, kind: str = "counter", known: Known = None) -> None:
        self.name = f"toolsim_{name}"
        self._head = (f"# HELP {self.name} {explanation}", f"# TYPE {self.name} {kind}")
        self._values = dict.fromkeys(_known_series(known), 0)

    def add(self, labels: Mapping[str, str], amount: int = 1) -> None:
        """Add an amount to a series, or to the series ``other`` if there are too many series."""
        key = _bounded(tuple(labels.items()), self._values)
        self._values[key] = self._values.get(key, 0) + amount

    @property
    def has_values(self) -> bool:
        """Whether the family has any series."""
        return bool(self._values)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the family in the text format."""
        yield from self._head
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_braced(labels)} {value}"


class Histogram:
    """A histogram of durations. ``bounds`` are the upper bounds, in seconds, of all buckets except the last."""

    def __init__(self, name: str, explanation: str, bounds: Sequence[float], known: Known) -> None:
        self.name = f"toolsim_{name}"
        self._head = (f"# HELP {self.name} {explanation}", f"# TYPE {self.name} histogram")
        self._bounds = bounds
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        for key in _known_series(known):
            self._series(key)

    def observe(self, labels: Mapping[str, str], seconds: float) -> None:
        """Add one duration to the histogram."""
        key = _bounded(tuple(labels.items()), self._counts)
        self._series(key)[bisect_left(self._bounds, seconds)] += 1
        self._sums[key] += seconds

    def lines(self) -> Iterator[str]:
        """Yield the histogram's lines in the text format, with cumulative buckets."""
        yield from self._head
        for labels, counts in sorted(self._counts.items()):
            total = 0
            for end, count in zip((*(f"{bound:g}" for bound in self._bounds), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_braced((*labels, ('le', end)))} {total}"
            yield f"{self.name}_sum{_braced(labels)} {self._sums[labels]:.6f}"
            yield f"{self.name}_count{_braced(labels)} {total}"

    def _series(self, key: Labels) -> list[int]:
        self._sums.setdefault(key, 0.0)
        return self._counts.setdefault(key, [0] * (len(self._bounds) + 1))


class Metrics:
    """All metrics about exchanges.

    ``labels`` may contain "model" and "tool", each of which becomes an additional label.
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self.labels = frozenset(labels)
        self._build = Family("build_info", "Version and runtime; always 1.", "gauge")
        python = ".".join(map(str, sys.version_info[:3]))
        self._build.add({"version": __version__, "mitmproxy": mitmproxy_version.VERSION, "python": python})
        self._exchanges = Family(
            "exchanges_total",
            "Finished exchanges that offered or used tools, by the APIs of client and backend, streaming and outcome.",
            known=self._known(client=_APIS, backend=_APIS, stream=_STREAM, outcome=("ok", "failed", "aborted")),
        )
        self._durations = Histogram(
            "exchange_duration_seconds",
            "Seconds from the request headers to the end of the answer.",
            DURATIONS,
            self._known(client=_APIS, stream=_STREAM),
        )
        self._first_bytes = Histogram(
            "first_byte_seconds",
            "Seconds from the request headers to the first byte of a streamed answer sent to the client.",
            FIRST_BYTES,
            self._known(client=_APIS),
        )
        self._calls = Family("tool_calls_total", "Calls sent to clients.", known=self._known("tool", client=_APIS))
        self._tokens = Family(
            "tokens_total",
            "Tokens, as counted by backends or estimated; input includes cached tokens, and output includes "
            "reasoning tokens.",
            known=self._known(client=_APIS, kind=_TOKENS),
        )
        self._errors = Family(
            "errors_total",
            "Exchanges that failed for the client, by error code.",
            known=self._known(client=_APIS, code=_ERRORS),
        )
        self._cutoffs = Family(
            "tool_cutoffs_total",
            "Turns that toolsim ended before the backend did, by reason.",
            known=self._known(reason=_CUTOFFS),
        )
        self._rounds = Family(
            "rounds_total",
            "Rounds (requests to the backend) in answers that can have several rounds.",
            known=self._known(client=_APIS),
        )
        self._profiles = Family("profiles_total", "Finished exchanges with models that have a profile, by profile.")
        self._user_exchanges = Family(
            "user_exchanges_total", "Finished exchanges of each user in the key file, with or without tools."
        )
        self._user_tokens = Family("user_tokens_total", "Tokens used by each user in the key file, by kind.")
        self._hosted_calls = Family(
            "mcp_calls_total",
            "MCP tool calls that this proxy ran or refused, by outcome.",
            known=self._known("tool", client=_APIS, outcome=_OUTCOMES),
        )
        self._tallies = {
            key: Family(f"{key}_total", explanation, known=self._known("tool", reason=reasons))
            for key, (explanation, reasons) in _TALLIES.items()
        }

    def _known(self, *asked: str, **values: Sequence[str]) -> Known:
        """Return ``values``, or None if a label with unknown values is enabled ("model" or one of ``asked``)."""
        return None if self.labels & {"model", *asked} else values

    def count(self, report: Report, status: int | None, seconds: float, first_byte: float | None = None) -> None:
        """Count one finished exchange.

        ``status`` is None if the client received no answer. ``first_byte`` is the time, in seconds, until the client
        received its first byte.
        """
        model = {"model": report.model} if "model" in self.labels else {}
        client, stream = {"client": report.client}, {"stream": str(report.stream).lower()}
        outcome = _outcome(report, status)
        self._exchanges.add(client | {"backend": report.backend} | stream | {"outcome": outcome} | model)
        self._durations.observe(client | stream | model, seconds)
        if first_byte is not None:
            self._first_bytes.observe(client | model, first_byte)
        for name, count in Counter(report.calls).items():
            self._calls.add(client | model | self._tool(name), count)
        if report.profile:
            self._profiles.add({"profile": report.profile} | model)
        if report.rounds:
            self._rounds.add(client | model, report.rounds)
        for call in report.mcp_calls:
            which, _, tool = call.partition(":")
            self._hosted_calls.add(client | {"outcome": which} | model | self._tool(tool))
        for kind in _TOKENS:
            if number := report.tokens.get(kind):
                self._tokens.add(client | {"kind": kind} | model, number)
                if report.user:
                    self._user_tokens.add({"user": report.user, "kind": kind}, number)
        if outcome == "failed":
            self._errors.add(client | {"code": report.error or f"http_{status}"} | model)
        if report.tool_cutoff:
            self._cutoffs.add({"reason": report.tool_cutoff} | model)
        for tally in report.tallies():
            if (family := self._tallies.get(tally.key)) is not None:
                for entry, count in Counter(tally.entries).items():
                    family.add({"reason": code_of(entry)} | model | self._tool(entry.partition(":")[2]), count)

    def count_user(self, report: Report, status: int | None) -> None:
        """Count one finished turn for its user, whether or not it has tools."""
        if report.user:
            self._user_exchanges.add({"user": report.user, "outcome": _outcome(report, status)})

    def text(self, in_flight: int, more: Iterable[Family] = ()) -> str:
        """Return all metrics in the text format.

        ``in_flight`` is the number of exchanges in progress, and ``more`` contains additional metrics.
        """
        names = (
            "exchanges_in_progress",
            *(old for old, new in RENAMED_METRICS.items() if new == "exchanges_in_progress"),
        )
        in_progress = [Family(name, "Exchanges in progress.", "gauge") for name in names]
        for family in in_progress:
            family.add({}, in_flight)
        families: list[Family | Histogram] = [self._build, self._exchanges, self._durations, self._first_bytes]
        families += [self._calls, self._rounds, self._profiles, self._hosted_calls]
        families += [self._tokens, self._errors, self._cutoffs]
        families += [family for family in (self._user_exchanges, self._user_tokens) if family.has_values]
        families += [*self._tallies.values(), *in_progress, *more]
        return "\n".join(line for family in families for line in family.lines()) + "\n"

    def _tool(self, name: str) -> dict[str, str]:
        return {"tool": name} if "tool" in self.labels else {}


def _outcome(report: Report, status: int | None) -> str:
    return "aborted" if status is None else "failed" if report.error or status >= 400 else "ok"


def _known_series(known: Known) -> Iterator[Labels]:
    if known is not None:
        for values in product(*known.values()):
            yield tuple(zip(known, values, strict=True))


def _bounded(key: Labels, series: Mapping[Labels, object]) -> Labels:
    # Long values are truncated, because clients and models can choose names of any length.
    key = tuple((name, value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]}…") for name, value in key)
    if key in series or len(series) < MAX_SERIES:
        return key
    return tuple((name, _OTHER) for name, _ in key)


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
