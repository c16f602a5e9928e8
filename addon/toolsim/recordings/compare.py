"""Compares two exchanges and locates their differences.

Random IDs, times, keep-alive events, and the positions at which text is split are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Any

from mitmproxy.http import HTTPFlow, Message

from toolsim.proxy.legacy import RENAMED_HEADERS, current_report
from toolsim.proxy.metadata import REPORT
from toolsim.recordings.stream_text import pieces_of
from toolsim.wire.sse import SSEDecoder

# Patterns for random IDs. They are strict, because an ID in any other format has to be equal in both exchanges.
RANDOM_IDS = re.compile(
    r"(?P<kind>(?<![a-z])[a-z]{2,4}_)(?:[0-9a-f]{48}|[0-9a-f]{24}(?![0-9a-f]))|(?P<chat>chatcmpl-)[0-9a-f]{29}"
    r"|(?P<uuid>)(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)
TIMES = frozenset({"created", "created_at", "completed_at"})
_TIME = re.compile(r'("(?:created|created_at|completed_at)": ?)(\d{10})\b')
# Headers that are not compared. The content length follows from the body, which is compared. A recording contains no
# host names.
IGNORED_HEADERS = frozenset({"content-length", "host"})
IGNORED_REPORT = frozenset({"seconds", "missing_bytes", "mismatches", "place"})

# Maximum length of lists whose items are aligned, because aligning them takes quadratic time.
_MAX_ALIGNED = 2_000
_MAX_SHOWN = 100


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs from the expected value, with its path. A missing value is represented by ``NOTHING``."""

    path: str
    got: Any
    expected: Any

    def __str__(self) -> str:
        return f"{self.path}: got {_show(self.got)}, expected {_show(self.expected)}"


def comparable(flow: HTTPFlow, *, answered: bool = True, like: HTTPFlow | None = None) -> dict[str, Any]:
    """Return the parts of one side of an exchange that are compared, as JSON data without random IDs and times.

    ``answered`` specifies whether to include the answer and the report. ``like`` is the recording to compare with,
    perhaps from an older version of toolsim. If it has a report, only the fields in this report are compared.
    """
    request, response, ids = flow.request, flow.response, dict[str, str]()
    path = _number_ids(request.path, ids)
    found = {"request": {"method": request.method, "path": path, **_message(request, ids)}}
    if response is not None and answered:
        found["response"] = {"status": response.status_code, **_message(response, ids)}
        report = current_report(flow.metadata.get(REPORT, {}))
        known = current_report(like.metadata.get(REPORT, {})) if like is not None else {}
        kept = {
            name: value for name, value in report.items() if name not in IGNORED_REPORT and (not known or name in known)
        }
        found["report"] = _normalise(kept, ids)
        if report.get("usage_estimated"):
            # Estimated token counts are not compared. They depend on text that is compared anyway, and change if
            # secrets in this text are hidden in a recording.
            found = _without_tokens(found)
    return found


def keep_recorded_ids_and_times(new: str, old: str) -> str:
    """Return ``new`` with the random IDs and times from ``old``, so that updating a recording causes a small diff."""
    ids = [list(dict.fromkeys(found[0] for found in RANDOM_IDS.finditer(text))) for text in (new, old)]
    recorded = {
        made: kept for made, kept in zip(*ids, strict=False) if made.partition("_")[0] == kept.partition("_")[0]
    }
    text = RANDOM_IDS.sub(lambda found: recorded.get(found[0], found[0]), new)
    times = iter([found[2] for found in _TIME.finditer(old)])
    return _TIME.sub(lambda found: found[1] + next(times, found[2]), text)


def differences(got: Any, expected: Any, path: str = "") -> Iterator[Difference]:
    """Yield the differences between two JSON values, in order."""
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
    if len(got) == len(expected) or len(got) * len(expected) > _MAX_ALIGNED**2:
        for index in range(max(len(got), len(expected))):
            made, wanted = (side[index] if index < len(side) else NOTHING for side in (got, expected))
            yield from differences(made, wanted, _item(path, index, made if wanted is NOTHING else wanted))
        return
    # Items are aligned, because otherwise one additional or missing item would make all later items differ.
    wanted_kinds, made_kinds = ([_kind(item) for item in side] for side in (expected, got))
    matcher = SequenceMatcher(None, wanted_kinds, made_kinds, autojunk=False)
    for change, start, end, got_start, got_end in matcher.get_opcodes():
        paired = min(end - start, got_end - got_start) if change in ("equal", "replace") else 0
        for made, wanted, index in zip(got[got_start:], expected[start:], range(start, start + paired), strict=False):
            yield from differences(made, wanted, _item(path, index, wanted))
        for index in range(start + paired, end):
            yield Difference(_item(path, index, expected[index]), NOTHING, expected[index])
        for index in range(got_start + paired, got_end):
            yield Difference(_item(path, index, got[index]), got[index], NOTHING)


def _texts(got: str, expected: str, path: str) -> Difference:
    """Return the difference in the first line that differs, because long texts such as manifests are hard to read."""
    made_lines, wanted_lines = got.split("\n"), expected.split("\n")
    if len(made_lines) == len(wanted_lines) == 1:
        return Difference(path, *_windows(got, expected))
    for number, (made, wanted) in enumerate(zip_longest(made_lines, wanted_lines, fillvalue=NOTHING), 1):
        if made != wanted:
            place = f"{path} line {number}"
            if isinstance(made, str) and isinstance(wanted, str):
                return Difference(place, *_windows(made, wanted))
            return Difference(place, made, wanted)
    raise AssertionError("two different texts must have a line that differs")


