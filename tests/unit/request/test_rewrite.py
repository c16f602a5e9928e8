import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.each import each
from toolsim.core.errors import BadRequest
from toolsim.core.plan import StoredAs, ToolChoice
from toolsim.core.policy import Policy, Profile
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request

PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
F = {"type": "function", "name": "f", "parameters": SCHEMA}
G = {"type": "function", "function": {"name": "g", "strict": True, "parameters": SCHEMA}}
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "fc_007", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "fc_007", "output": "x"}
SEARCH = {"type": "web_search"}


def rewrite(api_name, body, policy=None, *, path=None, output_mode=None, report=None):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return rewrite_request(
        api_name,
        path or PATHS[api_name],
        content,
        policy or Policy(),
        output_mode=output_mode,
        report=report or Report(),
    )


def responses(policy=None, **fields):
    options = {key: fields.pop(key) for key in ("path", "output_mode", "report") if key in fields}
    return rewrite("responses", {"model": "m", "input": [USER], **fields}, policy, **options)


def chat(policy=None, **fields):
    options = {key: fields.pop(key) for key in ("path", "output_mode", "report") if key in fields}
    return rewrite("chat", {"model": "m", "messages": [USER], **fields}, policy, **options)


def sent(rewritten):
    return json.loads(rewritten.body)


def texts(rewritten):
    """Return the role and text of each message that the backend receives, for the chat API or the Responses API."""
    body = sent(rewritten)
    messages = body.get("input", body.get("messages"))
    return [
        (message["role"], message["content"] if isinstance(message["content"], str) else message["content"][0]["text"])
        for message in messages
    ]


def param_of(make, *arguments, **fields):
    with pytest.raises(BadRequest) as caught:
        make(*arguments, **fields)
    return caught.value.error.param


@each("api_name", PATHS)
@each(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'"tools"',
        b'{"tools": [NaN]}',
        b'{"tools": [1e999]}',
        b'{"tools": ' + b"9" * 5_000 + b"}",
        b"[" * 100_000,
        b"{}",
        b'{"tools": [], "input": "hi", "messages": []}',
        b'{"tools": [{"type": "web_search"}], "parallel_tool_calls": "?"}',
        b'{"tools": null, "tool_choice": "any", "input": 3, "messages": 3}',
    ],
)
def test_request_without_tools_passes(api_name, body):
    """A request without tools and without calls is passed on unchanged, as is a body that is not a JSON object."""
    report = Report()
    assert rewrite(api_name, body, report=report) is None
    assert report == Report()


def test_responses_request():
    """In a Responses request, the tools become a manifest, and the history becomes lines of text. The plan contains
    everything that is needed to process the answer.
    """
    report = Report()
    rewritten = responses(
        tools=[F, G, SEARCH],
        input=[USER, CALL, OUTPUT],
        stream=True,
        x_vendor=1,
        parallel_tool_calls=False,
        report=report,
    )
    body = sent(rewritten)
    assert rewritten.path == "/v1/responses"
    assert body.keys() == {"model", "input", "stream", "x_vendor"}
    [(first, manifest), *history, (_, last)] = texts(rewritten)
    assert (first, manifest.splitlines()[0]) == ("developer", "# CLIENT TOOL CATALOG")
    assert history == [
        ("user", "hi"),
        ("assistant", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    ]
    assert last.splitlines()[0] == '[function_call_output name=f arguments={} output="x"]'
    plan = rewritten.plan
    assert (plan.client, plan.backend, plan.form.stream, plan.form.model) == ("responses", "responses", True, "m")
    assert [tool.name for tool in plan.tools] == ["f", "g"]
    assert (plan.any_strict, plan.one_call, plan.first_number, plan.form.include_usage) == (True, True, 8, True)
    assert plan.form.echo["parallel_tool_calls"] is False
    assert len(plan.form.echo["tools"]) == 3
    assert report == Report(
        client="responses",
        backend="responses",
        model="m",
        stream=True,
        tools=["f", "g"],
        echoed_calls=1,
        warnings=["TOOL_DROPPED:web_search"],
        dropped=["tool:web_search"],
    )


def test_chat_request():
    """In a chat request, the manifest is appended to the system message, and calls and outputs become lines of text."""
    call = {"id": "call_3", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be good."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_3", "content": "x"},
    ]
    rewritten = chat(messages=messages, tools=[F, G], stream=True, stream_options={"include_usage": True})
    (role, system), *_ = texts(rewritten)
    assert role == "system"
    assert system.startswith("Be good.\n\n# CLIENT TOOL CATALOG\n")
    assert [role for role, _ in texts(rewritten)] == ["system", "user", "assistant", "user"]
    plan = rewritten.plan
    assert (plan.client, plan.backend, plan.first_number, plan.form.include_usage) == ("chat", "chat", 4, True)
    assert plan.form.echo == {}


