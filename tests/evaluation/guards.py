"""Offline scenarios for all guards, policies and modes of the runtime and the addon. Without its guard, a scenario
fails.

Each scenario has a script, in which the model misbehaves: it calls forbidden tools, writes invalid JSON, repeats
itself, never stops, or ends without text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from toolsim.core.errors import ApiError
from toolsim.eval.case import Verdict
from toolsim.eval.diagnosis import DONE, diagnose
from toolsim.eval.runtime.loop import FINAL_PROMPT, Outcome
from toolsim.eval.runtime.prompt import calls_from_content_tags
from toolsim.eval.runtime.turn import Answer
from toolsim.eval.scenarios import TITLE, Scenario
from toolsim.eval.script import Script, after, block, get, patch
from toolsim.eval.workspace import Workspace

ALL_TOOLS = ("state_get", "state_patch", "facts_propose")
TIGHT = (
    "toolsim_max_tool_bytes=700",
    "toolsim_tool_block_dedup=true",
    "toolsim_tool_block_max=2",
    "toolsim_stop_after_tools=on",
    "toolsim_strict_policy=message",
    "toolsim_tool_allowlist=!facts_propose",
)
"""Addon options that no other scenario needs. A single proxy has all of them, so that the test is fast."""


@dataclass(frozen=True, slots=True)
class Guard:
    """An offline scenario, and the script of its model."""

    scenario: Scenario
    script: Script


def scripts() -> dict[str, Script]:
    """Return each scenario's script, keyed by the scenario's prompt."""
    return {guard.scenario.prompt: guard.script for guard in GUARDS}


# -- checks --


def _executed(*expected: str, final: str | None = DONE) -> Callable[[Outcome, Workspace], Verdict]:
    """Return a check of the final text and of the calls that were run.

    A successful call is written as ``name``, and a failed call as ``name CODE``.
    """

    def check(outcome: Outcome, workspace: Workspace) -> Verdict:
        ran = tuple(f"{execution.call.name} {execution.result.code}".strip() for execution in outcome.executions)
        if ran != expected:
            return Verdict.failed("wrong_state", f"expected the calls {list(expected)}, got {list(ran)}")
        if final is not None and outcome.text.strip() != final:
            return Verdict.failed("wrong_final_text", f"expected {final!r}, got {outcome.text[:160]!r}")
        return Verdict.passed()

    return check


def _stays_text(start: str) -> Callable[[Outcome, Workspace], Verdict]:
    """Return a check that no tool was run, and that the model's text reached the client unchanged."""

    def check(outcome: Outcome, workspace: Workspace) -> Verdict:
        if outcome.executions:
            return Verdict.failed("needless_call", f"{outcome.executions[0].call.name} ran")
        if not outcome.text.startswith(start):
            return Verdict.failed("wrong_final_text", f"expected text from {start!r} on, got {outcome.text[:160]!r}")
        return Verdict.passed()

    return check


def _stopped(stop: str, turns: int) -> Callable[[Outcome, Workspace], Verdict]:
    def check(outcome: Outcome, workspace: Workspace) -> Verdict:
        ended = (outcome.stop, len(outcome.answers))
        if ended == (stop, turns):
            return Verdict.passed()
        return Verdict.failed("turn_limit", f"expected {stop} after {turns} turns, got {ended[0]} after {ended[1]}")

    return check


def _check_facts(outcome: Outcome, workspace: Workspace) -> Verdict:
    goal = None
    if workspace.facts["year"] != "2026":
        goal = "a fact was changed without a person"
    elif workspace.proposals != {"year": "2027"}:
        goal = f"the proposals are {workspace.proposals}"
    elif not any(execution.result.code == "READ_ONLY" for execution in outcome.executions):
        goal = "facts were not read-only"
    return diagnose(outcome, goal)


def _check_ids(outcome: Outcome, workspace: Workspace) -> Verdict:
    asked = [call["id"] for message in outcome.messages for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in outcome.messages if message["role"] == "tool"]
    if len(set(asked)) != 3 or asked != answered:
        return Verdict.failed("wrong_state", f"calls {asked} were answered as {answered}")
    return _executed("state_get", "state_patch LOCKED", "state_patch")(outcome, workspace)


def _check_single(outcome: Outcome, workspace: Workspace) -> Verdict:
    if any(len(answer.calls) > 1 for answer in outcome.answers):
        return Verdict.failed("needless_call", "two calls in one answer")
    return _executed("state_get", "state_patch")(outcome, workspace)


def _check_cut(outcome: Outcome, workspace: Workspace) -> Verdict:
    if any(answer.calls and answer.text for answer in outcome.answers):
        return Verdict.failed("wrong_final_text", "words after a call reached the client")
    return _executed("state_get")(outcome, workspace)


