"""``make bench``: prints a table with a verdict for each row that has a goal; writes ``build/bench.json`` and
``build/bench.svg``.

Groups can be selected (ROWS="cpu delay"), and QUICK=1 takes only about two minutes. Two groups run only if they are
selected by name: ``peers``, which installs other proxies, and ``several``, which needs HAProxy and Redis. Figures are
medians. Ratios compare medians from one run in which the two versions alternate. The goals assume a quiet machine with
two cores. Goals in ms or µs are scaled by the speed of this machine (``machine.py``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from bench import (
    codex,
    cpu,
    delay,
    mcp,
    paced,
    parser,
    peers,
    profiles,
    prompt,
    rewriting,
    several,
    store,
    throughput,
    traces,
)
from bench.machine import pace
from bench.stage import Proxies, proxies
from bench.table import BUILD, HEADING, Row, save

Measure = Callable[[bool], Iterator[Row]]


def groups(stage: Proxies) -> dict[str, Measure]:
    return {
        "parser": parser.measure,
        "rewriting": rewriting.measure,
        "prompt": prompt.measure,
        "cpu": partial(cpu.measure, stage),
        "delay": partial(delay.measure, stage),
        "paced": partial(paced.measure, stage),
        "whole": partial(throughput.measure, stage),
        "memory": partial(throughput.measure_memory, stage),
        "store": partial(store.measure, stage),
        "traces": partial(traces.measure, stage),
        "profiles": partial(profiles.measure, stage),
        "several": partial(several.measure, stage),
        "mcp": mcp.measure,
        "codex": codex.measure,
        "peers": partial(peers.measure, stage),
    }


def main(arguments: list[str]) -> int:
    """Measure the selected groups, or all groups by default; ``--quick`` shortens the runs."""
    quick = "--quick" in arguments
    wanted = [name for name in arguments if name != "--quick"]
    rows: list[Row] = []
    with proxies() as stage:
        known = groups(stage)
        if unknown := [name for name in wanted if name not in known]:
            print(f"no such rows: {' '.join(unknown)}; there are {' '.join(known)}")
            return 2
        print(HEADING)
        unasked = {"peers", "several", "codex"} if quick else {"peers", "several"}
        for name in wanted or [name for name in known if name not in unasked]:
            before = pace()
            for row in known[name](quick):
                after = pace()
                rows.append(row if row.pace is not None else replace(row, pace=(before + after) / 2))
                before = after
                print(rows[-1].line(), flush=True)
    save(rows, BUILD)
    verdicts = Counter(row.verdict for row in rows if row.goal is not None)
    print(
        f"{len(rows)} rows, {verdicts.total()} with a goal: {verdicts['ok']} ok, {verdicts['scaled']} scaled, "
        f"{verdicts['MISSED']} missed: {BUILD}/bench.svg"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
