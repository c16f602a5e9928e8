r"""Tool outputs of a request, used to distinguish calls that a model makes from calls that it quotes.

A page that a tool has fetched can contain a call, and a model that only repeats the page does not make that call. The
judge therefore checks whether the text of a call occurs in an output.

1. Calls and outputs are compared in a normal form that is independent of quoting, wrapping and escaping. It consists of
   lower-case letters, digits, and the characters that structure a call (``{}()[]=:,``). Whitespace, quotes, angle
   brackets, Markdown markers, line numbers and invisible characters are removed. Escapes (``\n``, ``\u003c``, ``&lt;``)
   are resolved, no matter how often the text was escaped.
2. The output must contain the entire call, apart from the tags or the fence around it. A new call with arguments from
   an output is normal tool use.
3. A call that the model has already made in the conversation does not count as quoted. Many tools echo a rejected call
   in their error message, and the model may repeat that call.

The comparison takes linear time, and at most as much memory as the request's outputs.
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
# HTML that displays HTML contains double escapes, such as ``&amp;lt;``. Removing the first entry, ``amp;``, turns
# double escapes into single escapes. The other entries match single escapes.
_ENTITIES = (b"amp;", b"&lt;", b"&gt;", b"&quot;", b"&apos;", b"&nbsp;", b"&#39;", b"&#34;", b"&#60;", b"&#62;")
_NUMBERED = re.compile(rb"\n[ \t]*+\d{1,6}(?:\t|\xe2\x86\x92|[|:)])")
"""A pattern for line numbers at the start of a line, as printed by ``cat -n``, ``grep -n`` and editors."""
_INVISIBLE = re.compile(
    rb"\xe2\x80[\x80-\x8f\xa8-\xaf]|\xe2\x81[\xa0-\xaf]|\xc2[\x85\xa0\xad]|\xcd\x8f|\xd8\x9c|\xe1\xa0\x8e|\xe3\x80\x80|\xef\xbb\xbf"
)
"""A pattern for spaces and invisible characters, in UTF-8: U+00A0, U+200B, U+2028, U+FEFF and similar."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The tool outputs in a request."""

    text: bytes = b""
    """The normal forms of the outputs, one per line."""
    made: frozenset[bytes] = frozenset()
    """Digests of the calls in the conversation (rule 3)."""

    @classmethod
    def of(cls, outputs: Iterable[str], calls: Iterable[tuple[str, str]]) -> Outputs:
        """Return the ``Outputs`` for tool outputs and earlier calls. Each call is a pair of tool name and arguments."""
        text = b"\n".join(filter(None, map(normal, outputs)))
        return cls(text, frozenset(_digest(*call) for call in calls)) if text else cls()

    def contains(self, written: str) -> bool:
        """Return whether any single output contains ``written``, compared in normal form."""
        return normal(written) in self.text

    def answer(self, name: str, arguments: str) -> bool:
        """Return whether the conversation already contains the call with this name and these arguments (rule 3)."""
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
