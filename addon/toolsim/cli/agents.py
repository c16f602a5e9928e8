"""Configures agent programs to use toolsim, with environment variables and flags, but never with files.

For each program, a function takes an endpoint and the user's arguments, and returns the settings. The user's arguments
follow the arguments in the settings, and thus override them. If the user's arguments name a model, that model is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolsim.proxy.address import url_host

_DEFAULT_WINDOW = 200_000
_MAX_OUTPUT_TOKENS = 8_000
_MODEL_FLAG = re.compile(r"(?:-m|--model)(?:=(.*))?", re.DOTALL)
_CODEX_KEY = "TOOLSIM_KEY"
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address and the models of a running toolsim, as a client sees them."""

    origin: str
    """The URL without a path, such as ``http://127.0.0.1:8080``."""
    key: str = "none"
    model: str = "any"
    """The model to use."""
    models: tuple[str, ...] = ()
    """All models that the backend lists."""
    window: int | None = None
    """The context window of ``model`` in tokens, or None if it is unknown."""

    @property
    def base_url(self) -> str:
        """The base URL of the OpenAI APIs."""
        return f"{self.origin}/v1"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings for one run of an agent program."""

    arguments: Sequence[str] = ()
    """Arguments to insert before the user's arguments."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables to set, or to unset if the value is None."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set unless the user's environment contains them."""

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for the program, based on the ``inherited`` environment."""
        found = {**self.defaults, **inherited}
        if any(name.lower() in _PROXY_VARIABLES for name in inherited):
            # Without NO_PROXY, the program would send its requests to 127.0.0.1 through the user's HTTP proxy.
            direct = [*filter(None, [inherited.get("NO_PROXY") or inherited.get("no_proxy")]), "127.0.0.1", "localhost"]
            found |= dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(direct))
        for name, value in self.variables.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
        return found


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent program."""

    command: str
    title: str
    package: str
    """The name of the program's npm package."""
    settings: Callable[[Endpoint, Sequence[str]], AgentSettings]
    """A function that computes the settings from an endpoint and the user's arguments."""

    @property
    def installation(self) -> str:
        """The command that installs the program."""
        return f"npm install -g {self.package}"


def named_model(arguments: Sequence[str]) -> str | None:
    """Return the model that the user's arguments specify, or None if they do not specify one."""
    for position, word in enumerate(arguments):
        if found := _MODEL_FLAG.fullmatch(word):
            following = arguments[position + 1 : position + 2]
            return found[1] if found[1] is not None else "".join(following)
    return None


