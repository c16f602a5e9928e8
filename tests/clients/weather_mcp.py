"""An MCP server on stdio with one tool, which Codex declares in a namespace."""

from __future__ import annotations

import json
import sys

TOOL = {
    "name": "get_weather",
    "description": "Tell the sky over a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result: dict[str, object] = {}
    match message["method"]:
        case "initialize":
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "weather", "version": "1"},
            }
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            text = f"The sky over {message['params']['arguments']['city']} is clear."
            result = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
