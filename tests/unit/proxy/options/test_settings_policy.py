"""Tests for the effects of options on the policy."""

from __future__ import annotations

from dataclasses import fields, replace

from support.each import each
from toolsim.core.policy import Policy
from unit.proxy.options.test_table import load

# Policy fields that are not set by an option, for example because they depend on the request or on a profile.
NOT_OPTIONS = {"backend_model", "may_look_up", "known_profiles", "profile", "forms"}
USUAL = Policy(engine="auto", sentinel="auto", constrain="auto")


@each(
    ("given", "changed"),
    [
        ("untagged=off", {"untagged": "off"}),
        ("untagged=all", {"untagged": "all"}),
        ("untagged=no_use_tool", {"untagged": "off", "use_tool": False}),
        ("fix_empty_final=on", {"fix_empty_final": "on"}),
        ("fix_empty_final=with_tools", {"fix_empty_final": "with_tools"}),
        ("tool_use_mode=enforced", {"tool_use_mode": "enforced"}),
        ("tool_use_mode=relaxed", {"tool_use_mode": "relaxed"}),
        ("output_mode=obsidian-xml", {"output_mode": "obsidian-xml"}),
        ("output_mode=obsidian-xml-responses", {"responses_output_mode": "obsidian-xml"}),
        (
            "output_mode=obsidian-xml-both",
            {"output_mode": "obsidian-xml", "responses_output_mode": "obsidian-xml"},
        ),
        ("stop_after_tools=on", {"stop_after_tools": "on"}),
        ("stop_after_tools=off", {"stop_after_tools": "off"}),
        ("stop_after_tools=first", {"stop_after_tools": "on", "stop_after_tools_mode": "first"}),
        ("stop_after_tools=drop", {"stop_after_tools": "off", "suppress_tail_after_tools": True}),
        ("tool_block_max=3", {"tool_block_max": 3}),
        ("tool_block_max=1", {"tool_block_max": 1, "parallel_tool_calls": False}),
        ("tool_allowlist=a, !b,,c", {"tool_allowlist": frozenset("ac"), "tool_denylist": frozenset("b")}),
        ("max_tool_bytes=5", {"max_tool_bytes": 5}),
    ],
)
def test_one_option_can_set_several_fields(given: str, changed: dict[str, object]) -> None:
    """Some options set several fields of the policy. All other fields keep their defaults."""
    assert load(None, f"toolsim_{given}")[0].policy == replace(USUAL, **changed)  # type: ignore[arg-type]


def test_every_field_has_an_option() -> None:
    """Every field of the policy has an option with the same default, unless the engine determines the value."""
    from toolsim.proxy.options.settings import policy_fields
    from toolsim.proxy.options.table import OPTIONS

    decided = policy_fields({option.name: option.default for option in OPTIONS})
    assert set(decided) == {field.name for field in fields(Policy)} - NOT_OPTIONS
    assert load()[0].policy == USUAL
