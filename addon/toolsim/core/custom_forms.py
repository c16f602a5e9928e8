"""Call forms declared by a user, for models whose markers toolsim does not know but whose calls have a known format.

    [[forms]]
    opening = "@@CALL"
    closing = "@@END"
    body = "json"
    keys = { name = "fn", arguments = "with" }

``call_forms`` processes custom forms in the same way as the built-in forms of model families, and ``toolsim_untagged``
controls both kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Body = Literal["any", "json", "named", "python", "elements", "pairs", "braces"]
"""Kinds of bodies; ``addon/docs/families.md`` has an example of each."""

BODIES: tuple[Body, ...] = get_args(Body)
_ENTRIES = ("opening", "closing", "body", "keys")
_KEYS = ("name", "arguments")
_LENGTHS = range(3, 65)
_NO_START = "{}()\"'`,:;.+-_|\\"


@dataclass(frozen=True, slots=True)
class CustomForm:
    """One declared call form. ``name_key`` and ``arguments_key`` are the keys of the tool's name and the arguments in a
    JSON body, or "" for the usual keys.
    """

    opening: str
    closing: str
    body: Body = "any"
    name_key: str = ""
    arguments_key: str = ""

    def table(self) -> dict[str, Any]:
        """Return the form as a table in the format of the TOML file."""
        keys = {"name": self.name_key, "arguments": self.arguments_key}
        given = {key: value for key, value in keys.items() if value}
        return {"opening": self.opening, "closing": self.closing, "body": self.body} | (
            {"keys": given} if given else {}
        )


class InvalidForm(ValueError):
    """Raised for an invalid form declaration. ``number`` is the form's index, and ``entry`` is the invalid key."""

    def __init__(self, number: int, entry: str, message: str) -> None:
        super().__init__(f"forms[{number}].{entry}: {message}")
        self.number = number
        self.entry = entry
        self.message = message


def read_forms(tables: Sequence[Mapping[str, Any]]) -> tuple[CustomForm, ...]:
    """Return the forms that these tables declare. Raises InvalidForm for the first invalid form."""
    forms: list[CustomForm] = []
    for number, table in enumerate(tables):
        forms.append(_read(number, table))
        if any(form.opening == forms[-1].opening for form in forms[:-1]):
            raise InvalidForm(number, "opening", f"{forms[-1].opening!r} is already the opening marker of another form")
    return tuple(forms)


def _read(number: int, table: Mapping[str, Any]) -> CustomForm:
    if surplus := [entry for entry in table if entry not in _ENTRIES]:
        raise InvalidForm(number, surplus[0], f"a form does not have this key; expected one of {', '.join(_ENTRIES)}")
    opening, closing = (_marker(number, entry, table.get(entry)) for entry in ("opening", "closing"))
    if opening == closing:
        raise InvalidForm(number, "closing", f"got {closing!r}, which is also the opening marker")
    body = table.get("body", "any")
    if body not in BODIES:
        raise InvalidForm(number, "body", f"got {body!r}, expected one of {', '.join(BODIES)}")
    keys = table.get("keys", {})
    if not isinstance(keys, Mapping) or not all(key in _KEYS and isinstance(keys[key], str) for key in keys):
        raise InvalidForm(number, "keys", f"got {keys!r}, expected a table with the strings name and arguments")
    if keys and body != "json":
        raise InvalidForm(number, "keys", f"a form whose body is {body!r} cannot have keys; only a json body can")
    return CustomForm(opening, closing, body, keys.get("name", ""), keys.get("arguments", ""))


def _marker(number: int, entry: str, value: object) -> str:
    if not isinstance(value, str) or len(value) not in _LENGTHS or value != value.strip() or "\n" in value:
        raise InvalidForm(number, entry, f"got {value!r}, expected one line of 3 to 64 characters")
    if value[0].isalnum() or value[0] in _NO_START:
        raise InvalidForm(
            number, entry, f"got {value!r}, expected a marker whose first character cannot begin a word or a value"
        )
    return value
