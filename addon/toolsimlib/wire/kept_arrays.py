"""A cache of arrays from earlier requests with their sources: clients repeat them, so they need not be parsed again.

``request_body.py`` caches tools in this way, ``beginnings.py`` histories. Each finds where a cached source occurs in a
body and replaces it by a word that no client can know (``Cut``); a parser reads the rest, and the cached array replaces
the word.

1. Only the parser decides where the word is. If it is not the value of the body's own key, the cut is discarded.
2. An array is identified by the very object. Its ``id`` would not do: another object may get it once the array is gone.
3. A source that continues a cached one replaces it, and so does an equal one.
4. Another thread may read bodies at the same time: if no worker process can be started, a thread does the large jobs.
   So the cache is a tuple, which is replaced and never changed; of two simultaneous replacements one is lost.
5. Nobody may change a cached array or its contents. Their number and the size of all together are bounded.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from itertools import count
from typing import Any

_numbers = count(1)


@dataclass(eq=False, slots=True)
class KeptArray:
    """An array and its source, or the part of the source that its module compares.

    ``read``: the reader's result for it, in the reader's own shape. ``number``: unique within this process.
    """

    source: str
    array: list[Any]
    read: object = None
    number: int = field(default_factory=_numbers.__next__)

    @property
    def size(self) -> int:
        """The number of characters of its source."""
        return len(self.source)


@dataclass(frozen=True, slots=True)
class Cut:
    """A body with a word in place of an array, which should be the value of the body's ``key``."""

    key: str
    text: str
    kept: KeptArray


class KeptArrays:
    """The latest arrays: at most ``most``, with sources of at least ``smallest`` characters, ``total`` of all of them.

    A short one costs next to nothing to parse, a long one much memory to cache.
    """

    def __init__(self, most: int, smallest: int, total: int) -> None:
        self._most = most
        self.smallest = smallest
        self._total = total
        self._latest: tuple[KeptArray, ...] = ()
        self._word = secrets.token_hex(16)

    def find(self, text: str, at: int) -> KeptArray | None:
        """Return the latest array whose source is in ``text`` at ``at``."""
        for kept in self._latest:
            if text.startswith(kept.source, at):
                return kept
        return None

    def of(self, array: object) -> KeptArray | None:
        """Return the cache entry of this very array, None if there is none."""
        for kept in self._latest:
            if kept.array is array:
                return kept
        return None

    def cut(self, key: str, text: str, at: int, end: int, kept: KeptArray) -> Cut:
        """Cut the array out of the body ``text``, where it extends from ``at`` to ``end``."""
        return Cut(key, f'{text[:at]}"{self._word}"{text[end:]}', kept)

    def put_back(self, cut: Cut, document: dict[str, Any]) -> bool:
        """Put the array back in place of its word and cache it; return whether the word was the value of its key."""
        if document.get(cut.key) != self._word:
            return False
        document[cut.key] = cut.kept.array
        self._keep(cut.kept)
        return True

    def _keep(self, kept: KeptArray) -> None:
        if not kept.array or not self.smallest <= kept.size <= self._total:
            return
        latest, room = [kept], self._total - kept.size
        for entry in self._latest:
            if kept.source.startswith(entry.source):
                continue
            room -= entry.size
            if room < 0 or len(latest) == self._most:
                break
            latest.append(entry)
        self._latest = tuple(latest)
