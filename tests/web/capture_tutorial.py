"""Generates the images in addon/docs/tutorial.md from a real run: the demo in mitmweb, with Codex as a client.

Needs Chromium, Codex (``make test-clients``), pngquant, and the ports 8080 and 8081. To run it, enter ``python -m
web.capture_tutorial`` in ``tests/``.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from support.chromium import Chromium
from support.command import TOOLSIM, environment, started, wait_for
from support.mitmdump import ROOT
from support.programs import codex

PICTURES = ROOT / "addon" / "docs" / "images"
QUESTION = "Run the command `echo Hello > hello.txt`"
ARGUMENTS = ("exec", "--skip-git-repo-check", "--sandbox", "workspace-write", QUESTION)
ROWS = "document.querySelectorAll('.flow-table td.col-path')"


def main() -> None:
    """Perform the steps in the tutorial, and take the screenshots."""
    folder = Path(tempfile.mkdtemp(prefix="toolsim-tutorial-"))
    program = codex()
    assert program is not None
    env = environment(folder) | {"PATH": f"{Path(program).parent}:{environment(folder)['PATH']}"}
    with (
        started([*TOOLSIM, "demo", "--web"], folder, env, banner=r"turns in a browser +(\S+)") as (url, log),
        Chromium(width=1280, height=900) as page,
    ):
        wait_for(log, "played 14 turns")
        page.open(url)
        page.wait_for(f"{ROWS}.length >= 14")
        subprocess.run([*TOOLSIM, "launch", "codex", "--", *ARGUMENTS], cwd=folder, env=env, check=True)
        page.run("document.querySelector('.flow-table').scrollTo(0, 0)")
        take(page, "turns.png", width=1280, height=620)
        position = f"[...{ROWS}].findIndex(e => e.closest('tr').innerText.includes('exec_command'))"
        page.wait_for(f"{position} >= 0")
        page.run(f"[...{ROWS}].at({position}).click()")
        page.click("Response")
        page.wait_for("(document.querySelector('.contentview pre') || document.body).innerText.includes('CLIENT GOT')")
        take(page, "call.png", width=1280, height=840)
        page.click("Request")
        page.wait_for("(document.querySelector('.contentview pre') || document.body).innerText.includes('SETTINGS')")
        page.run("document.querySelector('.contentview').scrollIntoView()")
        take(page, "request.png", width=1280, height=840)
        page.open("http://127.0.0.1:8080/toolsim/")
        page.wait_for("(document.body || {}).innerText?.includes('exec_command')")
        take(page, "overview.png", width=1280, height=820)


def take(page: Chromium, name: str, *, width: int, height: int) -> None:
    """Write a screenshot with only 16 colors."""
    time.sleep(1)
    page.screenshot(PICTURES / name, width=width, height=height)
    subprocess.run(["pngquant", "--force", "--ext", ".png", "16", str(PICTURES / name)], check=True)


if __name__ == "__main__":
    main()
