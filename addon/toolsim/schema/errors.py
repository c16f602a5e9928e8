"""One-line messages about unusable schemas and nonconforming values, for clients and the log."""

from __future__ import annotations

from typing import Any

MAX_MESSAGE = 300
"""Maximum length of a message, in characters. jsonschema quotes the entire value in its messages, but a client needs
one readable line.
"""

MAX_OUTLINE = 120
"""Maximum length, in characters, of a message in logs, where it is part of a longer line."""


class SchemaError(Exception):
    """Raised for a schema that cannot be used. The message states the reason in one line, for the client."""


def best(errors: list[Any]) -> Any:
    """Return the most relevant of the errors that jsonschema has found."""
    from jsonschema.exceptions import best_match  # Imported on demand; see ``compile``.

    try:
        return best_match(errors)
    # ``best_match`` inspects the schema and the value again, and can therefore raise the same exceptions as a check.
    except Exception:
        return errors[0]


def message(error: Any) -> str:
    """Return the location (a JSON pointer) and the reason for a mismatch: ``/days: got string, expected integer``."""
    text = f"{_where(error)}: {_wrong_type(error) or error.message}"
    # A property name can contain half of a surrogate pair, which UTF-8 cannot encode.
    text = text.encode("utf-8", "backslashreplace").decode()
    # The message begins with the location and the value, and ends with the reason, so the middle is cut.
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[: half - 1]}…{text[-half:]}"


def outline(error: Any) -> str:
    """Return a message for logs that does not quote the value: ``/city: is not one of the allowed values``."""
    text = f"{_where(error)}: {_wrong_type(error) or _violation(error)}".encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_OUTLINE else f"{text[: MAX_OUTLINE - 1]}…"


def _where(error: Any) -> str:
    return "".join(f"/{_step(step)}" for step in error.absolute_path) or "/"


def _step(step: object) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _wrong_type(error: Any) -> str:
    """Return the message for a value of the wrong type, or "" for any other mismatch.

    jsonschema's own message would quote the entire value. The types are enough, because the caller already has the
    value.
    """
    if error.validator != "type":
        return ""
    named = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
    return f"got {_type_name(error.instance)}, expected {' or '.join(map(str, named))}"


def _violation(error: Any) -> str:
    """Return the message for a value of the correct type. It describes the part of the schema that the value
    violates.
    """
    match str(error.validator), error.validator_value:
        case "required", [*names] if isinstance(error.instance, dict):
            return f"lacks {', '.join(str(name) for name in names if name not in error.instance)}"
        case "enum", _:
            return "is not one of the allowed values"
        case "additionalProperties" | "unevaluatedProperties", _:
            return "has an unexpected property"
        case keyword, _:
            return f"breaks {keyword}"


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
