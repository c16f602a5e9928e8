"""``make soak SECONDS=1800``: load and faults for long, and what came of it."""

from __future__ import annotations

import argparse
import sys

from soak.run import Soak


def main() -> int:
    """Run, and return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
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


if __name__ == "__main__":
    sys.exit(main())
