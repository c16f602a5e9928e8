"""Decides which fragments of a call's arguments can be streamed while a backend is still emitting them.

Fragments that were sent cannot be taken back, and the arguments are final only when the call is complete. A fragment is
therefore passed on only if the arguments are certain to begin with all fragments received so far, given the known
behavior of backends:

1. Arguments that are an object begin with a brace. Arguments of any other type are checked once they are complete.
2. A first fragment that is already a complete (perhaps empty) object can be followed by a fragment that replaces it.
3. A second fragment that begins with the first repeats it. Such fragments are cumulative, and only the last is valid.
4. Half of a surrogate pair is not text; the other half might be in the next fragment.
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
        """Return ``piece`` if it can be passed on. After the first piece that cannot be passed on, always return ""."""
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
        """Stop passing on fragments of the arguments."""
        self._is_stopped = True


def _holds_half(piece: str) -> bool:
    return not piece.isascii() and any("\ud800" <= char <= "\udfff" for char in piece)
