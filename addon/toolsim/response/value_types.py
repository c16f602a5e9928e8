r"""Converts arguments to the types in the tool's schema: untyped XML elements, and JSON with incorrect types.

*XML elements* are untyped. An element's content becomes a string if the schema accepts this string, otherwise JSON.
These additional conversions are made:

    <a>True</a>                     true; likewise False, None and none
    <a>{'b': 1}</a>                 {"b": 1}: a malformed object or array, if it conforms after a repair (``repair``)
    <a><item>x</item></a>           ["x"]
    <a><b>x</b></a>                 {"b": "x"}
    <a>x</a><a>y</a>                ["x", "y"]
    <a>x</a>                        ["x"], if the schema accepts only an array

The types of *JSON* values are corrected as the last repair of a call, in all call forms.

Models write numbers, booleans and entire arrays as JSON strings, and a single value instead of an array:

    {"count": "5"}                  {"count": 5}
    {"on": "True"}                  {"on": true}
    {"tags": "[\"a\", \"b\"]"}      {"tags": ["a", "b"]}
    {"domain": "light"}             {"domain": ["light"]}

1. A value is corrected only if it does not conform to its schema and the corrected value does. The caller checks the
   complete arguments in the same way.
2. A string becomes the number, boolean, null, array or object that it represents, if the schema does not allow strings
   at this position. A string, number or boolean becomes the only item of an array. Values never become strings.
3. Values without a schema (members of a free-form object) remain unchanged.
4. All other values remain exactly as the model wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isfinite

from toolsim.response.checker import SchemaChecker
from toolsim.response.parsed_call import (
    Json,
    json_object,
    read_elements,
    read_items,
    read_pairs,
    read_value,
    trim,
    unescape,
)
from toolsim.response.repair import PYTHON_WORDS, repair_json
from toolsim.schema import Validator

VALUE_TYPE = "VALUE_TYPE"

_MAX_DEPTH = 16
"""Maximum nesting depth of corrected values. The values on each level are checked again, which takes time."""

_MAX_VALUES = 1_000
"""Maximum number of values that are inspected in one call. Real calls with incorrect types have fewer values."""


def correct_types(given: Json, schema: Validator, checker: SchemaChecker) -> Json | None:
    """Return the arguments with the types from the schema, or None if they already conform or cannot be corrected."""
    corrected = _Correction(checker).value(given, [schema], 0)
    return None if corrected is given else corrected


class _Correction:
    """Corrects the types of one call's arguments."""

    def __init__(self, checker: SchemaChecker) -> None:
        self._conforms = checker.conforms
        self._values_left = _MAX_VALUES

    def value(self, given: Json, schemas: Sequence[Validator], depth: int) -> Json:
        """Return the value unchanged if it conforms to any of the schemas. Otherwise, return the first corrected value
        that conforms. If there is none, return the value unchanged.
        """
        self._values_left -= 1
        if depth > _MAX_DEPTH or self._values_left < 0 or any(self._conforms(one, given.value) for one in schemas):
            return given
        for schema in schemas:
            corrected = self._by(given, schema, depth)
            if corrected is not given and self._conforms(schema, corrected.value):
                return corrected
        return given

    def _by(self, given: Json, schema: Validator, depth: int) -> Json:
        """Return the value, corrected according to one schema. The result does not always conform to the schema."""
        types = schema.types()
        match given.value:
            case dict():
                return self._object(given, schema, depth)
            case list():
                return self._array(given, schema, depth)
            case None:
                return given
            case str() if "string" in types:
                return given
            case str() as text if (spelled := _spelled(text)) is not None:
                if self._conforms(schema, spelled.value):
                    return spelled
                return self._by(spelled, schema, depth + 1) if depth < _MAX_DEPTH else given
            # Text that looks like a malformed array or object remains a string, as does an empty string.
            case str() as text if not text.strip() or text.lstrip().startswith(("[", "{")):
                return given
        if "array" not in types:
            return given
        items = schema.items()
        item = self.value(given, [items], depth + 1) if items else given
        return Json(f"[{item.source}]", [item.value])

    def _object(self, given: Json, schema: Validator, depth: int) -> Json:
        pairs, _ = read_pairs(given.source, 0) or ([], 0)
        members = {
            key: self.value(member, schemas, depth + 1) if (schemas := schema.properties(key)) else member
            for key, member in pairs
        }
        # If a key is repeated, no correction is made, because one of its values would be lost.
        if len(members) < len(pairs) or all(members[key] is member for key, member in pairs):
            return given
        return json_object(members)

    def _array(self, given: Json, schema: Validator, depth: int) -> Json:
        read, schemas = read_items(given.source, 0), schema.items()
        if not read or schemas is None:
            return given
        items = [self.value(item, [schemas], depth + 1) for item in read]
        if all(item is before for item, before in zip(items, read, strict=True)):
            return given
        return Json(f"[{','.join(item.source for item in items)}]", [item.value for item in items])


def _spelled(text: str) -> Json | None:
    """Return the number, boolean, null, array or object that ``text`` represents, or None for any other text."""
    bare = text.strip()
    bare = PYTHON_WORDS.get(bare, bare)
    value = read_value(bare)
    if value is None and (repaired := repair_json(bare)) is not None and repaired.end == len(bare):
        value = read_value(repaired.text)
    match value:
        case None | Json(value=str()):
            return None
        case Json(value=float() as number) if not isfinite(number):
            return None
    return value


# -- XML elements


_BARE_WORDS = PYTHON_WORDS | {"none": "null"}
"""Additional spellings of JSON's literals. They are recognized only in values without quotes."""


class ElementTypes:
    """Converts the XML elements of a call to typed values. ``repair``: whether malformed JSON in an element is
    repaired.
    """

    def __init__(self, checker: SchemaChecker, *, repair: bool) -> None:
        self._checker = checker
        self._repair = repair

    def object(self, elements: Iterable[tuple[str, str]], schema: Validator | None) -> Json | None:
        """Return an object with one property per element, given by name and raw content.

        Returns None if a name occurs several times and its schema does not allow an array.
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
        """Return the value of all elements that have the same name, or None if there are several and the schema does
        not allow an array.
        """
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
        """Convert ``<item>`` elements to an array, or other elements to an object. Return None if ``text`` does not
        consist of elements, or if the schema allows neither.
        """
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
        """Convert the text of an element to a value that conforms to the schema.

        If no value conforms, return the string or, if the schema does not allow strings, the JSON value, because it
        results in a more specific error.
        """
        string, bare = _as_string(text), text.strip()
        if schema is None:
            return string
        types, conforms = schema.types(), self._checker.conforms
        if bare == "null" and "null" in types and conforms(schema, None):
            return Json("null", None)
        value = read_value(_BARE_WORDS.get(bare, bare))
        # JSON is preferred if the schema lists types, but not "string". A check that runs out of time counts as a
        # mismatch.
        if types and "string" not in types:
            if value is not None and conforms(schema, value.value):
                return value
            if (repaired := self._repaired(bare)) is not None and conforms(schema, repaired.value):
                return repaired
        if conforms(schema, text):
            return string
        if bare != text and conforms(schema, bare):
            return _as_string(bare)
        if value is not None and ("string" not in types or conforms(schema, value.value)):
            return value
        return string

    def _repaired(self, text: str) -> Json | None:
        """Repair ``text``, and return the object or array that it contains, or None if ``text`` cannot be repaired."""
        repaired = repair_json(text) if self._repair else None
        return read_value(repaired.text) if repaired is not None and repaired.end == len(text) else None


def _as_string(text: str) -> Json:
    return Json(json.dumps(text, ensure_ascii=False), text)
