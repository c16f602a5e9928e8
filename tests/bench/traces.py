"""The cost of traces: a turn whose spans a collector gets, next to the same turn without."""

from __future__ import annotations

from collections.abc import Iterator

from bench import added
from bench.stage import Proxies
from bench.table import Row
from support.otlp_receiver import OtlpReceiver

MODEL = "prose-100-4-1"
PROCESSES = 7


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield the rows of a streamed turn and of a whole one."""
    with OtlpReceiver() as receiver:
        # With the SDK's own batches, as operators have it.
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        for stream in (True, False):
            pairs = (
                (proxies.fresh(), proxies.fresh(environment=environment)) for _ in range(1 if quick else PROCESSES)
            )
            yield from added.rows("traces", "a turn with its trace", 1.0, MODEL, pairs, stream=stream)
