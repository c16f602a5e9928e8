"""Tests for reading prompts and answers from recordings."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from toolsim.eval import recorded
from toolsim.eval.recorded import Captures

NAMES = (
    "agents-chat-whole",
    "openai-python-chat-stream",
    "ai-sdk-responses-over-chat-stream",
    "langchain-responses-stream",
)
FLOWS = [Path(__file__).parents[3] / "flows" / f"{name}.flow" for name in NAMES]


@pytest.mark.parametrize("file", FLOWS, ids=NAMES)
async def test_recording_contains_prompt_and_model_text(file: Path, tmp_path: Path) -> None:
    """The exchange read from a recording contains the rewritten prompt with the tool catalog, and the text that the
    model wrote.
    """
    shutil.copy(file, tmp_path)
    [exchange] = await Captures(tmp_path).new(1)
    assert any("# CLIENT TOOL CATALOG" in text for _, text in exchange.shown)
    assert exchange.wrote


async def test_recordings_are_returned_once_in_order(tmp_path: Path) -> None:
    """``new`` returns each recording only once, beginning with the oldest. It does not return recordings of an
    abandoned run.
    """
    captures = Captures(tmp_path)
    shutil.copy(FLOWS[0], tmp_path / "left-0001.flow")
    captures.forget()
    for name, age in (("b-0001.flow", 100), ("a-0001.flow", 50)):
        shutil.copy(FLOWS[0] if name.startswith("b") else FLOWS[1], tmp_path / name)
        os.utime(tmp_path / name, (age, age) if name.startswith("a") else (age - 80, age - 80))
    first = await captures.new(2)
    assert len(first) == 2
    alone = Captures(tmp_path)
    (tmp_path / "a-0001.flow").unlink()
    (tmp_path / "left-0001.flow").unlink()
    assert first[0] == (await alone.new(1))[0]
    assert await captures.new(0) == []


async def test_late_recording_is_awaited_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a recording does not exist yet, it is awaited for a limited time. The recording of an aborted exchange never
    appears.
    """
    monkeypatch.setattr(recorded, "_WAIT_SECONDS", 1.0)
    captures = Captures(tmp_path)
    waiting = asyncio.create_task(captures.new(1))
    await asyncio.sleep(0.1)
    shutil.copy(FLOWS[0], tmp_path)
    assert len(await waiting) == 1
    monkeypatch.setattr(recorded, "_WAIT_SECONDS", 0.1)
    assert await captures.new(1) == []


async def test_broken_recording_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "x-0001.flow").write_bytes(b"no flow")
    assert await Captures(tmp_path).new(1) == []
