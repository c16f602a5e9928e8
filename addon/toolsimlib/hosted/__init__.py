"""Tools that the proxy runs itself: those of MCP servers.

    servers      which servers there are, which of their tools are allowed, and which need a yes
    connection   one server: started or connected to, asked, given up, tried again   (``stdio``, ``web``: how)
    pool         the connections of this proxy
    catalogue    the servers' tools as functions that the model is shown
    outcome      what came of a call, for the client and for the model
    approvals    calls that wait for a yes

A server is a stranger. What it says is text for a model and for nobody else. Its powers are limited:

1. *What is contacted.* Commands come from the operator's file alone. A client names hosts of the operator's list, or
   servers of the file by their labels; redirects stay with the host.
2. *What it is sent.* The arguments of its calls and its own headers or environment: no other header, none of the
   proxy's keys, no word of the conversation. It cannot ask the model or the user anything.
3. *What it may say.* The bytes of one message are bounded, and those between two questions; a server that says more is
   cut off. Results are text of bounded size in the history, where they stand as JSON on one line.
4. *How long it may take.* Each question has a timeout. A local server that exceeds it is killed with all of its
   children, and restarted when it is needed next, after a longer pause each time.
5. *Whom it can hurt.* Its failure is the output of that one call.

The package ``mcp`` is imported when the first server is asked, in a thread: it takes a second.
"""
