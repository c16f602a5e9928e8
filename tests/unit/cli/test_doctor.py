"""Tests for the output of ``toolsim doctor`` with servers of many kinds, each simulated by a few lines of code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.raw_backend import Answer, RawBackend
from toolsim.cli.main import main

MODELS = {"data": [{"id": f"model-{number}"} for number in range(8)]}
CALL = {"type": "function", "id": "c", "function": {"name": "get_weather", "arguments": "{}"}}
ITEM = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
TEXT = '<tool_call>{"name": "get_weather"}</tool_call>'
NOT_FOUND = (404, {"error": {"message": "not found"}})
Reply = tuple[int, object]


def chat(message: Mapping[str, Any]) -> Reply:
    return 200, {"choices": [{"message": message}]}


def server(**replies: Reply) -> Callable[[Answer], Any]:
    """Return the behavior of a server with the given endpoints. The server rejects the body ``{}`` with status 400."""

    async def behave(answer: Answer) -> None:
        endpoint = answer.asked.path.rpartition("/")[2]
        status, body = replies.get(endpoint, NOT_FOUND)
        if status == 200 and answer.asked.body == b"{}":
            status, body = 400, {"error": {"message": "no model"}}
        if isinstance(body, bytes):
            await answer.whole(body, status, Content_Type="text/html")
        else:
            await answer.whole(json.dumps(body).encode(), status, Content_Type="application/json")

    return behave


def examined(
    behave: Callable[[Answer], Any], capsys: pytest.CaptureFixture[str], *arguments: str, path: str = ""
) -> tuple[int, str, str]:
    """Run ``toolsim doctor``, and return its exit code, standard output and standard error. In both outputs, ``URL``
    replaces the server's URL.
    """
    with RawBackend() as backend:
        backend.play(behave)
        code = main(["doctor", backend.url + path, *arguments])
        printed = capsys.readouterr()
        return code, printed.out.replace(backend.url, "URL"), printed.err.replace(backend.url, "URL")


@pytest.mark.parametrize(
    ("replies", "lines"),
    [
        (
            {"models": (200, MODELS), "completions": chat({"content": TEXT})},
            """
            URL/v1 is up
              APIs         chat (no responses, no messages)
              models       model-0, model-1, model-2, model-3, model-4, model-5 and 2 more
              key          not required
              calls tools  model-0: no, the model writes the call as text, which toolsim recognizes
              profile      model-0: none; to find the best settings for this model, run toolsim tune
            Serve this backend with:
              toolsim serve URL/v1
            """,
        ),
        (
            {"models": (200, MODELS), "responses": (200, {"output": [ITEM]}), "completions": chat({"content": "18 °"})},
            """
            URL/v1 is up
              APIs         chat, responses (no messages)
              models       model-0, model-1, model-2, model-3, model-4, model-5 and 2 more
              key          not required
              calls tools  model-0: no, the model answers in prose
              profile      model-0: none; to find the best settings for this model, run toolsim tune
            Serve this backend with:
              toolsim serve URL/v1
            """,
        ),
        (
            {"models": (200, {"data": [{"id": "m"}]}), "completions": chat({"content": None, "tool_calls": [CALL]})},
            """
            URL/v1 is up
              APIs         chat (no responses, no messages)
              models       m
              key          not required
              calls tools  m: yes
              profile      m: none; to find the best settings for this model, run toolsim tune
            The server might not need toolsim. To also find calls that the server's parser misses, run:
              toolsim serve URL/v1 --set toolsim_mode=native
            """,
        ),
        (
            {"models": (200, {"data": []}), "responses": (200, {})},
            """
            URL/v1 is up
              APIs         responses (no messages, no chat)
              models       none listed
              key          not required
              calls tools  not tested, because no models are listed; try --model NAME
            Serve this backend with:
              toolsim serve URL/v1
            """,
        ),
    ],
    ids=["text", "both", "native", "no models"],
)
def test_server_is_described(replies: dict[str, Reply], lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The doctor's output describes the server, and ends with the command that uses it with toolsim."""
    code, out, _ = examined(server(**replies), capsys)
    expected = [line.removeprefix(" " * 12) for line in lines.strip("\n").splitlines()[:-1]]
    assert (code, out.splitlines()) == (0, expected)


