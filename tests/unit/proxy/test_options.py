"""The table of options: what is registered, how values are read, which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options
from toolsimlib.plan import Policy
from toolsimlib.proxy.options import OPTIONS, Origins, Settings, Upstream, parse, register


class Loader:
    """Registers in a real option manager of mitmproxy's."""

    def __init__(self) -> None:
        self.options = Options()

    def add_option(
        self, name: str, typespec: Any, default: Any, help: str, choices: Sequence[str] | None = None
    ) -> None:
        self.options.add_option(name, typespec, default, help, choices)


def load(environment: dict[str, str] | None = None, *specs: str) -> tuple[Settings, list[str]]:
    loader = Loader()
    warnings = register(loader, environment or {})
    loader.options.set(*specs)
    return parse(loader.options), warnings


def test_defaults() -> None:
    """Nothing said: the policy's own defaults, and nothing of the edge."""
    settings, warnings = load()
    assert settings.policy == Policy()
    assert (settings.own_backend, settings.upstream, settings.api_key, settings.idle_timeout) == (None, None, "", 300.0)
    assert warnings == []


def test_every_policy_has_its_option() -> None:
    """Each field of the policy is an option of that name, with the same default."""
    options = {option.name: option.default for option in OPTIONS}
    for field in fields(Policy):
        default = options[field.name]
        assert (frozenset(default) if isinstance(default, tuple) else default) == field.default


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_is_one_paragraph(option: Any) -> None:
    """Help is a paragraph of sentences, and names every choice whose meaning is not plain."""
    assert option.help.endswith(".")
    assert "\n" not in option.help
    assert option.help[0].isupper()
    if len(option.choices) > 2:
        assert sum(choice in option.help for choice in option.choices) >= 1


GOOD: list[tuple[str, str, object]] = [
    ("backend=chat", "policy.backend", "chat"),
    ("backend=codex", "own_backend", "codex"),
    ("backend=codex", "policy.backend", "auto"),
    ("tool_allowlist=a, b,,c", "policy.tool_allowlist", frozenset("abc")),
    (r"tool_block_delimiter=\n--\n", "policy.tool_block_delimiter", "\n--\n"),
    ("sentinel=x-call", "policy.sentinel", "x-call"),
    ("use_tool=false", "policy.use_tool", False),
    ("upstream=http://h:81/v1/", "upstream", Upstream("http", "h", 81, "/v1")),
    ("upstream=https://h", "upstream", Upstream("https", "h", 443)),
    ("upstream=http://[::1]:9/", "upstream", Upstream("http", "::1", 9)),
    ("codex_command=codex -c 'a=\"b c\"' app-server", "codex_command", ("codex", "-c", 'a="b c"', "app-server")),
    ("idle_timeout=0", "idle_timeout", 0.0),
    ("cors_origins=*", "origins", Origins(("*",))),
]


@pytest.mark.parametrize(("said", "where", "value"), GOOD)
def test_values_are_read(said: str, where: str, value: object) -> None:
    """A value set as a user sets it arrives parsed."""
    found: Any = load({}, f"toolsim_{said}")[0]
    for name in where.split("."):
        found = getattr(found, name)
    assert found == value


BAD = [
    ("sentinel=", "tag name"),
    ("sentinel=a b", "tag name"),
    ("sentinel=use_tool", "tag name"),
    ("sentinel=<x>", "tag name"),
    ("upstream=example.com", "a URL"),
    ("upstream=ftp://h", "a URL"),
    ("upstream=http://", "a URL"),
    ("upstream=http://h:99999", "range"),
    ("upstream=http://h/?a=1", "a URL"),
    ("upstream=http://user@h/", "a URL"),
    ("tool_block_max=-1", "0 or more"),
    ("max_tool_args_bytes=0", "1 or more"),
    ("codex_port=65536", "65535"),
    ("codex_command=", "command line"),
    ("codex_command='x", "quotation"),
    ("cors_origins=localhost", "an origin"),
    ("cors_origins=http://x/path", "an origin"),
]


