"""The list of models in the Messages API's shape."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from toolsimlib.wire.json_codec import dump, parse_object
from toolsimlib.wire.json_fields import mappings, seconds, string


def model_list(body: bytes) -> bytes:
    """Return OpenAI's list of models, or one of them, in this API's shape; any other body stays as it is."""
    document = parse_object(body)
    if document is not None and document.get("object") == "model" and string(document.get("id")):
        return dump(_model(document)).encode()
    if document is None or not isinstance(document.get("data"), list) or "has_more" in document:
        return body
    models = [_model(model) for model in mappings(document["data"]) if string(model.get("id"))]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {"first_id": None, "last_id": None}
    return dump({"data": models, "has_more": False, **ends}).encode()


def _model(model: Any) -> dict[str, Any]:
    # The API demands a time; servers that know none get the beginning of it.
    created = datetime.fromtimestamp(min(seconds(model.get("created")) or 0, 2**32), UTC)
    name = model["id"]
    return {"type": "model", "id": name, "display_name": name, "created_at": f"{created:%Y-%m-%dT%H:%M:%SZ}"}
