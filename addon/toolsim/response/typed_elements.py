"""The values of XML elements, each of the type that the schema of its property asks for.

XML has no types. So an element's content is a string if a string conforms, otherwise JSON, and then:

    <a>True</a>                     true; likewise False, None and none
    <a>{'b': 1}</a>                 {"b": 1}: an object or array with slips, if it conforms without them (``repair``)
    <a><item>x</item></a>           ["x"]
    <a><b>x</b></a>                 {"b": "x"}
    <a>x</a><a>y</a>                ["x", "y"]
    <a>x</a>                        ["x"], if only an array conforms
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from toolsim.response.checker import SchemaChecker
from toolsim.response.repair import PYTHON_WORDS, mend
from toolsim.response.written import Json, json_object, read_elements, read_value, trim, unescape
from toolsim.schema import Validator

_BARE_WORDS = PYTHON_WORDS | {"none": "null"}
"""Where no quotes are needed, models also write this for JSON's literals."""


class ElementTypes:
    """Gives the elements of one call their types; ``repair``: slips within a value are repaired."""

    def __init__(self, checker: SchemaChecker, *, repair: bool) -> None:
        self._checker = checker
        self._repair = repair

    def object(self, elements: Iterable[tuple[str, str]], schema: Validator | None) -> Json | None:
        """Return the object that has an element, by its name and raw content, as each property.

        None if a name comes several times, and its schema does not allow an array.
        """
        grouped: dict[str, list[str]] = {}
        for name, content in elements:
            grouped.setdefault(name, []).append(trim(unescape(content)))
        members: dict[str, Json] = {}
        for name, texts in grouped.items():
            member = self._property(texts, schema.property(name) if schema else None)
            if member is None:
                return None
            members[name] = member
        return json_object(members)

    def _property(self, texts: list[str], schema: Validator | None) -> Json | None:
        """Return the value of all elements of one name, None if they are several but no array."""
        if len(texts) > 1:
            return self._array(texts, schema) if schema and "array" in schema.types() else None
        if schema is None:
            return _as_string(texts[0])
        if nested := self._nested(texts[0], schema):
            return nested
        single = self._text(texts[0], schema)
        if self._checker.conforms(schema, single.value) or "array" not in schema.types():
            return single
        listed = self._array(texts, schema)
        return listed if self._checker.conforms(schema, listed.value) else single

    def _nested(self, text: str, schema: Validator) -> Json | None:
        """Return the array of ``<item>`` elements, or the object of others, if the schema allows one."""
        types = schema.types()
        if "string" in types or not {"array", "object"} & types or not text.lstrip().startswith("<"):
            return None
        elements = read_elements(text)
        if not elements:
            return None
        if "array" in types and all(name == "item" for name, _ in elements):
            return self._array([trim(unescape(content)) for _, content in elements], schema)
        return self.object(elements, schema) if "object" in types else None

    def _array(self, texts: list[str], schema: Validator) -> Json:
        item = schema.items()
        items = [(item and self._nested(text, item)) or self._text(text, item) for text in texts]
        source = ",".join(item.source for item in items)
        return Json(f"[{source}]", [item.value for item in items])

    def _text(self, text: str, schema: Validator | None) -> Json:
        """Return the value of a text; if nothing conforms, the schema's own type decides which mismatch is reported."""
        string, bare = _as_string(text), text.strip()
        if schema is None:
            return string
        types, conforms = schema.types(), self._checker.conforms
        if bare == "null" and "null" in types and conforms(schema, None):
            return Json("null", None)
        value = read_value(_BARE_WORDS.get(bare, bare))
        # If the schema names no strings, JSON comes first. A check that stays undecided counts as not conforming.
        if types and "string" not in types:
            if value is not None and conforms(schema, value.value):
                return value
            if (mended := self._mended(bare)) is not None and conforms(schema, mended.value):
                return mended
        if conforms(schema, text):
            return string
        if bare != text and conforms(schema, bare):
            return _as_string(bare)
        if value is not None and ("string" not in types or conforms(schema, value.value)):
            return value
        return string

    def _mended(self, text: str) -> Json | None:
        """Return the object or array that a text is once its slips are repaired."""
        mended = mend(text) if self._repair else None
        return read_value(mended.text) if mended is not None and mended.end == len(text) else None


def _as_string(text: str) -> Json:
    return Json(json.dumps(text, ensure_ascii=False), text)
