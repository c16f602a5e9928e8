"""What is there once the proxy is up stays to its end: the garbage collector need not look at it again.

Python's full collections stop everyone while they look at each object: with mitmproxy and this addon in memory that is
a hundred thousand, and a pause of 40 ms and more for every stream. Frozen, they are none of the collector's business.
"""

from __future__ import annotations

import gc


class Heap:
    """An addon that freezes the objects that are there when mitmproxy runs, and lets them go when it is unloaded."""

    def running(self) -> None:
        """Collect what is garbage, and freeze all else."""
        gc.collect()
        gc.freeze()

    def done(self) -> None:
        """Let the collector see everything again, so that a script that is loaded anew leaves nothing behind."""
        gc.unfreeze()