def _claude(endpoint: Endpoint, arguments: Sequence[str]) -> AgentSettings:
    variables: dict[str, str | None] = {
        "ANTHROPIC_BASE_URL": endpoint.origin,
        "ANTHROPIC_AUTH_TOKEN": endpoint.key,
        # The backend must not receive the user's Anthropic key. Claude Code must not send requests to Bedrock, Foundry
        # or Vertex.
        "ANTHROPIC_API_KEY": None,
        "CLAUDE_CODE_USE_BEDROCK": None,
        "CLAUDE_CODE_USE_FOUNDRY": None,
        "CLAUDE_CODE_USE_VERTEX": None,
    }
    model = named_model(arguments) or endpoint.model
    variables["ANTHROPIC_MODEL"] = model
    # Claude Code's subagents use short model names such as "haiku", which would otherwise mean Anthropic's models.
    variables |= {f"ANTHROPIC_DEFAULT_{name}_MODEL": model for name in ("HAIKU", "OPUS", "SONNET")}
    # Some versions of Claude Code disable tool search for any server other than Anthropic's.
    defaults = {"ENABLE_TOOL_SEARCH": "true"}
    if endpoint.window is not None:
        defaults["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(endpoint.window)
    return AgentSettings(variables=variables, defaults=defaults)


def claude_line(host: str, port: int) -> str:
    """Return a line that shows how to start Claude Code with toolsim at this address as its server."""
    settings = _claude(Endpoint(origin=f"http://{url_host(host)}:{port}"), ())
    names = ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN")
    variables = {**{name: settings.variables[name] for name in names}, **settings.defaults}
    return f"Claude Code:  {' '.join(f'{name}={value}' for name, value in variables.items())} claude --model NAME"


def _codex(endpoint: Endpoint, arguments: Sequence[str]) -> AgentSettings:
    provider = {"name": "toolsim", "base_url": endpoint.base_url, "wire_api": "responses", "env_key": _CODEX_KEY}
    values = {f"model_providers.toolsim.{name}": value for name, value in provider.items()}
    values |= {"model_provider": "toolsim", "model": endpoint.model}
    words = [f"{name}={_toml(value)}" for name, value in values.items()]
    if endpoint.window is not None:
        words.append(f"model_context_window={endpoint.window}")
    return AgentSettings([word for each in words for word in ("-c", each)], {_CODEX_KEY: endpoint.key})


def _toml(text: str) -> str:
    """Return text as a TOML string.

    Single quotes are used if possible, because they pass through ``.cmd`` files unchanged.
    """
    return json.dumps(text) if "'" in text or not text.isprintable() else f"'{text}'"


def _opencode(endpoint: Endpoint, arguments: Sequence[str]) -> AgentSettings:
    def model(name: str) -> dict[str, Any]:
        window = endpoint.window if name == endpoint.model and endpoint.window else _DEFAULT_WINDOW
        limit = {"context": window, "output": min(_MAX_OUTPUT_TOKENS, window // 4)}
        return {"name": name, "tool_call": True, "limit": limit}

    named = f"toolsim/{endpoint.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "toolsim",
        "options": {"baseURL": endpoint.base_url, "apiKey": endpoint.key},
        "models": {name: model(name) for name in (endpoint.model, *endpoint.models)},
    }
    config = {"model": named, "small_model": named, "provider": {"toolsim": provider}}
    return AgentSettings(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _qwen(endpoint: Endpoint, arguments: Sequence[str]) -> AgentSettings:
    model = () if named_model(arguments) is not None else ("-m", endpoint.model)
    variables = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.key, "OPENAI_MODEL": endpoint.model}
    return AgentSettings(("--auth-type", "openai", *model), variables)


def _copilot(endpoint: Endpoint, arguments: Sequence[str]) -> AgentSettings:
    provider: dict[str, str | None] = {
        "BASE_URL": endpoint.base_url,
        "TYPE": "openai",
        "API_KEY": endpoint.key,
        # These variables are unset, because they would take precedence over the settings for toolsim.
        "API_KEY_COMMAND": None,
        "BEARER_TOKEN": None,
        "MODEL_ID": None,
        "WIRE_MODEL": None,
    }
    defaults = {}
    if endpoint.window is not None:
        output = min(_MAX_OUTPUT_TOKENS, endpoint.window // 4)
        limits = {"MAX_PROMPT_TOKENS": endpoint.window - output, "MAX_OUTPUT_TOKENS": output}
        defaults = {f"COPILOT_PROVIDER_{name}": str(value) for name, value in limits.items()}
    variables = {f"COPILOT_PROVIDER_{name}": value for name, value in provider.items()}
    # In offline mode, Copilot requires no login, and contacts no other server.
    more = {"COPILOT_MODEL": endpoint.model, "COPILOT_OFFLINE": "true"}
    return AgentSettings(variables=variables | more, defaults=defaults)


AGENTS = {
    agent.command: agent
    for agent in (
        Agent("codex", "Codex CLI", "@openai/codex", _codex),
        Agent("claude", "Claude Code", "@anthropic-ai/claude-code", _claude),
        Agent("opencode", "opencode", "opencode-ai", _opencode),
        Agent("qwen", "Qwen Code", "@qwen-code/qwen-code", _qwen),
        Agent("copilot", "Copilot CLI", "@github/copilot", _copilot),
    )
}
"""The agent programs, by the commands that start them."""
