"""Decides which fragments of a call's arguments can be streamed while a backend is still emitting them.

A fragment that was sent cannot be taken back, but the arguments are final only when the call is complete. A fragment is
therefore passed on only if the arguments are certain to begin with all fragments received so far. Given the known
behavior of backends, fragments are withheld in these cases:

1. The first fragment does not begin with a brace. The arguments are then not an object, and must be checked once they
   are complete.
2. The first fragment is already a complete (perhaps empty) object. A later fragment might replace it.
3. The second fragment begins with the first fragment. Such fragments are cumulative, and only the last one is valid.
4. The fragment contains half of a surrogate pair. The other half might be in the next fragment.
"""

from __future__ import annotations

from toolsim.wire.json_fields import loaded


class EarlyArguments:
    """The arguments of one call. ``feed`` accepts every fragment of the arguments, in order."""

    def __init__(self) -> None:
        self._first = ""
        self._expects_second = False
        self._is_stopped = False

    def feed(self, piece: str) -> str:
        """Return ``piece``, or "" if it or an earlier piece cannot be streamed."""
        if self._is_stopped or not piece:
            return ""
        if not self._first:
            self._first, self._expects_second = piece, True
            self._is_stopped = not piece.startswith("{") or loaded(piece) is not None
        elif self._expects_second:
            self._expects_second = False
            self._is_stopped = piece.startswith(self._first)
        self._is_stopped = self._is_stopped or _holds_half(piece)
        return "" if self._is_stopped else piece

    def stop(self) -> None:
        """Withhold all further fragments of the arguments."""
        self._is_stopped = True


def _holds_half(piece: str) -> bool:
    return not piece.isascii() and any("\ud800" <= char <= "\udfff" for char in piece)
