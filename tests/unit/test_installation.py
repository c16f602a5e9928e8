"""Tests for the command that installs a missing package, depending on how toolsim was installed."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.mitmdump import ROOT
from toolsim import installation
from toolsim.installation import EXTRAS, command_for_extra, install_command

Environment = Callable[[str, str], None]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Return a function that writes a file to the folder of a simulated Python environment."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    def make(name: str, content: str) -> None:
        (tmp_path / name).write_text(content)

    return make


def receipt(*requirements: str) -> str:
    return f"[tool]\nrequirements = [{','.join(requirements)}]\n"


def test_pip() -> None:
    """The install command starts with the path of the interpreter, because the first pip on the PATH might belong to
    another installation.
    """
    assert command_for_extra("redis") == f"{sys.executable} -m pip install 'redis>=6,<9'"
    assert install_command(["a==1", "b"], dependencies=False) == f"{sys.executable} -m pip install --no-deps a==1 b"


def test_pipx(environment: Environment) -> None:
    """With pipx, the package is injected into the environment in which toolsim runs, because the main program of that
    environment might be mitmproxy instead of toolsim.
    """
    environment("pipx_metadata.json", json.dumps({"main_package": {"package": "mitmproxy"}}))
    assert command_for_extra("redis") == "pipx inject mitmproxy 'redis>=6,<9'"
    assert install_command(["a"], dependencies=False) == "pipx inject --pip-args=--no-deps mitmproxy a"


@pytest.mark.parametrize(
    ("requirements", "arguments"),
    [
        (['{name = "mitmproxy-toolsim"}'], "mitmproxy-toolsim"),
        (['{name = "mitmproxy-toolsim", specifier = "==0.2"}'], "mitmproxy-toolsim==0.2"),
        (['{name = "mitmproxy-toolsim", extras = ["mcp", "otel"], directory = "/a b"}'], "'/a b[mcp,otel]'"),
        (['{name = "mitmproxy-toolsim", path = "/dist/toolsim.whl"}'], "/dist/toolsim.whl"),
        (['{name = "mitmproxy-toolsim", editable = "/src"}'], "--editable /src"),
        (
            ['{name = "mitmproxy-toolsim", git = "https://host/toolsim?rev=main"}'],
            "'mitmproxy-toolsim @ git+https://host/toolsim@main'",
        ),
        (['{name = "mitmproxy-toolsim", url = "https://host/t.whl"}'], "'mitmproxy-toolsim @ https://host/t.whl'"),
        (
            ['{name = "mitmproxy"}', '{name = "mitmproxy-toolsim", editable = "/src"}', '{name = "rich"}'],
            "mitmproxy --with-editable /src --with rich",
        ),
    ],
)
def test_uv_tool_is_reinstalled_with_its_packages(
    requirements: list[str], arguments: str, environment: Environment
) -> None:
    """With uv, the tool is reinstalled from the same source and with its current packages, because uv replaces the
    environment.
    """
    environment("uv-receipt.toml", receipt(*requirements))
    assert command_for_extra("redis") == f"uv tool install {arguments} --with 'redis>=6,<9'"
    without = install_command(["a"], dependencies=False)
    assert without == f"{shlex.quote(sys.executable)} -m pip install --no-deps a"


@pytest.mark.parametrize(
    ("name", "content"),
    [("pipx_metadata.json", "{"), ("pipx_metadata.json", "[]"), ("uv-receipt.toml", "["), ("uv-receipt.toml", "")],
)
def test_unreadable_metadata_is_ignored(name: str, content: str, environment: Environment) -> None:
    """If a metadata file cannot be parsed, it is ignored, and the install command uses pip."""
    environment(name, content)
    assert command_for_extra("redis") == f"{sys.executable} -m pip install 'redis>=6,<9'"


def test_environment_without_pip_uses_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment has no pip, the install command uses uv, because uv creates such environments."""
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    assert command_for_extra("redis") == f"uv pip install --python {sys.executable} 'redis>=6,<9'"


def test_standalone_mitmproxy_is_reinstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standalone mitmproxy cannot be extended, so the install command installs mitmproxy with uv."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert install_command(["regex", "brotli"]) == "uv tool install mitmproxy --with regex --with brotli"


def test_windows_arguments_have_double_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, arguments in the install command are quoted with double quotes, because the Windows shell does not
    support single quotes.
    """
    monkeypatch.setattr(sys, "executable", r"C:\Program Files\python.exe")
    monkeypatch.setattr(installation.os, "name", "nt")
    expected = '"C:\\Program Files\\python.exe" -m pip install "redis>=6,<9" rich'
    assert installation._line([sys.executable, "-m", "pip", "install", "redis>=6,<9", "rich"]) == expected


def test_extras_match_pyproject() -> None:
    """The extras in the code equal the optional dependencies in pyproject.toml. They are duplicated because the addon
    cannot read that file.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {extra: list(requirements) for extra, requirements in EXTRAS.items()} == {
        extra: project["optional-dependencies"][extra] for extra in EXTRAS
    }
