"""Tests for the guards, policies and modes of the runtime and the addon. Without its guard, each scenario fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from evaluation.guards import GUARDS, TIGHT, scripts
from support.effort import parameters
from toolsim.eval.case import Case, Cell, Run
from toolsim.eval.measure import Job, run
from toolsim.eval.methods import Methods, Target
from toolsim.eval.provider import MODEL, scripted_provider
from toolsim.eval.proxy_process import Proxies
from toolsim.eval.runtime import registry
from toolsim.eval.runtime.dispatcher import ToolDispatcher
from toolsim.eval.runtime.loop import ToolLoopRunner, _Conversation
from toolsim.eval.runtime.registry import ToolRegistry, ToolResult
from toolsim.eval.scenarios import SCENARIOS, Scenario, ScenarioSettings, case
from toolsim.eval.workspace import Workspace

pytestmark = pytest.mark.slow

BY_ID = {scenario.id: scenario for scenario in (*SCENARIOS, *(guard.scenario for guard in GUARDS))}
CELL = Cell(MODEL, "default", "toolsim", "chat")

Removal = Callable[[pytest.MonkeyPatch], None]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def methods() -> AsyncIterator[Methods]:
    async with scripted_provider(scripts()) as url, aclosing(Proxies(url)) as started:
        made = Methods(Target(url), started)
        yield made
        await made.close()


async def play(methods: Methods, scenario: Scenario, cell: Cell = CELL) -> Run:
    made: Case = case(scenario, ScenarioSettings(), "guards")
    return await run(Job(cell, made, 0, {}), methods, 30)


def test_no_prompt_contains_another() -> None:
    """No scenario's prompt contains another scenario's prompt, since the provider finds scenarios by their prompts."""
    prompts = [scenario.prompt for scenario in BY_ID.values()]
    assert len(scripts()) == len(GUARDS)
    assert all(a is b or a not in b for a in prompts for b in prompts)


@pytest.mark.ci
@pytest.mark.parametrize("stream", parameters([True, False], lambda stream: not stream))
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.asyncio(loop_scope="module")
async def test_scenarios_pass_with_all_guards(api: str, stream: bool, methods: Methods) -> None:
    """With all guards, each scenario passes over both APIs, streamed or not."""
    cell = replace(CELL, api=api, stream=stream)
    runs = [await play(methods, scenario, cell) for scenario in BY_ID.values()]
    assert [(run.case, run.detail) for run in runs if not run.ok] == []


def settings(**changed: Any) -> Removal:
    """Return a function that removes a mode or a policy by changing these settings of the tool loop."""

    def remove(monkeypatch: pytest.MonkeyPatch) -> None:
        begin = ToolLoopRunner.__init__

        def changed_begin(self: ToolLoopRunner, *arguments: Any, **named: Any) -> None:
            begin(self, *arguments, **named)
            self._settings = replace(self._settings, **changed)

        monkeypatch.setattr(ToolLoopRunner, "__init__", changed_begin)

    return remove


def dispatcher(**changed: Any) -> Removal:
    """Return a function that removes a guard of the dispatcher by changing these arguments of the dispatcher."""

    def remove(monkeypatch: pytest.MonkeyPatch) -> None:
        begin = ToolDispatcher.__init__
        monkeypatch.setattr(
            ToolDispatcher,
            "__init__",
            lambda self, *arguments, **named: begin(self, *arguments, **{**named, **changed}),
        )

    return remove


def expose_hidden_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    add = ToolRegistry.add
    monkeypatch.setattr(ToolRegistry, "add", lambda self, tool, execute, **_: add(self, tool, execute))


def skip_schema_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "compile_schema", lambda schema: None)


def keep_duplicate_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Conversation, "_unused_id", lambda self, id: id)


def allow_all_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: Workspace, arguments: dict[str, Any]) -> ToolResult:
        root, name = arguments["path"].strip("/").split("/")
        getattr(self, root)[name] = arguments["value"]
        return ToolResult(True)

    monkeypatch.setattr(Workspace, "patch", write)


UNLIMITED = 1 << 30

REMOVALS: list[tuple[str, str, Removal]] = [
    ("the mask", "withdrawn_tool", dispatcher(allowed=None)),
    ("model_facing", "hidden_tool", expose_hidden_tools),
    ("the schema", "missing_required_parameter", skip_schema_check),
    ("implicit context", "implicit_context", dispatcher(context=None)),
    ("max_tool_args_bytes", "long_arguments_guard", dispatcher(max_tool_args_bytes=UNLIMITED)),
    ("max_tool_output_bytes", "oversized_output", dispatcher(max_tool_output_bytes=UNLIMITED)),
    ("read-only facts", "facts_are_authoritative", allow_all_patches),
    ("the check of paths", "wrong_path", allow_all_patches),
    ("the check of types", "type_error_recovery", allow_all_patches),
    ("own ids", "duplicate_call_ids", keep_duplicate_ids),
    ("max_turns", "never_stops", settings(max_turns=50)),
    ("mode enforced", "enforced_use", settings(tool_use_mode="relaxed")),
    ("mode disabled", "disabled_use", settings(tool_use_mode="relaxed")),
    ("mode disabled", "chat_only", settings(tool_use_mode="relaxed")),
    ("fallback_retry_count", "relaxed_fallback", settings(fallback_retry_count=0)),
    ("mode relaxed", "relaxed_fallback", settings(tool_use_mode="enforced")),
    ("policy fatal", "failure_is_fatal", settings(tool_failure_policy="tolerated")),
    ("policy tolerated", "failure_is_tolerated", settings(tool_failure_policy="fatal")),
    ("fix_empty_final", "empty_final_answer", settings(fix_empty_final=False)),
    ("disable_tools", "empty_final_answer", settings(fix_empty_final_disable_tools=False)),
    ("parallel", "one_call_at_a_time", settings(parallel=True)),
]


@pytest.mark.parametrize(("what", "id", "remove"), REMOVALS, ids=[f"{id} without {what}" for what, id, _ in REMOVALS])
@pytest.mark.asyncio(loop_scope="module")
async def test_scenario_fails_without_its_guard(
    what: str, id: str, remove: Removal, methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a guard, policy or mode of the runtime is removed, its scenario fails."""
    remove(monkeypatch)
    without = await play(methods, BY_ID[id])
    assert not without.ok
    assert without.label != "internal_error", without.detail


OFF = ("toolsim_repair=off", "toolsim_untagged=no_use_tool", "toolsim_stop_after_tools=off")
OPTIONS: list[tuple[str, tuple[str, ...]]] = [
    # For chat completions, ``toolsim_stop_after_tools`` must be turned off explicitly, because ``off`` is not its
    # default.
    *(
        (guard.scenario.id, OFF if guard.scenario.id == "addon_stop_after_tools" else ())
        for guard in GUARDS
        if guard.scenario.options == TIGHT
    ),
    ("repaired_json", OFF),
    ("use_tool_form", OFF),
    ("strict_violation", TIGHT),
    ("addon_find_tools", ()),
]


@pytest.mark.parametrize(("id", "options"), OPTIONS, ids=[id for id, _ in OPTIONS])
@pytest.mark.asyncio(loop_scope="module")
async def test_scenario_fails_without_its_option(id: str, options: tuple[str, ...], methods: Methods) -> None:
    """Without the addon option that it needs, each scenario fails."""
    without = await play(methods, replace(BY_ID[id], options=options))
    assert not without.ok
    assert without.label != "internal_error", without.detail
