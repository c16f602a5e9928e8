"""Generates ``screenshots/demo.svg``, the terminal output of a real ``toolsim demo``. Needs the ``[eval]`` extra."""

from __future__ import annotations

import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "screenshots" / "demo.svg"
COMMAND = ("toolsim", "demo", "--once")
COLUMNS = 160


def shown() -> str:
    """Return the output of the command on a terminal, including colors."""
    written = bytearray()

    def read(screen: int) -> bytes:
        data = os.read(screen, 65536)
        written.extend(data)
        return data

    home = tempfile.mkdtemp(prefix="toolsim-capture-")
    os.environ |= {"HOME": home, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    program = Path(sys.executable).parent / COMMAND[0]
    if pty.spawn([str(program), *COMMAND[1:]], read):
        raise SystemExit("the demo failed")
    return written.decode().replace("\r\n", "\n").replace(home, "/home/you")


def main() -> None:
    """Write the screenshot."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(f"[bold]$ {' '.join(COMMAND)}[/bold]", highlight=False)
    console.print(Text.from_ansi(shown()), highlight=False)
    picture = console.export_svg(title="toolsim demo", unique_id="toolsim")
    # Do not embed a web font, since the viewer's font suffices.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    PICTURE.write_text(picture)


if __name__ == "__main__":
    main()
