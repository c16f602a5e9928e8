"""A live evaluation of a server that fails deliberately. Each failure is recorded in its run, and all runs are kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "toolsim.eval"]
KEY = "sk-live-0123456789abcdef"


class Server(ThreadingHTTPServer):
    """A chat server that counts its requests. Each of its models fails in a different way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: dict[str, int] = {}
        self.keys: set[str] = set()
        self.models = ["openai/gpt-4o-mini", "google/gemini-2.0-flash-001", "x/unknown"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        models = [{"id": id, "object": "model", "created": 0, "owned_by": "x"} for id in self.server.models]
        self.answer(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        model = body["model"]
        key = self.headers.get("authorization", "").removeprefix("Bearer ")
        self.server.keys.add(key)
        self.server.asked[model] = self.server.asked.get(model, 0) + 1
        match model:
            case "locked":
                self.answer(
                    401, {"error": {"message": f"Incorrect API key provided: {key}.", "code": "invalid_api_key"}}
                )
            case "gone":
                self.answer(404, {"error": {"message": "no such model", "code": "model_not_found"}})
            case "hanging":
                time.sleep(5)
            case "limited" if self.server.asked[model] % 2:
                self.answer(429, {"error": {"message": "slow down"}}, {"retry-after": "0.3"})
            case "garbled":
                self.answer(200, "<html>")
            case _:
                time.sleep(0.05 if model == "slow" else 0)
                self.answer(200, says("Done."))

    def answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def says(text: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


@contextmanager
def serving() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of an uninterrupted evaluation of the slow model."""
    out = tmp_path_factory.mktemp("uninterrupted")
    with serving() as made:
        assert evaluate(out, "--base-url", made.url, *SLOW).returncode == 0
    return report(out)


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENROUTER_")}
    return {**clean, "TOOLSIM_TEST_KEY": KEY}


def evaluate(out: Path, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment(), check=False)


def begin(out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--out", str(out), *arguments], text=True, env=environment(), stdout=subprocess.PIPE
    )


def folder(out: Path) -> Path:
    [only] = out.iterdir()
    return only


def report(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder(out) / "report.json").read_text())
    return loaded


def labels(out: Path) -> dict[tuple[str, str], str]:
    runs = [json.loads(line) for line in (folder(out) / "runs.jsonl").read_text().splitlines()]
    return {(run["cell"]["model"], run["cell"]["method"]): run["label"] or "right" for run in runs}


@pytest.mark.extended
def test_server_failures_are_labeled_in_their_runs(server: Server, tmp_path: Path) -> None:
    """Each failure of the server is labeled in its run, with and without the proxy, and the exit code is 0."""
    models = ["locked", "gone", "garbled", "hanging", "limited", "good"]
    done = evaluate(
        tmp_path, "--base-url", server.url, "--key-env", "TOOLSIM_TEST_KEY", "--models", ",".join(models),
        "--method", "toolsim,native", "--scenarios", "chat_only", "--client-timeout", "1.5", "--jobs", "3", "-vv",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = dict.fromkeys(("locked", "gone", "garbled"), "http_error") | {"hanging": "timeout"}
    assert labels(tmp_path) == {
        (model, method): expected.get(model, "right") for model in models for method in ("toolsim", "native")
    }
    assert server.keys == {KEY}
    # The evaluation respects the rate limit, so each of the two answers took two requests.
    assert server.asked["limited"] == 4
    # No file and no output contains the key, although the server included it in an error.
    written = [path.read_bytes() for path in folder(tmp_path).rglob("*") if path.is_file()]
    assert len(written) == 5
    assert not any(KEY.encode() in data for data in [*written, done.stdout.encode(), done.stderr.encode()])
    assert "Incorrect API key provided: [key]" in (folder(tmp_path) / "report.html").read_text()


@pytest.mark.ci
def test_server_down(tmp_path: Path) -> None:
    """If the server under evaluation is down, each run fails immediately, and the report is still written."""
    done = evaluate(tmp_path, "--base-url", "http://127.0.0.1:9/v1", "--models", "m", "--method", "native,toolsim",
                    "--scenarios", "chat_only,happy_path")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert report(tmp_path)["failures"] == {"http_error": 4}


@pytest.mark.ci
def test_flows_are_stored_on_request_without_secrets(server: Server, tmp_path: Path) -> None:
    """With ``--flows``, the exchanges of runs with the ``toolsim`` method are stored in mitmproxy's format, without
    secrets.
    """
    evaluate(tmp_path, "--base-url", server.url, "--key-env", "TOOLSIM_TEST_KEY", "--models", "good",
             "--scenarios", "happy_path", "--flows")  # fmt: skip
    flows = list(folder(tmp_path).rglob("*.flow"))
    assert len(flows) == 1
    assert KEY.encode() not in flows[0].read_bytes()


SLOW = ("--models", "slow", "--method", "native", "--scenarios", "chat_only,happy_path", "--trials", "20")


def lines(out: Path) -> int:
    found = list(out.glob("*/runs.jsonl"))
    return len(found[0].read_text().splitlines()) if found else 0


def wait_for_lines(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while lines(out) < count:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.extended
def test_resumed_evaluation_has_the_same_totals(server: Server, uninterrupted: Any, tmp_path: Path) -> None:
    """If an evaluation is interrupted, killed and resumed, it keeps all finished runs, and its totals equal those of an
    uninterrupted evaluation.
    """
    arguments: tuple[str, ...] = ("--base-url", server.url, *SLOW)
    interruptions = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
    for number in interruptions:
        process = begin(tmp_path / "a", *arguments)
        before = lines(tmp_path / "a")
        wait_for_lines(tmp_path / "a", before + 4, process)
        process.send_signal(number)
        process.communicate(timeout=60)
        finished = lines(tmp_path / "a")
        assert before + 4 <= finished < 40
        if number != signal.SIGKILL:
            assert process.returncode == 130
            assert f"interrupted: {finished} of 40" in (folder(tmp_path / "a") / "report.md").read_text()
        arguments = ("--resume",)
    assert evaluate(tmp_path / "a", "--resume").returncode == 0
    # After each interruption, at most one question may be asked again.
    assert 40 <= server.asked["slow"] <= 40 + len(interruptions)
    for name in ("overall", "planned", "failures", "tools", "chat"):
        assert report(tmp_path / "a")[name] == uninterrupted[name]
    assert report(tmp_path / "a")["overall"]["runs"] == 40


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the proxy in /proc")
def test_no_proxy_outlives_a_killed_evaluation(server: Server, tmp_path: Path) -> None:
    """If an evaluation is killed by SIGKILL, its mitmdump ends, too."""
    process = begin(tmp_path, "--base-url", server.url, *SLOW, "--method", "toolsim")
    wait_for_lines(tmp_path, 2, process)
    # Check the children of all threads, because any thread can start the proxy.
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [child for task in tasks for child in task.read_text().split()]
    assert len(children) == 1
    process.kill()
    process.communicate(timeout=30)
    end = time.monotonic() + 30
    while Path(f"/proc/{children[0]}/exe").exists() and _state(children[0]) != "Z":
        assert time.monotonic() < end
        time.sleep(0.1)


def _state(process: str) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.ci
@pytest.mark.slow
def test_predecessors_variables_are_enough(server: Server, tmp_path: Path) -> None:
    """The environment variables of toolsim's predecessor set the server, the key and the number of trials. The
    evaluated models are the default models that the server offers.
    """
    asked = {"BASE_URL": server.url, "API_KEY": KEY, "TRIALS": "2", "SCENARIOS": "chat_only", "CLIENT_TIMEOUT": "0"}
    variables = {f"OPENROUTER_{name}": value for name, value in asked.items()}
    command = [*COMMAND, "--out", str(tmp_path), "--method", "native"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**environment(), **variables}, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert first == f"evaluating models at {server.url}: openai/gpt-4o-mini, google/gemini-2.0-flash-001"
    assert second.startswith("skipping models that the server no longer lists: openai/gpt-4.1-mini, ")
    assert last.startswith("4/4 ")
    assert server.asked == {"openai/gpt-4o-mini": 2, "google/gemini-2.0-flash-001": 2}
    assert server.keys == {KEY}
