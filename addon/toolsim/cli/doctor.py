"""``toolsim doctor URL``, which reports a server's features and the toolsim command for this server.

1. Does a server answer, and which models does it list (``/models``)?
2. Which APIs does it have? A request with an empty body costs nothing. An existing API rejects it with a status other
   than 404.
3. Does a model call tools on its own? It is asked one short question, with one tool.

The diagnosis stops at the first problem.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolsim.cli.arguments import DEFAULT_PORT
from toolsim.cli.probe import Answer, Unreachable, ask
from toolsim.command_line import key_of
from toolsim.core.policy import most_specific_profile
from toolsim.proxy.address import is_loopback, other_places, parse_url
from toolsim.proxy.options.profiles import read_profiles
from toolsim.proxy.reporting.summary import listed, printable
from toolsim.wire.api import Api
from toolsim.wire.apis import APIS, CHAT, MESSAGES, NO_API, RESPONSES, apis_line
from toolsim.wire.errors import NO_PATH
from toolsim.wire.json_fields import mapping, mappings, string

_MAX_SHOWN = 6
_MAX_CHARS = 120
# Timeout for a model's answer, in seconds. It is long because the model might have to be loaded first.
_TURN_SECONDS = 120.0
_MAX_TOKENS = 200

TOOL = "get_weather"
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_QUESTION = "What is the weather in Bonn? Call the tool."


class DiagnosisError(Exception):
    """Raised for a problem with the server. The message describes the problem in one line."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The base URL at which a server answered, the server's APIs, and the IDs of its models."""

    url: str
    apis: tuple[Api, ...]
    models: tuple[str, ...]


def main(args: Namespace) -> int:
    """Run the checks, print the results, and return the exit code."""
    key = key_of(args.key_env)
    try:
        found = examine(args.url.rstrip("/"), key)
        model = args.model or (found.models[0] if found.models else "")
        if args.model and found.models and args.model not in found.models:
            raise DiagnosisError(
                f"{found.url} does not list the model {args.model}; it lists "
                f"{listed(found.models, _MAX_SHOWN, _MAX_CHARS)}"
            )
        calls = (
            calls_by_itself(found, model, key)
            if model
            else "not tested, because no models are listed; try --model NAME"
        )
    except DiagnosisError as sick:
        print(f"toolsim doctor: {sick}", file=sys.stderr)
        return 1
    native = calls.startswith("yes")
    print(f"{found.url} is up")
    names = [api.name for api in found.apis]
    print(f"  APIs         {apis_line(names, set(APIS).difference(names))}")
    print(f"  models       {listed(found.models, _MAX_SHOWN, _MAX_CHARS) or 'none listed'}")
    print(f"  key          {f'from {args.key_env}; clients must send it' if key else 'not required'}")
    print(f"  calls tools  {f'{model}: ' if model else ''}{calls}")
    if model:
        print(f"  profile      {_profile(model)}")
    if native:
        print("The server might not need toolsim. To also find calls that the server's parser misses, run:")
    else:
        print("Serve this backend with:")
    print(f"  {serve_line(found, native=native)}")
    return 0


def _profile(model: str) -> str:
    """Describe the profile that toolsim would use for a model, and the settings in this profile."""
    try:
        found = most_specific_profile(read_profiles("auto", os.environ), model)
    except ValueError as problem:
        return f"cannot be read: {problem}"
    if found is None:
        return f"{model}: none; to find the best settings for this model, run toolsim tune"
    values = ", ".join(f"{name}={value}" for name, value in found.fields) or "all settings at their defaults"
    return f"{model}: {found.name} ({values})"


def examine(url: str, key: str) -> ProbeResult:
    """Return the APIs and models at a base URL. If the URL does not end with ``v1``, ``/v1`` below it is also tried.

    Raises DiagnosisError if no API is found, or if the server is unreachable or rejects the key.
    """
    path = url.partition("://")[2].partition("/")[2]
    # Some servers list their models both with and without /v1 in the path, but provide the API only below /v1.
    places = [url] if path.endswith("v1") else [f"{url}/v1", url] if not path else [url, f"{url}/v1"]
    answers: list[tuple[str, Answer]] = []
    for place in places:
        answer = _ask(f"{place}/models", key)
        if answer.status == 200 and answer.body is not None:
            names = [string(model.get("id")) for model in mappings(answer.body.get("data"))]
            return ProbeResult(place, _apis(place, key), tuple(name for name in names if name))
        answers.append((place, answer))
    for place, answer in answers:
        if answer.status in (401, 403):
            raise DiagnosisError(_about_key(place, answer, key))
    place, answer = answers[0]
    has_page = any(other.is_page for _, other in answers)
    if not has_page and answer.status in (404, 405) and (found := _apis(place, key)):
        return ProbeResult(place, found, ())
    if has_page:
        raise DiagnosisError(f"{url} returned a web page instead of an API response: are the port and path correct?")
    raise DiagnosisError(f"{place}/models returned HTTP {answer.status}{_reason(answer)}")


