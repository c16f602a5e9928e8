"""``python -m bench.against OLD [ROUNDS]``: compares the CPU time of a stream of prose with that in an older checkout.

Both versions run in a real mitmdump in front of the same backend, and their streams alternate. A round's ratio is
calculated from the CPU time of its two streams, so other load on the machine hardly affects it. Prints the medians, and
the quartiles of the ratio::

    git worktree add /tmp/old COMMIT && cd tests && ../.venv/bin/python -m bench.against /tmp/old
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from bench.stage import PATHS, Client, backends, cpu_seconds
from support.mitmdump import MITMDUMP, ROOT, Mitmdump

STREAMS = ("prose-8000-4-1", "prose-16000-4-8")
# Number of warm-up rounds, in which both versions compile and cache what they need.
_FIRST = 2


def main(arguments: list[str]) -> int:
    old, rounds = Path(arguments[0]).resolve(), int(arguments[1]) if len(arguments) > 1 else 15
    with ExitStack() as stack:
        url, _ = stack.enter_context(backends())
        sides = [
            stack.enter_context(
                Mitmdump(
                    url,
                    command=MITMDUMP,
                    script=tree / "addon" / "toolsim.py",
                    environment={"PYTHONPATH": f"{tree / 'addon'}"},
                )
            )
            for tree in (old, ROOT)
        ]
        clients = [Client(side.url) for side in sides]
        for stream in STREAMS:
            for api in PATHS:
                costs: list[list[float]] = [[], []]
                for turn in range(rounds + _FIRST):
                    for side in (0, 1) if turn % 2 else (1, 0):
                        before = cpu_seconds(sides[side].pid)
                        clients[side].ask(api, stream)
                        costs[side].append(1000 * (cpu_seconds(sides[side].pid) - before))
                then, now = (times[_FIRST:] for times in costs)
                low, middle, high = statistics.quantiles([b / a for a, b in zip(then, now, strict=True)], n=4)
                print(
                    f"{stream:16} {api:10} {statistics.median(then):6.1f} ms then {statistics.median(now):6.1f} now,"
                    f" × {middle:.2f} ({low:.2f} to {high:.2f})",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
