"""A request whose answer is made in the background: the question to the model, and the form of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolsimlib.errors import BadRequest
from toolsimlib.plan import AnswerForm, StoredAs
from toolsimlib.report import Report
from toolsimlib.request.rewrite import as_stored, read
from toolsimlib.wire.api import Api


def in_background(
    client: Api, document: Mapping[str, Any], stored_as: StoredAs, report: Report
) -> tuple[AnswerForm, dict[str, Any]]:
    """Return the form of an answer that is made in the background, and the request to the model.

    The request is always for a stream, which shows that the backend is alive and can be stopped at any moment. Raises
    BadRequest.
    """
    asked = {key: value for key, value in document.items() if key != "background"}
    request = as_stored(read(client, asked, report), stored_as)
    if not request.form.id:
        message = "'background' needs 'store' to be true: an answer that is not stored cannot be fetched later."
        raise BadRequest(message, "background", "invalid_value")
    form = replace(request.form, echo={**request.form.echo, "background": True})
    return form, {**request.body, "stream": True}
