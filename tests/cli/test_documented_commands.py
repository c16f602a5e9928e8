"""Runs every command in the README and on the pages as a user would, until it produces the documented result.

Only machine-specific parts are replaced: the address of the backend (a text-only test server without TLS), the port of
the listener (any free port), and placeholders (URL, DIR, and a model file, for which a tiny model with random weights
is used). Commands that differ only in these parts run once.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from clients.cases import call
from support.command import environment, started
from support.line import Line
from support.mitmdump import ROOT, Mitmdump
from support.ports import free_port
from support.programs import AGENTS, NODE_CLIENTS, agent, codex
from support.text_backend import Exchange, TextBackend, Turn, says
from support.tiny_model import write_tiny_model
from test_readme import DOCS, PAGES, section

pytestmark = [pytest.mark.slow, pytest.mark.ci]

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ASK = {"model": "any", "messages": [{"role": "user", "content": "What is the weather in Bonn?"}], "tools": [TOOL]}

ELSEWHERE = {
    "make run": "proxy/test_make.py::test_make_run_prints_working_commands",
    # Commands that set up an environment, and commands that a shell executes itself.
    "pip install .": "cli/test_installation.py::test_package_works_without_checkout",
    "python3 -m venv ~/toolsim-venv": "cli/test_installation.py::test_package_works_without_checkout",
    ". ~/toolsim-venv/bin/activate": "cli/test_installation.py::test_package_works_without_checkout",
    "mkdir -p ~/toolsim-tutorial": "cli/test_installation.py::test_package_works_without_checkout",
    "cd ~/toolsim-tutorial": "cli/test_installation.py::test_package_works_without_checkout",
    # Programs that the client tests install.
    "npm install -g @openai/codex": "cli/test_launch.py",
}
"""Commands that are not run here, each with the test that runs it or an equivalent."""

LANGUAGES = {"sh", "python", "toml", "js", "yaml", "json", "diff", "text", ""}
"""The languages of all code blocks; only ``sh`` blocks contain commands."""
PROGRAMS = {"toolsim", "mitmdump", "mitmweb", "mitmproxy", "make", "pip", "pipx", "uv", "npm", "npx", "curl", "export"}


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the language and content of every code block, no matter which fence characters it uses."""
    found: list[tuple[str, str]] = []
    fence = ""
    for line in text.splitlines():
        opened = re.match(r"[\s>]*(`{3,}|~{3,})\s*(\S*)", line)
        if opened and (not fence or (opened[1].startswith(fence) and not opened[2])):
            if not fence:
                found.append((opened[2], ""))
            fence = "" if fence else opened[1]
        elif fence:
            found[-1] = found[-1][0], f"{found[-1][1]}{line}\n"
    return found


def looks_like_command(line: str) -> bool:
    """Return whether a line is a command. Lines that begin with toolsim's name and version are output."""
    word, _, rest = line.strip().removeprefix("$ ").partition(" ")
    return line.startswith("$ ") or (word in PROGRAMS and not re.match(r"\d|=|:", rest))


def fenced(text: str) -> list[str]:
    """Return the command lines in all shell blocks, each with the variables that its block has exported so far."""
    found = []
    for language, block in blocks(text):
        exported, line = "", ""
        for part in block.splitlines() if language == "sh" else ():
            line += ("\n" if line else "") + part.strip()
            try:
                shlex.split(line)
            except ValueError:  # A quoted string continues on the next line.
                continue
            line = re.sub(r"\s+# .*", "", line)
            if line.startswith("export "):
                exported += f"{line}; "
            elif line:
                # The command replaces the shell, which would handle Ctrl-C differently.
                found.append(f"{exported}exec {line}" if exported else line)
            line = ""
        assert not line, f"a quotation does not end: {line}"
    return found


def inline(text: str) -> list[str]:
    """Return the complete commands in running text, except ``eval compare``, which needs two reports."""
    return re.findall(
        r"`(toolsim (?:serve [^-\s`]|codex|demo|record|doctor|replay|export|options|addon-path)\b[^`]*)`", text
    )


PROSE = "\n".join((ROOT / page).read_text() for page in PAGES if not page.endswith("changes.md"))
ROWS = re.findall(r"^\| [^|]+ \| `(toolsim [^`]+)` \|", section("recipes"), re.MULTILINE)
_BACKEND = re.compile(r"https?://[\w.]+(:\d+)?(?=/v1|[\s']|$)")
COMMANDS = {_BACKEND.sub("BACKEND", line): line for line in sorted({*fenced(PROSE), *ROWS, *inline(PROSE)})}
"""Documented command lines, keyed by the line with a placeholder for the backend's address."""


