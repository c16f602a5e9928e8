"""WebSocket mode of the Responses API, over any backend. The house admits upgrades (``proxy/upgrades.py`` there).

    client ══ upgrade ══ mitmproxy ══ server.py (on the loopback) ── connection.py ── posts.py
                         relays bytes   websocket.py: frames         lanes, memory     │ each request a flow
                                                                                       ▼
                                                          mitmproxy's layers ─▶ our hooks ─▶ backend

1. The upgrade is checked like any request: the key, the page's origin, the name of the listener. Then mitmproxy relays
   the bytes of the connection, without reading them, to a server of ours (``mitmproxy12.relay``).
2. Each ``response.create`` becomes a POST, a flow of its own that takes the very same path as one that came over HTTP:
   it is checked, rewritten, stored, logged, recorded and shown like any other, and replays without the connection. Its
   headers are those of the upgrade.
3. What a connection costs is bounded: the size of a message, what waits and what runs, its memory of conversations
   (``protocol.py``), the frames and messages of a second (``websocket.py``), its silence, and the number of connections
   of one key. A client that exceeds a limit loses the request or the connection, and nobody else notices.
4. A client that reads slowly is waited for: when 1 MiB waits for it, its backends are not read (``posts.py``). One that
   leaves stops the model.
5. When the proxy is to end, an idle connection is closed at once, with the code 1001, and any other one after the
   answers under way.
"""
