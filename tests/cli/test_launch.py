"""Tests for a ``toolsim launch`` process: the proxy that it starts, signals, exit codes, and the files that it leaves.

The launched program is a stand-in, which is on the path under the name of Codex. ``clients/test_launch.py`` runs the
real programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from proxy.test_context_window import MODELS, server
from support.command import TOOLSIM, environment, wait_for
from support.effort import parameters
from support.mitmdump import Mitmdump
from support.processes import is_running, members
from support.text_backend import TextBackend, says

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="terminals and signals of Unix")]

PROGRAM = f"""\
#!{sys.executable}
import json, os, signal, sys, time, urllib.request
received = []
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), lambda number, _: received.append(number))
what, *rest = sys.argv[sys.argv.index("DO") + 1:]
seen = {{"pid": os.getpid(), "arguments": sys.argv[1:], "environment": dict(os.environ)}}
if what == "ask":
    url = next(word for word in sys.argv if word.startswith("model_providers.toolsim.base_url=")).split("=")[1]
    body = {{"model": "m", "input": "Hello"}}
    headers = {{"content-type": "application/json", "authorization": "Bearer " + os.environ["TOOLSIM_KEY"]}}
    request = urllib.request.Request(url.strip("'") + "/responses", json.dumps(body).encode(), headers)
    seen["answer"] = json.load(urllib.request.urlopen(request))["output"][0]["content"][0]["text"]
print(json.dumps(seen), flush=True)
if what == "wait":
    end = time.monotonic() + 60
    while not received and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    print("RECEIVED", *received, flush=True)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(rest[0]))
"""


@pytest.fixture
def backend() -> Iterator[TextBackend]:
    with TextBackend(lambda _: says("Hello.")) as backend:
        yield backend


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home folder, and with the stand-in program on the path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "codex").write_text(PROGRAM)
    (programs / "codex").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    found = {**environment(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return {name: value for name, value in found.items() if not name.startswith("XDG_")}


def launch(
    env: dict[str, str], *arguments: str, do: str = "ask 0", starts: bool = True
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the command until it exits; return its result, and the program's arguments and environment."""
    command = [*TOOLSIM, "launch", "codex", *arguments, "--", "DO", *do.split()]
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = process.communicate(timeout=90)
    assert members(process.pid) == []
    assert "Traceback" not in out + err
    assert out.startswith("{") is starts, out + err
    run = subprocess.CompletedProcess(command, process.returncode, out, err)
    return run, json.loads(out.splitlines()[0]) if starts else {}


def base_url(seen: dict[str, Any]) -> str:
    """Return the base URL that the program received."""
    words = seen["arguments"]
    settings = tomllib.loads("\n".join(words[1 : words.index("DO") : 2]))
    return str(settings["model_providers"]["toolsim"]["base_url"])


@pytest.mark.parametrize(("do", "code"), [("ask 0", 0), ("ask 7", 7), ("die 0", 137)])
def test_exit_code_of_the_program(do: str, code: int, backend: TextBackend, env: dict[str, str]) -> None:
    """The command returns the program's exit code or, as in a shell, 128 plus the number of the signal that killed the
    program.
    """
    run, seen = launch(env, f"{backend.url}/v1", "--port", "0", do=do)
    assert run.returncode == code
    assert seen["arguments"][-3:] == ["DO", *do.split()]
    assert seen.get("answer", "Hello.") == "Hello."
    # Only the program writes to standard output.
    assert len(run.stdout.splitlines()) == 1
    assert f"toolsim: Codex CLI over {backend.url}/v1, model text-model; turns: http://127.0.0.1:" in run.stderr


def test_program_receives_context_window(env: dict[str, str]) -> None:
    """The launched program receives the context window that the backend reports, so it can compact the conversation in
    time.
    """
    pages = {"/props": {"default_generation_settings": {"n_ctx": 8192}}, "/v1/models": MODELS}
    with server(pages) as (url, _):
        _, seen = launch(env, f"{url}/v1", "--port", "0", do="print 0")
    assert "model_context_window=8192" in seen["arguments"]


