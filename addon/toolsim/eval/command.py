"""``toolsim eval``, which runs an evaluation and writes the report even if the evaluation is interrupted."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from toolsim.command_line import UsageError
from toolsim.core.tasks import canceled_by_signals
from toolsim.eval import catalog, compare, flags, journal, measure, merge, report, settings
from toolsim.eval.case import Run, with_current_names
from toolsim.eval.journal import Journal, Secrets
from toolsim.eval.markdown import rate_text
from toolsim.eval.measure import Job
from toolsim.eval.methods import Methods, Target
from toolsim.eval.progress import Progress
from toolsim.eval.provider import MODEL, scripted_provider
from toolsim.eval.proxy_process import Proxies
from toolsim.eval.summary import Rate

SCRIPTED = "the scripted provider (offline)"

EXIT_RIGHT, EXIT_WRONG, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_COMMANDS = {"compare": compare.main, "join": merge.main}
# Settings that do not affect the results. They are not saved in a report, so --resume does not restore them.
_UNSAVED = frozenset({"resume", "out", "quiet", "verbose", "flows", "jobs"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if a run with the scripted provider fails, or 2 for a usage error."""
    arguments = flags.with_current_names(list(sys.argv[1:] if argv is None else argv))
    name, command = "toolsim eval", _COMMANDS.get("".join(arguments[:1]))
    try:
        if command is not None:
            name = f"{name} {arguments[0]}"
            return command(arguments[1:])
        parser = flags.parser(os.environ)
        if arguments[:1] == ["models"]:
            return asyncio.run(_compare_catalog(parser.parse_args(arguments[1:])))
        args, folder = _resumed(parser, arguments)
        return asyncio.run(_evaluate(args, folder))
    except (UsageError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_USAGE


def _resumed(parser: ArgumentParser, arguments: list[str]) -> tuple[Namespace, Path]:
    """Parse the arguments. With --resume, unspecified arguments have the values that were saved in the report."""
    args = parser.parse_args(arguments)
    if args.resume is None:
        return args, journal.new_folder(Path(args.out), datetime.now(UTC))
    folder = Path(args.resume) if args.resume else journal.latest(Path(args.out))
    saved = with_current_names(journal.read_settings(folder))
    if args.options:
        # If the saved options were not removed, argparse would append the new options to them.
        saved.pop("options", None)
    parser.set_defaults(**saved)
    return parser.parse_args(arguments), folder


async def _compare_catalog(args: Namespace) -> int:
    """Print how the catalog differs from the server's list (``toolsim eval models``)."""
    import_module("openai")
    if not (url := settings.base_url(args, os.environ)):
        raise UsageError("toolsim eval models: specify the server with --base-url")
    print(catalog.differences(await _served(url, settings.api_key(args, url, os.environ), args)))
    return EXIT_RIGHT


async def _evaluate(args: Namespace, folder: Path) -> int:
    # Modules that send requests to a model are imported only when needed, so that --help works without extra packages.
    import_module("openai")
    url = settings.base_url(args, os.environ)
    key = settings.api_key(args, url, os.environ) if url else ""
    async with AsyncExitStack() as stack:
        offline = not url
        if offline:
            url = await stack.enter_async_context(scripted_provider())
            args.models = MODEL
        served: list[str] = []
        if not offline and not catalog.are_ids(args.models):
            try:
                served = await _served(url, key, args)
            except UsageError as problem:
                if not args.models:
                    raise UsageError(f"specify the models with --models: {problem}") from problem
        if not args.models:
            args.models = settings.default_models(url, served)
        setup = settings.setup(args, offline=offline, served=served)
        await settings.check_tool_choice(setup)
        jobs = measure.plan(setup.cells, setup.cases, args.trials)
        if not args.quiet:
            print(
                f"{SCRIPTED}: no model is used" if offline else f"evaluating models at {url}: {_models(setup)}",
                flush=True,
            )
            if gone := catalog.missing(args.models, served) if served else []:
                print(f"skipping models that the server no longer lists: {', '.join(gone)}", flush=True)
        for notice in settings.notices(args, setup):
            print(f"toolsim eval: {notice}", file=sys.stderr)
        log = Journal(folder, Secrets([key]))
        stack.callback(log.close)
        saved = {name: value for name, value in vars(args).items() if name not in _UNSAVED}
        log.write(journal.SETTINGS, report.as_text(saved))
        read_timeout = args.client_timeout if args.read_timeout is None else args.read_timeout
        # A timeout of 0 means that there is no limit.
        seconds = [limit or None for limit in (args.client_timeout, args.open_timeout, read_timeout)]
        target = Target(url, key or "none", *seconds)
        started = Proxies(url, flows=folder / "flows" if args.flows else None)
        stack.push_async_callback(started.aclose)
        methods = Methods(target, started)
        stack.push_async_callback(methods.close)
        interrupted = await _measure(jobs, methods, log, args)
        runs = _in_order(jobs, log.runs)
        report.write(log, runs, planned=len(jobs), target=SCRIPTED if offline else url, settings=saved)
    broken_off = f"interrupted after {len(runs)} of {len(jobs)} runs: " if interrupted else ""
    whose = f"{SCRIPTED}, no model: " if offline else ""
    print(f"{whose}{broken_off}{rate_text(Rate.of(runs))} correct; {folder / 'report.html'}")
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_WRONG if offline and not all(run.ok for run in runs) else EXIT_RIGHT


async def _measure(jobs: Sequence[Job], methods: Methods, log: Journal, args: Namespace) -> bool:
    """Perform the remaining runs. Return whether the user interrupted them."""
    finished = {run.key for run in log.runs}
    open_jobs = [job for job in jobs if job.key not in finished]
    with Progress(len(open_jobs), args.verbose, quiet=args.quiet) as progress:

        def done(job: Job, run: Run | None) -> None:
            progress(job, None if run is None else log.add(run))

        work = asyncio.create_task(
            measure.measure(open_jobs, methods, args.client_timeout or None, done, parallel=args.jobs)
        )
        with canceled_by_signals(work):
            try:
                await work
            except asyncio.CancelledError:
                return True
    return False


def _in_order(jobs: Sequence[Job], runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order of the plan, so that the report is the same as without an interruption."""
    place = {job.key: number for number, job in enumerate(jobs)}
    return sorted((run for run in runs if run.key in place), key=lambda run: place[run.key])


def _models(setup: settings.Setup) -> str:
    return ", ".join(dict.fromkeys(cell.model for cell, _ in setup.cells))


async def _served(url: str, key: str, args: Namespace) -> list[str]:
    """Return the models that the server lists. Raises UsageError if the server does not return a list."""
    import openai

    timeout = openai.Timeout(args.open_timeout or None)
    async with openai.AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0, timeout=timeout) as client:
        try:
            return [model.id for model in (await client.models.list()).data]
        except openai.APIError as error:
            raise UsageError(f"{url} did not return a list of models ({error})") from error
