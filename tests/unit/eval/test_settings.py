"""Tests for converting flags to the settings of an evaluation."""

from __future__ import annotations

from argparse import Namespace

import pytest
from support.each import each
from toolsim.command_line import UsageError
from toolsim.eval.flags import parser
from toolsim.eval.settings import (
    RESERVED,
    Setup,
    api_key,
    base_url,
    check_tool_choice,
    default_models,
    notices,
    scenario_settings,
    setup,
)

LIVE = ("--base-url", "http://127.0.0.1:1/v1", "--models", "a,b")


def args(*arguments: str, **environment: str) -> Namespace:
    return parser(environment).parse_args(arguments)


def live(*arguments: str) -> Setup:
    return setup(args(*LIVE, *arguments), offline=False)


def test_live_evaluation_defaults() -> None:
    """By default, a live evaluation uses the ``toolsim`` method, the default profile, and the chat API without
    streaming.
    """
    asked = live()
    assert [(cell.model, cell.profile, cell.method, cell.api, cell.stream) for cell, _ in asked.cells] == [
        ("a", "default", "toolsim", "chat", False),
        ("b", "default", "toolsim", "chat", False),
    ]
    assert len(asked.cases) == 5


def test_same_seed_selects_the_same_questions() -> None:
    setups = [live("--suite", "questions", "--sample", "6", "--seed", seed) for seed in ("1", "1", "2")]
    asked = [[case.id for case in setup.cases] for setup in setups]
    assert len(asked[0]) == 6
    assert asked[0] == asked[1] != asked[2]


def test_offline_evaluation_uses_both_apis() -> None:
    """By default, an offline evaluation uses both APIs, with and without streaming, because the scripted provider costs
    nothing.
    """
    asked = setup(args("--models", "scripted", "--suite", "scenarios"), offline=True)
    assert {(cell.api, cell.stream) for cell, _ in asked.cells} == {
        ("chat", False), ("chat", True), ("responses", False), ("responses", True)
    }  # fmt: skip


def test_listed_values_form_a_matrix_for_toolsim() -> None:
    """If options have several values, each combination becomes a separate setting of the ``toolsim`` method. Other
    methods have no settings.
    """
    asked = live(
        "--method",
        "toolsim,native",
        "--set",
        "toolsim_history=bracketed,tagged",
        "--set",
        "toolsim_repair=off,safe",
        "--models",
        "m",
    )
    assert [cell.setting for cell, _ in asked.cells] == [
        "toolsim_history=bracketed toolsim_repair=off",
        "toolsim_history=bracketed toolsim_repair=safe",
        "toolsim_history=tagged toolsim_repair=off",
        "toolsim_history=tagged toolsim_repair=safe",
        "",
    ]


def test_fallback_matrix_applies_to_native() -> None:
    """The content-tag fallback is a setting of the ``native`` method. ``--fallback-matrix`` compares it with the
    default.
    """

    def settings(*arguments: str) -> list[str]:
        return [cell.setting for cell, _ in live("--method", "native", "--models", "m", *arguments).cells]

    assert settings() == [""]
    assert settings("--content-tag-fallback", "yes") == ["content_tag_fallback"]
    assert settings("--fallback-matrix", "yes") == ["", "content_tag_fallback"]


def test_precedence_of_sampling_options() -> None:
    """Sampling options take precedence in this order: overrides, flags, the profile, and ``--llm-options``."""
    asked = live(
        "--llm-options", '{"temperature": 9, "seed": 1}', "--top-p", "0.5", "--request-overrides", '{"top_p": 0.1}',
        "--route", "fallback", "--transforms", "middle-out", "--provider-only", "x,y", "--provider-ignore", "z",
    )  # fmt: skip
    assert asked.cells[0][1] == {
        "temperature": 0.0, "seed": 1, "top_p": 0.1, "route": "fallback", "transforms": ["middle-out"],
        "provider": {"only": ["x", "y"], "ignore": ["z"]},
    }  # fmt: skip


