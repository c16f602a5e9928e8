"""Tests for ``toolsim tune``, from the command to the proxy that uses the profile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.line import Line
from support.mitmdump import Mitmdump
from support.recording import context, recording
from support.scripted_model import NAME, ScriptedModel, Seen
from toolsim.eval.learn.own_questions import own_questions
from toolsim.eval.learn.profile_file import file_name
from toolsim.eval.learn.question_bank import Question, questions

pytestmark = [pytest.mark.slow, pytest.mark.ci]

KEY = "sk-secret-0123456789"
EXTENDED = pytest.mark.extended


class Learner:
    """Runs ``toolsim tune`` with separate folders for configuration and state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profile = folder / "config" / "toolsim" / "profiles" / file_name(NAME)
        self.environment = {
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "TMPDIR": str(folder / "tmp"),
            "THE_KEY": KEY,
        }
        (folder / "tmp").mkdir()

    def start(self, model: ScriptedModel, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "toolsim", "tune", model.url, "--key-env", "THE_KEY", *words]
        return subprocess.Popen(
            command,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, model: ScriptedModel, *words: str) -> tuple[int, str]:
        """Run the command; return its exit code and output."""
        process = self.start(model, *words)
        out, errors = process.communicate(timeout=300)
        return process.returncode, out + errors

    def learned(self) -> dict[str, Any]:
        return tomllib.loads(self.profile.read_text())

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Learner]:
    made = Learner(tmp_path)
    yield made
    assert not any(KEY.encode() in file.read_bytes() for file in made.files())
    assert list((tmp_path / "tmp").iterdir()) == [], "something was left behind"


@pytest.mark.extended
def test_learned_profile_is_used_by_the_proxy(learner: Learner) -> None:
    """If a model calls tools for greetings, its profile enables second opinions, and the proxy uses the profile."""
    with ScriptedModel(needless=True, engine="llama.cpp") as model:
        code, printed = learner.run(model)
        assert code == 0, printed
        assert "requests with about" in printed
        profile = learner.learned()
        assert profile["options"] == {"toolsim_second_opinion": "on"}
        learned = profile["tuned"]
        assert (profile["models"], learned["engine"], learned["complete"]) == ([NAME], "llama.cpp", True)
        # The profile states exactly how many requests the backend received, and how many tokens it counted.
        assert learned["requests"] == model.requests
        assert (learned["input_tokens"], learned["output_tokens"]) == (100 * model.requests, 10 * model.requests)
        assert model.keys == {f"Bearer {KEY}", ""} or model.keys == {f"Bearer {KEY}"}
        preferred = [choice for choice in learned["choices"] if choice["outcome"] == "preferred"]
        assert [(choice["what"], choice["lost"]) for choice in preferred] == [("second opinion", 0)]
        # No stored answers remain, because a completed session is never resumed.
        assert list((learner.folder / "state").rglob("*.jsonl")) == []

        greeting = next(question for question in questions() if question.kind == "none")
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in greeting.tools
        ]
        tools = [{"type": "function", "function": function} for function in functions]
        body = {"model": NAME, "messages": list(greeting.messages), "tools": tools}
        answers = []
        for profiles in ("auto", "off"):
            address = model.url.removesuffix("/v1")
            with (
                Mitmdump(address, environment=learner.environment, toolsim_profiles=profiles) as proxy,
                Line(proxy.url) as line,
            ):
                answers.append(line.post("/v1/chat/completions", body))
    messages = [json.loads(answer.body)["choices"][0]["message"] for answer in answers]
    assert [bool(message.get("tool_calls")) for message in messages] == [False, True]
    assert [answer.headers.get("x-toolsim-profile") for answer in answers] == [
        file_name(NAME).removesuffix(".toml"),
        None,
    ]


@pytest.mark.extended
def test_backend_failure_leaves_partial_profile(learner: Learner) -> None:
    """If the backend fails during a session, a partial profile contains the decisions so far, and the next session
    continues.
    """

    def fault(number: int) -> tuple[int, dict[str, str]] | None:
        return (500, {}) if number > 70 else None

    with ScriptedModel(lambda seen, question: not question.calls or seen.form == "hermes", fault=fault) as model:
        code, printed = learner.run(model)
        assert code == 1, printed
        assert "ended early: the backend did not answer 3 consecutive questions" in printed
        profile = learner.learned()
        assert profile["options"] == {"toolsim_manifest": "hermes"}
        assert profile["tuned"]["complete"] is False
        assert all(choice["lost"] + choice["won"] > 0 for choice in profile["tuned"]["choices"])
        code, printed = learner.run(model)
        assert code == 1, printed
        assert "continuing an earlier run, which has 70 answers" in printed
        assert learner.learned()["options"] == {"toolsim_manifest": "hermes"}


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (401, {}, "the backend rejects the key (HTTP 401"),
        pytest.param(
            429, {"retry-after": "3600"}, "the backend is still overloaded or rate-limited (HTTP 429", marks=EXTENDED
        ),
        pytest.param(500, {}, "the backend did not answer 3 consecutive questions", marks=EXTENDED),
    ],
)
def test_no_profile_without_answers(learner: Learner, status: int, headers: dict[str, str], says: str) -> None:
    """If no question is answered, no profile is written, and the reason is printed."""
    with ScriptedModel(fault=lambda _: (status, headers)) as model:
        code, printed = learner.run(model)
    assert code == 1
    assert says in printed
    assert "no decision was made, so no profile was written" in printed
    assert not learner.profile.exists()


