"""Converts a client's request to a backend's request and the plan for the answer.

The rewrite has three stages, each with one input and one output, so that a loop over several rounds can repeat only the
last stage::

    read      body bytes ─▶ ClientRequest        the client's API; 400s for its errors
    plan      ClientRequest, Policy ─▶ Plan      the offered tools, the number of calls, the number of the first call
    compose   ClientRequest, Plan ─▶ body bytes  the backend's API; tools and history as text

``compose`` writes the request in six steps:

1. ``to_items`` converts the items to types that the backend's API can represent. Any other item is dropped and
   reported, or causes a 400 if dropping it would change the question.
2. Backend-run tools that are still allowed (``backend_tools``) are kept, together with their history items.
3. ``flatten`` converts calls and outputs to records in messages, and merges adjacent messages with the same role.
4. If tools are offered, or were offered earlier in the conversation, the manifest is placed before the conversation.
5. Further instructions about tools are appended to user messages (``prompt_suffix``), so that the beginning of the
   prompt never changes.
6. ``compose`` writes the messages into the client's own body, or into a new body for another API.

A backend with native tool support (``toolsim_mode=native``) receives the client's own body, without ``compose``. The
answer is parsed like any other, so that a call that the backend's parser missed still counts.

A request without tools to a backend with the client's API is not rewritten. It is forwarded byte for byte, unless the
backend has another name for the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Literal

from toolsim.core.conversation import Call, CallOutput, ClientRequest, Demand, Item, last_item
from toolsim.core.errors import BadRequest
from toolsim.core.events import Ended, Opened, TextDelta
from toolsim.core.outputs import Outputs
from toolsim.core.plan import FIND_TOOLS, AnswerForm, Feature, Plan, StoredAs, Tool, ToolChoice
from toolsim.core.policy import OUTPUT_MODES, ApiName, Policy
from toolsim.core.report import Report, entry, loggable_name
from toolsim.request.backend_tools import excludes_any, with_backend_tools
from toolsim.request.constrain import constraint, grammar_fields
from toolsim.request.deferred_tools import FINDER, names_only
from toolsim.request.engine import engine_fields, resolve_auto
from toolsim.request.fields import with_fields
from toolsim.request.loops import LOOP_ENDED, answer_about, loop_at_end
from toolsim.request.manifest import manifest, whole_answer_rule
from toolsim.request.prompt_suffix import with_suffixes
from toolsim.request.strict_tools import check_strict
from toolsim.request.transcript import flatten, insert_manifest, is_longer
from toolsim.request.transforms import native_body, outputs_shown, tools_shown
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS, backend_of, translated_path
from toolsim.wire.content import CIPHERTEXT, with_parts_for
from toolsim.wire.hosted_items import SEARCHES, search_kind
from toolsim.wire.json_codec import TOO_DEEP, dump, read_body
from toolsim.wire.json_fields import string
from toolsim.wire.tools import offered_natively

# Range of the first call's number if the history is stored at the backend. See ``first_number``.
_STORED_START = 1_000
_STORED_RANGE = 900_000
_MAX_TOOLS_BYTES = 1024 * 1024
# Fields that can require an answer in JSON, in the APIs that ``wire`` reads.
_FORMATS = ("response_format", "text", "output_config")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The request for the backend, and the ``plan`` for its answer."""

    plan: Plan
    body: bytes
    """The body as JSON in UTF-8."""
    path: str
    """The path, including the query."""
    items: tuple[Item, ...] = ()
    """The conversation as the client sent it, for the log and web pages."""
    asked: Mapping[str, Any] = MappingProxyType({})
    """The body of the client's request, as a JSON object."""
    answer: bytes = b""
    """A complete answer in the backend's format, to be used instead of calling the model, or b""."""
    passes: bool = False
    """Whether the request is forwarded byte for byte. The ``plan`` is then used only to check the answer."""


