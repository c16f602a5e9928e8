"""``toolsim replay DIR --against URL``, which sends recorded turns to another model and compares its calls.

Each request is sent to the backend through a running toolsim. It is the client's original request, except for the name
of the model. ``agreement`` compares the answers. The report is printed and also written to files, one of which is an
HTML page. Each answer is written as soon as it arrives, so that no answer is lost if the backend fails halfway.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from toolsim.command_line import UsageError, key_of
from toolsim.core.conversation import CallOutput, Message, last_item
from toolsim.proxy.address import parse_url
from toolsim.recordings.agreement import OUTCOMES, Agreement, Outcome, compare
from toolsim.recordings.child import Child, StartFailed, in_front_of
from toolsim.recordings.stored import flow_files
from toolsim.recordings.turns import KINDS, RecordedTurn, Reply, read_reply, read_turns
from toolsim.recordings.web_page import document, quoted, table, tile

LOWER_BOUND = "Agreement is a lower bound, because a different call can be as correct as the recorded call."
ANSWER = "(an answer)"
"""The label of turns without calls in the table by tool."""

SECONDS = 300.0
"""Timeout, in seconds, of a request to the backend. It is long because the backend might have to load a model first."""
MAX_ERRORS = 3
"""Number of consecutive errors after which the comparison ends."""
_MAX_WAITS = 3
_MAX_WAIT_SECONDS = 60.0
_LOG_SECONDS = 2.0
_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Compared:
    """A recorded turn, the new model's answer (``got``), and its agreement with the recorded answer."""

    turn: RecordedTurn
    got: Reply
    agreement: Agreement

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that the recorded answer called or, if it has no calls, the tools that the new answer called."""
        calls = self.turn.reply.calls or self.got.calls
        return tuple(dict.fromkeys(call.name for call in calls)) or (ANSWER,)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "file": self.turn.path.name,
            "kind": self.turn.kind,
            "outcome": self.agreement.outcome,
            "differences": list(self.agreement.differences),
            "recorded": asdict(self.turn.reply),
            "got": asdict(self.got),
        }


def run(arguments: argparse.Namespace) -> int:
    """Send the turns to the backend, report the results, and return the exit code.

    Raises UsageError if the arguments are invalid, no turn can be read, or the proxy does not start.
    """
    url, key = _url(arguments.against), key_of(arguments.key_env)
    files = flow_files(arguments.paths)
    turns, left_out = read_turns(files)
    for file, reason in left_out.items():
        print(f"{file}: left out: {reason}", file=sys.stderr)
    if not turns:
        where = ", ".join(map(str, arguments.paths))
        raise UsageError(f"no usable recorded turn in {where}" if files else f"no .flow file in {where}")
    model = arguments.model or first_model(url, key)
    folder = _new_folder(arguments.out)
    whom = f"{model or 'the recorded models'} at {url}"
    print(f"sending {len(turns)} recorded turns to {whom}", flush=True)
    compared: list[Compared] = []
    ended = ""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="toolsim-against-") as own,
            (folder / "turns.jsonl").open("w", encoding="utf-8") as lines,
        ):
            child = Child(in_front_of(url), [f"toolsim_upstream={url}", *arguments.set], Path(own) / "proxy")
            try:
                for one in _ask_all(child, turns, model, key):
                    compared.append(one)
                    lines.write(json.dumps(one.as_dict(), ensure_ascii=False) + "\n")
                    lines.flush()
                    print(_line(one), flush=True)
                    if len(compared) < len(turns) and _is_broken(compared):
                        ended = f"the backend returned {MAX_ERRORS} errors in a row: {one.got.error}"
                        break
            except KeyboardInterrupt:
                ended = "interrupted"
            finally:
                child.stop()
    except StartFailed as problem:
        raise UsageError(str(problem)) from problem
    title = f"{len(compared)} of {len(turns)} recorded turns, {whom}"
    document_ = summary(compared, left_out) | {"backend": url, "model": model, "turns": len(turns), "ended": ended}
    (folder / "report.json").write_text(json.dumps(document_, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(compared, left_out, title, ended), encoding="utf-8")
    print("\n".join(["", *text_report(compared), "", LOWER_BOUND, f"Report: {folder / 'report.html'}"]))
    if ended:
        print(f"toolsim replay: ended early, after {len(compared)} of {len(turns)} turns: {ended}", file=sys.stderr)
    return 1 if ended or any(one.agreement.outcome == "error" for one in compared) else 0


def first_model(url: str, key: str) -> str:
    """Return the first model that a server lists, or "" if the server returns an empty list or does not return a
    list.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(f"{url}/models", headers=headers), timeout=10) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (URLError, OSError, ValueError, LookupError, TypeError, HTTPException):
        return ""


