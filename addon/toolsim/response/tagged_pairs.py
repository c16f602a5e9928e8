"""Parses calls that consist of names and values between markers.

    calls  := call+
    call   := head pair* end | head object end         some models write JSON instead of pairs
    pair   := opener value closer

    head   e.g. <function=get_weather>                 end     e.g. </function>
    opener e.g. <parameter=city>                       closer  e.g. </parameter>

Values are not escaped, so a closer can also be part of a value. A value therefore ends at the first closer that is
followed by another pair or by the end of the call. The types of values are known only from the tool's schema. The
following rules apply to markers that do not fit the grammar:

1. Surplus markers are dropped, which is a repair (``DOUBLED_MARKER``). The following markers are surplus: further
   closers directly after the closer of a value, the second of two equal heads or openers, and closers where a pair
   could begin. Only whitespace can separate these markers.
2. A closer is data if more text follows on the same line, and another closer follows later. If a closer is alone on its
   line, or a value could begin after it, the opener of that value is missing. The call cannot be parsed in this case.
3. Complete pairs in a value are data. A value without its own closer extends to the next pair or to the end of the call
   (the repair ``MISSING_CLOSE``). If such a value ends with half of a closer, or with a closer that has a different
   name, this text is removed.
4. A call cannot be parsed if it contains half of an opener, or lacks more than a few closers.
5. If a body cannot be parsed, its misspelled markers are corrected, and it is parsed again (the repair
   ``MISSPELLED_MARKER``).

The values are read in one pass, except that values without a closer are read a second time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from toolsim.response.misspelled import corrected
from toolsim.response.parsed_call import (
    DOUBLED_MARKER,
    MISSING_CLOSE,
    MISSING_MARKER,
    MISSPELLED_MARKER,
    Elements,
    Json,
    ParsedCall,
    escape,
    name_of,
    respelled,
)

NAME = r"[\w.:/-]{1,128}"
HEAD_END = r"(?:\s{0,8}/?>|\s{0,8}[=,(]?(?=\s{0,8}(?:<param|\{)))"
"""A pattern for the end of a call's opening element. Some models omit the ``>``, or write another character before a
JSON object.
"""

_SPACE = re.compile(r"\s*+")
_MAX_UNCLOSED = 8
"""Maximum number of values without a closing marker in one call. Each of them requires a scan of the rest of the call.
"""

# Text after a closing marker that shows that the marker is data (rule 2), because values do not begin with such text.
_DATA = re.compile(r"""[ \t]++[^\s]|["'`,;)!?]|[.:](?:\s|\Z)""")
_SURPLUS = re.compile(r"(?:\s*+</[\w:｜|‖-]{1,64}+>)++\s*\Z")
# Matches a closing tag in any spelling at the end of a value.
_WRONG_CLOSER = re.compile(
    r"(?:<|&lt;)[\s<]{0,4}[/\\][\s/\\]{0,4}"
    r"(?P<name>(?:[｜‖]{1,2}DSML[｜‖]{1,2} )?[\w:.｜|‖-]{0,64})"
    r"[\s/\\]{0,4}(?:[>\]]|&gt;){0,2}\s*\Z"
)
_MAX_CLOSER = 128
_CDATA = re.compile(r"\s*+<!\[CDATA\[")
_PARAMETER = re.compile(r"\s*+<[｜‖|]{0,2}(?:DSML)?[｜‖|]{0,2} ?(?P<word>param(?:eter)?)\b")
_PARAMETER_END = re.compile(r"</[｜‖|]{0,2}(?:DSML)?[｜‖|]{0,2} ?(?P<word>param(?:eter)?)>")
_DSML = r"(?:[｜‖|]{1,2}DSML[｜‖|]{1,2} ?)?"
_HEAD = re.compile(rf"\s*+<({_DSML})(function|invoke)(=|\s+name=)[\"']?{NAME}[\"']?{HEAD_END}")
_OPENERS = ((("<function=", ">"),), (('<invoke name="', '">'), ('<parameter name="', '">')))
_NAMED_GROUP = re.compile(r"(?<!\\)\((?!\?)")
_KEY = r"([^\"'<\n]{1,256})"
_BARE_KEY = r"([^<>=\"'\s][^<>=\"'\n]{0,255}?)"
_ATTRIBUTES = r"(?:[ \t]{1,4}[\w:-]{1,32}=[^<>\n]{0,64})?"


