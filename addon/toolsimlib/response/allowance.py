"""Which calls one choice may make: as many as its limit allows, and none twice.

Some backends send a call as text **and** as a structured call; if both were passed on, a tool that writes would write
twice. So a call of one kind that means the same as an unpaired call of the other kind is dropped: as many are left as
the backend made of the more frequent kind. With ``toolsim_tool_block_dedup`` every repetition is dropped.

Two calls mean the same if their tools and the values of their arguments are equal, however these are spelled.
"""

from __future__ import annotations

import json
from collections import Counter

from toolsimlib.plan import Plan

type _Key = tuple[str, str]


class Allowance:
    """Counts the calls of one choice. ``made``: how many were emitted; ``limit``: 0 = any number."""

    def __init__(self, plan: Plan) -> None:
        self.limit = 1 if plan.one_call or plan.legacy_functions else plan.policy.tool_block_max
        self.made = 0
        self._duplicates = Duplicates(all_duplicates=plan.policy.tool_block_dedup)

    @property
    def is_spent(self) -> bool:
        """Whether no further call may be made."""
        return 0 < self.limit <= self.made

    @property
    def may_be_repeated(self) -> bool:
        """Whether a structured call may be one that came as text before."""
        return self._duplicates.has_unpaired_text

    def repeats(self, name: str, arguments: str, *, structured: bool) -> bool:
        """Return whether a call was made already; ``structured``: the backend emitted it as one."""
        return self._duplicates.is_duplicate(name, arguments, structured=structured)


class Duplicates:
    """The calls of one choice so far. ``all_duplicates``: also drop repetitions within one kind."""

    def __init__(self, *, all_duplicates: bool) -> None:
        self._all_duplicates = all_duplicates
        self._seen: set[_Key] = set()
        # Calls that came as text, not parsed until a structured call makes it matter.
        self._unparsed: list[_Key] = []
        self._unpaired: dict[bool, Counter[_Key]] = {False: Counter(), True: Counter()}

    @property
    def has_unpaired_text(self) -> bool:
        """Whether a call came as text that no structured call has repeated."""
        return bool(self._unparsed) or self._unpaired[False].total() > 0

    def is_duplicate(self, name: str, arguments: str, *, structured: bool) -> bool:
        """Return whether this call was made already; it counts as made from now on."""
        if self._all_duplicates:
            key = _canonical(name, arguments)
            is_known = key in self._seen
            self._seen.add(key)
            return is_known
        if not structured and not self._unpaired[True]:
            self._unparsed.append((name, arguments))
            return False
        self._unpaired[False].update(_canonical(*call) for call in self._unparsed)
        self._unparsed = []
        key = _canonical(name, arguments)
        counterparts = self._unpaired[not structured]
        if counterparts[key] > 0:
            counterparts[key] -= 1
            return True
        self._unpaired[structured][key] += 1
        return False


def _canonical(name: str, arguments: str) -> _Key:
    try:
        value = json.loads(arguments, parse_float=_number)
    except (ValueError, RecursionError):
        return name, arguments.strip()
    return name, json.dumps(value, sort_keys=True)


def _number(text: str) -> float | int:
    """Return 1 for 1.0: the same number in JSON."""
    number = float(text)
    return int(number) if number.is_integer() else number
