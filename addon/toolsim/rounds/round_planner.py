"""Plans the rounds of an answer: which request each round sends, when another round follows, and when the answer ends.

| reason                                            | retried                                                         |
|---------------------------------------------------|-----------------------------------------------------------------|
| a faulty call, or a missing required call         | ``toolsim_retry`` times                                         |
| an answer that is not the required JSON           | also ``toolsim_retry`` times; without tools after an output     |
| a call to a tool that was never declared          | once, with ``toolsim_unknown_tool=retry``, unless retried above |
| an empty answer after a tool's output             | once, with ``toolsim_fix_empty_final``; without tools           |
| a tool lookup with ``find_tools``                 | 3 times; the model sees the tools' entries                      |
| a call that the model rejects or invents          | once, with ``toolsim_second_opinion``; without tools            |
| an error from the backend                         | once, with ``toolsim_tool_use_mode=relaxed``; without tools     |
| outputs of MCP tools                              | always; the last round that the limits allow has no tools       |

After outputs, "without tools" means that no tool may be called. The manifest remains in the prompt, because without it
the server would process the entire prompt again. Since the backend no longer has to allow calls, it can enforce the
JSON that the client requires. After a needless call, the manifest is dropped.

A question about a call (``opinion.py``) is also a round, but outside the conversation.

The rounds of one answer are bounded by ``toolsim_max_rounds``, by the text limit of a single answer, and by ten minutes
between the starts of the first and the last round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolsim.core.conversation import ClientRequest
from toolsim.core.plan import FIND_TOOLS, GUESSED_CALL
from toolsim.core.policy import Policy
from toolsim.request.deferred_tools import found_tools, names_only
from toolsim.request.record import error_record
from toolsim.request.rewrite import is_after_outputs, may_call_unprompted, tools_on_offer
from toolsim.response.retry import CALL_FAULTS, CUT_OFF, EMPTY_ANSWER, NO_CALL, SECOND_OPINION, Retry
from toolsim.response.verdict import ANSWER_MISMATCH, UNKNOWN_TOOL
from toolsim.wire.api import Api

_NOT_OF_TOOLS = (401, 402, 403, 404, 408, 429)
"""HTTP statuses of errors that a request without tools would also cause, such as an invalid key or an unknown model."""
ANSWER_NOW = "Now answer the question in words, from what the tools have returned."
"""The message that toolsim sends to the model in reply to an empty answer."""
_MAX_FINDS = 3
"""Maximum number of tool lookups within one answer."""

_ANEW = "That call was not made. Write it again from its beginning, whole and corrected, and nothing else."
_GO_ON = (
    "Your answer was cut off inside a call. Go on with it from the very character at which it ends, and write nothing"
    " else."
)
_CALL = "Call a tool now, and write nothing else."
_ANSWER = "That answer was not passed on. Write it again, as one JSON object that conforms to the schema"
_DONE = " The calls before it were made: do not repeat them."

NOTHING = "(no answer)"
"""The text that represents an empty answer.

