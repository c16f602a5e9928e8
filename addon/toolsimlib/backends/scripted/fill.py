"""Extraction of a tool's arguments from a sentence.

Each parameter is a slot. Each slot takes the first of these that the sentence has, in this order, and no two slots take
the same words.

    1. enum: values whose words are in the sentence. boolean: its name's words, false after "no", "not", "without"
    2. named: what follows the parameter's own name, "city: Bonn", "from Bonn to Paris", "3 days"
    3. formats: dates, addresses, URLs and sums for slots that are named accordingly
    4. numbers, in order of appearance
    5. quotations, for free text first (``_FREE_TEXT``: query, message, …) unless there is one for each slot
    6. proper names, runs of capitalised words that do not begin a sentence: for required slots first, not for free text
    7. phrases after a preposition: everything to the end for free text, otherwise cut at "and" and at commas
    8. for required free text, the sentence itself, if nothing else was taken from it

The only slot of its kind takes all values of that kind, and each of them makes a call: "in Bonn and in Paris". An array
takes them all in one call. A required slot that finds nothing gets the example of the schema, or null if that is
allowed; an optional one is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from toolsimlib.backends.scripted.choose import mask_quotes, quotes
from toolsimlib.backends.scripted.words import STOP_WORDS, is_alike, words
from toolsimlib.plan import Tool
from toolsimlib.request.example import example_arguments
from toolsimlib.wire.json_fields import mapping, mappings

_FREE_TEXT = frozenset(
    {"body", "content", "description", "expression", "input", "keywords", "message", "name", "note", "prompt", "q"}
    | {"query", "question", "search", "subject", "term", "text", "title", "topic"}
)
_NUMBER_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_NEGATIONS = frozenset({"no", "not", "without", "don't"})

_NUMBER = re.compile(
    rf"(?<![\w.,:/-])[-+]?\d+(?:\.\d+)?(?![\w:/-]|[.,]\d)|\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE
)
_DATE = re.compile(
    r"\b\d{4}-\d\d-\d\d(?:T[\d:.]+Z?)?\b|\b(?:today|tomorrow|yesterday|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b",
    re.IGNORECASE,
)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
_URL = re.compile(r"\bhttps?://[^\s<>]*[^\s<>.,;:!?)]")
_SUM = re.compile(r"[\d(][\d.() ]*(?:[-+*/^%×÷][\d.() ]+)+")
_CAPITALISED = re.compile(r"[^\W\d_a-z][\w'’-]*")
_NAME = re.compile(rf"{_CAPITALISED.pattern}(?: (?:(?:am|an|de|del|der|la|of|the) )?{_CAPITALISED.pattern})*")
_PREPOSITION = re.compile(
    r"\b(?:about|at|called|for|from|in|named|near|of|on|saying|that|to|with)\s+|:\s+", re.IGNORECASE
)
_EDGES = " \t\r\n.,;:!?\0"
# Keywords that supply a value without the sentence.
_KNOWN_VALUES = frozenset({"const", "default", "enum", "examples"})
# Longer phrases name nothing.
_MAX_PHRASE_WORDS = 4

# Where a value of a format is expected: in a slot of that ``format``, or with one of these words in its name.
_FORMATS: Mapping[str, tuple[frozenset[str], re.Pattern[str]]] = {
    "date": (frozenset({"date", "day", "when", "due", "time"}), _DATE),
    "email": (frozenset({"email", "mail", "recipient", "to"}), _EMAIL),
    "uri": (frozenset({"url", "uri", "link", "website"}), _URL),
    "expression": (frozenset({"expression", "formula", "equation"}), _SUM),
}


def fill(tool: Tool, text: str) -> list[dict[str, Any]]:
    """Return the arguments of each call of ``tool`` that ``text`` asks for; one call at least."""
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
    """Return a required parameter that ``text`` would have to give, if it gives no argument of ``tool`` at all."""
    schema = tool.parameters or {}
    if _find(tool, text):
        return None
    properties = mapping(schema.get("properties"))
    slots = [(name, mapping(properties.get(name))) for name in _required(schema)]
    made_up = [name for name, slot in slots if _type(slot) == "string" and not _KNOWN_VALUES.intersection(slot)]
    return next(iter(made_up), None)


def _find(tool: Tool, text: str) -> dict[str, list[Any]]:
    schema = tool.parameters or {}
    return _Sentence(text, tool.name).fill(mapping(schema.get("properties")), _required(schema))


class _Slot:
    """One parameter; ``values`` are those that it has taken, None before that."""

    def __init__(self, name: str, schema: Mapping[str, Any], *, required: bool) -> None:
        self.name = name
        self.words = words(name)
        self.required = required
        self.values: list[Any] | None = None
        self.schema = _simple(schema)
        self.is_array = _type(self.schema) == "array"
        self.item = _simple(mapping(self.schema.get("items"))) if self.is_array else self.schema
        self.type = _type(self.item)
        self.is_free_text = bool(_FREE_TEXT.intersection(self.words))

    def take(self, values: Iterable[Any]) -> None:
        """Take the values, if there are any: one for each call, or all as one array."""
        if taken := list(dict.fromkeys(values)):
            self.values = [taken] if self.is_array else taken


class _Sentence:
    """The text; whatever a slot has taken is blotted out."""

    def __init__(self, text: str, tool: str) -> None:
        self._text = text
        self._left = text
        self._tool = words(tool)

    def fill(self, properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, list[Any]]:
        """Return the values of each slot that found any."""
        slots = [_Slot(name, mapping(schema), required=name in required) for name, schema in properties.items()]
        quoted = list(quotes(self._text))
        self._left = mask_quotes(self._text)
        for slot in slots:
            self._take_choice(slot)
        for slot in _open(slots):
            self._take_named(slot)
        for form, (names, pattern) in _FORMATS.items():
            for slot in _open(slots, "string"):
                if slot.item.get("format") in (form, f"{form}-time") or names.intersection(slot.words):
                    slot.take(self._take(pattern))
        numbers = [slot for slot in _open(slots) if slot.type in ("integer", "number")]
        _allot(numbers, [_number(text) for text in self._take(_NUMBER)] if numbers else [])
        strings = _open(slots, "string")
        if len(quoted) < len(strings):
            # The last of equals: a body rather than a subject.
            strings.reverse()
            strings.sort(key=lambda slot: (not slot.is_free_text, not slot.required))
        _allot(strings, [found[0][1:-1] for found in quoted])
        nameable = [slot for slot in _open(slots, "string") if not slot.is_free_text]
        # An optional slot must not take the second of two values for the one that is required.
        nameable = [slot for slot in nameable if slot.required] or nameable
        _allot(nameable, self._names() if nameable else [])
        for slot in _open(slots, "string"):
            slot.take(self._phrases(slot))
        return {slot.name: slot.values for slot in slots if slot.values is not None}

    def _take(self, pattern: re.Pattern[str], keep: Callable[[re.Match[str]], bool] = lambda found: True) -> list[str]:
        """Return what the pattern finds, and blot it out."""
        taken = [found for found in pattern.finditer(self._left) if keep(found)]
        for found in taken:
            self._blot(*found.span())
        return [found[0] for found in taken]

    def _blot(self, start: int, end: int) -> None:
        self._left = self._left[:start] + "\0" * (end - start) + self._left[end:]

    def _take_choice(self, slot: _Slot) -> None:
        values = slot.item.get("enum")
        if isinstance(values, list):
            named = [value for value in values if isinstance(value, str) and value and self._holds(value)]
            for value in named:
                self._take(re.compile(rf"\b{re.escape(value)}\b", re.IGNORECASE))
            slot.take(named)
        elif slot.type == "boolean":
            name = [word for word in slot.words if word not in STOP_WORDS] or slot.words
            sentence = words(self._left)
            for at, word in enumerate(sentence):
                if name and is_alike(word, name[-1]):
                    slot.take([not _NEGATIONS.intersection(sentence[max(0, at - 2) : at])])
                    self._take(re.compile(rf"(?:\b(?:{'|'.join(_NEGATIONS)})\s+)?\b{re.escape(word)}\b", re.IGNORECASE))

    def _holds(self, value: str) -> bool:
        """Return whether all words of an enum's value are left in the sentence."""
        sentence, wanted = words(self._left), words(value)
        return bool(wanted) and all(any(is_alike(word, other) for other in sentence) for word in wanted)

    def _take_named(self, slot: _Slot) -> None:
        name = r"[\s_-]*".join(map(re.escape, slot.words))
        if not name:
            return
        if slot.type in ("integer", "number"):
            patterns = [
                rf"(?P<value>{_NUMBER.pattern})\s+{name}s?\b",
                rf"\b{name}s?\b\W{{1,3}}(?P<value>{_NUMBER.pattern})",
            ]
        elif slot.type == "string":
            link = r"\s*(?:[:=]|\bis\b|\bof\b)?\s*"
            value = rf"{_EMAIL.pattern}|{_URL.pattern}|{_NAME.pattern}"
            patterns = [rf"\b(?i:{name})\b{link}(?P<value>{value})", rf"\b(?i:{name})\s*[:=]\s*(?P<value>[^\s,;\0]+)"]
        else:
            return
        for pattern in patterns:
            if found := re.search(pattern, self._left):
                text = found["value"]
                taken: Any = text if slot.type == "string" else _number(text)
                if _fits(slot, taken):
                    self._blot(*found.span("value"))
                    slot.take([taken])
                    return

    def _names(self) -> list[str]:
        """Take the proper names, except for words of the tool's name and words that begin a sentence."""

        def is_name(found: re.Match[str]) -> bool:
            before = self._left[: found.start()].rstrip()
            begins = not before or before[-1] in ".?!:"
            own = any(is_alike(word, other) for word in words(found[0]) for other in self._tool)
            return found[0] != "I" and not own and (not begins or " " in found[0])

        return self._take(_NAME, is_name)

    def _phrases(self, slot: _Slot) -> list[str]:
        """Take the phrases after prepositions."""
        starts = [found.end() for found in _PREPOSITION.finditer(self._left)]
        rest = self._left[starts[0] :] if starts else ""
        if slot.is_free_text:
            phrases = [rest.partition("\0")[0].strip(_EDGES)]
            if not phrases[0] and slot.required and "\0" not in self._left:
                phrases = [self._text.strip()]
        else:
            parts = re.split(r"\b(?:and|or)\b|[,;.?!\0]+", rest)
            phrases = [_without_stop_words(_PREPOSITION.split(part)[-1]) for part in parts]
            phrases = [phrase for phrase in phrases if 0 < len(phrase.split()) <= _MAX_PHRASE_WORDS]
        if any(phrases):
            self._left = "\0" * len(self._left)
        return [phrase for phrase in phrases if phrase]


