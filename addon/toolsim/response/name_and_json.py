"""Parses calls that consist of a name and a JSON object, between the markers of a form.

    calls := (text name text object marker)+
    Mistral:     name{…} | name[ARGS]{…} | name[CALL_ID]id[ARGS]{…} | [{"name": …, "arguments": {…}}, …]
    DeepSeek V3: function<｜tool▁sep｜>name, then the object in a fence; since V3.1 name<｜tool▁sep｜>object
    Kimi K2:     functions.name:0<|tool_call_argument_begin|>object
    gpt-oss:     functions.name<|channel|>commentary <|constrain|>json<|message|>object

The reader returns the object as text. The module ``arguments`` parses it, and repairs it if necessary.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from toolsim.response.misspelled import spelled, spellings_of
from toolsim.response.parsed_call import (
    DOUBLED_MARKER,
    MISSPELLED_MARKER,
    Json,
    ParsedCall,
    decode,
    read_json,
    respelled,
)


def _gpt_oss_head(constrain: str, message: str) -> str:
    return (
        r"(?:functions\.)?([\w.:/-]{1,128}?)(?:\s{0,8}<\|channel\|>\w{1,16})?"
        rf"(?:\s{{0,8}}(?:{constrain}\s{{0,8}}){{1,2}}\w{{1,16}}(?:\s{{0,8}}{message}){{0,2}}"
        rf"|(?:\s{{1,8}}\w{{1,16}})?(?:\s{{0,8}}{message}){{1,2}})"
    )


GPT_OSS_HEAD = _gpt_oss_head(r"<\|constrain\|>", r"<\|message\|>")
"""A pattern for the text between ``to=`` and the arguments of a call in gpt-oss's form."""

GPT_OSS_SLIPS = _gpt_oss_head(spelled("<|constrain|>"), spelled("<|message|>"))
"""A pattern like ``GPT_OSS_HEAD`` that also accepts misspelled markers."""

ARGS = rf"(?:\s{{0,8}}{spelled('[ARGS]')}){{0,2}}"
"""A pattern for the markers that Mistral models write between a name and the object."""

_NUMBERED = re.compile(r"\A(?:functions\.)?(.+?)(?::\d+)?\Z")
_FENCE = re.compile(r"\A\s*`{3}\w*\s*\n(.*?)\n?\s*`{3}\s*\Z", re.DOTALL)


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # Compiled on demand, because patterns with many spellings take milliseconds.


def named_json_reader(head: str, end: str = "", *others: str) -> Callable[[str], list[ParsedCall]]:
    """Return a reader for calls that consist of a name and a JSON object.

    ``head``: a pattern for the text before the object, with one group for the name. ``end``: the marker after the
    object. The marker may be doubled, or missing at the end of the body. ``others``: the other markers of the call
    form. If a body cannot be parsed, its misspelled markers are corrected, and it is parsed again.

    The reader returns at least one call. Text that cannot be parsed becomes one broken call at the end.
    """
    ends = re.compile(rf"(?:{re.escape(end)}\s*+)++|\Z" if end else "")

    def read(body: str) -> list[ParsedCall]:
        begins = _compiled(rf"\s*(?:{head})")
        calls: list[ParsedCall] = []
        at = 0
        while (found := begins.match(body, at)) is not None and (last := ends.search(body, found.end())) is not None:
            spelling = ""
            if end:
                text, until = body[found.end() : last.start()], last.end()
                spelling = "" if last[0] else spellings_of(end).before(text.rstrip())
                text = text.rstrip().removesuffix(spelling) if spelling else text
            else:  # Without an end marker, the object ends where the next name begins.
                got = decode(body, found.end())
                until = got[1] if got is not None and begins.match(body, got[1]) else len(body)
                text = body[found.end() : until]
            fence = _FENCE.match(text)
            text = fence[1] if fence else text
            name = _NUMBERED.sub(r"\1", found[1])
            codes = (DOUBLED_MARKER,) if end and last[0].count(end) > 1 else ()
            codes = (MISSPELLED_MARKER,) if spelling else codes
            calls.append(ParsedCall(body[at:until], name, given=Json(text, text), codes=codes))
            at = until
        if body[at:].strip() or not calls:
            calls.append(ParsedCall(body[at:], found[1] if found else None, broken=True))
        return calls

    return (lambda body: respelled(read, body, (*others, end))) if end else read


def read_bare_json(body: str) -> list[ParsedCall]:
    """Parse calls that consist only of JSON."""
    return read_json(body, closed=True, repair=True)


read_named_json = named_json_reader(
    rf"([\w.:/-]{{1,128}}?)(?:\s{{0,8}}\[CALL_ID\][\w-]{{1,64}})?{ARGS}\s{{0,8}}(?=\{{)"
)

"""Parses a name and a JSON object."""

read_gpt_oss = named_json_reader(GPT_OSS_SLIPS)
"""Parses the text after ``to=`` in gpt-oss's form."""

_read_markless = named_json_reader(r"commentary to=([\w.:/-]{1,128}) ?(?:json)?(?=\{)")


def read_braces(text: str) -> list[ParsedCall]:
    """Parse a call by a Mistral, Kimi or gpt-oss model if the server has removed the call's markers."""
    return _read_markless(text) if text.lstrip().startswith("commentary to=") else read_mistral(text)


def read_mistral(body: str) -> list[ParsedCall]:
    """Parse the text after ``[TOOL_CALLS]``, up to the next such marker."""
    return read_bare_json(body) if body.lstrip()[:1] in ("[", "{") else read_named_json(body)
