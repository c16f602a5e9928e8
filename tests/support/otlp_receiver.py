"""A simulated OpenTelemetry collector: receives OTLP over HTTP as protobuf, and decodes it with the official package.

Unlike a real collector, it checks only that the package can decode the data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

KINDS = {
    trace_pb2.Span.SPAN_KIND_SERVER: "SERVER",
    trace_pb2.Span.SPAN_KIND_CLIENT: "CLIENT",
    trace_pb2.Span.SPAN_KIND_INTERNAL: "INTERNAL",
}


@dataclass(frozen=True)
class Received:
    """A span as received. IDs are hexadecimal, ``parent`` is "" for a root span, and times are in nanoseconds."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    state: str
    is_error: bool
    began: int
    ended: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


class OtlpReceiver:
    """The simulated collector, as a context manager.

    ``status``: the HTTP status of its responses; ``bodies``: the bodies of all requests.
    """

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
        self._spans: list[Received] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.bodies.append(body)
                if receiver.status == 200:
                    assert self.path == "/v1/traces", self.path
                    assert self.headers["content-type"] == "application/x-protobuf"
                    receiver._spans += decoded(body)
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        """Environment variables that make a proxy send its spans to this server with little delay."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def forget(self) -> None:
        """Discard all received spans and bodies."""
        self.bodies, self._spans = [], []

    def spans(self, count: int = 1, seconds: float = 15.0) -> list[Received]:
        """Wait until ``count`` spans have arrived; return the spans, ordered by start time."""
        end = time.monotonic() + seconds
        while len(self._spans) < count and time.monotonic() < end:
            time.sleep(0.02)
        assert len(self._spans) >= count, f"expected {count} spans, got:\n{tree(self._spans)}"
        return sorted(self._spans, key=lambda span: span.began)


def decoded(body: bytes) -> Iterator[Received]:
    """Yield the spans in the body of a request."""
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {each.key: value(each.value) for each in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Received(
                    span.name,
                    KINDS[span.kind],
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.trace_state,
                    span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    {each.key: value(each.value) for each in span.attributes},
                    resource,
                )


def value(given: AnyValue) -> Any:
    """Return an attribute's value as a Python value."""
    kind = given.WhichOneof("value")
    found = getattr(given, kind) if kind else None
    return [value(each) for each in found.values] if kind == "array_value" else found


# The attributes that ``tree`` shows.
SHOWN = ("error.type", "http.response.status_code", "toolsim.rounds", "toolsim.calls", "toolsim.retries")
SHOWN += ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "network.transport")


def tree(spans: list[Received]) -> str:
    """Return the spans as an indented tree with some of their attributes."""
    known = {span.id for span in spans}

    def lines(parent: str, depth: int) -> Iterator[str]:
        for span in sorted(spans, key=lambda each: each.began):
            if span.parent == parent or (depth == 0 and span.parent not in known):
                name, took = f"{'  ' * depth}{span.name}", (span.ended - span.began) / 1e6
                shown = [f"{key}={span.attributes[key]}" for key in SHOWN if key in span.attributes]
                yield f"{name:<23} {span.kind:<9} {took:>5.0f} ms  {' '.join(shown)}".rstrip()
                yield from lines(span.id, depth + 1)

    return "\n".join(lines("", 0))
