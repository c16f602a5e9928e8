"""Replays recorded exchanges through the addon's hooks, calling them as mitmproxy does for a live exchange.

``toolsim replay [--update] [--cut SEED] PATH…`` replays files and folders, and fails if the addon's output differs from
the recorded output. ``--update`` writes the new output to the files.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from mitmproxy.exceptions import FlowReadException, OptionsError
from mitmproxy.http import HTTPFlow
from mitmproxy.master import Master
from mitmproxy.options import Options

from toolsim.command_line import EXIT_USAGE, Parser, UsageError
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.metadata import NOTE, REPORT
from toolsim.recordings.capture import clean, dump
from toolsim.recordings.compare import comparable, differences, keep_recorded_ids_and_times
from toolsim.recordings.result import Result, junit
from toolsim.recordings.stored import flow_files, recorded

Cut = Callable[[bytes], Iterable[bytes]]


def uncut(data: bytes) -> list[bytes]:
    """Return a body as a single chunk."""
    return [data] if data else []


def cut_by(chance: random.Random) -> Cut:
    """Return a function that splits bodies at random positions, often within an event, a line or a character."""

    def cut(data: bytes) -> Iterator[bytes]:
        start = 0
        while start < len(data):
            end = start + chance.choice((1, 2, 7, 30, 200, 1000))
            yield data[start:end]
            start = end

    return cut


def replay(stored: HTTPFlow, cut: Cut = uncut, *, by_hand: Collection[str] = ()) -> HTTPFlow:
    """Return the client's side that the addon now generates from the backend's side of a recorded exchange.

    ``cut`` splits a stream into chunks. An option overrides the recorded option if its value is not the default value,
    or if its name is in ``by_hand``. The addon's options must be registered in mitmproxy's context.
    """
    addon = ToolSim(alone=True, by_hand=by_hand)
    addon.configure({"toolsim_backend"})
    flow: HTTPFlow = stored.copy()  # type: ignore[no-untyped-call]
    answer, flow.response = flow.response, None
    addon.requestheaders(flow)
    addon.request(flow)
    if flow.response is not None:
        addon.responseheaders(flow)
        addon.response(flow)
    elif answer is None:
        addon.error(flow)
    else:
        body, answer.raw_content = answer.raw_content or b"", None
        flow.response = answer
        addon.responseheaders(flow)
        stream = flow.response.stream
        if stream is False:
            flow.response.raw_content = body
        passed = list(_streamed(flow, body, cut)) if callable(stream) else [body]
        addon.response(flow)
        if flow.response.raw_content is None:
            flow.response.raw_content = b"".join(passed)
    return flow


def _streamed(flow: HTTPFlow, body: bytes, cut: Cut) -> Iterator[bytes]:
    """Pass a streamed answer to the addon, as ``ExchangeStream`` does for a live one, and yield the addon's output."""
    assert flow.response is not None
    stream = flow.response.stream
    assert callable(stream)
    exchange = ToolSim.exchanges.of(flow)
    streamed = exchange.streamed if exchange is not None else None
    for data in [*cut(body), b""]:
        if streamed is None or not streamed.cut or not data:
            chunks = stream(data)
            yield from [chunks] if isinstance(chunks, bytes) else chunks


def replay_file(path: Path, cut: Cut = uncut, *, update: bool = False, by_hand: Collection[str] = ()) -> Result:
    """Replay a file and compare the output.

    If ``update`` is true and the output differs, write the new output to the file.
    """
    try:
        backend, client = recorded(path)
    except (ValueError, FlowReadException) as problem:
        return Result(path, problem=str(problem))
    note = unanswerable(backend, client)
    made = replay(backend, cut, by_hand=by_hand)
    got, expected = comparable(made, answered=not note, like=client), comparable(client, answered=not note)
    found = tuple(differences(got, expected))
    if update and found:
        update_recording(client, made, answered=not note)
        path.write_bytes(dump(clean([backend, client])))
    return Result(path, found, note)


def update_recording(client: HTTPFlow, made: HTTPFlow, *, answered: bool) -> None:
    """Replace the client's side of a recording with new output, but keep the recorded times and random IDs."""
    made.request.timestamp_start = client.request.timestamp_start
    made.request.timestamp_end = client.request.timestamp_end
    client.request = made.request
    if not answered or made.response is None or client.response is None:
        return
    new, old = (
        (response.raw_content or b"").decode("utf-8", "surrogateescape")
        for response in (made.response, client.response)
    )
    made.response.raw_content = keep_recorded_ids_and_times(new, old).encode("utf-8", "surrogateescape")
    made.response.timestamp_start = client.response.timestamp_start
    made.response.timestamp_end = client.response.timestamp_end
    client.response = made.response
    client.comment, client.marked = made.comment, made.marked
    if REPORT in made.metadata:
        seconds = client.metadata.get(REPORT, {}).get("seconds", 0.0)
        client.metadata[REPORT] = made.metadata[REPORT] | {"seconds": seconds}


