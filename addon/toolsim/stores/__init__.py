"""Stores for finished answers, with their protocol (``record``), their URLs (``url``) and two implementations.

    record         the protocol, ``Store``, and the records in a store
    url            the URL of a store, with its kind and its limits
    sqlite         a SQLite file, or a database in memory
    redis_server   a Redis server that several proxies share

The core imports only the first two modules. It imports the module of a store on demand, by its name (``STORES`` in
``plugins.py``).

A store is independent of any API. It contains records. Each record has a value and, if it continues another record,
the ID of that other record. A record can also have other names under which it can be found.

1. *Partitions.* Each caller specifies a partition, and sees only the records in it.
2. *Atomicity.* Readers see either all of the records written by one ``put`` or none, even after a crash.
3. *Compare and write.* A ``put`` can specify the version that it expects to replace. If the current version differs,
   nothing is written. This prevents two callers that change the same record from overwriting each other's changes.
4. *Bounds.* Records, bytes and age are limited. Beyond a limit, records are evicted from the partition with the largest
   share, so that a caller that fills the store loses its own records and no others. In a partition, the least recently
   used records are evicted first. Continuing a record counts as a use of this record and of all of its predecessors, so
   an active conversation does not lose its beginning.
5. *Errors.* All errors are of the type ``StoreError``. They are raised within a limited time and leave the store
   unchanged. After an outage, the next call tries to reach the store again.
"""
