"""Tests for the trace exporters that environment variables select: missing packages, the logging of failures, and
shutdown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from toolsim.otel import export
from toolsim.otel.content import Content
from toolsim.otel.export import Export, LoggingExporter

NOTHING = Content(False)


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ["otlp_proto_http"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_http", "console"]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
        ),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, ["zipkin"]),
    ],
)
def test_exporter_selection(environment: dict[str, str], names: list[str]) -> None:
    assert export._names(environment) == names


def test_missing_exporter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If the selected exporter is not installed, an error that names it is logged, and the proxy runs without
    traces.
    """
    made = Export.from_environment({"OTEL_TRACES_EXPORTER": "carrier_pigeon"})
    assert made is None
    assert ["carrier_pigeon" in record.getMessage() for record in caplog.records] == [True]


def test_service_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service name is "toolsim" unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` sets another name."""
    assert export._resource().attributes["service.name"] == "toolsim"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,team=a")
    assert export._resource().attributes["service.name"] == "mine"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    assert export._resource().attributes["service.name"] == "ours"
    assert export._resource().attributes["team"] == "a"


class Failing(SpanExporter):
    """An exporter that fails while ``problem`` is set. It logs failures like a real exporter."""

    problem: Exception | str | None = "Transient error: connection refused"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.problem is None:
            return SpanExportResult.SUCCESS
        if isinstance(self.problem, Exception):
            raise self.problem
        logging.getLogger(__name__).warning("%s, retrying", self.problem)
        logging.getLogger(__name__).error("Failed to export")
        return SpanExportResult.FAILURE


@pytest.mark.parametrize("problem", ["Transient error: connection refused", ValueError("connection\nrefused")])
def test_failure_is_logged_once(problem: Exception | str, caplog: pytest.LogCaptureFixture) -> None:
    """Repeated export failures cause a single log line with the reason. When an export succeeds again, a second line is
    logged.
    """
    exporter = Failing()
    exporter.problem = problem
    told = LoggingExporter([exporter], NOTHING)
    with caplog.at_level("INFO"):
        for _ in range(3):
            assert told.export([]) is SpanExportResult.FAILURE
        exporter.problem = None
        assert told.export([]) is SpanExportResult.SUCCESS
        assert told.export([]) is SpanExportResult.SUCCESS
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("toolsim: cannot export traces: ")
    assert "refused" in first
    assert "\n" not in first
    assert last == "toolsim: traces are being exported again"


def test_failing_exporter_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    """If one exporter fails, the other exporters still receive the spans."""
    memory = InMemorySpanExporter()
    made = Export([Failing(), memory], NOTHING)
    made.tracer.start_span("a").end()
    made._provider.shutdown()
    assert [span.name for span in memory.get_finished_spans()] == ["a"]
    assert len(caplog.records) == 1


async def test_shutdown_exports_remaining_spans() -> None:
    memory = InMemorySpanExporter()
    made = Export([memory], NOTHING)
    made.tracer.start_span("a").end()
    await made.end()
    assert [span.name for span in memory.get_finished_spans()] == ["a"]


async def test_shutdown_does_not_wait_forever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the trace collector does not respond, shutdown waits for a limited time, and then logs the delay."""
    over = threading.Event()

    class Swallowing(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            over.wait(20)
            return SpanExportResult.SUCCESS

    monkeypatch.setattr(export, "FLUSH_SECONDS", 0.2)
    made = Export([Swallowing()], NOTHING)
    made.tracer.start_span("a").end()
    began = time.monotonic()
    await made.end()
    assert 0.2 <= time.monotonic() - began < 15
    assert "took more than 0.2 s" in caplog.text
    over.set()
