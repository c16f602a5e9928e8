"""Why a schema cannot be used, and why a value does not conform, in one line for the client."""

from __future__ import annotations

from typing import Any

from jsonschema import exceptions as jsonschema_exceptions

MAX_MESSAGE = 300
"""jsonschema quotes the whole offending value; a client wants to read a line."""


class SchemaError(Exception):
    """The schema cannot be used; the message says why, in one line for the client."""


def best(errors: list[Any]) -> Any:
    """Return the most telling of jsonschema's errors."""
    try:
        return jsonschema_exceptions.best_match(errors)
    except Exception:  # it looks at the schema and the value again, and breaks as the check itself may
        return errors[0]


def message(error: Any) -> str:
    """Return where and why a value does not conform."""
    text = f"{error.json_path}: {error.message}"
    # A path may hold half of a surrogate pair, which no wire can carry.
    text = text.encode("utf-8", "backslashreplace").decode()
    # The value comes first and the reason last: cut between the two.
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[: half - 1]}…{text[-half:]}"
