"""Stored answers and conversations as HTTP resources: paths, pagination, and changes to records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from toolsim.core.errors import BadRequest
from toolsim.wire.responses.resources import Resource, ResourceCall, page, resource_of, respond, wrong_method

ANSWER = json.dumps({"response": {"id": "r"}, "input": [{"id": "i1"}, {"id": "i2"}]}).encode()
TALK = json.dumps({"conversation": {"id": "c", "metadata": {}}, "items": [{"id": "i1"}, {"id": "i2"}]}).encode()


@each(
    ("path", "resource"),
    [
        ("/v1/responses", None),
        ("/v1/responses/", None),
        ("/v1/responses/input_tokens", None),
        ("/v1/responses/compact", None),
        ("/v1/responses/r/other", None),
        ("/v1/models", None),
        ("/v1/responses/r?stream=true", Resource("response", "r")),
        ("/responses/r/", Resource("response", "r")),
        ("/v1/responses/r/input_items", Resource("input_items", "r")),
        ("/v1/responses/r/cancel", Resource("cancel", "r")),
        ("/v1/conversations", Resource("conversations")),
        ("/v1/conversations/c", Resource("conversation", "c")),
        ("/v1/conversations/c/items?limit=3", Resource("items", "c")),
        ("/v1/conversations/c/items/i", Resource("item", "c", "i")),
        ("/v1/conversations/c/other", None),
    ],
)
def test_paths(path: str, resource: Resource | None) -> None:
    """Each resource path is recognized with any prefix, and other paths are not recognized."""
    assert resource_of(path) == resource


@given(st.integers(0, 30), st.integers(1, 12), st.sampled_from(["asc", "desc"]))
def test_pages_contain_each_item_once(count: int, limit: int, order: str) -> None:
    """Successive pages contain each item exactly once, in the requested order."""
    items = [{"id": f"i{number}"} for number in range(count)]
    read: list[Any] = []
    query = f"limit={limit}&order={order}"
    while True:
        got = page(items, query + (f"&after={read[-1]['id']}" if read else ""))
        read += got["data"]
        assert len(got["data"]) <= limit
        assert (got["first_id"], got["last_id"]) == (
            (got["data"][0]["id"], read[-1]["id"]) if got["data"] else (None, None)
        )
        if not got["has_more"]:
            break
    assert read == (items if order == "asc" else items[::-1])


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_paging_ends_with_a_duplicate_item(order: str) -> None:
    """A duplicated item is listed only once, so that paging ends. Deleting the item removes all of its copies."""
    items = [{"id": f"i{number}"} for number in range(30)] * 2
    first = page(items, f"order={order}")
    second = page(items, f"order={order}&after={first['last_id']}")
    assert (first["has_more"], second["has_more"]) == (True, False)
    read = first["data"] + second["data"]
    assert read == (items[:30] if order == "asc" else items[29::-1])
    value = json.dumps({"conversation": {"id": "c"}, "items": items}).encode()
    left = json.loads(respond(ResourceCall(Resource("item", "c", "i1"), "DELETE"), value).value)["items"]
    assert {"id": "i1"} not in left


@each(
    ("call", "value", "words"),
    [
        (ResourceCall(Resource("response", "r"), "GET"), None, "Response with id 'r' not found."),
        (ResourceCall(Resource("response", "c"), "GET"), TALK, "Response with id 'c' not found."),
        (ResourceCall(Resource("conversation", "r"), "GET"), ANSWER, "Conversation with id 'r' not found."),
        (ResourceCall(Resource("conversation", "c"), "GET"), b"damaged", "Conversation with id 'c' not found."),
        (ResourceCall(Resource("item", "c", "x"), "GET"), TALK, "Item with id 'x' not found."),
        (ResourceCall(Resource("cancel", "r"), "POST"), ANSWER, "Cannot cancel"),
        (ResourceCall(Resource("response", "r"), "GET", "stream=true"), ANSWER, "streamed again"),
        (ResourceCall(Resource("items", "c"), "POST", "", b"{}"), TALK, "Missing required parameter: 'items'"),
        (ResourceCall(Resource("items", "c"), "POST", "", b'{"items":[5]}'), TALK, r"items\[0\]"),
        (
            ResourceCall(Resource("items", "c"), "POST", "", b'{"items":[{"role":"user"},{}]}'),
            TALK,
            r"items\[1\]\.role",
        ),
        (
            ResourceCall(Resource("conversations"), "POST", "", b'{"items":[{"role":"user","content":5}]}'),
            None,
            "content",
        ),
        (ResourceCall(Resource("items", "c"), "POST", "", b"no"), TALK, "not a JSON object"),
        (ResourceCall(Resource("conversation", "c"), "POST", "", b'{"metadata":5}'), TALK, "metadata"),
        (ResourceCall(Resource("conversations"), "POST", "", b'{"items":{}}'), None, "items"),
        (ResourceCall(Resource("input_items", "r"), "GET", "limit=x"), ANSWER, "Invalid 'limit'"),
    ],
)
def test_errors(call: ResourceCall, value: bytes | None, words: str) -> None:
    """An invalid request causes an error with a description. If a resource does not exist, the error has status 404."""
    with pytest.raises(BadRequest, match=words.rstrip(".")) as caught:
        respond(call, value)
    assert caught.value.error.status == (404 if "not found" in words else 400)


def test_calls_write_only_changes() -> None:
    """Reading a record writes nothing. Deleting a record writes an empty value. A change keeps all other parts of the
    record.
    """
    assert respond(ResourceCall(Resource("response", "r"), "GET"), ANSWER).id == ""
    for resource, value in (Resource("response", "r"), ANSWER), (Resource("conversation", "c"), TALK):
        gone = respond(ResourceCall(resource, "DELETE"), value)
        assert (gone.id, gone.value) == (resource.id, b"")
    changed = respond(ResourceCall(Resource("conversation", "c"), "POST", "", b'{"metadata":{"a":"b"}}'), TALK)
    assert json.loads(changed.value) == json.loads(TALK) | {"conversation": {"id": "c", "metadata": {"a": "b"}}}
    added = respond(ResourceCall(Resource("items", "c"), "POST", "", b'{"items":[{"id":"i3","role":"user"}]}'), TALK)
    assert [item["id"] for item in json.loads(added.value)["items"]] == ["i1", "i2", "i3"]
    left = respond(ResourceCall(Resource("item", "c", "i1"), "DELETE"), TALK)
    assert (left.body["id"], json.loads(left.value)["items"]) == ("c", [{"id": "i2"}])
    made = respond(ResourceCall(Resource("conversations"), "POST"), None)
    assert made.id == made.body["id"]
    assert json.loads(made.value) == {"conversation": made.body, "items": []}


def test_methods() -> None:
    """A method that a resource does not support is refused with status 405."""
    assert wrong_method(ResourceCall(Resource("response", "r"), "DELETE")) is None
    error = wrong_method(ResourceCall(Resource("input_items", "r"), "DELETE"))
    assert error is not None
    assert (error.status, error.code) == (405, "method_not_allowed")
