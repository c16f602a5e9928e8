"""Background answers, generated without a waiting client: requested, polled, followed, cancelled.

    POST, background ─▶ endpoints.begin ─▶ runs.start ─▶ the rounds of ``rounds/``, as for an answer with a client
                               │               │
                               │               ├─▶ its events: ``event_log.py``, which streams follow
                               ▼               ▼
    GET, cancel, DELETE ─▶ endpoints.serve ─▶ background_store ─▶ the store

1. The store is the source of truth for every proxy. The record of an answer exists before the client gets its id.
2. The proxy that generates the answer holds its lease, a second record, and keeps renewing it. The end of an answer
   replaces the lease in the same write, so a second attempt to end it finds no lease and changes nothing. An answer
   ends only once, and the first outcome counts: complete, failed, cancelled or deleted.
3. If a lease is no longer renewed, its proxy is gone. The answer has then failed, and the next proxy that receives a
   request for it records this. A proxy that is stopped records it itself.
4. The events are kept by the proxy that generates the answer, and are in the store once it has ended; before that, only
   if a client follows it at another proxy (``remote_follower.py``).
5. A proxy that has lost its lease stops the model within ``background_store.RENEW_SECONDS``, or immediately if it
   receives the request to end the answer itself.
6. A limit in ``toolsim_store`` bounds the answers in progress: additional requests get a 429 rather than a place in a
   queue of unknown length. ``event_log.py`` bounds the stored events.
"""
