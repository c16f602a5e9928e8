"""Calls as a name and a JSON object behind it, between whatever marks a form has.

    calls := (noise name between object end)+
    Mistral:     name{…} | name[ARGS]{…} | name[CALL_ID]id[ARGS]{…} | [{"name": …, "arguments": {…}}, …]
    DeepSeek V3: function<｜tool▁sep｜>name, then the object in a fence; since V3.1 name<｜tool▁sep｜>object
    Kimi K2:     functions.name:0<|tool_call_argument_begin|>object
    gpt-oss:     functions.name<|channel|>commentary <|constrain|>json<|message|>object

The object is passed on as text: ``arguments`` parses it, and mends it if need be.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from toolsim.response.written import DOUBLED_MARKER, Json, Written, read_json

GPT_OSS_HEAD = (
    r"(?:functions\.)?([\w.:/-]{1,128}?)(?:\s{0,8}<\|channel\|>\w{1,16})?"
    r"(?:\s{0,8}<\|constrain\|>\s{0,8}\w{1,16}|\s{1,8}\w{1,16})?\s{0,8}<\|message\|>"
)
"""What stands between ``to=`` and the object."""

_NUMBERED = re.compile(r"\A(?:functions\.)?(.+?)(?::\d+)?\Z")
_FENCE = re.compile(r"\A\s*`{3}\w*\s*\n(.*?)\n?\s*`{3}\s*\Z", re.DOTALL)


def named_json_reader(head: str, end: str = "") -> Callable[[str], list[Written]]:
    """Return the reader of one form: ``head`` is a pattern up to the object, with the name as its one group.

    ``end`` is the marker behind the object; it may stand twice, or be missing at the end of the body.

    The reader returns the calls of a body, never an empty list; what cannot be read is one broken call at its end.
    """
    begins = re.compile(rf"\s*(?:{head})")
    ends = re.compile(rf"(?:{re.escape(end)}\s*+)++|\Z" if end else r"\Z")

    def read(body: str) -> list[Written]:
        calls: list[Written] = []
        at = 0
        while (found := begins.match(body, at)) is not None and (last := ends.search(body, found.end())) is not None:
            text = body[found.end() : last.start()]
            fence = _FENCE.match(text)
            text = fence[1] if fence else text
            name = _NUMBERED.sub(r"\1", found[1])
            codes = (DOUBLED_MARKER,) if end and last[0].count(end) > 1 else ()
            calls.append(Written(body[at : last.end()], name, arguments=Json(text, text), codes=codes))
            at = last.end()
        if body[at:].strip() or not calls:
            calls.append(Written(body[at:], found[1] if found else None, broken=True))
        return calls

    return read


def read_bare_json(body: str) -> list[Written]:
    """Read calls that are JSON and nothing else."""
    return read_json(body, closed=True, repair=True)


read_named_json = named_json_reader(
    r"([\w.:/-]{1,128}?)(?:\s{0,8}\[CALL_ID\][\w-]{1,64})?(?:\s{0,8}\[ARGS\])?\s{0,8}(?=\{)"
)

"""Reads a name and an object."""

read_gpt_oss = named_json_reader(GPT_OSS_HEAD)
"""Reads what stands behind ``to=``."""

_read_markless = named_json_reader(r"commentary to=([\w.:/-]{1,128}) ?(?:json)?(?=\{)")


def read_braces(text: str) -> list[Written]:
    """Read what is left of a call of Mistral's, Kimi's or gpt-oss's if the server has dropped the marks."""
    return _read_markless(text) if text.lstrip().startswith("commentary to=") else read_mistral(text)


def read_mistral(body: str) -> list[Written]:
    """Read what stands behind one ``[TOOL_CALLS]``."""
    return read_bare_json(body) if body.lstrip()[:1] in ("[", "{") else read_named_json(body)
