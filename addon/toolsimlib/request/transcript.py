"""A conversation as the messages of a text-only backend: history as text, and the manifest in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from toolsimlib.conversation import Call, CallOutput, HostedItem, Item, Message, Part, Role, Text, Thought
from toolsimlib.plan import Policy
from toolsimlib.report import Report
from toolsimlib.request.forms import form_named
from toolsimlib.request.record import as_text, call_record, output_record, sentinel_record

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
    """Return ``items`` as messages that a text-only backend understands, in order; hosted items stay if they are kept.

    Counts calls and replaced outputs in ``report``. Text is unchanged, byte for byte; adjacent messages of the same
    role are merged (many chat templates demand alternation) with an empty line between. If ``records`` may occur among
    them, a user's line that looks like one is marked as text (see ``record``), in a round (``is_round``) only one that
    looks like a call or an output.
    """
    draft = _Draft()
    history = form_named(policy.manifest).history if policy.history == "auto" else policy.history
    as_blocks = history == "sentinel"
    for item in items:
        match item:
            case Call():
                report.echoed_calls += 1
                draft.record("assistant", sentinel_record(item, policy.sentinel) if as_blocks else call_record(item))
            case CallOutput():
                texts = [part.text for part in item.parts if type(part) is Text]
                output = texts[0] if len(texts) == 1 else "\n".join(texts)
                if _is_longer(output, policy.max_tool_output_bytes):
                    report.outputs_replaced += 1
                    output = _TOO_LARGE
                draft.record("user", output_record(item.call_id, output))
                if len(texts) < len(item.parts):
                    draft.parts(part for part in item.parts if not isinstance(part, Text))
            case Message(role="user") if records:
                draft.message(_marked(item, errors=not is_round))
            case Message():
                draft.message(item)
            case Thought() if policy.reasoning == "tell":
                draft.message(Message("assistant", (Text(f"<think>\n{item.text}\n</think>"),)))
            case Thought():
                report.dropped.append("reasoning")
            case HostedItem() if keep_hosted:
                draft.item(item)
            case HostedItem():
                report.dropped.append(item.kind)
    return draft.finish()


def place(
    messages: Sequence[Message | HostedItem], text: str, role: Literal["developer", "system", "user"]
) -> list[Message | HostedItem]:
    """Return ``messages`` with the manifest ``text`` in its place, before the conversation itself.

    As ``system`` it is appended to the first of the leading system messages, the one that a chat template knows. As
    ``developer`` it follows all leading instructions. As ``user`` it is prepended to the first user message.
    """
    placed = list(messages)
    head = 0
    while head < len(placed) and _role(placed[head]) in ("system", "developer"):
        head += 1
    match role:
        case "user":
            index = next((index for index, message in enumerate(placed) if _role(message) == role), -1)
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


def remind(messages: Sequence[Message | HostedItem], line: str) -> list[Message | HostedItem]:
    """Return ``messages`` with ``line`` at the end of the last user message, if there is one."""
    reminded = list(messages)
    for index in range(len(reminded) - 1, -1, -1):
        last = reminded[index]
        if isinstance(last, Message) and last.role == "user":
            reminded[index] = _closed(last, line)
            break
    return reminded


def _is_longer(text: str, size: int) -> bool:
    """Return whether a text has more than ``size`` bytes in UTF-8, where a character has at most four."""
    return 4 * len(text) > size and len(text.encode("utf-8", "surrogatepass")) > size


def _marked(message: Message, *, errors: bool) -> Message:
    """Return a user's message with every line marked that looks like a record."""
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
    """Return a message with other parts; ``replace`` takes five times as long."""
    return Message(message.role, parts, message.name)


class _Draft:
    """Messages under construction. Texts are collected in pieces, so that joining a long history takes linear time."""

    def __init__(self) -> None:
        self._done: list[Message | HostedItem] = []
        self._role: Role | None = None
        self._name: str | None = None
        self._parts: list[Part | list[str]] = []
        self._after_record = False

    def message(self, message: Message) -> None:
        self._turn_to(message.role, message.name)
        first = True
        for part in message.parts:
            if not isinstance(part, Text):
                self._parts.append(part)
            elif part.text:
                # Only the first text is joined to what comes before: the others are separate parts.
                self._text(part.text, "\n\n" if first else None)
            first = False
        self._after_record = False

    def record(self, role: Role, line: str) -> None:
        if role != self._role or self._name is not None:
            self._close()
            # Most of a long history is calls and outputs in turn: each is a message of one text.
            self._role, self._name, self._parts = role, None, [[line]]
        else:
            self._text(line, "\n" if self._after_record else "\n\n")
        self._after_record = True

    def parts(self, parts: Iterable[Part]) -> None:
        self._parts.extend(parts)

    def item(self, item: HostedItem) -> None:
        self._close()
        self._role = None
        self._done.append(item)

    def finish(self) -> list[Message | HostedItem]:
        self._close()
        return self._done

    def _turn_to(self, role: Role, name: str | None) -> None:
        if role != self._role or name != self._name:
            self._close()
            self._role, self._name = role, name

    def _text(self, text: str, separator: str | None) -> None:
        if not self._parts:
            self._parts.append([text])
        elif separator is not None and isinstance(last := self._parts[-1], list):
            last += (separator, text)
        else:
            self._parts.append([text])

    def _close(self) -> None:
        if self._role is not None:
            if len(self._parts) == 1 and type(only := self._parts[0]) is list:
                parts: tuple[Part, ...] = (Text("".join(only)),)
            else:
                parts = tuple([Text("".join(part)) if isinstance(part, list) else part for part in self._parts])
            self._done.append(Message(self._role, parts or (Text(""),), self._name))
        self._parts = []
        self._after_record = False
