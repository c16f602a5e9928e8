"""A lexer for an untagged call: finds the end of the call, or the first character that cannot belong to a call.

"Form" means the text of one untagged call, or of a list of calls. The lexer reads a form in chunks. It tracks strings,
brackets and, in a JSON object that may be a call, the keys. It builds no values, because the form is parsed once it is
complete.

1. Outside strings, a form contains only brackets, ``,``, ``:``, words and whitespace; in call syntax also ``=``.
   Strings are quoted with ``"`` or ``'``. A string, bracket or word begins only where a value or a key is allowed. Any
   other text ends the attempt to read a form. In call syntax, strings can be adjacent, and parentheses can enclose
   values.
2. An object that may be a call contains only keys that calls have. Its ``name`` must be the name of an offered tool,
   and its ``type`` must be used for calls. This applies to the outermost object, to the objects in an outermost array,
   and to objects under ``function`` and ``tool_calls``. Two variants are also accepted (``unwrap``): the tool's
   parameters can be keys next to the ``name``, or the tool's name can be the only key. Keys are compared from their
   first character, so that other JSON is released immediately.
3. An array of calls contains only objects.
4. A JSON form in a code fence can lack its last brackets, because the closing backticks also end the form.
5. Gemma's braces can contain any text, since strings may have lost their quotes. Only brackets outside quotes are
   tracked.
6. An array that repeats calls endlessly ends as soon as the repetition is certain (``repetition``).
7. In JSON, a bracket can be closed by the wrong kind of bracket (``{"a": [1}}``) if only closing brackets follow
   (``repair``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from toolsim.response.call_keys import CALL_KEYS, LIST_KEYS, NAME_OR_WRAPPER_KEYS, WRAPPER_KEYS
from toolsim.response.call_syntax import (
    MARKDOWN_ESCAPES,
    read_call,
    read_calls,
    read_record,
    read_strings,
    without_escapes,
)
from toolsim.response.gemma_braces import QUOTE, read_gemma
from toolsim.response.name_and_json import read_braces
from toolsim.response.object_shapes import unwrap
from toolsim.response.parsed_call import ParsedCall, read_json
from toolsim.response.repetition import REPEATED_CALL, RepetitionDetector
from toolsim.response.segments import IN_STRING, end_of
from toolsim.response.toolbox import Toolbox

UNTAGGED_FENCED = "UNTAGGED_FENCED"
UNTAGGED_BARE = "UNTAGGED_BARE"
UNTAGGED_CALL_SYNTAX = "UNTAGGED_CALL_SYNTAX"
UNTAGGED_RECORD = "UNTAGGED_RECORD"

FUNCTOOLS = "functools"
"""The prefix that Phi-4-mini writes before a list of calls."""

Kind = Literal["json", "syntax", "record", "list", "strings", "braces", "gemma", "functools"]

_KEYS = (*CALL_KEYS, *WRAPPER_KEYS, *LIST_KEYS)
"""The keys of a call in all spellings."""

_TYPES = ("function", "tool_call", "function_call", "tool_use", "custom")
"""Values of ``type`` in a call. JSON schemas have other types, such as ``object``."""

_MAX_DEPTH = 512
"""Maximum number of open brackets. Real calls never have that many."""

_MAX_NAME = 256
"""Maximum length of a name or type. Real names and types are shorter."""

_SPACE = re.compile(r"[ \t\r\n]++")
_NO_BRACKET = re.compile(r"[^{}\[\]<]*+")
_WORD = re.compile(r"[\w+\-.]++")
_ESCAPED_WORD = re.compile(r"(?:[\w+\-.]|\\_)++")
_PAIRS = {"{": "}", "[": "]", "(": ")"}
# Characters after which a string, a word or a bracket can begin.
_OPENERS = frozenset("{[(,:=")
# The possible contents of a bracket: the keys of a call, calls, calls in call syntax, or any data. ``_OUTERMOST`` means
# that no bracket is open.
_OUTERMOST, _CALL, _CALLS, _LIST, _DATA = "outermost", "call", "calls", "list", "data"
_IN_ARRAY = [("]", _CALLS)]
"""The open brackets between two items of an array of calls."""
_DEPTH_OF_KEYS: Mapping[Kind, int] = {"syntax": 1, "record": 1, "list": 2}
"""Number of open brackets around the keys that are followed by "=", for each kind of call."""
_READERS: Mapping[Kind, Callable[[str], Sequence[ParsedCall | None]]] = {
    "syntax": lambda text: [read_call(text)],
    "record": lambda text: [read_record(text)],
    "list": read_calls,
    "strings": read_strings,
    "braces": read_braces,
    "gemma": read_gemma,
}
"""For each kind of form, a function that parses a complete form. The function returns a list of calls, with None for
each item that is not a call.
"""


class Form:
    """The lexer for an untagged form (see the module docstring).

    ``kind``: the kind of form. ``toolbox``: the offered tools. ``mark``: the backticks that open the surrounding code
    fence, or "" outside a fence. ``repair``: whether repairs are allowed.
    """

    def __init__(self, kind: Kind, toolbox: Toolbox, mark: str = "", *, repair: bool = True) -> None:
        # The bracket at which reading begins. The caller has already read the text before this bracket.
        self._before_bracket = {"braces": "{", "gemma": "{", "functools": "["}.get(kind, "")
        if kind == "functools":
            kind = "json"
        self.kind = kind
        self._is_python = kind in ("syntax", "list")
        self._repair = repair
        self._toolbox = toolbox
        # Outside strings, escapes occur only in the names and keys of calls in call syntax.
        self._word = _ESCAPED_WORD if kind in ("syntax", "list") and repair else _WORD
        self._fenced = bool(mark)
        self._mark = mark if kind == "json" else ""
        self._text: list[str] = []
        self._stack: list[tuple[str, str]] = []  # The closing bracket and the allowed contents of each open bracket.
        self._is_misclosed = False  # Whether a bracket was closed by a bracket of the wrong kind (rule 7).
        self._last = ""  # The last significant character outside strings; "w" for a word.
        self._quote = ""  # The quotation mark that will end the open string.
        self._in_word = False
        self._key = ""  # The last key in an object that may be a call (rule 2).
        self._parameters: Collection[str] = ()  # The parameters of the tool named in the open call.
        self._role: Literal["key", "value"] | None = None  # Role of the current string or word in a call.
        self._token = ""  # The part of the open string or word that has been read so far.
        self._copied = 0  # Position up to which the current text has been added to ``_text``.
        self._item_start = 0  # Index in ``_text`` where the open array item begins.
        self._loop = RepetitionDetector()  # Recognizes that the items of an array repeat the same call.
        self._length = 0  # The total length of the items before the open item.
        self.is_loop = False  # Whether the form is an array that repeats one call (rule 6).
        self.was_cut = False  # Whether the text ended before the model had finished.

    @property
    def is_in_string(self) -> bool:
        """Whether the next character is inside a string. False after a newline, since JSON strings contain no
        newlines.
        """
        return bool(self._quote) and not self._text[-1].endswith("\n")

    @property
    def lacks_end(self) -> bool:
        """Whether the form is complete except for its last bracket, or was cut off while it repeated the same call.

        In both cases, all arguments are complete. Any other list that was cut off is incomplete, because it might also
        lack another call.
        """
        ends = [[("}", _CALL)]] if self.was_cut else [[("}", _CALL)], _IN_ARRAY]
        lacks_bracket = self.kind == "json" and self._last == "}" and self._stack in ends
        return lacks_bracket or self._is_cut_in_loop("")

    @property
    def json(self) -> str:
        """The text of a complete form if it is JSON, otherwise ""."""
        return "".join(self._text).removeprefix(FUNCTOOLS) if self.kind == "json" and not self.is_loop else ""

    def calls(self) -> tuple[Sequence[ParsedCall | None], str]:
        """Return the calls in the complete form, and a code for the kind of form. Items that are not calls are returned
        as None.
        """
        text = "".join(self._text)
        if self.kind == "json":
            return self._json_calls(text), UNTAGGED_FENCED if self._fenced else UNTAGGED_BARE
        code = UNTAGGED_RECORD if self.kind == "record" else UNTAGGED_CALL_SYNTAX
        if self.kind in ("syntax", "list") and self._repair and (plain := without_escapes(text)) != text:
            return [replace(call, lossy_repairs=(MARKDOWN_ESCAPES,)) for call in read_calls(plain)], code
        return _READERS[self.kind](text), code

    def _json_calls(self, text: str) -> Sequence[ParsedCall | None]:
        if self.is_loop:
            text = f"{text[: self._loop.first_end]}]".removeprefix(FUNCTOOLS)
            calls = read_json(text, closed=True, repair=True)
            return [*calls[:-1], replace(calls[-1], codes=(*calls[-1].codes, REPEATED_CALL))]
        calls = read_json(text.removeprefix(FUNCTOOLS), closed=True, repair=self._repair)
        return [part for call in calls for part in unwrap(call, self._toolbox.parameters)] if self._repair else calls

    def read(self, text: str, pos: int, stop: int) -> tuple[int, bool | None]:
        """Read the text from ``pos`` to ``stop``. Return a position in the text, and one of these results:

        True: the form is complete, and ends at the position. False: the text is not a form, because the character at
        the position is not allowed. None: more text is needed. The text after the position, such as a single backslash,
        must be read again together with the next chunk.
        """
        self._copied = pos
        end, is_form = self._lex(text, pos, stop)
        if end > self._copied:
            self._text.append(text[self._copied : end])
        if is_form is None and end < stop and self._is_cut_in_loop(text[end:stop]):
            return stop, True
        return end, is_form

    def _is_cut_in_loop(self, rest: str) -> bool:
        if self.was_cut and self._repair:
            self.is_loop = self._loop.is_cut("".join([*self._text[self._item_start :], rest]))
        return self.is_loop

    def _lex(self, text: str, pos: int, stop: int) -> tuple[int, bool | None]:
        if bracket := self._before_bracket:
            self._before_bracket = ""
            if (pos := text.index(bracket, pos)) >= stop:
                return stop, False
        return self._count_brackets(text, pos, stop) if self.kind == "gemma" else self._lex_tokens(text, pos, stop)

    def _count_brackets(self, text: str, pos: int, stop: int) -> tuple[int, bool | None]:
        while pos < stop:
            if self._quote:
                end = text.find(QUOTE, pos, stop)
                if end == -1:
                    return max(pos, stop - len(QUOTE) + 1), None
                pos, self._quote = end + len(QUOTE), ""
                continue
            pos = end_of(_NO_BRACKET, text, pos, stop)
            if pos == stop or (text[pos] == "<" and stop - pos < len(QUOTE) and QUOTE.startswith(text[pos:stop])):
                return pos, None
            if text[pos] == "<":
                self._quote = QUOTE if text.startswith(QUOTE, pos) else ""
                pos += len(QUOTE) if self._quote else 1
                continue
            if text[pos] in _PAIRS:
                self._stack.append((_PAIRS[text[pos]], _DATA))
            elif self._stack.pop()[0] != text[pos]:
                return pos, False
            pos += 1
            if not self._stack or len(self._stack) > _MAX_DEPTH:
                return pos, not self._stack
        return pos, None

    def _lex_tokens(self, text: str, pos: int, stop: int) -> tuple[int, bool | None]:
        while pos < stop:
            if self._quote:
                start, pos = pos, end_of(IN_STRING[self._quote], text, pos, stop)
                if (fits := self._grow(text[start:pos])) < pos - start:
                    return start + fits, False
                if pos == stop or text[pos] == "\\":  # The character after the backslash has not arrived yet.
                    return pos, None
                self._quote = ""
                self._last = '"'
                if not self._end_token():
                    return pos, False
                pos += 1
                continue
            start, pos = pos, end_of(self._word, text, pos, stop)
            if pos == start == stop - 1 and text[pos] == "\\" and self._word is _ESCAPED_WORD:
                return pos, None  # An underscore may follow the backslash.
            if pos > start:
                if not (self._in_word or self._begin()):
                    return start, False
                if (fits := self._grow(text[start:pos])) < pos - start:
                    return start + fits, False
                self._in_word = True
                self._last = "w"
                continue
            if self._in_word:
                self._in_word = False
                if not self._end_token():
                    return pos, False
            if text[pos] in " \t\r\n":
                pos = end_of(_SPACE, text, pos, stop)
            elif text[pos] == "`" and self._mark and self._last not in ("", "{", "[", ",", ":"):
                if text.startswith(self._mark, pos):
                    return pos, True
                return pos, None if self._mark.startswith(text[pos:stop]) else False
            elif text[pos] == "<" and self.kind == "braces" and self._stack:
                if not QUOTE.startswith(text[pos : min(stop, pos + len(QUOTE))]):
                    return pos, False
                if stop - pos < len(QUOTE):
                    return pos, None
                self.kind = "gemma"  # Only Gemma uses this quotation mark. The usual prefix ``call:`` is missing.
                return self._count_brackets(text, pos, stop)
            elif self._symbol(text[pos]):
                pos += 1
                if not self._stack and not self._quote:
                    return pos, True
                if self._last == "}" and self._stack == _IN_ARRAY and self._end_item(text[self._copied : pos], pos):
                    return pos, True
            else:
                return pos, False
        return pos, None

    def _end_item(self, text: str, pos: int) -> bool:
        """Process the end of an item in an array. ``text``: the unprocessed text of the item, up to ``pos``.

        Return whether the array repeats the same call endlessly, in which case the form ends here.
        """
        self._text.append(text)
        item = "".join(self._text[self._item_start :])
        self._copied = pos
        self._item_start = len(self._text)
        self._length += len(item)
        self._loop.take(item, self._length)
        self.is_loop = self._repair and self._loop.is_endless
        return self.is_loop

    def _symbol(self, char: str) -> bool:
        """Process one character outside strings and words; return whether it is allowed at this point."""
        if self._is_misclosed and char not in "}]":
            return False
        match char:
            case '"' | "'":
                self._quote = char
                return self._begin()
            case "{" | "[" | "(":
                return self._open(char)
            case "}" | "]" | ")":
                self._last = char
                return self._close(char)
            case ",":
                self._last = char
                return True
            case ":":
                behind_word, self._last = self._last in 'w"', char
                if self.kind in ("json", "braces") or len(self._stack) > 1:
                    return True
                return self.kind == "syntax" and behind_word
            case "=":
                self._last = char
                return len(self._stack) == _DEPTH_OF_KEYS.get(self.kind)
        return False

    def _close(self, char: str) -> bool:
        if self._stack.pop()[0] == char:
            return True
        self._is_misclosed = self._repair and self.kind == "json" and char != ")" and bool(self._stack)
        return self._is_misclosed

    def _open(self, char: str) -> bool:
        holds = self._stack[-1][1] if self._stack else _OUTERMOST
        is_call = (holds == _OUTERMOST and self.kind == "syntax") or (holds == _LIST and self._last == "w")
        if char == "(" and not is_call and holds == _DATA and self._is_python and self._may_open():
            self._stack.append((")", _DATA))  # The parenthesis begins a tuple.
            self._last = char
            return len(self._stack) <= _MAX_DEPTH
        if (char == "(") != is_call or len(self._stack) == _MAX_DEPTH:
            return False
        if (holds == _CALLS and char != "{") or (
            self._stack and not is_call and (holds == _LIST or not self._may_open())
        ):
            return False
        inner = _LIST if holds == _OUTERMOST and self.kind == "list" else _DATA
        if self.kind == "json":
            key = self._key if holds == _CALL else ""
            if char == "{" and (holds in (_OUTERMOST, _CALLS) or key in WRAPPER_KEYS):
                inner, self._parameters = _CALL, ()
            elif char == "[" and self._names_tool(key):
                return False
            elif char == "[" and (holds == _OUTERMOST or key in LIST_KEYS):
                inner = _CALLS
        self._stack.append((_PAIRS[char], inner))
        self._last = char
        return True

    def _may_open(self) -> bool:
        """Return whether a value can begin here. In an object, a key must precede the value."""
        return self._last in _OPENERS and not (self._stack[-1][0] == "}" and self._last in "{,")

    def _begin(self) -> bool:
        """Begin a string or word; return whether it is allowed at this point."""
        if self._is_misclosed:
            return False
        if not self._stack:
            return self.kind == "syntax"  # In call syntax, a name precedes the bracket.
        holds = self._stack[-1][1]
        if self.kind == "record" and len(self._stack) == 1 and not self._quote:
            return True  # In a record, words follow each other without separators.
        if self._quote and self._last == '"' and holds == _DATA and self._is_python:
            return True  # In Python, adjacent strings form one string.
        if holds == _CALLS or self._last not in _OPENERS or (holds == _LIST and self._quote):
            return False
        if holds == _CALL and self._last in "{,":
            self._role = "key"
        elif holds == _CALL and self._names_tool(self._key):
            return False
        elif (
            holds == _CALL
            and (self._key in NAME_OR_WRAPPER_KEYS or self._key == "type")
            and self._key not in self._parameters
        ):
            self._role = "value"
        return True

    def _names_tool(self, key: str) -> bool:
        """Return whether this key is the name of a tool, in which case its value contains the arguments."""
        return bool(key) and key not in _KEYS and key not in self._parameters

    def _grow(self, text: str) -> int:
        """Append ``text`` to the current string or word. Return how many of the new characters can belong to a call
        (rule 2).

        The form becomes invalid exactly at the first disallowed character, so that the result does not depend on how
        the text is split.
        """
        if self._role is None:
            return len(text)
        length = len(self._token)
        self._token += text
        if self._role == "key":
            ends = range(length + 1, len(self._token) + 1)
            broken = next((end for end in ends if not self._may_be_key(self._token[:end])), len(self._token) + 1)
            return broken - 1 - length
        return min(len(self._token), _MAX_NAME) - length

    def _may_be_key(self, start: str) -> bool:
        if any(key.startswith(start) for key in (*_KEYS, *self._parameters)):
            return True
        return self._repair and self._toolbox.has_prefix(start)

    def _end_token(self) -> bool:
        role, token = self._role, self._token
        self._role = None
        self._token = ""
        if role == "key":
            self._key = token
            return token in _KEYS or token in self._parameters or (self._repair and self._toolbox.offers(token))
        if role == "value" and self._key != "type":
            self._parameters = self._toolbox.parameters(token) or () if self._repair else ()
            return self._toolbox.offers(token)
        return role is None or token in _TYPES