@pytest.mark.parametrize(("said", "reason"), BAD)
def test_bad_values_are_refused(said: str, reason: str) -> None:
    """The message names the option, and what was expected."""
    with pytest.raises(OptionsError, match=reason) as refused:
        load({}, f"toolsim_{said}")
    assert str(refused.value).startswith(f"toolsim_{said.partition('=')[0]}: ")


def test_choice_that_mitmproxy_did_not_check() -> None:
    """A value that came past the option manager is checked too."""
    values = {option.full_name: option.default for option in OPTIONS} | {"toolsim_repair": "brave"}
    with pytest.raises(OptionsError, match="toolsim_repair: got 'brave', expected one of safe, off"):
        parse(SimpleNamespace(**values))


FLAGS: list[tuple[str, str, str, object]] = [
    ("PROXY_OUTPUT_MODE", "OBSIDIAN-XML", "output_mode", "obsidian-xml"),
    ("PROXY_STOP_AFTER_TOOLS", "true", "stop_after_tools", "on"),
    ("PROXY_STOP_AFTER_TOOLS", "0", "stop_after_tools", "off"),
    ("PROXY_STOP_AFTER_TOOLS", "auto", "stop_after_tools", "auto"),
    ("PROXY_STOP_AFTER_TOOLS_MODE", "first", "stop_after_tools_mode", "first"),
    ("PROXY_SUPPRESS_TAIL_AFTER_TOOLS", "Yes", "suppress_tail_after_tools", True),
    ("PROXY_ENABLE_PARALLEL_TOOL_CALLS", "off", "parallel_tool_calls", False),
    ("PROXY_TOOL_BLOCK_MAX", " 3 ", "tool_block_max", 3),
    ("PROXY_TOOL_BLOCK_DEDUP", "1", "tool_block_dedup", True),
    ("PROXY_TOOL_BLOCK_DELIMITER", r"\n\n", "tool_block_delimiter", "\n\n"),
]


@pytest.mark.parametrize(("flag", "word", "name", "value"), FLAGS)
def test_flags_of_the_predecessor(flag: str, word: str, name: str, value: object) -> None:
    """Each flag is a default: read tolerantly, and overridden by the option."""
    settings, warnings = load({flag: word})
    assert getattr(settings.policy, name) == value
    assert warnings == []
    option = next(option for option in OPTIONS if option.name == name)
    default = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
    assert getattr(load({flag: word}, f"toolsim_{name}={default}")[0].policy, name) == option.default


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("PROXY_OUTPUT_MODE", "xml"),
        ("PROXY_STOP_AFTER_TOOLS", "maybe"),
        ("PROXY_TOOL_BLOCK_MAX", "-1"),
        ("PROXY_TOOL_BLOCK_MAX", "²"),
        ("PROXY_TOOL_BLOCK_DEDUP", "sometimes"),
    ],
)
def test_flags_that_make_no_sense(flag: str, word: str) -> None:
    """Such a flag is ignored, with a warning that names it."""
    settings, warnings = load({flag: word})
    assert settings.policy == Policy()
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{flag}={word!r} is ignored: got ")


ORIGINS: list[tuple[tuple[str, ...], str, bool]] = [
    (("http://localhost:*",), "http://localhost", True),
    (("http://localhost:*",), "http://localhost:80", True),
    (("http://localhost:*",), "http://LOCALHOST:80", True),
    (("http://localhost:*",), "https://localhost:80", False),
    (("http://localhost:*",), "http://localhost:80/", False),
    (("http://localhost:*",), "http://localhost:", False),
    (("http://localhost:*",), "http://localhost.evil", False),
    (("http://localhost:*",), "evil http://localhost", False),
    (("app://obsidian.md",), "app://obsidian.md", True),
    (("app://obsidian.md",), "app://obsidian.md:1", False),
    (("null",), "null", True),
    (("*",), "https://anyone", True),
    ((), "https://anyone", False),
]


@pytest.mark.parametrize(("patterns", "origin", "allowed"), ORIGINS)
def test_origins(patterns: tuple[str, ...], origin: str, allowed: bool) -> None:
    """An origin is listed as a whole, ``:*`` standing for any port or none."""
    assert Origins(patterns).allow(origin) is allowed
