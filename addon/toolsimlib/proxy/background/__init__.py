"""Answers that are made without their clients: requested, polled, followed, cancelled.

    POST, background ─▶ edge.begin ─▶ runs.start ─▶ the rounds of ``loop/``, as for an answer with a client
                             │            │
                             │            ├─▶ its events: ``loop/event_log.py``, which streams follow
                             ▼            ▼
    GET, cancel, DELETE ─▶ edge.serve ─▶ ledger ─▶ the store

1. The store is the truth, whichever proxy is asked. An answer's record is there before the client gets its id.
2. Who makes it holds its lease, a second record, and says by that again and again that it lives. Whatever ends an
   answer replaces the lease in the same write: who comes second finds it gone, and changes nothing. So an answer ends
   once, as what was first: complete, failed, cancelled or deleted.
3. A lease that is not renewed any more is that of a proxy that is gone: the answer has failed, and whoever asks for it
   writes that down. A proxy that is stopped does so itself.
4. Its events are with whoever makes it, and in the store when it is over; before that only if somebody follows it at
   another proxy (``elsewhere.py``).
5. A proxy whose lease was taken stops the model, within ``ledger.RENEW_SECONDS``; one that is asked itself, at once.
6. What is made at one time is bounded by ``toolsim_background_max``: more is a 429 and not a queue, whose end nobody
   would know. What is kept of its events by ``toolsim_background_event_bytes``.
"""
