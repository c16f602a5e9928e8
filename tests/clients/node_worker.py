"""The JavaScript clients, each a Node process that takes jobs by the line."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clients.cases import MODEL, TOOLS, Outcome

NODE = Path(__file__).parent / "node"
PATIENCE = 30.0
"""Seconds for one job; Node itself starts in one."""

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules" / "openai").is_dir(),
    reason="needs node: run `make clients`",
)


class NodeClient:
    """One script of node/, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, base_url: str, api: str, mode: str, prompts: list[str], strict: bool = False) -> list[Outcome]:
        job = {"baseURL": base_url, "api": api, "mode": mode, "model": MODEL, "tools": TOOLS}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job | {"strict": strict, "prompts": prompts}), file=self._process.stdin, flush=True)
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        assert line, "the client's process died or hung; its stderr says why"
        answer = json.loads(line)
        assert "bug" not in answer, answer["bug"]
        outcomes = [Outcome(**fields) for fields in answer["outcomes"]]
        for outcome in outcomes:
            outcome.calls = [(name, arguments) for name, arguments in outcome.calls]
        return outcomes


@contextmanager
def node_client(script: str) -> Iterator[NodeClient]:
    """Run node/<script> for as long as the block lasts."""
    with subprocess.Popen(
        ["node", NODE / script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            yield NodeClient(process)
        finally:
            process.kill()
