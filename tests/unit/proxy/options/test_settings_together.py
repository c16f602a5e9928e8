"""Combinations of options that would be useless or unsafe, and therefore prevent startup."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.exceptions import OptionsError
from toolsim.proxy.options.api_keys import ApiKeys
from toolsim.proxy.options.settings import USELESS, Settings, check_together, parse
from toolsim.proxy.options.table import OPTIONS

NAMED: tuple[dict[str, Any], ...] = (
    {"tool_allowlist": ("a", "b", "!a", "!b")},
    {"tool_use_mode": "disabled", "tool_allowlist": ("a",)},
    {"second_opinion": "on", "tool_use_mode": "enforced"},
    {"retry": 1, "max_rounds": 1},
    {"catalog_budget": 500, "max_rounds": 1},
    {"catalog_budget": 500, "mode": "native"},
    {"constrain": "gbnf", "mode": "native"},
    {"model": __file__, "backend": "chat"},
)


def options(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**{option.full_name: given.get(option.name, option.default) for option in OPTIONS})


def test_each_rule_has_an_example() -> None:
    """For each rule against useless combinations of options, there is exactly one example."""
    assert len(NAMED) == len(USELESS) == 8


@pytest.mark.parametrize("given", NAMED, ids=str)
def test_useless_combinations_are_refused(given: dict[str, Any]) -> None:
    """A useless combination of options causes a one-line error that names one of the options. Each of the options is
    accepted separately.
    """
    with pytest.raises(OptionsError) as refused:
        parse(options(**given))
    message = str(refused.value)
    assert "\n" not in message
    assert any(f"toolsim_{name}" in message for name in given)
    if len(given) > 1:
        for name, value in given.items():
            if name != "model":
                parse(options(**{name: value}))


HOSTS = [
    ("127.0.0.1", "", True),
    ("", "", True),
    ("0.0.0.0", "", False),
    ("192.168.1.5", "", False),
    ("0.0.0.0", "k", True),
]


@pytest.mark.parametrize(("host", "key", "allowed"), HOSTS)
def test_codex_on_a_public_address_requires_a_key(host: str, key: str, allowed: bool) -> None:
    """The codex backend requires a key if toolsim listens on an address that others can reach."""
    settings = Settings(builtin="codex", api_key=ApiKeys.single(key) if key else None)
    if allowed:
        check_together(settings, [host])
    else:
        with pytest.raises(OptionsError, match="toolsim_api_key"):
            check_together(settings, [host])
    check_together(Settings(builtin="scripted"), [host])
