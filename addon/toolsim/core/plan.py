"""What an answer needs to know about its request: tools, choice, limits, and how the client wants it written.

Plain frozen values. ``Policy`` is the operator's, ``Plan`` one request's; both only say what was decided.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from toolsim.core.events import ToolKind
from toolsim.core.outputs import Outputs

ApiName = Literal["responses", "chat", "messages"]
"""The name of an API; ``wire.dialect.APIS`` has the object that speaks it."""
Engine = Literal["unknown", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio"]
"""The server behind a backend's address."""
Feature = Literal["tools", "constraint", "files"]
"""Features that not every backend supports: native tools, an enforced form of calls, documents in messages."""

FIND_TOOLS = "find_tools"
"""Our own tool with which a model looks up others, and the reason for the round that follows its call."""
GUESSED_CALL = "GUESSED_CALL"
"""An invalid call of a tool that the model knows only by name: it counts as such a look-up too."""
OutputMode = Literal["openai-json", "obsidian-xml"]
"""The form of calls for the client."""
OUTPUT_MODES: Mapping[str, OutputMode] = {
    **dict.fromkeys(("openai-json", "openai_json", "openai"), "openai-json"),
    **dict.fromkeys(("obsidian-xml", "obsidian_xml", "obsidian"), "obsidian-xml"),
}
"""Its spellings, as the predecessor accepted them."""

