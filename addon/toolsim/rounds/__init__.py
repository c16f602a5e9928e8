"""Several turns of the model within one answer.

Some answers need a second question to the model before the client gets them: a call that broke its tool's schema, an
answer that holds no call where it had to, an empty one after a tool's output. The addon sends the requests that may
need it to the runner, and only those; all others go to the backend directly, and pay nothing::

    client ── request ──▶ proxy ──▶ runner (HTTP on the loopback)
                                      │  round 1 ──▶ proxy ──▶ backend      each an ordinary request of the client's
                                      │  round 2 ──▶ proxy ──▶ backend      API, with the tools as the client sent them
    client ◀── one answer ── proxy ◀──┘  …

1. Each round is its own flow: rewritten, logged, recorded, intercepted and shown like any other, and its report names
   the flow that it is part of. It goes through mitmproxy's own layers, in this process, as a replayed request does: a
   second connection to the listener would need the listener's address, its key and a way past it in every mode.
2. The client's own flow goes to the runner over HTTP, since a hook cannot stream an answer that it makes. It holds the
   request as the client sent it, and the answer as the client got it. A client that leaves closes that connection,
   which ends the runner's task, which ends the round, which stops the model.
3. Rounds arrive as events (``ClientEvent``), not as bytes: one writer writes the events of all rounds, with one id, one
   event count and one numbering of items and calls (``merge.py``). The answer of a single round, as its flow shows it,
   ends where the model is asked again, with an error that says so.
4. What was emitted stays. Only what was withheld is asked for again (``response/retry.py``), and the rest of the
   answer follows. A stream and a whole answer are the same, since both take this path.
5. The model is shown its own words and a record of what was wrong (``course.reply_to``), as a further turn of the
   conversation: the record is alone in the last message, where no text of the client and no tool output ever
   appears, and its values are JSON on one line, so that nothing quoted in them can break out.
6. Everything is bounded: the number of rounds in all and for each reason, the time and the text (``course.py``). If no
   further round is allowed, or it fails before it emits anything, the answer ends at the fault, just as it would
   without the runner. What the model would have written after the fault was never read: it was stopped.
7. An answer that is nothing but an invented call (``response/invented.py``) comes here when its first round is over.
   Its client is not handed over, but gets the rest by its own stream (``proxy/in_words.py``).
8. A round may also be our own question, apart from the conversation: whether to emit a call that waits
   (``opinion.py``).
"""
