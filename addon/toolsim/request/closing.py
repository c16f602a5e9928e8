"""What is said of the tools at the end of a prompt, so that its beginning never changes.

Servers cache what they have read of a prompt, from its beginning on; on a CPU, 10,000 tokens take minutes. So the
catalogue at the beginning depends on nothing but the client's tools and the operator's options. Whatever else there is
to say closes what the client's side said last:

1. the entries of tools that the catalogue only names (``names_first``), once they have been called, and of tools that
   the client declares in the middle of the conversation (``additional_tools``), with the names of those it withdraws;
2. what this request alone wants: a call, none, or only some of the tools.

We remember nothing between requests, but a prompt has ended wherever an item of the model follows one of the client's
side. What depends on the items up to there (1, and a demand that the operator's ``tool_use_mode`` makes) is written
there again in each later request. What only this request wants (2) is not: the next prompt differs from there.

There is no reminder of the catalogue: one at each of these places makes a small model answer nothing, and one at the
end alone moves what follows it (addon/docs/figures.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolsim.core.conversation import Call, CallOutput, Declaration, Item, Message, Text, said_last
from toolsim.core.plan import FIND_TOOLS, Plan, Tool
from toolsim.request.manifest import further_entries
from toolsim.request.transforms import tools_shown

NO_CALL = "You may call no tool in this answer: answer in words."


class _Prompt(NamedTuple):
    """A prompt that ended somewhere in a conversation."""

    last: int
    """The index of the user's last message, or of the last output; of a declaration, if there is neither."""
    end: int
    """The number of its items."""


def closed(items: Sequence[Item], plan: Plan) -> list[Item]:
    """Return a conversation with the lines that close each of its prompts, as messages of the user."""
    # A summary is asked for by a last item of ours, which follows the prompt that the client would have sent.
    spoken = len(items) - 1 if plan.form.compacts else len(items)
    prompts = _prompts(items[:spoken])
    if plan.form.compacts:
        prompts.append(_Prompt(spoken, len(items)))
    lines = _Lines(plan)
    if not prompts:
        # Nobody has spoken: the backend holds the conversation, or there are instructions alone.
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
            # With the name of a participant it is another one's message.
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


class _Lines:
    """The lines of one conversation's prompts, from the first to the last."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known = {tool.name: tool for tool in plan.listed}
        self._named: dict[str, Tool] = {}  # Those whose entries the catalogue lacks, and that were not shown yet.
        if plan.only_named:
            shown = tools_shown(plan.listed, plan.policy.transforms)
            self._named = {tool.name: tool for tool in shown if tool.name in plan.only_named}

    def of_history(self, items: Sequence[Item]) -> list[str]:
        """Return what follows from the items since the last prompt."""
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
        return [*self._entries(shown), *withdrawn]

    def of_operator(self, items: Sequence[Item]) -> list[str]:
        """Return what the operator wanted of an earlier prompt; ``items``: those since the one before it."""
        is_enforced = self._plan.policy.tool_use_mode == "enforced" and not isinstance(said_last(items), CallOutput)
        return [self._demand(())] if is_enforced else []

    def of_request(self) -> list[str]:
        """Return what is wanted of this request's prompt, the last one."""
        plan = self._plan
        offered = [tool.name for tool in plan.tools if tool.name != FIND_TOOLS]
        if not plan.tools:
            return [NO_CALL]
        # What the model cannot look up any more.
        said = [] if plan.named else self._entries([self._named[name] for name in offered if name in self._named])
        some = offered if len(offered) < len(self._known) else []
        if plan.tool_choice.mode == "required":
            return [*said, self._demand(some)]
        return [*said, f"You may call no tool but {', '.join(some)} in this answer."] if some else said

    def _entries(self, tools: Sequence[Tool]) -> list[str]:
        policy = self._plan.policy
        return [further_entries(tools, sentinel=policy.sentinel, form=policy.manifest)] if tools else []

    def _demand(self, some: Sequence[str]) -> str:
        """Return the demand for a call, of one of ``some`` tools or of any."""
        names = some or list(self._known)
        if len(names) == 1:
            return f"You MUST call {names[0]} in this answer."
        # "At least one" makes a small model invent further calls (addon/docs/figures.md).
        return f"You MUST call {f'one of {", ".join(some)}' if some else 'a tool'} in this answer."
