"""``toolsim eval``."""

from __future__ import annotations

from pathlib import Path

import pytest
from toolsimlib.evaluation.command import EXIT_USAGE, main


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE_URL", "API_KEY", "MODEL_FILTER"):
        monkeypatch.delenv(f"OPENROUTER_{name}", raising=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--base-url", "ftp://a", "--models", "m"),
        ("--base-url", "http://127.0.0.1:9/v1"),
        ("--base-url", "http://127.0.0.1:9/v1", "--models", "m", "--way", "magic"),
        ("--base-url", "http://127.0.0.1:9/v1", "--models", "m", "--key-env", "TOOLSIM_NO_SUCH_KEY"),
        ("--resume",),
        ("--resume", "nowhere"),
    ],
)
def test_bad_usage_is_said_in_one_line(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and no report is begun."""
    assert main([*arguments, "--out", str(tmp_path / "out")]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("toolsim eval: ")
    assert not (tmp_path / "out").exists()