def rewrite_request(
    api_name: ApiName,
    path: str,
    body: bytes,
    policy: Policy,
    *,
    output_mode: str | None,
    report: Report,
    refused: Collection[tuple[str, Feature]] = (),
    stored_as: StoredAs | None = None,
    is_round: bool = False,
    is_auxiliary: bool = False,
) -> Rewritten | None:
    """Rewrite a client's request for the backend in ``policy``, and fill ``report``.

    ``api_name`` is the client's API. ``output_mode`` is the value of the client's header, which overrides the policy.
    ``refused`` contains features that the backend has rejected for a model. ``stored_as`` is None if the answer is not
    stored. ``is_round`` is true for a later round, and ``is_auxiliary`` for an auxiliary operation, such as a token
    count. A later round or an auxiliary operation is always rewritten.

    Returns None if toolsim has nothing to change, so that the request is forwarded byte for byte. This is the case if
    the body is not a JSON object. It is also the case if the backend has the same API and the same model name, and the
    request has no tools, no calls in its history and no answer to store. However, if such a request requires a JSON
    answer, the answer has to be checked. The result is then a ``Rewritten`` with ``passes`` set, unless the backend is
    already known to ignore the format. Raises BadRequest if the request is invalid.
    """
    client = APIS[api_name]
    backend = backend_of(client, policy.backend)
    asked = read_body(body)
    if asked is None:
        return None
    report.model = string(asked.get("model"))
    report.stream = asked.get("stream") is True
    if stored_as is not None and not should_store(asked, stored_as):
        stored_as = None
    # Convert items that only toolsim can read to text, and fields in another API's format to this API's format. The
    # document is a new object if anything was converted.
    document = client.expand_opaque_items(asked)
    is_changed = document is not asked
    must_rewrite = is_round or is_auxiliary or is_changed or stored_as is not None
    model = policy.model_at_backend(report.model)
    passes = backend is client and not (must_rewrite or client.uses_tools(document) or excludes_any(document, policy))
    is_only_renamed = passes and model != report.model
    if passes and not is_only_renamed:
        demanded = _demanded(client, document)
        if demanded is None:
            return None
        if (model, "format") not in refused:
            policy, _ = resolve_auto(policy.for_model(report.model), demanded, backend, refused)
            checked = plan(demanded, backend, policy, Report(), frozenset({"format"}))
            return Rewritten(replace(checked, is_verbatim=True), b"", path, passes=True)
    report.client = client.name
    report.backend = backend.name
    policy = _with_output_mode(policy.for_model(report.model), client, output_mode)
    if is_only_renamed:
        policy = replace(policy, mode="native")
    report.profile = policy.profile
    try:
        request = read(client, document, report)
        if stored_as is not None:
            request = prepare_for_store(request, stored_as)
            is_changed = True
        request = replace(request, tool_choice=_choice(request, policy))
        policy, attempts = resolve_auto(policy, request, backend, refused)
        wanted = request.answer_format if demands_json(request, policy) else None
        if wanted is not None and (model, "format") not in refused and backend.can_demand(wanted):
            attempts |= {"format"}
        if is_auxiliary and backend is not client:
            # An auxiliary operation makes no calls, so hosted tools are not needed.
            request = replace(request, hosted=())
        if request.hosted:
            declared = request
            request = with_backend_tools(request, backend.name, policy, report)
            is_changed = is_changed or request is not declared
            if any(search_kind(tool) == "tool_search" and tool not in request.hosted for tool in declared.hosted):
                # Tool search is not available, so all tools are shown from the start.
                at_once = tuple(replace(tool, deferred=False) for tool in request.tools)
                request = replace(request, tools=at_once, first_tools=())
        planned = plan(request, backend, policy, report, attempts)
        # The tools are part of the body, so they can exceed the limit only if the body does.
        if len(body) > _MAX_TOOLS_BYTES:
            _check_tools_size(planned)
        is_format_in_prompt = planned.json_only and "format" not in attempts
        if is_only_renamed and not is_format_in_prompt:
            written = dump({**asked, "model": model}).encode()
        elif policy.mode == "native" and backend is client and not is_format_in_prompt:
            written = kept_body(request, planned, b"" if is_changed or request.form.compacts else body)
        else:
            written = compose(request, planned, report, is_round=is_round)
        if request.form.compacts:
            # A summary is requested without tools. If the model calls a tool anyway, the plan has to contain the tool,
            # so that the call is recognized and the answer is not mistaken for a summary.
            planned = replace(planned, tools=request.tools, masked_tools=frozenset(), tool_choice=ToolChoice())
        loop = loop_at_end(request.items, policy) if policy.loop_limit and not is_auxiliary else None
    except RecursionError:
        raise BadRequest(f"The request body cannot be read. {TOO_DEEP}.") from None
    if backend is not client:
        path = translated_path(path, client, backend)
    answer = b""
    if loop is not None and not request.form.compacts:
        report.warnings.append(entry(LOOP_ENDED, loggable_name(loop.call.name)))
        answer = _text_answer(backend, answer_about(loop), request)
        planned = replace(
            planned, tools=(), tool_choice=ToolChoice("none"), json_only=False, may_invent=False, attempts=frozenset()
        )
    return Rewritten(planned, written, path, request.items, asked, answer)


