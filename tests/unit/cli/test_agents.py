"""Tests for the settings with which agent programs are started: environment variables, flags, and their precedence."""

from __future__ import annotations

import json
import tomllib

import pytest
from toolsim.cli.agents import AGENTS, Endpoint, claude_line, named_model

HERE = Endpoint(origin="http://127.0.0.1:8080", key="k", model="m:3b", models=("m:3b", "n"), window=32_000)


def environment(name: str, *arguments: str, **inherited: str) -> dict[str, str]:
    return AGENTS[name].settings(HERE, arguments).environment(inherited)


def test_codex() -> None:
    """Codex is configured with flags whose values are TOML. It receives the API key only in an environment variable."""
    settings = AGENTS["codex"].settings(HERE, ())
    words = list(settings.arguments)
    assert set(words[::2]) == {"-c"}
    assert tomllib.loads("\n".join(words[1::2])) == {
        "model": "m:3b",
        "model_context_window": 32_000,
        "model_provider": "toolsim",
        "model_providers": {
            "toolsim": {
                "name": "toolsim",
                "base_url": "http://127.0.0.1:8080/v1",
                "wire_api": "responses",
                "env_key": "TOOLSIM_KEY",
            }
        },
    }
    assert settings.environment({"HOME": "/h"}) == {"HOME": "/h", "TOOLSIM_KEY": "k"}
    odd = Endpoint(origin="http://h", model="it's")
    assert tomllib.loads("\n".join(AGENTS["codex"].settings(odd, ()).arguments[1::2]))["model"] == "it's"


def test_claude() -> None:
    """Claude Code is configured with environment variables. The user's own API key and provider settings are removed,
    while other settings and a model flag are kept.
    """
    found = environment("claude", ANTHROPIC_API_KEY="secret", CLAUDE_CODE_USE_BEDROCK="1", ENABLE_TOOL_SEARCH="false")
    assert found == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
        "ANTHROPIC_AUTH_TOKEN": "k",
        "ANTHROPIC_MODEL": "m:3b",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "m:3b",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "m:3b",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "m:3b",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32000",
        "ENABLE_TOOL_SEARCH": "false",
    }
    assert environment("claude")["ENABLE_TOOL_SEARCH"] == "true"
    assert environment("claude", "--model", "other")["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "other"
    assert list(AGENTS["claude"].settings(HERE, ()).arguments) == []


def test_claude_line_can_be_typed_in_a_shell() -> None:
    """``claude_line`` returns a label and a command that can be typed in a shell."""
    assert claude_line("127.0.0.1", 9) == (
        "Claude Code:  ANTHROPIC_BASE_URL=http://127.0.0.1:9 ANTHROPIC_AUTH_TOKEN=none ENABLE_TOOL_SEARCH=true "
        "claude --model NAME"
    )


def test_opencode() -> None:
    """OpenCode's configuration lists all models of the backend. The chosen model is listed with its own context window,
    and each other model with a default value.
    """
    config = json.loads(environment("opencode")["OPENCODE_CONFIG_CONTENT"])
    assert (config["model"], config["small_model"]) == ("toolsim/m:3b", "toolsim/m:3b")
    provider = config["provider"]["toolsim"]
    assert provider["options"] == {"baseURL": "http://127.0.0.1:8080/v1", "apiKey": "k"}
    assert {name: model["limit"] for name, model in provider["models"].items()} == {
        "m:3b": {"context": 32_000, "output": 8_000},
        "n": {"context": 200_000, "output": 8_000},
    }


def test_qwen() -> None:
    """Qwen Code is started with a model flag unless the user has specified one."""
    assert environment("qwen", OPENAI_API_KEY="secret") == {
        "OPENAI_BASE_URL": "http://127.0.0.1:8080/v1",
        "OPENAI_API_KEY": "k",
        "OPENAI_MODEL": "m:3b",
    }
    assert AGENTS["qwen"].settings(HERE, ()).arguments == ("--auth-type", "openai", "-m", "m:3b")
    assert AGENTS["qwen"].settings(HERE, ("--model=o",)).arguments == ("--auth-type", "openai")


def test_copilot() -> None:
    """Copilot is configured with environment variables. Inherited variables that would override these settings are
    removed.
    """
    found = environment("copilot", COPILOT_PROVIDER_BEARER_TOKEN="t", COPILOT_PROVIDER_WIRE_API="responses")
    assert found == {
        "COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:8080/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "k",
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "24000",
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "8000",
        "COPILOT_MODEL": "m:3b",
        "COPILOT_OFFLINE": "true",
    }


@pytest.mark.parametrize("name", AGENTS)
def test_loopback_addresses_bypass_the_users_proxy(name: str) -> None:
    """If the user has configured a proxy, the loopback addresses are added to ``NO_PROXY``, so that requests reach
    toolsim directly.
    """
    found = environment(name, HTTPS_PROXY="http://proxy:3128", no_proxy="intern")
    assert found["NO_PROXY"] == found["no_proxy"] == "intern,127.0.0.1,localhost"
    assert "NO_PROXY" not in environment(name)


@pytest.mark.parametrize(
    ("arguments", "model"),
    [("", None), ("-m x", "x"), ("--model=x y", "x"), ("exec --model x", "x"), ("--model", ""), ("--models x", None)],
)
def test_model_flag_is_found_in_each_spelling(arguments: str, model: str | None) -> None:
    """``named_model`` finds the model in each spelling of the flag: ``-m x``, ``--model x`` and ``--model=x``."""
    assert named_model(arguments.split()) == model


@pytest.mark.parametrize("name", AGENTS)
def test_unknown_context_windows_are_omitted(name: str) -> None:
    """If the context window is unknown, the settings do not mention it, and the program uses its default."""
    settings = AGENTS[name].settings(Endpoint(origin="http://h"), ())
    shown = " ".join([*settings.arguments, *settings.environment({})])
    assert "window" not in shown.lower()
    assert "TOKENS" not in shown
