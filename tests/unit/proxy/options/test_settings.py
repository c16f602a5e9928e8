"""Parsing and validation of option values."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.addonmanager import Loader
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options
from support.each import each
from toolsim.core.policy import Policy
from toolsim.mcp import engine
from toolsim.proxy.address import Upstream
from toolsim.proxy.cors import Origins
from toolsim.proxy.options.settings import Limits, Mcp, Settings, parse
from toolsim.proxy.options.table import OPTIONS, register
from toolsim.stores.record import StoreLimits
from toolsim.stores.url import StoreUrl


def load(*specs: str) -> Settings:
    """Set options in a real option manager as a user would, and return the settings."""
    options = Options()
    assert register(Loader(SimpleNamespace(options=options)), {}) == []
    options.set(*specs)
    return parse(options)


def test_defaults() -> None:
    """Without options, all settings have their default values. Settings that depend on the engine are "auto"."""
    settings = load()
    assert settings.policy == Policy(engine="auto", sentinel="auto", constrain="auto")
    assert (settings.builtin, settings.upstream, settings.api_key, settings.limits) == (None, None, None, Limits())


GOOD: list[tuple[str, str, object]] = [
    ("backend=chat", "policy.backend", "chat"),
    ("backend=codex", "builtin", "codex"),
    ("backend=codex", "policy.backend", "auto"),
    (r"tool_block_delimiter=\n--\n", "policy.tool_block_delimiter", "\n--\n"),
    ("sentinel=x-call", "policy.sentinel", "x-call"),
    ("retry=3", "policy.retry", 3),
    ("second_opinion=on", "policy.second_opinion", "on"),
    ("max_rounds=2", "bounds.rounds", 2),
    ('request_overrides={"top_p": 1}', "policy.request_overrides", '{"top_p": 1}'),
    (
        "transforms=content_tag_tool_call_fallback,tool_result_compact_envelope",
        "policy.transforms",
        frozenset({"assistant_content_tool_call_tags_to_tool_calls", "tool_result_compact_envelope"}),
    ),
    ("upstream=http://h:81/v1/", "upstream", Upstream("http", "h", 81, "/v1")),
    ("upstream=https://h", "upstream", Upstream("https", "h", 443)),
    ("upstream=http://[::1]:9/", "upstream", Upstream("http", "::1", 9)),
    ("codex_command=codex -c 'a=\"b c\"' app-server", "codex_command", ("codex", "-c", 'a="b c"', "app-server")),
    ("idle_timeout=0", "limits.idle_timeout", 0),
    ("max_body_bytes=5", "limits.max_request_bytes", 5),
    ("max_body_bytes=5", "limits.max_answer_bytes", 5),
    ("max_body_bytes=5", "bounds.text_bytes", 5),
    ("store=sqlite:/x?days=2", "store", StoreUrl("sqlite", "/x", StoreLimits(seconds=172_800.0))),
    ("cors_origins=*", "origins", Origins(("*",))),
]


@each(("spec", "where", "value"), GOOD)
def test_values_are_parsed(spec: str, where: str, value: object) -> None:
    """Each value is parsed and stored in the expected field of the settings."""
    found: Any = load(f"toolsim_{spec}")
    for name in where.split("."):
        found = getattr(found, name)
    assert found == value


BAD = [
    ("retry=4", "got 4, expected 0 to 3"),
    ("request_overrides=[1]", "expected a JSON object"),
    ('request_defaults={"tools": []}', "got tools, which only the client or toolsim can set"),
    ("transforms=x", "got 'x', expected one of"),
    ("sentinel=", "tag name"),
    ("sentinel=a b", "tag name"),
    ("sentinel=use_tool", "tag name"),
    ("sentinel=<x>", "tag name"),
    ("upstream=example.com", "did you mean http://example.com?"),
    ("upstream=localhost:11434", "did you mean http://localhost:11434?"),
    ("upstream=:80", "11434/v1$"),
    ("upstream=ftp://h", "a URL"),
    ("upstream=http://", "a URL"),
    ("upstream=http://h:99999", "expected a URL"),
    ("upstream=http://h/?a=1", "a URL"),
    ("upstream=http://user@h/", "a user name or password"),
    ("tool_block_max=-1", "0 or more"),
    ("metrics_labels=model,user", "got 'user', expected model or tool"),
    ("max_tool_bytes=0", "1 or more"),
    ("tool_allowlist=a,!", "expected a tool's name after"),
    ("store=yes", "got 'yes', expected memory"),
    ("store=memory?days=0", "got 'days=0', expected a whole number, 1 or more"),
    ("idle_timeout=-1", "0 or more"),
    ("codex_command=", "command line"),
    ("codex_command='x", "quotation"),
    ("cors_origins=localhost", "an origin"),
    ("cors_origins=http://x/path", "an origin"),
]


@each(("spec", "reason"), BAD)
def test_invalid_values_are_refused(spec: str, reason: str) -> None:
    """The error for an invalid value names the option and states the problem."""
    with pytest.raises(OptionsError, match=reason) as refused:
        load(f"toolsim_{spec}")
    assert str(refused.value).startswith(f"toolsim_{spec.partition('=')[0]}: ")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("store=sqlite:FOLDER", "expected a file: FOLDER is a folder"),
        ("store=sqlite:FOLDER/text/x", "expected a writable folder: FOLDER/text is a file"),
        (
            "store=sqlite:FOLDER/text",
            "which is not a store that this toolsim can use: FOLDER/text: file is not a database; use another path",
        ),
        (
            "store=sqlite:FOLDER/newer",
            "which is not a store that this toolsim can use: FOLDER/newer: a newer version of toolsim wrote this file "
            "(format 99); use another path",
        ),
        ("capture=FOLDER/text", "expected a writable folder: FOLDER/text is a file"),
        ("capture=FOLDER/text/x/y", "expected a writable folder: FOLDER/text is a file"),
    ],
)
def test_unwritable_paths_are_refused(spec: str, reason: str, tmp_path: Path) -> None:
    """Unwritable paths for the store or for recordings are reported at startup, rather than at the first answer."""
    (tmp_path / "text").write_text("not a store")
    with closing(sqlite3.connect(tmp_path / "newer")) as base:
        base.execute("PRAGMA user_version = 99")
    with pytest.raises(OptionsError) as refused:
        load(f"toolsim_{spec.replace('FOLDER', str(tmp_path))}")
    value = spec.partition("=")[2].replace("FOLDER", str(tmp_path))
    assert f"got {value!r}, {reason.replace('FOLDER', str(tmp_path))}" in str(refused.value)


def test_writable_paths_are_accepted(tmp_path: Path) -> None:
    """A path that does not exist, an empty file, and a store that another process has locked are all accepted."""
    (tmp_path / "empty").write_text("")
    lock = sqlite3.connect(tmp_path / "locked", isolation_level=None)
    lock.execute("PRAGMA locking_mode = EXCLUSIVE")
    lock.execute("CREATE TABLE records (id TEXT)")
    for place in ("empty", "new/store", "locked"):
        assert load(f"toolsim_store=sqlite:{tmp_path}/{place}").store == StoreUrl("sqlite", f"{tmp_path}/{place}")
    assert load(f"toolsim_capture={tmp_path}/new/folder").capture == f"{tmp_path}/new/folder"
    assert not (tmp_path / "new").exists()
    lock.close()


def test_choice_is_validated_without_mitmproxy() -> None:
    """A choice is validated even if mitmproxy's option manager has not checked it."""
    values = {option.full_name: option.default for option in OPTIONS} | {"toolsim_repair": "brave"}
    with pytest.raises(OptionsError, match="toolsim_repair: got 'brave', expected one of safe, off"):
        parse(SimpleNamespace(**values))


