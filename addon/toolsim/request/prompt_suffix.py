"""Puts variable instructions about tools at the end of the prompt so that its prefix stays cacheable.

Servers cache the prefix of a prompt; on a CPU, 10,000 tokens take minutes. The manifest at the beginning therefore
depends only on the client's tools and the operator's options. All other instructions follow the last client-side item
(a user message or a tool output):

1. the entries of called tools that the manifest lists only by name (``deferred_tools``); the entries of tools that the
   client declares within the conversation (``additional_tools``), with the names of the tools that it withdraws; and a
   line about a call that the model has repeated (``loops``);
2. the requirement of this request: a call, no call, or only some of the tools.

No state is stored between requests. Instead, the ends of earlier prompts are found in the history: an earlier prompt
ended wherever the model's output follows client-side items. Instructions that depend only on the items up to such a
point (1, and a requirement from the operator's ``tool_use_mode``) are repeated there in each later request. A
requirement of this request alone (2) is not repeated, so the next prompt differs from that point onward.

The manifest is not repeated as a reminder. A reminder at each of these points makes a small model return an empty
answer, and a single reminder at the end changes the position of the text after it (addon/docs/figures.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolsim.core.conversation import Call, CallOutput, Declaration, Item, Message, Text, last_item
from toolsim.core.plan import Plan, Tool
from toolsim.request.loops import LoopCounter, lines_about
from toolsim.request.manifest import further_entries
from toolsim.request.transforms import tools_shown

NO_CALL = "You may call no tool in this answer: answer in words."


class _Prompt(NamedTuple):
    """A point in a conversation where a prompt ended."""

    last: int
    """The index of the prompt's last user message or tool output, or of its first declaration if it has neither."""
    end: int
    """The index after the prompt's last item."""


def with_suffixes(items: Sequence[Item], plan: Plan) -> list[Item]:
    """Return a conversation in which each prompt ends with its suffix, a user message."""
    # The last item is toolsim's request for a summary, appended to the prompt that the client would have sent.
    spoken = len(items) - 1 if plan.form.compacts else len(items)
    prompts = _prompts(items[:spoken])
    if plan.form.compacts:
        prompts.append(_Prompt(spoken, len(items)))
    lines = _SuffixLines(plan)
    if not prompts:
        # There is no message, because the history is stored at the backend or the request has only instructions.
        said = lines.of_request()
        return [*items, Message("user", (Text("\n\n".join(said)),))] if said else list(items)
    after: dict[int, str] = {}
    start = 0
    for prompt in prompts:
        said = lines.of_history(items[start : prompt.end])
        said += lines.of_request() if prompt is prompts[-1] else lines.of_operator(items[start : prompt.end])
        after[prompt.last] = "\n\n".join(said)
        start = prompt.end
    shown: list[Item] = []
    for index, item in enumerate(items):
        if not isinstance(item, Declaration):
            shown.append(item)
        if text := after.get(index):
            # Some chat templates show a message's name, and a different name would look like a different speaker. So
            # the added message has the same name as the message before it.
            shown.append(Message("user", (Text(text),), item.name if isinstance(item, Message) else None))
    return shown


def _prompts(items: Sequence[Item]) -> list[_Prompt]:
    prompts: list[_Prompt] = []
    last: int | None = None
    for index, item in enumerate(items):
        if isinstance(item, CallOutput) or (isinstance(item, Message) and item.role == "user"):
            last = index
        elif isinstance(item, Declaration):
            last = index if last is None else last
        elif last is not None and not (isinstance(item, Message) and item.role != "assistant"):
            prompts.append(_Prompt(last, index))
            last = None
    return prompts if last is None else [*prompts, _Prompt(last, len(items))]


class _SuffixLines:
    """Generates the suffix lines of a conversation's prompts, from the first prompt to the last."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._loops = LoopCounter() if plan.policy.loop_limit else None
        self._known = {tool.name: tool for tool in plan.visible_tools}
        self._named: dict[str, Tool] = {}  # Tools that have been shown only by name so far.
        if plan.name_only_tools:
            shown = tools_shown(plan.visible_tools, plan.policy.transforms)
            self._named = {tool.name: tool for tool in shown if tool.name in plan.name_only_tools}

    def of_history(self, items: Sequence[Item]) -> list[str]:
        """Return the lines for a prompt that depend on the items since the previous prompt."""
        called = dict.fromkeys(item.name for item in items if isinstance(item, Call)) if self._named else ()
        shown = [self._named.pop(name) for name in called if name in self._named]
        policy = self._plan.policy
        removed: dict[str, None] = {}
        for declaration in (item for item in items if isinstance(item, Declaration)):
            for name in declaration.removed:
                if self._known.pop(name, None) is not None:
                    self._named.pop(name, None)
                    removed[name] = None
                    shown = [tool for tool in shown if tool.name != name]
            for tool in declaration.tools:
                if not policy.excludes((tool.name, tool.wire_name)) and self._known.get(tool.name) != tool:
                    self._known[tool.name] = tool
                    self._named.pop(tool.name, None)
                    removed.pop(tool.name, None)
                    shown += tools_shown((tool,), policy.transforms)
        withdrawn = [f"From now on you may not call {', '.join(removed)}."] if removed else []
        repeated = lines_about(self._loops.take(items), policy) if self._loops is not None else []
        return [*self._entries(shown), *withdrawn, *repeated]

    def of_operator(self, items: Sequence[Item]) -> list[str]:
        """Return the requirement that ``tool_use_mode`` added to an earlier prompt. ``items`` are the items between the
        preceding prompt and this one.
        """
        is_enforced = self._plan.policy.tool_use_mode == "enforced" and not isinstance(last_item(items), CallOutput)
        return [self._demand(())] if is_enforced else []

    def of_request(self) -> list[str]:
        """Return the lines at the end of the last prompt that apply only to this request, such as "call a tool"."""
        plan = self._plan
        # The model does not know deferred tools that have not been loaded.
        offered = [tool.name for tool in plan.tools if tool.name in self._known]
        if not plan.tools:
            return [NO_CALL]
        # If lookups are not possible, the entries of tools listed only by name are shown.
        said = (
            []
            if plan.tools_to_look_up
            else self._entries([self._named[name] for name in offered if name in self._named])
        )
        some = offered if len(offered) < len(self._known) else []
        if plan.tool_choice.mode == "required":
            return [*said, self._demand(some)]
        return [*said, f"You may call no tool but {', '.join(some)} in this answer."] if some else said

    def _entries(self, tools: Sequence[Tool]) -> list[str]:
        policy = self._plan.policy
        return [further_entries(tools, sentinel=policy.sentinel, form=policy.manifest)] if tools else []

    def _demand(self, some: Sequence[str]) -> str:
        """Return the requirement to call one of the tools in ``some``, or any tool if ``some`` is empty."""
        names = some or list(self._known)
        if len(names) == 1:
            return f"You MUST call {names[0]} in this answer."
        # The wording "at least one" makes a small model invent further calls (addon/docs/figures.md).
        return f"You MUST call {f'one of {", ".join(some)}' if some else 'a tool'} in this answer."