def _same_ids(answer: Answer) -> Answer:
    """Assign the same ID to every call, as some gateways do."""
    return replace(answer, calls=tuple(replace(call, id="call_0") for call in answer.calls))


# -- the guards --

_LONG = "A long text, far beyond the limit. " * 24
_BIG = {f"fact_{number}": "x" * 60 for number in range(20)}
_PATCHED = patch("/draft/title", TITLE)
_REFUSED = ApiError("This model does not support tools.", "invalid_request_error", status=400)
_MALFORMED = '<tool_call>{"name":"state_patch","arguments":{"path": ]}</tool_call>'
_UNKNOWN = block("state_delete", {})
_COMMIT = block("facts_commit", {"name": "year", "confirmed_by": "Ana"})
_WRONG_TYPE = block("state_patch", {"workspace_id": "ws_main", "path": "/draft/title", "value": []})


def _prompt(id: str) -> str:
    return f"Offline scenario {id}."


GUARDS = (
    # Guards of the dispatcher.
    Guard(
        Scenario(
            "withdrawn_tool",
            _prompt("withdrawn_tool"),
            _executed("facts_propose UNKNOWN_TOOL"),
            allowed=("state_get",),
            offered=ALL_TOOLS,
        ),
        (block("facts_propose", {"name": "year", "value": "2027"}), DONE),
    ),
    Guard(
        Scenario(
            "hidden_tool", _prompt("hidden_tool"), _stays_text("<tool_call>"), allowed=(*ALL_TOOLS, "facts_commit")
        ),
        (_COMMIT, DONE),
    ),
    Guard(
        Scenario(
            "missing_required_parameter",
            _prompt("missing_required_parameter"),
            _executed("state_patch INVALID_ARGUMENTS", "state_patch"),
        ),
        (
            block("state_patch", {"workspace_id": "ws_main", "path": "/draft/title"}),
            after("'value' is a required property", _PATCHED),
            DONE,
        ),
    ),
    Guard(
        Scenario(
            "implicit_context",
            _prompt("implicit_context"),
            _executed("state_get"),
            context={"workspace_id": "ws_main"},
        ),
        (block("state_get", {}), DONE),
    ),
    Guard(
        Scenario(
            "oversized_output",
            _prompt("oversized_output"),
            _executed("state_get TOOL_OUTPUT_TOO_LARGE", "state_patch"),
            max_tool_output_bytes=700,
            facts=_BIG,
        ),
        (get(), after("TOOL_OUTPUT_TOO_LARGE", _PATCHED), DONE),
    ),
    # Guards of the workspace.
    Guard(
        Scenario("wrong_path", _prompt("wrong_path"), _executed("state_patch PATH_NOT_FOUND", "state_patch")),
        (patch("/draft/heading", TITLE), after("the fields are /draft/title", _PATCHED), DONE),
    ),
    Guard(
        Scenario("facts_are_authoritative", _prompt("facts_are_authoritative"), _check_facts, allowed=ALL_TOOLS),
        (
            patch("/facts/year", "2027"),
            after("READ_ONLY", block("facts_propose", {"name": "year", "value": "2027"})),
            DONE,
        ),
    ),
    # Guards of the loop.
    Guard(
        Scenario(
            "duplicate_call_ids",
            _prompt("duplicate_call_ids"),
            _check_ids,
            answer_transform=_same_ids,
        ),
        (f"{get()}\n{patch('/draft/owner', 'Bo')}", after("LOCKED", _PATCHED), DONE),
    ),
    Guard(
        Scenario("never_stops", _prompt("never_stops"), _stopped("max_turns", 3), loop={"max_turns": 3}),
        # Without the limit, the script ends here, so the scenario fails instead of running forever.
        (get(), get(), get(), get(), DONE),
    ),
    Guard(
        Scenario("enforced_use", _prompt("enforced_use"), _stopped("no_call", 1), loop={"tool_use_mode": "enforced"}),
        (DONE,),
    ),
    Guard(
        Scenario(
            "relaxed_fallback",
            _prompt("relaxed_fallback"),
            _executed(),
            loop={"tool_use_mode": "relaxed", "fallback_retry_count": 1},
        ),
        (lambda shown: _REFUSED if "state_get" in shown else DONE,),
    ),
    Guard(
        Scenario(
            "disabled_use",
            _prompt("disabled_use"),
            _executed(final=None),
            loop={"tool_use_mode": "disabled"},
            # The answer passes through a gateway that turns any text with a call's markup into a call.
            answer_transform=calls_from_content_tags,
        ),
        (get(),),
    ),
    Guard(
        Scenario(
            "failure_is_fatal",
            _prompt("failure_is_fatal"),
            _stopped("tool_failed", 3),
            loop={"tool_use_mode": "enforced", "tool_failure_policy": "fatal"},
        ),
        (get(), patch("/draft/owner", "Bo"), DONE),
    ),
    Guard(
        Scenario(
            "failure_is_tolerated",
            _prompt("failure_is_tolerated"),
            _stopped("answer", 3),
            loop={"tool_use_mode": "enforced", "tool_failure_policy": "tolerated"},
        ),
        (get(), patch("/draft/owner", "Bo"), DONE),
    ),
    Guard(
        Scenario(
            "empty_final_answer",
            _prompt("empty_final_answer"),
            _executed("state_get"),
            loop={"fix_empty_final": True},
        ),
        # The second request must have no tools. If the model still sees tools, it continues to call them.
        (get(), lambda shown: "" if FINAL_PROMPT not in shown else get() if "state_patch" in shown else DONE),
    ),
    # Guards of the addon.
    Guard(
        Scenario("repaired_json", _prompt("repaired_json"), _executed("state_patch")),
        (block("state_patch", "{'workspace_id': 'ws_main', 'path': '/draft/title', 'value': 'x',}"), DONE),
    ),
    Guard(Scenario("invalid_json", _prompt("invalid_json"), _stays_text(_MALFORMED)), (_MALFORMED, DONE)),
    Guard(Scenario("unknown_tool", _prompt("unknown_tool"), _stays_text(_UNKNOWN)), (_UNKNOWN, DONE)),
    Guard(
        Scenario("use_tool_form", _prompt("use_tool_form"), _executed("state_get")),
        ("<use_tool><name>state_get</name><workspace_id>ws_main</workspace_id></use_tool>", DONE),
    ),
    Guard(
        Scenario("thinking_is_inert", _prompt("thinking_is_inert"), _executed("state_patch")),
        (f"<think>{get()}</think>\n{_PATCHED}", DONE),
    ),
    Guard(
        Scenario("one_call_at_a_time", _prompt("one_call_at_a_time"), _check_single, loop={"parallel": False}),
        (f"{get()}\n{_PATCHED}", _PATCHED, DONE),
    ),
    Guard(
        Scenario("strict_violation", _prompt("strict_violation"), _executed(), strict=True, error="invalid_tool_call"),
        (_WRONG_TYPE, DONE),
    ),
    Guard(
        Scenario(
            "strict_violation_in_words",
            _prompt("strict_violation_in_words"),
            _executed(final=None),
            strict=True,
            options=TIGHT,
        ),
        (_WRONG_TYPE, DONE),
    ),
    Guard(
        Scenario(
            "addon_oversized_arguments",
            _prompt("addon_oversized_arguments"),
            _stays_text("<tool_call>"),
            options=TIGHT,
        ),
        (patch("/draft/body", _LONG), DONE),
    ),
    Guard(
        Scenario(
            "addon_oversized_output",
            _prompt("addon_oversized_output"),
            _executed("state_get", "state_patch"),
            options=TIGHT,
            facts=_BIG,
        ),
        (get(), after("TOOL_OUTPUT_TOO_LARGE", _PATCHED), DONE),
    ),
    Guard(
        Scenario("addon_dedup", _prompt("addon_dedup"), _executed("state_get"), options=TIGHT),
        (f"{get()}\n{get()}", DONE),
    ),
    Guard(
        Scenario("addon_block_max", _prompt("addon_block_max"), _executed("state_get", "state_patch"), options=TIGHT),
        (f"{get()}\n{_PATCHED}\n{patch('/draft/body', 'x')}", DONE),
    ),
    Guard(
        Scenario("addon_stop_after_tools", _prompt("addon_stop_after_tools"), _check_cut, options=TIGHT),
        (f"{get()}\nThe state is what I make up here.", DONE),
    ),
    Guard(
        Scenario(
            "addon_denylist", _prompt("addon_denylist"), _stays_text("<tool_call>"), allowed=ALL_TOOLS, options=TIGHT
        ),
        (lambda shown: DONE if "facts_propose" in shown else block("facts_propose", {"name": "a", "value": "b"}),),
    ),
    Guard(
        Scenario(
            "addon_find_tools",
            _prompt("addon_find_tools"),
            _executed("state_get"),
            options=("toolsim_catalog_budget=300",),
        ),
        # The client's next request does not contain the lookup's output, so the script then ends.
        (block("find_tools", {"names": ["state_get"]}), lambda shown: get() if "you looked up" in shown else DONE),
    ),
)
