"""An MCP server on stdio that misbehaves deliberately. It has one tool per fault, and needs only Python.

Each tool's name describes its behavior. ``echo`` returns its arguments. ``meta``, which is not in the list of tools,
returns the request's metadata.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from bad_mcp_ways import FORGED  # This import works because this file runs as a program from the same folder.

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
NAMES = (
    "echo",
    "hang",
    "die",
    "flood",
    "chatter",
    "garbage",
    "wrong",
    "lie",
    "error",
    "large",
    "deep",
    "environment",
    "sleep",
)


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def tools() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = [
        {"name": name, "description": f"It does: {name}.", "inputSchema": SCHEMA} for name in NAMES
    ]
    listed[0]["annotations"] = {"readOnlyHint": True}
    return listed


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def call(number: object, name: str, arguments: dict[str, Any]) -> None:
    match name:
        case "sleep":
            time.sleep(arguments["seconds"])
            send({"id": number, "result": text("")})
        case "hang":
            time.sleep(3600)
        case "die":
            print("it dies", file=sys.stderr, flush=True)
            os._exit(3)
        case "flood":
            sys.stdout.write('{"jsonrpc":"2.0","id":' + json.dumps(number) + ',"result":"')
            for _ in range(800):
                sys.stdout.write("x" * 65536)
            sys.stdout.write('"}\n')
        case "chatter":
            while True:
                send({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
        case "garbage":
            print("{this is no JSON", flush=True)
        case "wrong":
            send({"id": number, "result": {"content": "text", "isError": 7}})
        case "lie":
            send({"id": number, "result": text(FORGED)})
        case "error":
            send({"id": number, "error": {"code": -32602, "message": "That is no argument."}})
        case "large":
            send({"id": number, "result": text("y" * 300_000)})
        case "deep":
            nested = '{"a":' * 5000 + "1" + "}" * 5000
            print(f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":{nested}}}', flush=True)
        case "environment":
            send({"id": number, "result": text(json.dumps(dict(os.environ)))})
        case _:
            send({"id": number, "result": text(json.dumps(arguments))})


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    match message["method"]:
        case "initialize":
            info = {"name": "bad", "version": "1"}
            version = message["params"]["protocolVersion"]
            send(
                {
                    "id": message["id"],
                    "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info},
                }
            )
        case "tools/list":
            send({"id": message["id"], "result": {"tools": tools()}})
        case "tools/call" if message["params"]["name"] == "meta":
            send({"id": message["id"], "result": text(json.dumps(message["params"].get("_meta")))})
        case "tools/call":
            call(message["id"], message["params"]["name"], message["params"].get("arguments") or {})
        case _:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
