"""Counts the files of the package whose functions run during one request in a real, warm mitmdump.

``python -m bench.entered``, run in ``tests``, prints the number of files and their paths for a streamed chat request
with one call. Files that are only imported, or whose functions run only at startup, do not count.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.stage import Client, backends
from support.mitmdump import MITMDUMP, Mitmdump

MODEL = "call-2000-4-1"
# Seconds to wait after an answer: long enough for the cleanup, and too short for periodic timeout checks to matter.
_SECONDS = 1.0


def entered(api: str = "chat", model: str = MODEL) -> list[str]:
    """Return the paths of the files whose functions run during a request, relative to the package."""
    counter = Path(__file__).parent / "count_entered.py"
    with TemporaryDirectory() as folder, backends() as (url, _):
        found = Path(folder) / "entered.json"
        environment = {"TOOLSIM_ENTERED": str(found)}
        with Mitmdump(url, command=MITMDUMP, arguments=["-s", str(counter)], environment=environment) as proxy:
            client = Client(proxy.url)
            for _ in range(3):
                client.ask(api, model)
            time.sleep(_SECONDS)
            os.kill(proxy.pid, signal.SIGUSR1)
            client.ask(api, model)
            time.sleep(_SECONDS)
            os.kill(proxy.pid, signal.SIGUSR2)
            while not found.exists() or not found.stat().st_size:
                time.sleep(0.05)
            files: list[str] = json.loads(found.read_text())
            return files


if __name__ == "__main__":
    files = entered()
    print(*files, sep="\n")
    print(f"{len(files)} files")
