"""Builds grammars for llama.cpp (GBNF): text without a call, followed by calls that match their tools' schemas.

    root  := text calls?                  or calls, if the answer must call
    calls := block (newline block)*       or bare or fenced, if the answer must call
    block := "<tag>" newline? (call | list) newline? "</tag>"
    bare  := call (newline call)* | list
    list  := "[" call ("," call)* "]"     the form that the manifest requests
    call  := {"name": …, "arguments": …}

1. *Text* is any text without the opening tag. GBNF has no negation, so the grammar has one rule for each prefix of the
   tag that the preceding text can end with. The tag contains only one ``<``, so no other state is needed.
2. *A call without the tag* counts as text if no call is required. If a call is required, the model chooses the form,
   because a model that does not write the tag by itself makes too few calls if it is forced to write the tag.
3. *Text* must not follow the calls or precede a required call. A small model that is allowed to write text first keeps
   writing until the token limit.
4. *Whitespace* within JSON is limited to one space, or a newline with indentation. Otherwise, a derailed model could
   write whitespace forever.
5. *Arguments* follow the schema as far as a grammar can express it: types, properties in order, required properties,
   enums, constants, unions, references, the lengths of arrays and short strings, small ranges of integers. The grammar
   ignores all other restrictions (patterns, ``not``, conditions, bounds of numbers, formats). The judge checks them
   later.
6. *The number of calls* in a list is up to the model, unless the client or the operator has set a limit. A grammar
   cannot forbid repetition, so ``response/repetition.py`` stops a model that repeats itself endlessly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolsim.core.plan import Tool
from toolsim.request.example import referred
from toolsim.wire.json_fields import array, mapping

_MAX_RULES = 4000
"""Maximum number of rules. Real manifests need fewer; schemas with endless self-references would need more."""
_MAX_REPEAT = 500
"""Maximum length of strings and arrays that the grammar enforces. llama.cpp expands ``x{0,n}`` to n rules, and rejects
a grammar if n is a few thousand.
"""
_MAX_RANGE = 200
"""Maximum size of an integer range whose values are listed in the grammar."""

_COMMON = {
    "ws": '( " " | "\\n" [ ]{0,40} )?',
    "nl": '"\\n"?',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws ( pair ( ws "," ws pair )* )? ws "}"',
    "pair": 'string ws ":" ws value',
    "array": '"[" ws ( value ( ws "," ws value )* )? ws "]"',
    "string": '"\\"" char* "\\""',
    "char": '[^"\\\\\\x00-\\x1F\\x7F] | "\\\\" ( ["\\\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] )',
    "integer": '"-"? ( "0" | [1-9] [0-9]{0,15} )',
    "natural": '"0" | [1-9] [0-9]{0,15}',
    "number": 'integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,3} )?',
    "boolean": '"true" | "false"',
    "null": '"null"',
}
_ANNOTATIONS = frozenset({"allOf", "default", "deprecated", "description", "examples", "readOnly", "writeOnly"})
"""Keywords that do not restrict the allowed values, so they can be ignored next to an ``allOf``."""
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def call_grammar(
    tools: Sequence[tuple[Tool, Mapping[str, Any]]], tag: str, *, required: bool, untagged: bool, limit: int
) -> str:
    """Return the grammar of an answer with calls to ``tools``, each with the schema of its arguments.

    ``required`` specifies whether the answer must contain a call, and ``untagged`` whether a call without the tag
    counts. ``limit`` is the maximum number of calls, or 0 for no limit. Raises TooLarge if the grammar has more than
    ``_MAX_RULES`` rules.
    """
    rules = Rules()
    for name, body in _COMMON.items():
        rules.set(name, body)
    opening, closing = f"<{tag}>", literal(f"</{tag}>")
    more = "" if limit == 1 else _repeat(0, limit - 1 if limit else None)
    named = rules.add(" | ".join(_named(rules, tool, schema) for tool, schema in tools))
    rules.set("call", f'"{{" ws {literal(_json("name"))} ws ":" ws {named}')
    rules.set("list", '"[" ws call ' + (f'( ws "," ws call ){more} ' if more else "") + 'ws "]"')
    rules.set("body", f"nl ( call | list ) nl {closing}")
    rules.set("calls", f"body ( nl {literal(opening)} body ){more}" if more else "body")
    if required:
        ways = [f"{literal(opening)} calls"]
        if untagged:
            rules.set("bare", f'( call ( "\\n" call ){more} | list )' if more else "( call | list )")
            ways += ["bare nl", '"```" "json"? "\\n" ws bare nl "```" nl']
        rules.set("root", " | ".join(ways))
        return rules.text()
    rules.set("root", "text-0")
    for read, char in enumerate(opening):
        then = f"text-{read + 1}" if read + 1 < len(opening) else "calls"
        other_chars = none_of("<" if read == 0 else f"<{char}")
        again = "" if read == 0 else ' | "<" text-1'
        rules.set(f"text-{read}", f"( {other_chars} text-0 | {literal(char)} {then}{again} )?")
    return rules.text()


def _named(rules: Rules, tool: Tool, schema: Mapping[str, Any]) -> str:
    """Return the name of a rule that matches the rest of a call to ``tool``, starting with the tool's name."""
    arguments = f'ws "," ws {literal(_json("arguments"))} ws ":" ws {_Values(rules, schema).rule(schema)}'
    return rules.add(f'{literal(_json(tool.name))} {arguments} ws "}}"')