def _ask_all(child: Child, turns: Sequence[RecordedTurn], model: str, key: str) -> Iterator[Compared]:
    for turn in turns:
        logged = len(child.log())
        got = _ask(child.port, turn, model, key)
        # toolsim logs the calls that it could not parse, but the answer does not contain them.
        failures = _failures(child, logged) if not got.calls and not got.error else ()
        yield Compared(turn, got, compare(turn.reply, got, turn.tools, failures))


def _ask(port: int, turn: RecordedTurn, model: str, key: str) -> Reply:
    changes: dict[str, Any] = {"model": model} if model else {}
    # The comparison waits for each answer, so background mode is turned off.
    changes |= {"background": False} if turn.body.get("background") else {}
    content = json.dumps({**turn.body, **changes}).encode()
    headers = {**turn.headers, **({"authorization": f"Bearer {key}"} if key else {})}
    for wait in range(_MAX_WAITS + 1):
        connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        try:
            connection.request("POST", turn.endpoint, content, headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, HTTPException) as problem:
            return Reply(error=f"{type(problem).__name__}: {problem}")
        finally:
            connection.close()
        seconds = response.headers.get("retry-after", "")
        if response.status not in (429, 503) or not seconds.isdecimal() or float(seconds) > _MAX_WAIT_SECONDS:
            break
        if wait < _MAX_WAITS:
            time.sleep(float(seconds))
    reply = read_reply(data, turn.tools)
    if response.status >= 400:
        message = f"HTTP {response.status}: {reply.error}"
        return Reply(error=message, is_invalid_call=reply.is_invalid_call)
    return reply


def _failures(child: Child, start: int) -> Sequence[str]:
    """Return toolsim's log messages about unparsable calls in the last answer."""
    end = time.monotonic() + _LOG_SECONDS
    while time.monotonic() < end:
        for line in child.log()[start:].splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if "tool_call_count" in row:
                return [str(entry) for entry in dict.fromkeys(row.get("parse_failures", ()))]
        time.sleep(0.02)
    return ()


def _is_broken(compared: Sequence[Compared]) -> bool:
    last = compared[-MAX_ERRORS:]
    return len(last) == MAX_ERRORS and all(one.agreement.outcome == "error" for one in last)


# -- the report --


def summary(compared: Sequence[Compared], left_out: Mapping[Path, str]) -> dict[str, Any]:
    """Return the content of ``report.json`` for these comparisons."""
    return {
        "outcomes": _counts(compared),
        "tools": {name: _counts(own) for name, own in by_tool(compared).items()},
        "kinds": {kind: _counts(own) for kind, own in by_kind(compared).items()},
        "left_out": {file.name: reason for file, reason in left_out.items()},
        "note": LOWER_BOUND,
    }


def by_tool(compared: Iterable[Compared]) -> dict[str, list[Compared]]:
    """Return the comparisons by tool. A turn with calls to several tools is listed under each tool."""
    groups: dict[str, list[Compared]] = {}
    for one in compared:
        for name in one.tools:
            groups.setdefault(name, []).append(one)
    return groups


