"""Tests for the command-line flags and environment variables of the evaluation."""

from __future__ import annotations

import pytest
from support.each import each
from toolsim.eval.flags import FLAGS, parser, words

# Environment variables of toolsim's predecessor that are now flags. API_KEY and API_PREFIX are not included, because
# they are read together with the URL.
PREDECESSOR = {
    "BASE_URL", "TRIALS", "SCENARIOS", "MODEL_FILTER", "JOBS", "FALLBACK_MATRIX",
    "ENABLE_CONTENT_TAG_TOOL_CALL_FALLBACK", "SAMPLING_PROFILE_FILTER", "SAMPLING_PROFILE_ENFORCE_APPLICABILITY",
    "TEMPERATURE", "TOP_P", "TOP_K", "MIN_P", "LLM_OPTIONS_DEFAULTS_JSON", "TOOL_USE_MODE", "TOOL_FAILURE_POLICY",
    "TOOL_CALLING_FALLBACK_RETRY_COUNT", "TOOL_ALLOWLIST", "FIX_EMPTY_FINAL", "CLIENT_TIMEOUT", "OPEN_TIMEOUT",
    "READ_TIMEOUT", "REQUEST_OVERRIDES_JSON", "ROUTE", "TRANSFORMS", "PROVIDER_ONLY", "PROVIDER_ORDER",
    "PROVIDER_IGNORE",
}  # fmt: skip


def test_predecessors_variables_are_read() -> None:
    """The evaluation's flags read exactly the environment variables that toolsim's predecessor read."""
    assert {flag.env for flag in FLAGS if flag.env} == PREDECESSOR


@each("flag", [flag for flag in FLAGS if flag.env], ids=lambda flag: flag.env)
def test_variable_sets_the_default(flag: object) -> None:
    """An environment variable sets the default of the corresponding flag. The flag on the command line overrides it."""
    from toolsim.eval.flags import Flag, boolean

    assert isinstance(flag, Flag)
    first, second = flag.choices[-2:] if flag.choices else ("false", "true") if flag.type is boolean else ("7", "8")
    environment = {f"OPENROUTER_{flag.env}": first}
    assert getattr(parser(environment).parse_args([]), flag.field) == flag.type(first)
    assert getattr(parser(environment).parse_args([f"--{flag.name}", second]), flag.field) == flag.type(second)
    assert getattr(parser({f"OPENROUTER_{flag.env}": ""}).parse_args([]), flag.field) == flag.default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRIALS", "many"),
        ("TRIALS", "0"),
        ("TOOL_USE_MODE", "sometimes"),
        ("FIX_EMPTY_FINAL", "perhaps"),
        ("TOP_K", "1.5"),
        ("CLIENT_TIMEOUT", "-1"),
        ("CLIENT_TIMEOUT", "nan"),
    ],
)
def test_invalid_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"OPENROUTER_{name}"):
        parser({f"OPENROUTER_{name}": value})


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("sample", "0", "a whole number above zero"),
        ("jobs", "x", "a whole number above zero"),
        ("top-k", "1.5", "a whole number"),
        ("min-p", "little", "a number"),
        ("client-timeout", "-1", "seconds, or 0 for no limit"),
        ("fix-empty-final", "perhaps", "true or false"),
    ],
)
def test_invalid_value_is_reported_with_expectation(
    flag: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error for an invalid flag quotes the value and states the expected format."""
    with pytest.raises(SystemExit):
        parser({}).parse_args([f"--{flag}", value])
    assert capsys.readouterr().err == f"toolsim eval: --{flag}: got {value!r}, expected {expected}\n"


def test_zero_timeout_means_no_limit() -> None:
    assert parser({"OPENROUTER_CLIENT_TIMEOUT": "0"}).parse_args(["--read-timeout", "0"]).read_timeout == 0
    assert parser({"OPENROUTER_CLIENT_TIMEOUT": "0"}).parse_args([]).client_timeout == 0


def test_verbosity() -> None:
    """``VERBOSE`` sets the verbosity to 0, 1 or 2, and each ``-v`` adds one. ``-q`` makes the output quiet."""
    assert parser({"VERBOSE": "2"}).parse_args([]).verbose == 2
    assert parser({"VERBOSE": "loud"}).parse_args(["-vv"]).verbose == 2
    assert parser({}).parse_args(["-q"]).quiet


def test_help_names_every_flag_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser({}).parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for flag in FLAGS:
        assert f"--{flag.name}" in text
        assert not flag.env or flag.env in text
    for command in ("models", "compare", "join"):
        assert f"toolsim eval {command}" in text


def test_lists_are_split_at_commas() -> None:
    """A list is split at commas. Whitespace and empty items are ignored."""
    assert words(" a, b,,c ") == ["a", "b", "c"]
    assert words("") == []
