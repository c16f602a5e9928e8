"""Counters, histograms and their text format. tests/proxy/test_metrics.py checks that Prometheus accepts the format."""

from __future__ import annotations

import re

import pytest
from toolsim.core.report import Report
from toolsim.proxy.reporting import metrics
from toolsim.proxy.reporting.metrics import MAX_VALUE, Metrics
from toolsim.version import __version__


def value(text: str, series: str) -> float | None:
    """Return the value of a series. ``series`` contains its name and labels, written as in the text format."""
    found = re.search(rf"^toolsim_{re.escape(series)} (.*)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def failed() -> Report:
    return Report(
        client="chat",
        backend="responses",
        model="m",
        stream=True,
        calls=["f", "g", "f"],
        parse_failures=["MALFORMED_JSON:f", "MALFORMED_JSON:g"],
        tokens={"input": 1_234_567, "output": 5, "total": 1_234_572},
        tool_cutoff="text after tools",
        error="backend_timeout",
    )


def test_series_exist_before_their_first_event() -> None:
    """Each series exists from the start with the value 0. Otherwise Prometheus would not count the first event as an
    increase.
    """
    text = Metrics().text(3)
    assert value(text, "exchanges_in_progress") == 3
    for series in (
        'exchanges_total{client="chat",backend="chat",stream="true",outcome="failed"}',
        'tool_calls_total{client="responses"}',
        'exchange_duration_seconds_count{client="responses",stream="false"}',
        'first_byte_seconds_bucket{client="chat",le="+Inf"}',
        'tokens_total{client="chat",kind="output"}',
        'errors_total{client="chat",code="backend_unavailable"}',
        'parse_failures_total{reason="UNKNOWN_TOOL"}',
        'dropped_calls_total{reason="OVER_LIMIT"}',
    ):
        assert value(text, series) == 0, series
    assert f'toolsim_build_info{{version="{__version__}",' in text


def test_rounds_and_mcp_calls_are_counted() -> None:
    """Rounds are counted, and MCP calls are counted by outcome. If the operator enables the tool label, MCP calls are
    also counted by tool.
    """
    report = Report(client="chat", backend="chat", rounds=3, mcp_calls=["OK:files.read", "LIMIT:files.read"])
    plain, labelled = Metrics(), Metrics(["tool"])
    assert value(plain.text(0), 'mcp_calls_total{client="chat",outcome="SERVER_FAILED"}') == 0
    for metrics_ in (plain, labelled):
        metrics_.count(report, 200, 1.0)
        assert value(metrics_.text(0), 'rounds_total{client="chat"}') == 3
    assert value(plain.text(0), 'mcp_calls_total{client="chat",outcome="OK"}') == 1
    assert value(labelled.text(0), 'mcp_calls_total{client="chat",outcome="LIMIT",tool="files.read"}') == 1


def test_exchange_is_counted() -> None:
    """The calls, tokens and errors of an exchange are counted. By default, the metrics do not contain the names of
    models and tools. Large numbers are not rounded.
    """
    counted = Metrics()
    counted.count(failed(), 200, 1.5, 0.3)
    counted.count(Report(client="chat", backend="chat"), 429, 0.5)
    counted.count(Report(client="chat", backend="chat", error="aborted"), None, 0.5)
    text = counted.text(0)
    assert value(text, 'exchanges_total{client="chat",backend="responses",stream="true",outcome="failed"}') == 1
    assert value(text, 'exchanges_total{client="chat",backend="chat",stream="false",outcome="failed"}') == 1
    assert value(text, 'exchanges_total{client="chat",backend="chat",stream="false",outcome="aborted"}') == 1
    assert value(text, 'tool_calls_total{client="chat"}') == 3
    assert value(text, 'tokens_total{client="chat",kind="input"}') == 1_234_567
    assert value(text, 'errors_total{client="chat",code="backend_timeout"}') == 1
    assert value(text, 'errors_total{client="chat",code="http_429"}') == 1
    assert value(text, 'errors_total{client="chat",code="aborted"}') is None
    assert value(text, 'parse_failures_total{reason="MALFORMED_JSON"}') == 2
    assert value(text, 'tool_cutoffs_total{reason="text after tools"}') == 1
    assert '"m"' not in text


def test_times_are_counted_in_buckets() -> None:
    """A histogram bucket counts times up to and including its bound, and the last bucket counts all times."""
    counted = Metrics()
    for seconds in (0.1, 0.11, 1000.0):
        counted.count(Report(client="chat", backend="chat"), 200, seconds)
    text = counted.text(0)
    series = 'exchange_duration_seconds_{}{{client="chat",stream="false"{}}}'
    ends = {"0.1": 1, "0.25": 2, "300": 2, "+Inf": 3}
    assert {end: value(text, series.format("bucket", f',le="{end}"')) for end in ends} == ends
    assert value(text, series.format("count", "")) == 3
    assert value(text, series.format("sum", "")) == 1000.21


def test_optional_labels() -> None:
    """The operator can add labels for models and tools. A series with a model or tool label does not exist before its
    first event.
    """
    counted = Metrics(["model", "tool"])
    counted.count(failed(), 200, 1.5, 0.3)
    text = counted.text(0)
    assert value(text, 'tool_calls_total{client="chat",model="m",tool="f"}') == 2
    assert value(text, 'parse_failures_total{reason="MALFORMED_JSON",model="m",tool="g"}') == 1
    assert value(text, 'first_byte_seconds_count{client="chat",model="m"}') == 1
    assert value(text, 'errors_total{client="chat",code="backend_timeout",model="m"}') == 1
    assert "responses" not in re.sub('backend="responses"', "", text)
    alone = Metrics(["tool"])
    assert value(alone.text(0), 'tokens_total{client="chat",kind="input"}') == 0
    assert value(alone.text(0), 'tool_calls_total{client="chat"}') is None


def test_series_are_bounded_and_labels_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of series is limited, and special characters in labels are escaped, because a backend can send
    arbitrary error codes.
    """
    monkeypatch.setattr(metrics, "MAX_SERIES", 20)
    counted = Metrics(["model"])
    counted.count(Report(client="chat", error='a"b\\c\nd', model="m"), 200, 0)
    for number in range(100):
        counted.count(Report(client="chat", error=str(number), model="m"), 200, 0)
    text = counted.text(0)
    assert value(text, 'errors_total{client="chat",code="a\\"b\\\\c\\nd",model="m"}') == 1
    assert value(text, 'errors_total{client="other",code="other",model="other"}') == 81
    assert text.count("\ntoolsim_errors_total") == 21


def test_every_series_belongs_to_a_family() -> None:
    """Each series belongs to a metric family with a type and a help text."""
    counted = Metrics()
    counted.count(failed(), 200, 1.5, 0.3)
    text = counted.text(0)
    names = {re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    typed = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")}
    helped = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in names} <= typed == helped


def test_long_label_is_truncated() -> None:
    """A long label value is truncated, because clients and models choose names freely."""
    made = Metrics(("tool",))
    report = Report(client="chat")
    report.calls = ["x" * 100_000]
    made.count(report, 200, 1.0)
    text = made.text(0)
    assert f'tool="{"x" * MAX_VALUE}…"' in text
    assert len(text) < 100_000
