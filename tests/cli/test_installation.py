"""Tests for the published package, installed in a new environment.

They are in a separate file because they wait for a package registry.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli.test_toolsim import ASK, CALL
from support.command import environment
from support.line import Line
from support.mitmdump import ROOT, Mitmdump
from support.raw_backend import RawBackend, stream_of

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_package_works_without_checkout(tmp_path: Path) -> None:
    """Installed in a new environment, the published package works without the checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python, toolsim, mitmdump = (str(tmp_path / "env" / "bin" / name) for name in ("python", "toolsim", "mitmdump"))
    pip = [sys.executable, "-m", "pip", "--python", python]
    # pip does not compile the modules, since most are never imported, and compiling all of them would take half a
    # minute.
    install = [*pip, "install", "-q", "--disable-pip-version-check", "--no-compile"]
    wheel = published(tmp_path, python, install)
    subprocess.run([*install, str(wheel)], check=True, timeout=600)
    shown = subprocess.run([*pip, "show", "mitmproxy-toolsim"], capture_output=True, text=True, check=True).stdout
    version = subprocess.run([toolsim, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"Version: {version.split()[1]}\n" in shown
    assert "Author: toolsim developers" in shown
    assert subprocess.run([python, "-m", "toolsim", "--version"], capture_output=True, text=True).stdout == version
    played = subprocess.run(
        [toolsim, "demo", "--once", "--port", "0", "--set", "toolsim_log=json"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert played.returncode == 0, played.stdout + played.stderr
    # Each line of the output is JSON.
    lines = [json.loads(line) for line in played.stdout.splitlines()]
    turns = [line["status"] for line in lines if "tool_call_count" in line]
    assert (len(turns), turns[-5:]) == (14, [422, 200, 429, 200, 200])
    assert {line["level"] for line in lines} == {"info", "warning"}
    doctor = subprocess.run([toolsim, "doctor", "http://127.0.0.1:9"], capture_output=True, text=True, check=False)
    assert doctor.stderr.endswith("the connection was refused; is the server running?\n")
    evaluation = subprocess.run([toolsim, "eval"], capture_output=True, text=True, check=False)
    assert re.fullmatch(r"toolsim requires the package openai, .* pip install .*'openai.*\n", evaluation.stderr)
    where = subprocess.run([toolsim, "addon-path"], capture_output=True, text=True, check=True, cwd=tmp_path)
    script = Path(where.stdout.strip())
    assert script.is_relative_to(tmp_path / "env")
    with (
        RawBackend() as backend,
        Mitmdump(backend.url, command=[mitmdump], script=script) as proxy,
        Line(proxy.url) as line,
    ):
        backend.play(stream_of(CALL))
        assert b'"get_weather"' in line.post("/v1/chat/completions", {**ASK, "stream": True}).body


def published(tmp_path: Path, python: str, install: Sequence[str]) -> Path:
    """Build the distributions from a copy of the checkout, check their files, and return the path of the wheel.

    The wheel contains exactly the modules and the files that modules read. The source distribution also contains the
    pages.
    """
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    subprocess.run([*install, *requires], check=True)
    source, built = tmp_path / "source", tmp_path / "dist"
    made = {"__pycache__", ".mypy_cache"}
    files = [path.relative_to(ROOT) for path in (ROOT / "addon").rglob("*") if path.is_file()]
    tracked = [path.as_posix() for path in files if not made & set(path.parts)] + ["README.md", "pyproject.toml"]
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    subprocess.run([python, "-m", "hatchling", "build", "-d", str(built)], cwd=source, check=True, capture_output=True)
    [wheel], [archive] = built.glob("*.whl"), built.glob("*.tar.gz")
    packages = "addon/toolsim"
    wanted = {name.removeprefix("addon/") for name in tracked if name.startswith(packages) and name[-3:] != ".md"}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == wanted
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    beside = {"PKG-INFO", "README.md", "pyproject.toml"}
    assert names == beside | {name for name in tracked if name.startswith((packages, "addon/docs/"))}
    shutil.rmtree(source)
    return wheel
