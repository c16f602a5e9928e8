"""Programs that tests need and that a machine may lack."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NODE_CLIENTS = Path(__file__).parents[1] / "clients" / "node"


def codex() -> str | None:
    """Return the Codex binary: CODEX_BIN, that of the JavaScript clients, or the one on the path."""
    installed = NODE_CLIENTS / "node_modules" / ".bin"
    return os.environ.get("CODEX_BIN") or shutil.which("codex", path=installed) or shutil.which("codex")