def _text_answer(backend: Api, text: str, request: ClientRequest) -> bytes:
    """Return a complete answer with this text, in the backend's API."""
    writer = backend.writer(AnswerForm(model=request.form.model))
    for event in (Opened(), TextDelta(text), Ended({0: "stop"})):
        writer.write(event)
    return writer.whole()


def demands_json(request: ClientRequest, policy: Policy) -> bool:
    """Return whether the answer to a request must be JSON, which is possible only if no tools are offered.

    Summaries, and answers with several choices, are never required to be JSON.
    """
    is_one = request.n == 1 and not request.form.compacts
    return request.answer_format is not None and is_one and not tools_on_offer(request, policy)


def _demanded(client: Api, document: Mapping[str, Any]) -> ClientRequest | None:
    """Parse a request that requires a JSON answer. Return None for any other request.

    None is also returned for an invalid request, so that the backend reports the error.
    """
    if not any(key in document for key in _FORMATS):
        return None
    try:
        request = client.read(document)
    except (BadRequest, RecursionError):
        return None
    return request if demands_json(request, Policy()) else None


def read(client: Api, document: Mapping[str, Any], report: Report) -> ClientRequest:
    """Parse a client's request. Raises BadRequest if it is invalid; ``param`` is the path of the invalid parameter."""
    request = client.read(document)
    report.model = request.form.model
    report.stream = request.form.stream
    report.dropped.extend(request.dropped)
    answered = {item.call_id for item in request.items if isinstance(item, CallOutput)}
    unanswered = [item for item in request.items if isinstance(item, Call) and item.call_id not in answered]
    report.warnings.extend(entry("UNANSWERED_CALL", call.name) for call in unanswered)
    report.unanswered_calls.extend(call.call_id for call in unanswered)
    report.warnings.extend("CIPHERTEXT" for note in request.dropped if note == CIPHERTEXT)
    return request


def should_store(document: Mapping[str, Any], stored_as: StoredAs) -> bool:
    """Return whether a request uses the store: its answer is stored, or it refers to stored data."""
    return bool(stored_as.echo) or document.get("store") is not False


def prepare_for_store(request: ClientRequest, stored_as: StoredAs) -> ClientRequest:
    """Return a request whose answer only toolsim stores, under toolsim's own ID.

    Raises BadRequest if the request refers to stored data in an invalid format, or requests a background answer.
    """
    if request.stored_history is not None:
        raise BadRequest("A reference to stored data has an invalid format.", "input")
    if request.body.get("background") is True:
        # The backend would also reject the request, but its error would mention a ``store`` field that the client has
        # not sent.
        message = "'background' cannot be parsed: write this JSON key without escape sequences."
        raise BadRequest(message, "background", "unsupported_parameter")
    echo = {**request.form.echo, **stored_as.echo}
    form = replace(request.form, id=stored_as.id if echo["store"] else "", echo=echo)
    return replace(request, body={**request.body, "store": False}, form=form)


