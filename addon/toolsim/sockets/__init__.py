"""Implements the Responses API's WebSocket mode, with any backend. ``proxy/upgrades.py`` checks upgrade requests.

    client ══ upgrade ══ mitmproxy ══ server.py (on the loopback) ── connection.py ── requests.py
                         relays bytes   websocket.py: frames         lanes, memory     │ each request a flow
                                                                                       ▼
                                                          mitmproxy's layers ─▶ toolsim ─▶ backend

1. An upgrade request is checked like any other request: its key, its origin if it is from a web page, and its host
   name. Then mitmproxy relays the connection's bytes, without parsing them, to a local server in this package
   (``mitmproxy12.relay``).
2. Each ``response.create`` message becomes a POST request in a separate flow. The flow has the headers of the upgrade
   request and is processed like an HTTP request: it is checked, rewritten, stored, logged, recorded and shown, and can
   be replayed without the connection.
3. The cost of a connection is limited. There are limits on the size of a message, waiting and running requests,
   remembered conversations (``protocol.py``), frames and messages per second (``websocket.py``), idle time, and the
   number of connections per key. If a client exceeds a limit, its request is rejected or its connection is closed.
   Other clients are not affected.
4. Slow clients cause backpressure. While more than 1 MiB of data is waiting for a client, nothing is read from its
   backends (``requests.py``). When a client disconnects, the model stops.
5. During a drain, an idle connection is closed immediately with the code 1001. A busy connection is closed when its
   answers are finished.
"""
