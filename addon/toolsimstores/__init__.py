"""The stores for finished answers, behind the protocol of ``toolsimlib.store``: in SQLite or memory, and in Redis."""
