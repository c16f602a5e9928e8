"""Programs that compact when the reported usage is high, with a server that reports no usage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.cases import call
from clients.test_claude_code import Claude
from clients.test_codex import CODEX, CONFIG, Codex
from support.mitmdump import Mitmdump
from support.programs import agent
from support.text_backend import Exchange, TextBackend, Turn, says

pytestmark = pytest.mark.slow


@pytest.fixture
def backend() -> Iterator[TextBackend]:
    with TextBackend(apis=["chat"]) as backend:
        backend.has_usage = False
        yield backend


@pytest.mark.skipif(CODEX is None, reason="needs codex: run `make test-clients`")
def test_codex_compacts_by_estimated_usage(backend: TextBackend, tmp_path: Path) -> None:
    """Codex compacts when toolsim's estimate exceeds Codex's limit, and continues from the summary."""

    def script(exchange: Exchange) -> Turn:
        said = "\n".join(text for _, text in exchange.transcript)
        if "CHECKPOINT COMPACTION" in said:
            return says("SUMMARY: there is one file.")
        if "SUMMARY" in said:
            return says("One file.")
        return says("I look.\n", call("exec_command", {"cmd": "ls"}))

    backend.play(script)
    with Mitmdump(backend.url) as proxy:
        limited = f"model_auto_compact_token_limit = 2000\n{CONFIG}"
        printed = Codex(tmp_path).run(f"{proxy.url}/v1", "gpt-5.5", limited)
    assert printed.words[-1] == "One file."
    assert printed.usage["input_tokens"] > 2000
    assert printed.usage["output_tokens"] > 0


@pytest.mark.skipif(agent("claude") is None, reason="needs claude: run `make test-clients`")
def test_claude_code_reports_estimated_usage(backend: TextBackend, tmp_path: Path) -> None:
    """Claude Code reports toolsim's estimate as the usage of the turn, and uses the estimate to decide when
    to compact.
    """
    backend.play(lambda _: says("It is heron."))
    with Mitmdump(backend.url) as proxy:
        usage = Claude(proxy.url, tmp_path).ask("What is the word?")["usage"]
    assert usage["input_tokens"] > 2000
    assert 0 < usage["output_tokens"] < 20
