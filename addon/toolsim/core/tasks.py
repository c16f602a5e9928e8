"""Background tasks: asyncio itself holds only weak references to them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def spawn(work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Start a coroutine as a task; ``among`` holds a reference until it is done."""
    task = asyncio.get_running_loop().create_task(work)
    among.add(task)
    task.add_done_callback(among.discard)
    return task