def test_profiles_apply_only_to_their_models() -> None:
    """A profile is used only for models to which it applies, unless ``--enforce-applicability`` is off."""

    def profiles(*arguments: str) -> list[tuple[str, str]]:
        asked = live("--models", "qwen3:4b,other", "--profiles", "recommended,tool_calling", *arguments)
        return [(cell.model, cell.profile) for cell, _ in asked.cells]

    assert profiles() == [("qwen3:4b", "recommended"), ("qwen3:4b", "tool_calling")]
    assert len(profiles("--enforce-applicability", "no")) == 4


@each(
    "arguments",
    [
        ("--method", "magic"),
        ("--api", "soap"),
        ("--suite", "nothing"),
        ("--scenarios", "nothing"),
        ("--models", "m,!m"),
        ("--profiles", "nothing"),
        ("--profiles", "recommended"),
        ("--set", "toolsim_repair"),
        ("--set", "toolsim_tool_allowlist=!a b"),
        ("--set", "toolsim_repiar=off"),
        ("--set", "toolsim_repair=off,perhaps"),
        ("--llm-options", "[]"),
        ("--llm-options", "{"),
        *[("--request-overrides", f'{{"{name}": 1}}') for name in sorted(RESERVED)],
    ],
)
def test_senseless_flags_are_refused(arguments: tuple[str, ...]) -> None:
    """Invalid and contradictory flags are refused before any request is sent."""
    with pytest.raises(UsageError):
        live(*arguments)


def test_base_url_is_resolved() -> None:
    """The base URL is ``--base-url`` or, if OpenRouter's key is set, OpenRouter's URL. With ``--offline``, environment
    variables are ignored.
    """
    assert base_url(args(), {}) == ""
    assert base_url(args(), {"OPENROUTER_API_KEY": "k"}) == "https://openrouter.ai/api/v1"
    assert base_url(args("--offline"), {"OPENROUTER_API_KEY": "k"}) == ""
    assert base_url(args("--base-url", "http://a/v1/"), {"OPENROUTER_API_PREFIX": "/x"}) == "http://a/v1"
    environment = {"OPENROUTER_BASE_URL": "https://openrouter.ai", "OPENROUTER_API_PREFIX": "/api/v1"}
    assert base_url(args(**environment), environment) == "https://openrouter.ai/api/v1"
    assert base_url(args("--offline", **environment), environment) == ""


@pytest.mark.parametrize("url", ["ftp://a", "a:1", "http://u:secret@a/v1", "http://a/v1?key=secret", "http://"])
def test_base_url_with_secrets_is_refused(url: str) -> None:
    """A base URL is refused if it is invalid, or if it contains credentials or a query. The error shows neither the
    credentials nor the query.
    """
    with pytest.raises(UsageError) as refused:
        base_url(args("--base-url", url), {})
    assert "secret" not in str(refused.value)


def test_keys_are_sent_only_to_their_servers() -> None:
    """OPENROUTER_API_KEY is sent only to OpenRouter and to OPENROUTER_BASE_URL. For other servers, ``--key-env`` names
    the variable that contains the key.
    """
    key = {"OPENROUTER_API_KEY": "sk-or"}
    own = {**key, "OPENROUTER_BASE_URL": "http://mine/v1"}

    def sent(url: str, environment: dict[str, str], *arguments: str) -> str:
        return api_key(args("--base-url", url, *arguments), url, environment)

    assert sent("https://openrouter.ai/api/v1", key) == "sk-or"
    assert sent("http://mine/v1", own) == "sk-or"
    assert sent("http://127.0.0.1:11434/v1", own) == ""
    assert sent("https://notopenrouter.ai/v1", key) == ""
    assert sent("https://openrouter.ai.example/v1", key) == ""
    assert sent("http://a/v1", {**key, "MINE": "k"}, "--key-env", "MINE") == "k"
    with pytest.raises(UsageError, match="MINE"):
        sent("http://a/v1", key, "--key-env", "MINE")


