"""Extracts the arguments of a tool from a sentence.

Each parameter of the tool is a slot to be filled. The following types of values are tried in order, and a slot is
filled with the first suitable value in the sentence. No two slots use the same words.

    1. enum: values whose words are in the sentence
    2. numbers, in order of appearance
    3. quotations, for free text first (``_FREE_TEXT``: query, message, …) unless there is one for each slot
    4. names: addresses, URLs, dates, and runs of capitalized words that do not begin a sentence; only for required
       slots if there are any, and not for free text
    5. phrases after a preposition: everything to the end for free text, otherwise cut at "and" and at commas
    6. for required free text, the sentence itself, if nothing else was taken from it

If only one slot can use a type of value, it receives all values of this type, each in a separate call ("in Bonn and in
Paris"). An array receives all values in one call. A required slot without a value is null if the schema allows null, or
else an example value. An optional slot without a value is omitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from toolsim.backends.scripted.tool_selection import mask_quotes, quotes
from toolsim.backends.scripted.word_match import STOP_WORDS, is_alike, words
from toolsim.core.plan import Tool
from toolsim.request.example import example_arguments
from toolsim.wire.json_fields import mapping, mappings

_FREE_TEXT = frozenset(
    {"body", "content", "description", "expression", "input", "keywords", "message", "name", "note", "prompt"}
    | {"q", "query", "question", "search", "subject", "term", "text", "title", "topic"}
)
_NUMBER = re.compile(r"(?<![\w.,:/-])[-+]?\d+(?:\.\d+)?(?![\w:/-]|[.,]\d)")
_CAPITALISED = r"[^\W\d_a-z][\w'’-]*"
_NAME = re.compile(
    r"\bhttps?://[^\s<>]*[^\s<>.,;:!?)]|[\w.+-]+@[\w-]+\.[\w.-]*\w|\b\d{4}-\d\d-\d\d\b"
    rf"|{_CAPITALISED}(?: (?:(?:am|an|de|del|der|la|of|the) )?{_CAPITALISED})*"
)
_PREPOSITION = re.compile(
    r"\b(?:about|at|called|for|from|in|named|near|of|on|saying|that|to|with)\s+|:\s+", re.IGNORECASE
)
_EDGES = " \t\r\n.,;:!?\0"
# Schema keywords that provide a parameter's value if the user's sentence contains none.
_KNOWN_VALUES = frozenset({"const", "default", "enum", "examples"})
# Maximum number of words in the name of a person or thing. Longer phrases are not treated as names.
_MAX_PHRASE_WORDS = 4


def fill(tool: Tool, text: str) -> list[dict[str, Any]]:
    """Return the arguments for the calls to ``tool`` that ``text`` asks for, as a list with at least one element."""
    schema = tool.parameters or {}
    found = _find(tool, text)
    example = example_arguments(schema)
    missing = {name: _default(schema, name, example) for name in _required(schema) if name not in found}
    count = max((len(values) for values in found.values()), default=1)
    names = [name for name in mapping(schema.get("properties")) if name in found or name in missing]
    names += [name for name in missing if name not in names]
    return [
        {name: found[name][min(call, len(found[name]) - 1)] if name in found else missing[name] for name in names}
        for call in range(count)
    ]


def unanswered(tool: Tool, text: str) -> str | None:
    """Return the first required string parameter whose schema provides no value, or None if there is none.

    Also return None if ``text`` contains a value for any parameter.
    """
    schema = tool.parameters or {}
    if _find(tool, text):
        return None
    properties = mapping(schema.get("properties"))
    slots = [(name, mapping(properties.get(name))) for name in _required(schema)]
    made_up = [name for name, slot in slots if _type(slot) == "string" and not _KNOWN_VALUES.intersection(slot)]
    return next(iter(made_up), None)


def _find(tool: Tool, text: str) -> dict[str, list[Any]]:
    """Return the values in the text for each parameter. Parameters without values are omitted."""
    schema = tool.parameters or {}
    required = _required(schema)
    properties = mapping(schema.get("properties"))
    slots = [_Slot(name, mapping(given), is_required=name in required) for name, given in properties.items()]
    _Sentence(text, tool.name).fill(slots)
    return {slot.name: slot.values for slot in slots if slot.values is not None}


class _Slot:
    """One parameter of a tool. ``values`` contains the values from the sentence, or is None until a value is found."""

    def __init__(self, name: str, schema: Mapping[str, Any], *, is_required: bool) -> None:
        self.name = name
        self.is_required = is_required
        self.values: list[Any] | None = None
        schema = _simple(schema)
        self.is_array = _type(schema) == "array"
        self.item = _simple(mapping(schema.get("items"))) if self.is_array else schema
        self.type = _type(self.item)
        self.is_free_text = bool(_FREE_TEXT.intersection(words(name)))

    def take(self, values: Iterable[Any]) -> None:
        """Store the values that have the slot's type.

        Several values mean several calls, unless the slot is an array.
        """
        fitting = (value for value in values if self.type != "integer" or isinstance(value, int))
        if taken := list(dict.fromkeys(fitting)):
            self.values = [taken] if self.is_array else taken


class _Sentence:
    """A sentence without the words that slots have already used."""

    def __init__(self, text: str, tool: str) -> None:
        self._text = text
        self._left = mask_quotes(text)
        self._tool = words(tool)

    def fill(self, slots: Sequence[_Slot]) -> None:
        """Assign values from the sentence to the slots."""
        for slot in slots:
            if isinstance(values := slot.item.get("enum"), list):
                slot.take([value for value in values if isinstance(value, str) and self._take_words(value)])
        numbers = _open(slots, "integer", "number")
        _allot(numbers, [_number(text) for text in self._take(_NUMBER)] if numbers else [])
        strings = _open(slots, "string")
        quoted = [found[0][1:-1] for found in quotes(self._text)]
        if len(quoted) < len(strings):
            # If several slots are similar, the last one is preferred. For example, the body of a message is preferred
            # over its subject.
            strings.reverse()
            strings.sort(key=lambda slot: (not slot.is_free_text, not slot.is_required))
        _allot(strings, quoted)
        nameable = [slot for slot in _open(slots, "string") if not slot.is_free_text]
        # An optional slot must not receive a value that a required slot needs.
        nameable = [slot for slot in nameable if slot.is_required] or nameable
        _allot(nameable, self._take(_NAME, self._is_name) if nameable else [])
        for slot in _open(slots, "string"):
            slot.take(self._phrases(slot))

    def _take(
        self, pattern: re.Pattern[str], counts: Callable[[re.Match[str]], bool] = lambda found: True
    ) -> list[str]:
        """Mask the matches of the pattern for which ``counts`` returns true, and return them."""
        taken = [found for found in pattern.finditer(self._left) if counts(found)]
        for found in taken:
            start, end = found.span()
            self._left = self._left[:start] + "\0" * (end - start) + self._left[end:]
        return [found[0] for found in taken]

    def _take_words(self, value: str) -> bool:
        """Return whether the rest of the sentence contains all words of an enum value. If so, mask the value."""
        sentence, wanted = words(self._left), words(value)
        is_there = bool(wanted) and all(any(is_alike(word, other) for other in sentence) for word in wanted)
        if is_there:
            self._take(re.compile(rf"\b{re.escape(value)}\b", re.IGNORECASE))
        return is_there

    def _is_name(self, found: re.Match[str]) -> bool:
        """Return whether a match can be a name.

        It cannot if its words are from the tool's name, or if it is a single word at the beginning of a sentence.
        """
        before = self._left[: found.start()].rstrip()
        begins = not before or before[-1] in ".?!:"
        is_own = any(is_alike(word, other) for word in words(found[0]) for other in self._tool)
        return found[0] != "I" and not is_own and (not begins or " " in found[0])

    def _phrases(self, slot: _Slot) -> list[str]:
        """Return the phrases that follow the first preposition. If there are any, mask the rest of the sentence."""
        found = _PREPOSITION.search(self._left)
        rest = self._left[found.end() :] if found else ""
        if slot.is_free_text:
            phrases = [rest.partition("\0")[0].strip(_EDGES)]
            if not phrases[0] and slot.is_required and "\0" not in self._left:
                phrases = [self._text.strip()]
        else:
            parts = re.split(r"\b(?:and|or)\b|[,;.?!\0]+", rest)
            phrases = [_without_stop_words(_PREPOSITION.split(part)[-1]) for part in parts]
            phrases = [phrase for phrase in phrases if len(phrase.split()) <= _MAX_PHRASE_WORDS]
        if any(phrases):
            self._left = "\0" * len(self._left)
        return [phrase for phrase in phrases if phrase]


def _without_stop_words(phrase: str) -> str:
    """Return a phrase without stop words at its ends, such as an article or "please"."""
    left = phrase.split()
    while left and left[0].lower() in STOP_WORDS:
        del left[0]
    while left and left[-1].lower() in STOP_WORDS:
        del left[-1]
    return " ".join(left)


def _open(slots: Sequence[_Slot], *types: str) -> list[_Slot]:
    """Return the slots of the given types that have no value yet. Slots with an enum are left out."""
    return [slot for slot in slots if slot.values is None and slot.type in types and "enum" not in slot.item]


def _allot(slots: Sequence[_Slot], values: Sequence[Any]) -> None:
    """Assign one value to each slot. If the first slot is an array or the only slot, assign all values to it."""
    if len(slots) == 1 or (slots and slots[0].is_array):
        slots[0].take(values)
        return
    for slot, value in zip(slots, values, strict=False):
        slot.take([value])


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _required(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _default(schema: Mapping[str, Any], name: str, example: Mapping[str, Any]) -> Any:
    """Return the value of a required slot that has no value in the sentence."""
    kinds = mapping(mapping(schema.get("properties")).get(name)).get("type")
    return None if isinstance(kinds, list) and "null" in kinds else example.get(name, name)


def _simple(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first alternative of a schema that is not null, or the schema itself if it has no alternatives."""
    for keyword in ("anyOf", "oneOf"):
        for option in mappings(schema.get(keyword)):
            if option.get("type") != "null":
                return option
    return schema


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return next((name for name in kinds if isinstance(name, str) and name != "null"), "")
