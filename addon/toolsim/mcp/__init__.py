"""Connects to MCP servers, whose tools the proxy runs itself.

These modules are for the core, and do not need a connection:

    servers      a server's settings: which of its tools are allowed, and which need approval
    runtime      the protocol of the runtime, which lists tools and calls them
    catalog      the servers' tools as functions for the model
    outcome      the outcome of a call, for the client and for the model
    approvals    calls that wait for approval

These modules are the runtime, which the core finds by name (``MCP`` in ``plugins.py``) and imports if MCP servers are
configured:

    engine          implements ``runtime``
    server_config   the known servers: the operator's file, and servers that requests name
    pool            the connections of this proxy
    connection      the connection to one server, which is reopened after a failure
    stdio           the transport for a local server
    web             the transport for a server over HTTP
    supervisor      the parent process of a local server, a separate program

Servers are untrusted. Their output is only text for the model, and their capabilities are limited:

1. *Addresses.* Commands come only from the operator's file. A client can name hosts in the operator's list, or servers
   in the file by their labels. Redirects are followed only on the same host.
2. *Data sent to a server.* A server receives the arguments of its calls and the headers or environment variables in its
   settings. It receives no other headers except the IDs of a trace, none of the proxy's keys, and no part of the
   conversation. It cannot query the model or the user.
3. *Data from a server.* The size of one message is bounded, as is the total size between two requests. A server that
   sends more is disconnected. Results are text of bounded size.
4. *Time.* Each request has a timeout. A local server that exceeds the timeout is killed with all of its children. It is
   restarted when it is used again. After repeated failures, the pauses before a restart become longer. Concurrent
   answers take turns using a local server, and no answer waits longer than the timeout.
5. *Failure.* A server failure affects only the output of the failed call.

The ``mcp`` package is imported when a server is first used. The import takes a second, so it runs in a thread.
"""
