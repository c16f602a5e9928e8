"""``toolsim tune URL``, which finds the settings that suit a model and writes the model's profile.

Exit codes: 0 for a complete profile, 1 if the backend or the time limit ended the command early, 2 for a usage error,
130 after Ctrl-C. If the command ended early, the next run continues with the answers that have been stored.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import monotonic

from toolsim.cli import arguments
from toolsim.cli.doctor import DiagnosisError, examine
from toolsim.cli.probe import Unreachable, ask
from toolsim.cli.serve import state_folder
from toolsim.command_line import Parser, UsageError, key_of
from toolsim.core.policy import Engine
from toolsim.core.tasks import canceled_by_signals
from toolsim.eval.flags import value_type
from toolsim.eval.learn import profile_file, question_bank
from toolsim.eval.learn.answers import MAX_TOKENS, Answers
from toolsim.eval.learn.decisions import Decision, Setting, count, decisions
from toolsim.eval.learn.memory import Busy, VerdictFile
from toolsim.eval.learn.own_questions import FEWEST, OWN_KINDS, OwnQuestions, own_questions
from toolsim.eval.learn.question_bank import Question
from toolsim.eval.learn.rule import PATIENCE, Comparison
from toolsim.eval.learn.session import Choice, TuningResult, learn
from toolsim.eval.runtime.turn import Api
from toolsim.proxy.address import is_loopback, parse_url
from toolsim.proxy.options.profiles import own_folder
from toolsim.recordings.child import StartFailed
from toolsim.request.engine import PROBES, engine_of
from toolsim.version import __version__

EXIT_WHOLE, EXIT_ENDED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_CHARACTERS_A_TOKEN = 3.5
_RULE_TOKENS = 120
"""Estimated number of tokens in the manifest's text, without the tools."""
_ENDED = "interrupted"
_MINUTES = value_type("a number of minutes greater than 0", float, lambda value: 0 < value < 100_000)


def parser() -> Parser:
    """Return the parser of ``toolsim tune``."""
    made = Parser(prog="toolsim tune", description="Find a model's best settings, and write its profile.")
    made.add_argument(
        "url",
        metavar="URL",
        type=arguments.backend_url,
        help="the backend's base URL, such as http://127.0.0.1:11434/v1",
    )
    made.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="the model to tune (default: the first model that the backend lists)",
    )
    made.add_argument("--minutes", type=_MINUTES, default=10.0, metavar="N", help="time limit in minutes (default: 10)")
    made.add_argument(
        "--only",
        action="append",
        choices=[decision.what for decision in decisions("unknown")],
        metavar="WHAT",
        help="make only this decision, for example 'second opinion'; can be repeated",
    )
    made.add_argument(
        "--from",
        dest="recordings",
        action="append",
        type=Path,
        metavar="DIR",
        help="use the turns recorded in this folder instead of the built-in questions; can be repeated",
    )
    made.add_argument("--built-in", action="store_true", help="with --from: also use the built-in questions")
    made.add_argument("--key-env", default="", metavar="NAME", help="environment variable that contains the key")
    made.add_argument(
        "--out", type=Path, metavar="FILE", help="the profile file to write (default: a file in your profile folder)"
    )
    made.add_argument("--fresh", action="store_true", help="start over instead of continuing an interrupted run")
    made.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return made


