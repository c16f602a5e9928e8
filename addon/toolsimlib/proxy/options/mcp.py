"""The options of MCP servers."""

from __future__ import annotations

from toolsimlib.proxy.options.option import Option

MCP_OPTIONS = (
    Option(
        "mcp_config",
        "",
        "File of MCP servers whose tools every request gets, over any backend: a JSON object mcpServers, as in other "
        "MCP clients, with two more keys, require_approval (always by default) and allowed_tools. Empty = none.",
    ),
    Option(
        "hosted_mcp",
        "auto",
        "What happens to the mcp tools that a request brings. run: this proxy asks their servers, if "
        "toolsim_mcp_hosts lists them. auto: the same as to any tool that the backend would run, see "
        "toolsim_forward_hosted_tools.",
        ("auto", "run"),
    ),
    Option(
        "mcp_hosts",
        (),
        "Hosts whose MCP servers requests may name, as host (port 443) or host:port; empty = only those of "
        "toolsim_mcp_config, by their labels.",
    ),
    Option(
        "mcp_approval",
        "client",
        "Who approves calls that need approval. client: whoever asked, by an mcp_approval_request of the Responses "
        "API; chat completions have nothing like it, and such a call is refused. operator: the answer waits for the "
        "command toolsim.approve or toolsim.refuse, over either API.",
        ("client", "operator"),
    ),
    Option(
        "mcp_approval_timeout",
        120,
        "Seconds that an answer waits for the operator; then the call is refused.",
        minimum=1,
    ),
    Option(
        "mcp_timeout",
        30,
        "Seconds that an MCP server may take for one call, or to start. A local one that takes longer is stopped, "
        "and started again when it is next needed.",
        minimum=1,
    ),
    Option(
        "mcp_max_calls",
        32,
        "Largest number of calls of MCP tools in one answer. Further ones are not made, and the model is told so.",
        minimum=1,
    ),
)
