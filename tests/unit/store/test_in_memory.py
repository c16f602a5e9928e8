"""The store in this process: what is particular to it (``test_record.py`` covers what all have in common)."""

from __future__ import annotations

from toolsimlib.store.in_memory import MemoryStore
from toolsimlib.store.record import Bounds, Record


async def test_what_is_forgotten_leaves_nothing_behind() -> None:
    """Once everything is deleted or replaced, no name and no byte is left."""
    store = MemoryStore(Bounds())
    for value in b"1", b"22":
        await store.put("p", [Record("x", value, names=("n", "m"))])
    await store.put("p", [Record("y", b"", names=("n",))])
    assert await store.delete("p", "x")
    assert await store.delete("p", "y")
    assert (store._names, store._bytes, len(store._entries)) == ({}, 0, 0)
