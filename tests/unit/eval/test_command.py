"""Tests for ``toolsim eval``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toolsim.eval import command, flags, journal
from toolsim.eval.case import Run, with_current_names
from toolsim.eval.command import EXIT_USAGE, main
from unit.eval.runs import run


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE_URL", "API_KEY", "MODEL_FILTER"):
        monkeypatch.delenv(f"OPENROUTER_{name}", raising=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--base-url", "ftp://a", "--models", "m"),
        ("--base-url", "http://127.0.0.1:9/v1"),
        ("--base-url", "http://127.0.0.1:9/v1", "--models", "m", "--method", "magic"),
        ("--base-url", "http://127.0.0.1:9/v1", "--models", "m", "--key-env", "TOOLSIM_NO_SUCH_KEY"),
        ("--base-url", "http://127.0.0.1:9/v1", "--models", "m", "--tool-choice", "get_weathr"),
        ("--offline", "--tool-choice", "get_weathr"),
        ("--resume",),
        ("--resume", "nowhere"),
    ],
)
def test_invalid_usage_is_reported_in_one_line(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Incorrect usage causes a one-line error and exit code 2. No report is created."""
    assert main([*arguments, "--out", str(tmp_path / "out")]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("toolsim eval: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "options"),
    [([], ["toolsim_manifest=calls,hermes"]), (["--set", "toolsim_manifest=calls"], ["toolsim_manifest=calls"])],
)
def test_options_replace_saved_settings_on_resume(given: list[str], options: list[str], tmp_path: Path) -> None:
    """``--resume`` restores the settings of the earlier evaluation. Options on the command line override them."""
    saved = {"models": "m", "options": ["toolsim_manifest=calls,hermes"]}
    (tmp_path / journal.SETTINGS).write_text(json.dumps(saved))
    args, folder = command._resumed(flags.parser({}), ["--resume", str(tmp_path), *given])
    assert (args.models, args.options, folder) == ("m", options, tmp_path)


def test_earlier_flag_name_still_works(capsys: pytest.CaptureFixture[str]) -> None:
    """The earlier name of a flag still works, both with a separate value and with ``=``. A line on standard error
    states the current name.
    """
    for arguments in (["--way", "native", "-q"], ["--way=native", "-q"]):
        current = flags.with_current_names(arguments)
        assert flags.parser({}).parse_args(current).method == "native"
        assert capsys.readouterr().err == "toolsim eval: --way is now called --method\n"
    assert flags.with_current_names(["--method", "native"]) == ["--method", "native"]
    assert capsys.readouterr().err == ""


def test_runs_and_settings_with_the_earlier_name() -> None:
    """Earlier versions stored the method under the key ``way``. Their runs and settings can still be read."""
    data = run(method="native").as_dict()
    data["cell"]["way"] = data["cell"].pop("method")
    assert Run.from_dict(data) == run(method="native")
    assert with_current_names({"way": "native", "out": "x"}) == {"method": "native", "out": "x"}
