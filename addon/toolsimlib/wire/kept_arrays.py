"""Arrays of earlier requests, together with their sources: a client repeats them, and they need not be parsed again.

``request_body.py`` keeps tools in this way, ``beginnings.py`` histories. Each finds where such a source stands in a
body; a word that no client can know takes its place (``Cut``), a parser reads the rest, and the array takes the place
of the word.

1. A parser says where the word stands. If it is not the value of the body's own key, nothing that is kept counts.
2. An array is known as the very object that it is. Its ``id`` would not do: that may be another's once it is gone.
3. What goes on from a source that is kept takes its place, and so does what is equal to it.
4. Another thread may read bodies meanwhile: where no worker process can be started, one does the large jobs. So what is
   kept is a tuple, which is replaced and never changed; of two that are replaced at the same time one is forgotten.
5. Nobody may change an array that is kept, or what is in it. A bounded number of them is, each of a bounded size.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from itertools import count
from typing import Any

_numbers = count(1)


@dataclass(eq=False, slots=True)
class KeptArray:
    """An array and its source, or as much of that as its module compares.

    ``read``: what its reader made of it, in the reader's own shape. ``number``: a number that no other array gets
    while this process lives.
    """

    source: str
    array: list[Any]
    read: object = None
    number: int = field(default_factory=_numbers.__next__)

    @property
    def size(self) -> int:
        """The characters of its source."""
        return len(self.source)


@dataclass(frozen=True, slots=True)
class Cut:
    """A body in which a word replaces an array: the value of the body's ``key``, if all is well."""

    key: str
    text: str
    kept: KeptArray


class KeptArrays:
    """The last arrays: ``most`` of them, with sources of ``smallest`` to ``largest`` characters.

    A short one costs next to nothing to parse, a long one takes much memory.
    """

    def __init__(self, most: int, smallest: int, largest: int) -> None:
        self._most = most
        self.smallest = smallest
        self._largest = largest
        self._latest: tuple[KeptArray, ...] = ()
        self._word = secrets.token_hex(16)

    def find(self, text: str, at: int) -> KeptArray | None:
        """Return the latest one whose source stands in ``text`` at ``at``."""
        for kept in self._latest:
            if text.startswith(kept.source, at):
                return kept
        return None

    def of(self, array: object) -> KeptArray | None:
        """Return the entry of this very array, None if there is none."""
        for kept in self._latest:
            if kept.array is array:
                return kept
        return None

    def cut(self, key: str, text: str, at: int, end: int, kept: KeptArray) -> Cut:
        """Cut the array out of the body ``text``, where it stands from ``at`` to ``end``."""
        return Cut(key, f'{text[:at]}"{self._word}"{text[end:]}', kept)

    def put_back(self, cut: Cut, document: dict[str, Any]) -> bool:
        """Replace the word in the body by the array, and keep it; return whether the word stood in its place."""
        if document.get(cut.key) != self._word:
            return False
        document[cut.key] = cut.kept.array
        self._keep(cut.kept)
        return True

    def _keep(self, kept: KeptArray) -> None:
        if kept.array and self.smallest <= kept.size <= self._largest:
            others = [each for each in self._latest if not kept.source.startswith(each.source)]
            self._latest = (kept, *others[: self._most - 1])
