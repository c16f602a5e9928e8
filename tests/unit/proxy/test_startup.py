"""Invalid options at startup: the messages that users see, and the guarantee that no option takes effect."""

from __future__ import annotations

import logging
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import options as mitmproxy_options
from mitmproxy import optmanager
from mitmproxy.exceptions import OptionsError
from mitmproxy.test import taddons
from support.each import each
from toolsim.proxy import startup
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.options import table


class Loader:
    """A substitute for mitmproxy's loader that can only add options."""

    def __init__(self, manager: optmanager.OptManager) -> None:
        self.manager = manager

    def add_option(self, *option: Any) -> None:
        self.manager.add_option(*option)


def problems(*given: str, yaml: str = "", **known: Any) -> list[str]:
    """Return the problems that are found in the given ``--set`` arguments and config.yaml. mitmproxy itself parses
    both.
    """
    manager = mitmproxy_options.Options()
    manager.set(*given, defer=True)
    optmanager.load(manager, yaml)
    manager.update(**known)
    table.register(Loader(manager), {})  # type: ignore[arg-type]
    found = startup.take_problems(manager)
    # The remaining, valid options can be applied without an exception.
    manager.process_deferred()
    return found


@pytest.mark.parametrize("given", [["toolsim_preset=strict-tags"], ["toolsim_profiles=strict-tags", "toolsim_preset="]])
def test_renamed_option_still_works(given: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """A renamed option still works, and the log states its new name. If both names are set, the new name takes
    precedence.
    """
    manager = mitmproxy_options.Options()
    manager.set(*given, defer=True)
    table.register(Loader(manager), {})  # type: ignore[arg-type]
    assert startup.take_problems(manager) == []
    manager.process_deferred()
    assert manager.toolsim_profiles == "strict-tags"
    assert "toolsim_preset: this option is now called toolsim_profiles" in caplog.text


BACKENDS = "expected one of auto, responses, chat, messages, codex, local, scripted"


@each(
    ("given", "line"),
    [
        ("toolsim_idle_timeout=5m", "toolsim_idle_timeout: got '5m', expected a whole number, 0 or more"),
        ("toolsim_idle_timeout=-1", "toolsim_idle_timeout: got -1, expected 0 or more"),
        ("toolsim_idle_timeout", "toolsim_idle_timeout: got '', expected a whole number, 0 or more"),
        ("toolsim_tool_block_max=two", "toolsim_tool_block_max: got 'two', expected a whole number, 0 or more"),
        ("toolsim_tool_block_max=1.5", "toolsim_tool_block_max: got '1.5', expected a whole number, 0 or more"),
        ("toolsim_sse_telemetry=maybe", "toolsim_sse_telemetry: got 'maybe', expected true or false"),
        ("toolsim_sse_telemetry=False", "toolsim_sse_telemetry: got 'False', expected true or false"),
        ("toolsim_backend=ollama", f"toolsim_backend: got 'ollama', {BACKENDS}"),
        ("toolsim_backend=Codex", f"toolsim_backend: got 'Codex', {BACKENDS}; did you mean codex?"),
        ("toolsim_backend", f"toolsim_backend: got no value, {BACKENDS}"),
        ("toolsim_api_key", "toolsim_api_key: got no value, expected a string"),
        (
            "toolsim_sentinel=think",
            "toolsim_sentinel: got 'think', expected a tag name of at most 64 letters, digits, '_', '-' or '.'",
        ),
        (
            "toolsim_upstream=localhost:11434",
            "toolsim_upstream: got 'localhost:11434', expected a URL such as http://127.0.0.1:11434/v1; did you mean "
            "http://localhost:11434?",
        ),
        (
            "toolsim_cors_origins=example.com",
            "toolsim_cors_origins: got 'example.com', expected an origin such as https://example.com, without a path",
        ),
        (
            "toolsim_model=no/such.gguf",
            "toolsim_model: the model file 'no/such.gguf' does not exist",
        ),
        ("toolsim_backend=local", "toolsim_backend=local requires toolsim_model=FILE.gguf."),
        ("toolsim_codex_command=", "toolsim_codex_command: got an empty value, expected a command line"),
        ("toolsim_bakend=chat", "toolsim_bakend: no such option; did you mean toolsim_backend?"),
        ("toolsim_tool_allow_list=a", "toolsim_tool_allow_list: no such option; did you mean toolsim_tool_allowlist?"),
        ("toolsim-backend=chat", "toolsim-backend: no such option; did you mean toolsim_backend?"),
        ("TOOLSIM_BACKEND=chat", "TOOLSIM_BACKEND: no such option; did you mean toolsim_backend?"),
        ("toolsim_xyzzy=1", "toolsim_xyzzy: no such option; option names begin with toolsim_ (see README)"),
    ],
)
def test_invalid_argument_is_one_line(given: str, line: str) -> None:
    """The error for an invalid option is one line that gives the name, the value, the valid values, and the closest
    valid name.
    """
    assert problems(given) == [line]


@pytest.mark.parametrize(
    ("yaml", "line"),
    [
        ("toolsim_idle_timeout: 5m", "toolsim_idle_timeout: got '5m', expected a whole number, 0 or more"),
        ("toolsim_idle_timeout: true", "toolsim_idle_timeout: got True, expected a whole number, 0 or more"),
        ("toolsim_sse_telemetry: 1", "toolsim_sse_telemetry: got 1, expected true or false"),
        ("toolsim_api_key: 12345", "toolsim_api_key: got 12345, expected a string"),
        ("toolsim_tool_allowlist: a", "toolsim_tool_allowlist: got 'a', expected a list of strings"),
        ("toolsim_backend: codx", f"toolsim_backend: got 'codx', {BACKENDS}; did you mean codex?"),
        (
            "toolsim_stop_after_tools: true",
            "toolsim_stop_after_tools: got True, expected one of auto, on, first, drop, off",
        ),
        ("toolsim_bakend: chat", "toolsim_bakend: no such option; did you mean toolsim_backend?"),
    ],
)
def test_invalid_config_yaml_entry_is_one_line(yaml: str, line: str) -> None:
    """An invalid entry in config.yaml causes the same message as on the command line, even if YAML converts the value
    to another type.
    """
    assert problems(yaml=yaml) == [line]


@pytest.mark.parametrize("given", [*permutations(("toolsim_backend=local", "toolsim_model={file}"))])
def test_options_that_require_each_other_are_checked(given: tuple[str, ...], tmp_path: Path) -> None:
    """If two options require each other, they are accepted together in either order, and refused alone."""
    file = tmp_path / "model.gguf"
    file.touch()
    assert problems(*(text.format(file=file) for text in given)) == []
    assert len(problems(given[0].format(file=file))) == 1


@pytest.mark.parametrize(
    "given",
    [
        ("toolsim_retry=1", "toolsim_max_rounds=1"),
        ("toolsim_second_opinion=on", "toolsim_tool_use_mode=enforced"),
        ("toolsim_catalog_budget=100", "toolsim_mode=native"),
        ("toolsim_tool_allowlist=a", "toolsim_tool_use_mode=disabled"),
    ],
)
def test_options_that_exclude_each_other_are_refused(given: tuple[str, str]) -> None:
    """If two options exclude each other, they cause the same error in either order, and are accepted alone."""
    assert [problems(text) for text in given] == [[], []]
    [line] = problems(*given)
    assert problems(*reversed(given)) == [line]


def test_all_problems_are_reported() -> None:
    """If several options are invalid, all problems are reported, rather than only the first."""
    assert problems("toolsim_bakend=chat", "toolsim_idle_timeout=5m", "toolsim_repair=off") == [
        "toolsim_bakend: no such option; did you mean toolsim_backend?",
        "toolsim_idle_timeout: got '5m', expected a whole number, 0 or more",
    ]


def test_duplicate_option_is_reported() -> None:
    """An option with two values is reported, because mitmproxy would silently ignore one of the values."""
    assert problems("toolsim_repair=off", "toolsim_repair=safe") == [
        "toolsim_repair: got 'off' and 'safe', expected one value"
    ]


def test_codex_on_a_public_address_is_refused() -> None:
    """Options that are valid separately can be refused together, for example the codex backend on a public address."""
    [line] = problems("toolsim_backend=codex", listen_host="0.0.0.0")
    assert line == "toolsim_backend=codex on 0.0.0.0 would share your login with others: set toolsim_api_key."
    assert problems("toolsim_backend=codex", "toolsim_api_key=k", listen_host="0.0.0.0") == []


@pytest.mark.parametrize(
    "yaml", ["", "toolsim_tool_block_dedup: false\ntoolsim_tool_allowlist: [a]\ntoolsim_idle_timeout: 5\n"]
)
def test_valid_options_are_accepted(yaml: str) -> None:
    """Values are accepted in each valid format, and other addons' options are ignored."""
    right = ("toolsim_backend=chat", "toolsim_repair=off", "toolsim_tool_allowlist=a", "toolsim_tool_allowlist=!b")
    assert problems(*right, "toolsim_sse_telemetry", "toolsim_forward_hosted_tools=toggle", "other=1", yaml=yaml) == []


def test_every_default_is_accepted() -> None:
    """Every option accepts the text of its own default value."""
    defaults = {option.full_name: option.default for option in table.OPTIONS}
    given = [
        f"{name}={str(default).lower() if isinstance(default, bool) else default}"
        for name, default in defaults.items()
        if not isinstance(default, tuple)
    ]
    assert problems(*given) == []


def test_script_is_not_registered(caplog: pytest.LogCaptureFixture) -> None:
    """If an option is invalid, the addon is not registered. Problems are logged as errors, which makes mitmproxy abort
    the startup.
    """
    with taddons.context() as context:
        context.options.set("toolsim_bakend=chat", defer=True)
        with pytest.raises(OptionsError, match="toolsim_bakend"):
            context.master.addons.register(ToolSim())
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["toolsim_bakend: no such option; did you mean toolsim_backend?"]


@pytest.mark.parametrize("given", ["toolsim_idle_timeout=5m", "toolsim_sentinel=think", "toolsim_bakend=chat"])
def test_invalid_change_at_run_time_is_refused(given: str, tmp_path: Path) -> None:
    """An invalid change at run time is refused, and all options keep their values."""
    addon = ToolSim()
    with taddons.context(addon) as context:
        context.configure(addon, toolsim_idle_timeout=7, toolsim_sentinel="call", toolsim_api_key="k")
        with pytest.raises(OptionsError, match=given.partition("=")[0]):
            context.options.set(given)
        assert (context.options.toolsim_idle_timeout, context.options.toolsim_sentinel) == (7, "call")
        assert (addon._settings.limits.idle_timeout, addon._settings.policy.sentinel) == (7, "call")
        assert addon._settings.api_key is not None
        assert addon._settings.api_key.user("k")
