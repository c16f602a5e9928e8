"""The offline scenarios; tests/evaluation shows that each fails without its guard."""

from __future__ import annotations

from toolsimeval.guards import GUARDS, TIGHT, cases, scripts
from toolsimeval.scenarios import SCENARIOS
from toolsimlib.proxy.options.table import OPTIONS


def test_no_prompt_is_a_part_of_another() -> None:
    """The provider recognises a scenario by its prompt, wherever that is in the text."""
    prompts = [guard.scenario.prompt for guard in GUARDS] + [scenario.prompt for scenario in SCENARIOS]
    assert len(scripts()) == len(GUARDS)
    assert all(a is b or a not in b for a in prompts for b in prompts)


def test_options_are_the_addons() -> None:
    """mitmproxy would silently accept a misspelt one."""
    known = {option.full_name for option in OPTIONS}
    assert {option.partition("=")[0] for option in TIGHT} <= known


def test_each_guard_is_a_case_under_its_name() -> None:
    """Names are unique, and the harness gets each with the options that it needs."""
    made = cases()
    assert len({case.id for case in made}) == len(GUARDS)
    assert {case.options for case in made} == {(), TIGHT, ("toolsim_catalog_budget=300",)}