class _Values:
    """Finds the end of each value in one call form. All parameters are regular expressions. The module docstring
    explains the terms.

    ``opener``: matches an opener. ``mark``: matches half of an opener, or any other marker of the form. ``nested``:
    matches an opener inside a value; this opener and its closer are data. ``close``: matches a closer. ``last``:
    matches text that can follow the last pair of a call. ``bounds``: matches text, other than an opener, that ends a
    value without a closer.
    """

    def __init__(self, opener: str, mark: str, nested: str, close: str, last: str, bounds: str) -> None:
        self._mark = re.compile(rf"(?P<close>{close})|(?P<opener>{nested})|{mark}")
        self._more = re.compile(rf"(?:\s*+{close})++")
        # The possible ends of a closer whose beginning is missing. They are known only if ``close`` is plain text.
        halves = [close[at:] for at in range(2, len(close) - 2)] if re.fullmatch(r"[</\w>｜‖:]+", close) else []
        self._name = close.strip("</>")
        self._half_closer = re.compile(rf"[</\\]{{0,4}}(?:{'|'.join(halves) or '(?!)'})\s*\Z")
        self._goes_on = re.compile(rf"\s*+(?:{opener}|{last})")
        self._bound = re.compile(rf"{close}|(?P<bound>\s*+(?:{opener}|{bounds}))|{mark}")

    def read(self, body: str, start: int) -> tuple[str, int, str] | None:
        """Return the value that begins at ``start``, the position after its closer, and the code of a repair or "".

        Returns None if the end of the value cannot be found.
        """
        return self._closed(body, start) or self._unclosed(body, start)

    def _closed(self, body: str, start: int) -> tuple[str, int, str] | None:
        section = _CDATA.match(body, start)
        at = start if section is None else max(body.find("]]>", section.end()), start)
        depth = 0
        was_data = False
        for mark in self._mark.finditer(body, at):
            if mark["close"] is None:
                if was_data or mark["opener"] is None:
                    return None
                depth += 1
            elif depth:
                depth -= 1
            elif self._goes_on.match(body, mark.end()):
                value = body[start : mark.start()]
                wrong = _wrong_closer(value)
                if wrong is None or wrong["name"] != self._name:
                    return value, mark.end(), ""
                return value[: wrong.start()], mark.end(), DOUBLED_MARKER
            elif (more := self._more.match(body, mark.end())) and self._goes_on.match(body, more.end()):
                return body[start : mark.start()], more.end(), DOUBLED_MARKER
            elif not _DATA.match(body, mark.end()):
                return None
            else:
                was_data = True
        return None

    def _unclosed(self, body: str, start: int) -> tuple[str, int, str] | None:
        found = self._bound.search(body, start)
        if found is None:
            # The model has merged the closers of the value and of the call into a single marker.
            both = _wrong_closer(body[start:])
            is_longer = both is not None and both["name"].startswith(self._name) and both["name"] != self._name
            return (body[start : start + both.start()], len(body), MISSING_CLOSE) if both and is_longer else None
        if found["bound"] is None:
            return None
        value = body[start : found.start()]
        if (wrong := _wrong_closer(value)) is not None:
            value = value[: wrong.start()].rstrip()
        elif (half := self._half_closer.search(value, max(0, len(value) - _MAX_CLOSER))) is not None:
            value = value[: half.start()].rstrip()
        return value, found.start(), MISSING_CLOSE


def _wrong_closer(value: str) -> re.Match[str] | None:
    """Return a closing tag in any spelling at the end of a value. Returns None if there is no such tag, or if it
    belongs to an element within the value.
    """
    found = _WRONG_CLOSER.search(value, max(0, len(value) - _MAX_CLOSER))
    if found is None:
        return None
    before, name = value[: found.start()], found["name"] or ">"  # In JSX, "</>" closes "<>".
    return None if f"<{name}" in before or f"&lt;{name}" in before else found


