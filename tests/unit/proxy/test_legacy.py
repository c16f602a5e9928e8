"""Earlier names of options, values, headers and metrics; removed options; and environment variables of toolsim's
predecessor.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
import toolsim
from mitmproxy import optmanager
from mitmproxy.options import Options
from support.each import each
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.proxy import startup
from toolsim.proxy.legacy import (
    REMOVED,
    RENAMED,
    RENAMED_CODES,
    RENAMED_FIELDS,
    RENAMED_HEADERS,
    RENAMED_METRICS,
    RENAMED_VALUES,
    VARIABLES,
    current_report,
    from_environment,
)
from toolsim.proxy.options import table
from toolsim.proxy.options.profiles import read_profiles
from toolsim.proxy.options.table import OPTIONS
from toolsim.proxy.reporting.metrics import Metrics
from toolsim.proxy.reporting.summary import headers
from unit.proxy.options.test_table import load
from unit.proxy.test_startup import Loader, problems

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
def test_each_variable_changes_only_its_option(flag: str, word: str, name: str, value: object) -> None:
    """Each environment variable is parsed leniently, and changes only the option that replaced it."""
    settings, warnings = load({flag: word})
    assert warnings == []
    assert getattr(settings.policy, name) == value
    others = {"stop_after_tools"} if flag == "PROXY_STOP_AFTER_TOOLS_MODE" else {"stop_after_tools", "tool_block_max"}
    usual = load()[0].policy
    for field in Policy.__dataclass_fields__:
        assert field in {name, *others} or getattr(settings.policy, field) == getattr(usual, field)


def test_examples_cover_every_variable() -> None:
    """There is an example for every environment variable of toolsim's predecessor."""
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
        ({"TOOL_BLOCK_DELIMITER": "\n---\n"}, {"tool_block_delimiter": "\n---\n"}),
        ({"TOOL_BLOCK_DELIMITER": ""}, {}),
    ],
)
def test_several_variables_are_combined(environment: dict[str, str], defaults: dict[str, object]) -> None:
    """If one option has replaced several environment variables, their values are combined into a single value."""
    given = {f"PROXY_{name}": word for name, word in environment.items()}
    assert from_environment(given) == (defaults, [])


def test_explicit_option_overrides_variables() -> None:
    """An environment variable changes only the default value of its option, so an explicitly set option overrides the
    variable.
    """
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
def test_invalid_variables_are_ignored(flag: str, word: str) -> None:
    """An environment variable with an invalid value is ignored, with a warning that names the variable."""
    settings, warnings = load({flag: word})
    assert settings.policy == load()[0].policy
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{flag}={word!r} is ignored: got ")
    assert "expected" in warnings[0]


KNOWN = {option.full_name: option for option in OPTIONS}


@each("name", sorted(REMOVED))
def test_removed_option_suggests_its_replacement(name: str) -> None:
    """If a removed option has a replacement, the error suggests it, with a valid example."""
    [line] = problems(f"toolsim_{name}=1")
    assert line == f"toolsim_{name}: this option was removed: {REMOVED[name]}"
    assert f"toolsim_{name}" not in KNOWN
    named = set(re.findall(r"toolsim_\w+", REMOVED[name]))
    assert named <= set(KNOWN)
    assert named or REMOVED[name] == "the value can no longer be changed"
    examples = re.findall(r"(toolsim_\w+=\S*?[^,\s]+)", REMOVED[name])
    assert problems(*[example.rstrip(",;") for example in examples]) == []


def test_removed_option_in_config_yaml_is_reported() -> None:
    """A removed option in config.yaml causes the same error as a removed option on the command line."""
    assert problems(yaml="toolsim_use_tool: false") == [
        "toolsim_use_tool: this option was removed: set toolsim_untagged=no_use_tool if the old value was false"
    ]


# -- renamed options and values that still work for one release

VALUES = [(option, old, new) for option, values in RENAMED_VALUES.items() for old, new in values.items()]