def _windows(got: str, expected: str) -> tuple[str, str]:
    """Return both texts or, if they are too long, an excerpt of each around the first difference."""
    if max(len(got), len(expected)) <= _MAX_SHOWN:
        return got, expected
    same = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected))
    )
    start, end = max(0, same - _MAX_SHOWN // 3), same + _MAX_SHOWN // 2

    def window(text: str) -> str:
        return f"{'…' * (start > 0)}{text[start:end]}{'…' * (len(text) > end)}"

    return window(got), window(expected)


def _item(path: str, index: int, item: Any) -> str:
    kind = _kind(item)
    return f"{path}[{index} {kind}]" if isinstance(item, dict) and kind else f"{path}[{index}]"


def _kind(item: Any) -> str:
    """Return the kind of an item (its event name, type or role), or the value itself if it is not an object."""
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
    return text if len(text) <= 3 * _MAX_SHOWN else f"{text[: 3 * _MAX_SHOWN]}…"


# -- parts that are ignored --


def _message(message: Message, ids: dict[str, str]) -> dict[str, Any]:
    # In headers with a key, only the key itself is compared, because toolsim converts x-api-key to a Bearer token. Old
    # recordings contain some headers only under their old names, so the current names are used.
    headers = sorted(
        {
            RENAMED_HEADERS.get(key.lower(), key.lower()): message.headers[key].removeprefix("Bearer ")
            for key in message.headers
            if key.lower() not in IGNORED_HEADERS
        }.items()
    )
    kind = message.headers.get("content-type", "").partition(";")[0].strip().lower()
    content = message.get_content(strict=False) or b""
    if kind == "text/event-stream":
        body: Any = {"events": _events(content)}
    else:
        text = content.decode(errors="replace")
        body = {"body": _parse(text)}
    return {"headers": dict(headers), **_normalise(body, ids)}


def _events(content: bytes) -> list[dict[str, Any]]:
    decoder = SSEDecoder()
    events = []
    for event in [*decoder.feed(content), *decoder.feed(b"")] if content else []:
        found: dict[str, Any] = {"event": event.event, "data": _parse(event.data)}
        events.append(found if event.whole else found | {"whole": False})
    return _without_timing(events)


def _without_timing(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop keep-alives, join text that was split, and renumber the events, because all of these vary between runs."""
    lively = (event for event in events if not _is_keepalive(event["data"]))
    kept = [_joined(list(same)) for _, same in groupby(lively, _but_for_text)]
    if len(kept) < len(events):
        numbered = (event["data"] for event in kept if isinstance(event["data"], dict))
        for number, data in enumerate(data for data in numbered if "sequence_number" in data):
            data["sequence_number"] = number
    return kept


def _but_for_text(event: dict[str, Any]) -> object:
    """Return an event without its text and sequence number. Consecutive events with equal results can be merged."""
    pieces = list(pieces_of(event["data"]))
    if len(pieces) != 1:
        return object()
    (place, owner, key) = pieces[0]
    text, owner[key] = owner[key], ""
    rest = json.dumps({**event, "data": {**event["data"], "sequence_number": 0}})
    owner[key] = text
    return place, rest


def _joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge events into the first one, which then contains the text of all of them."""
    if len(events) > 1:
        texts = [owner[key] for event in events for _, owner, key in pieces_of(event["data"])]
        for _, owner, key in pieces_of(events[0]["data"]):
            owner[key] = "".join(texts)
    return events[0]


def _is_keepalive(data: Any) -> bool:
    match data:
        case {"type": "keepalive"}:
            return True
        case {"choices": [{"delta": {**delta}, "finish_reason": None}]}:
            return not delta
    return False


def _normalise(value: Any, ids: dict[str, str], key: str = "") -> Any:
    match value:
        case str():
            return _number_ids(value, ids)
        case dict():
            return {name: _normalise(member, ids, name) for name, member in value.items()}
        case list():
            return [_normalise(item, ids) for item in value]
        case int() | float() if key in TIMES and not isinstance(value, bool) and value > 1_000_000_000:
            return "a time"
    return value


def _without_tokens(value: Any, *, is_usage: bool = False) -> Any:
    """Return JSON data with a placeholder in place of each token count."""
    match value:
        case dict():
            return {
                name: _without_tokens(member, is_usage=is_usage or name in ("usage", "tokens"))
                for name, member in value.items()
            }
        case list():
            return [_without_tokens(item, is_usage=is_usage) for item in value]
        case int() if is_usage and not isinstance(value, bool):
            return "an estimate"
    return value


def _number_ids(text: str, ids: dict[str, str]) -> str:
    """Replace random IDs with numbers in order of their appearance, so that equal IDs remain equal."""

    def number(found: re.Match[str]) -> str:
        kind = found["kind"] or found["chat"] or "uuid-"
        return ids.setdefault(found[0], f"{kind}#{len(ids) + 1}")

    return RANDOM_IDS.sub(number, text)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
