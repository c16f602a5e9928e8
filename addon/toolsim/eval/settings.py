"""Converts flags to the input of an evaluation (cells and cases). All mistakes are reported before the run."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args
from urllib.parse import urlsplit

from toolsim.cli import arguments
from toolsim.command_line import UsageError, key_of
from toolsim.eval import catalog, profiles, suites
from toolsim.eval.case import METHODS, Case, Cell, sample, tools_of
from toolsim.eval.catalog import Model
from toolsim.eval.flags import DEFAULT_MODELS, ENV, words
from toolsim.eval.methods import CONTENT_TAGS
from toolsim.eval.profiles import Sampling
from toolsim.eval.runtime.loop import LoopSettings
from toolsim.eval.runtime.turn import Api
from toolsim.eval.scenarios import ScenarioSettings
from toolsim.eval.workspace import TOOL_PROFILES, Workspace
from toolsim.proxy.options.option import PREFIX

APIS = get_args(Api)
OPENROUTER = "https://openrouter.ai/api/v1"
_CHOICES = ("auto", "required", "none")
"""The values of ``tool_choice`` other than tool names."""
RESERVED = frozenset(
    {"model", "messages", "input", "tools", "parallel_tool_calls", "stream", "stream_options", "store"}
)
"""Request fields that users cannot set, because the evaluation sets them."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The input of an evaluation, parsed from its flags."""

    cells: Sequence[tuple[Cell, Sampling]]
    cases: Sequence[Case]


def setup(args: Namespace, *, offline: bool, served: Sequence[str] = ()) -> Setup:
    """Return an evaluation's input. ``served`` are the server's models. Raises UsageError if nothing is selected."""
    gone = catalog.missing(args.models, served) if served else []
    models = [model for model in catalog.select(args.models, served) if model.id not in gone]
    if not models:
        why = f": the server does not list {', '.join(gone)}" if gone else ""
        raise UsageError(f"no model is selected{why}; specify models with --models")
    cases = [case for name in words(args.suite) for case in _cases(name, args, offline)]
    if not cases:
        raise UsageError("no case is selected")
    cells = list(_cells(args, models, offline))
    if not cells:
        raise UsageError(
            "no sampling profile applies to any model; to use the profiles anyway, add --enforce-applicability no"
        )
    return Setup(cells, cases)


async def check_tool_choice(chosen: Setup) -> None:
    """Raise UsageError if ``tool_choice`` names a tool that no selected case offers."""
    names = {str(sampling.get("tool_choice", "")) for _, sampling in chosen.cells} - {"", *_CHOICES}
    if not names:
        return
    offered = frozenset[str]().union(*[await tools_of(case) for case in chosen.cases])
    for name in sorted(names - offered):
        there = f"the cases offer {', '.join(sorted(offered))}" if offered else "the cases offer no tools"
        raise UsageError(f"tool_choice: no selected case offers a tool named {name}; {there}")


def base_url(args: Namespace, environment: Mapping[str, str]) -> str:
    """Return the server's base URL, or "" for the scripted provider. Raises UsageError if the URL is invalid."""
    if args.offline:
        return ""
    if not args.base_url:
        return OPENROUTER if environment.get(f"{ENV}API_KEY") else ""
    prefix = environment.get(f"{ENV}API_PREFIX", "")
    url: str = args.base_url.rstrip("/")
    if prefix and args.base_url == environment.get(f"{ENV}BASE_URL"):
        url = f"{url}/{prefix.strip('/')}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"expected an http URL, got {url}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "a base URL must not contain credentials or a query; name the key's environment variable with --key-env"
        )
    return url


def api_key(args: Namespace, url: str, environment: Mapping[str, str]) -> str:
    """Return the API key for a server, or "" if there is none.

    OPENROUTER_API_KEY is used only for OpenRouter and OPENROUTER_BASE_URL. Other servers require ``--key-env``. Raises
    UsageError if the variable that it names is not set, or its value is not a valid key.
    """
    if args.key_env:
        return key_of(args.key_env, environment)
    host = urlsplit(url).hostname or ""
    is_meant = host == "openrouter.ai" or host.endswith(".openrouter.ai")
    if is_meant or args.base_url == environment.get(f"{ENV}BASE_URL"):
        return environment.get(f"{ENV}API_KEY", "").strip()
    return ""


def default_models(url: str, served: Sequence[str]) -> str:
    """Return the server's only model, or DEFAULT_MODELS if the server is OpenRouter or lists one of them."""
    if len(served) == 1:
        return served[0]
    stable = {model.id for model in catalog.select(DEFAULT_MODELS)}
    if (urlsplit(url).hostname or "").endswith("openrouter.ai") or stable & set(served):
        return DEFAULT_MODELS
    there = f"the server lists {', '.join(served[:20])}" if served else "the server lists no models"
    raise UsageError(f"specify the models with --models; {there}")