@each(("option", "old", "new"), VALUES)
def test_renamed_value_still_works(option: str, old: str, new: str) -> None:
    """A renamed value still works and causes a warning with the new name."""
    name = f"toolsim_{option}"
    for given, yaml in (([f"{name}={old}"], ""), ([], f"{name}: {old}")):
        with logged() as lines:
            manager = options_with(*given, yaml=yaml)
        assert getattr(manager, name) == new
        assert lines == [f"{name}: the value {old} is now called {new}"]
    assert new in KNOWN[name].choices
    assert old not in KNOWN[name].choices


@each(("old", "new"), list(RENAMED.items()))
def test_renamed_option_still_works(old: str, new: str) -> None:
    """A renamed option still works and causes a warning with the new name."""
    value = {"profiles": "off", "request_defaults": '{"top_k": 1}'}[new]
    with logged() as lines:
        manager = options_with(f"toolsim_{old}={value}")
    assert getattr(manager, f"toolsim_{new}") == value
    assert lines == [f"toolsim_{old}: this option is now called toolsim_{new}"]


def test_earlier_names_in_a_profile_are_accepted(tmp_path: Path) -> None:
    """Earlier names of options and values in a profile are accepted without a warning."""
    text = 'models = ["*"]\n[options]\ntoolsim_history = "record"\n[learned]\nengine = "vllm"\n'
    (tmp_path / "old.toml").write_text(text)
    [profile] = read_profiles(str(tmp_path), {})
    assert dict(profile.fields) == {"history": "bracketed"}
    assert profile.engine == "vllm"


def test_renamed_headers_have_both_names() -> None:
    """A renamed header is sent under both its old and its new name, with the same value."""
    sent = headers(Report(profile="any", tool_cutoff="any", dropped=["tool:any"]))
    for old, new in RENAMED_HEADERS.items():
        assert sent[old] == sent[new]


def test_renamed_metrics_have_both_names() -> None:
    """A renamed metric is exposed under both its old and its new name, with the same value."""
    page = Metrics().text(3)
    for old, new in RENAMED_METRICS.items():
        assert f"\ntoolsim_{old} 3\n" in page
        assert f"\ntoolsim_{new} 3\n" in page


def test_earlier_names_in_a_report_are_replaced() -> None:
    """Earlier field names and codes in a recorded report are replaced by the current names."""
    old = {"seconds": 1, "asked_again": ["EMPTY_ANSWER"], "warnings": ["TOOL_LEFT_OUT:x", "NO_CALL"], "model": "ASKED"}
    new = {"seconds": 1, "retries": ["EMPTY_ANSWER"], "warnings": ["TOOL_DROPPED:x", "NO_CALL"], "model": "ASKED"}
    assert current_report(old) == new
    names = {field.name for field in fields(Report)}
    assert set(RENAMED_FIELDS.values()) <= names
    assert not set(RENAMED_FIELDS) & names


@each(("old", "new"), list(RENAMED_CODES.items()))
def test_earlier_codes_occur_only_in_legacy(old: str, new: str) -> None:
    """Earlier report codes occur only in the ``legacy`` module, and each current code is used in another module."""
    package = Path(toolsim.__file__).parent
    source = {path: path.read_text() for path in package.rglob("*.py")}
    assert [path.name for path, text in source.items() if f'"{old}"' in text] == ["legacy.py"]
    assert [path.name for path, text in source.items() if f'"{new}"' in text and path.name != "legacy.py"]


def options_with(*given: str, yaml: str = "") -> Options:
    """Start mitmproxy with the given settings, and return its options."""
    manager = Options()
    manager.set(*given, defer=True)
    optmanager.load(manager, yaml)
    table.register(Loader(manager), {})  # type: ignore[arg-type]
    assert startup.take_problems(manager) == []
    manager.process_deferred()
    return manager


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the warnings that are logged during startup."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    startup.logger.addHandler(handler)
    try:
        yield lines
    finally:
        startup.logger.removeHandler(handler)