def by_kind(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Return the comparisons by kind of turn. Kinds without turns are omitted."""
    groups = {kind: [one for one in compared if one.turn.kind == kind] for kind in KINDS}
    return {kind: own for kind, own in groups.items() if own}


def _counts(compared: Iterable[Compared]) -> dict[Outcome, int]:
    counts = Counter(one.agreement.outcome for one in compared)
    return {outcome: counts[outcome] for outcome in OUTCOMES}


_HEAD = ("turns", *OUTCOMES.values())


def _rows(groups: Mapping[str, Sequence[Compared]]) -> list[tuple[str, ...]]:
    return [
        (name, str(len(own)), *(str(count or "") for count in _counts(own).values())) for name, own in groups.items()
    ]


def text_report(compared: Sequence[Compared]) -> Iterator[str]:
    """Yield the lines of the report, which has a table by tool and a table by kind of turn."""
    for title, groups in (("tool", by_tool(compared)), ("kind of turn", by_kind(compared))):
        rows = [(title, *_HEAD), *_rows(groups)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            numbers = "  ".join(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            yield f"{first.ljust(widths[0])}  {numbers}"
        yield ""
    same = sum(one.agreement.outcome == "same" for one in compared)
    yield f"{same} of {len(compared)} turns are the same."


def _line(one: Compared) -> str:
    head = f"{one.turn.path}: {OUTCOMES[one.agreement.outcome]}"
    return "\n".join([head, *(f"  {difference}" for difference in one.agreement.differences)])


def page(compared: Sequence[Compared], left_out: Mapping[Path, str], title: str, ended: str) -> str:
    """Return the report as a web page."""
    counts, total = _counts(compared), len(compared)
    tiles = [tile(OUTCOMES[outcome], str(count), f"of {total} turns") for outcome, count in counts.items()]
    warning = f'<p class="warning">Ended early: {escape(ended)}</p>' if ended else ""
    body = [
        f"<header><h1>Replay</h1><p>{escape(title)}</p>{warning}</header>",
        f'<section class="tiles">{"".join(tiles)}</section>',
        f'<p class="note">{LOWER_BOUND} The wording of answers is not compared.</p>',
        _section("By tool", table(("tool", *_HEAD), _rows(by_tool(compared)), numbers=1)),
        _section("By kind of turn", table(("kind of turn", *_HEAD), _rows(by_kind(compared)), numbers=1)),
    ]
    unlike = [one for one in compared if one.agreement.outcome != "same"]
    shown = "".join(map(_details, unlike[:_MAX_SHOWN])) or "<p>None.</p>"
    more = len(unlike) - _MAX_SHOWN
    note = f'<p class="note">And {more} more; turns.jsonl contains all turns.</p>' if more > 0 else ""
    body.append(f'<section class="failures"><h2>Differences</h2>{shown}{note}</section>')
    if left_out:
        rows = ((file.name, reason) for file, reason in left_out.items())
        body.append(_section("Left out", table(("recording", "reason"), rows, numbers=2)))
    return document("toolsim replay", body)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _details(one: Compared) -> str:
    item = last_item(one.turn.request.items)
    asked = item.text if isinstance(item, Message | CallOutput) else ""
    who = "the tool returned" if isinstance(item, CallOutput) else "the client's last message"
    parts = [
        quoted("differences", "\n".join(one.agreement.differences), "error"),
        quoted(who, asked),
        quoted("recorded", _reply(one.turn.reply), "wrote"),
        quoted("got", _reply(one.got), "got"),
    ]
    return (
        f"<details><summary><b>{escape(one.turn.path.name)}</b><em>{OUTCOMES[one.agreement.outcome]}</em>"
        f"<span>{escape(', '.join(one.tools))} · {one.turn.kind}</span></summary>{''.join(parts)}</details>"
    )


def _reply(reply: Reply) -> str:
    calls = [f"{call.name}({call.arguments})" for call in reply.calls]
    return "\n".join(filter(None, (reply.text, *calls, reply.error))) or "nothing"


# -- arguments --


def _url(text: str) -> str:
    try:
        parse_url(text)
    except ValueError as problem:
        raise UsageError(f"--against: {problem}") from problem
    return text.rstrip("/")


def _new_folder(out: Path | None) -> Path:
    folder = out or Path(f"agreement-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"--out: {folder} already exists") from None
    except OSError as problem:
        raise UsageError(f"--out: {folder}: {problem.strerror}") from problem
    return folder
