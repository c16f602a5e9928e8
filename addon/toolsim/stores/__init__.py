"""Stores for finished answers: their protocol (``record``), the URL that names one (``url``), and two stores.

    record         the protocol, ``Store``, and the records that a store holds
    url            the URL of a store: its kind and its bounds
    sqlite         a SQLite file, or a database in memory
    redis_server   a Redis server that several proxies share

The core imports only the first two. A store is found by the name of its module (``STORES`` in ``plugins.py``).

A store is independent of any API. It holds records: a value, the record that it
continues, and the names of its contents.

1. *Partitions.* Each caller names a partition, and sees only the records in it.
2. *Atomicity.* Readers see everything that one ``put`` writes or nothing of it, even after a crash.
3. *Compare and write.* A ``put`` may state which version it expects to replace; if the current one differs, nothing is
   written. So two writers that add to one record lose none of each other's changes.
4. *Bounds.* Records, bytes and age are limited. Beyond a limit, records are evicted from the partition with the largest
   share, so that a caller that fills the store loses its own records and not those of others. In a partition the
   least recently used go first, and continuing a record counts as using it and every record that it continues: an
   active conversation does not lose its beginning.
5. *Errors* are ``StoreError``, raised in bounded time, and leave the store unchanged. A store that is down is tried
   again on the next call.
"""