def plan(
    request: ClientRequest,
    backend: Api,
    policy: Policy,
    report: Report,
    attempts: frozenset[Feature] = frozenset(),
) -> Plan:
    """Return the plan for the answer to a request.

    Raises BadRequest if a strict tool's schema is unusable, or if a required tool is not on offer.
    """
    choice = request.tool_choice
    any_strict = any(tool.strict for tool in request.tools)
    if any_strict:
        check_strict(request)
    offered = tools_on_offer(request, policy)
    if choice.mode == "required" and not offered:
        message = "'tool_choice' requires a call, but none of the tools that it allows is on offer."
        raise BadRequest(message, "function_call" if request.form.legacy_functions else "tool_choice", "invalid_value")
    names = [tool.name for tool in offered]
    is_native = policy.mode == "native" and backend.name == request.api
    listed = () if is_native else _listed(request, offered, policy)
    shortened = named = frozenset[str]()
    finder = ""
    if any(tool.deferred for tool in listed):
        finder = next((tool.name for tool in listed if tool.name in SEARCHES), "")
        if finder:
            shortened = frozenset(tool.name for tool in listed if tool.deferred)
            named = frozenset(tool.name for tool in offered if tool.deferred and finder in names)
        elif request.original_body is not None:
            # A client of the Messages API can load deferred tools with any of its own tools. The client itself shows
            # the loaded tools to the model.
            listed = tuple(tool for tool in listed if not tool.deferred)
    if policy.catalog_budget and not is_native:
        budgeted = names_only(tuple(tool for tool in listed if not tool.deferred), policy)
        shortened |= budgeted
        finder = FIND_TOOLS if budgeted else finder
        # If the entries of the offered tools fit the budget, the prompt shows them, so no lookup is needed.
        if policy.may_look_up and names_only(tuple(tool for tool in offered if not tool.deferred), policy):
            named |= budgeted.intersection(names)
    named -= _called(request)
    one_call = not (request.parallel and policy.parallel_tool_calls)
    stops = policy.stop_after_tools
    ends_turns = stops == "on" or (stops == "auto" and not APIS[request.api].text_follows_calls)
    report.mode = policy.output_mode
    report.stop_after_tools_mode = policy.stop_after_tools_mode if ends_turns else "off"
    report.tools.extend(names)
    if named and finder == FIND_TOOLS:
        # FINDER is first, because some forms of the manifest use the first tool in their example.
        offered = (FINDER, *offered)
    # If tools are withheld only in this round, the turn still counts as a turn with tools.
    json_only = demands_json(request, policy) and policy.tool_use_mode != "withheld"
    enforced: Mapping[str, Any] | None = None
    fields = engine_fields(policy.engine, policy.model_at_backend(request.form.model))
    if offered and policy.constrain != "off":
        enforces_one = one_call or request.form.legacy_functions
        untagged = policy.untagged != "off" and request.answer_format is None
        enforced = constraint(offered, choice, policy=policy, one_call=enforces_one)
        fields |= grammar_fields(offered, choice, policy=policy, one_call=enforces_one, untagged=untagged)
    return Plan(
        client=request.api,
        backend=backend.name,
        form=request.form,
        tools=offered,
        masked_tools=frozenset(tool.name for tool in request.tools).difference(names),
        visible_tools=listed,
        name_only_tools=shortened,
        tools_to_look_up=named,
        finder=finder,
        any_strict=any_strict,
        tool_choice=choice,
        one_call=one_call,
        stops_after_tools=ends_turns,
        choices=request.n,
        policy=policy,
        first_number=first_number(request),
        answer_format=request.answer_format,
        constraint=enforced,
        fields=fields,
        attempts=attempts,
        after_outputs=is_after_outputs(request),
        may_invent=bool(offered) and _may_invent(request, policy),
        json_only=json_only,
        may_retry_json=json_only and (policy.retry > 0 or "format" in attempts) and is_watched(request),
        outputs=outputs_to_match(request, policy) if offered else Outputs(),
    )


def outputs_to_match(request: ClientRequest, policy: Policy) -> Outputs:
    """Return the tool outputs to search for quoted calls. Outputs of ``find_tools`` are excluded."""
    if policy.untagged == "all":
        return Outputs()
    calls = [item for item in request.items if isinstance(item, Call)]
    is_ours = all(tool.name != FIND_TOOLS for tool in request.tools)
    lookups = {call.call_id for call in calls if is_ours and call.name == FIND_TOOLS}
    texts = [item.text for item in request.items if isinstance(item, CallOutput) and item.call_id not in lookups]
    shown = [text for text in texts if not is_longer(text, policy.max_tool_bytes)]
    if not shown:
        return Outputs()
    return Outputs.of(shown, [(call.name, call.arguments) for call in calls])


