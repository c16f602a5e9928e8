"""The operator's decisions about requests and answers, and the profiles that change them for certain models.

Most options set one field of ``Policy`` and have the same default and values as that field. Such an option is declared
by its field alone (see ``option``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from toolsim.core.custom_forms import CustomForm

ApiName = Literal["responses", "chat", "messages"]
"""The name of an API; ``wire.apis.APIS`` maps it to its implementation."""
Engine = Literal["unknown", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio"]
"""The inference server behind a backend's address."""
OutputMode = Literal["openai-json", "obsidian-xml"]
"""The form of the calls that the client receives."""
OUTPUT_MODES: Mapping[str, OutputMode] = {
    **dict.fromkeys(("openai-json", "openai_json", "openai"), "openai-json"),
    **dict.fromkeys(("obsidian-xml", "obsidian_xml", "obsidian"), "obsidian-xml"),
}
"""Maps the accepted names of output modes, including the names that toolsim's predecessor used, to the modes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings that work well for certain models (``proxy/options/profiles.py`` reads them)."""

    name: str
    models: tuple[str, ...]
    """Glob patterns that match names of models, regardless of case."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Names and values of fields of ``Policy``."""
    engine: str = ""
    """The inference server used to measure the profile; "" if unknown."""
    toolsim: str = ""
    """The version of toolsim used to measure the profile; "" if unknown."""

    def specificity(self, model: str) -> int:
        """Return the number of literal characters in the pattern that best matches a model, or -1 if no pattern
        matches.
        """
        fitting = [pattern for pattern in self.models if fnmatchcase(model.lower(), pattern.lower())]
        return max((len(pattern) - sum(map(pattern.count, "*?")) for pattern in fitting), default=-1)


def most_specific_profile(profiles: tuple[Profile, ...], model: str) -> Profile | None:
    """Return the profile with the most specific pattern that matches a model, or None if no profile matches.

    The first of several equally specific profiles is returned.
    """
    found = max(profiles, key=lambda profile: profile.specificity(model), default=None)
    return found if found is not None and found.specificity(model) >= 0 else None


_MODEL = b'"model"'
_NAMED = re.compile(_MODEL + rb'\s*+:\s*+"([^"\\]*+)"')


def _models_in(body: bytes) -> set[str]:
    """Return the values of all ``model`` keys in a body, at any depth. The result is empty for a compressed body."""
    names: set[str] = set()
    place = body.find(_MODEL)
    while place >= 0:
        if (found := _NAMED.match(body, place)) is not None:
            names.add(found[1].decode("utf-8", "replace"))
        place = body.find(_MODEL, place + 1)
    return names