def unanswerable(backend: HTTPFlow, client: HTTPFlow) -> str:
    """Return why an answer cannot be replayed, or "" if it can."""
    note = backend.metadata[NOTE]
    if note["missing_bytes"]:
        return "the answer was too long to be recorded completely: only the request is compared"
    if backend.response is None and not note["refused"]:
        return "the backend did not answer: only the request is compared"
    report = client.metadata.get(REPORT, {})
    if report.get("rounds"):
        return "the model was retried: only the request is compared"
    if report.get("error") == "backend_timeout":
        return "the backend stopped sending data: only the request is compared"
    return ""


def summary(results: Sequence[Result]) -> str:
    """Return the outcome of several replays as one line."""
    count, differing = len(results), sum(not result.same for result in results)
    return f"{count} recorded exchange{'s' * (count != 1)}, {differing or 'none'} differ{'s' * (differing == 1)}"


async def _main(arguments: argparse.Namespace) -> int:
    master = Master(Options())
    try:
        master.options.set(*arguments.set, defer=True)
        # When the addon is added, it checks the options, and logs an error for each invalid one.
        master.addons.add(ToolSim())  # type: ignore[no-untyped-call]
    except OptionsError as problem:
        print(problem, file=sys.stderr)
        return EXIT_USAGE
    by_hand = [setting.partition("=")[0] for setting in arguments.set]
    cut = uncut if arguments.cut is None else cut_by(random.Random(arguments.cut))
    if missing := next((path for path in arguments.paths if not path.exists()), None):
        print(f"{missing}: no such file or folder", file=sys.stderr)
        return EXIT_USAGE
    results, seconds = [], []
    files = flow_files(arguments.paths)
    if not files:
        print(f"no .flow file in {', '.join(map(str, arguments.paths))}", file=sys.stderr)
        return EXIT_USAGE
    for file in files:
        began = time.monotonic()
        results.append(replay_file(file, cut, update=arguments.update, by_hand=by_hand))
        seconds.append(time.monotonic() - began)
        print(results[-1], flush=True)
    print(summary(results))
    if arguments.junit is not None:
        arguments.junit.write_bytes(junit(list(zip(results, seconds, strict=True))))
    return int(any(result.problem or (result.differences and not arguments.update) for result in results))


def parser() -> Parser:
    """Return the parser for the replay command."""
    made = Parser(prog="toolsim replay", description="Replay recorded exchanges and compare the results.")
    made.add_argument("paths", nargs="+", type=Path, help=".flow files, or folders with such files")
    made.add_argument("--update", action="store_true", help="update the files with the new results")
    made.add_argument("--cut", type=int, metavar="SEED", help="split streams into chunks at random positions")
    set_help = "set an option, overriding the recorded value: toolsim_manifest=schemas (repeatable)"
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=set_help)
    made.add_argument("--junit", type=Path, metavar="FILE", help="also write the results as JUnit XML")
    other = made.add_argument_group(
        "another model", "send the recorded turns to the model at this URL, and compare its calls"
    )
    other.add_argument(
        "--against", metavar="URL", help="the model server's base URL, such as http://127.0.0.1:11434/v1"
    )
    other.add_argument(
        "--model", default="", metavar="NAME", help="the model to use (default: the first model that the server lists)"
    )
    other.add_argument("--key-env", default="", metavar="NAME", help="environment variable that contains the key")
    other.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder to create for the report (default: agreement-TIME)"
    )
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Replay files and folders, and return the exit code. Raises UsageError if an argument is invalid."""
    arguments = parser().parse_args(words)
    own = {"--update": arguments.update, "--cut": arguments.cut is not None, "--junit": arguments.junit is not None}
    others = {"--model": arguments.model, "--key-env": arguments.key_env, "--out": arguments.out is not None}
    if arguments.against is None:
        if given := next((flag for flag, is_set in others.items() if is_set), ""):
            raise UsageError(f"{given} requires --against")
        return asyncio.run(_main(arguments))
    if given := next((flag for flag, is_set in own.items() if is_set), ""):
        raise UsageError(f"{given} cannot be used with --against")
    from toolsim.recordings import against

    return against.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
