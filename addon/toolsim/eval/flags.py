"""Defines the evaluation's command line in one table. Environment variables override the defaults."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.command_line import Parser
from toolsim.eval.case import FORMER_METHOD

ENV = "OPENROUTER_"
DEFAULT_OUT = "build/eval"
DEFAULT_MODELS = "stable"


def value_type(
    expected: str, read: Callable[[str], Any], is_valid: Callable[[Any], bool] = lambda _: True
) -> Callable[[str], Any]:
    """Return an argparse type whose error message contains ``expected``. ``read`` can raise ValueError or KeyError."""

    def parse(text: str) -> Any:
        try:
            if is_valid(value := read(text)):
                return value
        except (ValueError, KeyError):
            pass
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")

    return parse


# The accepted values of a boolean environment variable.
_BOOLEANS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off", ""), False)}

boolean = value_type("true or false", lambda text: _BOOLEANS[text.strip().lower()])
whole = value_type("a whole number", int)
number = value_type("a number", float)
positive = value_type("a whole number above zero", int, lambda value: value >= 1)
seconds = value_type("seconds, or 0 for no limit", float, lambda value: 0 <= value < 1e6)

_METAVARS = {boolean: "BOOL", positive: "N", whole: "N", number: "X", seconds: "S"}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``env`` is its environment variable, without the prefix. Only string flags have a ``metavar``."""

    name: str
    help: str
    default: Any = None
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    env: str = ""
    metavar: str = ""

    @property
    def field(self) -> str:
        """The name of the flag's attribute in the parsed arguments."""
        return self.name.replace("-", "_")