def option(default: str | int | bool, help: str, *, minimum: int = 0) -> Any:
    """Return a field of ``Policy`` that is also an option of the same name.

    The field's ``Literal`` type determines the choices of the option. ``minimum`` is the minimum value of a number.
    """
    return field(default=default, metadata={"help": help, "minimum": minimum})


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's decisions.

    ``proxy/options/table.py`` contains the options whose values differ from those of their fields. If an option's
    ``auto`` value depends on the backend's engine, the default here is the value for an unknown engine.
    ``request/engine.py`` resolves ``auto`` for each request.
    """

    backend: ApiName | Literal["auto"] = "auto"
    engine: Engine | Literal["auto"] = "unknown"
    manifest_role: Literal["auto", "developer", "system", "user"] = option(
        "auto",
        "Role of the message that shows the tools to the model. Use user if a gateway drops system messages. auto: "
        "developer for backends with the Responses API, and system for all other backends.",
    )
    manifest: str = "auto"
    catalog_budget: int = option(
        0,
        "Maximum size of the complete tool catalog, in characters; 0 = no limit. Above this size, the prompt lists "
        "each tool on one line, with its name and the first line of its description. The model looks up complete "
        "definitions with find_tools, within the same answer. If the conversation already contains a call to a tool, "
        "the prompt also shows the tool's definition at the first such call.",
    )
    may_look_up: bool = True
    """Whether toolsim can run another round that shows the model the tools that it has looked up. Not set by an option.
    """
    history: Literal["auto", "bracketed", "tagged"] = option(
        "auto",
        "Form in which the prompt shows earlier calls to the model. auto: the form that suits the manifest, currently"
        " always tagged. tagged: the same form as new calls, without ids; each output repeats the name and arguments "
        "of its call. bracketed: one line in brackets per call, with ids, which the model cannot confuse with the "
        "form for new calls; each output refers to its call by id.",
    )
    sentinel: str = "tool_call"
    use_tool: bool = True
    repair: Literal["safe", "off"] = option(
        "safe",
        "Repair of calls whose JSON is malformed, or whose values do not have the types that the tool's schema "
        "requires. Values for strict tools are never changed. safe: toolsim repairs a call only if the result matches"
        " the schema. off: a malformed call stays text, and toolsim passes on values of the wrong type with a "
        "warning.",
    )
    untagged: Literal["on", "off", "all"] = "on"
    strict_policy: Literal["error", "message"] = option(
        "error",
        "How to handle a call that violates a strict tool's schema. error: the answer fails (HTTP 422, or an error "
        "event in a stream). message: the assistant's text describes the error.",
    )
    stream_arguments: Literal["buffered", "incremental"] = option(
        "buffered",
        "How toolsim streams the arguments of a call. buffered: toolsim sends a call once it is complete and valid. "
        "incremental: toolsim streams the arguments for non-strict tools as they are generated. This applies to calls "
        "in the model's text and to structured calls from the backend. If a call turns out to be malformed, it stays "
        "incomplete, and the answer ends as truncated.",
    )
    output_mode: OutputMode = "openai-json"
    responses_output_mode: OutputMode = "openai-json"
    stop_after_tools: Literal["auto", "on", "off"] = "auto"
    stop_after_tools_mode: Literal["burst", "first"] = "burst"
    suppress_tail_after_tools: bool = False
    parallel_tool_calls: bool = True
    tool_block_max: int = option(
        0,
        "Maximum number of calls in one answer; 0 = no limit. toolsim drops all further calls.",
    )
    tool_block_dedup: bool = option(
        False,
        "Drop each call that repeats an earlier call in the same answer, with the same arguments.",
    )
    tool_block_delimiter: str = option(
        "\n",
        r"Text between <use_tool> blocks in output mode obsidian-xml; \n stands for a line break, \t for a tab.",
    )
    tool_allowlist: frozenset[str] = frozenset()
    tool_denylist: frozenset[str] = frozenset()
    mode: Literal["auto", "inject", "native"] = option(
        "inject",
        "Method for passing tools to the backend. inject: as text in the prompt. native: as the client's original "
        "tools, to a backend with the same API; toolsim searches the answers for calls that the backend's parser "
        "missed. auto: native, until the backend rejects a model's tools or misses one of its calls; then inject for "
        "this model.",
    )
    constrain: Literal["auto", "off", "json_schema", "gbnf", "structural_tag"] = "off"
    max_tool_bytes: int = option(
        200_000,
        "Maximum size, in bytes, of the arguments of a call and of a tool output. A call with larger arguments stays "
        "text, or fails if its tool is strict. A larger output is replaced with an error object.",
        minimum=1,
    )
    reasoning: Literal["drop", "include"] = option(
        "drop",
        "How to handle earlier reasoning that a client sends back. drop: the model does not see the reasoning. "
        "include: the reasoning precedes the model's text and calls, in <think> tags, as models that reason across "
        "several calls expect.",
    )
    forward_hosted_tools: bool = option(
        False,
        "Forward hosted tools, which the backend itself would run (such as web_search and mcp), even if the request "
        "also has functions. By default, if a request has functions, toolsim drops its hosted tools, and lists them "
        "in a warning and in the header x-toolsim-dropped-tools. It rejects the request if tool_choice requires a "
        "dropped tool. If a request has only hosted tools, toolsim always forwards them to a backend with the "
        "client's API, and rejects the request if the backend has a different API.",
    )
    sse_telemetry: bool = option(
        False,
        "End each event stream with a comment that repeats the log line as JSON. Some clients cannot parse comments.",
    )
    tool_use_mode: Literal["", "enforced", "relaxed", "disabled", "withheld"] = ""
    """``withheld`` is not an option value. It marks a round in which no tool may be called, although the manifest still
    shows the tools of the previous round.
    """
    request_overrides: str = option(
        "",
        "JSON object with fields to set in every request that has tools, regardless of the client's values; null "
        "removes a field. Fields that only the client or toolsim can set, such as model, messages, tools and stream, "
        "are not allowed.",
    )
    request_defaults: str = option(
        "",
        "JSON object with fields to add to every request that has tools, unless the client sets them. The "
        "restrictions of toolsim_request_overrides also apply to this option.",
    )
    transforms: frozenset[str] = frozenset()
    retry: int = option(
        0,
        "Maximum number of retries within one answer, from 0 to 3. toolsim retries if a call violates a strict tool's"
        " schema, is malformed beyond repair, is too large, is cut off, or names a tool that was not offered. It also"
        " retries if an answer lacks a required call or the required JSON. In a retry, the model sees its faulty "
        "answer and the error. toolsim does not withdraw text that it has already streamed.",
    )
    loop_limit: int = option(
        6,
        "Number of identical calls with identical outputs after which toolsim ends the turn, with an answer that "
        "describes the loop; 0 = no limit. At half of this number, the prompt points out the repetition to the model."
        " A new output, a call that the model has not made before, or a new user message resets the count.",
    )
    unknown_tool: Literal["text", "call", "retry"] = option(
        "text",
        "How to handle a call to an undeclared tool. If the request has strict tools, such a call counts as a violation"
        " (see toolsim_strict_policy). Regardless of this option, toolsim never passes on calls to tools that "
        "tool_choice or toolsim_tool_allowlist excludes. text: the call stays text; if the backend sends a structured"
        " call, toolsim describes it in text. call: the client receives the call, as it would from most servers. Most"
        " agent programs report the error to the model, but some stop. retry: toolsim retries once, or as often as "
        "toolsim_retry allows. If the last retry fails, the call becomes text.",
    )
    second_opinion: Literal["off", "undeclared", "on"] = option(
        "undeclared",
        "Additional rounds that prevent unnecessary calls. undeclared: some answers to the user consist only of a call "
        "to an undeclared tool, written as text, such as a greeting in JSON. toolsim then requests a plain-text "
        "answer in an additional round without tools. on: like undeclared, but toolsim also checks optional calls in "
        "direct response to the user. It shows the model the tool and the user's request, and asks whether the tool "
        'fits. After a "no", it asks about the call itself. toolsim drops the call only after two clear "no" answers.'
        " If no call remains, it requests a plain-text answer in an additional round. The questions take one or two "
        "rounds for each tool that the model calls. toolsim does not stream any part of a call until these questions "
        "have been answered. off: toolsim passes on every call.",
    )
    fix_empty_final: Literal["off", "on", "with_tools"] = option(
        "off",
        "Retry after an empty answer to a tool output. on: the retry offers no tools, so the model must answer in "
        "plain text. with_tools: the retry offers the same tools. off: no retry; the answer stays empty.",
    )
    known_profiles: tuple[Profile, ...] = ()
    """All profiles. Once a request's model is known, the values of the matching profile replace values of the policy
    (see ``for_model``).
    """
    profile: str = ""
    """The name of the profile that was applied."""
    forms: tuple[CustomForm, ...] = ()
    """The call forms that the profile declares."""
    backend_model: str = ""
    """The model's name at the backend; "" means the client's name (``toolsim_models``)."""

    def model_at_backend(self, model: str) -> str:
        """Return the backend's name for the model in a request. Profiles and other facts about models are stored under
        this name.
        """
        return self.backend_model or model

    def for_model(self, model: str) -> Policy:
        """Return the policy for a request's model, with the values of the most specific profile that matches."""
        if not self.known_profiles:
            return self
        found = most_specific_profile(self.known_profiles, self.model_at_backend(model))
        if found is None:
            return replace(self, known_profiles=())
        return replace(self, **dict(found.fields), profile=found.name, known_profiles=())

    def excludes(self, names: Collection[str]) -> bool:
        """Return whether the operator's lists exclude a tool with these names."""
        is_unlisted = bool(self.tool_allowlist) and self.tool_allowlist.isdisjoint(names)
        return is_unlisted or not self.tool_denylist.isdisjoint(names)

    @property
    def needs_rounds(self) -> bool:
        """Whether an answer under this policy can take several rounds."""
        asks = self.retry or self.fix_empty_final != "off" or self.unknown_tool == "retry" or self.falls_back
        has_opinion = self.second_opinion == "on" or any(
            dict(profile.fields).get("second_opinion") == "on" for profile in self.known_profiles
        )
        return bool(asks or self.catalog_budget or has_opinion)

    def may_need_rounds(self, body: bytes) -> bool:
        """Return whether an answer to a request with this ``body`` can take several rounds."""
        if not (self.needs_rounds and self.known_profiles):
            return self.needs_rounds
        names = _models_in(body)
        return not names or any(self.for_model(name).needs_rounds for name in names)

    @property
    def falls_back(self) -> bool:
        """Whether toolsim runs another round without tools after an error from the backend."""
        return self.tool_use_mode == "relaxed"
