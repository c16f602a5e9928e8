"""Implements the command ``toolsim``, for users who do not want to learn mitmproxy's commands.

Modules that need mitmproxy are imported where they are used, so that a missing package is reported in one line. The
commands in ``PLUGINS`` have separate parsers. The exit codes are 0 for success, 1 for a problem with a server or a
recording, 2 for a usage error, 130 after Ctrl-C, and 141 if the reader of the output has closed the pipe.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolsim.command_line import (
    EXIT_PIPE,
    EXIT_USAGE,
    Parser,
    UsageError,
    addon_script,
    discard_output,
    missing,
)
from toolsim.version import __version__

EXIT_INTERRUPTED = 130

PLUGINS = {
    "eval": "toolsim.eval.command",
    "tune": "toolsim.eval.learn.command",
    "replay": "toolsim.recordings.replay",
    "export": "toolsim.recordings.export",
}
"""The commands that other packages implement.

Each value is a module, whose ``main(words)`` is called with the remaining arguments.
"""

RENAMED = {"learn": "tune"}
"""Former names of commands, mapped to their current names. Former names remain valid for one release."""

_DESCRIPTION = "Function calling for any text-only model backend."
_EPILOG = "toolsim COMMAND --help shows details; toolsim options [WORD] lists the options for --set."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _reported(words)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return EXIT_PIPE
    return code


def _reported(words: list[str]) -> int:
    """Run the command line and return its exit code. Each problem is printed in one line."""
    try:
        return _run(words)
    except UsageError as problem:
        print(f"toolsim: {problem}", file=sys.stderr)
        return EXIT_USAGE
    except ModuleNotFoundError as problem:
        print(missing(problem), file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(words: list[str]) -> int:
    if words and (name := RENAMED.get(words[0])):
        print(f"toolsim {words[0]}: this command is now called {name}", file=sys.stderr)
        words[0] = name
    if words and words[0] in PLUGINS:
        return int(importlib.import_module(PLUGINS[words[0]]).main(words[1:]))
    made = parser()
    # For ``launch`` and ``claude``, the arguments after -- belong to the program.
    words, of_program = _split(words) if words[:1] in (["launch"], ["claude"]) else (words, [])
    if words[:1] == ["claude"] and "--run" in words:
        print("toolsim claude --run: this command is now called launch claude", file=sys.stderr)
        words = ["launch", "claude", *(word for word in words[1:] if word != "--run")]
    args = made.parse_args(words)
    if args.command is None:
        made.print_help(sys.stderr)
        return EXIT_USAGE
    if args.command == "doctor":
        from toolsim.cli import doctor

        return doctor.main(args)
    if args.command == "options":
        from toolsim.cli import options

        return options.main(args)
    from toolsim.cli import config, demo, serve

    if args.command == "addon-path":
        print(addon_script())
        return 0
    if args.command == "launch":
        from toolsim.cli import launch

        return launch.run(args, of_program, lambda file: made.parse_args(config.with_config_file(words, args, file)))
    if args.config is not None:
        args = made.parse_args(config.with_config_file(words, args, args.config))
    if args.command == "claude":
        from toolsim.cli import agents

        print(agents.claude_line(args.host, args.port))
        if args.backend is None:
            return 0
    has_models = any(setting.startswith("toolsim_models=") for setting in args.set)
    if getattr(args, "backend", "") is None and not (args.command == "serve" and has_models):
        made.commands[args.command].error("the following arguments are required: URL")
    start = serve.Start(_backend(args), args.host, args.port, args.web, tuple(args.set))
    if args.command == "demo":
        return demo.run(start, once=args.once)
    if args.command == "record":
        settings = (*start.settings, f"toolsim_capture={args.folder}")
        # Answers are not stored, because a recording that refers to stored answers could not be replayed.
        start = serve.Start(start.backend, start.host, start.port, start.web, settings, remembers=False)
    return serve.run(start)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before ``--``, and the arguments after ``--``."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def _backend(args: argparse.Namespace) -> str:
    match args.command:
        case "codex":
            return "codex"
        case "demo":
            return "scripted"
    # If no backend is specified, the file in toolsim_models can specify one for each model.
    return str(args.backend or "")


def parser() -> Parser:
    """Return the parser for all commands. It lists the commands in ``PLUGINS``, but does not parse their arguments."""
    from toolsim.cli import arguments
    from toolsim.cli.agents import AGENTS

    made = Parser(prog="toolsim", description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument("--version", action="version", version=f"toolsim {__version__}")
    commands = made.add_subparsers(dest="command", metavar="command", parser_class=Parser)

    def command(name: str, words: str, description: str = "", **more: Any) -> Parser:
        """Add a command. Its default description is the help text as a sentence."""
        sentence = description or f"{words[0].upper()}{words[1:]}."
        added: Parser = commands.add_parser(name, help=words, description=sentence, **more)
        return added

    serve = command("serve", "serve a backend")
    serve.add_argument(
        "backend",
        nargs="?",
        metavar="URL",
        type=arguments.served_backend,
        help="the backend's base URL, such as http://127.0.0.1:11434/v1, or a model file, such as model.gguf",
    )
    codex = command("codex", "serve models with your Codex login")
    launch = command(
        "launch",
        "run a coding agent, such as Claude Code, with a backend",
        epilog="Arguments after -- are passed to the program: toolsim launch codex URL -- exec 'Fix the tests.' "
        "toolsim launch PROGRAM --help shows details.",
    )
    programs = launch.add_subparsers(dest="agent", metavar="program", parser_class=Parser, required=True)
    launched = [programs.add_parser(agent.command, help=agent.title) for agent in AGENTS.values()]
    for program in launched:
        program.add_argument(
            "backend",
            nargs="?",
            metavar="URL",
            type=arguments.recorded_backend,
            help="the backend: a base URL, a model file or codex (default: the backend of a running toolsim, else "
            "the backend in ~/.config/toolsim/toolsim.toml, else an Ollama or LM Studio server on this machine)",
        )
        program.add_argument(
            "--model",
            default="",
            metavar="NAME",
            help="the model to use (default: the first model that the backend lists)",
        )
        program.add_argument("--key-env", default="", metavar="NAME", help="environment variable that contains the key")
    claude = command("claude", "print the settings of Claude Code (toolsim launch claude runs it)")
    claude.add_argument(
        "backend",
        nargs="?",
        metavar="URL",
        type=arguments.recorded_backend,
        help="the backend: a base URL, a model file or codex (default: the backend of a running toolsim)",
    )
    demo = command("demo", "run one sample turn of each kind with a scripted model, and keep serving that model")
    demo.add_argument(
        "--once", action="store_true", help="exit after the turns, with status 0 if all turns ended as expected"
    )
    record = command("record", "serve a backend and record each exchange in a folder")
    record.add_argument(
        "folder", metavar="DIR", help="folder for the recordings, one .flow file without secrets per exchange"
    )
    record.add_argument(
        "backend",
        metavar="URL",
        type=arguments.recorded_backend,
        help="the backend's base URL, a model file, codex or scripted",
    )
    for server in (serve, codex, claude, demo, record):
        _add_listener(server)
    for program in launched:
        _add_listener(program, takes_any_port=True)

    commands.add_parser(
        "replay",
        help="replay recorded exchanges, or send them to another model, and compare the results",
        add_help=False,
    )
    commands.add_parser("export", help="write recorded turns as training data", add_help=False)
    doctor = command(
        "doctor",
        "check what a server supports, and print the command that serves it",
        "Check what a server supports, ask one of its models a short question, and print the command that serves it.",
    )
    doctor.add_argument(
        "url",
        metavar="URL",
        type=arguments.backend_url,
        help="the server's base URL, such as http://127.0.0.1:11434/v1",
    )
    doctor.add_argument(
        "--model", default="", metavar="NAME", help="the model to test (default: the first model that the server lists)"
    )
    doctor.add_argument("--key-env", default="", metavar="NAME", help="environment variable that contains the key")
    options = command("options", "print all options with their help, defaults and current values")
    options.add_argument(
        "word",
        nargs="?",
        default="",
        metavar="WORD",
        help="print only options whose names or, if there are none, whose help texts contain this word",
    )
    _add_settings(options)
    command("addon-path", "print the path of the addon, for mitmdump -s and mitmweb -s")
    commands.add_parser("tune", help="test which settings suit a model", add_help=False)
    commands.add_parser("eval", help="measure how well models call tools, or compare reports", add_help=False)
    return made


def _add_listener(parser: argparse.ArgumentParser, *, takes_any_port: bool = False) -> None:
    """Add the arguments of commands that start a proxy.

    ``takes_any_port`` means that any free port is used if the default port is in use.
    """
    from toolsim.cli import arguments

    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s, reachable only from this machine)",
    )
    default = None if takes_any_port else arguments.DEFAULT_PORT
    otherwise = ", or any free port" if takes_any_port else ""
    parser.add_argument(
        "--port",
        type=arguments.port,
        default=default,
        help=f"port to listen on (default: {arguments.DEFAULT_PORT}{otherwise})",
    )
    parser.add_argument("--web", action="store_true", help="show turns in a browser, with mitmweb")
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    from toolsim.cli import arguments

    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a TOML file of arguments and options; the command line overrides it",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=arguments.setting,
        metavar="NAME=VALUE",
        help="set a toolsim or mitmproxy option; can be repeated",
    )
