"""Tests of the BFCL evaluation over HTTP: for each of its three methods, a server returns BFCL's correct answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support import bfcl_truth
from toolsim.eval import bfcl, bfcl_package
from toolsim.eval.bfcl_package import Decoded

for module in ("bfcl_eval", "rich", "openai"):
    pytest.importorskip(module, reason=f"needs BFCL: {bfcl_package.INSTALL}")

METHODS = ("toolsim", "native", "prompt")
Json = dict[str, Any]


class Oracle:
    """A chat completions server that makes the correct calls in the form that the request requires."""

    def __init__(self, categories: Sequence[str]) -> None:
        self.right: dict[tuple[str, frozenset[str]], list[Decoded]] = {}
        for category in categories:
            entries, answers = bfcl_truth.load(category)
            for entry in entries:
                names = frozenset(function["name"] for function in entry["function"])
                question = entry["question"][0][-1]["content"]
                self.right[question, names] = bfcl_truth.right_calls(entry, answers.get(entry["id"], []))

    def answer(self, body: Json) -> Json:
        """Return the message that answers a request."""
        question = body["messages"][-1]["content"]
        shown = json.dumps(body["messages"][:-1]) + json.dumps(body.get("tools", []))
        # The same question can occur with different tools. So consider only entries whose tools are all in the prompt,
        # and choose the entry with the most tools.
        fitting = [
            (names, calls)
            for (asked, names), calls in self.right.items()
            if asked == question and all(name in shown or name.replace(".", "_") in shown for name in names)
        ]
        calls = max(fitting, key=lambda entry: len(entry[0]))[1] if fitting else []
        pairs = [(name, arguments) for call in calls for name, arguments in call.items()]
        if not pairs:
            return {"role": "assistant", "content": "None of my tools can do that."}
        if "tools" in body:
            functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in pairs]
            made = [{"id": f"c{n}", "type": "function", "function": function} for n, function in enumerate(functions)]
            return {"role": "assistant", "content": None, "tool_calls": made}
        if "# CLIENT TOOL CATALOG" in shown:
            blocks = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in pairs)
            return {"role": "assistant", "content": "\n".join(f"<tool_call>{block}</tool_call>" for block in blocks)}
        lines = (f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in pairs)
        return {"role": "assistant", "content": f"[{', '.join(lines)}]"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    oracle = Oracle(bfcl.SINGLE_TURN)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = oracle.answer(body)
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "message": message, "finish_reason": finish}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "oracle"}
            data = json.dumps(answer | {"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}/v1"
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.mark.extended
def test_correct_answers_score_with_every_method(server: str, tmp_path: Path) -> None:
    """In each category, at least 98% of the correct answers are scored as correct, with every method.

    The methods are the addon, native tools and BFCL's prompt.
    """
    command = [sys.executable, "-m", "toolsim.eval", "--base-url", server, "--models", "oracle"]
    suites = ",".join(f"bfcl:{category}" for category in bfcl.SINGLE_TURN)
    further = ["--method", ",".join(METHODS), "--suite", suites, "--sample", "10", "--out", str(tmp_path), "-q"]
    ended = subprocess.run([*command, *further], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (lines,) = tmp_path.glob("*/runs.jsonl")
    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {(run["suite"], run["cell"]["method"]) for run in runs} == {
        (f"bfcl:{category}", method) for category in bfcl.SINGLE_TURN for method in METHODS
    }
    for category in bfcl.SINGLE_TURN:
        for method in METHODS:
            cell = [run for run in runs if run["suite"] == f"bfcl:{category}" and run["cell"]["method"] == method]
            wrong = [(run["case"], run["label"], run["detail"]) for run in cell if not run["ok"]]
            assert len(wrong) <= 0.02 * len(cell), (category, method, wrong[:5])