def _on_lines(value: str) -> str:
    """Add a missing newline at the end of a value that begins with a newline. The caller later strips both newlines.

    A ``>`` before the first newline and a ``<`` after the last newline are the remains of markers, and are removed.
    """
    value = value[1:] if value.startswith(">\n") else value
    if value.startswith(("\n", "\r\n")) and not value.endswith("\n"):
        value = value[:-1] if value.endswith("\n<") else f"{value}\n"
    return value


def pairs_reader(
    head: str, opener: str, mark: str, close: str, end: str, *, on_lines: bool = False
) -> Callable[[str], list[ParsedCall]]:
    """Return a reader for a call form with pairs. The parameters are regular expressions for the markers (see the
    module docstring).

    ``head``: matches the head of a call. Its only group is the name. ``opener``: matches an opener. The group that
    matches is the key. ``mark``: matches half of an opener. ``on_lines``: whether the models write each value on
    separate lines. The reader returns at least one call. Text that cannot be parsed becomes one broken call at the end.
    """
    begins = re.compile(rf"\s*+{head}")
    bare_head, bare_opener = _NAMED_GROUP.sub("(?:", head), _NAMED_GROUP.sub("(?:", opener)
    opens = re.compile(rf"\s*+{opener}")
    surplus = re.compile(rf"(?:\s*+{close})++")
    ends = re.compile(rf"\s*+(?:(?P<end>{end})|(?P<head>(?={bare_head}))|\Z)")
    more_ends = re.compile(rf"(?:\s*+{end})++")
    whole = re.compile(rf"(\s*\{{.*?)(?:{end}|\Z)", re.DOTALL)
    values = _Values(
        bare_opener, mark, rf"{mark}[^<>]{{0,256}}>", close, rf"{end}|{bare_head}|\Z", rf"{end}|{bare_head}"
    )

    def key_at(body: str, at: int) -> tuple[str, int] | None:
        found = opens.match(body, at)
        return None if found is None else (next(filter(None, found.groups()), "").strip(), found.end())

    def read_one(body: str, name: re.Match[str]) -> tuple[ParsedCall, int] | None:
        pairs: list[tuple[str, str]] = []
        codes: dict[str, int] = {}
        at = name.end()
        again = begins.match(body, at)
        if (
            again
            and again[0].strip() == name[0].strip()
            and (opens.match(body, again.end()) or body[again.end() :].lstrip()[:1] == "{")
        ):
            codes[DOUBLED_MARKER] = 1
            at = again.end()
        while codes.get(MISSING_CLOSE, 0) <= _MAX_UNCLOSED:
            if (stray := surplus.match(body, at)) is not None:
                codes[DOUBLED_MARKER] = 1
                at = stray.end()
            if (found := key_at(body, at)) is None:
                break
            key, at = found
            if (same := key_at(body, at)) is not None and same[0] == key:
                codes[DOUBLED_MARKER] = 1
                at = same[1]
            if (value := values.read(body, at)) is None:
                return None
            pairs.append((key, escape(_on_lines(value[0]) if on_lines or value[2] == MISSING_CLOSE else value[0])))
            at = value[1]
            if value[2]:
                codes[value[2]] = codes.get(value[2], 0) + 1
        over = ends.match(body, at)
        if over is not None:
            at = over.end()
            if over["head"] is not None:
                codes[MISSING_MARKER] = 1
            elif over["end"] and (more := more_ends.match(body, at)) is not None:
                codes[DOUBLED_MARKER] = 1
                at = more.end()
            source = body[name.start() : at]
            return ParsedCall(source, name[1], given=Elements(tuple(pairs)), codes=tuple(codes)), at
        if not pairs and (over := whole.match(body, at)) is not None:
            source = body[name.start() : over.end()]
            given = over[1] if over[1].rstrip().endswith("}") else over[1].rstrip(" \t\r\n)>")
            return ParsedCall(source, name[1], given=Json(given, given), codes=tuple(codes)), over.end()
        return None

    def read(body: str) -> list[ParsedCall]:
        calls: list[ParsedCall] = []
        at = 0
        while (name := begins.match(body, at)) is not None and (got := read_one(body, name)) is not None:
            calls.append(got[0])
            at = got[1]
        if calls and _SURPLUS.match(body, at):
            calls[-1] = calls[-1].repaired(DOUBLED_MARKER)
        elif body[at:].strip() or not calls:
            calls.append(ParsedCall(body[at:], name[1] if name else name_of(body), broken=True))
        return calls

    return read


