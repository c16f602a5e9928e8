"""Finds where untagged calls and fences begin in a line, from as few characters as possible.

{                      JSON        without waiting; ``form`` rejects it at the first key that does not belong to a call
[                      JSON        unless one of the next three rows matches
[function_call SPACE   record      a call as the history shows it
['name(   ["name(      strings     a list of calls, each in quotes
[name(                 list        only for names of offered tools, here and below: no other word is held back
name(                  syntax      underscores can be escaped, and the name can be slightly misspelled (``repair``)
name{   name[ARGS]{    braces      a call in Mistral's or Kimi's form (functions.name:0{) without its markers
name NEWLINE {         braces      the same with a newline, as GLM-4 writes it
call:name{             gemma       the same for Gemma
commentary to=functions.name json{  braces      the same for gpt-oss
functools[             functools   JSON, as Phi-4-mini writes it
```                    fence       its language determines whether it may contain a call
~~~                    code        a fence that contains no calls

In a code fence that contains only calls, Python code can surround the calls (``Statement``):

    statement := call | "print(" call ")" | name "=" call

The prefix ``default_api.``, under which some models see their tools, counts as part of the name.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Literal

from toolsim.response.call_syntax import ESCAPED
from toolsim.response.form import FUNCTOOLS, Kind
from toolsim.response.partial import match_at
from toolsim.response.repair import common_spelling
from toolsim.response.segments import end_of

LANGUAGES = ("", "json", "tool_call", "tool_code", "xml", "python", "py")
"""Languages of fences that can contain a call, as written after the opening mark."""

CODE = ("tool_code", "python", "py")
"""Languages of fences that can contain statements around calls."""

PYTHON = ("python", "py")
"""Languages of fences that usually show code and rarely contain calls."""

_BEHIND_WORDS = tuple(language for language in LANGUAGES if language not in PYTHON)

_MAX_LANGUAGE = 64
"""Maximum length of the language and the spaces after a fence's opening backticks, in characters."""

MARK = re.compile(r"`++|~++")
# Some models escape names as in Markdown: get\_weather(…). If the text ends with a backslash, an escape may follow.
NAME = re.compile(r"[A-Za-z_](?:[\w.:/-]|\\(?:_|\Z))*+")
_LANGUAGE = re.compile(r"[ \t]*+(\w*+)[ \t\r]*+")
_RECORD = "[function_call"
_MIN_MARK = 3
_PREFIXES = (_GEMMA := "call:", _GPT_OSS := "commentary to=")
_FIRST = frozenset(prefix[0] for prefix in _PREFIXES)
_AFTER_NAME = frozenset("({[\r\n")
_MODULE = "functions."
_MAX_NAME = 256
"""Maximum length of a word that is compared with the names of tools. Tool names are never longer."""

_NUMBER = re.compile(r":\d{0,3}\Z")
_ARGUMENTS = r"(?:(?:\[CALL_ID\][\w-]{1,64})?(?:\[ARGS\])?|\r?\n)\{"
_GPT_OSS_ARGUMENTS = r" ?(?:json)?\{"
_SPACE = re.compile(r"\s{0,32}")
_WORD = re.compile(r"[A-Za-z_]\w{0,63}[ \t]{0,8}")
_CODE_SPACE = re.compile(r"[ \t\r\n]{0,64}")
_DEFAULT_MODULE = "default_api."


def language_at(text: str, pos: int, *, has_started: bool, final: bool) -> tuple[str, int] | Literal["more"] | None:
    """Return the language of a fence whose opening backticks end at ``pos``, and the end of this line.

    Returns "more" if more text is needed, or None if the fence cannot contain a call.

    ``has_started``: whether text precedes the fence. After text, a fence in one of the ``PYTHON`` languages is assumed
    to show code. A list of calls can directly follow the backticks, as in ```[f(x)]```; the language is then "".
    """
    languages = _BEHIND_WORDS if has_started else LANGUAGES
    found = _LANGUAGE.match(text, pos)
    assert found is not None
    word, end = found[1].lower(), found.end()
    if end == pos and text.startswith("[", pos):
        return "", pos
    if end == len(text) and not final and end - pos <= _MAX_LANGUAGE:
        return "more" if any(name.startswith(word) for name in languages) else None
    return (word, end + 1) if text.startswith("\n", end) and word in languages else None