class _Values:
    """Adds the rules for the values that one tool's schema allows. ``root`` is the schema that references refer to."""

    def __init__(self, rules: Rules, root: Mapping[str, Any]) -> None:
        self._rules = rules
        self._root = root
        self._references: dict[str, str] = {}

    def rule(self, schema: Any) -> str:
        """Return the name of a rule for the values that ``schema`` allows."""
        if not isinstance(schema, Mapping) or not schema:
            return "value"
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference)
        if "const" in schema:
            return self._rules.add(literal(_json(schema["const"])))
        if isinstance(listed := schema.get("enum"), list) and listed:
            return self._rules.add(" | ".join(literal(_json(value)) for value in listed))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(keyword), list) and branches:
                rest = {key: value for key, value in schema.items() if key != keyword}
                merged = [{**rest, **branch} if isinstance(branch, Mapping) else rest for branch in branches]
                return self._either(merged)
        if isinstance(parts := schema.get("allOf"), list):
            # Older schema generators write a reference to a named type as an ``allOf`` with one element. Such an
            # element is not merged, because a named type can contain itself.
            is_one = len(parts) == 1 and schema.keys() <= _ANNOTATIONS
            return self.rule(parts[0] if is_one else self._merged(schema, parts))
        match schema.get("type"):
            case list(kinds) if kinds:
                return self._either([{**schema, "type": kind} for kind in kinds])
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return self._string(schema)
            case "integer":
                return self._integer(schema)
            case str(kind) if kind in _TYPES:
                return kind
        if "properties" in schema:
            return self._object(schema)
        return "value"

    def _either(self, schemas: Iterable[Any]) -> str:
        return self._rules.add(" | ".join(dict.fromkeys(self.rule(schema) for schema in schemas)))

    def _reference(self, reference: str) -> str:
        if reference not in self._references:
            target = self._target(reference)
            # The rule's name is stored before the rule is built, because a schema can contain itself.
            name = self._references[reference] = self._rules.new()
            self._rules.set(name, self.rule(target))
        return self._references[reference]

    def _target(self, reference: str) -> Any:
        target = referred(self._root, reference)
        return target if reference.startswith("#") and target != {"$ref": reference} else None

    def _merged(self, schema: Mapping[str, Any], parts: Sequence[Any]) -> dict[str, Any]:
        """Merge the parts of an ``allOf`` into a single schema. The properties of all parts are combined. If any other
        keyword occurs in several parts, the last part's value is used.
        """
        whole: dict[str, Any] = {}
        for part in (*parts, {key: value for key, value in schema.items() if key != "allOf"}):
            if isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
                part = self._target(part["$ref"])
            if isinstance(part, Mapping) and "allOf" not in part:
                properties = {**mapping(whole.get("properties")), **mapping(part.get("properties"))}
                required = [*_names(whole.get("required")), *_names(part.get("required"))]
                whole |= part
                whole |= {"properties": properties, "required": required} if properties else {}
        return whole

    def _string(self, schema: Mapping[str, Any]) -> str:
        least, most = _count(schema.get("minLength")), _count(schema.get("maxLength"))
        if not least and (most is None or most > _MAX_REPEAT):
            return "string"
        return self._rules.add(f'"\\"" char{_repeat(least or 0, most)} "\\""')

    def _integer(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minimum"), schema.get("maximum")
        if isinstance(least, int) and isinstance(most, int) and 0 <= most - least <= _MAX_RANGE:
            return self._rules.add(" | ".join(literal(str(number)) for number in range(least, most + 1)))
        return "natural" if isinstance(least, int) and least >= 0 else "integer"

    def _array(self, schema: Mapping[str, Any]) -> str:
        if isinstance(prefix := schema.get("prefixItems"), list) and prefix:
            return self._rules.add(f'"[" ws {' ws "," ws '.join(self.rule(item) for item in prefix)} ws "]"')
        item = self.rule(schema.get("items"))
        least, most = _count(schema.get("minItems")) or 0, _count(schema.get("maxItems"))
        if most == 0:
            return self._rules.add('"[" ws "]"')
        more = _repeat(max(least - 1, 0), None if most is None else most - 1)
        items = f'{item} ( ws "," ws {item} ){more}'
        return self._rules.add(f'"[" ws {items if least else f"( {items} )?"} ws "]"')

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties = dict(mapping(schema.get("properties")))
        required = _names(schema.get("required"))
        properties |= {name: True for name in required if name not in properties}
        further = schema.get("additionalProperties", not properties)
        if "patternProperties" in schema:
            further = True
        # The rules are built from the last property to the first. ``first`` matches the remaining properties at the
        # beginning of the object. ``later`` matches them after another property, so it starts with a comma.
        later, first = "", ""
        if further is not False:
            pair = self._rules.add(f'string ws ":" ws {self.rule(further)}')
            later = self._rules.add(f'( ws "," ws {pair} )*')
            first = self._rules.add(f"( {pair} {later} )?")
        for name in reversed(properties):
            pair = self._rules.add(f'{literal(_json(name))} ws ":" ws {self.rule(properties[name])} {later}')
            if name in required:
                later, first = self._rules.add(f'ws "," ws {pair}'), pair
            else:
                first = self._rules.add(f"{pair} | {first}" if first else f"( {pair} )?")
                later = self._rules.add(f'ws "," ws {pair} | {later}' if later else f'( ws "," ws {pair} )?')
        return self._rules.add(f'"{{" ws {first} ws "}}"')


def _repeat(least: int, most: int | None) -> str:
    least = min(least, _MAX_REPEAT)
    if most is None or most > _MAX_REPEAT:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{max(least, most)}}}"


