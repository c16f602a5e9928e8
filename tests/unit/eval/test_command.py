"""``toolsim eval``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toolsim.eval import command, flags, journal
from toolsim.eval.command import EXIT_USAGE, main


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
def test_bad_usage_is_reported_in_one_line(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and no report is started."""
    assert main([*arguments, "--out", str(tmp_path / "out")]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("toolsim eval: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "options"),
    [([], ["toolsim_manifest=calls,hermes"]), (["--set", "toolsim_manifest=calls"], ["toolsim_manifest=calls"])],
)
def test_what_is_given_again_replaces_what_was_saved(given: list[str], options: list[str], tmp_path: Path) -> None:
    """--resume restores the saved settings; options that are set again replace the saved ones."""
    saved = {"models": "m", "options": ["toolsim_manifest=calls,hermes"]}
    (tmp_path / journal.SETTINGS).write_text(json.dumps(saved))
    args, folder = command._resumed(flags.parser({}), ["--resume", str(tmp_path), *given])
    assert (args.models, args.options, folder) == ("m", options, tmp_path)
