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
    """Return where (as a JSON pointer) and why a value does not conform: ``/days: got string, expected integer``."""
    where = "".join(f"/{_step(each)}" for each in error.absolute_path) or "/"
    text = f"{where}: {_wrong_type(error) or error.message}"
    # A path may hold half of a surrogate pair, which no wire can carry.
    text = text.encode("utf-8", "backslashreplace").decode()
    # The value comes first and the reason last: cut between the two.
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[: half - 1]}…{text[-half:]}"


def _step(step: object) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _wrong_type(error: Any) -> str:
    """Return what is wrong with a value of the wrong type, "" where something else is wrong.

    The value itself, which jsonschema would quote, is what the reader sent: the types are what it has to learn.
    """
    if error.validator != "type":
        return ""
    named = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
    return f"got {_type_name(error.instance)}, expected {' or '.join(map(str, named))}"


def _type_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"