def test_every_command_is_found() -> None:
    """Each code block that contains a command is marked as shell, and each line in a shell block is one complete
    command.
    """
    everything = blocks(PROSE)
    assert {language for language, _ in everything} <= LANGUAGES
    unmarked = [line for language, text in everything if language != "sh" for line in text.splitlines()]
    assert [line for line in unmarked if looks_like_command(line)] == []
    for line in COMMANDS.values():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        operators = {token for token in lexer if set(token) <= set("();<>|&")}
        assert operators <= ({";"} if line.startswith("export ") else set()), line
    assert ELSEWHERE.keys() <= COMMANDS.keys()


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    """A server that answers with a call if the prompt contains the tool, and with text otherwise."""

    def answer(exchange: Exchange) -> Turn:
        prompt = "\n".join(text for _, text in exchange.transcript)
        return says(call("get_weather", {"city": "Bonn"})) if '"get_weather"' in prompt else says("Hello.")

    with TextBackend(answer) as backend:
        yield backend


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    with Mitmdump(toolsim_backend="scripted") as proxy:
        yield proxy.url


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    """The user's environment: a home folder without settings, and the programs on the path."""
    folders = (Path(sys.executable).parent, NODE_CLIENTS / "node_modules/.bin", AGENTS / "node_modules/.bin")
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    # Claude Code refuses to run unattended as root outside a sandbox.
    claude = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "IS_SANDBOX": "1"}
    return {**environment(tmp_path), "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state"), **claude}


def with_backend(line: str, backend: TextBackend) -> str:
    """Return the command line with the URL of this test's backend and a free port."""
    line = _BACKEND.sub(backend.url, line)
    line = re.sub(r"\bURL\b", f"{backend.url}/v1", line)
    line = line.replace(" --web", f" --web --set web_port={free_port()} --set web_open_browser=false")
    return on_port(line, 0)


def on_port(line: str, port: int | None) -> str:
    """Return a command line with another listener port."""
    before, separator, after = line.partition(" -- ")
    return re.sub(r" --port \d+", "", before) + f" --port {port}" + separator + after