def first_number(request: ClientRequest) -> int:
    """Return the number for the answer's first call: one more than the highest number in the request's history.

    If the backend stores the history, the number is derived from a hash of the previous response's ID. If the request
    refers to a conversation instead, the entire request is hashed, because the ID of a conversation does not change.
    """
    number = request.highest_call + 1
    if request.stored_history is None:
        return number
    seed = (request.stored_history or dump(request.body)).encode()
    return max(number, _STORED_START + int.from_bytes(sha256(seed).digest()) % _STORED_RANGE)


def compose(request: ClientRequest, plan: Plan, report: Report, *, is_round: bool = False) -> bytes:
    """Return the body for the backend: the request with its tools and its call history as text.

    Raises BadRequest if the backend's API cannot represent a part that the client requires.
    """
    api = APIS[plan.backend]
    items, notes = api.to_items(request)
    if "files" not in plan.attempts:
        # The backend has rejected files before, so they are replaced with text although its API can represent files.
        items = [with_parts_for(item, None, notes) for item in items]
    keep_hosted = plan.backend == plan.client and (plan.policy.forward_hosted_tools or bool(request.hosted))
    report.dropped += notes if plan.backend == plan.client else [*request.untranslatable, *notes]
    transformed = outputs_shown(items, plan.policy.transforms) if plan.policy.transforms else items
    # Without tools and calls, the conversation contains no records, so a user's line cannot be mistaken for one.
    records = bool(plan.visible_tools) or any(isinstance(item, Call | CallOutput) for item in items)
    shown = with_suffixes(transformed, plan) if plan.visible_tools else transformed
    messages = flatten(shown, plan.policy, report, keep_hosted=keep_hosted, records=records, is_round=is_round)
    if plan.visible_tools:
        messages = insert_manifest(messages, catalog_of(plan), _manifest_role(plan))
    is_enforced = plan.answer_format is None or "format" in plan.attempts
    if plan.json_only and plan.answer_format is not None and not is_enforced and not plan.visible_tools:
        messages = insert_manifest(messages, whole_answer_rule(plan.answer_format), _manifest_role(plan))
    # If the backend enforced the client's answer format, the model could not write calls, so the manifest requests the
    # format.
    wanted: Demand = plan.constraint if plan.tools else "as sent" if is_enforced or plan.choices > 1 else None
    body = api.compose(request, messages, wanted, keep_hosted)
    return dump(_with_operator_fields(plan, {**body, **plan.fields})).encode()


def kept_body(request: ClientRequest, plan: Plan, body: bytes) -> bytes:
    """Return the body for a backend with native tool support: the client's own body without the tools that are not on
    offer.

    ``body`` is the body as the client sent it, or b"" if toolsim has changed the request.
    """
    policy = plan.policy
    has_fields = policy.request_overrides or policy.request_defaults or policy.backend_model
    if body and not (plan.masked_tools or policy.transforms or has_fields):
        return body
    offered = offered_natively(
        request.original_body or request.body, {tool.name for tool in plan.tools}, request.hosted
    )
    return dump(_with_operator_fields(plan, native_body(offered, policy.transforms))).encode()


def _with_operator_fields(plan: Plan, body: dict[str, Any]) -> dict[str, Any]:
    policy = plan.policy
    if policy.backend_model:
        body = {**body, "model": policy.backend_model}
    if not policy.request_defaults and not policy.request_overrides:
        return body
    return with_fields(body, defaults=policy.request_defaults, overrides=policy.request_overrides)


def _check_tools_size(plan: Plan) -> None:
    """Raise BadRequest if the tools are too large, because a streamed Response contains them three times."""
    carried = [tool.shown_parameters for tool in plan.tools] + [tool.description for tool in plan.tools]
    size = len(dump([carried, plan.form.echo]))
    if size > _MAX_TOOLS_BYTES:
        message = (
            f"The tools, and the parts of the request that a response repeats, are too large: got {size} bytes, "
            f"expected at most {_MAX_TOOLS_BYTES}."
        )
        raise BadRequest(message, "tools", "request_too_large")


