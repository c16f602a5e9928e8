"""The cost of profiles: a turn with many profiles, one of which matches the model, compared to a turn with none."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import added
from bench.stage import Proxies
from bench.table import Row

MODEL = "prose-100-4-1"
PROFILES = 40
PROCESSES = 5


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield the rows for streamed and non-streamed turns. The matching profile does not change the request."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PROFILES):
            pattern = "prose-*" if number == 0 else f"model-{number}-*"
            text = f'models = ["{pattern}"]\n[options]\ntoolsim_history = "tagged"\n'
            Path(folder, f"{number}.toml").write_text(text)
        for stream in (True, False):
            pairs = (
                (proxies.fresh(toolsim_profiles="off"), proxies.fresh(toolsim_profiles=folder))
                for _ in range(1 if quick else PROCESSES)
            )
            yield from added.rows("profiles", f"a turn with {PROFILES} profiles", 0.5, MODEL, pairs, stream=stream)
