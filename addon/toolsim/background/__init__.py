"""Generates background answers while no client is waiting. Clients can poll, follow and cancel the answers.

    POST, background ─▶ endpoints.begin ─▶ runs.start ─▶ the rounds of ``rounds/``, as for an answer with a client
                               │               │
                               │               ├─▶ its events: ``event_log.py``, which streams follow
                               ▼               ▼
    GET, cancel, DELETE ─▶ endpoints.serve ─▶ background_store ─▶ the store

1. The store is the source of truth for every proxy. The record of an answer exists before the client receives the
   answer's ID.
2. The proxy that generates the answer holds the answer's lease, which is a second record, and keeps renewing it. The
   write that ends an answer also replaces the lease, so a second attempt to end the answer finds no valid lease and
   changes nothing. Therefore, the first outcome (complete, failed, canceled or deleted) is final.
3. If a lease is no longer renewed, its proxy has stopped unexpectedly, so the answer has failed. The next proxy that
   receives a request for the answer records the failure. A proxy that is shut down records the failure itself.
4. The proxy that generates an answer keeps the events in memory. The events are written to the store when the answer
   has ended, or earlier if a client follows the answer through another proxy (``remote_follower.py``).
5. A proxy that has lost its lease stops the model within ``background_store.RENEW_SECONDS``, or immediately if the
   client's request to cancel or delete the answer arrives at this proxy.
6. ``toolsim_store`` limits the number of answers in progress. Additional requests are rejected with a 429 rather than
   queued. ``event_log.py`` bounds the stored events.
"""