def tools_on_offer(request: ClientRequest, policy: Policy) -> tuple[Tool, ...]:
    """Return the client's tools, except those that the tool choice or the operator's lists exclude."""
    choice = _choice(request, policy)
    if choice.mode == "none":
        return ()
    allowed = _allowed(request.tools, policy)
    return allowed if choice.names is None else tuple(tool for tool in allowed if tool.name in choice.names)


def _allowed(tools: tuple[Tool, ...], policy: Policy) -> tuple[Tool, ...]:
    """Return the tools that the operator's lists allow."""
    return tuple(tool for tool in tools if not policy.excludes((tool.name, tool.wire_name)))


def _listed(request: ClientRequest, offered: tuple[Tool, ...], policy: Policy) -> tuple[Tool, ...]:
    """Return the tools to list in the manifest, as first declared (``first_tools``).

    The manifest is kept even if no tool may be called now, as long as the conversation contains a call or the request
    is for a summary. The model has already read the manifest, and removing it would make the server process the entire
    prompt again.
    """
    is_written = offered or policy.tool_use_mode == "withheld"
    if not is_written and (policy.tool_use_mode == "disabled" or not (request.form.compacts or _called(request))):
        return ()
    return _allowed(request.first_tools, policy) or _allowed(request.tools, policy)


def _called(request: ClientRequest) -> frozenset[str]:
    return frozenset(item.name for item in request.items if isinstance(item, Call))


def _may_invent(request: ClientRequest, policy: Policy) -> bool:
    """Return whether to ask the model again, for plain text, if its answer is only a call to an undeclared tool.

    This never happens if the request is for several choices, JSON, a summary or a background answer.
    """
    is_plain = request.n == 1 and request.answer_format is None and not request.form.compacts
    may_ask = policy.second_opinion != "off" and is_plain and is_watched(request)
    return may_ask and may_call_unprompted(request, policy)


def is_watched(request: ClientRequest) -> bool:
    """Return whether a client is waiting for the answer. No client waits for a background answer."""
    return request.body.get("background") is not True


def may_call_unprompted(request: ClientRequest, policy: Policy) -> bool:
    """Return whether calls are optional, and the request does not end with a tool output."""
    return _choice(request, policy).mode == "auto" and not is_after_outputs(request)


def _choice(request: ClientRequest, policy: Policy) -> ToolChoice:
    """Return the client's tool choice, or the operator's if ``tool_use_mode`` overrides it."""
    if policy.tool_use_mode in ("disabled", "withheld"):
        return ToolChoice("none")
    # A model that had to call a tool after each output would never answer.
    if policy.tool_use_mode == "enforced" and request.tool_choice.mode == "auto" and not is_after_outputs(request):
        return replace(request.tool_choice, mode="required")
    return request.tool_choice


def is_after_outputs(request: ClientRequest) -> bool:
    """Return whether a conversation ends with a tool output."""
    return isinstance(last_item(request.items), CallOutput)


def catalog_of(plan: Plan) -> str:
    """Return the manifest for a plan's tools, with the rules for calling them."""
    policy = plan.policy
    tools = (FINDER, *plan.visible_tools) if plan.finder == FIND_TOOLS else plan.visible_tools
    return manifest(
        tools_shown(tools, policy.transforms) if policy.transforms else tools,
        sentinel=policy.sentinel,
        answer_format=plan.answer_format,
        form=policy.manifest,
        named=plan.name_only_tools,
        finder=plan.finder,
    )


def _manifest_role(plan: Plan) -> Literal["developer", "system", "user"]:
    role = plan.policy.manifest_role
    return APIS[plan.backend].manifest_role if role == "auto" else role


def _with_output_mode(policy: Policy, client: Api, header: str | None) -> Policy:
    """Return the policy with the output mode from the client's header, if the client has sent this header."""
    word = header.strip().lower() if header else ""
    if not word:
        mode = client.output_mode(policy)
    elif word in OUTPUT_MODES:
        mode = OUTPUT_MODES[word]
    else:
        message = f"Invalid header 'x-proxy-output-mode': expected openai-json or obsidian-xml, got {word[:64]!r}."
        raise BadRequest(message, "x-proxy-output-mode", "invalid_value")
    return policy if mode == policy.output_mode else replace(policy, output_mode=mode)
