"""Several rounds, or turns of the model, within one answer.

Some answers need another round before they can be sent to the client, for example if a call violates its tool's schema,
if a required call is missing, or if the answer after a tool's output is empty. The addon sends only requests that might
need another round to the runner. All others are sent directly to the backend, at no additional cost::

    client ── request ──▶ proxy ──▶ runner (HTTP on the loopback)
                                      │  round 1 ──▶ proxy ──▶ backend      each an ordinary request of the client's
                                      │  round 2 ──▶ proxy ──▶ backend      API, with the tools as the client sent them
    client ◀── one answer ── proxy ◀──┘  …

1. Each round is a separate flow, which is rewritten, logged, recorded, intercepted and shown like any other flow. The
   report of a round names the client's flow. The round passes through mitmproxy's own layers, in this process, like a
   replayed request. If it were sent to the proxy's listener instead, toolsim would need the listener's address and key,
   and the listener would have to let the round through in every proxy mode.
2. The client's own flow is sent to the runner over HTTP, because a hook cannot stream a response that it creates. This
   flow contains the request as the client sent it, and the answer as the client received it. If the client
   disconnects, the connection to the runner is closed, which ends the runner's task and the round, and stops the model.
3. A round's answer arrives as events (``ClientEvent``) rather than as bytes. One writer writes the events of all
   rounds, with one ID, one event count and one numbering of items and calls (``merge.py``). If a round leads to a
   retry, the flow of that round ends with an error that describes the reason.
4. An event that was sent to the client is final. A retry can replace only output that has not been sent yet
   (``response/retry.py``). Streamed and non-streamed answers have the same content, because this rule applies to both.
5. In a retry, the conversation continues with the model's own text, and with a message that describes the error in this
   text (``round_planner.reply_to``). This message consists only of the description: it never contains client text or
   tool output. Values in the description are JSON on one line, so that quoted text cannot be mistaken for instructions.
6. Everything is bounded: the total number of rounds and the number for each reason, the time and the text
   (``round_planner.py``). If no other round is allowed, or if the next round fails before it emits any output, the
   answer ends with the error, just as it would without the runner. The model was stopped at the error, so no later
   output was read.
7. An answer that consists only of a call to an undeclared tool (``response/faults.py``) reaches the runner only after
   its first round. The client receives the rest of the answer on the stream that the first round has opened
   (``proxy/prose_fallback.py``).
8. A round can also be a question that toolsim asks the model outside the conversation, to decide whether to emit a
   withheld call (``opinion.py``).
"""
