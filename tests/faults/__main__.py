"""Makes every function that a turn calls fail once, with each exception type: ``python -m faults [WORD …]``.

Each WORD selects scenarios or exception types by name. Prints each bad outcome, and one row per scenario.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from faults.scenarios import SCENARIOS
from faults.trial import ERRORS, world


def main(words: list[str]) -> int:
    errors = [error for error in ERRORS if error in words] or list(ERRORS)
    words = [word for word in words if word not in ERRORS]
    bad = 0
    with tempfile.TemporaryDirectory() as folder, world(Path(folder)) as place:
        for scenario in SCENARIOS.values():
            if words and scenario.name not in words:
                continue
            functions = place.functions(scenario)
            for error in errors:
                counts: Counter[str] = Counter()
                for name in functions:
                    result = place.run(scenario, name, error)
                    if result is None:
                        continue
                    counts[result.outcome] += 1
                    if result.is_bad:
                        bad += 1
                        print(f"    {result.outcome:16} {result.function}  {result.why}", flush=True)
                shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
                print(f"{scenario.name:28} {error:15} {counts.total():4} of {len(functions)}: {shown}", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
