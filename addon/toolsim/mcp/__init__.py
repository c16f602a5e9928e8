"""MCP servers: the tools that the proxy runs itself.

For the core, which needs no connection:

    servers      a server's settings: which of its tools are allowed, and which need approval
    runtime      the protocol of the runtime that lists their tools and calls them
    catalogue    the servers' tools as functions that the model is shown
    outcome      the outcome of a call, for the client and for the model
    approvals    calls that wait for approval

The runtime, which the core finds by name (``MCP`` in ``plugins.py``) and imports for users that have servers:

    engine       implements ``runtime``
    declared     which servers there are: the operator's file, and what requests name
    pool         the connections of this proxy
    connection   one server: started or connected to, queried, dropped, retried   (``stdio``, ``web``: how)
    guardian     the parent of a local server, a program of its own
    turns        whose turn it is if a server is asked one thing at a time
    result       what a server answers, as the outcome of a call

Servers are untrusted. What one sends is text for a model and for nobody else. Its powers are limited:

1. *What is contacted.* Commands come from the operator's file alone. A client names hosts of the operator's list, or
   servers of the file by their labels; redirects stay on the host.
2. *What it is sent.* The arguments of its calls and its own headers or environment: no other header but the ids of a
   trace, none of the proxy's keys, no part of the conversation. It cannot ask the model or the user anything.
3. *What it may send.* The bytes of one message are bounded, and those between two requests; a server that sends more is
   cut off. Results are text of bounded size.
4. *How long it may take.* Each request has a timeout. A local server that exceeds it is killed with all of its
   children, and restarted when it is needed next, after a longer pause each time. Answers take turns with it, and none
   waits for its turn longer than that.
5. *What it can break.* Its failure is the output of that one call.

The package ``mcp`` is imported for the first request to a server, in a thread: it takes a second.
"""
