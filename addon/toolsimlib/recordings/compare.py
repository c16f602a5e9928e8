"""Two exchanges side by side: what differs, and where, once ids, times and other random parts are out of the way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from mitmproxy.http import HTTPFlow, Message

from toolsimlib.proxy.notes import REPORT
from toolsimlib.wire.sse import SSEDecoder

# Ids that are random, each rule as exact as the id that it stands for: an id of any other shape is compared as it is.
RANDOM_IDS = re.compile(
    r"(?P<kind>(?:resp|msg|rs)_)[0-9a-f]{48}|(?P<chat>chatcmpl-)[0-9a-f]{29}"
    r"|(?P<uuid>)(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)
TIMES = frozenset({"created", "created_at", "completed_at"})
_TIME = re.compile(r'("(?:created|created_at|completed_at)": ?)(\d{10})\b')
# Lengths and names of hosts follow from the rest, or from nothing at all.
UNTOLD_HEADERS = frozenset({"content-length", "host"})
UNTOLD_REPORT = frozenset({"seconds", "missing_bytes"})

# An alignment takes time quadratic in the number of items.
_ALIGNED = 2_000
_SHOWN = 100


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a value is not as expected; ``NOTHING`` stands for a value that is not there."""

    path: str
    got: Any
    expected: Any

    def __str__(self) -> str:
        return f"{self.path}: got {_show(self.got)}, expected {_show(self.expected)}"


def told(flow: HTTPFlow, *, answered: bool = True) -> dict[str, Any]:
    """Return all that is compared of an exchange's side, as plain data without random parts."""
    request, response, names = flow.request, flow.response, dict[str, str]()
    path = _steady(request.path, names)
    said = {"request": {"method": request.method, "path": path, **_message(request, names)}}
    if response is not None and answered:
        said["response"] = {"status": response.status_code, **_message(response, names)}
        report: Mapping[str, Any] = flow.metadata.get(REPORT, {})
        kept = {name: value for name, value in report.items() if name not in UNTOLD_REPORT}
        said["report"] = _without_chance(kept, names)
    return said


def with_old_chance(new: str, old: str) -> str:
    """Return a text with another's random ids and times, so that a new recording differs in little."""
    ids = [list(dict.fromkeys(found[0] for found in RANDOM_IDS.finditer(text))) for text in (new, old)]
    stand_ins = {
        one: other for one, other in zip(*ids, strict=False) if one.partition("_")[0] == other.partition("_")[0]
    }
    text = RANDOM_IDS.sub(lambda found: stand_ins.get(found[0], found[0]), new)
    times = iter([found[2] for found in _TIME.finditer(old)])
    return _TIME.sub(lambda found: found[1] + next(times, found[2]), text)


def differences(got: Any, expected: Any, path: str = "") -> Iterator[Difference]:
    """Yield each place where two values of plain data differ, in order."""
    if isinstance(got, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in got if key not in expected)]:
            step = f"{path}.{key}" if path else str(key)
            yield from differences(got.get(key, NOTHING), expected.get(key, NOTHING), step)
    elif isinstance(got, list) and isinstance(expected, list):
        yield from _lists(got, expected, path)
    elif isinstance(got, str) and isinstance(expected, str):
        if got != expected:
            yield _texts(got, expected, path)
    elif type(got) is not type(expected) or got != expected:
        yield Difference(path, got, expected)


def _lists(got: Sequence[Any], expected: Sequence[Any], path: str) -> Iterator[Difference]:
    if len(got) == len(expected) or len(got) * len(expected) > _ALIGNED**2:
        for index in range(max(len(got), len(expected))):
            our, their = (each[index] if index < len(each) else NOTHING for each in (got, expected))
            yield from differences(our, their, _item(path, index, our if their is NOTHING else their))
        return
    # An item too many or too few must not make all that follow differ.
    theirs, ours = ([_kind(each) for each in side] for side in (expected, got))
    for change, a, b, c, d in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        both = min(b - a, d - c) if change in ("equal", "replace") else 0
        for offset in range(both):
            yield from differences(got[c + offset], expected[a + offset], _item(path, a + offset, expected[a + offset]))
        for index in range(a + both, b):
            yield Difference(_item(path, index, expected[index]), NOTHING, expected[index])
        for index in range(c + both, d):
            yield Difference(_item(path, index, got[index]), got[index], NOTHING)


