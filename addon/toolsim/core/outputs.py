r"""What the tools of a request returned, to tell the calls that a model makes from those it quotes.

A page that a tool has fetched may hold a call, and a model that only repeats the page wants nothing
done. So the judge asks here whether what the model wrote as a call is part of an output.

1. Both are compared in a normal form, which quoting, wrapping and escaping do not change: only
   letters, digits and the characters that give a call its shape (``{}()[]=:,``) are left of a text,
   and letters are lower case. White space, quotes, angle brackets, marks of Markdown, numbers of
   lines and invisible characters are gone, and escapes (``\n``, ``\u003c``, ``&lt;``) become what
   they stand for, however often they were escaped.
2. All of the written call has to be there, without the tags or the fence around it. Arguments that
   come from an output, in a call that the model has written around them, are what tools are for.
3. A call that the conversation already holds is the model's own: many a tool repeats in its error
   the call that it refuses, and the model may try again.

Linear in both texts. Memory: at most what the request's outputs take.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

_KEPT = b"_{}()[]=:,"
_LOWER = bytes(range(256)).lower()
_DROPPED = bytes(code for code in range(128) if not (chr(code).isalnum() or code in _KEPT))
_UNICODE = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+")
_LINE_ENDS = (b"\\n", b"\\r", b"\\t")
# HTML that shows HTML escapes the escapes: without the first, ``&amp;lt;`` is one of the others.
_ENTITIES = (b"amp;", b"&lt;", b"&gt;", b"&quot;", b"&apos;", b"&nbsp;", b"&#39;", b"&#34;", b"&#60;", b"&#62;")
_NUMBERED = re.compile(rb"\n[ \t]*+\d{1,6}(?:\t|\xe2\x86\x92|[|:)])")
"""Where a line begins with its number, as ``cat -n``, ``grep -n`` and editors show it."""
_INVISIBLE = re.compile(
    rb"\xe2\x80[\x80-\x8f\xa8-\xaf]|\xe2\x81[\xa0-\xaf]|\xc2[\x85\xa0\xad]|\xcd\x8f|\xd8\x9c|\xe1\xa0\x8e|\xe3\x80\x80|\xef\xbb\xbf"
)
"""Spaces and characters without a shape, in UTF-8: U+00A0, U+200B, U+2028, U+FEFF and their like."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs in a request."""

    text: bytes = b""
    """Their normal forms, one on each line."""
    made: frozenset[bytes] = frozenset()
    """Digests of the calls in the conversation (rule 3)."""

    @classmethod
    def of(cls, outputs: Iterable[str], calls: Iterable[tuple[str, str]]) -> Outputs:
        """Return what is needed of ``outputs`` and of ``calls``: each a tool's name and arguments."""
        text = b"\n".join(filter(None, map(normal, outputs)))
        return cls(text, frozenset(_digest(*call) for call in calls)) if text else cls()

    def hold(self, written: str) -> bool:
        """Return whether an output holds all of ``written``; there is at least one."""
        return normal(written) in self.text

    def answer(self, name: str, arguments: str) -> bool:
        """Return whether the conversation already holds that call (rule 3)."""
        return _digest(name, arguments) in self.made


def normal(text: str) -> bytes:
    """Return the normal form of ``text``, in UTF-8 (rule 1)."""
    form = text.encode("utf-8", "surrogatepass")
    if b"\\" in form:
        if b"\\u" in form:
            form = _UNICODE.sub(_characters, form)
        for escaped in _LINE_ENDS:
            form = form.replace(escaped, b"\n")
    form = _NUMBERED.sub(b"", form)
    if b"&" in form:
        for entity in _ENTITIES:
            form = form.replace(entity, b"")
    if not form.isascii():
        form = _INVISIBLE.sub(b"", form)
    return form.translate(_LOWER, _DROPPED)


def _characters(escapes: re.Match[bytes]) -> bytes:
    units = bytes.fromhex(escapes[0].replace(b"\\u", b"").decode())
    return units.decode("utf-16-be", "surrogatepass").encode("utf-8", "surrogatepass")


def _digest(name: str, arguments: str) -> bytes:
    return blake2b(normal(name) + b"\n" + normal(arguments), digest_size=16).digest()
