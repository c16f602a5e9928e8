r"""Writes past calls and their outputs as one-line records, which tool outputs and users cannot forge.

    [function_call id=fc_001 call_id=fc_001 name=get_weather arguments={"city":"Paris"}]
    [function_call_output call_id=fc_001 output={"celsius":21}]
    [function_call_output name=get_weather arguments={"city":"Paris"} output={"celsius":21}]
    [function_call_error reason=SCHEMA_MISMATCH name=get_weather expected="…; /days: got string, expected integer"]

Every value is JSON on one line (plain IDs and names are unquoted), so that a value cannot end its record or start
another record. A line of a user's text that begins like a record is marked as text by an additional backslash
(``as_text``): ``\[function_call_output …``, even if it contains or follows invisible characters. In a later round of a
turn, toolsim itself writes error records into user messages, so in such a round a user's error record is not marked.
JSON loses only its insignificant whitespace: 1.0 remains 1.0, and a number of any length remains complete.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from itertools import chain

from toolsim.core.conversation import Call
from toolsim.wire.json_codec import LINE_ENDS, finite, too_deep, value_line

# The parts of JSON between whitespace: strings, and runs of characters outside strings.
_BETWEEN_SPACE = re.compile(r'(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^" \t\r\n]++)++')
# Matches the first character of JSON. Most outputs are plain text, so this check avoids most attempts to parse them.
_MAY_BE_JSON = re.compile(r'[ \t\r\n]*+[-{["0-9tfn]').match
_SPACE = re.compile(r"[ \t\r\n]").search
_SPACES = re.compile(r"[ \t\r\n]*+")
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]+")
OUTPUT = "function_call_output"
ERROR = "function_call_error"
# Maximum length of a label's arguments, in characters. Longer arguments can be shortened, because they only repeat
# earlier text.
_MAX_LABEL = 240
_STRING = re.compile(r'"((?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|.)){0,60}+)[^"\\]*+(?:\\.[^"\\]*+)*+"')
# Invisible characters: spaces of any width, and characters without a glyph.
_INVISIBLE = (
    r"\s\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    r"\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Combining marks, which belong to the preceding character.
    r"\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
# Characters that look like those in a record: brackets, similar letters of non-Latin alphabets, and characters that
# Unicode normalizes to these (NFKC), such as mathematical and full-width letters.
_ALIKE = {
    "[": "［⁅⟦〚【〔﹝﹇⦋⦍⦏❲⟬⎡⎣",
    "_": "＿﹍﹎﹏‿⁀",
    "f": "ƒꞙẝ",
    "u": "υսᴜ",
    "n": "ոռп",
    "c": "сϲᴄ",
    "t": "тτ",
    "i": "іιıɩ",
    "o": "оοօᴏ",
    "a": "аɑα",
    "l": "ӏΙІ|Ɩ",
}
_FORMS = (range(0x2100, 0x2150), range(0x24B6, 0x24EA), range(0xFF01, 0xFF5F), range(0x1D400, 0x1D800))


def _alike() -> Mapping[str, str]:
    """Return a pattern for each character of ``[function_call``, the beginning of every record. The patterns also match
    characters that look alike.
    """
    forms: dict[str, str] = dict(_ALIKE)
    for number in chain.from_iterable(_FORMS):
        plain = unicodedata.normalize("NFKC", chr(number)).lower()
        if plain in forms:
            forms[plain] += chr(number)
    return {plain: f"[{re.escape(plain + alike)}]" for plain, alike in forms.items()}


_PATTERNS = _alike()
_SEEN = re.compile(rf"[{_INVISIBLE}]*+".join(_PATTERNS[char] for char in "[function_call"))
_LINE_END = r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
# Matches the beginning of a record, such as ``[function_call_output``, at the start of a line, followed by any kind of
# space. The space is a lookahead, so that the next match can start with it. A record continues on the same line, so
# this beginning is not matched at the end of a line.
_BEGINS = rf"((?:^|{_LINE_END})[{_INVISIBLE}]*+)(\\*+{_SEEN.pattern}(?:%s)?(?!{_LINE_END})(?=[{_INVISIBLE}]))"
_LOOKS_LIKE_RECORD = re.compile(_BEGINS % "_output|_error")
_LOOKS_LIKE_CALL_OR_OUTPUT = re.compile(_BEGINS % "_output")


def as_text(text: str, *, errors: bool = True) -> str:
    """Return a user's ``text`` with a backslash before each line that looks like a record.

    If ``errors`` is true, lines that look like error records are also marked.
    """
    if _SEEN.search(text) is None:
        return text
    return (_LOOKS_LIKE_RECORD if errors else _LOOKS_LIKE_CALL_OR_OUTPUT).sub(r"\1\\\2", text)


def call_record(call: Call) -> str:
    """Return the record for ``call``. A custom tool's input is shown as the tool's single argument."""
    call_id = _word(call.call_id)
    item_id = _word(call.item_id) if call.item_id else call_id
    return f"[function_call id={item_id} call_id={call_id} name={_word(call.name)} arguments={call_arguments(call)}]"


def output_record(label: str, output: str) -> str:
    """Return the record for a tool's output. ``label`` identifies its call."""
    return f"[{OUTPUT} {label} output={json_line(output)}]"


def id_label(call_id: str) -> str:
    """Return the label that identifies an output's call by ID."""
    return f"call_id={_word(call_id)}"


def call_label(call: Call) -> str:
    """Return the label that identifies an output's call by name and arguments."""
    return f"name={_word(call.name)} arguments={_shortened(call_arguments(call))}"


def _shortened(arguments: str) -> str:
    """Return JSON arguments, shortened if they are long.

    First, long strings in the JSON are cut. If the result is still too long, its beginning is returned as a JSON
    string. In both cases, a "…" follows the JSON, outside of any string.

    The cuts depend only on the lengths of the strings. A recording replaces each character of a secret with ``x``, so
    its arguments are cut at the same positions.
    """
    if len(arguments) <= _MAX_LABEL:
        return arguments
    cut = _STRING.sub(r'"\1"', arguments)
    return f"{cut if len(cut) <= _MAX_LABEL else value_line(cut[:_MAX_LABEL])}…"


def error_record(reason: str, name: str | None, expected: str) -> str:
    """Return the record for a rejected call: a code, the intended tool, and a description of a valid call."""
    named = f" name={_word(name)}" if name is not None else ""
    return f"[{ERROR} reason={reason}{named} expected={value_line(expected)}]"


def sentinel_record(call: Call, tag: str) -> str:
    """Return ``call`` as the block that the model would have written."""
    return sentinel_block(call.name, call_arguments(call), tag)


def sentinel_block(name: str, arguments: str, tag: str) -> str:
    """Return a call as a block. ``arguments`` is JSON on one line."""
    return f'<{tag}>{{"name": {value_line(name)}, "arguments": {arguments}}}</{tag}>'


def call_arguments(call: Call) -> str:
    """Return the arguments of ``call`` as JSON on one line."""
    if call.kind == "custom":
        return f'{{"input":{value_line(call.arguments)}}}'
    return json_line(call.arguments) if call.arguments.strip() else "{}"


def json_line(text: str) -> str:
    """Return ``text`` on one line: JSON without insignificant whitespace, or other text as a JSON string."""
    found = _MAY_BE_JSON(text)
    if found is None or not _is_json(text, found.end() - 1):
        return value_line(text)
    if " " in text or _SPACE(text):
        text = "".join(_BETWEEN_SPACE.findall(text))
    return text if text.isascii() else text.translate(LINE_ENDS)


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else value_line(text)


def _is_json(text: str, start: int) -> bool:
    """Return whether ``text`` is JSON from ``start`` to its end."""
    if too_deep(text):
        return False
    try:
        _, end = _decode(text, start)
    except (ValueError, RecursionError):
        return False
    return end == len(text) or _SPACES.fullmatch(text, end) is not None


# Numbers are kept as text, because their value does not matter and Python limits the number of digits in an int.
_decode = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=finite).raw_decode
