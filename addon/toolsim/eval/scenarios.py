"""Provides scenarios: conversations with tools and state. The resulting state determines whether a run is correct.

Each scenario runs in the runtime's loop, on a separate workspace. Live scenarios require the exact final text
``Done.``, so that the end can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toolsim.command_line import UsageError
from toolsim.eval.case import Case, Verdict
from toolsim.eval.diagnosis import DONE, diagnose
from toolsim.eval.runtime.dispatcher import MAX_TOOL_BYTES, ToolDispatcher
from toolsim.eval.runtime.loop import LoopSettings, Outcome, ToolLoopRunner
from toolsim.eval.runtime.prompt import AnswerTransform, PromptRunner
from toolsim.eval.runtime.turn import Message, ProviderError, Send
from toolsim.eval.workspace import DEFAULT_ALLOWLIST, WORKSPACE_ID, Workspace

SUITE = "scenarios"

_RULES = (
    "You edit a workspace with tools. Use a tool call for every step, and read each result before you go on. "
    f"When all is done, answer with exactly this text and nothing else: {DONE}"
)
_WITH_ID = f"{_RULES} The workspace's id is {WORKSPACE_ID}."

Check = Callable[[Outcome, Workspace], Verdict]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. ``loop`` contains the LoopSettings that the scenario tests. Flags cannot change them.

    ``allowed`` are the tools that may run (None: the tools in the settings). ``offered`` are the tools that the model
    sees (None: the allowed tools). ``context`` contains values for omitted arguments. ``options`` are addon options.
    ``facts`` are added to the workspace's facts. ``strict`` declares state_patch as strict. ``answer_transform`` is
    applied to each answer. If ``error`` is set, the run must end with this API error code.
    """

    id: str
    prompt: str
    check: Check
    system: str = _WITH_ID
    kind: Literal["tools", "chat"] = "tools"
    loop: Mapping[str, Any] = field(default_factory=dict)
    allowed: Collection[str] | None = None
    offered: Collection[str] | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    max_tool_args_bytes: int = MAX_TOOL_BYTES
    max_tool_output_bytes: int = MAX_TOOL_BYTES
    options: tuple[str, ...] = ()
    strict: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    answer_transform: AnswerTransform | None = None
    error: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the system message and the user's first message."""
        return {"role": "system", "content": self.system}, {"role": "user", "content": self.prompt}


@dataclass(frozen=True, slots=True)
class ScenarioSettings:
    """The settings that all scenarios share. If ``allowed`` is None, all model-facing tools may run."""

    allowed: Collection[str] | None = DEFAULT_ALLOWLIST
    loop: LoopSettings = field(default_factory=LoopSettings)


def case(scenario: Scenario, settings: ScenarioSettings, suite: str = SUITE) -> Case:
    """Return a scenario as a case, with these settings."""

    async def play(send: Send) -> Verdict:
        workspace = Workspace()
        workspace.facts.update(scenario.facts)
        registry = workspace.registry(strict=scenario.strict)
        allowed = settings.allowed if scenario.allowed is None else scenario.allowed
        dispatcher = ToolDispatcher(
            registry,
            allowed=allowed,
            context=scenario.context,
            max_tool_args_bytes=scenario.max_tool_args_bytes,
            max_tool_output_bytes=scenario.max_tool_output_bytes,
        )
        transforms = [scenario.answer_transform] if scenario.answer_transform else []
        runner = ToolLoopRunner(
            PromptRunner(send, answer_transforms=transforms),
            dispatcher,
            registry.offered(allowed if scenario.offered is None else scenario.offered),
            replace(settings.loop, **scenario.loop),
        )
        try:
            outcome = await runner.run(scenario.messages)
        except ProviderError as error:
            if not scenario.error or error.code != scenario.error:
                raise
            return Verdict.passed()
        if scenario.error:
            return Verdict.failed("schema_violation", f"expected the error {scenario.error}, got an answer")
        return scenario.check(outcome, workspace)

    return Case(suite, scenario.id, play, scenario.kind, options=scenario.options)


# -- the live scenarios --