def _texts(got: str, expected: str, path: str) -> Difference:
    """Return the first line that differs: a whole manifest would be no help."""
    ours, theirs = got.split("\n"), expected.split("\n")
    if len(ours) == len(theirs) == 1:
        return Difference(path, *_windows(got, expected))
    for number, (our, their) in enumerate(zip_longest(ours, theirs, fillvalue=NOTHING), 1):
        if our != their:
            place = f"{path} line {number}"
            if isinstance(our, str) and isinstance(their, str):
                return Difference(place, *_windows(our, their))
            return Difference(place, our, their)
    raise AssertionError("two texts that differ have a line that does")


def _windows(got: str, expected: str) -> tuple[str, str]:
    """Return both texts around the first character that differs, if they are too long to be shown."""
    if max(len(got), len(expected)) <= _SHOWN:
        return got, expected
    same = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected))
    )
    start, end = max(0, same - _SHOWN // 3), same + _SHOWN // 2
    return tuple(f"{'…' * (start > 0)}{each[start:end]}{'…' * (len(each) > end)}" for each in (got, expected))  # type: ignore[return-value]


def _item(path: str, index: int, item: Any) -> str:
    kind = _kind(item)
    return f"{path}[{index} {kind}]" if isinstance(item, dict) and kind else f"{path}[{index}]"


def _kind(item: Any) -> str:
    """Return what an item is: an event's name, a type, a role; any other value as it is."""
    if not isinstance(item, dict):
        return json.dumps(item, default=repr)
    data = item.get("data")
    words = [
        item.get("event"),
        data.get("type") if isinstance(data, dict) else data,
        item.get("type"),
        item.get("role"),
    ]
    return next((word for word in words if isinstance(word, str) and word), "")


def _show(value: Any) -> str:
    text = repr(value) if value is NOTHING else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 3 * _SHOWN else f"{text[: 3 * _SHOWN]}…"


# -- out of the way --


def _message(message: Message, names: dict[str, str]) -> dict[str, Any]:
    headers = sorted(
        (key.lower(), message.headers[key]) for key in message.headers if key.lower() not in UNTOLD_HEADERS
    )
    kind = message.headers.get("content-type", "").partition(";")[0].strip().lower()
    content = message.get_content(strict=False) or b""
    if kind == "text/event-stream":
        body: Any = {"events": _events(content)}
    else:
        text = content.decode(errors="replace")
        body = {"body": _parse(text)}
    return {"headers": dict(headers), **_without_chance(body, names)}


def _events(content: bytes) -> list[dict[str, Any]]:
    decoder = SSEDecoder()
    events = []
    for event in [*decoder.feed(content), *decoder.feed(b"")] if content else []:
        said: dict[str, Any] = {"event": event.event, "data": _parse(event.data)}
        events.append(said if event.whole else said | {"whole": False})
    return _without_keepalives(events)


def _without_keepalives(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Signs of life come by the clock: drop them, and count on without them."""
    kept = [event for event in events if not _is_keepalive(event["data"])]
    if len(kept) < len(events):
        numbered = (event["data"] for event in kept if isinstance(event["data"], dict))
        for number, data in enumerate(data for data in numbered if "sequence_number" in data):
            data["sequence_number"] = number
    return kept


def _is_keepalive(data: Any) -> bool:
    match data:
        case {"type": "keepalive"}:
            return True
        case {"choices": [{"delta": {**delta}, "finish_reason": None}]}:
            return not delta
    return False


def _without_chance(value: Any, names: dict[str, str], key: str = "") -> Any:
    match value:
        case str():
            return _steady(value, names)
        case dict():
            return {name: _without_chance(each, names, name) for name, each in value.items()}
        case list():
            return [_without_chance(each, names) for each in value]
        case int() | float() if key in TIMES and not isinstance(value, bool) and value > 1_000_000_000:
            return "a time"
    return value


def _steady(text: str, names: dict[str, str]) -> str:
    """Number random ids in the order of their appearance, so that one id stays one id."""

    def number(found: re.Match[str]) -> str:
        kind = found["kind"] or found["chat"] or "uuid-"
        return names.setdefault(found[0], f"{kind}#{len(names) + 1}")

    return RANDOM_IDS.sub(number, text)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
