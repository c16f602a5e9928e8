"""Exports spans with the OpenTelemetry SDK, which the environment configures, and limits the SDK's verbose logging.

The SDK and its exporters read the settings for sampling, limits, batches and addresses themselves. This module selects
the exporters, since the SDK has no public function for selecting them. The provider is not registered globally, because
other packages in this process would then create spans as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from importlib.metadata import entry_points

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from toolsim.otel.content import Content, is_asked_for
from toolsim.version import __version__

logger = logging.getLogger(__name__)

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
"""The URL of the OpenTelemetry schema, for the version of the conventions that defines the attribute names."""

FLUSH_SECONDS = 5.0
"""Maximum time that the proxy waits at exit for all spans to be exported, in seconds."""
_POLL_SECONDS = 0.02
_MAX_WORDS = 240

_GROUP = "opentelemetry_traces_exporter"
# The name of the exporter for each value of OTEL_EXPORTER_OTLP_PROTOCOL. The default, http/protobuf, is the value that
# the specification recommends.
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc", "http/json": "otlp_json_http"}
# The SDK uses this logger to report that the queue of spans is full.
_QUEUE = "opentelemetry.sdk._shared_internal"


class Export:
    """Creates spans, and exports them to ``exporters``. Before the export, ``content`` is added to the spans."""

    def __init__(self, exporters: Sequence[SpanExporter], content: Content) -> None:
        self.content = content
        self._exporter = LoggingExporter(exporters, content)
        # The SDK's own exit handler would wait for an unreachable collector, so it is not used.
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("toolsim", __version__, schema_url=SCHEMA)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Export | None:
        """Create the exporters that the environment requests.

        If the exporters are not available, log the reason and return None.
        """
        exporters: list[SpanExporter] = []
        for name in _names(environment):
            found = next(iter(entry_points(group=_GROUP, name=name)), None)
            try:
                if found is None:
                    raise ImportError("the exporter is not installed")
                exporters.append(found.load()())
            except Exception as problem:
                # Any package can provide an exporter, so any exception can be raised.
                logger.warning("toolsim: the trace exporter %r is not available: %s", name, problem)
        return cls(exporters, Content(is_asked_for(environment))) if exporters else None

    def end(self) -> Awaitable[None]:
        """Export the remaining spans in a thread. The returned awaitable completes within ``FLUSH_SECONDS``."""
        # A daemon thread does not prevent the process from exiting.
        ending = threading.Thread(target=self._provider.shutdown, name="toolsim traces", daemon=True)
        ending.start()
        return asyncio.get_running_loop().create_task(self._ended(ending))

    async def _ended(self, ending: threading.Thread) -> None:
        until = time.monotonic() + FLUSH_SECONDS
        while ending.is_alive() and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)
        if ending.is_alive():
            self._exporter.log_failure(f"exporting the last spans took more than {FLUSH_SECONDS:g} s")


class LoggingExporter(SpanExporter):
    """Sends spans to several exporters, and logs only one message for consecutive failures.

    The exporters themselves would log a message for each batch or attempt.
    """

    def __init__(self, exporters: Sequence[SpanExporter], content: Content) -> None:
        self._exporters = exporters
        self._content = content
        self._is_failing = False
        self._heard = ""
        loggers = {kind.__module__ for exporter in exporters for kind in type(exporter).__mro__} | {_QUEUE}
        for name in loggers:
            logging.getLogger(name).addFilter(self._hear)

    def _hear(self, record: logging.LogRecord) -> bool:
        """Suppress an exporter's log record.

        The first record that is logged during the export of a batch is kept as the reason for a failure.
        """
        self._heard = self._heard or record.getMessage()
        return False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch to all exporters."""
        self._heard = ""
        if self._content.is_on:
            spans = [self._content.filled(span) for span in spans]
        results = [self._export(exporter, spans) for exporter in self._exporters]
        if all(result is SpanExportResult.SUCCESS for result in results):
            if self._is_failing:
                self._is_failing = False
                logger.info("toolsim: traces are being exported again")
            return SpanExportResult.SUCCESS
        self.log_failure(self._heard or "the exporter gave no reason")
        return SpanExportResult.FAILURE

    def _export(self, exporter: SpanExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            return exporter.export(spans)
        except Exception as problem:
            self._heard = self._heard or f"{type(problem).__name__}: {problem}"
            return SpanExportResult.FAILURE

    def log_failure(self, why: str) -> None:
        """Log that spans were lost, unless this was already logged after the last successful export."""
        if not self._is_failing:
            self._is_failing = True
            logger.warning("toolsim: cannot export traces: %s", " ".join(why.split())[:_MAX_WORDS])

    def shutdown(self) -> None:
        """Shut down all exporters."""
        for exporter in self._exporters:
            exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush all exporters."""
        return all(exporter.force_flush(timeout_millis) for exporter in self._exporters)


def _names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the requested exporters, under which packages have registered them."""
    names = [name.strip().lower() for name in (environment.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((value for name in variables if (value := environment.get(name, "").strip())), "http/protobuf")
    return [_PROTOCOLS.get(protocol, protocol) if name == "otlp" else name for name in names if name]


def _resource() -> Resource:
    named = OTELResourceDetector().detect().attributes.get("service.name")
    ours: dict[str, str] = {} if named else {"service.name": "toolsim"}
    return Resource.create({**ours, "service.version": __version__})