def test_users_files_are_unchanged(backend: TextBackend, env: dict[str, str]) -> None:
    """``toolsim launch`` leaves the user's files unchanged. It creates only mitmproxy's certificates and the stored
    answers, and prints where it stores the answers.
    """
    run, _ = launch(env, f"{backend.url}/v1", "--port", "0")
    assert sorted(path.name for path in Path(env["HOME"]).iterdir()) == [".local", ".mitmproxy"]
    store = f"{env['HOME']}/.local/state/toolsim/answers.sqlite"
    assert f"toolsim: stored conversations  in {store}, for 30 days; to disable storage:" in run.stderr
    run, _ = launch(env, f"{backend.url}/v1", "--port", "0", "--set", "toolsim_store=")
    assert "stored conversations" not in run.stderr


def test_port_in_use(backend: TextBackend, env: dict[str, str]) -> None:
    """If the default port is in use, another port is used. If a port that the user has set is in use, ``toolsim
    launch`` fails.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # The port might already be in use.
            stack.enter_context(socket.create_server(("127.0.0.1", 8080)))
        run, seen = launch(env, f"{backend.url}/v1")
        assert (run.returncode, seen["answer"]) == (0, "Hello.")
        assert not base_url(seen).startswith("http://127.0.0.1:8080/")
        run, _ = launch(env, f"{backend.url}/v1", "--port", "8080", starts=False)
        assert run.returncode == 2
        line = "toolsim: cannot listen on 127.0.0.1:8080 (Address already in use); use another port:"
        assert run.stderr.startswith(line)


def test_running_proxy_is_reused(backend: TextBackend, env: dict[str, str]) -> None:
    """A running proxy for the same backend and options is reused, and keeps running afterwards.

    For other options or another backend, a new proxy is started.
    """
    with Mitmdump(backend.url) as proxy, TextBackend(lambda _: says("Other.")) as other:
        port = ("--port", str(proxy.port))
        for url in ([f"http://localhost:{backend.port}/v1"], []):
            run, seen = launch(env, *url, *port)
            assert (run.returncode, seen["answer"]) == (0, "Hello.")
            assert base_url(seen) == f"{proxy.url}/v1"
            assert is_running(proxy.pid)
        for arguments in (["--set", "toolsim_retry=1", backend.url], [other.url]):
            run, _ = launch(env, *arguments, *port, starts=False)
            assert (run.returncode, "Address already in use" in run.stderr) == (2, True)


def test_key_of_running_and_new_proxies(backend: TextBackend, env: dict[str, str]) -> None:
    """A running proxy that requires a key is used only with that key. A new proxy uses the key in its options."""
    env["MY_KEY"] = "secret"
    with Mitmdump(backend.url, toolsim_api_key="secret") as proxy:
        port = ("--port", str(proxy.port))
        run, _ = launch(env, *port, starts=False)
        assert (run.returncode, run.stderr) == (
            2,
            f"toolsim: the toolsim proxy at {proxy.url} requires a key: use --key-env NAME, "
            f"where NAME is the environment variable that contains the key\n",
        )
        run, seen = launch(env, *port, "--key-env", "MY_KEY")
        assert (run.returncode, seen["answer"]) == (0, "Hello.")
    run, seen = launch(env, f"{backend.url}/v1", "--port", "0", "--set", "toolsim_api_key=other")
    assert (seen["answer"], seen["environment"]["TOOLSIM_KEY"]) == ("Hello.", "other")


def test_settings_file_is_read(backend: TextBackend, env: dict[str, str]) -> None:
    """If no URL is given, the settings come from the user's settings file or from the file in ``--config``."""
    text = f'backend = "{backend.url}/v1"\nport = 0\ntoolsim_api_key = "of the file"\n'
    named = Path(env["HOME"]).parent / "named.toml"
    named.write_text(text.replace("of the file", "of the other"))
    file = Path(env["HOME"]) / ".config" / "toolsim" / "toolsim.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    for arguments, key in (([], "of the file"), (["--config", str(named)], "of the other")):
        # The default port might belong to a toolsim that runs on this machine.
        run, seen = launch(env, "--port", "0", *arguments)
        assert (run.returncode, seen["answer"], seen["environment"]["TOOLSIM_KEY"]) == (0, "Hello.", key)


