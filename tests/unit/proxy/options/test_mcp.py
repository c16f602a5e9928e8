"""The operator's options about MCP servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mitmproxy.exceptions import OptionsError
from toolsimlib.proxy.options import settings as room
from toolsimlib.proxy.options.mcp import MCP_OPTIONS
from toolsimlib.proxy.options.settings import Mcp
from unit.proxy.options.test_table import load

FILE = {"mcpServers": {"files": {"command": "npx"}}}


def test_without_any_of_them_no_server_is_asked() -> None:
    """Neither the file's nor a client's."""
    assert load()[0].mcp == Mcp()
    assert not Mcp().is_used
    assert all(option.name.startswith(("mcp_", "hosted_mcp")) for option in MCP_OPTIONS)


def test_a_file_is_read(tmp_path: Path) -> None:
    """It is read when the option is set; an error in it stops the start, and names the option."""
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(FILE))
    mcp = load(None, f"toolsim_mcp_config={file}", "toolsim_mcp_timeout=5")[0].mcp
    assert ([server.label for server in mcp.servers], mcp.timeout, mcp.runs_clients) == (["files"], 5, False)
    file.write_text("{}")
    with pytest.raises(OptionsError, match=r"toolsim_mcp_config.*mcpServers"):
        load(None, f"toolsim_mcp_config={file}")
    with pytest.raises(OptionsError, match="cannot be read"):
        load(None, f"toolsim_mcp_config={tmp_path / 'none'}")


def test_hosts() -> None:
    """Names and ports are accepted, and nothing else."""
    mcp = load(None, "toolsim_hosted_mcp=run", "toolsim_mcp_hosts=docs.example,127.0.0.1:3000")[0].mcp
    assert (mcp.runs_clients, mcp.hosts) == (True, ("docs.example", "127.0.0.1:3000"))
    for wrong in ("https://docs.example", "*", "a b", "x:y"):
        with pytest.raises(OptionsError, match="toolsim_mcp_hosts"):
            load(None, f"toolsim_mcp_hosts={wrong}")


def test_without_the_package_the_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install; without these options the package is not needed."""
    monkeypatch.setattr(room, "is_installed", lambda: False)
    load()
    with pytest.raises(OptionsError, match=r"pip install 'mitmproxy-toolsim\[mcp\]'"):
        load(None, "toolsim_hosted_mcp=run")
