"""The table of options: what is registered, and which defaults the environment sets."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.addonmanager import Loader
from mitmproxy.options import Options
from toolsimlib.plan import Policy
from toolsimlib.proxy.options.settings import Settings, parse
from toolsimlib.proxy.options.table import OPTIONS, register


def load(environment: dict[str, str] | None = None, *specs: str) -> tuple[Settings, list[str]]:
    """Register in a real mitmproxy option manager, and set options as a user does."""
    options = Options()
    warnings = register(Loader(SimpleNamespace(options=options)), environment or {})
    options.set(*specs)
    return parse(options), warnings


def test_every_policy_has_its_option() -> None:
    """Each field of the policy is an option of that name, with the same default, or auto where the engine decides."""
    options = {option.name: option.default for option in OPTIONS}
    for field in fields(Policy):
        default = options[field.name]
        if field.name in ("engine", "sentinel", "constrain"):
            assert default == "auto"
            continue
        assert (frozenset(default) if isinstance(default, tuple) else default) == field.default


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_is_one_paragraph(option: Any) -> None:
    """Help is one paragraph of sentences; of three or more choices it names one at least."""
    assert option.help.endswith(".")
    assert "\n" not in option.help
    assert option.help[0].isupper()
    if len(option.choices) > 2:
        assert sum(choice in option.help for choice in option.choices) >= 1


FLAGS: list[tuple[str, str, str, object]] = [
    ("PROXY_OUTPUT_MODE", "OBSIDIAN-XML", "output_mode", "obsidian-xml"),
    ("PROXY_OUTPUT_MODE", "obsidian", "output_mode", "obsidian-xml"),
    ("PROXY_RESPONSES_OUTPUT_MODE", "Obsidian_XML", "responses_output_mode", "obsidian-xml"),
    ("PROXY_RESPONSES_OUTPUT_MODE", "openai", "responses_output_mode", "openai-json"),
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
    """Each flag sets a default: it is parsed tolerantly, and the option overrides it."""
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
    assert settings.policy == load({})[0].policy
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{flag}={word!r} is ignored: got ")
