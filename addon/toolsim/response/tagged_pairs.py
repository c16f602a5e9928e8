"""Calls as names and values between marks: no types (the tool's schema gives them), no escapes.

    calls := call+
    call  := head pair* end | head object end          some models put JSON where the pairs would stand
    pair  := before key after value close

A closing mark inside a value is data: a value ends at the first one behind which the form continues or ends. Without
such a mark, it extends to the next pair or the end of the call: ``MISSING_CLOSE``, a repair.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from toolsim.response.written import MISSING_CLOSE, Json, Written, escape, name_of

NAME = r"[\w.:/-]{1,128}"
_KEY = r"[^<>=\"]{1,256}"
_GAP = r"\s{0,64}"
_MAX_UNCLOSED = 8
"""Values without their end in one call. Detecting one means scanning all that follows; no model loses more."""


def pairs_reader(head: str, before: str, after: str, close: str, end: str = "") -> Callable[[str], list[Written]]:
    """Return the reader of one form, from patterns of its marks; ``head`` has the name as its one group.

    The reader returns the calls of a body, never an empty list; what cannot be read is one broken call at its end.
    """
    begins = re.compile(rf"\s*{head}")
    last = rf"{end}|\Z" if end else r"\Z"
    opens = rf"{before}{_KEY}{after}"
    goes_on = rf"(?={_GAP}(?:{opens}|{last}))"
    marked = rf"(?={_GAP}(?:{opens}{'|' + end if end else ''}))"
    pair = re.compile(rf"\s*{before}({_KEY}){after}(.*?){close}{goes_on}", re.DOTALL)
    # Another closing tag in the place of the right one goes, if nothing else in the value could have opened it.
    wrongly_closed = rf"([^<]*?)</[\w:-]{{1,64}}>{marked}"
    unclosed = re.compile(rf"\s*{before}({_KEY}){after}(?:{wrongly_closed}|((?:(?!{close}).)*?){marked})", re.DOTALL)
    opening, closing = re.compile(opens), re.compile(close)
    ends = re.compile(rf"\s*(?:{last})")
    whole = re.compile(rf"(\s*\{{.*?)(?:{last})", re.DOTALL)

    def next_pair(body: str, at: int) -> re.Match[str] | None:
        closed = pair.match(body, at)
        if closed is not None and (inside := len(opening.findall(closed[2]))):
            # More pairs open in it than close: the closing mark belongs to another pair.
            closed = closed if inside <= len(closing.findall(closed[2])) else None
        return closed or unclosed.match(body, at)

    def read_one(body: str, name: re.Match[str]) -> tuple[Written, int] | None:
        pairs: list[tuple[str, str]] = []
        missing = 0
        at = name.end()
        while missing <= _MAX_UNCLOSED and (found := next_pair(body, at)) is not None:
            missing += found.re is unclosed
            # The values are not escaped, but ``arguments`` undoes one level of escapes.
            value = found[2] if found[2] is not None else found[3] + _line_end(found[3])
            pairs.append((found[1].strip(), escape(value)))
            at = found.end()
        if (over := ends.match(body, at)) is not None:
            source = body[name.start() : over.end()]
            mends = (MISSING_CLOSE,) if missing else ()
            return Written(source, name[1], elements=tuple(pairs), mends=mends), over.end()
        if not pairs and (over := whole.match(body, at)) is not None:
            return Written(body[name.start() : over.end()], name[1], arguments=Json(over[1], over[1])), over.end()
        return None

    def read(body: str) -> list[Written]:
        calls: list[Written] = []
        at = 0
        while (name := begins.match(body, at)) is not None and (got := read_one(body, name)) is not None:
            calls.append(got[0])
            at = got[1]
        if body[at:].strip() or not calls:
            calls.append(Written(body[at:], name[1] if name else name_of(body), broken=True))
        return calls

    return read


def _line_end(value: str) -> str:
    """Return the line end that a value lacks without its end, if it stands on lines of its own: both are stripped."""
    return "\n" if value.startswith(("\n", "\r\n")) else ""