TITLE = "Quarterly report"
TOO_LONG = " ".join(["The quarter went well and the team grew in every region that we serve."] * 12)
MAX_LIVE_ARGS_BYTES = 400
"""Maximum size of tool arguments, in bytes. TOO_LONG exceeds this limit, but its first sentence does not."""


def _has_title(outcome: Outcome, workspace: Workspace) -> str | None:
    if not workspace.reads:
        return "the state was never read"
    if workspace.draft["title"] != TITLE:
        return f"/draft/title is {workspace.draft['title']!r}"
    return None


def check_title(outcome: Outcome, workspace: Workspace) -> Verdict:
    """Check that the model has read the state, set the title, and ended with ``Done.``."""
    return diagnose(outcome, _has_title(outcome, workspace))


def _check_recovery(outcome: Outcome, workspace: Workspace) -> Verdict:
    goal = None
    if workspace.draft["priority"] != 3:
        goal = f"/draft/priority is {workspace.draft['priority']!r}"
    elif all(execution.result.ok for execution in outcome.executions):
        goal = "no call failed with ok:false, so there was nothing to recover from"
    return diagnose(outcome, goal)


def _check_guard(outcome: Outcome, workspace: Workspace) -> Verdict:
    goal = None
    if not any(execution.result.code == "ARGUMENTS_TOO_LARGE" for execution in outcome.executions):
        goal = "no call had arguments over the limit"
    elif not workspace.draft["body"]:
        goal = "/draft/body is empty"
    return diagnose(outcome, goal)


def _check_chat(outcome: Outcome, workspace: Workspace) -> Verdict:
    if any(answer.calls for answer in outcome.answers):
        return Verdict.failed("needless_call", "called a tool although none was offered")
    if outcome.text.strip() != DONE:
        return Verdict.failed("wrong_final_text", f"expected {DONE!r}, got {outcome.text[:160]!r}")
    return Verdict.passed()


def _check_parallel(outcome: Outcome, workspace: Workspace) -> Verdict:
    verdict = check_title(outcome, workspace)
    if verdict.ok and not any(len(answer.calls) > 1 for answer in outcome.answers):
        return Verdict.failed("parallel_collapse", "no turn had two calls")
    return verdict


SCENARIOS = (
    Scenario(
        "happy_path",
        f'Read the state of the workspace. Then set /draft/title to "{TITLE}".',
        check_title,
    ),
    Scenario(
        "missing_workspace_id",
        f'Read the state of my current workspace. After that set /draft/title to "{TITLE}".',
        check_title,
        system=_RULES,
    ),
    Scenario(
        "type_error_recovery",
        'Set /draft/priority to "high". If the tool reports an error, correct the value and call it again.',
        _check_recovery,
    ),
    Scenario(
        "long_arguments_guard",
        f"Set /draft/body to this text: {TOO_LONG}\nIf the tool reports that the arguments are too large, set "
        "/draft/body to its first sentence only.",
        _check_guard,
        max_tool_args_bytes=MAX_LIVE_ARGS_BYTES,
    ),
    Scenario(
        "chat_only",
        f"There is nothing to edit. Answer with exactly this text and nothing else: {DONE}",
        _check_chat,
        system="You are a helpful assistant.",
        kind="chat",
        loop={"tool_use_mode": "disabled"},
    ),
    Scenario(
        "happy_path_parallel",
        "In one turn, with two tool calls beside each other, read the state of the workspace and set /draft/title to "
        f'"{TITLE}".',
        _check_parallel,
    ),
)
PRESETS = {
    "default": tuple(scenario.id for scenario in SCENARIOS[:5]),
    "all": tuple(scenario.id for scenario in SCENARIOS),
}


def select(names: str, settings: ScenarioSettings | None = None) -> list[Case]:
    """Return the scenarios in a list such as ``default,happy_path_parallel``. Raises UsageError for unknown names."""
    by_id = {scenario.id: scenario for scenario in SCENARIOS}
    chosen: dict[str, Case] = {}
    for name in filter(None, (word.strip() for word in names.split(","))):
        for id in PRESETS.get(name, (name,)):
            if id not in by_id:
                raise UsageError(f"no such scenario: {id}; expected one of {', '.join([*PRESETS, *by_id])}")
            chosen[id] = case(by_id[id], settings or ScenarioSettings())
    return list(chosen.values())