def main(words: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    args = parser().parse_args(words)
    try:
        return asyncio.run(_learn(args))
    except (UsageError, DiagnosisError, StartFailed) as error:
        print(f"toolsim tune: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_ENDED
    except Busy as busy:
        print(f"toolsim tune: another process is tuning this model ({busy})", file=sys.stderr)
        return EXIT_USAGE


async def _learn(args: argparse.Namespace) -> int:
    import_module("openai")
    own = _own_questions(args)
    key = key_of(args.key_env)
    found = examine(args.url.rstrip("/"), key)
    model = args.model or next(iter(found.models), "")
    if not model:
        raise UsageError("--model: required, because the server lists no models")
    engine = engine_at(found.url, key)
    # llama.cpp serves its only model under any name.
    if args.model and found.models and args.model not in found.models and engine != "llama.cpp":
        raise UsageError(f"--model: {found.url} does not list {args.model}; it lists {', '.join(found.models[:6])}")
    decided = [decision for decision in decisions(engine) if not args.only or decision.what in args.only]
    asked: Sequence[Question] = question_bank.questions()
    if own is not None:
        asked = [*own.choosing, *(asked if args.built_in else ())]
        decided = [replace(decision, kinds=(*decision.kinds, *OWN_KINDS)) for decision in decided]
    out = args.out or own_folder(os.environ) / profile_file.file_name(model)
    try:
        profile_file.check_place(out)
    except OSError as problem:
        # The path is checked before the questions are asked, because asking them takes minutes.
        raise UsageError(f"--out: cannot write {out}: {problem}") from problem
    about = {
        "url": found.url,
        "model": model,
        "engine": engine,
        "toolsim": __version__,
        "questions": question_bank.fingerprint() if own is None else own.fingerprint,
    }
    memory = VerdictFile(state_folder() / "learn", about)
    try:
        if args.fresh:
            memory.forget()
        print(f"testing {model} at {found.url} ({engine}), for at most {args.minutes:g} minutes", flush=True)
        if own is not None:
            confirming = f"{len(own.confirming)} to confirm them"
            print(f"using {len(own.choosing)} of the recorded turns to choose settings, and {confirming}", flush=True)
        print(_most(decided, asked, is_hosted=not is_loopback(parse_url(found.url).host)), flush=True)
        if memory.spent.answers:
            print(f"continuing an earlier run, which has {memory.spent.answers} answers", flush=True)
        api: Api = "chat" if any(api.name == "chat" for api in found.apis) else "responses"
        answers = Answers(found.url, key, model, memory, monotonic() + args.minutes * 60, api=api)
        progress = Progress(decided, memory, args.minutes, quiet=args.quiet)
        result = await _course(decided, asked, answers, progress, None if own is None else own.confirming)
        return _report(result, model, engine, memory, out, args.only or (), own)
    finally:
        memory.close()


def _own_questions(args: argparse.Namespace) -> OwnQuestions | None:
    """Return the questions from the recordings in ``--from``, if given. Raises UsageError if there are too few."""
    if args.recordings is None:
        if args.built_in:
            raise UsageError("--built-in requires --from")
        return None
    own = own_questions(args.recordings)
    where = ", ".join(map(str, args.recordings))
    found = len(own.choosing), len(own.confirming)
    if not any(found):
        raise UsageError(f"--from: {where} contains no recorded turn without errors or warnings")
    if min(found) < FEWEST:
        raise UsageError(
            f"--from: too few turns in {where}: {found[0]} to choose settings and {found[1]} to confirm them, "
            f"expected at least {FEWEST} of each, from several conversations"
        )
    return own


async def _course(
    decided: Sequence[Decision],
    asked: Sequence[Question],
    answers: Answers,
    progress: Progress,
    confirming: Sequence[Question] | None,
) -> TuningResult:
    """Ask questions until all decisions are made, the time limit is reached, or a signal arrives."""
    result = TuningResult()
    work = asyncio.create_task(learn(decided, asked, answers, progress, answers.close, result, confirming=confirming))
    try:
        with canceled_by_signals(work):
            await work
    except asyncio.CancelledError:
        result.ended = _ENDED
    finally:
        progress.end()
        await answers.close_all()
    return result


def _report(
    result: TuningResult,
    model: str,
    engine: str,
    memory: VerdictFile,
    out: Path,
    only: Sequence[str],
    own: OwnQuestions | None,
) -> int:
    spent = memory.spent
    for choice in result.choices:
        print(_line(choice))
    if (confirmed := result.confirmation) is not None:
        outcome = "is not confirmed" if result.unconfirmed else "is confirmed"
        print(
            f"  the gain of {result.unconfirmed or result.setting} {outcome} by the other half of the turns: "
            f"{confirmed.wins} won, {confirmed.losses} lost of "
            f"{confirmed.pairs}{'; the defaults are kept' if result.unconfirmed else ''}"
        )
    print(
        f"{spent.answers} answers, {spent.requests} requests, {spent.input_tokens} input tokens, "
        f"{spent.output_tokens} output tokens, {spent.seconds / 60:.1f} minutes"
    )
    if result.ended:
        print(f"toolsim tune: ended early: {result.ended}; run the same command again to continue", file=sys.stderr)
    recorded = None if own is None else own.facts(result.confirmation)
    if not result.choices:
        print("toolsim tune: no decision was made, so no profile was written", file=sys.stderr)
    elif profile_file.write(out, profile_file.text(model, engine, result, spent, only=only, recorded=recorded)):
        print(f"{'partial ' if result.ended or only else ''}profile of {model}: {result.setting}; {out}")
    else:
        print(f"toolsim tune: {out} already contains a complete profile, so it was left unchanged", file=sys.stderr)
    if not result.ended:
        memory.close(is_whole=not only)
        return EXIT_WHOLE
    return EXIT_INTERRUPTED if result.ended == _ENDED else EXIT_ENDED


def _line(choice: Choice) -> str:
    compared = choice.comparison
    figures = f"{compared.wins} won, {compared.losses} lost of {compared.pairs}"
    why = (
        f": {choice.why}" if choice.why else f" ({figures}; evidence {compared.evidence:.3g} of {compared.boundary:g})"
    )
    return f"  {choice.what}: {choice.challenger} {choice.outcome} against {choice.incumbent}{why}"


class Progress:
    """Displays the current decision, its score so far, and the estimated remaining time."""

    def __init__(self, decided: Sequence[Decision], memory: VerdictFile, minutes: float, *, quiet: bool) -> None:
        self._memory = memory
        self._seconds = minutes * 60
        self._started = monotonic()
        self._before = memory.spent.answers
        self._is_live = not quiet and sys.stderr.isatty()
        self._is_quiet = quiet
        self._open = count(decided)
        self._current = ("", Setting())
        self._shown = 0

    def __call__(self, what: str, challenger: Setting, compared: Comparison, left: int) -> None:
        """Show the score after another question has been answered with both settings."""
        if (what, challenger) != self._current:
            self._current = (what, challenger)
            self._open -= 1
        passed = monotonic() - self._started
        line = (
            f"{_clock(passed)} {what}: {challenger}: {compared.pairs} questions, {compared.wins} won, "
            f"{compared.losses} lost; about {_clock(self._left(passed, compared, left))} left"
        )
        if self._is_live:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif not self._is_quiet and (compared.pairs % question_bank.BLOCK == 0 or compared.verdict(left)):
            print(line, file=sys.stderr, flush=True)

    def _left(self, passed: float, compared: Comparison, left: int) -> float:
        """Return an estimate of the remaining seconds, assuming that each challenger is dropped at its next check."""
        until = next((pairs for pairs, _ in PATIENCE if pairs > compared.pairs), compared.pairs + left)
        # During the confirmation, ``_open`` is -1, because ``count`` does not include the confirmation.
        questions = min(left, until - compared.pairs) + max(self._open, 0) * PATIENCE[0][0]
        answered = self._memory.spent.answers - self._before
        return min(questions * passed / answered if answered else self._seconds, max(self._seconds - passed, 0.0))

    def end(self) -> None:
        """End the progress line."""
        if self._is_live:
            print(file=sys.stderr)


def engine_at(url: str, key: str) -> Engine:
    """Return the name of the server software at a base URL, or "unknown" if toolsim does not recognize it."""
    root = url.removesuffix("/v1")
    for probe in PROBES:
        try:
            answer = ask(root + probe.path, key=key, seconds=2.0)
        except Unreachable:
            continue
        if (engine := engine_of(probe, answer.status, {}, answer.body or {})) is not None:
            return engine
    return "unknown"


def _most(decided: Sequence[Decision], asked: Sequence[Question], *, is_hosted: bool) -> str:
    """Return text about the maximum numbers of requests and tokens, in case no challenger is dropped early."""
    requests = read = 0
    for decision in decided:
        own = [question for question in asked if question.kind in decision.kinds]
        # A second opinion can require two more requests. Retries after calls to undeclared tools are not counted.
        times = len(decision.values) * (3 if decision.what == "second opinion" else 1)
        requests += len(own) * times
        read += sum(map(_tokens, own)) * times
    for question in asked:
        requests, read = requests + 1, read + _tokens(question)
    hosted = "; a hosted model may charge you for them; press Ctrl-C to stop at any time" if is_hosted else ""
    return (
        f"at most {requests} requests with about {round(read, -3):,} input and {requests * MAX_TOKENS:,} output "
        f"tokens, plus one request for each tool that the model invents; most runs need about a third of that{hosted}"
    )


def _tokens(question: Question) -> int:
    shown = json.dumps([question.messages, [[tool.name, tool.description, tool.parameters] for tool in question.tools]])
    return round(len(shown) / _CHARACTERS_A_TOKEN) + _RULE_TOKENS


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