def _cases(suite: str, args: Namespace, offline: bool) -> list[Case]:
    scenarios = args.scenarios or ("all" if offline else "default")
    return sample(suites.load(suite, scenario_settings(args), scenarios), args.sample, args.seed)


def scenario_settings(args: Namespace) -> ScenarioSettings:
    """Return the settings that all scenarios share."""
    tools = [tool.name for tool in Workspace().registry().offered()]
    named = _known(words(args.allowlist), ("all", *TOOL_PROFILES, *tools), "--allowlist")
    allowed = None if "all" in named else tuple(tool for word in named for tool in TOOL_PROFILES.get(word, (word,)))
    loop = LoopSettings(
        tool_use_mode=args.tool_use_mode,
        tool_failure_policy=args.tool_failure_policy,
        fallback_retry_count=args.fallback_retry_count,
        fix_empty_final=args.fix_empty_final,
    )
    return ScenarioSettings(allowed, loop)


def notices(args: Namespace, setup: Setup) -> list[str]:
    """Return warnings about settings that have no effect, or that the catalog advises against."""
    found = []
    asked = {cell.model for cell, _ in setup.cells}
    doubtful = [model.id for model in catalog.CATALOG if model.id in asked and model.tool_calling_reliable is False]
    if args.tool_use_mode == "enforced" and doubtful:
        found.append(f"--tool-use-mode enforced: the catalog marks tool calls as unreliable for {', '.join(doubtful)}")
    if args.fallback_matrix and "native" not in words(args.method):
        found.append("--fallback-matrix has no effect without --method native")
    return found


def _cells(args: Namespace, models: Iterable[Model], offline: bool) -> Iterator[tuple[Cell, Sampling]]:
    chosen = profiles.select(args.profiles)
    methods = _known(words(args.method), METHODS, "--method")
    # The scripted provider costs nothing, so all combinations of API and streaming are tested.
    apis = _known(words(args.api) or (list(APIS) if offline else ["chat"]), APIS, "--api")
    streams = [False, True] if offline and not args.stream else [args.stream]
    defaults, overrides = _fields(args)
    for model, profile in product(models, chosen):
        if args.enforce_applicability and not profile.applies(model):
            continue
        sampling = {**model.options, **defaults, **profile.sampling(model), **overrides}
        for api, stream, method in product(apis, streams, methods):
            for setting in _settings(args, method):
                yield Cell(model.id, profile.id, method, api, stream, setting), sampling


def _known(chosen: list[str], known: Sequence[str], flag: str) -> list[str]:
    for word in chosen or [""]:
        if word not in known:
            raise UsageError(f"{flag}: expected {', '.join(known)}, got {word or 'nothing'}")
    return chosen


def _settings(args: Namespace, method: str) -> list[str]:
    if method == "toolsim":
        return [" ".join(one) for one in product(*(_values(option) for option in args.options))]
    if method == "native" and (args.content_tag_fallback or args.fallback_matrix):
        return ["", CONTENT_TAGS] if args.fallback_matrix else [CONTENT_TAGS]
    return [""]


def _values(option: str) -> list[str]:
    name, equals, values = option.partition("=")
    if not equals or not name or " " in option:
        raise UsageError(f"--set: expected NAME=VALUE without spaces, got {option!r}")
    if not name.startswith(PREFIX):
        raise UsageError(f"--set: expected a toolsim option, {PREFIX}…, got {name}")
    chosen = [f"{name}={value}" for value in values.split(",")]
    for one in chosen:
        # The proxies check the options, too, but they start only during the evaluation.
        arguments.check_settings([one], host="127.0.0.1")
    return chosen


def _fields(args: Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the request options that profiles override, and the request options that override profiles."""
    sampling = {name: getattr(args, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    overrides: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    if args.route:
        overrides["route"] = args.route
    if args.transforms:
        overrides["transforms"] = words(args.transforms)
    provider = {name: words(getattr(args, f"provider_{name}")) for name in ("only", "order", "ignore")}
    if any(provider.values()):
        overrides["provider"] = {name: value for name, value in provider.items() if value}
    overrides |= _object(args.request_overrides, "--request-overrides")
    defaults = _object(args.llm_options, "--llm-options")
    if choice := args.tool_choice or overrides.get("tool_choice") or defaults.get("tool_choice"):
        overrides["tool_choice"] = _choice(choice)
    return defaults, overrides


def _choice(choice: Any) -> str:
    named = choice.get("function", choice).get("name") if isinstance(choice, dict) else choice
    if isinstance(named, str):
        return named
    raise UsageError("tool_choice: expected auto, required, none, a tool's name, or an object that names a tool")


def _object(text: str, flag: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{flag}: expected a JSON object, got {text:.60}")
    if taken := sorted(RESERVED & value.keys()):
        raise UsageError(f"{flag}: got {', '.join(taken)}, which only the evaluation can set")
    return value
