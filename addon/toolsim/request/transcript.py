"""Converts a conversation to messages for a text-only backend, with past calls as text, and inserts the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolsim.core.conversation import (
    Call,
    CallOutput,
    Declaration,
    HostedItem,
    Item,
    Message,
    Part,
    Role,
    Text,
    Thought,
)
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.request.pairing import label_outputs
from toolsim.request.record import as_text, call_record, output_record, sentinel_record

_TOO_LARGE = '{"ok":false,"errors":["TOOL_OUTPUT_TOO_LARGE"]}'


def flatten(
    items: Iterable[Item],
    policy: Policy,
    report: Report,
    *,
    keep_hosted: bool = False,
    records: bool = True,
    is_round: bool = False,
) -> list[Message | HostedItem]:
    """Return ``items`` as messages that a text-only backend understands, in order.

    ``keep_hosted`` specifies whether hosted items are kept. Calls and replaced outputs are counted in ``report``. Each
    output names its call, and adjacent outputs are in the order of their calls (see ``pairing``). Text is kept byte for
    byte. Adjacent messages with the same role are merged, separated by an empty line, because many chat templates
    require alternating roles. If ``records`` is true, user lines that look like records are marked as text (see
    ``record``). In a later round (``is_round``), only user lines that look like calls or outputs are marked.
    """
    # ``auto`` means ``sentinel``, because blocks work with every form of the manifest.
    tag = None if policy.history == "bracketed" else policy.sentinel
    draft = Draft()
    listed = tuple(items)
    labelled: Iterable[tuple[Item, str]] = ((item, "") for item in listed)
    if any(isinstance(item, CallOutput) for item in listed):
        labelled = label_outputs(listed, by_id=tag is None)
    for item, label in labelled:
        match item:
            case Call():
                report.echoed_calls += 1
                draft.record("assistant", call_record(item) if tag is None else sentinel_record(item, tag))
            case CallOutput():
                output = item.text
                if is_longer(output, policy.max_tool_bytes):
                    report.outputs_replaced += 1
                    output = _TOO_LARGE
                draft.record("user", output_record(label, output))
                # Images and files follow the record, since they cannot be part of it.
                if beside := [part for part in item.parts if not isinstance(part, Text)]:
                    draft.parts(beside)
            case Message(role="user") if records and _has_brackets(item):
                # In a later round, a user message can contain an error record that toolsim itself has written, so error
                # records are not marked.
                draft.message(_marked(item, errors=not is_round))
            case Message():
                draft.message(item)
            case Thought() if policy.reasoning == "include":
                draft.message(Message("assistant", (Text(f"<think>\n{item.text}\n</think>"),)))
            case Thought():
                report.dropped.append("reasoning")
            case HostedItem() if keep_hosted:
                draft.item(item)
            case HostedItem():
                report.dropped.append(item.kind)
            case Declaration():
                pass  # There are no tools, so there is no manifest to extend.
    return draft.finish()


def insert_manifest(
    messages: Sequence[Message | HostedItem], text: str, role: Literal["developer", "system", "user"]
) -> list[Message | HostedItem]:
    """Return ``messages`` with the manifest ``text`` inserted before the conversation.

    With the role ``system``, the manifest is appended to the first of the leading system messages, because many chat
    templates support only one. With ``developer``, it follows all leading instructions. With ``user``, it is prepended
    to the user message that follows the instructions, if any.
    """
    placed = list(messages)
    head = 0
    while head < len(placed) and _role(placed[head]) in ("system", "developer"):
        head += 1
    match role:
        case "user":
            index = head if head < len(placed) and _role(placed[head]) == role else -1
        case "system":
            index = next((index for index in range(head) if _role(placed[index]) == role), -1)
        case "developer":
            index = head - 1 if head and _role(placed[head - 1]) == role else -1
    if index >= 0 and isinstance(found := placed[index], Message):
        placed[index] = _opened(found, text) if role == "user" else _closed(found, text)
    else:
        placed.insert(0 if role == "system" else head, Message(role, (Text(text),)))
    return placed


def _role(item: Message | HostedItem) -> Role | None:
    return item.role if isinstance(item, Message) else None


def is_longer(text: str, size: int) -> bool:
    """Return whether ``text`` has more than ``size`` bytes in UTF-8."""
    return 4 * len(text) > size and len(text.encode("utf-8", "surrogatepass")) > size


def _has_brackets(message: Message) -> bool:
    """Return whether a message contains a bracket. Every record begins with one."""
    return any("[" in part.text for part in message.parts if isinstance(part, Text))


def _marked(message: Message, *, errors: bool) -> Message:
    """Return a user message in which lines that look like records are marked as text."""
    return _with_parts(
        message,
        *[Text(as_text(part.text, errors=errors)) if isinstance(part, Text) else part for part in message.parts],
    )


def _opened(message: Message, text: str) -> Message:
    first = message.parts[0] if message.parts else None
    if isinstance(first, Text):
        return _with_parts(message, Text(f"{text}\n\n{first.text}"), *message.parts[1:])
    return _with_parts(message, Text(text), *message.parts)


def _closed(message: Message, text: str) -> Message:
    last = message.parts[-1] if message.parts else None
    if isinstance(last, Text):
        joined = f"{last.text}\n\n{text}" if last.text else text
        return _with_parts(message, *message.parts[:-1], Text(joined))
    return _with_parts(message, *message.parts, Text(text))


def _with_parts(message: Message, *parts: Part) -> Message:
    """Return a copy of ``message`` with other ``parts``. This is five times as fast as ``dataclasses.replace``."""
    return Message(message.role, parts, message.name)


@dataclass(slots=True)
class Draft:
    """A transcript under construction."""

    done: list[Message | HostedItem] = field(default_factory=list)
    """Finished messages, and the hosted items between them."""
    role: Role | None = None
    """The role of the open message, or None if there is none."""
    name: str | None = None
    """The name of the open message's participant, if any."""
    pieces: list[Part | list[str]] = field(default_factory=list)
    """The parts of the open message. Adjacent texts are collected in lists, to join a long history in linear time."""
    is_after_record: bool = False
    """Whether the open message ends with a record."""

    def message(self, message: Message) -> None:
        """Add a message."""
        self._turn_to(message.role, message.name)
        first = True
        for part in message.parts:
            if not isinstance(part, Text):
                self.pieces.append(part)
            elif part.text:
                # Only the first text is joined to the preceding text. The other texts become separate parts.
                self._text(part.text, "\n\n" if first else None)
            first = False
        self.is_after_record = False

    def record(self, role: Role, line: str) -> None:
        """Add a record as one line, in a message with this ``role``."""
        self._turn_to(role, None)
        self._text(line, "\n" if self.is_after_record else "\n\n")
        self.is_after_record = True

    def parts(self, parts: Iterable[Part]) -> None:
        """Add parts to the open message."""
        self.pieces.extend(parts)

    def item(self, item: HostedItem) -> None:
        """Add a hosted item unchanged."""
        self._close()
        self.role = None
        self.done.append(item)

    def finish(self) -> list[Message | HostedItem]:
        """Return the messages. Nothing can be added afterwards."""
        self._close()
        return self.done

    def _turn_to(self, role: Role, name: str | None) -> None:
        if role != self.role or name != self.name:
            self._close()
            self.role = role
            self.name = name

    def _text(self, text: str, separator: str | None) -> None:
        if self.pieces and separator is not None and isinstance(last := self.pieces[-1], list):
            last += (separator, text)
        else:
            self.pieces.append([text])

    def _close(self) -> None:
        if self.role is not None:
            parts = [Text("".join(part)) if isinstance(part, list) else part for part in self.pieces]
            self.done.append(Message(self.role, tuple(parts) or (Text(""),), self.name))
        self.pieces = []
        self.is_after_record = False
