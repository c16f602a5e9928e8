"""The JavaScript clients. Each runs in a Node process that reads one job per line."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading

import pytest
from clients.cases import MODEL, TOOLS, Outcome
from support.programs import NODE_CLIENTS

PATIENCE = 30.0
"""Maximum duration of a job, in seconds. Starting Node alone takes one second."""

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_CLIENTS / "node_modules" / "openai").is_dir(),
    reason="needs node: run `make test-clients`",
)


class NodeClient:
    """Runs a script from node/ in a process that reads jobs. The first job starts the process. If a job kills the
    process, the next job restarts it.
    """

    def __init__(self, script: str) -> None:
        self._command = ["node", str(NODE_CLIENTS / script)]
        self._process: subprocess.Popen[str] | None = None

    def run(self, base_url: str, api: str, mode: str, prompts: list[str], strict: bool = False) -> list[Outcome]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        job = {"baseURL": base_url, "api": api, "mode": mode, "model": MODEL, "tools": TOOLS}
        print(json.dumps(job | {"strict": strict, "prompts": prompts}), file=process.stdin, flush=True)
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            self.close()
            raise AssertionError("the client died of this job, or hung; its stderr says why")
        answer = json.loads(line)
        assert "bug" not in answer, answer["bug"]
        outcomes = [Outcome(**fields) for fields in answer["outcomes"]]
        for outcome in outcomes:
            outcome.calls = [(name, arguments) for name, arguments in outcome.calls]
        return outcomes

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:
                self._process = None
