"""``make soak SECONDS=1800``: runs a long load test with faults, and prints the outcome."""

from __future__ import annotations

import argparse
import sys

from soak import frames, hostile, sockets
from soak.run import Soak


def main() -> int:
    """Run the soak test, and return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hostile", nargs="*", choices=hostile.ATTACKS, help="a client alone and beside a hostile one")
    parser.add_argument("--size", type=int, default=0, help="next to a hostile client: requests of so many bytes")
    parser.add_argument("--sockets", type=int, help="so many WebSocket connections instead")
    parser.add_argument("--frames", action="store_true", help="floods of WebSocket frames instead, and what they delay")
    given = parser.parse_args()
    if given.frames:
        return next_to_floods()
    if given.sockets:
        found = sockets.run(given.seconds, given.sockets, given.seed)
        print("\n".join([str(found), *found.wrong[:20]]))
        return 1 if found.wrong else 0
    if given.hostile is not None:
        return next_to_a_hostile_client(given.seconds, given.streams, given.hostile, given.size)
    outcome = Soak(given.seconds, given.streams, given.seed).run()
    print(f"{outcome.total} exchanges: {dict(outcome.done)}; the proxy counted {outcome.counted}")
    print(f"slowest {outcome.slowest:.1f} s; memory grew by {outcome.growth:.1f} MiB:")
    print(
        "  ".join(
            f"{seconds:.0f} s {size:.0f}" for seconds, size in outcome.memory[:: max(len(outcome.memory) // 20, 1)]
        )
    )
    print(f"{len(outcome.wrong)} wrong")
    return 1 if outcome.wrong or outcome.counted != outcome.total else 0


def next_to_floods() -> int:
    """Print the longest wait of other clients during floods of frames.

    Return 1 if a wait is too long, or if the proxy did not close the connection of a flood as expected.
    """
    found = frames.run()
    floods = [waits for kind, waits in found.items() if kind]
    is_wrong = any(waits.longest > frames.MAX_WAIT or waits.close_code != 1008 for waits in floods)
    print(f"the longest wait of a health page is {max(waits.longest for waits in floods):.3f} s", end=" ")
    print(f"(at most {frames.MAX_WAIT:g})")
    return int(is_wrong)


def next_to_a_hostile_client(seconds: float, streams: int, attacks: list[str], size: int) -> int:
    """Print a client's response times without and during attacks.

    Return 1 if an attack on the same proxy more than doubles the times, an answer is incorrect, data of one client
    reaches another, or memory keeps growing.
    """
    alone, elsewhere, attacked = hostile.compare(seconds, streams, attacks, size)
    print(f"alone:                          {alone}")
    print(f"beside an attack elsewhere:     {elsewhere}")
    print(f"beside one on the same proxy:   {attacked}")
    print(f"the hostile client: elsewhere {dict(elsewhere.hostile)}, here {dict(attacked.hostile)}")
    wrong = [*alone.wrong, *elsewhere.wrong, *attacked.wrong]
    wrong += [what for what in (*elsewhere.hostile, *attacked.hostile) if hostile.CROSSED in what]
    print("\n".join(wrong[:20]))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        here, there = (one.percentile(share) / alone.percentile(share) for one in (attacked, elsewhere))
        print(f"{name} is {here:.2f} times as long (by what an attack costs the machine alone: {there:.2f})")
    print(f"memory grows by {attacked.growth:.1f} MiB a minute (at most {hostile.MAX_GROWTH:g})")
    is_slow = attacked.percentile(0.99) > hostile.MAX_RATIO * alone.percentile(0.99)
    return 1 if wrong or is_slow or attacked.growth > hostile.MAX_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
