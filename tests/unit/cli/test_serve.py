"""Tests for the command line that starts mitmproxy, and for the checks of ports and folders before the start."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from toolsim.cli.serve import Start, _check_confdir, arguments, check_free, state_folder
from toolsim.command_line import UsageError, addon_script


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (Start("http://127.0.0.1:11434"), "--mode reverse:http://127.0.0.1:11434"),
        (
            Start("https://host/base/v1"),
            "--mode reverse:https://host:443 --set toolsim_upstream=https://host/base/v1",
        ),
        (
            Start("http://host/v1", settings=("toolsim_upstream=http://other/v1",)),
            "--mode reverse:http://host:80 --set toolsim_upstream=http://other/v1",
        ),
        (Start("http://[::1]:8000"), "--mode reverse:http://[::1]:8000"),
        (Start("m.gguf"), "--set toolsim_backend=local --set toolsim_model=m.gguf"),
        (Start("codex"), "--set toolsim_backend=codex"),
        (Start("", settings=("toolsim_models=m.toml",)), "--set toolsim_models=m.toml"),
        (Start("scripted", settings=("a=1", "b=2")), "--set toolsim_backend=scripted --set a=1 --set b=2"),
    ],
)
def test_arguments_for_mitmproxy(start: Start, words: str) -> None:
    """A backend and its settings become arguments that a user could also pass to mitmproxy directly. By default,
    mitmproxy listens on the loopback interface.
    """
    listen = ["--listen-host", "127.0.0.1", "--listen-port", "8080"]
    assert arguments(replace(start, remembers=False)) == ["-s", addon_script(), *listen, *words.split()]


def test_answers_are_stored_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By default, answers are stored in the user's state folder. An option can name another store or disable
    storage.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert arguments(Start("codex"))[-1] == f"toolsim_store=sqlite:{tmp_path}/toolsim/answers.sqlite"
    for store in "toolsim_store=", "toolsim_store=memory":
        assert [each for each in arguments(Start("codex", settings=(store,))) if "store" in each] == [store]
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local" / "state" / "toolsim"


def test_read_only_state_folder_disables_storing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the state folder is not writable, answers are not stored, and one line on standard error states the reason."""
    (tmp_path / "toolsim").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "store" not in str(arguments(Start("codex")))
    said = capsys.readouterr().err
    assert said == f"toolsim: cannot store conversations in {tmp_path / 'toolsim'}: File exists\n"


def test_read_only_home_is_reported(tmp_path: Path) -> None:
    """If mitmproxy cannot write its certificates, the error names the option that sets the certificate folder. A
    read-only folder is accepted if it already contains the certificates.
    """
    (tmp_path / "file").write_text("")
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "mitmproxy-ca.pem").write_text("")
    (tmp_path / "ready").chmod(0o500)
    problem = f"mitmproxy cannot write its certificates to {tmp_path}/file/x: Not a directory; .* --set confdir=FOLDER"
    with pytest.raises(UsageError, match=problem):
        _check_confdir(["confdir=/elsewhere", f"confdir={tmp_path}/file/x"])
    _check_confdir([f"confdir={tmp_path}/ready"])
    _check_confdir([f"confdir={tmp_path}/new"])


def test_addon_script_is_the_documented_one() -> None:
    """``addon_script`` returns the path of the script that the README passes to ``mitmdump -s``."""
    assert Path(addon_script()).name == "toolsim.py"


def test_port_in_use_is_reported() -> None:
    """If a port is in use, the error suggests the next port, together with the argument that selects it. Port 0 is
    always free.
    """
    check_free("127.0.0.1", 0, "--port ")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} .*; use another port: --port {port + 1}$"):
            check_free("127.0.0.1", port, "--port ")


def test_foreign_host_is_reported_without_advice_about_ports() -> None:
    """If the host is not an address of this machine, the error does not suggest a different port."""
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:8080 \([^()]+\)$"):
        check_free("192.0.2.1", 8080, "--port ")
