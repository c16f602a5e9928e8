"""The predecessor's environment variables: alone, together, those that make no sense; and options that are gone."""

from __future__ import annotations

import re

import pytest
from support.each import each
from toolsim.core.plan import Policy
from toolsim.proxy.options.former import GONE, VARIABLES, from_environment
from toolsim.proxy.options.table import OPTIONS
from unit.proxy.options.test_table import load
from unit.proxy.test_startup import problems

FLAGS: list[tuple[str, str, str, object]] = [
    ("PROXY_OUTPUT_MODE", "OBSIDIAN-XML", "output_mode", "obsidian-xml"),
    ("PROXY_OUTPUT_MODE", "obsidian", "output_mode", "obsidian-xml"),
    ("PROXY_RESPONSES_OUTPUT_MODE", "Obsidian_XML", "responses_output_mode", "obsidian-xml"),
    ("PROXY_RESPONSES_OUTPUT_MODE", "openai", "responses_output_mode", "openai-json"),
    ("PROXY_STOP_AFTER_TOOLS", "true", "stop_after_tools", "on"),
    ("PROXY_STOP_AFTER_TOOLS", "0", "stop_after_tools", "off"),
    ("PROXY_STOP_AFTER_TOOLS", "auto", "stop_after_tools", "auto"),
    ("PROXY_STOP_AFTER_TOOLS_MODE", "first", "stop_after_tools_mode", "first"),
    ("PROXY_STOP_AFTER_TOOLS_MODE", "Burst", "stop_after_tools_mode", "burst"),
    ("PROXY_SUPPRESS_TAIL_AFTER_TOOLS", "Yes", "suppress_tail_after_tools", True),
    ("PROXY_ENABLE_PARALLEL_TOOL_CALLS", "off", "parallel_tool_calls", False),
    ("PROXY_TOOL_BLOCK_MAX", " 3 ", "tool_block_max", 3),
    ("PROXY_TOOL_BLOCK_DEDUP", "1", "tool_block_dedup", True),
    ("PROXY_TOOL_BLOCK_DELIMITER", r"\n\n", "tool_block_delimiter", "\n\n"),
    ("PROXY_TOOL_BLOCK_DELIMITER", "true", "tool_block_delimiter", "\n\n"),
    ("PROXY_TOOL_BLOCK_DELIMITER", "off", "tool_block_delimiter", ""),
    ("PROXY_TOOL_BLOCK_DELIMITER", "  ", "tool_block_delimiter", "  "),
]


@each(("flag", "word", "name", "value"), FLAGS)
def test_each_of_them(flag: str, word: str, name: str, value: object) -> None:
    """It is read tolerantly, and decides the one thing that it always has; the rest of the policy stays."""
    settings, warnings = load({flag: word})
    assert warnings == []
    assert getattr(settings.policy, name) == value
    others = {"stop_after_tools"} if flag == "PROXY_STOP_AFTER_TOOLS_MODE" else {"stop_after_tools", "tool_block_max"}
    usual = load()[0].policy
    for field in Policy.__dataclass_fields__:
        assert field in {name, *others} or getattr(settings.policy, field) == getattr(usual, field)


def test_every_variable_is_covered() -> None:
    """The list above has them all."""
    assert {flag for flag, *_ in FLAGS} == set(VARIABLES)


@each(
    ("environment", "defaults"),
    [
        ({"OUTPUT_MODE": "obsidian", "RESPONSES_OUTPUT_MODE": "obsidian"}, {"output_mode": "obsidian-xml-both"}),
        ({"OUTPUT_MODE": "openai", "RESPONSES_OUTPUT_MODE": "obsidian"}, {"output_mode": "obsidian-xml-responses"}),
        ({"STOP_AFTER_TOOLS": "1", "STOP_AFTER_TOOLS_MODE": "first"}, {"stop_after_tools": "first"}),
        ({"STOP_AFTER_TOOLS": "0", "STOP_AFTER_TOOLS_MODE": "first"}, {"stop_after_tools": "off"}),
        ({"STOP_AFTER_TOOLS": "1", "STOP_AFTER_TOOLS_MODE": "burst"}, {"stop_after_tools": "on"}),
        ({"STOP_AFTER_TOOLS": "0", "SUPPRESS_TAIL_AFTER_TOOLS": "1"}, {"stop_after_tools": "drop"}),
        ({"STOP_AFTER_TOOLS": "1", "SUPPRESS_TAIL_AFTER_TOOLS": "1"}, {"stop_after_tools": "on"}),
        ({"SUPPRESS_TAIL_AFTER_TOOLS": "0"}, {}),
        ({"ENABLE_PARALLEL_TOOL_CALLS": "0", "TOOL_BLOCK_MAX": "3"}, {"tool_block_max": 1}),
        ({"ENABLE_PARALLEL_TOOL_CALLS": "1", "TOOL_BLOCK_MAX": "3"}, {"tool_block_max": 3}),
        ({"TOOL_BLOCK_DELIMITER": "\r\n"}, {}),
    ],
)
def test_several_together(environment: dict[str, str], defaults: dict[str, object]) -> None:
    """Several of them are one option now: they give it the value that does what they did together."""
    given = {f"PROXY_{name}": word for name, word in environment.items()}
    assert from_environment(given) == (defaults, [])


def test_an_option_overrides_them() -> None:
    """A variable gives only another default."""
    environment = {"PROXY_STOP_AFTER_TOOLS": "1", "PROXY_TOOL_BLOCK_MAX": "3"}
    policy = load(environment, "toolsim_stop_after_tools=auto", "toolsim_tool_block_max=0")[0].policy
    assert policy == load()[0].policy


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("PROXY_OUTPUT_MODE", "xml"),
        ("PROXY_STOP_AFTER_TOOLS", "maybe"),
        ("PROXY_STOP_AFTER_TOOLS_MODE", "last"),
        ("PROXY_TOOL_BLOCK_MAX", "-1"),
        ("PROXY_TOOL_BLOCK_MAX", "1.5"),
        ("PROXY_TOOL_BLOCK_MAX", "\u00b2"),
        ("PROXY_TOOL_BLOCK_DEDUP", "sometimes"),
    ],
)
def test_what_makes_no_sense(flag: str, word: str) -> None:
    """Such a variable is ignored, with a warning that names it."""
    settings, warnings = load({flag: word})
    assert settings.policy == load()[0].policy
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{flag}={word!r} is ignored: got ")
    assert "expected" in warnings[0]


KNOWN = {option.full_name: option for option in OPTIONS}


@each("name", sorted(GONE))
def test_one_line_says_what_to_write(name: str) -> None:
    """It names an option that exists, if anything does the same; its example can be set."""
    [line] = problems(f"toolsim_{name}=1")
    assert line == f"toolsim_{name}: this option is gone: {GONE[name]}"
    assert f"toolsim_{name}" not in KNOWN
    named = set(re.findall(r"toolsim_\w+", GONE[name]))
    assert named <= set(KNOWN)
    assert named or GONE[name] == "its value is fixed now"
    examples = re.findall(r"(toolsim_\w+=\S*?[^,\s]+)", GONE[name])
    assert problems(*[example.rstrip(",;") for example in examples]) == []


def test_also_in_config_yaml() -> None:
    """The same line, whatever the value."""
    assert problems(yaml="toolsim_use_tool: false") == [
        "toolsim_use_tool: this option is gone: write toolsim_untagged=no_use_tool instead of false"
    ]
