"""Options that are gone: what the start says about each."""

from __future__ import annotations

import re

from support.each import each
from toolsimlib.proxy.options.gone import GONE
from toolsimlib.proxy.options.table import OPTIONS
from unit.proxy.test_startup import problems

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