def calls_by_itself(found: ProbeResult, model: str, key: str) -> str:
    """Ask a question that requires a tool, and describe whether the model calls the tool.

    The description starts with "yes", "no" or "unknown". Raises DiagnosisError if the server is unreachable or rejects
    the key.
    """
    api = found.apis[0]
    answer = _ask(found.url + api.path_suffix, key, _question(api, model), _TURN_SECONDS, api)
    if answer.status in (401, 403):
        raise DiagnosisError(_about_key(found.url, answer, key))
    if answer.status != 200 or answer.body is None:
        problem = printable(answer.problem, _MAX_CHARS)
        if "tool" in problem.lower():
            return f"no, the server rejects tools ({problem})"
        return f"unknown (HTTP {answer.status}{_reason(answer)})"
    calls, text = _contents(answer.body)
    if TOOL in calls:
        return "yes"
    if TOOL in text:
        return "no, the model writes the call as text, which toolsim recognizes"
    return "no, the model answers in prose"


def serve_line(found: ProbeResult, *, native: bool) -> str:
    """Return the command that serves the backend."""
    # If the server on this machine uses toolsim's default port, toolsim needs another port.
    backend = parse_url(found.url)
    is_taken = backend.port == DEFAULT_PORT and is_loopback(backend.host)
    port = " --port 9000" if is_taken else ""
    return f"toolsim serve {found.url}{port}{' --set toolsim_mode=native' if native else ''}"


def _ask(url: str, key: str, body: object = None, seconds: float = 10.0, api: Api = CHAT) -> Answer:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    change = api.own_backend_headers(headers)
    headers = {name: headers[name] for name in headers if name not in change.without} | dict(change.given)
    try:
        return ask(url, headers=headers, json_body=body, seconds=seconds)
    except Unreachable as problem:
        raise DiagnosisError(f"{url}: {problem}") from problem


def _apis(url: str, key: str) -> tuple[Api, ...]:
    """Return the APIs at a base URL, with the Chat Completions API first.

    Raises DiagnosisError if there are no APIs, or if a key is required.
    """
    found = []
    for api in (CHAT, RESPONSES, MESSAGES):
        answer = _ask(url + api.path_suffix, key, {}, api=api)
        if answer.status in (401, 403):
            raise DiagnosisError(_about_key(url, answer, key))
        if answer.status not in NO_PATH and not answer.is_page:
            found.append(api)
    if not found:
        raise DiagnosisError(f"{url} {NO_API}{_other_place(url, key)}")
    return tuple(found)


def _other_place(url: str, key: str) -> str:
    """Return a hint about the URL. If the correct base URL can be found on the same server, the hint contains it."""
    for place in other_places(url):
        if (answer := _ask(f"{place}/models", key)).status == 200 and answer.body is not None:
            return f"; did you mean {place}?"
    return ": is the path correct?"


def _about_key(url: str, answer: Answer, key: str) -> str:
    if key:
        return f"{url} rejects the key (HTTP {answer.status}{_reason(answer)})"
    return (
        f"{url} requires a key (HTTP {answer.status}): use --key-env NAME, where NAME is the environment "
        "variable that contains the key"
    )


def _reason(answer: Answer) -> str:
    return f": {printable(answer.problem, _MAX_CHARS)}" if answer.problem else ""


def _question(api: Api, model: str) -> dict[str, Any]:
    function = {"name": TOOL, "description": "The weather in a city.", "parameters": _SCHEMA}
    message = {"role": "user", "content": _QUESTION}
    if api is CHAT:
        tools = [{"type": "function", "function": function}]
        return {"model": model, "messages": [message], "tools": tools, "max_tokens": _MAX_TOKENS}
    if api is MESSAGES:
        tools = [{"name": TOOL, "description": function["description"], "input_schema": _SCHEMA}]
        return {"model": model, "messages": [message], "tools": tools, "max_tokens": _MAX_TOKENS}
    tools = [{"type": "function", **function}]
    return {"model": model, "input": [message], "tools": tools, "max_output_tokens": _MAX_TOKENS, "store": False}


def _contents(body: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return the names of the called tools, and the text, of an answer in any API's format."""
    calls, texts = [], []
    for choice in mappings(body.get("choices")):
        message = mapping(choice.get("message"))
        texts.append(string(message.get("content")))
        calls += [string(mapping(call.get("function")).get("name")) for call in mappings(message.get("tool_calls"))]
    for block in mappings(body.get("content")):
        if block.get("type") == "tool_use":
            calls.append(string(block.get("name")))
        texts.append(string(block.get("text")))
    for item in mappings(body.get("output")):
        if item.get("type") == "function_call":
            calls.append(string(item.get("name")))
        texts += [string(part.get("text")) for part in mappings(item.get("content"))]
    return calls, "".join(texts)
