import pytest
from toolsim.wire.apis import (
    APIS,
    CHAT,
    MESSAGES,
    RESPONSES,
    api_of_answer,
    api_of_event,
    api_of_path,
    api_of_request,
)


def test_each_api_has_its_name_as_key():
    """Each key of ``APIS`` equals the name of its API."""
    assert {name: api.name for name, api in APIS.items()} == {name: name for name in ("responses", "chat", "messages")}


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/responses", RESPONSES),
        ("/v1/responses/?a=/chat/completions", RESPONSES),
        ("/openai/chat/completions", CHAT),
        ("/v1/messages?beta=true", MESSAGES),
        ("/anthropic/v1/messages", MESSAGES),
        ("/channels/1/messages", None),
        ("/v1/models", None),
        ("/v1/responses/resp_1", None),
    ],
)
def test_api_of_path(path, api):
    """The API is identified by the end of a path, regardless of the prefix and the query."""
    assert api_of_path(path) is api


@pytest.mark.parametrize(("body", "api"), [({"messages": []}, CHAT), ({"input": "hi"}, RESPONSES), ({}, RESPONSES)])
def test_api_of_request(body, api):
    """The API can be identified from the body of a request."""
    assert api_of_request(body) is api


@pytest.mark.parametrize(
    ("body", "api"),
    [({"choices": []}, CHAT), ({"object": "response"}, RESPONSES), ({"output": []}, RESPONSES), ({"error": {}}, None)],
)
def test_api_of_answer(body, api):
    """The API can be identified from a non-streamed answer, unless the answer is only an error."""
    assert api_of_answer(body) is api


@pytest.mark.parametrize(
    ("event", "data", "api"),
    [
        ("", {"type": "response.created"}, RESPONSES),
        ("response.created", {}, RESPONSES),
        ("", {"choices": []}, CHAT),
        ("", {"error": {"message": "x"}}, CHAT),
        ("ping", {}, None),
        ("", {"type": 3}, None),
    ],
)
def test_api_of_event(event, data, api):
    """The first event that is specific to one API identifies the API of the entire stream."""
    assert api_of_event(event, data) is api


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_answer_form_needs_no_valid_body(api):
    """The stream flag and the model's name can be read from any body. An invalid value counts as absent."""
    form = api.answer_form({"stream": "yes", "model": 3, "stream_options": 1, "text": 7, "tools": {}})
    assert (form.stream, form.model) == (False, "")
    assert api.answer_form({"stream": True, "model": "m"}).stream