@lru_cache(maxsize=64)
def _elements_reader(mark: str, call: str, parameter: str) -> Callable[[str], list[ParsedCall]]:
    """Return a reader for calls in elements such as ``<function=…>`` and ``<parameter=…>``.

    ``mark``: text before the name of each element. ``call`` and ``parameter``: the names of the elements.
    """
    mark = re.escape(mark)
    return pairs_reader(
        rf"<{mark}{call}(?:=|\s++name=)[\"']?({NAME}?)[\"']?{HEAD_END}",
        rf"<{mark}{parameter}(?:=|\s++name=)(?:\"{_KEY}\"|'{_KEY}'|{_BARE_KEY}){_ATTRIBUTES}\s{{0,8}}/?>",
        rf"<{mark}{parameter}\b",
        rf"</{mark}{parameter}>",
        rf"</{mark}{call}>",
        on_lines=call == "function",
    )


def read_elements_calls(body: str) -> list[ParsedCall]:
    """Parse calls in elements, such as ``<function=f><parameter=k>v</parameter></function>`` or ``<invoke name="f">…``.

    The first call determines the names of the elements, and the text before these names (``｜DSML｜``).
    """
    head = _HEAD.match(body)
    for openers in _OPENERS if head is None else ():
        if _HEAD.match(right := corrected(body, (), openers)):
            return [call.repaired(MISSPELLED_MARKER) for call in read_elements_calls(right)]
    if head is None:
        return [ParsedCall(body, name_of(body), broken=True)]
    first = _PARAMETER.match(body, head.end()) or _PARAMETER_END.search(body, head.end())
    mark, call, parameter = head[1], head[2], first["word"] if first else "parameter"
    joint, end = ("=", ">") if head[3] == "=" else (' name="', '">')
    openers = ((f"<{mark}{call}{joint}", end), (f"<{mark}{parameter}{joint}", end))
    closers = (f"</{mark}{parameter}>", f"</{mark}{call}>")
    return respelled(_elements_reader(mark, call, parameter), body, closers, openers)


_GLM_BARE = r"[\w.$-]{1,128}+"
_ARG_KEY, _ARG_VALUE, _END_VALUE = "<arg_key>", "<arg_value>", "</arg_value>"
_GLM_KEY = re.compile(
    rf"""
    \s*+
    (?: (?P<open> (?:{_ARG_KEY}\s*+)++ ) (?P<key>[^<>]{{1,256}}+) | (?:<tool_call>\s*+)? (?P<bare>{_GLM_BARE}) \s*+ )
    (?P<close> (?:</arg_key>\s*+)*+ )
    (?P<value> {_ARG_VALUE} (?:\s*+{_ARG_VALUE})*+ )?+
    """,
    re.VERBOSE,
)
# Patterns for the remains of a marker at the beginning of a value, and for a misspelled marker inside a value.
_GLM_DEBRIS = re.compile(r"(?:[\w/]{0,2}|\s/?)>|\]")
_GLM_MARKUP = re.compile(r"[<\\/;]\s?/?arg_", re.IGNORECASE)
_GLM_HALF_OPENER = re.compile(r"</?arg_\w{0,12}>|(?:arg_|rg_|g_|_)?v?a?l?ue>")
_GLM_NAME = re.compile(r"\s*+([\w.:/-]{1,128}+)\s*+(?=<arg_key>|<tool_call>|(?<=\n)[\w.$-]{1,128}+</arg_key>|\Z)")
_GLM_OPENER = rf"{_ARG_KEY}[^<>]{{1,256}}</arg_key>\s{{0,64}}{_ARG_VALUE}"
_GLM_VALUES = _Values(
    _GLM_OPENER,
    "</?arg_(?:key|value)>",
    _GLM_OPENER,
    _END_VALUE,
    rf"{_ARG_KEY}|{_GLM_BARE}\s*+</arg_key>|\Z",
    rf"{_ARG_KEY}|\Z",
)