@pytest.mark.parametrize(
    ("reply", "printed"),
    [
        (
            (400, {"error": {"message": "this model does not support tools"}}),
            "no, the server rejects tools (this model",
        ),
        ((500, {"error": {"message": "out of memory"}}), "unknown (HTTP 500: out of memory)"),
        ((200, {"output": [ITEM]}), "yes"),
        (
            (200, {"output": [{"type": "message", "content": [{"type": "output_text", "text": TEXT}]}]}),
            "no, the model writes",
        ),
        ((200, {"content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "get_weather"}]}), "yes"),
        ((200, {"output": "nonsense", "choices": [{"message": 5}, {}]}), "no, the model answers in prose"),
        ((200, {"choices": [{"message": {"tool_calls": [{"function": TEXT}, 5]}}]}), "no, the model answers in prose"),
    ],
)
def test_doctor_reports_whether_the_model_calls_tools(
    reply: Reply, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor reports whether the model calls tools, even if the server sends an error or malformed data."""
    code, out, _ = examined(server(models=(200, MODELS), responses=reply), capsys, "--model", "model-3")
    assert code == 0
    assert f"calls tools  model-3: {printed}" in out


@pytest.mark.parametrize(
    ("replies", "arguments", "line"),
    [
        (
            {"models": (401, {})},
            (),
            "URL/v1 requires a key (HTTP 401): use --key-env NAME, where NAME is the environment variable that "
            "contains the key",
        ),
        (
            {"models": (401, {"error": {"message": "Incorrect key"}})},
            ("--key-env", "TOOLSIM_TEST_KEY"),
            "URL/v1 rejects the key (HTTP 401: Incorrect key)",
        ),
        (
            {"models": (200, MODELS), "completions": (403, {})},
            (),
            "URL/v1 requires a key (HTTP 403): use --key-env NAME, where NAME is the environment variable that "
            "contains the key",
        ),
        (
            {"models": (200, b"<html>")},
            (),
            "URL returned a web page instead of an API response: are the port and path correct?",
        ),
        (
            {"models": (500, {"error": "broken"})},
            (),
            "URL/v1/models returned HTTP 500: broken",
        ),
        ({}, (), "URL/v1 has none of the endpoints /chat/completions, /responses, /messages: is the path correct?"),
        (
            {"models": (200, MODELS), "completions": (200, {})},
            ("--model", "model-9"),
            "URL/v1 does not list the model model-9; it lists model-0, model-1, model-2, model-3, model-4, model-5 and "
            "2 more",
        ),
    ],
    ids=["no key", "wrong key", "key for turns", "page", "broken", "nothing", "no such model"],
)
def test_server_problem_is_reported_in_one_line(
    replies: dict[str, Reply],
    arguments: tuple[str, ...],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A problem with the server causes a one-line error and exit code 1."""
    monkeypatch.setenv("TOOLSIM_TEST_KEY", "k")
    assert examined(server(**replies), capsys, *arguments) == (1, "", f"toolsim doctor: {line}\n")


@pytest.mark.parametrize("key", ["k\n", " k\r\n"])
def test_whitespace_around_a_key_is_removed(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whitespace around an API key is removed, for example the line break at the end of a file."""
    monkeypatch.setenv("TOOLSIM_TEST_KEY", key)
    with RawBackend() as backend:
        backend.play(server(models=(200, MODELS), completions=chat({})))
        assert main(["doctor", backend.url, "--key-env", "TOOLSIM_TEST_KEY"]) == 0
        assert {asked.header("authorization") for asked in backend.asked} == {"Bearer k"}


@pytest.mark.parametrize("key", ["k\nsecret", "k€secret"])
def test_invalid_key_is_refused_without_printing_it(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an API key contains invalid characters, it is rejected, and the error does not show the key."""
    monkeypatch.setenv("TOOLSIM_TEST_KEY", key)
    assert main(["doctor", "http://127.0.0.1:1", "--key-env", "TOOLSIM_TEST_KEY"]) == 2
    assert (
        capsys.readouterr().err
        == "toolsim: --key-env: TOOLSIM_TEST_KEY contains characters that are invalid in a key\n"
    )


def test_path_is_tried_with_and_without_v1(capsys: pytest.CaptureFixture[str]) -> None:
    """The doctor tries the path both with and without ``/v1``, and suggests the URL that works."""

    async def behave(answer: Answer) -> None:
        there = answer.asked.path.startswith("/base/v1/")
        await server(**({"models": (200, {"data": []}), "completions": chat({})} if there else {}))(answer)

    code, out, _ = examined(behave, capsys, path="/base")
    assert code == 0
    assert "toolsim serve URL/base/v1\n" in out


def test_server_without_a_model_list(capsys: pytest.CaptureFixture[str]) -> None:
    """If a server does not list its models, the doctor still finds the APIs, and ``--model`` names the model to
    test.
    """
    code, out, _ = examined(server(completions=chat({"content": "x"})), capsys, "--model", "m")
    assert code == 0
    assert "calls tools  m: no, the model answers in prose" in out


def test_profile_of_the_model_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor shows the profile that applies to the model, with its options. If the profile is invalid, the doctor
    reports the mistake and continues.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "toolsim" / "profiles" / "mine.toml"
    file.parent.mkdir(parents=True)
    file.write_text('models = ["m"]\n[options]\ntoolsim_mode = "native"\n')
    replies = {"models": (200, {"data": [{"id": "m"}]}), "completions": chat({"content": "18 °"})}
    assert "  profile      m: mine (mode=native)\n" in examined(server(**replies), capsys)[1]
    file.write_text('models = ["m"]\n[options]\n')
    assert "  profile      m: mine (all settings at their defaults)\n" in examined(server(**replies), capsys)[1]
    file.write_text("models = 1\n")
    code, out, _ = examined(server(**replies), capsys)
    assert (code, f"  profile      cannot be read: {file}:1: models: got 1" in out) == (0, True)
