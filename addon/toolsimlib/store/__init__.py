"""Stores for finished answers: their protocol (``record.py``), and how an operator names one (``opening.py``).

The stores themselves are guests, in memory, SQLite or Redis (``STORES`` in ``guests.py``).

A store knows nothing of APIs. It holds records: a value, the record that it continues, and the names of what is in it.

1. *Partitions.* Each caller names a partition, and sees only what is in it.
2. *Atomicity.* Readers see what one ``put`` writes whole or not at all, even after a crash.
3. *Compare and write.* A ``put`` may state which version it expects to replace; if the current one differs, nothing is
   written. So two writers that add to one record lose none of each other's changes.
4. *Bounds.* Records, bytes and age are limited. What is beyond a limit is evicted from the partition with the largest
   share of it, so that one caller who fills the store loses his own records and not those of others. In a partition the
   least recently used go first, and continuing a record counts as using it and all that it continues: an active
   conversation does not lose its beginning.
5. *Errors* are ``StoreError``, raised in bounded time, and leave the store unchanged. A store that is down is tried
   again on the next call.
"""