def _without_stop_words(phrase: str) -> str:
    """Return a phrase without the stop words at its ends: an article, "please"."""
    kept = phrase.split()
    while kept and kept[0].lower() in STOP_WORDS:
        del kept[0]
    while kept and kept[-1].lower() in STOP_WORDS:
        del kept[-1]
    return " ".join(kept)


def _open(slots: Sequence[_Slot], kind: str | None = None) -> list[_Slot]:
    """Return the slots that have found nothing, only those of one type if ``kind`` is given; never an enum."""
    return [slot for slot in slots if slot.values is None and kind in (None, slot.type) and "enum" not in slot.item]


def _allot(slots: Sequence[_Slot], values: Sequence[Any]) -> None:
    """Give all values to the only slot, or to a first one that is an array; otherwise one to each slot."""
    if len(slots) == 1 or (slots and slots[0].is_array):
        slots[0].take(value for value in values if _fits(slots[0], value))
        return
    for slot, value in zip(slots, values, strict=False):
        slot.take([value] if _fits(slot, value) else [])


def _fits(slot: _Slot, value: Any) -> bool:
    return slot.type != "integer" or isinstance(value, int)


def _number(text: str) -> int | float:
    if text.lower() in _NUMBER_WORDS:
        return _NUMBER_WORDS[text.lower()]
    return float(text) if "." in text else int(text)


def _required(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _default(schema: Mapping[str, Any], name: str, example: Mapping[str, Any]) -> Any:
    """Return the value of a required slot that found nothing."""
    kinds = mapping(mapping(schema.get("properties")).get(name)).get("type")
    return None if isinstance(kinds, list) and "null" in kinds else example.get(name, name)


def _simple(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first alternative that is not null, if there are alternatives."""
    for keyword in ("anyOf", "oneOf"):
        for option in mappings(schema.get(keyword)):
            if option.get("type") != "null":
                return option
    return schema


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return next((name for name in kinds if isinstance(name, str) and name != "null"), "")