def test_mcp_servers_are_off_by_default() -> None:
    """Without options, neither the operator's nor the client's MCP servers are used."""
    assert load().mcp == Mcp()
    assert not Mcp().is_used


def test_mcp_server_file_is_read(tmp_path: Path) -> None:
    """The MCP server file is read when the option is set, and an error in the file prevents startup."""
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"files": {"command": "npx", "timeout": 5}}}))
    mcp = load(f"toolsim_mcp_config={file}").mcp
    assert [(server.label, server.timeout) for server in mcp.servers] == [("files", 5.0)]
    assert not mcp.runs_clients
    file.write_text("{}")
    with pytest.raises(OptionsError, match=r"toolsim_mcp_config.*mcpServers"):
        load(f"toolsim_mcp_config={file}")
    with pytest.raises(OptionsError, match="cannot read"):
        load(f"toolsim_mcp_config={tmp_path / 'none'}")


def test_mcp_hosts_are_parsed() -> None:
    """``toolsim_mcp_hosts`` accepts host names with optional ports. With ``config``, it allows only the servers in the
    MCP configuration file.
    """
    mcp = load("toolsim_mcp_hosts=docs.example,127.0.0.1:3000").mcp
    assert (mcp.runs_clients, mcp.hosts) == (True, ("docs.example", "127.0.0.1:3000"))
    mcp = load("toolsim_mcp_hosts=config").mcp
    assert (mcp.runs_clients, mcp.hosts) == (True, ())
    for wrong in ("https://docs.example", "*", "a b", "x:y"):
        with pytest.raises(OptionsError, match="toolsim_mcp_hosts"):
            load(f"toolsim_mcp_hosts={wrong}")


def test_missing_mcp_package_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the mcp package is missing, MCP options prevent startup. The error shows how to install the package."""
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    load()
    with pytest.raises(OptionsError, match="-m pip install 'mcp"):
        load("toolsim_mcp_hosts=config")