Without this text, the message about the error would be merged with the user's previous message.
"""


@dataclass(frozen=True, slots=True)
class Round:
    """A round: a request that the client could have sent, and the rules for its answer."""

    number: int
    """The number of the round, starting at 1."""
    body: Mapping[str, Any]
    policy: Policy
    retries_allowed: frozenset[str] = frozenset()
    """Reason codes of the errors that allow another round."""
    partial_call: str = ""
    """The text of an earlier round's partial call that this answer continues, or "" if there is none."""
    hosted: frozenset[str] = frozenset()
    """The names of the tools that toolsim runs after the round."""
    is_side_request: bool = False
    """Whether the request is a question that toolsim asks outside the conversation."""


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Limits for the rounds of one answer: their number, time in seconds (0 means no limit), and text size in bytes."""

    rounds: int = 8
    seconds: float = 600.0
    text_bytes: int = 32 * 1024 * 1024


def may_take_rounds(request: ClientRequest, policy: Policy) -> bool:
    """Return whether the answer to a request can take several rounds.

    An answer with several choices, a background answer or a summary never takes several rounds.
    """
    if request.n != 1 or request.body.get("background") is True or request.form.compacts:
        return False
    asks_for_calls = policy.retry > 0 or policy.unknown_tool == "retry" or policy.falls_back
    if (asks_for_calls and request.tools) or (policy.fix_empty_final != "off" and is_after_outputs(request)):
        return True
    if request.tools and wants_opinion(request, policy):
        return True
    return bool(policy.catalog_budget and names_only(tools_on_offer(request, policy), policy))


def wants_opinion(request: ClientRequest, policy: Policy) -> bool:
    """Return whether the model is asked about the calls in an answer before they are emitted."""
    return policy.second_opinion == "on" and may_call_unprompted(request, policy)


def may_be_hosted(request: ClientRequest, policy: Policy, bounds: RoundLimits) -> bool:
    """Return whether MCP tools can be run for a request.

    This requires a single choice, a request that allows calls, and a limit of at least two rounds. MCP tools are not
    run for background requests and requests with legacy functions.
    """
    is_whole = request.n == 1 and request.body.get("background") is not True and not request.form.legacy_functions
    may_call = request.tool_choice.mode != "none" and policy.tool_use_mode != "disabled"
    return is_whole and may_call and bounds.rounds > 1


class RoundPlanner:
    """Plans the rounds of one answer to ``body``, a request in the format of ``api``.

    ``hosted`` are the names of the tools that toolsim runs. Once these tools have run, ``after_calls`` returns the
    round that shows their outputs to the model.
    """

    def __init__(
        self,
        api: Api,
        body: Mapping[str, Any],
        policy: Policy,
        bounds: RoundLimits,
        hosted: frozenset[str] = frozenset(),
    ) -> None:
        self._api = api
        self._body = body
        self._policy = policy
        self._bounds = bounds
        self._hosted = hosted
        self._number = 1  # The number of the last round.
        self._asked = 0  # The number of retries caused by faulty or missing calls.
        self._answers = 0  # The number of retries caused by answers that were not the required JSON.
        self._has_outputs = False  # Whether the retried turn is an answer to tool outputs.
        self._has_fixed = False
        self._has_words = False  # Whether a plain-text answer was requested instead of calls.
        self._has_fallen_back = False
        self._finds = 0

    def first(self) -> Round:
        """Return the first round. Its request is the client's own request."""
        return Round(1, self._body, self._policy, self._asks(1), hosted=self._hosted)

    def next(self, before: Round, retry: Retry, *, called: bool, seconds: float, size: int) -> Round | None:
        """Return the round that retries after an error in the answer, or None if the limits do not allow another round.

        ``called`` is true if the client has received calls. ``seconds`` is the time since the first round started, and
        ``size`` is the size of the emitted text in bytes.
        """
        if self._is_over(seconds) or size > self._bounds.text_bytes:
            return None
        body, policy = before.body, before.policy
        if retry.fault.reason == EMPTY_ANSWER:
            self._has_fixed = True
            if policy.fix_empty_final == "on":
                policy = replace(policy, tool_use_mode="withheld")
            body = self._api.append_reply(before.body, "", ANSWER_NOW)
        elif retry.fault.reason == SECOND_OPINION:
            self._has_words = True
            policy = replace(policy, tool_use_mode="disabled")
        elif retry.fault.reason == FIND_TOOLS:
            self._finds += 1
            tools = tools_on_offer(self._api.read(before.body), policy)
            reply = found_tools(tools, retry.fault.arguments, policy)
            body = self._api.append_reply(before.body, words_of(retry), reply)
        else:
            is_answer = retry.fault.reason == ANSWER_MISMATCH
            self._answers += is_answer
            self._asked += not is_answer
            request = self._api.read(before.body)
            self._has_outputs |= is_after_outputs(request)
            is_without_tools = not tools_on_offer(request, policy)
            if is_answer and self._has_outputs and not is_without_tools:
                policy = replace(policy, tool_use_mode="withheld")
            may_call = policy.tool_use_mode != "withheld" and not is_without_tools
            reply = reply_to(retry, called=called, may_call=may_call)
            body = self._api.append_reply(before.body, words_of(retry), reply)
        return self._round(body, policy, retry.fault.partial_call)

    def side_request(self, rule: str, question: str, *, seconds: float) -> Round | None:
        """Return a round that asks the model a question outside the conversation.

        Return None if the limits do not allow two more rounds: the round with the question, and a round that the
        model's reply might require.
        """
        if self._is_over(seconds) or self._number + 2 > self._bounds.rounds:
            return None
        if self._policy.manifest_role == "user":
            # This backend drops messages with the roles ``system`` and ``developer``, so the rule is part of the
            # question.
            rule, question = "", f"{rule}\n\n{question}"
        self._number += 1
        return Round(
            self._number, self._api.side_request(self._body, rule, question), self._policy, is_side_request=True
        )

    def without_tools(self, before: Round, status: int, *, seconds: float) -> Round | None:
        """Return a round that retries without tools after an error with this ``status``.

        Return None if the policy or the limits do not allow such a round, or if the tools cannot have caused the error.
        """
        policy = self._policy
        may = policy.falls_back and not self._has_fallen_back
        if self._is_over(seconds) or not may or status in _NOT_OF_TOOLS:
            return None
        self._has_fallen_back = True
        return self._round(before.body, replace(before.policy, tool_use_mode="disabled"))

    def after_calls(self, before: Round, body: Mapping[str, Any], *, seconds: float, size: int) -> Round | None:
        """Return the round after calls that toolsim has run, or None if the limits do not allow another round.

        The last round that the limits allow offers no tools.
        """
        bounds, number = self._bounds, self._number + 1
        if number > bounds.rounds:
            return None
        is_last = number == bounds.rounds or 0 < bounds.seconds <= seconds or size > bounds.text_bytes
        policy = replace(before.policy, tool_use_mode="withheld") if is_last else before.policy
        return self._round(body, policy)

    def _is_over(self, seconds: float) -> bool:
        bounds = self._bounds
        return self._number >= bounds.rounds or 0 < bounds.seconds <= seconds

    def _round(self, body: Mapping[str, Any], policy: Policy, partial_call: str = "") -> Round:
        self._number += 1
        return Round(self._number, body, policy, self._asks(self._number), partial_call, self._hosted)

    def _asks(self, number: int) -> frozenset[str]:
        if number >= self._bounds.rounds:
            return frozenset()
        asks: frozenset[str] = CALL_FAULTS if self._asked < self._policy.retry else frozenset()
        if self._answers < self._policy.retry:
            asks |= {ANSWER_MISMATCH}
        if self._policy.second_opinion != "off" and not self._has_words:
            asks |= {SECOND_OPINION}
        if self._policy.unknown_tool == "retry" and not self._asked:
            asks |= {UNKNOWN_TOOL}
        if self._policy.catalog_budget and self._finds < _MAX_FINDS:
            asks |= {FIND_TOOLS} if self._finds else {FIND_TOOLS, GUESSED_CALL}
        return asks | {EMPTY_ANSWER} if self._policy.fix_empty_final != "off" and not self._has_fixed else asks


def words_of(retry: Retry) -> str:
    """Return the model's text as the next round shows it to the model, or a placeholder if it is empty."""
    return retry.words if retry.words.strip() else NOTHING


def reply_to(retry: Retry, *, called: bool, may_call: bool = True) -> str:
    """Return the message that replies to a faulty answer.

    ``called`` is true if the answer contained valid calls. ``may_call`` is true if more calls are allowed.
    """
    fault = retry.fault
    answer = f"{_ANSWER}, or call a tool." if may_call else f"{_ANSWER}."
    instruction = {CUT_OFF: _GO_ON, NO_CALL: _CALL, ANSWER_MISMATCH: answer}.get(fault.reason, _ANEW)
    record = error_record(fault.reason, fault.name, fault.expected)
    return f"{record}\n{instruction}{_DONE if called and fault.reason != CUT_OFF else ''}"