FLAGS = (
    Flag(
        "base-url",
        "base URL of an OpenAI-compatible server (default: OpenRouter if its key is set, else the scripted provider)",
        "",
        env="BASE_URL",
        metavar="URL",
    ),
    Flag("key-env", "environment variable that contains the server's API key", "", metavar="NAME"),
    Flag(
        "models",
        "models to evaluate: names that the server lists, or ids, base ids, providers and tags in the catalog; * "
        "matches any text, ! excludes models, and all selects the entire catalog",
        "",
        env="MODEL_FILTER",
        metavar="LIST",
    ),
    Flag("method", "methods of offering tools to the model: toolsim, native, prompt", "toolsim", metavar="LIST"),
    Flag(
        "suite", "suites to run: scenarios, questions, unseen, which_output, bfcl:CATEGORY", "scenarios", metavar="LIST"
    ),
    Flag(
        "scenarios",
        "scenarios to run, by id or preset (default, all); offline, all scenarios are run",
        "",
        env="SCENARIOS",
        metavar="LIST",
    ),
    Flag("sample", "number of cases of each suite, selected by the seed (default: all)", None, positive),
    Flag("seed", "seed for the selection of cases", 1, whole),
    Flag("trials", "number of runs of each case", 1, positive, env="TRIALS"),
    Flag("jobs", "number of models to run in parallel", 1, positive, env="JOBS"),
    Flag("api", "APIs to use: chat, responses", "", metavar="LIST"),
    Flag(
        "profiles", "sampling profiles to use, by id or tag", "default", env="SAMPLING_PROFILE_FILTER", metavar="LIST"
    ),
    Flag(
        "enforce-applicability",
        "skip sampling profiles that are not intended for a model",
        True,
        boolean,
        env="SAMPLING_PROFILE_ENFORCE_APPLICABILITY",
    ),
    Flag(
        "temperature",
        "temperature to use instead of the sampling profile's temperature",
        None,
        number,
        env="TEMPERATURE",
    ),
    Flag("top-p", "top_p to use instead of the sampling profile's top_p", None, number, env="TOP_P"),
    Flag("top-k", "top_k to use instead of the sampling profile's top_k", None, whole, env="TOP_K"),
    Flag("min-p", "min_p to use instead of the sampling profile's min_p", None, number, env="MIN_P"),
    Flag(
        "llm-options",
        "additional request fields as a JSON object; sampling profiles override them",
        "{}",
        env="LLM_OPTIONS_DEFAULTS_JSON",
        metavar="JSON",
    ),
    Flag(
        "request-overrides",
        "additional request fields as a JSON object; they override all other fields",
        "{}",
        env="REQUEST_OVERRIDES_JSON",
        metavar="JSON",
    ),
    Flag("route", "value of the 'route' field in requests to OpenRouter", "", env="ROUTE", metavar="WORD"),
    Flag(
        "transforms", "value of the 'transforms' field in requests to OpenRouter", "", env="TRANSFORMS", metavar="LIST"
    ),
    Flag(
        "provider-only",
        "value of the 'provider.only' field in requests to OpenRouter",
        "",
        env="PROVIDER_ONLY",
        metavar="LIST",
    ),
    Flag(
        "provider-order",
        "value of the 'provider.order' field in requests to OpenRouter",
        "",
        env="PROVIDER_ORDER",
        metavar="LIST",
    ),
    Flag(
        "provider-ignore",
        "value of the 'provider.ignore' field in requests to OpenRouter",
        "",
        env="PROVIDER_IGNORE",
        metavar="LIST",
    ),
    Flag(
        "tool-use-mode",
        "scenarios: tools are required (enforced), optional (relaxed), or not offered (disabled)",
        "relaxed",
        choices=("enforced", "relaxed", "disabled"),
        env="TOOL_USE_MODE",
    ),
    Flag(
        "tool-choice",
        "tool_choice for each question with tools: auto, required, none or a tool's name (default: depends on "
        "--tool-use-mode)",
        "",
        metavar="CHOICE",
    ),
    Flag(
        "tool-failure-policy",
        "scenarios with --tool-use-mode enforced: require the last call of each tool to succeed (fatal), or at least "
        "one call (tolerated)",
        "fatal",
        choices=("fatal", "tolerated"),
        env="TOOL_FAILURE_POLICY",
    ),
    Flag(
        "fallback-retry-count",
        "scenarios with --tool-use-mode relaxed: number of retries without tools after an error from the server",
        0,
        whole,
        env="TOOL_CALLING_FALLBACK_RETRY_COUNT",
    ),
    Flag(
        "allowlist",
        "scenarios: tools to offer, by name or profile (default, read, propose, all)",
        "default",
        env="TOOL_ALLOWLIST",
        metavar="LIST",
    ),
    Flag("fix-empty-final", "scenarios: retry if the last answer is empty", True, boolean, env="FIX_EMPTY_FINAL"),
    Flag(
        "content-tag-fallback",
        "method native: also count tagged calls in the text of answers",
        False,
        boolean,
        env="ENABLE_CONTENT_TAG_TOOL_CALL_FALLBACK",
    ),
    Flag(
        "fallback-matrix",
        "method native: compare runs with and without counting tagged calls",
        False,
        boolean,
        env="FALLBACK_MATRIX",
    ),
    Flag("client-timeout", "time limit for a question in seconds, 0 = no limit", 120.0, seconds, env="CLIENT_TIMEOUT"),
    Flag("open-timeout", "time limit for connecting in seconds, 0 = no limit", 10.0, seconds, env="OPEN_TIMEOUT"),
    Flag(
        "read-timeout",
        "number of seconds without data after which a question fails, 0 = no limit (default: the client timeout)",
        None,
        seconds,
        env="READ_TIMEOUT",
    ),
    Flag("out", "folder in which report folders are created", DEFAULT_OUT, metavar="DIR"),
)
# The environment variable for the verbosity, which is not saved in a report's settings.
_VERBOSE = "VERBOSE"


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser, with defaults from the environment. Raises ValueError for an invalid environment variable."""
    made = Parser(
        prog="toolsim eval",
        description="Measure how often models call tools correctly. Without a base URL, the evaluation runs offline, "
        "with a scripted provider.",
        epilog="toolsim eval compare A B compares two reports, toolsim eval join OUT A B merges reports, and toolsim "
        "eval models compares the list of known models with the models that a server lists. The environment variables "
        "in brackets set defaults.",
    )
    for flag in FLAGS:
        named = f" [{ENV}{flag.env}]" if flag.env else ""
        made.add_argument(
            f"--{flag.name}",
            help=f"{flag.help}{named}".replace("%", "%%"),
            default=_default(flag, environment),
            type=flag.type,
            choices=flag.choices or None,
            metavar=flag.metavar or _METAVARS.get(flag.type),
        )
    made.add_argument("--offline", action="store_true", help="do not use the network, regardless of the environment")
    made.add_argument("--stream", action="store_true", help="stream the answers")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="options",
        help="set a toolsim option; values separated by commas are compared with each other",
    )
    made.add_argument("--flows", action="store_true", help="method toolsim: record the exchanges as .flow files")
    made.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="continue an interrupted report (default: the newest report in --out)",
    )
    made.add_argument("-q", "--quiet", action="store_true", help="print only the path of the report")
    made.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=_verbosity(environment),
        help="print each run and turn; if repeated, also print the sizes of requests and tools, and the failures "
        f"[{_VERBOSE}]",
    )
    return made


def _default(flag: Flag, environment: Mapping[str, str]) -> Any:
    text = environment.get(ENV + flag.env, "") if flag.env else ""
    if not text:
        return flag.default
    try:
        value = flag.type(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{ENV}{flag.env}: {error}") from error
    if flag.choices and value not in flag.choices:
        raise ValueError(f"{ENV}{flag.env}: expected one of {', '.join(flag.choices)}, got {text!r}")
    return value


def _verbosity(environment: Mapping[str, str]) -> int:
    text = environment.get(_VERBOSE, "")
    return int(text) if text in ("0", "1", "2") else 0


def with_current_names(arguments: Sequence[str]) -> list[str]:
    """Replace renamed flags with their current names, and report each replacement on standard error."""
    former = f"--{FORMER_METHOD}"
    if any(argument.partition("=")[0] == former for argument in arguments):
        print(f"toolsim eval: {former} is now called --method", file=sys.stderr)
    return [re.sub(rf"^{former}(?==|$)", "--method", argument) for argument in arguments]


def words(text: str) -> list[str]:
    """Return the entries of a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]
