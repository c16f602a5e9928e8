"""Tools that the proxy runs itself: those of MCP servers, as the model and the client know them.

    servers      what there is to know of a server; which of its tools are allowed, and which need approval
    engine       what lists their tools and calls them: the protocol of the guest that speaks MCP
    catalogue    the servers' tools as functions that the model is shown
    outcome      the outcome of a call, for the client and for the model
    approvals    calls that wait for approval

The guest, ``MCP`` in ``guests.py``, is imported for those who have servers. Its head says what a server may do and what
it may not.
"""
