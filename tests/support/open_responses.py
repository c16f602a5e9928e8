"""Validates objects against the published schemas of the Open Responses specification, from a package on PyPI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

types = pytest.importorskip("openresponses_types", reason="needs the extra [clients]: run `make setup`")


def check_response(response: Mapping[str, Any]) -> None:
    """Raise an exception if a response or compaction object does not conform to its schema."""
    kinds = {"response": types.ResponseResource, "response.compaction": types.CompactResource}
    kinds[response["object"]].model_validate_json(json.dumps(response), strict=True)


def check_event(event: Mapping[str, Any]) -> None:
    """Raise an exception if a stream event does not conform to its schema."""
    _events()[event["type"]].model_validate_json(json.dumps(event), strict=True)


@cache
def _events() -> dict[str, Any]:
    """Return the models of all events, by event type."""
    models = [model for name, model in vars(types).items() if name.endswith("StreamingEvent")]
    return {kind.value: model for model in models for kind in model.model_fields["type"].annotation}