def find_call_start(
    text: str, pos: int, names: list[str], *, final: bool
) -> Kind | Literal["fence", "code", "more"] | None:
    """Return the kind of untagged call or fence that begins at ``pos``, or None if neither begins there.

    Returns "more" if more text is needed, but never if the text is ``final``. ``names``: the accepted spellings of the
    names of the offered tools, sorted.
    """
    match text[pos]:
        case "{":
            return "json"
        case "[":
            return _bracketed(text, pos, names, final=final)
        case "`" | "~":
            mark = MARK.match(text, pos)
            assert mark is not None
            if mark.end() == len(text) and not final:
                return "more"
            if len(mark[0]) < _MIN_MARK:
                return None
            return "fence" if text[pos] == "`" else "code"
        case "f" if FUNCTOOLS.startswith(text[pos : pos + len(FUNCTOOLS)]):
            at = end_of(_SPACE, text, pos + len(FUNCTOOLS))
            if at >= len(text):
                return _named(text, pos, names, final=True) if final else "more"
            if text[at] == "[":
                return "functools"
    return _named(text, pos, names, final=final)


def _bracketed(text: str, pos: int, names: list[str], *, final: bool) -> Kind | Literal["more"] | None:
    """Return the kind of form that begins with the ``[`` at ``pos``: a call in the history's notation, a list of calls,
    a list of quoted calls, or JSON. Returns "more" if more text is needed, or None if no form begins there.
    """
    head = text[pos : pos + len(_RECORD) + 1]
    if _RECORD.startswith(head) and not final:
        return "more"
    if head.startswith(_RECORD):
        return "record" if head[len(_RECORD) :].isspace() else None
    inner = end_of(_SPACE, text, pos + 1)
    is_quoted = text.startswith(("'", '"'), inner)
    inner += is_quoted
    if inner == len(text):
        return "json" if final else "more"
    # If this word is not the name of an offered tool, the list is not a list of calls, and its text need not be held
    # back.
    found = _named(text, inner, names, final=final) if is_quoted or NAME.match(text, inner) else None
    if found == "syntax":
        return "strings" if is_quoted else "list"
    return "more" if found == "more" else "json"


def _named(text: str, pos: int, names: list[str], *, final: bool) -> Kind | Literal["more"] | None:
    """Return the kind of call that begins with the name of an offered tool, or with a prefix that some models add to
    the name. Returns "more" if more text is needed, or None if no call begins there.
    """
    at = pos
    if text[at] in _FIRST:
        for prefix in _PREFIXES:
            head = text[at : at + len(prefix)]
            if head == prefix:
                at += len(prefix)
            elif prefix.startswith(head) and not final:  # The text ends within the prefix.
                return "more"
    name = NAME.match(text, at)
    if name is None:
        return "more" if at == len(text) and not final else None
    if at == pos and name.end() < len(text) and text[name.end()] not in _AFTER_NAME:
        return None
    word = name[0].removesuffix("\\").replace(ESCAPED, "_")
    is_escaped = len(word) < len(name[0])
    near = common_spelling(_NUMBER.sub("", word[:_MAX_NAME]))
    # A hyphen in call syntax is a minus sign, unless it is part of a tool's name.
    spellings = (word,) if "-" in word else (word, near, near.removeprefix(common_spelling(_MODULE)))
    found = [(spelling, names[place]) for spelling in spellings if (place := bisect_left(names, spelling)) < len(names)]
    if name.end() == len(text) and not final:
        return "more" if _MODULE.startswith(word) or any(of.startswith(spelling) for spelling, of in found) else None
    if all(of != spelling for spelling, of in found):
        return None
    if text.startswith("(", name.end()):
        return "syntax" if at == pos else None
    if is_escaped:
        return None
    arguments = _GPT_OSS_ARGUMENTS if text.startswith(_GPT_OSS, pos) else _ARGUMENTS
    behind = match_at(arguments, text, name.end(), final=final)
    if behind is None or behind.partial:
        return None if behind is None else "more"
    return "gemma" if text.startswith(_GEMMA, pos) else "braces"


class Statement:
    """The Python code around the calls in a code fence, such as ``print(…)``.

    ``is_open``: whether a ``print(`` has not been closed yet. ``is_python``: whether the language of the fence is one
    of ``PYTHON``.
    """

    def __init__(self, *, is_python: bool = False) -> None:
        self.is_open = False
        self.is_python = is_python

    def before(self, text: str, pos: int, *, final: bool) -> int | None:
        """Return the position where a call in the statement at ``pos`` can begin, after any ``print(`` or assignment.

        Returns None if more text is needed.
        """
        at = end_of(_WORD, text, pos)
        if at == len(text):
            return pos if final else None
        self.is_open = text[pos:at].rstrip() == "print" and text[at] == "("
        is_assigned = at > pos and text[at] == "="
        at = end_of(_CODE_SPACE, text, at + 1) if self.is_open or is_assigned else pos
        if not final and _DEFAULT_MODULE.startswith(text[at:]):
            return None
        if text.startswith(_DEFAULT_MODULE, at):
            at += len(_DEFAULT_MODULE)
        return pos if at == len(text) else at

    def behind(self, text: str, pos: int) -> int:
        """Return the end of the statement whose call ends at ``pos``, including the ``)`` of a ``print(``."""
        closes = self.is_open and text.startswith(")", pos)
        self.is_open = False
        return pos + closes
