"""Tests for the wrapper around the BFCL package, which never executes code from a model."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from toolsim.eval import bfcl_package
from toolsim.eval.bfcl_package import Unreadable, read_prompted, source

ADDON = Path(__file__).parents[3] / "addon"
needs_bfcl = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason=f"needs BFCL: {bfcl_package.INSTALL}"
)


@needs_bfcl
def test_names_and_numbers_are_parsed() -> None:
    """Dots in function names become underscores, and arithmetic on numbers is evaluated."""
    assert read_prompted("[math.add(a=2*3, b='x'), f()]") == [{"math_add": {"a": 6, "b": "x"}}, {"f": {}}]


@needs_bfcl
@pytest.mark.parametrize(
    "text",
    [
        "[f(x=__import__('os').system('touch {file}') + 0)]",
        "[f(x=lambda: open('{file}', 'w'))]",
        "[f(x=[1 + open('{file}', 'w')])]",
        "[f(x=9**9**9)]",
        "[f(x='a' * 1000000000)]",
        "I cannot do that.",
        "[1, 2]",
        "[f(x=1 is 1)]",
        "[f(x=" + "(" * 500,
    ],
)
def test_code_is_never_executed(text: str, tmp_path: Path) -> None:
    """Code in the model's text is refused and never executed. Only literals are accepted as arguments."""
    file = tmp_path / "made"
    with pytest.raises(Unreadable):
        read_prompted(text.replace("{file}", str(file)))
    assert not file.exists()


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ({"cd": {"folder": "a'b"}}, """cd(folder="a'b")"""),
        ({"rm": {}}, "unknown_function()"),
        ({"__import__": {"name": "os"}}, "unknown_function()"),
        ({"cd": {"folder=0) or open('x', 'w') or cd(folder": 1}}, "unknown_function()"),
        ({"power": {"base": 10**9, "exponent": 10**9}}, "unknown_function()"),
    ],
)
def test_simulated_programs_evaluate_only_offered_calls(call: bfcl_package.Decoded, line: str) -> None:
    """The simulated programs run only functions that the model was offered. Arguments cannot contain code."""
    assert source([call], ["cd"]) == [line]


def test_endless_arithmetic_is_replaced_by_nan() -> None:
    """An exponent or a precision that would make a computation endless is replaced with NaN."""
    assert source([{"power": {"base": 2.0, "exponent": 10**9}}], ["power"]) == ["power(base=2.0, exponent=nan)"]


@needs_bfcl
def test_site_packages_are_not_modified() -> None:
    """The BFCL package creates its folders in a temporary folder instead of site-packages. The temporary folder is
    removed at exit.
    """
    code = (
        "import os, pathlib\n"
        "from toolsim.eval import bfcl_package\n"
        "assert len(bfcl_package.load_entries('simple_python')) == 400\n"
        "import bfcl_eval.constants.eval_config as config\n"
        "assert 'BFCL_PROJECT_ROOT' not in os.environ\n"
        "print(config.RESULT_PATH)\n"
    )
    made = Path(_run(code).strip())
    assert "site-packages" not in str(made)
    assert not made.exists()


def test_missing_package_is_reported_in_one_line() -> None:
    """If the BFCL package is missing, the error is a single line with the install command."""
    code = (
        "import sys\n"
        "sys.modules['bfcl_eval'] = None\n"
        "from toolsim.command_line import UsageError\n"
        "from toolsim.eval import bfcl\n"
        "try: bfcl.cases('multiple')\n"
        "except UsageError as error: print(error)\n"
    )
    assert _run(code).strip().endswith(f"install it with: {bfcl_package.INSTALL}")
    assert len(_run(code).strip().splitlines()) == 1


def _run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ADDON)}, capture_output=True, text=True, check=True
    ).stdout
