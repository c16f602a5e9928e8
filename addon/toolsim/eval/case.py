"""Defines an evaluation's data types (case, method, run), and selects a sample of cases.

A suite is a list of cases. A case has a ``play`` function, which receives a ``Send`` and asks any number of questions.
Thus a single question and a conversation with tools and state look the same to the rest of the evaluation. The case
does not have to deal with connections, timeouts, token counts, traces or errors::

    async def play(send: Send) -> Verdict:
        answer = await send(Request(({"role": "user", "content": "…"},), tools))
        return Verdict.failed("no_call", "expected …") if not answer.calls else Verdict.passed()

A case does not catch ProviderError, which ends the run with the label ``http_error`` or ``timeout``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any, Literal, Protocol, get_args

from toolsim.eval.runtime.turn import Answer, Api, Call, Message, Request, Send, Tool

Label = Literal[
    "no_call",
    "wrong_tool",
    "malformed_json",
    "schema_violation",
    "missing_required",
    "hallucinated_parameter",
    "type_coercion",
    "escaping_error",
    "truncation",
    "parallel_collapse",
    "needless_call",
    "wrong_value",
    "wrong_state",
    "wrong_final_text",
    "turn_limit",
    "http_error",
    "timeout",
    "internal_error",
]
"""The reason for a failed run. If there are several reasons, the first one in the life cycle of a call counts.

parallel_collapse: fewer calls than required; needless_call: an unwanted call; wrong_value: a call that fits its schema
but has an incorrect argument; wrong_state: the calls succeeded but did not have the required effect; turn_limit: the
model never stopped calling; internal_error: the case itself raised an exception, which is a bug in the evaluation.
"""
LABELS: tuple[Label, ...] = get_args(Label)

MethodName = Literal["toolsim", "native", "prompt"]
"""The way in which a model receives tools: through the addon, as the server's own ``tools``, or only in a prompt."""
METHODS: tuple[MethodName, ...] = get_args(MethodName)
FORMER_METHOD = "way"
"""The former name of ``method``, in reports and as a flag of toolsim 0.2."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a case on one run. ``detail`` is the reason, in one line."""

    ok: bool
    label: Label | None = None
    detail: str = ""

    @classmethod
    def passed(cls) -> Verdict:
        """Return the verdict on a run that passed all checks of its case."""
        return cls(True)

    @classmethod
    def failed(cls, label: Label, detail: str = "") -> Verdict:
        """Return the verdict on a run that failed."""
        return cls(False, label, detail)


class PromptForm(Protocol):
    """Describes tools and parses calls for the ``prompt`` method, in suites that need a special prompt."""

    def write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """Return the messages with a description of the tools, and with earlier calls and outputs as text."""

    def read(self, text: str) -> tuple[str, tuple[Call, ...]]:
        """Return the prose and the calls in a model's text."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case, identified by ``suite`` and ``id``. ``kind`` states whether it is about tools or plain chat.

    ``form`` is the prompt form for the ``prompt`` method, or None for the default. ``options`` are the addon options
    that the case tests, as ``name=value``. Only the ``toolsim`` method runs a case with options.
    """

    suite: str
    id: str
    play: Callable[[Send], Awaitable[Verdict]]
    kind: Literal["tools", "chat"] = "tools"
    form: PromptForm | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """A combination to be measured: a model, sampling profile, method and API. ``setting`` contains addon options."""

    model: str
    profile: str
    method: MethodName
    api: Api
    stream: bool = False
    setting: str = ""

    @property
    def method_name(self) -> str:
        """The method, followed by the addon options that are set for it."""
        return f"{self.method} {self.setting}".rstrip()

    @property
    def api_name(self) -> str:
        """The API, followed by ``stream`` if the answers are streamed."""
        return f"{self.api} stream" if self.stream else self.api

    @property
    def name(self) -> str:
        """The cell's name in reports and progress lines."""
        return f"{self.model} · {self.profile} · {self.method_name} · {self.api_name}"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of one case in one cell.

    ``ms`` is the time from the first question to the verdict, without waits for rate limits. ``turns`` counts
    questions, ``repaired`` counts repaired calls, and ``untagged`` counts calls without a sentinel tag. ``as_text``
    counts answers with a call as text (``call_as_text``); it is None in old reports. ``steps`` contains each question
    and answer, and the model's prompt and output.
    """

    suite: str
    case: str
    kind: Literal["tools", "chat"]
    trial: int
    cell: Cell
    ok: bool
    label: Label | None
    detail: str
    ms: float
    turns: int
    input_tokens: int
    output_tokens: int
    repaired: int = 0
    untagged: int = 0
    as_text: int | None = None
    steps: tuple[dict[str, Any], ...] = field(default=())

    @property
    def key(self) -> str:
        """The run's identity within its report. Runs with equal keys in different reports ask the same questions."""
        cell = self.cell
        where = (cell.model, cell.profile, cell.method, cell.api_name, cell.setting)
        return "|".join((self.suite, self.case, *where, str(self.trial)))

    def as_dict(self) -> dict[str, Any]:
        """Return the run as JSON data, as in ``runs.jsonl``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Run:
        """Recreate a run from the result of ``as_dict``. Raises TypeError or KeyError for any other data."""
        cell = Cell(**with_current_names(data["cell"]))
        return cls(**{**data, "cell": cell, "steps": tuple(data["steps"])})


def with_current_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data with former field names replaced. In toolsim 0.2, ``method`` was called ``way``."""
    return {"method" if name == FORMER_METHOD else name: value for name, value in data.items()}


async def tools_of(case: Case) -> frozenset[str]:
    """Play a case up to its first question, and return the names of the tools in this question."""
    offered: frozenset[str] = frozenset()

    async def send(request: Request) -> Answer:
        nonlocal offered
        offered = frozenset(tool.name for tool in request.tools)
        raise _Enough

    with suppress(_Enough):
        await case.play(send)
    return offered


class _Enough(BaseException):
    """Ends a case at its first question. It is derived from BaseException, because a case might catch Exception."""


def sample(cases: Sequence[Case], size: int | None, seed: int) -> list[Case]:
    """Return a sample of ``size`` cases (None: all), in their original order. The seed determines the sample."""
    if size is None or size >= len(cases):
        return list(cases)
    chance = random.Random(f"{seed}:{cases[0].suite if cases else ''}")
    return [cases[place] for place in sorted(chance.sample(range(len(cases)), size))]


def data_file(name: str) -> Any:
    """Return the content of one of the evaluation's JSON files."""
    return json.loads(files("toolsim.eval").joinpath(name).read_text("utf-8"))
