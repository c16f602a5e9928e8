"""Corrects the types of arguments by the tool's schema: the last repair of a call, for every form.

Models write numbers, booleans and whole arrays as JSON strings, and a single value where an array belongs:

    {"count": "5"}                  {"count": 5}
    {"on": "True"}                  {"on": true}
    {"tags": "[\"a\", \"b\"]"}      {"tags": ["a", "b"]}
    {"domain": "light"}             {"domain": ["light"]}

1. A value is corrected only if it does not conform to its schema and the corrected value does. The caller checks the
   same of the complete arguments.
2. A string becomes the number, boolean, null, array or object that it spells, if the schema has no type "string" there.
   A string, number or boolean becomes the only item of an array. Nothing ever becomes a string.
3. Values without a schema of their own (members of a free-form object) stay as they are.
4. Values that are not corrected keep their source.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from toolsim.response.arguments import Arguments
from toolsim.response.checker import SchemaChecker
from toolsim.response.repair import PYTHON_WORDS, mend
from toolsim.response.written import Json, json_object, read_items, read_pairs, read_value
from toolsim.schema import Validator

VALUE_TYPE = "VALUE_TYPE"

_MAX_DEPTH = 16
"""Nested arrays and objects; each level is checked once more."""

_MAX_VALUES = 1_000
"""Values that are looked at in one call: more than any call with wrong types holds."""


def correct_types(found: Arguments, schema: Validator, checker: SchemaChecker) -> Arguments | None:
    """Return the arguments with the types that the schema wants, None if that does not make them conform."""
    given = Json(found.text.strip(), found.value)
    corrected = _Correction(checker).value(given, [schema], 0)
    if corrected is given:
        return None
    return Arguments(corrected.source, corrected.value, found.codes, (*found.mends, VALUE_TYPE))


class _Correction:
    """The correction of one call's arguments."""

    def __init__(self, checker: SchemaChecker) -> None:
        self._conforms = checker.conforms
        self._values_left = _MAX_VALUES

    def value(self, given: Json, schemas: Sequence[Validator], depth: int) -> Json:
        """Return the value corrected by the first schema that allows it; the given one if none does or none has to."""
        self._values_left -= 1
        if depth > _MAX_DEPTH or self._values_left < 0 or any(self._conforms(one, given.value) for one in schemas):
            return given
        for schema in schemas:
            corrected = self._by(given, schema, depth)
            if corrected is not given and self._conforms(schema, corrected.value):
                return corrected
        return given

    def _by(self, given: Json, schema: Validator, depth: int) -> Json:
        """Return a value corrected by one schema, to which it might still not conform."""
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
            # An array that is not JSON is not the only item of another array, and an empty string is none at all.
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
        # A key that is there twice has two values, and no correction may drop one.
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
    """Return the JSON value other than a string that a text spells, None if there is none."""
    bare = text.strip()
    bare = PYTHON_WORDS.get(bare, bare)
    value = read_value(bare)
    if value is None and (mended := mend(bare)) is not None and mended.end == len(bare):
        value = read_value(mended.text)
    match value:
        case None | Json(value=str()):
            return None
        case Json(value=float() as number) if not isfinite(number):
            return None
    return value
