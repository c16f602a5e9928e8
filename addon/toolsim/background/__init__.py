"""Background answers, made without a waiting client: requested, polled, followed, cancelled.

    POST, background ─▶ edge.begin ─▶ runs.start ─▶ the rounds of ``rounds/``, as for an answer with a client
                             │            │
                             │            ├─▶ its events: ``event_log.py``, which streams follow
                             ▼            ▼
    GET, cancel, DELETE ─▶ edge.serve ─▶ ledger ─▶ the store

1. The store is the source of truth for every proxy. The record of an answer exists before the client gets its id.
2. The proxy that makes it holds its lease, a second record, and keeps renewing it. Whatever ends an answer replaces the
   lease in the same write: a second attempt finds it gone, and changes nothing. So an answer ends once, and the first
   outcome counts: complete, failed, cancelled or deleted.
3. If a lease is no longer renewed, its proxy is gone: the answer has failed, and the next proxy that is asked for it
   records that. A proxy that is stopped does so itself.
4. The events are in the proxy that makes the answer, and in the store when it is over; before that only if somebody
   follows it at another proxy (``elsewhere.py``).
5. A proxy that has lost its lease stops the model within ``ledger.RENEW_SECONDS``; if the request to end the answer
   comes to that proxy itself, at once.
6. A limit in ``toolsim_store`` bounds the answers in progress: more get a 429 rather than a queue of unknown length.
   ``event_log.py`` bounds what is stored of their events.
"""
