"""The table of options and their registration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mitmproxy.addonmanager import Loader
from mitmproxy.options import Options
from support.each import each
from toolsim.proxy.options.settings import Settings, parse
from toolsim.proxy.options.table import OPTIONS, register


def load(environment: dict[str, str] | None = None, *specs: str) -> tuple[Settings, list[str]]:
    """Register the options in a real option manager, set some of them, and return the settings and warnings."""
    options = Options()
    warnings = register(Loader(SimpleNamespace(options=options)), environment or {})
    options.set(*specs)
    return parse(options), warnings


def test_number_of_options_is_limited() -> None:
    """The number of options is limited, so a new feature should extend or replace an existing option."""
    assert len(OPTIONS) <= 52, "make it part of an option that exists, or take one away"


@each("option", OPTIONS, ids=lambda option: option.name)
def test_help_is_one_paragraph(option: Any) -> None:
    """Each option's help is a single paragraph. If an option has three or more choices, the help mentions at least one
    of them.
    """
    assert option.help.endswith(".")
    assert "\n" not in option.help
    assert option.help[0].isupper()
    if len(option.choices) > 2:
        assert sum(choice in option.help for choice in option.choices) >= 1