def test_only_model_of_a_server_is_used() -> None:
    """Without ``--models``, the only model on a server is used. If the server lists several models, the error lists
    them.
    """
    assert default_models("http://a/v1", ["qwen"]) == "qwen"
    assert default_models("https://openrouter.ai/api/v1", ["x", "y"]) == "stable"
    with pytest.raises(UsageError, match="x, y"):
        default_models("http://a/v1", ["x", "y"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tool-choice", "state_get"),
        ("--request-overrides", '{"tool_choice": "state_get"}'),
        ("--request-overrides", '{"tool_choice": {"type": "function", "function": {"name": "state_get"}}}'),
        ("--llm-options", '{"tool_choice": {"type": "function", "name": "state_get"}}'),
    ],
)
def test_tool_choice_can_be_set(arguments: tuple[str, ...]) -> None:
    """A tool choice can be set with a flag, or with JSON options in the format of either API."""
    assert live(*arguments).cells[0][1]["tool_choice"] == "state_get"
    with pytest.raises(UsageError, match="tool_choice"):
        live("--request-overrides", '{"tool_choice": 1}')


@pytest.mark.parametrize(
    ("suite", "choice", "offered"),
    [
        ("scenarios", "facts_propose", "the cases offer state_get, state_patch"),
        ("questions", "state_get", "get_weather"),
        ("which_output", "state_get", "get_weather"),
    ],
)
async def test_tool_choice_without_a_case_is_refused(suite: str, choice: str, offered: str) -> None:
    """If no selected case offers the chosen tool, the tool choice is refused before any question is sent. The error
    lists the available tools.
    """
    chosen = ("--suite", suite, "--tool-choice")
    with pytest.raises(UsageError, match=f"no selected case offers a tool named {choice}; .*{offered}"):
        await check_tool_choice(live(*chosen, choice))
    for known in ("auto", "required", "none", offered.split()[-1]):
        await check_tool_choice(live(*chosen, known))
    # It is sufficient if one of the suites offers the tool.
    await check_tool_choice(live("--suite", f"{suite},scenarios", "--tool-choice", "state_get"))


def test_tool_profiles() -> None:
    """In ``--allowlist``, the words "read" and "all" stand for groups of tools. They can be combined with tool
    names.
    """
    assert scenario_settings(args()).allowed == ("state_get", "state_patch")
    assert scenario_settings(args("--allowlist", "read,facts_propose")).allowed == ("state_get", "facts_propose")
    assert scenario_settings(args("--allowlist", "all")).allowed is None


def test_models_missing_at_the_server_are_left_out() -> None:
    """If a word such as ``google`` selects several models, the models that the server does not list are omitted."""
    asked = setup(args(*LIVE[:2], "--models", "google,mine"), offline=False, served=["google/gemini-2.5-pro"])
    assert [cell.model for cell, _ in asked.cells] == ["google/gemini-2.5-pro", "mine"]


def test_settings_without_effect_get_a_notice() -> None:
    """A setting without effect causes a notice, as does enforcing calls for a model whose calls are unreliable."""
    for arguments, notice in (
        (["--fallback-matrix", "true", "--models", "m"], "--fallback-matrix has no effect without --method native"),
        (
            ["--tool-use-mode", "enforced", "--models", "qwen-0.5b"],
            "the catalog marks tool calls as unreliable for qwen-0.5b",
        ),
    ):
        args = parser({}).parse_args(arguments)
        [line] = notices(args, setup(args, offline=False))
        assert notice in line
    for arguments in (
        ["--fallback-matrix", "true", "--method", "toolsim,native", "--models", "m"],
        ["--tool-use-mode", "enforced", "--models", "qwen3:4b"],
    ):
        args = parser({}).parse_args(arguments)
        assert notices(args, setup(args, offline=False)) == []


def test_all_missing_models_are_named() -> None:
    """If the server lists none of the selected models, the error names them."""
    with pytest.raises(UsageError, match=r"no model is selected: the server does not list google/gemini-2\.5-flash, "):
        setup(args("--models", "google"), offline=False, served=["mine"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--allowlist", "read,state_pat"), "--allowlist: expected .*state_patch.*, got state_pat$"),
        (("--method", ","), "--method: expected toolsim, native, prompt, got nothing"),
        (("--allowlist", ""), "--allowlist: .* got nothing"),
    ],
)
def test_list_with_unknown_words_is_refused(arguments: tuple[str, ...], says: str) -> None:
    """A flag whose value is a list is refused if the list is empty or contains an unknown word."""
    with pytest.raises(UsageError, match=says):
        live(*arguments)
