"""The request to the model for an answer in the background."""

from __future__ import annotations

from typing import Any

import pytest
from toolsimbackground.request import in_background
from toolsimlib.errors import BadRequest
from toolsimlib.plan import StoredAs
from toolsimlib.wire.dialect import RESPONSES

BODY: dict[str, Any] = {"model": "m", "input": "hi", "background": True}


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_is_asked_for_a_stream(stream: bool) -> None:
    """Whatever the client asked for, which its answer still reports; the backend is not asked to store anything."""
    form, asked = in_background(RESPONSES, {**BODY, "stream": stream, "metadata": {"a": "b"}}, StoredAs("resp_1"))
    assert asked == {"model": "m", "input": "hi", "stream": True, "store": False, "metadata": {"a": "b"}}
    assert (form.stream, form.id, form.echo["background"], form.echo["store"]) == (stream, "resp_1", True, True)


@pytest.mark.parametrize(("sent", "echo"), [({"store": False}, {}), ({}, {"store": False})])
def test_it_has_to_be_kept(sent: dict[str, Any], echo: dict[str, Any]) -> None:
    """Otherwise nobody could fetch it; a client's own store: false in a request with stored references counts too."""
    with pytest.raises(BadRequest, match="needs 'store'") as caught:
        in_background(RESPONSES, BODY | sent, StoredAs("resp_1", echo))
    assert caught.value.error.param == "background"