def test_history_without_tools_becomes_text():
    """If the history contains calls but the request has no tools, the calls become text, and no manifest is written."""
    rewritten = responses(input=[USER, CALL, OUTPUT], text={"format": {"type": "json_object"}})
    assert [role for role, _ in texts(rewritten)] == ["user", "assistant", "user"]
    assert "CATALOG" not in rewritten.body.decode()
    assert sent(rewritten)["text"] == {"format": {"type": "json_object"}}


def test_choice_none():
    """If ``tool_choice`` is "none", all tools are masked, so no call is accepted. The prompt mentions the tools only if
    one was called earlier.
    """
    rewritten = responses(tools=[F, G], tool_choice="none", text={"format": {"type": "json_object"}})
    assert texts(rewritten) == [("user", "hi")]
    assert (rewritten.plan.tools, rewritten.plan.masked_tools) == ((), {"f", "g"})
    assert rewritten.plan.tool_choice == ToolChoice("none")
    assert "text" in sent(rewritten)


@pytest.mark.parametrize(
    ("choice", "policy", "offered"),
    [
        (None, Policy(), ["f", "g", "ns__h"]),
        ({"type": "function", "name": "g"}, Policy(), ["g"]),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "h"}]}, Policy(), ["ns__h"]),
        (None, Policy(tool_allowlist=frozenset({"f", "h"})), ["f", "ns__h"]),
        (None, Policy(tool_allowlist=frozenset({"ns__h"})), ["ns__h"]),
        (None, Policy(tool_denylist=frozenset({"f", "h"})), ["g"]),
        (None, Policy(tool_allowlist=frozenset({"f"}), tool_denylist=frozenset({"f"})), []),
        ("auto", Policy(tool_denylist=frozenset({"f", "g", "h"})), []),
    ],
)
def test_offered_and_masked(choice, policy, offered):
    """The tool choice and the operator's lists determine which tools are masked, so that calls to them are not
    accepted. The manifest omits only tools that the operator's lists exclude.
    """
    namespace = {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "h"}]}
    rewritten = responses(policy, tools=[F, G, namespace], tool_choice=choice)
    assert [tool.name for tool in rewritten.plan.tools] == offered
    assert rewritten.plan.masked_tools == {"f", "g", "ns__h"} - set(offered)
    shown = [name for name in ("f", "g", "ns__h") if f'{{"name": "{name}"' in texts(rewritten)[0][1]]
    assert shown == (["f", "g", "ns__h"] if isinstance(choice, dict) else offered)


def test_masked_strict_tool_counts():
    """If a request declares a strict tool, a call with an unknown name is a failure, even if the strict tool itself is
    masked.
    """
    assert responses(Policy(tool_denylist=frozenset({"g"})), tools=[F, G]).plan.any_strict


