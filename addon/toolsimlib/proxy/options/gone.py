"""Options of earlier versions: one that is gone stops the start, with one line on what to write instead."""

from __future__ import annotations

from collections.abc import Mapping

_CONSTANT = "its value is fixed now"
_PORT = "toolsim_backend takes any free port, and answers on the listener"
_STORE = "it is a part of toolsim_store, as in toolsim_store=memory?{}"

RENAMED: Mapping[str, str] = {"preset": "profiles"}
"""Names that go on working, with the present ones."""

GONE: Mapping[str, str] = {
    "use_tool": "write toolsim_untagged=no_use_tool instead of false",
    "fix_empty_final_disable_tools": "write toolsim_fix_empty_final=with_tools instead of false",
    "fix_empty_final_text": _CONSTANT,
    "fallback_retry_count": "toolsim_tool_use_mode=relaxed sends a request once more without its tools",
    "max_rounds_seconds": _CONSTANT,
    "responses_output_mode": "write toolsim_output_mode=obsidian-xml-responses, or obsidian-xml-both",
    "stop_after_tools_mode": "write toolsim_stop_after_tools=first, or on for burst",
    "suppress_tail_after_tools": "write toolsim_stop_after_tools=drop",
    "parallel_tool_calls": "write toolsim_tool_block_max=1 instead of false",
    "tool_denylist": "write toolsim_tool_allowlist=!NAME",
    "max_tool_args_bytes": "write toolsim_max_tool_bytes, which is for arguments and outputs",
    "max_tool_output_bytes": "write toolsim_max_tool_bytes, which is for arguments and outputs",
    "max_schema_bytes": _CONSTANT,
    "max_tools_bytes": _CONSTANT,
    "max_request_bytes": "write toolsim_max_body_bytes, which is for requests and answers",
    "max_answer_bytes": "write toolsim_max_body_bytes, which is for requests and answers",
    "max_event_bytes": _CONSTANT,
    "backend_port": _PORT,
    "codex_port": _PORT,
    "scripted_port": _PORT,
    "scripted_delay": _CONSTANT,
    "store_max_answers": _STORE.format("answers=100000"),
    "store_max_bytes": _STORE.format("bytes=268435456"),
    "store_max_days": _STORE.format("days=30"),
    "background_max": _STORE.format("background=16"),
    "background_event_bytes": _CONSTANT,
    "hosted_mcp": "toolsim_mcp_hosts says which servers requests may name; write toolsim_mcp_hosts=config for none but "
    "those of toolsim_mcp_config",
    "mcp_approval_timeout": _CONSTANT,
    "mcp_timeout": "write timeout at a server in the file of toolsim_mcp_config",
    "mcp_max_calls": _CONSTANT,
}
"""What to write instead, by the name of the option."""
