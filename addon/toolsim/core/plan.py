"""The parts of a request that its answer depends on: tools, tool choice, limits, and the form of the answer.

All classes are immutable data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolsim.core.events import ToolKind
from toolsim.core.outputs import Outputs
from toolsim.core.policy import ApiName, Policy

Feature = Literal["tools", "constraint", "files", "format"]
"""Features that some backends lack: native tools (``tools``), enforcement of calls (``constraint``), documents in
messages (``files``), and enforcement of the answer format (``format``).
"""

FIND_TOOLS = "find_tools"
"""Name of the tool that toolsim provides for looking up other tools. Also the reason code for the round that follows a
lookup.
"""
GUESSED_CALL = "GUESSED_CALL"
"""Reason code for the round that follows an invalid call to a tool that the model has seen only by name. The call is
treated as a lookup of the tool.
"""

_FREE_FORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the client runs, in a shape that is the same for all APIs."""

    name: str
    """The tool's name as the model reads and writes it (``ns__name`` for a tool in a namespace)."""
    wire_name: str
    """The client's name for the tool, without the ``namespace``."""
    kind: ToolKind = "function"
    """The kind of tool. For ``custom``, the model sees one string parameter ``input``. ``wire/local_tools.py``
    describes the other kinds.
    """
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """The client's JSON schema, exactly as sent. None means that any object is accepted."""
    strict: bool = False
    namespace: str | None = None
    grammar: str | None = None
    """The grammar of a custom tool's input, preceded by a line that names its syntax; None for any text."""
    examples: tuple[Mapping[str, Any], ...] = ()
    """Arguments that the client provides as examples (``input_examples``)."""
    encrypted: tuple[str, ...] = ()
    """Parameters that the client declares as encrypted. Codex treats their values as ciphertext, unless the call has
    its own list of encrypted parameters that omits them.
    """
    deferred: bool = False
    """Whether the schema is shown only after a search has found the tool. Calls are checked against it in any case."""

    @property
    def must_fit(self) -> bool:
        """Whether a call to this tool must match the schema, because the client cannot represent any other call."""
        return self.kind not in ("function", "custom")

    @property
    def declared(self) -> Mapping[str, Any]:
        """The schemas of the parameters that the tool's schema declares, by parameter name."""
        properties = (self.parameters or {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def shown_parameters(self) -> Mapping[str, Any]:
        """The schema that the model sees. A custom tool has a single string parameter, ``input``."""
        return _FREE_FORM if self.kind == "custom" else self.parameters or {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The client's ``tool_choice``.

    ``names`` limits the choice to tools with these model names; None allows all tools. If the client requires one
    particular function, ``mode`` is ``required`` and ``names`` contains only its name.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class StoredAs:
    """The ID under which the answer to a request is stored, unless the request has ``store: false``.

    ``echo`` contains the request fields that the stored answer repeats. These fields are copied before references such
    as ``previous_response_id`` are resolved.
    """

    id: str
    echo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of answer that the client expects: all facts from a request that a writer needs."""

    stream: bool = False
    model: str = ""
    include_usage: bool = False
    """Whether a streamed chat answer ends with a chunk that contains the usage."""
    legacy_functions: bool = False
    """Whether calls have the legacy shape of Chat Completions, ``function_call``."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a Response that are copied from its request."""
    id: str = ""
    """The ID under which the answer is stored; "" if it is not stored. Items of a stored answer need globally unique
    IDs.
    """
    compacts: bool = False
    """Whether the answer is a summary of the conversation, as one item (``wire/responses/compaction.py``)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a request that its answer depends on."""

    client: ApiName
    backend: ApiName
    form: AnswerForm = AnswerForm()
    tools: tuple[Tool, ...] = ()
    """The tools that the model may call: all declared tools except those that ``tool_choice`` or the operator's lists
    exclude.
    """
    masked_tools: frozenset[str] = frozenset()
    """Names of the declared tools that ``tool_choice`` or the operator's lists exclude."""
    visible_tools: tuple[Tool, ...] = ()
    """The tools that the manifest shows, even if ``tool_choice`` excludes them; empty if there is no manifest. Tools
    from a ``Declaration`` are not included.
    """
    name_only_tools: frozenset[str] = frozenset()
    """Names of the tools that the manifest shows only by name (``request/deferred_tools.py``)."""
    tools_to_look_up: frozenset[str] = frozenset()
    """Names of the tools that the model has to look up before calling them. If there are any, ``tools`` also contains
    the lookup tool.
    """
    finder: str = ""
    """Name of the tool that the model uses to look up tools shown only by name; "" if there is no such tool."""
    any_strict: bool = False
    """Whether any declared tool is strict, including tools that are not offered."""
    tool_choice: ToolChoice = ToolChoice()
    one_call: bool = False
    stops_after_tools: bool = False
    """Whether the first text after a call, other than whitespace, ends the turn."""
    choices: int = 1
    """The number of choices (``n`` in Chat Completions)."""
    policy: Policy = Policy()
    first_number: int = 1
    """The number of the first call in this answer."""
    answer_format: Mapping[str, Any] | None = None
    """The format, in the flat shape of ``text.format``, that a text answer must follow, or None for plain text."""
    json_only: bool = False
    """Whether the answer itself has to be JSON, which is possible only if no tools are offered. An answer that violates
    the format causes a retry or an error.
    """
    may_retry_json: bool = False
    """Whether a further round can follow an answer that violates ``answer_format``."""
    is_verbatim: bool = False
    """Whether the request and the answer are forwarded unchanged, unless the answer violates ``answer_format``."""
    constraint: Mapping[str, Any] | None = None
    """The answer format that makes the backend enforce valid calls, in the flat shape of ``text.format``. None if calls
    are only requested in the prompt.
    """
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields for the body of the request to the backend."""
    attempts: frozenset[Feature] = frozenset()
    """Optional features that the request uses and that the backend might reject."""
    after_outputs: bool = False
    """Whether the conversation ends with tool outputs."""
    may_invent: bool = False
    """Whether to ask the model again, for plain text, if its answer consists only of a call to an undeclared tool
    (``response/faults.py``).
    """
    outputs: Outputs = Outputs()
    """The tool outputs in the request, used to detect calls that the model only quotes from them. Empty if quoted calls
    count as calls.
    """
    retries_allowed: frozenset[str] = frozenset()
    """Reason codes of the errors in an answer that can cause another round (``rounds/``)."""
    hosted: frozenset[str] = frozenset()
    """Names of the tools that toolsim itself runs between rounds. The client does not run calls to these tools."""
    partial_call: str = ""
    """The partial call of an earlier round that this answer continues."""

    @property
    def stream(self) -> bool:
        """Whether the client reads the answer as a stream of events."""
        return self.form.stream

    @property
    def backend_model(self) -> str:
        """The model's name at the backend."""
        return self.policy.model_at_backend(self.form.model)

    @property
    def legacy_functions(self) -> bool:
        """Whether the answer has the ``function_call`` shape of Chat Completions, with room for only one call."""
        return self.form.legacy_functions

    @property
    def reads_untagged(self) -> bool:
        """Whether text in the form of a call counts as a call even without toolsim's tag.

        This is always the case if the backend enforces calls, because the model then writes them without a tag.
        """
        return self.constraint is not None or self.policy.untagged != "off"

    @property
    def announces_early(self) -> bool:
        """Whether calls can be announced before they are complete.

        This is not possible if XML follows each call, or if duplicate calls are removed. The same rule applies to
        non-streamed answers, so that the order of their calls is the same as in streamed answers.
        """
        policy = self.policy
        changes = policy.output_mode != "openai-json" or policy.tool_block_dedup
        return policy.stream_arguments == "incremental" and not changes
