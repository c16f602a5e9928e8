"""Detects a model that repeats a call over several turns although the output remains the same.

Each request contains the history, so no state is kept. Whenever a call occurs again with the same output, it counts as
a repetition. The counts are reset by

1. a new pair of call and output, because a changed argument, a changed output (polling) or another call is progress;
2. a user message. Context that coding agents add to tool outputs, enclosed in tags, does not count as a user message.

The counts also reveal a cycle of several calls. When a pair has occurred half as often as ``toolsim_loop_limit``
(rounded up), a line that warns the model is added to the prompt after this output. Later requests contain the line at
the same point, so that the beginning of the prompt remains the same. When the limit is reached, the model is not
called. Instead, toolsim answers with a text that describes the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toolsim.core.conversation import Call, CallOutput, Item, Message, without_context
from toolsim.core.policy import Policy
from toolsim.core.report import loggable_name

LOOP_ENDED = "LOOP_ENDED"
"""The code of the warning that toolsim has ended the turn because the model repeated a call too often."""

_MAX_SHOWN = 200
"""Maximum length of a call's arguments in the answer that ends a loop, in characters."""
_MAX_SEARCHED = 65_536
"""Maximum number of characters of a message that are searched for the user's own text."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """A call that has occurred ``count`` times with the same output, without progress in between."""

    call: Call
    count: int


class LoopCounter:
    """Counts the calls in a conversation that were repeated with the same arguments and the same output.

    The items must be passed to ``take`` in order, from the beginning of the conversation.
    """

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._known: set[tuple[object, ...]] = set()
        self._counts: dict[tuple[object, ...], int] = {}

    def take(self, items: Iterable[Item]) -> Iterator[Repetition]:
        """Process the next items, and yield a Repetition for each tool output."""
        for item in items:
            match item:
                case Call():
                    self._calls[item.call_id] = item
                case CallOutput() if (call := self._calls.pop(item.call_id, None)) is not None:
                    pair = call.name, call.arguments, item.text, len(item.parts)
                    if pair not in self._known:
                        self._known.add(pair)
                        self._counts.clear()
                    self._counts[pair] = self._counts.get(pair, 0) + 1
                    yield Repetition(call, self._counts[pair])
                case Message() if self._known and _is_new_request(item):
                    self._known.clear()
                    self._counts.clear()
                case _:
                    pass


def lines_about(repetitions: Iterable[Repetition], policy: Policy) -> list[str]:
    """Return a line that warns the model about a repeated call if the call has just reached half of the limit.
    Otherwise, return [].
    """
    half = (policy.loop_limit + 1) // 2
    found = next((each for each in repetitions if each.count == half > 1), None)
    if found is None:
        return []
    return [
        f"You have called {found.call.name} {found.count} times with the same arguments, and its output was the same"
        " each time. Do not repeat this call: use its output, try something else, or answer."
    ]


def loop_at_end(items: Iterable[Item], policy: Policy) -> Repetition | None:
    """Return the call that the model keeps repeating at the end of a conversation, or None if the limit has not been
    reached.
    """
    found: Repetition | None = None
    counter = LoopCounter()
    for item in items:
        is_answer = isinstance(item, Call) or (isinstance(item, Message) and item.role == "assistant")
        if found is not None and (is_answer or (isinstance(item, Message) and _is_new_request(item))):
            found = None
        for repetition in counter.take([item]):
            found = repetition if repetition.count >= max(policy.loop_limit, 2) else found
    return found


def _is_new_request(message: Message) -> bool:
    return message.role == "user" and bool(without_context(message.text[:_MAX_SEARCHED]).strip())


def answer_about(loop: Repetition) -> str:
    """Return the text of the answer that ends a loop."""
    arguments = " ".join(loop.call.arguments.split())
    shown = arguments if len(arguments) <= _MAX_SHOWN else f"{arguments[:_MAX_SHOWN]} …"
    return (
        f"I stopped here because I was repeating myself: I called {loggable_name(loop.call.name)} {loop.count} times"
        f" with the same arguments ({shown}), and its output was the same each time. How should I continue?"
    )
