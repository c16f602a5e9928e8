"""Background answers, which are generated without a waiting client. Clients can poll, follow and cancel them.

    POST, background ─▶ endpoints.begin ─▶ runs.start ─▶ the rounds of ``rounds/``, as for an answer with a client
                               │               │
                               │               ├─▶ its events: ``event_log.py``, which streams follow
                               ▼               ▼
    GET, cancel, DELETE ─▶ endpoints.serve ─▶ background_store ─▶ the store

1. The store is the source of truth for every proxy. The record of an answer exists before the client receives its id.
2. The proxy that generates the answer holds its lease, a second record, and keeps renewing it. The end of an answer
   replaces the lease in the same write, so a second attempt to end the answer finds no lease and changes nothing. An
   answer ends only once, and the first outcome counts: complete, failed, canceled or deleted.
3. If a lease is no longer renewed, its proxy is gone, so the answer has failed. The next proxy that receives a request
   for the answer records the failure. A proxy that is stopped records the failure itself.
4. The proxy that generates an answer keeps the events in memory. They are written to the store when the answer has
   ended, or earlier if a client follows the answer at another proxy (``remote_follower.py``).
5. A proxy that has lost its lease stops the model within ``background_store.RENEW_SECONDS``, or immediately if it
   receives the request to end the answer itself.
6. A limit in ``toolsim_store`` bounds the answers in progress: additional requests are rejected with a 429 rather than
   added to a queue of unknown length. ``event_log.py`` bounds the stored events.
"""