@pytest.mark.extended
def test_no_profile_if_time_limit_is_reached(learner: Learner) -> None:
    """If the time limit is reached before the first decision, no profile is written."""
    with ScriptedModel(seconds=1.0) as model:
        code, printed = learner.run(model, "--minutes", "0.05")
    assert code == 1
    assert "ended early: the time limit was reached" in printed
    assert not learner.profile.exists()


@pytest.mark.extended
def test_interrupt_and_concurrent_session(learner: Learner) -> None:
    """A second tuning session for the same model is refused. Ctrl-C ends a session without losing any answers."""

    def slow_later(number: int) -> None:
        time.sleep(0.5 if number > 12 else 0)

    with ScriptedModel(fault=slow_later) as model:
        process = learner.start(model)
        assert process.stderr is not None
        assert "form" in process.stderr.readline()
        code, printed = learner.run(model)
        assert code == 2
        assert "another process is tuning this model" in printed
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 130, out + errors
        assert "ended early: interrupted; run the same command again to continue" in errors
        (file,) = (learner.folder / "state").rglob("*.jsonl")
        assert sum('"right"' in line for line in file.read_text().splitlines()) >= 6


def recorded(folder: Path, count: int) -> Path:
    """Create recordings of turns in which a model answers built-in questions correctly; return their folder."""
    turns = folder / "recordings"
    turns.mkdir()
    asked = [question for question in questions() if question.kind in ("one", "two", "none")]
    with context():
        for question in sorted(asked, key=lambda question: question.id[-2:])[:count]:
            tools = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in question.tools
            ]
            calls = [
                json.dumps(
                    {"name": made["name"], "arguments": {key: given[0] for key, given in made["arguments"].items()}}
                )
                for made in question.calls
            ]
            text = "\n".join(f"<tool_call>{written}</tool_call>" for written in calls) or "Hello."
            recording(turns, messages=list(question.messages), tools=tools, text=text)
    return turns


@pytest.mark.extended
def test_recorded_turns_choose_and_confirm(learner: Learner) -> None:
    """Half of the recorded turns are used to choose the setting, and the other half to confirm it.

    The profile contains no text from the turns.
    """
    turns = recorded(learner.folder, 60)
    with ScriptedModel(lambda seen, question: not question.calls or seen.form == "hermes") as model:
        code, printed = learner.run(model, "--from", str(turns), "--only", "form")
    assert code == 0, printed
    assert "the gain of manifest=hermes is confirmed by the other half of the turns" in printed
    assert "about -" not in printed  # The remaining time is never negative.
    profile = learner.learned()
    assert profile["options"] == {"toolsim_manifest": "hermes"}
    tuned = profile["tuned"]
    assert tuned["recorded_turns"] == 60
    assert (tuned["chosen_by"], tuned["confirmed_by"]) == (30, 30)
    assert tuned["confirming_won"] >= 7
    assert tuned["confirming_lost"] == 0
    words = {str(message["content"]) for question in questions() for message in question.messages}
    assert not any(text in learner.profile.read_text() for text in words)


def test_unconfirmed_gain_is_not_kept(learner: Learner) -> None:
    """A setting is not kept if it improves the answers only for the half of the recorded turns that was used to choose
    it.
    """
    turns = recorded(learner.folder, 30)
    own = own_questions([turns])
    chosen = {str(question.messages[-1]["content"]) for question in own.choosing}

    def good(seen: Seen, question: Question) -> bool:
        is_chosen = str(question.messages[-1]["content"]) in chosen
        return not question.calls or (seen.form == "hermes") == is_chosen

    with ScriptedModel(good) as model:
        code, printed = learner.run(model, "--from", str(turns), "--only", "form")
    assert code == 0, printed
    assert "the gain of manifest=hermes is not confirmed by the other half of the turns" in printed
    assert "the defaults are kept" in printed
    assert learner.learned()["options"] == {}
    assert learner.learned()["tuned"]["confirming_won"] == 0


@pytest.mark.extended
def test_built_in_questions_are_asked_too(learner: Learner) -> None:
    """With ``--built-in``, the built-in questions are used to choose settings, and the recorded turns to confirm the
    choice.
    """
    turns = recorded(learner.folder, 40)
    with ScriptedModel(lambda seen, question: not question.calls or seen.form == "hermes") as model:
        code, printed = learner.run(model, "--from", str(turns), "--built-in", "--only", "form")
    assert code == 0, printed
    assert learner.learned()["options"] == {"toolsim_manifest": "hermes"}


@pytest.mark.parametrize(
    ("count", "words", "problem"),
    [
        (0, ("--from", "{}"), "--from: {} contains no recorded turn without errors or warnings"),
        (13, ("--from", "{}"), "--from: too few turns in {}: 7 to choose settings and 6"),
        (0, ("--built-in",), "--built-in requires --from"),
    ],
)
def test_too_few_recorded_turns_are_an_error(
    learner: Learner, count: int, words: tuple[str, ...], problem: str
) -> None:
    """If there are too few recorded turns, ``toolsim tune`` prints one line and sends no request."""
    turns = recorded(learner.folder, count)
    with ScriptedModel() as model:
        code, printed = learner.run(model, *(word.format(turns) for word in words))
    assert (code, model.requests) == (2, 0)
    assert printed.startswith(f"toolsim tune: {problem.format(turns)}")
    assert len(printed.splitlines()) == 1
