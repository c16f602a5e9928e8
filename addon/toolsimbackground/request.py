"""A request whose answer is made in the background: the question to the model, and the form of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from toolsimlib.errors import BadRequest
from toolsimlib.plan import AnswerForm, ApiName, StoredAs
from toolsimlib.report import Report
from toolsimlib.request.rewrite import as_stored, read
from toolsimlib.wire.api import Api
from toolsimlib.wire.dialect import APIS
from toolsimlib.wire.json_codec import dump, read_body
from toolsimlib.wire.responses.stored import Recalled, resolve


class Asked(NamedTuple):
    """A request for such an answer. ``body``: that of the request to the model."""

    form: AnswerForm
    body: bytes
    own: bytes
    """Its own items, in the form in which they are stored: a JSON array."""
    names: tuple[str, ...]
    """The ids that they got."""


def read_request(client: ApiName, stored_as: StoredAs, data: bytes) -> Asked:
    """Read a request. Raises BadRequest."""
    document = read_body(data)
    if document is None:
        raise BadRequest("The request body is not a JSON object.")
    form, asked = in_background(APIS[client], document, stored_as)
    own = resolve(document, Recalled())
    return Asked(form, dump(asked).encode(), dump(own.own).encode(), own.names)


def in_background(client: Api, document: Mapping[str, Any], stored_as: StoredAs) -> tuple[AnswerForm, dict[str, Any]]:
    """Return the form of an answer that is made in the background, and the request to the model.

    The request is always for a stream, which shows that the backend is alive and can be stopped at any moment. Raises
    BadRequest.
    """
    asked = {key: value for key, value in document.items() if key != "background"}
    request = as_stored(read(client, asked, Report()), stored_as)
    if not request.form.id:
        message = "'background' needs 'store' to be true: an answer that is not stored cannot be fetched later."
        raise BadRequest(message, "background", "invalid_value")
    form = replace(request.form, echo={**request.form.echo, "background": True})
    return form, {**request.body, "stream": True}
