"""Where finished answers are kept: one protocol (``record.py``), and three stores that obey it.

A store knows nothing of APIs. It holds records: a value, the record that it continues, and the names of what is in it.

1. *Partitions.* Whoever asks names a partition, and sees what is in it and nothing else.
2. *All or nothing.* What one ``put`` writes, readers see whole or not at all, as they do after a crash.
3. *Compare and write.* A ``put`` may say at which version it expects what it replaces; if that is not there any more,
   nothing is written. So two writers that add to one record lose nothing of each other's.
4. *Bounds.* Records, bytes and age are limited. What was not used for longest goes first, and to continue a record is
   to use it, with all that it continues: a conversation that goes on does not lose its beginning.
5. *Errors* are ``StoreError``, in bounded time, and leave the store as it was. A store that is down is asked again the
   next time.
"""