@pytest.mark.parametrize(
    ("make", "fields", "param"),
    [
        (responses, {"tools": [F], "tool_choice": "required"}, "tool_choice"),
        (responses, {"tools": [F], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        (chat, {"functions": [{"name": "f"}], "function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_required_call_of_a_denied_tool_is_a_400(make, fields, param):
    """A request that requires a call to a denied tool is refused with status 400, because such a call would never be
    accepted.
    """
    assert param_of(make, Policy(tool_denylist=frozenset({"f"})), **fields) == param


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (
            [SEARCH, {"type": "function", "name": "s", "strict": True, "parameters": {"properties": 3}}],
            "tools[1].parameters",
        ),
        (
            [{"type": "function", "function": {"name": "s", "strict": True, "parameters": {"$ref": "http://x/y"}}}],
            "tools[0].function.parameters",
        ),
    ],
)
def test_strict_schemas_must_compile(tools, param):
    """A strict tool whose schema cannot be compiled causes an error with status 400. For a tool that is not strict, the
    same schema is accepted.
    """
    assert param_of(responses, tools=tools) == param
    lenient = json.loads(json.dumps(tools).replace('"strict": true', '"strict": false'))
    assert responses(tools=lenient) is not None


@pytest.mark.parametrize(
    ("parallel", "policy", "one_call"), [(None, True, False), (False, True, True), (True, False, True)]
)
def test_answer_can_be_limited_to_one_call(parallel, policy, one_call):
    """The client or the operator can limit an answer to one call."""
    rewritten = responses(Policy(parallel_tool_calls=policy), tools=[F], parallel_tool_calls=parallel)
    assert rewritten.plan.one_call is one_call


@pytest.mark.parametrize("make", [responses, chat])
def test_structured_output_moves_to_the_manifest(make):
    """If the client requests a JSON format, the format is moved from the request body to the manifest, because a format
    in the body would prevent tool calls.
    """
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    flat = {"type": "json_schema", "name": "x", "schema": schema}
    nested = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    rewritten = make(tools=[F], text={"format": flat}, response_format=nested)
    body = sent(rewritten)
    assert not body.get("text") or make is chat
    assert "response_format" not in body or make is responses
    assert json.dumps(schema, separators=(",", ":")) in texts(rewritten)[0][1]


def test_echo_keeps_the_format():
    """The echo of the request in the response contains the answer format that the client requested."""
    wanted = {"type": "json_object"}
    assert responses(tools=[F], text={"format": wanted}).plan.form.echo["text"]["format"] == wanted


def test_hosted_tools_can_be_forwarded():
    """If the operator enables forwarding, hosted tools are forwarded to a backend with the same API, but never to
    another API.
    """
    policy, report = Policy(forward_hosted_tools=True), Report()
    assert sent(responses(policy, tools=[F, SEARCH], report=report))["tools"] == [SEARCH]
    assert report.dropped == []
    policy = Policy(forward_hosted_tools=True, backend="chat")
    assert "tools" not in sent(responses(policy, tools=[F, SEARCH], report=report))
    assert report.dropped == ["tool:web_search"]


MCP = {"type": "mcp", "server_label": "docs", "server_url": "https://x.example/mcp", "headers": {"X-Key": "k"}}
APPROVAL = [
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "find", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
]


def test_hosted_tool_history_is_forwarded():
    """With forwarding enabled, items of hosted tools in the history are sent to a backend with the same API, unchanged
    and in their positions. Otherwise, the items are dropped.
    """
    policy, report = Policy(forward_hosted_tools=True), Report()
    choice = {"type": "mcp", "server_label": "docs"}
    fields = {"tools": [F, MCP], "input": [USER, *APPROVAL, USER], "tool_choice": choice}
    body = sent(responses(policy, **fields, report=report))
    assert body["tools"] == [MCP]
    assert body["tool_choice"] == choice
    assert report.dropped == []
    kinds = [item.get("type") for item in body["input"]]
    assert kinds == ["message", "message", *(item["type"] for item in APPROVAL), "message"]
    assert [item for item in body["input"] if item.get("type") != "message"] == APPROVAL
    for dropping in (Policy(), Policy(forward_hosted_tools=True, backend="chat")):
        report = Report()
        body = sent(responses(dropping, **(fields | {"tool_choice": "auto"}), report=report))
        assert "mcp" not in json.dumps(body)
        assert {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response"} <= set(report.dropped)


def test_hosted_tool_secrets_are_not_echoed():
    """The backend receives a hosted tool's headers and URL, but the Response returned to the client omits them."""
    secret = {**MCP, "server_url": "https://u:p@x.example/mcp?key=s3", "authorization": "s3"}
    rewritten = responses(Policy(forward_hosted_tools=True), tools=[F, secret])
    assert sent(rewritten)["tools"] == [secret]
    blank = {"headers": None, "authorization": None, "server_url": "https://x.example/<redacted>"}
    assert rewritten.plan.form.echo["tools"][1] == {**MCP, **blank}


@pytest.mark.parametrize(
    ("path", "exchanged"),
    [
        ("/v1/responses", "/v1/chat/completions"),
        ("/responses/", "/chat/completions"),
        ("/a/responses/v1/responses?x=/responses&y", "/a/responses/v1/chat/completions?x=/responses&y"),
    ],
)
def test_path_follows_the_backends_api(path, exchanged):
    """The end of the request's path is replaced by the endpoint of the backend's API. The prefix and the query are
    kept.
    """
    assert responses(Policy(backend="chat"), tools=[F], path=path).path == exchanged
    assert responses(Policy(backend="responses"), tools=[F], path=path).path == path
    assert chat(Policy(backend="responses"), tools=[F], path="/x/chat/completions?q").path == "/x/responses?q"


def test_responses_client_over_chat():
    """A Responses request is translated to chat completions. The instructions and the manifest share one system
    message.
    """
    rewritten = responses(
        Policy(backend="chat"),
        tools=[F],
        instructions="Be good.",
        stream=True,
        input="hi",
        max_output_tokens=9,
        include=[],
    )
    (role, system), user = texts(rewritten)
    assert role == "system"
    assert system.startswith("Be good.\n\n# CLIENT TOOL CATALOG")
    assert user == ("user", "hi")
    body = sent(rewritten)
    assert (body["stream_options"], body["max_tokens"]) == ({"include_usage": True}, 9)
    assert (rewritten.plan.client, rewritten.plan.backend) == ("responses", "chat")


def test_chat_client_over_responses():
    """A chat request is translated to the Responses API. The system message becomes the instructions, and the manifest
    precedes the user's message.
    """
    system = {"role": "system", "content": "Be good."}
    rewritten = chat(Policy(backend="responses"), tools=[F], messages=[system, USER], max_tokens=9)
    body = sent(rewritten)
    assert (body["instructions"], body["max_output_tokens"], body["store"]) == ("Be good.", 9, False)
    assert [role for role, _ in texts(rewritten)] == ["developer", "user"]
    assert (rewritten.plan.client, rewritten.plan.backend) == ("chat", "responses")


def test_request_without_tools_is_translated():
    """A request without tools is still translated if the backend has a different API."""
    report = Report()
    rewritten = responses(Policy(backend="chat"), temperature=0, include=["x"], report=report)
    assert sent(rewritten) == {"model": "m", "messages": [USER], "temperature": 0}
    assert (rewritten.plan.tools, rewritten.plan.tool_choice) == ((), ToolChoice())
    assert rewritten.plan.form.echo["temperature"] == 0
    assert report.dropped == ["include"]
    assert sent(chat(Policy(backend="responses")))["input"][0]["content"] == [{"type": "input_text", "text": "hi"}]


@pytest.mark.parametrize("key", ["previous_response_id", "conversation"])
def test_stored_history_over_responses(key):
    """If a request refers to a conversation in the backend's store, the reference is forwarded. Call numbers then start
    at a large number that depends on the request, to avoid collisions with stored calls.
    """
    first = responses(tools=[F], **{key: "resp_1"})
    assert sent(first)[key] == "resp_1"
    assert 1_000 <= first.plan.first_number < 901_000
    assert responses(tools=[F], **{key: "resp_1"}).plan.first_number == first.plan.first_number
    other = responses(tools=[F], input="go on", **{key: "resp_2"})
    assert other.plan.first_number != first.plan.first_number
    outputs = [{**OUTPUT, "call_id": "fc_950000"}]
    assert responses(tools=[F], input=outputs, **{key: "resp_1"}).plan.first_number == 950_001


def test_requests_of_one_conversation_start_at_other_numbers():
    """Different requests in one stored conversation start at different call numbers, which depend on the request's
    content.
    """
    numbers = {responses(tools=[F], input=text, conversation="c").plan.first_number for text in ("a", "b")}
    assert len(numbers) == 2


def test_stored_history_is_rejected_over_chat():
    """A reference to an earlier response is rejected if the backend has the chat API, because such a backend does not
    store responses.
    """
    assert param_of(responses, Policy(backend="chat"), tools=[F], previous_response_id="r") == "previous_response_id"


@pytest.mark.parametrize(
    ("ids", "number"),
    [
        ([], 1),
        (["fc_001", "fc_012"], 13),
        (["call_3", "ctc_4", "fc_2"], 5),
        (["any_9"], 10),
        (["fc_0x9", "longer_9", "f_9", "fc_9x", "FC_9", "fc_9\n", "call_abc", "fc_٩"], 1),
        (["fc_" + "9" * 100], 1),
        (["fc_" + "9" * 5_000], 1),
    ],
)
def test_first_number_follows_the_history(ids, number):
    """Call numbers continue after the highest number among the IDs that toolsim assigned."""
    items = [
        item
        for call_id in ids
        for item in (
            {**CALL, "call_id": "x", "id": call_id},
            {**OUTPUT, "call_id": call_id},
            {"type": "item_reference", "id": call_id},
        )
    ]
    assert responses(tools=[F], input=[USER, *items]).plan.first_number == number
    for item in items[:3]:
        assert (responses(tools=[F], input=[item]).plan.first_number == 1) is (number == 1)


@pytest.mark.parametrize(
    ("role", "api_name", "roles"),
    [
        ("auto", "responses", ["developer", "user"]),
        ("system", "responses", ["system", "user"]),
        ("user", "responses", ["user"]),
        ("auto", "chat", ["system", "user"]),
        ("developer", "chat", ["developer", "user"]),
        ("user", "chat", ["user"]),
    ],
)
def test_manifest_role(role, api_name, roles):
    """The role of the message with the manifest depends on the backend, unless the operator has set a role."""
    make = responses if api_name == "responses" else chat
    assert [place for place, _ in texts(make(Policy(manifest_role=role), tools=[F]))] == roles


@pytest.mark.parametrize(
    ("wish", "mode"),
    [
        (None, "openai-json"),
        ("", "openai-json"),
        (" Obsidian-XML ", "obsidian-xml"),
        ("obsidian", "obsidian-xml"),
        ("openai-json", "openai-json"),
    ],
)
def test_output_mode(wish, mode):
    """A client can select its output mode with a header, whose value can be spelled in several ways."""
    report = Report()
    assert responses(tools=[F], output_mode=wish, report=report).plan.policy.output_mode == mode
    assert (report.mode, report.dropped) == (mode, [])


def test_unknown_output_mode_is_a_400():
    """An unknown output mode causes an error with status 400 that names the header. Otherwise the client would receive
    a format that it does not expect.
    """
    assert param_of(responses, tools=[F], output_mode="yaml") == "x-proxy-output-mode"


def test_output_modes_of_apis_are_independent():
    """The operator's output mode for one API does not affect the other API."""
    for policy, modes in (
        (Policy(output_mode="obsidian-xml"), ["obsidian-xml", "openai-json"]),
        (Policy(responses_output_mode="obsidian-xml"), ["openai-json", "obsidian-xml"]),
    ):
        rewritten = [chat(policy, tools=[F]), responses(policy, tools=[F])]
        assert [result.plan.policy.output_mode for result in rewritten] == modes


def test_client_output_mode_overrides_the_operators():
    rewritten = responses(Policy(responses_output_mode="obsidian-xml"), tools=[F], output_mode="openai-json")
    assert rewritten.plan.policy.output_mode == "openai-json"


@pytest.mark.parametrize("model", [None, 3])
def test_missing_model_is_accepted(model):
    """A missing or invalid model name is accepted, because the backend can have a default model."""
    assert responses(tools=[F], model=model).plan.form.model == ""


def test_text_is_unchanged():
    """Text is forwarded unchanged, except that a lone surrogate, which UTF-8 cannot represent, becomes U+FFFD."""
    assert "é 🌍".encode() in responses(tools=[F], input="é 🌍").body
    assert texts(responses(tools=[F], input="\ud800"))[-1] == ("user", "\ufffd")


@pytest.mark.parametrize("title", [b'"title":"T",', b""])
def test_nesting_is_bounded(title: bytes):
    """A deeply nested schema is rewritten up to a nesting limit. A body that exceeds the limit is passed on
    unchanged.
    """
    for levels in (400, 3_000):
        deep = b'{"a":' * levels + b"1" + b"}" * levels
        body = b'{"tools":[{"type":"function","name":"f","parameters":{' + title + b'"properties":' + deep + b"}}],"
        body += b'"input":"hi","messages":[{"role":"user"}]}'
        rewritten = rewrite_request("responses", "/v1/responses", body, Policy(), output_mode=None, report=Report())
        assert (rewritten is not None) == (levels == 400)
        assert rewritten is None or json.dumps(deep.decode())[1:-1].encode() in rewritten.body


WORDS = """
    function custom namespace allowed_tools message function_call function_call_output text custom_tool_call
    additional_tools item_reference reasoning input_text image_url user tool system assistant auto required none grammar
    json_schema object fc_001 call_9 f g ns
"""
KEYS = """
    type name role content id call_id arguments input output text tools function custom format parameters strict
    namespace tool_calls tool_call_id function_call mode description properties required image_url url file refusal
    summary allowed_tools x
"""
FIELDS = """
    model parallel_tool_calls stream stream_options n text response_format instructions reasoning conversation
    previous_response_id background prompt metadata store max_tokens max_output_tokens max_completion_tokens
"""
CHAT_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEMS = [USER, CALL, OUTPUT, {"type": "additional_tools", "tools": [F]}]
MESSAGES = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "x"},
]
CHOICES = [{"type": "function", "name": "f"}, {"type": "allowed_tools", "tools": [F]}]

keys = st.sampled_from(KEYS.split())
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([*WORDS.split(), "", "a b", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=12,
)


def nearly(*values):
    """Generate values in which at most one field is arbitrary, so that most of them pass the first checks."""
    change = st.just({}) | st.dictionaries(keys, junk, max_size=1)
    return st.builds(lambda value, changed: {**value, **changed}, st.sampled_from(values), change)


def nearly_lists(*values):
    return st.lists(nearly(*values), min_size=1, max_size=4) | st.lists(nearly(*values) | junk, max_size=3) | junk


tools = nearly_lists(F, G, SEARCH, {"type": "custom", "name": "c"})
fields = st.fixed_dictionaries(
    {"input": nearly_lists(*ITEMS), "messages": nearly_lists(*MESSAGES)},
    optional={
        "tools": tools,
        "functions": tools,
        "tool_choice": nearly(*CHOICES) | junk,
        "function_call": junk,
        **{key: st.none() | junk for key in FIELDS.split()},
    },
)


@given(
    body=fields,
    api_name=st.sampled_from(["responses", "chat"]),
    backend=st.sampled_from(["auto", "responses", "chat"]),
    history=st.sampled_from(["bracketed", "tagged"]),
    role=st.sampled_from(["auto", "developer", "system", "user"]),
)
@example(
    {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}], "tools": [SEARCH]},
    "responses",
    "auto",
    "record",
    "auto",
)
def test_any_body_is_rewritten_or_refused(body, api_name, backend, history, role):
    """Any JSON body is rewritten, rejected with status 400, or passed on unchanged."""
    policy = Policy(backend=backend, history=history, manifest_role=role)
    try:
        rewritten = rewrite(api_name, body, policy)
    except BadRequest:
        return
    if rewritten is not None:
        written = json.loads(rewritten.body)
        kept = written.get("tools")
        # If the only tools are hosted tools, they remain in the body even if calls in the history are rewritten.
        if not (isinstance(kept, list) and all(tool["type"] not in ("function", "custom") for tool in kept)):
            assert not written.keys() & {"tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"}
        json.dumps(dict(rewritten.plan.form.echo))


@pytest.mark.parametrize("make", [responses, chat], ids=["responses", "chat"])
@pytest.mark.parametrize("backend", ["responses", "chat"])
def test_forced_call_is_enforced_by_the_backend(make, backend):
    """If a call is required, the schema for the call replaces the client's own structured output format, in either
    API.
    """
    own = {"type": "json_schema", "name": "mine", "schema": {"type": "object"}}
    fields = {"text": {"format": own, "verbosity": "low"}} if make is responses else {"response_format": own}
    policy = Policy(constrain="json_schema", backend=backend)
    rewritten = make(policy, tools=[F], tool_choice="required", **fields)
    body = sent(rewritten)
    form = body["text"]["format"] if backend == "responses" else body["response_format"]["json_schema"]
    assert form["name"] == "tool_call"
    closed = {**SCHEMA, "additionalProperties": False}
    assert form["schema"]["properties"] == {"name": {"const": "f"}, "arguments": closed}
    assert rewritten.plan.constraint["schema"] == form["schema"]
    free = sent(make(policy, tools=[F]))
    assert "response_format" not in free
    assert "format" not in free.get("text", {})


@pytest.mark.parametrize("api_name", PATHS)
def test_native_tools(api_name):
    """A backend with native tools receives the request byte for byte. The plan still contains the tools, so that calls
    in the answer can be parsed.
    """
    body = {"model": "m", "input": [USER, CALL, OUTPUT], "messages": [USER], "tools": [F, G, SEARCH]}
    content = json.dumps(body, indent=2).encode()
    rewritten = rewrite(api_name, content, Policy(mode="native"))
    assert rewritten.body == content
    assert [tool.name for tool in rewritten.plan.tools] == ["f", "g"]


@pytest.mark.parametrize("api_name", PATHS)
def test_native_tools_are_masked(api_name):
    """In native mode, denied tools are removed from the request. Hosted tools and all other fields are kept."""
    namespace = {"type": "namespace", "name": "ns", "description": "", "tools": [F, {**F, "name": "h"}]}
    body = {"model": "m", "input": "hi", "messages": [USER], "tools": [F, G, SEARCH, namespace]}
    rewritten = rewrite(api_name, body, Policy(mode="native", tool_denylist=frozenset({"g", "ns__f"})))
    assert sent(rewritten) == {**body, "tools": [F, SEARCH, {**namespace, "tools": [{**F, "name": "h"}]}]}


def test_native_tools_need_the_same_api():
    """In native mode, tools are still described as text if the backend's API differs from the client's."""
    assert "tools" not in sent(responses(Policy(mode="native", backend="chat"), tools=[F]))


def test_call_without_output_is_reported():
    """A call in the history that has no output is reported, because the model would see a call without a result."""
    report = Report()
    responses(tools=[F], input=[USER, CALL, {**CALL, "call_id": "x", "name": "g"}, OUTPUT], report=report)
    assert report.warnings == ["UNANSWERED_CALL:g"]


@pytest.mark.parametrize(
    ("make", "policy", "mode"),
    [
        (chat, Policy(), "burst"),
        (chat, Policy(stop_after_tools_mode="first"), "first"),
        (chat, Policy(stop_after_tools="off", stop_after_tools_mode="first"), "off"),
        (responses, Policy(), "off"),
        (responses, Policy(stop_after_tools="on"), "burst"),
    ],
)
def test_stop_mode_is_reported(make, policy, mode):
    """The report contains the stop-after-tools mode that is in effect, regardless of which options determined it."""
    report = Report()
    make(policy, tools=[F], report=report)
    assert report.stop_after_tools_mode == mode


def test_call_required_by_the_operator_is_enforced():
    """With ``tool_use_mode=enforced``, a constraint enforces a call if the engine supports one, except directly after
    an output.
    """
    policy = Policy(engine="llama.cpp", constrain="auto", tool_use_mode="enforced")
    assert sent(chat(policy, tools=[F]))["response_format"]["type"] == "json_schema"
    assert sent(responses(policy, tools=[F]))["text"]["format"]["type"] == "json_schema"
    assert "text" not in sent(responses(policy, tools=[F], input=[USER, CALL, OUTPUT]))
    assert "response_format" not in sent(chat(Policy(engine="llama.cpp", constrain="auto"), tools=[F]))


@pytest.mark.parametrize(
    ("fields", "root"),
    [
        ({"tools": [F]}, "array"),
        ({"tools": [F], "parallel_tool_calls": False}, "object"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "object"),
        ({"functions": [{"name": "f", "parameters": SCHEMA}]}, "object"),
    ],
)
def test_several_calls_are_enforced_unless_limited(fields, root):
    """A constraint allows several calls unless the client disables parallel calls, chooses a single function, or uses
    legacy functions.
    """
    policy = Policy(engine="llama.cpp", constrain="auto", tool_use_mode="enforced")
    assert sent(chat(policy, **fields))["response_format"]["json_schema"]["schema"]["type"] == root


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("backend", ["chat", "responses"])
@pytest.mark.parametrize("tools", [[], [F]])
def test_unprepared_background_request_is_refused(stream, backend, tools):
    """A request with ``background: true`` that the background runner has not prepared is rejected, regardless of the
    backend's API.
    """
    body = {"model": "m", "input": "hi", "tools": tools, "stream": stream}
    policy, kept = Policy(backend=backend), StoredAs("resp_1")

    def made(background):
        content = json.dumps({**body, "background": background}).encode()
        return rewrite_request(
            "responses", PATHS["responses"], content, policy, output_mode=None, report=Report(), stored_as=kept
        )

    with pytest.raises(BadRequest, match="without escape sequences") as caught:
        made(True)
    assert (caught.value.error.param, caught.value.error.code) == ("background", "unsupported_parameter")
    for background in False, None:
        assert made(background).plan.form.id == "resp_1"


# -- models that have another name at the backend


@each("make", [responses, chat], ids=lambda make: make.__name__)
def test_backend_receives_its_model_name(make):
    """The backend receives its own name for the model, with or without tools. The plan and the report keep the client's
    name.
    """
    report = Report()
    for fields in ({}, {"tools": [F]}, {"tools": [F], "tool_choice": "none"}):
        for mode in ("inject", "native"):
            rewritten = make(Policy(backend_model="qwen", mode=mode), report=report, **fields)
            assert sent(rewritten)["model"] == "qwen"
            assert rewritten.plan.form.model == report.model == "m"
            assert rewritten.plan.backend_model == "qwen"


def test_translated_request_has_the_backends_model_name():
    """If a request is translated to another API, it also contains the backend's name for the model."""
    for backend in ("chat", "messages"):
        assert sent(responses(Policy(backend=backend, backend_model="qwen")))["model"] == "qwen"


def test_renaming_the_model_changes_no_other_field():
    """In a request without tools, only the model's name is changed, even if the policy contains overrides and
    transforms.
    """
    fields = {"temperature": 0.3, "logprobs": True, "n": 2, "unknown": [1.0, None]}
    policy = Policy(backend_model="qwen", request_overrides='{"temperature":0}', transforms=frozenset({"x"}))
    body = {"model": "m", "messages": [USER, USER, {"role": "system", "content": "s"}], **fields}
    assert list(sent(rewrite("chat", body, policy)).items()) == list({**body, "model": "qwen"}.items())


def test_equal_model_name_passes():
    """A request without tools is passed on unchanged if it already uses the backend's name for the model."""
    assert chat(Policy(backend_model="m")) is None
    assert chat(Policy()) is None


def test_profiles_follow_the_backends_model():
    """Profiles and engine settings depend on the backend's name for the model, rather than on the name that the client
    sent.
    """
    profiles = (Profile("q", ("qwen*",), (("history", "bracketed"),)), Profile("m", ("m",), (("repair", "off"),)))
    policy = Policy(backend_model="qwen3", known_profiles=profiles, mode="auto", engine="ollama", sentinel="auto")
    plan = chat(policy, tools=[F]).plan
    assert (plan.policy.profile, plan.policy.history, plan.policy.repair) == ("q", "bracketed", "safe")
    assert plan.policy.sentinel == "call_tool"
    assert plan.attempts == {"tools"}
    body = json.dumps({"model": "m", "messages": [USER], "tools": [F]}).encode()
    for refused, mode in ((("qwen3", "tools"), "inject"), (("m", "tools"), "native")):
        rewritten = rewrite_request(
            "chat", PATHS["chat"], body, policy, output_mode=None, report=Report(), refused={refused}
        )
        assert rewritten.plan.policy.mode == mode
