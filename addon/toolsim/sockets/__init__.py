"""Implements the Responses API's WebSocket mode, with any backend. ``proxy/upgrades.py`` admits the upgrades.

    client ══ upgrade ══ mitmproxy ══ server.py (on the loopback) ── connection.py ── requests.py
                         relays bytes   websocket.py: frames         lanes, memory     │ each request a flow
                                                                                       ▼
                                                          mitmproxy's layers ─▶ toolsim ─▶ backend

1. The upgrade is checked like any request: the key, the origin of a web page, and the name of the listener. Then
   mitmproxy relays the connection's bytes, without parsing them, to a local server in this package
   (``mitmproxy12.relay``).
2. Each ``response.create`` becomes a POST in a separate flow. The flow has the upgrade's headers and is processed like
   an HTTP request: it is checked, rewritten, stored, logged, recorded and shown, and can be replayed without the
   connection.
3. The cost of a connection is limited. There are limits on the size of a message, waiting and running requests,
   remembered conversations (``protocol.py``), frames and messages per second (``websocket.py``), idle time, and the
   number of connections per key. If a client exceeds a limit, its request is rejected or its connection is closed.
   Other clients are not affected.
4. Slow readers cause backpressure: while more than 1 MiB is waiting for a client, its backends are not read
   (``requests.py``). When a client disconnects, the model stops.
5. During a drain, an idle connection is closed immediately with the code 1001. A busy connection is closed when its
   answers are finished.
"""
