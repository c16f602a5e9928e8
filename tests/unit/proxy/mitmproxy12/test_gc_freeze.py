"""Freezing objects that exist at startup, so that garbage collection does not examine them.

Each test runs in a separate process, because objects stay frozen for the rest of the process. Unfreezing them would
also expose the garbage of earlier tests, such as sockets, and an unrelated test could fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

FROZEN_UNTIL_THE_END = """
addon = gc_freeze.GcFreeze()
addon.running()
frozen, watched = gc.get_freeze_count(), len(gc.get_objects())
addon.done()
print(json.dumps([frozen, watched, gc.get_freeze_count()]))
"""

FREEZES_LATER_OBJECTS = """
gc_freeze._LONG_SECONDS = 0
gc.disable()
addon = gc_freeze.GcFreeze()
addon.running()
counts, kept = [gc.get_freeze_count()], []
for _ in range(5):
    kept.append([[] for _ in range(1_000)])
    gc.collect()
    counts.append(gc.get_freeze_count())
print(json.dumps(counts))
"""


def run(script: str) -> Any:
    """Run a script that uses ``gc_freeze`` and return its output as JSON."""
    imports = "import gc, json\nfrom toolsim.proxy.mitmproxy12 import gc_freeze\n"
    done = subprocess.run([sys.executable, "-c", imports + script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_objects_are_frozen_while_the_addon_is_loaded() -> None:
    """While the addon is loaded, a full garbage collection examines only new objects."""
    frozen, watched, frozen_after = run(FROZEN_UNTIL_THE_END)
    assert frozen > 1_000
    assert watched < frozen
    assert frozen_after == 0


def test_later_objects_are_frozen_by_the_first_long_collections() -> None:
    """Objects created after startup are frozen at the first three long garbage collections, but not at later ones."""
    counts = run(FREEZES_LATER_OBJECTS)
    added = [after - before for before, after in pairwise(counts)]
    assert [more >= 1_000 for more in added] == [True, True, True, False, False]


SHORT_COLLECTIONS = """
default = gc.get_threshold()
addon = gc_freeze.GcFreeze()
addon.running()
sizes = []
gc.callbacks.append(lambda phase, info: phase == "start" and info["generation"] == 2 and sizes.append(info))
kept = []
while not sizes:
    kept.append([])
during = gc.get_threshold()
addon.done()
print(json.dumps([during[:2] == default[:2], gc.get_threshold() == default, len(kept) / (default[0] * default[1])]))
"""


def test_full_collections_are_frequent_while_the_addon_is_loaded() -> None:
    """While the addon is loaded, Python runs a full garbage collection after only a few collections of the middle
    generation.
    """
    is_otherwise_equal, is_restored, middle_collections = run(SHORT_COLLECTIONS)
    assert (is_otherwise_equal, is_restored) == (True, True)
    assert middle_collections < 8  # With the default threshold, there would be 13.