def read_glm(body: str) -> list[ParsedCall]:
    """Parse a body that consists of one GLM call, with or without arguments."""
    return respelled(_read_glm, body, (_ARG_KEY, "</arg_key>", _ARG_VALUE, _END_VALUE))


def _read_glm(body: str) -> list[ParsedCall]:
    name = _GLM_NAME.match(body)
    pairs: list[tuple[str, str]] = []
    codes: dict[str, int] = {}
    at = name.end() if name else 0
    while name and at < len(body.rstrip()):
        pair = _GLM_KEY.match(body, at)
        value = None
        if pair is not None and (pair["close"] or pair["value"]) and codes.get(MISSING_CLOSE, 0) <= _MAX_UNCLOSED:
            at = pair.end()
            if not pair["value"]:
                # If the marker before the value is incomplete, its remains are removed, unless they may be part of the
                # value.
                half = _GLM_HALF_OPENER.match(body, at)
                at = half.end() if half else at
            value = None if body.startswith("<arg", at) else _GLM_VALUES.read(body, at)
        if pair is None or value is None:
            return [ParsedCall(body, name[1], broken=True)]
        if (not pair["value"] and _GLM_DEBRIS.match(value[0])) or (
            (not pair["value"] or value[2] == MISSING_CLOSE) and _GLM_MARKUP.search(value[0])
        ):
            return [ParsedCall(body, name[1], broken=True)]
        opener, close, opens = pair["open"] or "", pair["close"], pair["value"] or ""
        if opener.count("<") > 1 or close.count("<") > 1 or opens.count("<") > 1:
            codes[DOUBLED_MARKER] = 1
        if not (opener and close and opens):
            codes[MISSING_MARKER] = 1
        if value[2]:
            codes[value[2]] = codes.get(value[2], 0) + 1
        pairs.append(((pair["key"] or pair["bare"]).strip(), escape(_on_lines(value[0]) if value[2] else value[0])))
        at = value[1]
    if name is None:
        return [ParsedCall(body, name_of(body), broken=True)]
    return [ParsedCall(body, name[1], given=Elements(tuple(pairs)), codes=tuple(codes))]


_LONGCAT_MARKER = re.compile("(</?)longcat_arg_")
_LEFT_OF_LONGCAT = re.compile(r"longc|cat_|arg_|(?:key|value|lue)>|</?l")


def read_longcat(body: str) -> list[ParsedCall]:
    """Parse a body that consists of one LongCat call. Apart from longer markers, it looks like a GLM call.

    The call is broken if part of a marker remains in a name or value after a repair.
    """
    (call,) = read_glm(_LONGCAT_MARKER.sub(r"\1arg_", body))
    items = call.given.items if isinstance(call.given, Elements) else ()
    is_left = any(_LEFT_OF_LONGCAT.search(part) for pair in items for part in pair)
    return [replace(call, broken=True) if call.codes and is_left else call]


M3_MARK = "]<]minimax[>["
"""The text that MiniMax M3 writes before each tag."""

_M3 = re.escape(M3_MARK)
_read_m3_pairs = pairs_reader(
    rf"{_M3}<invoke\s++name=\"({NAME}?)\"\s*+>",
    rf"{_M3}<([^<>/\s=\"]{{1,256}})>",
    rf"{_M3}(?!</?invoke)|\]<\]|\[>\[",
    rf"{_M3}</(?!invoke)[^<>\s]{{1,256}}>",
    rf"{_M3}</invoke>",
)


def _m3_value(key: str, value: str) -> str:
    """Return a value without ``M3_MARK``, and without its opening tag if the model has repeated the tag."""
    bare = value.replace(M3_MARK, "")
    return bare if f"</{key}>" in bare else bare.removeprefix(f"<{key}>")


def read_m3(body: str) -> list[ParsedCall]:
    """Parse MiniMax M3's calls. Elements inside a value are parsed later, according to the tool's schema."""
    return [
        replace(call, given=Elements(tuple((key, _m3_value(key, value)) for key, value in call.given.items)))
        if isinstance(call.given, Elements)
        else call
        for call in _read_m3_pairs(body)
    ]
