"""The cost of traces: a turn whose spans are sent to a collector, compared to the same turn without traces."""

from __future__ import annotations

from collections.abc import Iterator

from bench import added
from bench.stage import Proxies
from bench.table import Row
from support.otlp_receiver import OtlpReceiver

MODEL = "prose-100-4-1"
PROCESSES = 7


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield the rows for a streamed turn and a non-streamed turn."""
    with OtlpReceiver() as receiver:
        # Use the SDK's default batches, as operators do.
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        for stream in (True, False):
            pairs = (
                (proxies.fresh(), proxies.fresh(environment=environment)) for _ in range(1 if quick else PROCESSES)
            )
            yield from added.rows("traces", "a turn with its trace", 1.0, MODEL, pairs, stream=stream)
