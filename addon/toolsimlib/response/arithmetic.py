"""Numbers that a model writes as a sum instead of working it out: ``"track_length": 3 * 60``.

    sum := number ((" " | "") "*" (" " | "") number | " " ("+" | "-" | "/") " " number)+

``+ - /`` must have spaces around them: without, ``2026-05-01`` and ``5/1/2026`` are dates that lack their quotes.
The sum must be the whole value. It is evaluated with the usual precedence, ``*`` and ``/`` first.
"""

from __future__ import annotations

import re

_NUMBER = r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?"
_OPERATOR = r"(?:[ \t]{0,4}\*[ \t]{0,4}|[ \t]{1,4}[-+/][ \t]{1,4})"
_SUM = re.compile(rf"\s{{0,64}}({_NUMBER}(?:{_OPERATOR}{_NUMBER}){{1,16}})(?=\s{{0,64}}[,}}\]])")
_TERM = re.compile(rf"({_NUMBER})\s*([-+*/])?\s*")


def sum_at(text: str, at: int) -> tuple[str, int] | None:
    """Return the value (as JSON) and the end of the sum at ``at``, behind any whitespace; None if there is none."""
    found = _SUM.match(text, at)
    value = _worked_out(found[1]) if found else None
    return None if found is None or value is None else (value, found.end())


def _worked_out(text: str) -> str | None:
    total: float = 0
    product: float = 1
    sign, operator = 1, "*"
    for number, following in _TERM.findall(text):
        value = float(number) if "." in number else int(number)
        if operator == "/" and not value:
            return None
        product = product / value if operator == "/" else product * value
        operator = following
        if operator not in ("*", "/"):
            total += sign * product
            sign, product, operator = (-1 if following == "-" else 1), 1, "*"
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    return repr(total)
