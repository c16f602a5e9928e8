"""Tests that each prompt begins with the previous prompt, regardless of the options."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.core.conversation import Call, CallOutput, HostedItem, Item, Message, Text
from toolsim.core.plan import Plan, Tool, ToolChoice
from toolsim.core.policy import ApiName, Policy
from toolsim.core.report import Report
from toolsim.pages.read_prompt import read_choice, wanted
from toolsim.request.forms import FORMS
from toolsim.request.prompt_suffix import with_suffixes
from toolsim.request.rewrite import rewrite_request
from toolsim.request.transforms import NAMES

PATHS: dict[ApiName, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "Where"}}, "required": ["city"]}


@dataclass(frozen=True)
class Step:
    """A model's answer, consisting of text and calls. Each call is represented by the number of its tool."""

    words: str
    calls: tuple[int, ...] = ()


def functions(*numbers: int) -> list[dict[str, Any]]:
    return [{"type": "function", "name": f"tool_{number}", "parameters": SCHEMA} for number in numbers]


def prompts_of(
    steps: list[Step], api: ApiName, tool_count: int, declares: frozenset[int] = frozenset()
) -> list[list[dict[str, Any]]]:
    """Return the conversation that each request contains. Each step is preceded by a user message or by the outputs of
    the previous step.

    ``declares`` lists the steps before which the client declares more tools, if its API has an item for tools.
    """
    items: list[dict[str, Any]] = [{"role": "system", "content": "Be good."}]
    requests = []
    pending: list[str] = []
    for number, step in enumerate(steps):
        items += [output(api, call_id, f"out {number}" * 30) for call_id in reversed(pending)]
        if not pending:
            items.append({"role": "user", "content": f"question {number}"})
        if number in declares and api == "responses":
            further = {"type": "additional_tools", "role": "developer", "tools": functions(100 + number, 0)}
            items.insert(len(items) - number % 2, further)
        requests.append(list(items))
        pending = [f"call_{number:03}{place}" for place in range(len(step.calls))]
        items += answer(api, step, dict(zip(pending, (call % tool_count for call in step.calls), strict=True)))
    return requests


def output(api: ApiName, call_id: str, text: str) -> dict[str, Any]:
    if api == "chat":
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def answer(api: ApiName, step: Step, calls: dict[str, int]) -> list[dict[str, Any]]:
    called = {call_id: {"name": f"tool_{number}", "arguments": '{"city": "Oslo"}'} for call_id, number in calls.items()}
    if api == "chat":
        tool_calls = [{"id": call_id, "type": "function", "function": call} for call_id, call in called.items()]
        more = {"tool_calls": tool_calls} if tool_calls else {}
        return [{"role": "assistant", "content": step.words or None if more else step.words, **more}]
    said = [{"role": "assistant", "content": step.words}] if step.words or not calls else []
    return [*said, *({"type": "function_call", "call_id": call_id, **call} for call_id, call in called.items())]


def prompt(
    api: ApiName, items: list[dict[str, Any]], tool_count: int, policy: Policy, choice: Any = "auto", **fields: Any
) -> str:
    """Return the complete text that the model reads. Each message is preceded by its role."""
    tools = functions(*range(tool_count))
    if api == "chat":
        tools = [{"type": "function", "function": tool} for tool in tools]
        body: dict[str, Any] = {"model": "m", "messages": items, "tools": tools}
        if isinstance(choice, str) and choice.startswith("tool_"):
            choice = {"type": "function", "function": {"name": choice}}
        elif isinstance(choice, list):
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools[: len(choice)]}}
    else:
        body = {"model": "m", "input": items, "tools": tools}
        if isinstance(choice, str) and choice.startswith("tool_"):
            choice = {"type": "function", "name": choice}
        elif isinstance(choice, list):
            allowed = [{"type": "function", "name": name} for name in choice]
            choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    body |= {"tool_choice": choice, **fields}
    written = rewrite_request(api, PATHS[api], json.dumps(body).encode(), policy, output_mode=None, report=Report())
    sent = body if written is None else json.loads(written.body)
    messages = [{"role": "system", "content": sent.get("instructions", "")}, *(sent.get("messages") or sent["input"])]
    return "".join(f"\0{message['role']}\0{text_of(message['content'])}" for message in messages)


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "\0".join(part["text"] for part in content)


