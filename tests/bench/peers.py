"""A comparison of the alternatives LiteLLM and Forge with toolsim and a bare mitmdump, using the same streams.

All proxies run in front of the same backend, which writes its calls as text. They take turns receiving the same
requests, which offer one tool. Each peer is installed from PyPI into a separate environment under
``~/.cache/toolsim-peers`` (or the folder in ``TOOLSIM_PEERS``), and started with its defaults, as its documentation
describes. A peer that cannot be installed or started is skipped, and the reason is printed. CPU time and memory include
all processes of a peer.

``make bench ROWS=peers`` measures. ``python -m bench.peers`` then updates the table on the benchmarks page.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.stage import Client, Proxies, cpu_seconds, resident_megabytes
from bench.table import BUILD, Row
from support.mitmdump import ROOT
from support.ports import free_port

PROSE, CALL = "prose-8000-4-1", "object-400-4-1"
"""Model names for the backend (``backend.py``): 2,000 deltas of prose, and a Hermes call whose arguments are an object.
"""
FOLDER = Path(os.environ.get("TOOLSIM_PEERS") or Path.home() / ".cache" / "toolsim-peers")
PAGE = ROOT / "addon" / "docs" / "figures.md"
_BARE = "a bare mitmdump"
_START_SECONDS = 120.0
_INSTALL_SECONDS = 900.0

_LITELLM = """\
model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "{url}/v1", api_key: none}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy from PyPI. ``command``: the command line, in which {bin}, {url}, {port} and {folder} are replaced."""

    name: str
    package: str
    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    """The files to write into {folder} before the proxy starts: their contents by name."""


PEERS = (
    Peer(
        "LiteLLM",
        "litellm[proxy]==1.108.7",
        "{bin}/litellm --config {folder}/litellm.yaml --host 127.0.0.1 --port {port}",
        {"litellm.yaml": _LITELLM},
    ),
    Peer(
        "Forge",
        "forge-guardrails==0.10.0",
        "{bin}/python -m forge.proxy --backend-url {url} --port {port} --no-serialize",
    ),
)


class Skipped(Exception):
    """Raised with the reason why a peer cannot be measured."""


def installed(peer: Peer) -> Path:
    """Return the folder of a peer's programs. Create the environment if it is missing.

    Raises Skipped if the peer cannot be installed.
    """
    home = FOLDER / re.sub(r"\W+", "-", peer.package)
    done = home / "installed"
    if not done.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True, capture_output=True)
            words = [home / "bin" / "pip", "install", "-q", "--disable-pip-version-check", peer.package]
            run = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise Skipped(f"not installed: {error}") from error
        if run.returncode:
            raise Skipped(f"not installed: {run.stderr.strip().splitlines()[-1]}")
        done.touch()
    return home / "bin"


@contextmanager
def started(peer: Peer, url: str) -> Iterator[tuple[str, int]]:
    """Run a peer in front of the backend at ``url``; yield the peer's URL and process ID.

    Raises Skipped if the peer cannot be installed or started.
    """
    programs = installed(peer)
    port = free_port()
    with ExitStack() as stack:
        folder = FOLDER / f"run-{port}"
        folder.mkdir()
        stack.callback(folder.rmdir)
        for name, text in peer.files.items():
            (folder / name).write_text(text.format(url=url))
            stack.callback((folder / name).unlink)
        words = peer.command.format(bin=programs, url=url, port=port, folder=folder).split()
        log = stack.enter_context((folder / "log").open("w"))
        stack.callback((folder / "log").unlink)
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                Client(f"http://127.0.0.1:{port}").ask("chat", CALL)
                break
            except (OSError, AssertionError) as error:
                if process.poll() is not None or time.monotonic() > until:
                    raise Skipped(f"not started: {(folder / 'log').read_text()[-200:].strip() or error}") from error
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process.pid


def processes(pid: int) -> list[int]:
    """Return the IDs of a process and all its descendants."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def first_text(client: Client, model: str) -> float:
    """Read a stream to its end, and return the milliseconds until its first text."""
    start = time.monotonic()
    answer = client.begin("chat", model)
    for line in answer:
        if line.startswith(b"data: {") and any(delta.get("content") for delta in deltas(line)):
            break
    taken = 1000 * (time.monotonic() - start)
    answer.read()
    return taken


def deltas(stream: bytes) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a chat stream."""
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                yield choice["delta"]


def call_seen(stream: bytes) -> str:
    """Return how a client sees the call: with its arguments as an object, as a broken call, or as text."""
    pieces = [call["function"] for delta in deltas(stream) for call in delta.get("tool_calls") or ()]
    arguments = "".join(piece.get("arguments") or "" for piece in pieces)
    if not pieces:
        return "text"
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except ValueError:
        is_object = False
    return "a call" if is_object and pieces[0].get("name") == "write" else "a broken call"


def measure(proxies: Proxies, quick: bool) -> Iterator[Row]:
    """Yield four rows per proxy."""
    rounds = 3 if quick else 9
    with ExitStack() as stack:
        bare, ours = proxies.bare(), proxies.toolsim()
        sides: dict[str, tuple[str, int]] = {_BARE: (bare.url, bare.pid), "toolsim": (ours.url, ours.pid)}
        for peer in PEERS:
            try:
                name = f"{peer.name} {peer.package.partition('==')[2]}"
                sides[name] = stack.enter_context(started(peer, proxies.url))
            except Skipped as skipped:
                print(f"peers: {peer.name} is skipped: {skipped}")
        costs: dict[str, list[float]] = {name: [] for name in sides}
        waits: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(rounds + 1):
            for name, (url, pid) in sides.items():
                before = sum(map(cpu_seconds, processes(pid)))
                wait = first_text(Client(url), PROSE)
                if turn:  # The first round is a warm-up.
                    costs[name].append(1000 * (sum(map(cpu_seconds, processes(pid))) - before))
                    waits[name].append(wait)
        for name, (url, pid) in sides.items():
            for what, times in (("CPU of 2,000 deltas", costs), ("first text", waits)):
                bare_time = statistics.median(times[_BARE])
                yield Row("peers", f"{name}: {what}", statistics.median(times[name]), "ms", reference=bare_time)
            yield Row("peers", f"{name}: memory", sum(map(resident_megabytes, processes(pid))), "MB")
            seen = call_seen(Client(url).ask("chat", CALL))
            yield Row("peers", f"{name}: calls of one", float(seen == "a call"), "", note=seen)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows of a run as a Markdown table."""
    lines = ["| proxy | CPU of 2,000 deltas, × bare | first text, × bare | memory, MB | the call arrives as |"]
    lines.append("|---|---|---|---|---|")
    for at in range(0, len(rows), 4):
        cost, wait, memory, call = rows[at : at + 4]
        ratios = [f"{row['value'] / row['reference']:.1f}" for row in (cost, wait)]
        name = cost["name"].partition(":")[0]
        lines.append(f"| {name} | {' | '.join(ratios)} | {memory['value']:.0f} | {call['note']} |")
    return "\n".join(lines)


def main() -> int:
    """Insert the table of the last run into the benchmarks page."""
    rows = [row for row in json.loads((BUILD / "bench.json").read_text())["rows"] if row["group"] == "peers"]
    if not rows:
        print("no such rows in the last run: make bench ROWS=peers")
        return 2
    page = PAGE.read_text()
    head, rest = page.split("<!-- peers -->\n")
    tail = rest.partition("<!-- /peers -->")[2]
    PAGE.write_text(f"{head}<!-- peers -->\n{table(rows)}\n<!-- /peers -->{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
