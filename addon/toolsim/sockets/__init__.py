"""WebSocket mode of the Responses API, over any backend. The house admits upgrades (``proxy/upgrades.py`` there).

    client ══ upgrade ══ mitmproxy ══ server.py (on the loopback) ── connection.py ── posts.py
                         relays bytes   tornado: frames              lanes, memory     │ each request a flow
                                                                                       ▼
                                                          mitmproxy's layers ─▶ our hooks ─▶ backend

1. The upgrade is checked like any request: the key, the page's origin, the name of the listener. Then mitmproxy relays
   the bytes of the connection, without reading them, to a server of ours (``mitmproxy12.relay``).
2. Each ``response.create`` becomes a POST, a flow of its own that takes the very same path as one that came over HTTP:
   it is checked, rewritten, stored, logged, recorded and shown like any other, and replays without the connection. Its
   headers are those of the upgrade.
3. What a connection costs is bounded: the size of a message, what waits and what runs, its memory of conversations
   (``protocol.py``), its silence, and the number of connections of one key. Who exceeds that loses the
   request or the connection, and nobody else notices.
4. A client that reads slowly is waited for: its backend is not read meanwhile. One that leaves stops the model.
"""