POLICIES = st.builds(
    Policy,
    backend=st.sampled_from(["auto", "chat", "responses"]),
    manifest=st.sampled_from(["auto", *FORMS]),
    manifest_role=st.sampled_from(["auto", "developer", "system", "user"]),
    catalog_budget=st.sampled_from([0, 100, 600]),
    history=st.sampled_from(["auto", "bracketed", "tagged"]),
    sentinel=st.sampled_from(["tool_call", "x"]),
    parallel_tool_calls=st.booleans(),
    tool_allowlist=st.sampled_from([frozenset[str](), frozenset({"tool_0", "tool_1"})]),
    tool_denylist=st.sampled_from([frozenset[str](), frozenset({"tool_2"})]),
    max_tool_bytes=st.sampled_from([100, 200_000]),
    tool_use_mode=st.sampled_from(["", "enforced", "relaxed", "disabled"]),
    engine=st.sampled_from(["unknown", "llama.cpp"]),
    constrain=st.sampled_from(["off", "auto", "gbnf"]),
    transforms=st.sets(st.sampled_from(NAMES)).map(frozenset),
    reasoning=st.sampled_from(["drop", "include"]),
)
STEPS = st.lists(
    st.builds(Step, st.sampled_from(["", "Well."]), st.lists(st.integers(0, 30), max_size=3).map(tuple)),
    min_size=2,
    max_size=10,
)
CHOICES = st.sampled_from(["auto", "required", "none", "tool_0", ["tool_0"]])


@given(STEPS, st.sampled_from(list(PATHS)), st.integers(1, 31), POLICIES, st.frozensets(st.integers(0, 9)), st.data())
def test_prompt_begins_with_the_previous_prompt(
    steps: list[Step], api: ApiName, tool_count: int, policy: Policy, declares: frozenset[int], data: st.DataObject
) -> None:
    """A prompt begins with the complete previous prompt. The only exception is the lines at the end of the previous
    prompt that applied only to that request.
    """
    last = plain = ""
    for items in prompts_of(steps, api, tool_count, declares):
        choice = data.draw(CHOICES)
        if choice == "none" and not any("tool_calls" in item or "call_id" in item for item in items):
            choice = "auto"  # With ``tool_choice: "none"``, a catalog is shown only if a tool was called before.
        written = prompt(
            api,
            items,
            tool_count,
            replace(policy, may_look_up=data.draw(st.booleans())),
            choice,
            parallel_tool_calls=data.draw(st.booleans()),
        )
        assert written.startswith(plain)
        last, plain = written, prompt(api, items, tool_count, policy)
        assert last.startswith(plain if policy.tool_use_mode != "enforced" else plain.rpartition("\n\n")[0])


@given(STEPS, st.integers(1, 31), POLICIES)
def test_summary_is_requested_at_the_end(steps: list[Step], tool_count: int, policy: Policy) -> None:
    """The prompt for a summary begins with the previous turn's prompt, even if no tool was called."""
    items = prompts_of(steps, "responses", tool_count)[-1]
    plain = prompt("responses", items, tool_count, policy)
    summary = prompt("responses", [*items, {"type": "compaction_trigger"}], tool_count, policy)
    assert summary.startswith(plain)
    assert "Summarise everything above" in summary.rpartition("\0")[2]


def test_tools_declared_later_are_shown_at_their_declaration() -> None:
    """Tools that are declared during the conversation are shown at the position of their declaration. A tool that is
    declared again is shown again only if it has changed.
    """
    items: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well."}]
    before = prompt("responses", items[:1], 2, Policy())
    other = {**functions(1)[0], "description": "Another one."}
    items += [{"type": "additional_tools", "tools": [*functions(0, 7), other]}, {"role": "user", "content": "go"}]
    after = prompt("responses", items, 2, Policy(), {"type": "function", "name": "tool_7"})
    assert after.startswith(before)
    later = after[after.index("Well.") :]
    assert later.index("go") < later.index("tool_7") < later.index("Another one.") < later.index("You MUST call tool_7")
    assert '"name": "tool_0"' not in later


def test_first_declared_tools_form_the_catalog() -> None:
    """The tools that were declared first form the catalog at the beginning, even if their declaration is later in the
    conversation.
    """
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"type": "additional_tools", "tools": functions(7)},
    ]
    assert prompt("responses", items, 0, Policy()).index("tool_7") < prompt("responses", items, 0, Policy()).index("hi")
    items.insert(0, {"type": "additional_tools", "tools": functions(8)})
    assert prompt("responses", items, 0, Policy()).rindex("tool_8") < prompt("responses", items, 0, Policy()).index(
        "hi"
    )


def tool(name: str) -> Tool:
    return Tool(name, name, description="Does it.", parameters=SCHEMA)


