from __future__ import annotations

from typing import Any

import pytest
from toolsim.request.fields import RESERVED, read_fields, with_fields


def test_defaults_and_overrides_are_applied() -> None:
    """The operator's default for a request field applies only if the client did not send the field. An override always
    applies. If the override is null, the field is removed.
    """
    body: dict[str, Any] = {"model": "m", "temperature": 1, "top_p": 0.5, "seed": 1}
    assert with_fields(body, defaults="", overrides="") == body
    defaults, overrides = '{"temperature": 0, "top_k": 5}', '{"top_p": 0.9, "seed": null, "stop": null}'
    changed = {"model": "m", "temperature": 1, "top_p": 0.9, "top_k": 5}
    assert with_fields(body, defaults=defaults, overrides=overrides) == changed
    # A null that the client sent is kept.
    assert with_fields({"seed": None}, defaults='{"seed": 3}', overrides='{"a": 1}') == {"seed": None, "a": 1}


@pytest.mark.parametrize("text", ["[1]", "{", "1", '{"tools": []}', '{"a": 1, "stream": true}', "[" * 100_000])
def test_invalid_fields_are_rejected(text: str) -> None:
    """The value of the option for additional request fields must be a JSON object and must not contain reserved
    fields.
    """
    with pytest.raises(ValueError, match=r"expected a JSON object|can set"):
        read_fields(text)


def test_empty_option_adds_no_fields() -> None:
    assert read_fields(" ") == {}
    assert "model" in RESERVED