def check_call(url: str, *, proxy: str = "") -> None:
    """Check that a question with a tool is answered with a call. ``proxy``: the address of a forward proxy, if any."""
    connection = http.client.HTTPConnection(urlsplit(proxy or url).netloc, timeout=60)
    target = f"{url}/v1/chat/completions" if proxy else "/v1/chat/completions"
    connection.request("POST", target, json.dumps(ASK), {"content-type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert [made["function"]["name"] for made in answer["choices"][0]["message"]["tool_calls"]] == ["get_weather"]


def serves(line: str, backend: TextBackend, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Start the server, wait for its banner, and request a call; for a model with random weights, request any text."""
    folder = tmp_path / "work"
    folder.mkdir()
    line = with_backend(line, backend).replace(" DIR ", " recordings ")
    if "model.gguf" in line:
        pytest.importorskip("xllamacpp", reason="needs xllamacpp (make setup)")
        write_tiny_model(folder / "model.gguf")
    files = re.findall(r"^```toml\n(.*?)^```", (DOCS / "backends.md").read_text(), re.MULTILINE | re.DOTALL)
    for name, content in zip(("toolsim.toml", "models.toml"), files, strict=True):
        if name in line:
            (folder / name).write_text(content.replace("http://127.0.0.1:11434", backend.url))
    if line.startswith("toolsim codex"):
        if codex() is None:
            pytest.skip("needs codex: run `make test-clients`")
        home = folder / "codex"
        home.mkdir()
        provider = f'[model_providers.s]\nname = "s"\nbase_url = "{backend.url}/v1"\nwire_api = "responses"\n'
        (home / "config.toml").write_text(f'model = "m"\nmodel_provider = "s"\n{provider}')
        env = {**env, "CODEX_HOME": str(home)}
    if "OTEL_EXPORTER" in line:
        line = line.replace(
            f"OTEL_EXPORTER_OTLP_ENDPOINT={backend.url}", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9"
        )
    with started(["sh", "-c", line if "exec " in line else f"exec {line}"], folder, env) as (url, _):
        if "model.gguf" in line:
            with Line(url) as client:
                answer = client.post("/v1/responses", {"model": "any", "input": "Hello", "max_output_tokens": 5})
            assert answer.json()["output"], answer.body
        else:
            check_call(url)
    assert list((folder / "recordings").iterdir()) if "recordings" in line else True


def starts_mitmproxy(line: str, backend: TextBackend, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Start mitmproxy in the checkout, and send a request to it or, if it has an upstream, through it."""
    line = re.sub(r"http://127\.0\.0\.1:11434", backend.url, line)
    line = f"{line} --listen-port 0 --set confdir={tmp_path}"
    with started(["sh", "-c", line if "exec " in line else f"exec {line}"], ROOT, env) as (url, _):
        if "toolsim_upstream" in line:
            check_call("http://api.openai.com", proxy=url)
        else:
            check_call(url)


def runs_claude(line: str, scripted: str, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Run Claude Code with a single question."""
    if agent("claude") is None:
        pytest.skip("needs claude: run `make test-clients`")
    run = shell(f"{line.replace('http://127.0.0.1:8080', scripted)} -p Hello", tmp_path, env)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip(), run.stderr


QUESTIONS = {"codex": "exec --skip-git-repo-check Hello", "claude": "-p Hello"}
"""The arguments that make a program answer a single question and exit."""


def launches(line: str, backend: TextBackend, scripted: str, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Start the program with the question on the page or, if the page has none, with a default question.

    A command line without a URL uses a toolsim that is already running.
    """
    name = line.split()[2]
    if (codex() if name == "codex" else agent(name)) is None:
        pytest.skip(f"needs {name}: run `make test-clients`")
    asked = line if " -- " in line else f"{line} -- {QUESTIONS[name]}"
    over_running = "http://" not in line
    run = shell(
        on_port(asked, urlsplit(scripted).port) if over_running else with_backend(asked, backend), tmp_path, env
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert ("scripted" if over_running else "Hello.") in run.stdout
    if "> hello.txt" in line:
        assert (tmp_path / "hello.txt").read_text() == "Hello\n"


def shell(line: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command line until it exits."""
    return subprocess.run(
        ["sh", "-c", line], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )


def answers(line: str, scripted: str, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Run a curl command, and check that the scripted model answers it."""
    run = shell(line.replace("http://127.0.0.1:8080", scripted), tmp_path, env)
    answer = json.loads(run.stdout)
    assert not answer.get("error"), run.stdout
    assert answer.get("object") in ("response", "list") or answer["name"] == "toolsim"


def evaluates(line: str, backend: TextBackend, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Start an evaluation or tuning, and stop it after its first question."""
    log = tmp_path / "log"
    line = _BACKEND.sub(backend.url, line)
    before = len(backend.exchanges)
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {line}"],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            # If a shell runs the tests in the background, their child processes ignore SIGINT, so restore its handling.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    end = time.monotonic() + 60
    while len(backend.exchanges) == before and process.poll() is None:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    assert code == 130, log.read_text()
    assert "Traceback" not in log.read_text()


def ends(line: str, backend: TextBackend, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Run a command that exits by itself, and check that it succeeds."""
    if " DIR" in line:
        recorded = min((ROOT / "flows").rglob("*.flow"))
        (tmp_path / "DIR").mkdir()
        shutil.copy(recorded, tmp_path / "DIR")
    # The placeholder NAME stands for an environment variable that contains a key.
    run = shell(re.sub(r"\bURL\b", f"{backend.url}/v1", line), tmp_path, {**env, "NAME": "sk-any"})
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout
    assert run.stderr == ""


@pytest.mark.parametrize("line", COMMANDS.values(), ids=[name.split("\n")[0] for name in COMMANDS])
def test_documented_command_runs(
    line: str, backend: TextBackend, scripted: str, tmp_path: Path, env: Mapping[str, str]
) -> None:
    """Each documented command runs and produces the documented result."""
    backend.exchanges.clear()
    command = re.sub(r"^export .*; exec ", "", line, flags=re.DOTALL).split()
    match command[:2]:
        case [_, "ANTHROPIC_AUTH_TOKEN=none"]:
            runs_claude(line, scripted, tmp_path, env)
        case ["toolsim", "launch"]:
            launches(line, backend, scripted, tmp_path, env)
        case ["toolsim", "serve" | "codex" | "demo" | "record"]:
            serves(line, backend, tmp_path, env)
        case ["toolsim", "doctor" | "replay" | "export" | "options" | "addon-path"]:
            ends(line, backend, tmp_path, env)
        case ["toolsim", "eval" | "tune"]:
            evaluates(line, backend, tmp_path, env)
        case ["mitmdump", *_]:
            starts_mitmproxy(line, backend, tmp_path, env)
        case ["curl", *_]:
            answers(line, scripted, tmp_path, env)
        case _:
            file, _, name = ELSEWHERE[line].partition("::")
            assert f"def {name or 'test_'}" in (ROOT / "tests" / file).read_text()
