"""Messages under construction: the items of a history become messages one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from toolsimlib.conversation import HostedItem, Message, Part, Role, Text


@dataclass(slots=True)
class Draft:
    """The messages so far."""

    done: list[Message | HostedItem] = field(default_factory=list)
    """What is closed."""
    role: Role | None = None
    """The role of the message that is open, None if there is none."""
    name: str | None = None
    """The name in the open message."""
    pieces: list[Part | list[str]] = field(default_factory=list)
    """The parts of the open message. Texts are collected as lists, so that joining a long history takes linear time."""
    after_record: bool = False
    """Whether the open message ends with a record."""

    def message(self, message: Message) -> None:
        """Add a message."""
        self._turn_to(message.role, message.name)
        first = True
        for part in message.parts:
            if not isinstance(part, Text):
                self.pieces.append(part)
            elif part.text:
                # Only the first text is joined to what comes before: the others are separate parts.
                self._text(part.text, "\n\n" if first else None)
            first = False
        self.after_record = False

    def record(self, role: Role, line: str) -> None:
        """Add a record, which is one line of a message of ``role``."""
        if role != self.role or self.name is not None:
            self._close()
            # Most of a long history is calls and outputs in turn: each is a message of one text.
            self.role, self.name, self.pieces = role, None, [[line]]
        else:
            self._text(line, "\n" if self.after_record else "\n\n")
        self.after_record = True

    def parts(self, parts: Iterable[Part]) -> None:
        """Add parts to the message that is open."""
        self.pieces.extend(parts)

    def item(self, item: HostedItem) -> None:
        """Add an item that stays as it is."""
        self._close()
        self.role = None
        self.done.append(item)

    def finish(self) -> list[Message | HostedItem]:
        """Return the messages; nothing can be added any more."""
        self._close()
        return self.done

    def _turn_to(self, role: Role, name: str | None) -> None:
        if role != self.role or name != self.name:
            self._close()
            self.role, self.name = role, name

    def _text(self, text: str, separator: str | None) -> None:
        if not self.pieces:
            self.pieces.append([text])
        elif separator is not None and isinstance(last := self.pieces[-1], list):
            last += (separator, text)
        else:
            self.pieces.append([text])

    def _close(self) -> None:
        if self.role is not None:
            if len(self.pieces) == 1 and type(only := self.pieces[0]) is list:
                parts: tuple[Part, ...] = (Text("".join(only)),)
            else:
                parts = tuple([Text("".join(part)) if isinstance(part, list) else part for part in self.pieces])
            self.done.append(Message(self.role, parts or (Text(""),), self.name))
        self.pieces = []
        self.after_record = False