_FREE_FORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool that the client runs, in one shape for all APIs and all wrappings."""

    name: str
    """What the model reads and writes (``ns__name`` inside a namespace)."""
    wire_name: str
    """What the client calls it, beside ``namespace``."""
    kind: ToolKind = "function"
    """``custom``: the model sees one string parameter ``input``. Others: ``wire/local_tools.py``."""
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """The client's JSON schema as sent, None for any object."""
    strict: bool = False
    namespace: str | None = None
    grammar: str | None = None
    """The format of a custom tool's input."""
    encrypted: tuple[str, ...] = ()
    """The parameters whose values the client believes to be encrypted, unless the call says otherwise."""

    @property
    def must_fit(self) -> bool:
        """Whether a call that does not fit the schema cannot be represented at all."""
        return self.kind not in ("function", "custom")

    @property
    def declared(self) -> Mapping[str, Any]:
        """The schemas of its parameters, by their names, as far as its own schema has them."""
        properties = (self.parameters or {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def shown_parameters(self) -> Mapping[str, Any]:
        """The schema that the model sees: a custom tool is a function with one string parameter ``input``."""
        return _FREE_FORM if self.kind == "custom" else self.parameters or {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The client's ``tool_choice``.

    ``names`` limits it (model names): a named function is ``required`` with one name; None = all.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings that suit certain models (``proxy/options/profiles.py`` reads them)."""

    name: str
    models: tuple[str, ...]
    """Patterns of their names, as of files; case does not count."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Fields of a policy, by name."""
    engine: str = ""
    """The engine with which they were measured, "" if that is not known."""
    toolsim: str = ""
    """The version with which they were measured, likewise."""

    def nearness(self, model: str) -> int:
        """Return how many characters of its best pattern for a model are literal, -1 if none matches."""
        fitting = [pattern for pattern in self.models if fnmatchcase(model.lower(), pattern.lower())]
        return max((len(pattern) - sum(map(pattern.count, "*?")) for pattern in fitting), default=-1)


def nearest_profile(profiles: tuple[Profile, ...], model: str) -> Profile | None:
    """Return the profile whose pattern is the most specific one for a model, the first of several."""
    found = max(profiles, key=lambda profile: profile.nearness(model), default=None)
    return found if found is not None and found.nearness(model) >= 0 else None


_MODEL = b'"model"'
_NAMED = re.compile(_MODEL + rb'\s*+:\s*+"([^"\\]*+)"')


def _models_in(body: bytes) -> set[str]:
    """Return what stands under the name of ``model`` anywhere in a body; nothing of a compressed one."""
    names: set[str] = set()
    place = body.find(_MODEL)
    while place >= 0:
        if (found := _NAMED.match(body, place)) is not None:
            names.add(found[1].decode("utf-8", "replace"))
        place = body.find(_MODEL, place + 1)
    return names


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's options; ``proxy/options/table.py`` documents each one.

    If an option may be ``auto`` and the backend's engine decides, the default is the value of ``auto`` for an unknown
    engine: ``request/engine.py`` resolves it for each request.
    """

    backend: ApiName | Literal["auto"] = "auto"
    engine: Engine | Literal["auto"] = "unknown"
    manifest_role: Literal["auto", "developer", "system", "user"] = "auto"
    manifest: str = "auto"
    catalog_budget: int = 0
    may_look_up: bool = True
    """Whether a round may follow in which the model is shown the tools that it looks up; not an option."""
    history: Literal["auto", "bracketed", "tagged"] = "auto"
    sentinel: str = "tool_call"
    use_tool: bool = True
    repair: Literal["safe", "off"] = "safe"
    untagged: Literal["on", "off", "all"] = "on"
    strict_policy: Literal["error", "message"] = "error"
    stream_arguments: Literal["buffered", "incremental"] = "buffered"
    output_mode: OutputMode = "openai-json"
    responses_output_mode: OutputMode = "openai-json"
    stop_after_tools: Literal["auto", "on", "off"] = "auto"
    stop_after_tools_mode: Literal["burst", "first"] = "burst"
    suppress_tail_after_tools: bool = False
    parallel_tool_calls: bool = True
    tool_block_max: int = 0
    tool_block_dedup: bool = False
    tool_block_delimiter: str = "\n"
    tool_allowlist: frozenset[str] = frozenset()
    tool_denylist: frozenset[str] = frozenset()
    mode: Literal["auto", "inject", "native"] = "inject"
    constrain: Literal["auto", "off", "json_schema", "gbnf", "structural_tag"] = "off"
    max_tool_args_bytes: int = 200_000
    max_tool_output_bytes: int = 200_000
    reasoning: Literal["drop", "include"] = "drop"
    forward_hosted_tools: bool = False
    sse_telemetry: bool = False
    tool_use_mode: Literal["", "enforced", "relaxed", "disabled", "withheld"] = ""
    """``withheld`` is not a value of the option: a round that may call none of the tools that the last one could."""
    fallback_retry_count: int = 0
    request_overrides: str = ""
    request_defaults: str = ""
    transforms: frozenset[str] = frozenset()
    retry: int = 0
    unknown_tool: Literal["text", "call", "retry"] = "text"
    second_opinion: Literal["off", "undeclared", "on"] = "undeclared"
    fix_empty_final: bool = False
    fix_empty_final_disable_tools: bool = True
    fix_empty_final_text: str = "Now answer the question in words, from what the tools have returned."
    known_profiles: tuple[Profile, ...] = ()
    """Those of which one may still replace some of these values, once the model is known: see ``for_model``."""
    profile: str = ""
    """The name of the one that has."""

    def for_model(self, model: str) -> Policy:
        """Return the policy for a request's model: this one, with the values of the nearest profile in it."""
        if not self.known_profiles:
            return self
        found = nearest_profile(self.known_profiles, model)
        if found is None:
            return replace(self, known_profiles=())
        return replace(self, **dict(found.fields), profile=found.name, known_profiles=())

    def excludes(self, names: Collection[str]) -> bool:
        """Return whether the operator's lists exclude a tool that has these names."""
        is_unlisted = bool(self.tool_allowlist) and self.tool_allowlist.isdisjoint(names)
        return is_unlisted or not self.tool_denylist.isdisjoint(names)

    @property
    def asks_again(self) -> bool:
        """Whether an answer may take several turns of the model."""
        asks = self.retry or self.fix_empty_final or self.unknown_tool == "retry" or self.falls_back
        has_opinion = self.second_opinion == "on" or any(
            dict(profile.fields).get("second_opinion") == "on" for profile in self.known_profiles
        )
        return bool(asks or self.catalog_budget or has_opinion)

    def may_ask_again(self, body: bytes) -> bool:
        """Return whether the answer to a request may, by the models that its bytes name: not all need be parsed."""
        if not (self.asks_again and self.known_profiles):
            return self.asks_again
        names = _models_in(body)
        return not names or any(self.for_model(name).asks_again for name in names)

    @property
    def falls_back(self) -> bool:
        """Whether a provider's error is answered with one more question, without tools."""
        return self.tool_use_mode == "relaxed" and self.fallback_retry_count > 0


@dataclass(frozen=True, slots=True)
class StoredAs:
    """A request at a proxy with a store: its answer is stored under ``id``, unless it has ``store: false``.

    ``echo``: fields that the answer repeats from the original request, before its references were resolved.
    """

    id: str
    echo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the client wants its answer written: everything that a writer needs from a request."""

    stream: bool = False
    model: str = ""
    include_usage: bool = False
    """Whether a chat stream has a chunk with the usage."""
    legacy_functions: bool = False
    """Whether calls have chat's old shape, ``function_call``."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a Response that come from its request."""
    id: str = ""
    """The id under which the answer is stored, "" if it is not. Items of a stored answer need ids that no other has."""
    compacts: bool = False
    """Whether it is a summary of the conversation, as one item (``wire/responses/compaction.py``)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one answer needs to know about its request."""

    client: ApiName
    backend: ApiName
    form: AnswerForm = AnswerForm()
    tools: tuple[Tool, ...] = ()
    """Those on offer: ``tool_choice`` and the operator's lists have masked the others."""
    masked: frozenset[str] = frozenset()
    """The names of those others."""
    listed: tuple[Tool, ...] = ()
    """Those that the catalogue shows, whatever the choice; none if it is not written. A ``Declaration`` adds others."""
    only_named: frozenset[str] = frozenset()
    """The names of those that the catalogue shows by name alone (``request/names_first.py``)."""
    named: frozenset[str] = frozenset()
    """The names of those that the model may call and has to look up first; the tool that does it is then among
    ``tools``."""
    any_strict: bool = False
    """Whether any declared tool is strict, on offer or not."""
    tool_choice: ToolChoice = ToolChoice()
    one_call: bool = False
    stops_after_tools: bool = False
    """Whether the first other text after a call ends the turn."""
    choices: int = 1
    """Chat's ``n``."""
    policy: Policy = Policy()
    first_number: int = 1
    """The number of the first call of this answer."""
    answer_format: Mapping[str, Any] | None = None
    """The flat ``text.format`` that an answer in words has to obey, None for plain text."""
    constraint: Mapping[str, Any] | None = None
    """The flat format with which the backend is to enforce calls, None if we only ask in words."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the backend's body."""
    attempts: frozenset[Feature] = frozenset()
    """The features in use that the backend may refuse, and that the request can do without."""
    after_outputs: bool = False
    """Whether the conversation ends with outputs of tools."""
    may_invent: bool = False
    """Whether an answer that is nothing but an invented call is asked for in words (``response/invented.py``)."""
    outputs: Outputs = Outputs()
    """All outputs, none if a call that the model quotes from them counts."""
    asks: frozenset[str] = frozenset()
    """In a round (``rounds/``): the reasons for asking the model again."""
    hosted: frozenset[str] = frozenset()
    """The names of the tools that are run between the rounds, whose calls the client does not see as such."""
    begun: str = ""
    """The call with which this answer continues, as far as an earlier round got."""

    @property
    def stream(self) -> bool:
        """Whether the client reads the answer as a stream of events."""
        return self.form.stream

    @property
    def legacy_functions(self) -> bool:
        """Whether the answer has chat's old ``function_call`` shape, which holds one call."""
        return self.form.legacy_functions

    @property
    def reads_untagged(self) -> bool:
        """Whether calls without our tag count: a backend that enforces calls writes them so, whatever is set."""
        return self.constraint is not None or self.policy.untagged != "off"

    @property
    def announces_early(self) -> bool:
        """Whether calls may be announced before they are complete.

        Not if something is decided once a call is complete: its XML beside it, dropping a duplicate.
        """
        policy = self.policy
        changes = policy.output_mode != "openai-json" or policy.tool_block_dedup
        return self.stream and policy.stream_arguments == "incremental" and not changes