def test_backend_down(env: dict[str, str]) -> None:
    """If the backend is down, ``toolsim launch`` does not start the program, and the last line of the output gives the
    reason.
    """
    run, _ = launch(env, "http://127.0.0.1:9/v1", "--port", "0", starts=False)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("toolsim launch: The backend did not answer")


@contextlib.contextmanager
def started(env: dict[str, str], tmp_path: Path, command: Sequence[str], **more: Any) -> Iterator[tuple[Any, Path]]:
    """Start the command in a new session; yield the process and its log once the program is running."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True, **more)
    try:
        wait_for(log, r'"pid": \d+', process)
        yield process, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(process: subprocess.Popen[bytes], log: Path) -> tuple[int, str]:
    """Wait until the process exits; return its exit code, and the signals that the program received."""
    code = process.wait(30)
    end = time.monotonic() + 5
    while members(process.pid):
        assert time.monotonic() < end, members(process.pid)
    [received] = re.findall(r"^RECEIVED (.*?)\r?$", log.read_text(), re.MULTILINE)
    return code, received


@pytest.mark.parametrize(
    "number", parameters([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], lambda number: number != signal.SIGTERM)
)
@pytest.mark.parametrize("is_running_before", [False, True])
def test_signal_is_passed_on(
    number: signal.Signals, is_running_before: bool, backend: TextBackend, env: dict[str, str], tmp_path: Path
) -> None:
    """A signal is passed on to the program. The command returns the program's exit code, and the proxy exits."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(Mitmdump(backend.url)).port if is_running_before else 0
        command = [*TOOLSIM, "launch", "codex", f"{backend.url}/v1", "--port", str(port), "--", "DO", "wait", "5"]
        process, log = stack.enter_context(started(env, tmp_path, command, stdin=subprocess.DEVNULL))
        process.send_signal(number)
        assert ended(process, log) == (5, str(int(number)))


CONTROLS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize("is_running_before", [False, True])
def test_ctrl_c(is_running_before: bool, backend: TextBackend, env: dict[str, str], tmp_path: Path) -> None:
    """Ctrl-C on a terminal reaches the launched program only once, and ``toolsim launch`` returns the program's exit
    code.
    """
    ours, theirs = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, ours)
        port = stack.enter_context(Mitmdump(backend.url)).port if is_running_before else 0
        command = [*TOOLSIM, "launch", "codex", f"{backend.url}/v1", "--port", str(port), "--", "DO", "wait", "5"]
        command = [sys.executable, "-c", CONTROLS_TERMINAL, *command]
        process, log = stack.enter_context(started(env, tmp_path, command, stdin=theirs))
        os.close(theirs)
        os.write(ours, b"\x03")
        assert ended(process, log) == (5, str(int(signal.SIGINT)))


def test_interrupted_before_the_program_starts(env: dict[str, str], tmp_path: Path) -> None:
    """If ``toolsim launch`` is interrupted while it waits for a silent backend, it exits cleanly, without child
    processes.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        log = tmp_path / "log"
        with log.open("wb") as file:
            command = [*TOOLSIM, "launch", "codex", url, "--port", "0", "--", "DO", "ask", "0"]
            process = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
        wait_for(log, "stored conversations", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert members(process.pid) == []
    assert "Traceback" not in log.read_text()


def test_former_command_still_works(backend: TextBackend, env: dict[str, str]) -> None:
    """``toolsim claude --run``, the command's former name, works for one more release, and prints the current name."""
    program = Path(env["PATH"].partition(os.pathsep)[0]) / "claude"
    program.write_text("#!/bin/sh\necho $ANTHROPIC_BASE_URL $ENABLE_TOOL_SEARCH $*\nexit 3\n")
    program.chmod(0o755)
    command = [*TOOLSIM, "claude", f"{backend.url}/v1", "--run", "--port", "0", "--", "-p", "--run"]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 3
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+ true -p --run\n", run.stdout)
    assert run.stderr.startswith("toolsim claude --run: this command is now called launch claude\n")
