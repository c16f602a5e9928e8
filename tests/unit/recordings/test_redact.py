"""Tests for redacting secrets, which are recognized by their shape or by the name of their field. All other text is
unchanged.
"""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from support.growth import LINEAR, growth
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.recordings.redact import HIDDEN, Redactor
from toolsim.recordings.secret_rules import PATTERNS
from toolsim.request.rewrite import rewrite_request

SHAPES = {
    "OpenAI and similar": ("the key sk-proj-AbCd1234efgh5678 is mine", "AbCd1234efgh5678"),
    "other vendors": ("hf_AbCd1234efgh5678", "AbCd1234efgh5678"),
    "GitHub": ("ghp_AbCd1234efgh5678", "AbCd1234efgh5678"),
    "vendors of long keys": ("npm_AbCd1234efgh5678IJKLmnop", "AbCd1234efgh5678"),
    "hexadecimal keys": ("dapi0123456789abcdef0123456789abcdef", "0123456789abcdef"),
    "Telegram": ("123456789:AAbCd1234efgh5678AbCd1234efgh567890", "AAbCd1234efgh5678"),
    "web hooks": ("see https://hooks.slack.com/services/T00/B00/AbCd1234", "AbCd1234"),
    "Slack": ("xoxb-12345678-abcdefgh", "12345678-abcdefgh"),
    "Google": ("AIzaAbCd1234efgh5678", "AbCd1234efgh5678"),
    "AWS": ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    "JSON web token": ("x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMiJ9.dozjgNryP4J3 y", "eyJzdWIiOiIxMiJ9"),
    "bearer": ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
    "basic": ("basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "authorization of any scheme": ("Authorization: AWS4-HMAC-SHA256 Credential=AB/1, Signature=abcdef99", "abcdef99"),
    "cookies": ("Cookie: theme=dark; sid=abcdef99", "abcdef99"),
    "user of curl": ("curl -u me:secret99 https://host/x", "secret99"),
    "user and password of a URL": ("see HTTPS://me:secret@99@host/x", "me:secret@99"),
    "parameter of a URL": ("see https://host/x?v=1&X-Amz-Signature=abcdef99#top", "abcdef99"),
    "private key": ("-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-1\n\nMIIEpAIBAAKC\n-----END RSA", "MIIEpAIBAAKC"),
}


def test_every_pattern_has_an_example() -> None:
    """The table ``SHAPES`` contains exactly one example for each pattern."""
    assert {name for name, _ in PATTERNS} == set(SHAPES)


@each("name", SHAPES)
def test_secret_is_recognized_by_shape(name: str) -> None:
    """A secret is recognized by its shape, for example by the prefix of an API key. Its length does not change, and the
    text around it is kept.
    """
    text, secret = SHAPES[name]
    clean = Redactor().text(f"before {text} after")
    assert secret not in clean
    assert len(clean) == len(f"before {text} after")
    assert clean.startswith("before ")
    assert clean.endswith(" after")


@each("name", SHAPES)
@each("depth", [1, 2, 3])
def test_secret_in_json_is_recognized_by_shape(name: str, depth: int) -> None:
    """A secret in JSON, or in JSON within a JSON string, is masked exactly as in plain text."""
    text, secret = SHAPES[name]
    written, expected = f"before\n{text}\nafter", Redactor().text(f"before\n{text}\nafter")
    for _ in range(depth):
        written, expected = json.dumps(written), json.dumps(expected)
    clean = Redactor().text(written)
    assert secret not in clean
    assert clean == expected


@each(
    "text",
    [
        '{"password": "hunter2"}',
        "{'password': 'hunter2'}",
        r"{\"arguments\":\"{\\\"api_key\\\": \\\"hunter2\\\"}\"}",
        "<use_tool><name>f</name><password>hunter2</password></use_tool>",
        "OPENAI_API_KEY=hunter2",
        "clientSecret: hunter2",
        '"dbPassword":"hunter2 with \\"quotes\\" inside"',
        '"password": "hunter2, and no end',
        'export OPENAI_API_KEY="hunter2"',
        'api_key = "hunter2"',
        "password = hunter2",
        "password: 'hunter2'",
        "{apiKey: `hunter2`}",
        ":password => 'hunter2'",
        'apiKey := "hunter2"',
        "**Password**: hunter2",
        "AccountKey=hunter2==;EndpointSuffix=x",
        "Authorization: Token hunter2",
        "https://host/done#access_token=hunter2",
        "header: X-Api-Key: hunter2",
        '<user password="hunter2"/>',
        '<my:password type="text">hunter2</my:password>',
        "<password><![CDATA[hunter2]]></password>",
        "<password>a <b> of hunter2</password>",
        "<function=f>\n<parameter=password>\nhunter2\n</parameter>\n</function>",
        "<function=f><parameter=password>hunter2</function>",
        '{"passwords": ["a-first-one", "hunter2"]}',
        r"{\"api_keys\":[\"a-first-one\",\"hunter2\"]}",
        "f(passwords=['a-first-one', 'hunter2'])",
        'call:f{passwords:[<|"|>a-first-one<|"|>,<|"|>hunter2<|"|>]}',
        '<parameter=passwords>["a-first-one","hunter2"]</parameter>',
        '<invoke name="f"><parameter name="password">hunter2</parameter></invoke>',
        '<｜DSML｜parameter name="password" string="true">hunter2</｜DSML｜parameter>',
        "f<arg_key>password</arg_key>\n<arg_value>hunter2</arg_value>",
        'call:f{password:<|"|>hunter2<|"|>,a:1}',
    ],
)
def test_named_value_is_hidden(text: str) -> None:
    """If the name of a field indicates a secret, its entire value is masked. This applies to JSON, nested JSON, XML,
    calls and assignments.
    """
    clean = Redactor().text(text)
    assert "hunter2" not in clean
    assert "inside" not in clean
    assert len(clean) == len(text)


@each(
    ("text", "expected"),
    [
        ('{"page_token":null,"token": true}', '{"page_token":null,"token": true}'),
        ("[f(page_token=None), g(a=[1, 2], token=False)]", "[f(page_token=None), g(a=[1, 2], token=False)]"),
        ('[{"a":{"password":20450}}]', '[{"a":{"password":11111}}]'),
        ("f(token=20450)", "f(token=11111)"),
        ("<password>20450</password>", "<password>11111</password>"),
        ('{"tokens":["a"],"secrets":["hunter2", null, "b"]}', '{"tokens":["a"],"secrets":["xxxxxxx", null, "b"]}'),
        ('{"password":"20450","token":"null"}', '{"password":"11111","token":"null"}'),
        ("{token:hunter2}", "{token:xxxxxxx}"),
        ("<password> <![CDATA[hunter2]]> </password>", "<password> <![CDATA[xxxxxxx]]> </password>"),
        ("the <token> that <b>you</b> chose</p>", "the <token> that <b>you</b> chose</p>"),
        ("<secrets><a>1</a> <token>hunter2</token></secrets>", "<secrets><a>1</a> <token>xxxxxxx</token></secrets>"),
    ],
)
def test_punctuation_around_a_value_is_kept(text: str, expected: str) -> None:
    """When a value is redacted, its type and the punctuation around it are kept. JSON remains valid JSON, and calls
    remain valid calls.
    """
    assert Redactor().text(text) == expected
    assert Redactor().value({"a": text}) == {"a": expected}


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=4096 and 12 tokens, tokenizer: none",
        '{"usage": {"total_tokens": 12}, "max_output_tokens": 5}',
        "basic arithmetic, basically; a bearer of news",
        '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\"}"}</tool_call>',
        "[function_call id=fc_001 call_id=fc_001 name=task-list arguments={}]",
        '{"label":"Password:","hint":"Token: ","x":"the <password> that you chose"}',
        "if token == other and password != None: see https://host/x?page=2&country_code=de",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    """Ordinary text about models and tools is not mistaken for secrets."""
    assert Redactor().text(text) == text


@pytest.mark.parametrize("parameter", ["key", "%6Bey", "token[]", "X-Amz-Signature", "subscription-key", "url", "h"])
def test_secret_query_parameters_are_hidden(parameter: str) -> None:
    """Secret query parameters are masked, even if their names or values are percent-encoded."""
    value = {"url": "https%3A%2F%2Fme%3Ahunter2%40host%2F", "h": "%73k-hunter234"}.get(parameter, "hunter2")
    clean = Redactor().path(f"/v1/responses?a=1&{parameter}={value}&b=%20")
    assert "hunter2" not in clean
    assert clean.startswith(f"/v1/responses?a=1&{parameter}=")
    assert clean.endswith("&b=%20")


@pytest.mark.parametrize(
    "header", [("X-Litellm-Key", "hunter2hunter2"), ("X-Auth", "hunter2hunter2"), ("Cookie", 'a="hunter2hunter2"')]
)
def test_values_of_vague_headers_are_hidden(header: tuple[str, str]) -> None:
    """If the name of a header might indicate a secret, the header's value is masked wherever it is repeated. The same
    applies to a quoted cookie.
    """
    redactor = Redactor()
    redactor.learn([header], "/")
    assert redactor.text("it is hunter2hunter2") == f"it is {'x' * 14}"


def test_unknown_headers_lose_their_values() -> None:
    """The values of known headers are kept, and the values of all other headers are masked. Headers that reveal the
    machine or the time are removed.
    """
    fields = [
        ("Content-Type", "application/json"),
        ("X-My-Own", "whatever"),
        ("OpenAI-Organization", "org-1"),
        ("Date", "today"),
        ("x-stainless-os", "Linux"),
        ("X-Toolsim-Mode", "openai-json"),
        ("User-Agent", "codex/1.2 (Debian 12; x86_64) term"),
        ("Cookie", "a=b"),
    ]
    assert Redactor().headers(fields) == [
        ("Content-Type", "application/json"),
        ("X-My-Own", HIDDEN),
        ("OpenAI-Organization", HIDDEN),
        ("X-Toolsim-Mode", "openai-json"),
        ("User-Agent", "codex/1.2"),
        ("Cookie", HIDDEN),
    ]


def test_credentials_from_head_are_hidden_in_bodies() -> None:
    """If a header or the query contains a credential, it is also masked in bodies, even in its JSON-escaped or
    percent-encoded form.
    """
    redactor = Redactor()
    fields = [
        ("Authorization", "Bearer my own/secret"),
        ("Cookie", "id=cookie-0815; x=1"),
        ("X-Api-Key", "key-of-mine"),
    ]
    redactor.learn([*fields, ("X-Token", "short")], "/v1/chat/completions?api-version=1&key=in%20the%20query")
    text = 'my own/secret my%20own%2Fsecret cookie-0815 key-of-mine "in the query" short'
    assert redactor.text(text) == f'{"x" * 13} {"x" * 17} {"x" * 11} {"x" * 11} "{"x" * 12}" short'
    path = redactor.path("/v1/chat/completions?api-version=1&key=in%20the%20query&x=cookie-0815")
    assert path == f"/v1/chat/completions?api-version=1&key={'x' * 16}&x={'x' * 11}"


def test_repeated_basic_password_is_hidden() -> None:
    """The password in a Basic authorization header is masked wherever it is repeated as plain text."""
    redactor = Redactor()
    redactor.learn([("Authorization", "Basic bWU6bG9uZy1wYXNzd29yZA==")], "/")
    assert "long-password" not in redactor.text("it is long-password")


def test_json_without_secrets_is_unchanged() -> None:
    """A JSON body without secrets is kept byte for byte, including its whitespace and large numbers."""
    body = b'{ "a" : 1.0, "b": 123456789012345678901234567890, "max_tokens": 5, "a": 2 }'
    assert Redactor().body(body, "application/json") == body


def test_list_without_secrets_is_the_same_object() -> None:
    value = ["harmless", ["twice"], {"a": "b"}]
    assert Redactor().value(value) is value


def test_json_fields_with_secret_names_are_hidden() -> None:
    """If the name of a JSON field indicates a secret, all strings in its value are masked. The schema of a secret
    parameter remains a valid schema.
    """
    body = {
        "tools": [{"properties": {"password": {"type": "string", "default": "hunter2", "enum": ["hunter2"]}}}],
        "metadata": {"apiKey": "hunter2", "n": 1.0},
        "secret": ["hunter2", {"token": "hunter2"}],
        "logprobs": {"content": [{"token": "Hel", "logprob": -0.1}]},
    }
    clean = json.loads(Redactor().body(json.dumps(body).encode(), "application/json; charset=utf-8"))
    assert "hunter2" not in json.dumps(clean)
    assert clean["tools"][0]["properties"]["password"]["type"] == "string"
    assert clean["logprobs"] == body["logprobs"]
    assert clean["metadata"]["n"] == 1.0


@pytest.mark.parametrize(
    "body", [b'{"a": "sk-abcdefgh12345678"', b"plain sk-abcdefgh12345678", b"\xff sk-abcdefgh12345678"]
)
def test_other_bodies_are_redacted_as_text(body: bytes) -> None:
    """A body that is not JSON is redacted like plain text, even if it is not valid UTF-8."""
    clean = Redactor().body(body, "application/json")
    assert b"abcdefgh" not in clean
    assert len(clean) == len(body)


def test_deep_json_is_redacted_as_text() -> None:
    """JSON that is nested too deeply to be parsed is redacted like plain text."""
    body = b'{"a":' * 5000 + b'"sk-abcdefgh12345678"' + b"}" * 5000
    assert b"abcdefgh" not in Redactor().body(body, "application/json")


def test_lone_surrogates_are_replaced() -> None:
    """A lone surrogate is replaced with U+FFFD, and secrets in the same body are still masked."""
    clean = Redactor().body(rb'{"a": "\ud83c", "password": "x1"}', "application/json")
    assert json.loads(clean) == {"a": "\ufffd", "password": "xx"}


def chat_stream(*texts: str) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    return b"".join(b"data: %s\n\n" % json.dumps(chunk, ensure_ascii=False).encode() for chunk in chunks)


def joined(data: bytes) -> list[str]:
    events = [json.loads(line[6:]) for line in data.decode("utf-8-sig").split("\n") if line.startswith("data: {")]
    return [event["choices"][0]["delta"]["content"] for event in events]


@given(st.lists(st.integers(1, 40), max_size=12))
def test_secret_in_deltas_is_hidden(cuts: list[int]) -> None:
    """A secret that is split across several deltas is masked, and each delta keeps its length."""
    text = 'key: sk-abcdefgh12345678, {"password": "hunter2"} \u2028 end'
    texts, rest = [], text
    for cut in cuts:
        texts.append(rest[:cut])
        rest = rest[cut:]
    texts.append(rest)
    clean = joined(Redactor().body(chat_stream(*texts), "text/event-stream"))
    assert [len(piece) for piece in clean] == [len(piece) for piece in texts]
    assert "".join(clean) == text.replace("abcdefgh12345678", "x" * 16).replace("hunter2", "x" * 7)


def test_deltas_of_different_items_are_separate_texts() -> None:
    """If two items are streamed concurrently, the deltas of each item are redacted as a separate text."""
    events = [
        {"type": "response.output_text.delta", "item_id": item, "delta": delta}
        for item, delta in (("a", "sk-abcd"), ("b", " and "), ("a", "efgh1234"), ("b", "nothing"))
    ]
    data = b"".join(b"event: x\ndata: %s\n\n" % json.dumps(event).encode() for event in events)
    clean = Redactor().body(data, "text/event-stream; charset=utf-8")
    assert b"efgh" not in clean
    assert clean.count(b"event: x\n") == 4
    assert b"nothing" in clean


def test_stream_without_secrets_is_unchanged() -> None:
    """A stream without secrets is kept byte for byte, including CRLF line breaks, comments and an unfinished event."""
    data = b': hi\r\n\r\ndata: {"a": 1.0}\r\n\r\ndata: [DONE]\n\ndata: {"cut'
    assert Redactor().body(data, "text/event-stream") == data


def test_other_stream_lines_are_redacted_as_text() -> None:
    """Lines of a stream that do not contain JSON are redacted like plain text."""
    clean = Redactor().body(b'data: {"cut": "sk-abcdefgh12345678\n\n: sk-abcdefgh12345678\n\n', "text/event-stream")
    assert b"abcdefgh" not in clean


@given(st.text())
def test_redaction_is_idempotent_and_keeps_lengths(text: str) -> None:
    """Redaction does not change the length of a text. Redacting the text a second time changes nothing."""
    clean = Redactor().text(text)
    assert len(clean) == len(text)
    assert Redactor().text(clean) == clean


@pytest.mark.slow
@each(
    "unit",
    [
        "a",
        '"password":"',
        "eyJ-",
        "token=",
        "<password>",
        "<parameter=password>",
        "<arg_key>",
        "</",
        "token=))))))))",
        'secrets:["",',
        "secrets:[",
        "sk-",
        "\\",
        "a.b-",
        "http://",
        "a:token=",
        "://a@",
        "&a.key=",
        "-----BEGIN PRIVATE KEY-----",
        "Authorization: a,a=a",
        "Cookie: a;",
        "npm-a.",
    ],
)
def test_time_is_linear(unit: str) -> None:
    """For each redaction rule, the time for redaction grows linearly with the length of the text."""
    assert growth(lambda size: Redactor().text(unit * (size // len(unit))), 25_000) < LINEAR


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_do_not_reveal_a_secret(stream: bool) -> None:
    """Log probabilities do not reveal a secret, because its tokens are masked and their ``bytes`` are removed."""
    tokens = [
        {"token": text, "logprob": -0.1, "bytes": list(text.encode()), "top_logprobs": []}
        for text in ("key", ": ", "sk-", "abcd", "efgh", "1234", " end")
    ]
    lists = [[token] for token in tokens] if stream else [tokens]
    documents = [json.dumps({"choices": [{"index": 0, "logprobs": {"content": part}}]}).encode() for part in lists]
    body = b"".join(b"data: %s\n\n" % document for document in documents) if stream else documents[0]
    clean = Redactor().body(body, "text/event-stream" if stream else "application/json")
    found = [json.loads(line) for line in clean.replace(b"data: ", b"").split(b"\n") if line]
    kept = [token for document in found for token in document["choices"][0]["logprobs"]["content"]]
    assert "".join(token["token"] for token in kept) == "key: sk-xxxxxxxxxxxx end"
    assert [token["bytes"] is None for token in kept] == [False, False, False, True, True, True, False]


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""])
def test_mislabeled_stream_is_redacted(kind: str) -> None:
    """A secret that is split across the deltas of a stream is masked even if the content type does not indicate a
    stream.
    """
    for lead in (b"", b"\xef\xbb\xbf", b": hello\n\n", b"event: x\n"):
        clean = Redactor().body(lead + chat_stream("sk-abcd", "efgh1234", "5678"), kind)
        assert "".join(joined(clean)) == "sk-" + "x" * 16


def test_event_of_several_lines_is_redacted() -> None:
    """A secret in an event is masked even if the event's JSON is split across several ``data:`` lines."""
    first, second = b'data: {"choices": [{"index": 0,\ndata: "delta": {"content": "%s"}}]}\n\n', b"efgh12345678"
    clean = Redactor().body(first % b"sk-abcd" + first % second, "text/event-stream")
    assert "".join(joined(clean)) == "sk-" + "x" * 16
    untouched = first % b"nothing" + first % b"here"
    assert Redactor().body(untouched, "text/event-stream") == untouched


def test_event_nested_too_deeply_is_replaced() -> None:
    """If the JSON of an event is nested too deeply to be parsed, it is replaced with an empty object."""
    deep = b'data: {"a":' + b"[" * 200_000 + b'"sk-abcd"' + b"]" * 200_000 + b"}\n\n"
    clean = Redactor().body(deep + chat_stream("x"), "text/event-stream")
    assert b"abcd" not in clean
    assert clean.startswith(b"data: {}\n\n")
    assert joined(clean[10:]) == ["x"]


@each("depth", [50, 90, 150, 500, 1_000, 1_500, 3_000, 50_000])
@each("opening", ["[", '{"a":'])
def test_secret_split_around_a_deep_event_is_hidden(opening: str, depth: int) -> None:
    """A secret that is split across several events is masked even if an event between them is nested too deeply to be
    parsed.
    """
    closing = "]" if opening == "[" else "}"
    deep = f'data: {{"x":{opening * depth}"sk-abcdefgh12345678"{closing * depth}}}\n\n'.encode()
    clean = Redactor().body(chat_stream("Key: sk-abc", "defgh1234") + deep + chat_stream("5678."), "text/event-stream")
    assert b"abc" not in clean
    assert b"5678" not in clean
    if depth <= 90:
        assert clean.count(opening.encode()) >= depth


def test_deep_body_is_dropped() -> None:
    """A body that contains log probabilities and is nested too deeply to be parsed is dropped, because a secret could
    be split across its tokens.
    """
    tokens = ",".join(json.dumps({"token": each, "logprob": -1}) for each in ("sk-abcd", "efgh1234", "5678"))
    body = f'{{"tokens":[{tokens}],"x":{"[" * 1_500}{"]" * 1_500}}}'.encode()
    assert Redactor().body(body, "application/json") == b"{}"


def test_values_in_a_secret_schema_are_hidden() -> None:
    """The manifest repeats default values and examples from the schemas of tools. If a parameter is secret, its default
    value and examples are masked in the manifest as well.
    """
    properties = {"api_key": {"type": "string", "default": "hunter2hunter2", "examples": ["otherotherother"]}}
    properties |= {"city": {"type": "string", "default": "Bonn-Bonn-Bonn"}}
    redactor = Redactor()
    redactor.learn_schemas({"tools": [{"parameters": {"properties": properties}}]})
    clean = redactor.text("- f\n  parameters: " + json.dumps(properties))
    assert "hunter2" not in clean
    assert "otherother" not in clean
    assert "Bonn-Bonn-Bonn" in clean


def test_mcp_server_headers_and_path_are_hidden() -> None:
    """In the declaration of an MCP server, the header values and the path of the URL are masked, as are all repetitions
    of them.
    """
    tool = {
        "type": "mcp",
        "server_label": "docs",
        "server_url": "https://x.example/k3y/mcp?v=1",
        "headers": {"X-Team": "blue", "X-Own": "abcdefgh"},
        "authorization": "abc",
    }
    body = {"tools": [tool, {"type": "function", "name": "f", "headers": {"x": "y"}}], "input": "abcdefgh"}
    redactor = Redactor()
    redactor.learn_schemas(body)
    clean = redactor.value(body)
    assert clean["tools"][0] == tool | {
        "server_url": "https://x.example/xxxxxxxxxxx",
        "headers": {"X-Team": "xxxx", "X-Own": "xxxxxxxx"},
        "authorization": "xxx",
    }
    assert clean["tools"][1] == body["tools"][1]
    assert clean["input"] == "xxxxxxxx"
    bare = {
        "tools": [{"type": "mcp", "server_url": "https://x.example/", "headers": {}}, {"type": "mcp", "headers": 3}]
    }
    assert redactor.value(bare)["tools"][0] is bare["tools"][0]


@each("manifest", ["calls", "schemas", "hermes", "typescript"])
@each("default", ["1234", "(.)", "correct-horse-battery"])
def test_secret_default_is_hidden_in_every_manifest_form(manifest: str, default: str) -> None:
    """The default value of a secret parameter is masked in every manifest format. The same word elsewhere in the
    request is kept.
    """
    redactor = Redactor()
    text = {"type": "string", "default": default}
    properties = {"user": text, "pin_password": text}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": properties}}
    body = {"model": "m", "input": f"My word is {default}.", "tools": [tool]}
    redactor.learn_schemas(body)

    def sent(client: bytes) -> bytes:
        rewritten = rewrite_request(
            "responses", "/v1/responses", client, Policy(manifest=manifest), output_mode=None, report=Report()
        )
        assert rewritten is not None
        return rewritten.body

    client = json.dumps(body).encode()
    hidden = redactor.body(sent(client), "application/json")
    assert hidden == sent(redactor.body(client, "application/json"))
    assert hidden.count(default.encode()) < sent(client).count(default.encode()) or manifest == "typescript"


@pytest.mark.parametrize(
    ("url", "hidden"),
    [
        ("http://name:word@host", "http://xxxxxxxxx@host"),
        ("http://name:w@rd@host/", "http://xxxxxxxxx@host/"),
        ("https://name:word@host:1/a/b?c", "https://xxxxxxxxx@host:1/xxxxx"),
        ("https://host", "https://host"),
        ("https://host/a", "https://host/x"),
    ],
)
def test_mcp_server_url_is_redacted(url: str, hidden: str) -> None:
    body = json.dumps({"tools": [{"type": "mcp", "server_url": url}]}).encode()
    assert json.loads(Redactor().body(body, "application/json"))["tools"][0]["server_url"] == hidden


def test_secrets_in_data_urls() -> None:
    """A data URL is masked only if its data decodes to text that contains a secret."""
    secret, plain = (base64.b64encode(text).decode() for text in (b"my key is sk-abcdefgh1234", b"my key is at home"))
    picture = base64.b64encode(bytes(range(256))).decode()
    urls = [f"data:text/plain;base64,{secret}", "data:,my%20key%20is%20sk-abcdefgh1234"]
    kept = [f"data:text/plain;base64,{plain}", f"data:image/png;base64,{picture}", "data:,my%20key%20is%20at%20home"]
    body = json.dumps({"input": [*urls, *kept]}).encode()
    found = json.loads(Redactor().body(body, "application/json"))["input"]
    assert found[2:] == kept
    for url, shown in zip(urls, found, strict=False):
        assert len(url) == len(shown)
        assert set(shown.partition(",")[2]) == {"x"}