F, G, H = tool("f"), tool("g"), tool("h")
USER, ASSISTANT = Message("user", (Text("hi"),)), Message("assistant", (Text("Well."),))
NAMED, DEVELOPER = Message("user", (Text("hi"),), "Ann"), Message("developer", (Text("Be brief."),))
DEMAND = "You MUST call a tool in this answer."
CALL, OUTPUT = Call("c", "f", "{}"), CallOutput("c", (Text("1"),))
HOSTED = HostedItem({"type": "web_search_call"})


def lines(*items: Item, tools: tuple[Tool, ...] = (F, G), offered: tuple[Tool, ...] | None = None, **more: Any) -> Any:
    """Return the text that toolsim added after each item of the conversation, or "" if it added none."""
    plan = Plan("chat", "chat", tools=tools if offered is None else offered, visible_tools=tools, **more)
    after: list[str] = []
    for item in with_suffixes(items, plan):
        if item in items:
            after.append("")
        else:
            assert isinstance(item, Message)
            after[-1] = item.text
    return after


def test_closing_lines_do_not_depend_on_the_next_step() -> None:
    """The lines that toolsim adds after a user message or a tool output remain the same after the model has
    answered.
    """
    policy = Policy(tool_use_mode="enforced")
    assert lines(USER) == [""]
    assert lines(USER, CALL, OUTPUT, ASSISTANT, USER, policy=policy) == [DEMAND, "", "", "", ""]
    assert lines(USER, DEVELOPER, ASSISTANT, USER, policy=policy) == [DEMAND, "", "", ""]
    assert lines(USER, HOSTED, USER, ASSISTANT, USER, policy=policy) == [DEMAND, "", DEMAND, "", ""]
    assert lines(DEVELOPER, ASSISTANT) == ["", ""]
    assert lines(DEVELOPER, tool_choice=ToolChoice("required")) == ["You MUST call a tool in this answer."]


def test_added_line_belongs_to_the_last_participant() -> None:
    """A line that toolsim adds to the prompt has the name of the last participant, because the line would otherwise
    become a separate message.
    """
    plan = Plan("chat", "chat", tools=(F,), visible_tools=(F,), tool_choice=ToolChoice("required"))
    assert [getattr(item, "name", None) for item in with_suffixes([NAMED], plan)] == ["Ann", "Ann"]


@pytest.mark.parametrize(
    ("choice", "offered", "line"),
    [
        (ToolChoice(), (F, G, H), ""),
        (ToolChoice("none"), (), "You may call no tool in this answer: answer in words."),
        (ToolChoice("auto", frozenset("fg")), (F, G), "You may call no tool but f, g in this answer."),
        (ToolChoice("required"), (F, G, H), "You MUST call a tool in this answer."),
        (ToolChoice("required", frozenset("fg")), (F, G), "You MUST call one of f, g in this answer."),
        (ToolChoice("required", frozenset("f")), (F,), "You MUST call f in this answer."),
    ],
)
def test_tool_choice_is_stated_at_the_end(choice: ToolChoice, offered: tuple[Tool, ...], line: str) -> None:
    """The tool choice is stated only at the end of the prompt, from which it can be parsed."""
    said = lines(USER, ASSISTANT, USER, tools=(F, G, H), offered=offered, tool_choice=choice)
    assert said == ["", "", line]
    prompt = Message("user", (Text(f"hi\n\n{line}"),))
    assert wanted([USER, prompt, ASSISTANT]) == line
    assert read_choice(line) == (choice if line else None)


def test_enforced_mode_demands_a_call_for_each_question() -> None:
    """With ``tool_use_mode=enforced``, the prompt demands a call after each user message, but not after an output."""
    policy = Policy(tool_use_mode="enforced")
    said = lines(USER, CALL, OUTPUT, ASSISTANT, USER, policy=policy, tool_choice=ToolChoice("required"))
    assert said == [DEMAND, "", "", "", DEMAND]


def test_entries_follow_the_first_call() -> None:
    """If the catalog contains only names, a tool's complete entry follows the first call of the tool. If the model
    cannot look up tools, the remaining entries are at the end of the prompt.
    """
    short = frozenset("fg")
    shown = lines(
        USER, CALL, OUTPUT, ASSISTANT, USER, CALL, OUTPUT, name_only_tools=short, tools_to_look_up=frozenset("g")
    )
    assert ['"name": "f"' in each for each in shown] == [False, False, True, False, False, False, False]
    assert "Tools of the client tool catalog" not in "".join(shown[3:])
    [*_, last] = lines(USER, CALL, OUTPUT, ASSISTANT, USER, name_only_tools=short)
    assert '"name": "g"' in last
    assert '"name": "f"' not in last