def _names(required: object) -> list[str]:
    """Return the names in a ``required`` list, or [] if ``required`` is a boolean, as in old schemas."""
    return [name for name in array(required) if isinstance(name, str)]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class TooLarge(ValueError):
    """Raised if a grammar has more rules than a server would accept."""


class Rules:
    """The rules of a grammar under construction, by name."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def set(self, name: str, body: str) -> None:
        """Define a rule. Raises TooLarge if the grammar already has ``_MAX_RULES`` rules."""
        if len(self._rules) >= _MAX_RULES:
            raise TooLarge(f"expected at most {_MAX_RULES} rules")
        self._rules[name] = body

    def new(self) -> str:
        """Reserve and return a new name, for a rule that is defined later."""
        name = f"r{len(self._rules)}"
        self.set(name, "")
        return name

    def add(self, body: str) -> str:
        """Define a rule under a new name, and return the name."""
        name = self.new()
        self._rules[name] = body
        return name

    def text(self) -> str:
        """Return the text of the grammar."""
        return "\n".join(f"{name} ::= {body}" for name, body in self._rules.items()) + "\n"


def literal(text: str) -> str:
    """Return ``text`` as a literal in GBNF."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def none_of(chars: str) -> str:
    """Return a character class that excludes these characters."""
    escaped = (f"\\{char}" if char in "]\\^-" else char for char in chars)
    return f"[^{''.join(escaped)}]".replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
