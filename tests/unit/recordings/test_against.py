"""Tests for replaying recorded turns with another model, with a real proxy and all three APIs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients.cases import call
from support.recording import context, recording
from support.text_backend import Exchange, TextBackend, Turn, refuses, says
from toolsim.command_line import UsageError
from toolsim.recordings.child import Child, in_front_of
from toolsim.recordings.replay import main

pytestmark = pytest.mark.slow

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"type": "string", "default": "C"}},
    "required": ["city"],
}
CHAT = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
FLAT = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
OWN = {"name": "get_weather", "input_schema": PARAMETERS}
BONN, PARIS = call("get_weather", {"city": "Bonn"}), call("get_weather", {"city": "Paris"})

# For each question, the text that the recorded model writes, and the text that the other model writes.
TURNS: dict[str, tuple[str, str]] = {
    "the same": (BONN, BONN),
    "another value": (PARIS, BONN),
    "a type": (call("get_weather", {"city": "Bonn", "days": 3}), call("get_weather", {"city": "Bonn", "days": "3"})),
    "a default": (BONN, call("get_weather", {"unit": "C", "city": "Bonn"})),
    "another order": (f"{BONN}\n{PARIS}", f"{PARIS}\n{BONN}"),
    "one too few": (f"{BONN}\n{PARIS}", PARIS),
    "no call": (BONN, "It may rain."),
    "a misfit": (BONN, call("get_weather", {"days": 3})),
    "unreadable": (BONN, '<tool_call>{"name": "get_weather", "arguments": {"city: }</tool_call>'),
    "words": ("Hello.", "Good morning."),
    "needless": ("Hello.", BONN),
    "silence": ("Hello.", " "),
}
FAILED = "the tool failed"


def written(number: int) -> Any:
    """Return a rule that answers each question in ``TURNS`` like the recorded model (0) or like the other model (1)."""

    def answer(exchange: Exchange) -> Turn:
        prompt = "\n".join(text for role, text in exchange.transcript if role == "user")
        if "no such city" in prompt:
            return says((PARIS, BONN)[number])
        return says(next(texts[number] for asked, texts in TURNS.items() if f"about {asked}" in prompt))

    return answer


def ask(url: str, words: str, number: int) -> None:
    """Send a question to a proxy. ``number`` determines the API, and whether the answer is streamed."""
    messages = [{"role": "user", "content": f"about {words}"}]
    stream = number % 2 == 0
    requests: list[tuple[str, dict[str, Any]]] = [
        ("chat/completions", {"messages": messages, "tools": [CHAT]}),
        ("responses", {"input": messages, "tools": [FLAT]}),
        ("messages", {"messages": messages, "tools": [OWN], "max_tokens": 100}),
    ]
    path, body = requests[number % 3]
    answer = httpx.post(f"{url}/{path}", json={"model": "recorded", "stream": stream, **body}, timeout=60)
    assert answer.status_code == 200, answer.text


def ask_after_an_error(url: str) -> None:
    """Send a request whose history contains a tool output that reports an error."""
    made = {"id": "call_001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bnn"}'}}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_001", "content": '{"error": "no such city"}'},
    ]
    body = {"model": "recorded", "messages": messages, "tools": [CHAT]}
    assert httpx.post(f"{url}/chat/completions", json=body, timeout=60).status_code == 200


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record one turn for each question, and return the folder with the recordings."""
    folder, own = tmp_path_factory.mktemp("recordings"), tmp_path_factory.mktemp("proxies")
    with TextBackend(written(0)) as backend:
        settings = [f"toolsim_capture={folder}", f"toolsim_upstream={backend.url}/v1", "toolsim_backend=chat"]
        child = Child(in_front_of(backend.url), settings, own / "proxy")
        for number, words in enumerate(TURNS):
            ask(f"http://127.0.0.1:{child.port}/v1", words, number)
        ask_after_an_error(f"http://127.0.0.1:{child.port}/v1")
        child.stop()
    assert len(list(folder.glob("*.flow"))) == len(TURNS) + 1
    return folder


def report_of(session: Path, out: Path, url: str, *more: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    """Replay the recordings with the model at ``url``. Return the exit code, the report, and the turns by file name."""
    code = main([str(session), "--against", f"{url}/v1", "--out", str(out), "--set", "toolsim_backend=chat", *more])
    turns = [json.loads(line) for line in (out / "turns.jsonl").read_text().splitlines()]
    return code, json.loads((out / "report.json").read_text()), {turn["file"]: turn for turn in turns}


def asked(session: Path) -> dict[str, str]:
    """Map the file name of each recording to its question."""
    found = {}
    for file in session.glob("*.flow"):
        words = re.search(rb"about ([a-z ]+)\"", file.read_bytes())
        found[file.name] = words[1].decode() if words else FAILED
    return found


def test_exactly_the_known_differences_are_reported(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replay reports exactly the expected differences. It does not run tools, and queries the other model once per
    turn.
    """
    with TextBackend(written(1)) as other:
        code, report, turns = report_of(session, tmp_path / "out", other.url, "--model", "other")
        assert len(other.exchanges) == len(TURNS) + 1
        assert {exchange.body["model"] for exchange in other.exchanges} == {"other"}
    assert code == 0
    outcomes = {asked(session)[name]: (turn["outcome"], turn["differences"]) for name, turn in turns.items()}
    shown = {words: f"{outcome}: {'; '.join(found)}" for words, (outcome, found) in outcomes.items()}
    assert shown == {
        "the same": "same: ",
        "another value": 'different: get_weather.city: got "Bonn", expected "Paris"',
        "a type": "same: ",
        "a default": "same: ",
        "another order": "different: the same calls in another order: "
        'got get_weather({"city":"Paris","unit":"C"}), get_weather({"city":"Bonn","unit":"C"}); '
        'expected get_weather({"city":"Bonn","unit":"C"}), get_weather({"city":"Paris","unit":"C"})',
        "one too few": 'different: got no call of get_weather({"city":"Bonn","unit":"C"})',
        "no call": "none: got no call, expected get_weather",
        "a misfit": "invalid: get_weather: " + outcomes["a misfit"][1][0].partition(": ")[2],
        "unreadable": "invalid: a call that cannot be parsed: MALFORMED_JSON",
        "words": "same: ",
        "needless": "different: got a call of get_weather, expected a text answer",
        "silence": "none: got an empty answer",
        FAILED: 'different: get_weather.city: got "Bonn", expected "Paris"',
    }
    assert "city" in outcomes["a misfit"][1][0]
    counts = {"same": 4, "different": 5, "invalid": 2, "none": 2, "error": 0}
    assert report["outcomes"] == counts
    assert {kind: sum(own.values()) for kind, own in report["kinds"].items()} == {
        "call wanted": 9,
        "answer wanted": 3,
        "after an error": 1,
    }
    assert report["tools"]["get_weather"] == {"same": 3, "different": 5, "invalid": 2, "none": 1, "error": 0}
    output = capsys.readouterr().out
    assert "4 of 13 turns are the same." in output
    assert "Agreement is a lower bound" in output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Agreement is a lower bound" in page
    assert page.count("<details><summary>") == 9
    assert "<script" not in page


def test_failing_backend_stops_the_replay(session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After three consecutive errors, the replay stops with a one-line error. The report covers the turns that have
    been replayed.
    """

    def answer(exchange: Exchange) -> Turn:
        return says(BONN) if len(other.exchanges) <= 4 else refuses(500, "Out of memory.")

    with TextBackend(answer) as other:
        code, report, turns = report_of(session, tmp_path / "out", other.url)
    assert code == 1
    assert report["outcomes"]["error"] == 3
    assert len(turns) == 7
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        "toolsim replay: ended early, after 7 of 13 turns: the backend returned 3 errors in a row: "
        "HTTP 500: Out of memory."
    )
    assert "Ended early" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["{empty}", "--against", "http://127.0.0.1:9/v1"], "no .flow file in {empty}"),
        (["{broken}", "--against", "http://127.0.0.1:9/v1"], "no usable recorded turn in {broken}"),
        (["{one}", "--against", "127.0.0.1:9/v1"], "--against: got '127.0.0.1:9/v1', expected a URL"),
        (["{one}", "--against", "http://127.0.0.1:9/v1", "--update"], "--update cannot be used with --against"),
        (["{one}", "--against", "http://127.0.0.1:9/v1", "--key-env", "NO_SUCH"], "--key-env: the environment"),
        (["{one}", "--against", "http://127.0.0.1:9/v1", "--out", "{one}"], "--out: {one} already exists"),
        (["{one}", "--model", "m"], "--model requires --against"),
    ],
)
def test_invalid_input_is_one_line(words: list[str], problem: str, tmp_path: Path) -> None:
    """Invalid arguments cause a one-line error before any request is sent or any file is written."""
    folders = {name: str(tmp_path / name) for name in ("empty", "broken", "one")}
    for folder in folders.values():
        Path(folder).mkdir()
    with context():
        whole = recording(tmp_path / "one")
    (tmp_path / "broken" / "a.flow").write_bytes(whole.read_bytes()[:200])
    with pytest.raises(UsageError) as raised:
        main([word.format(**folders) for word in words])
    assert str(raised.value).startswith(problem.format(**folders))
    assert "\n" not in str(raised.value)


def test_unknown_option_is_reported(session: Path, tmp_path: Path) -> None:
    """An unknown option causes an error before any request is sent."""
    with pytest.raises(UsageError, match="toolsim_manifes: no such option"):
        report_of(session, tmp_path / "out", "http://127.0.0.1:9", "--set", "toolsim_manifes=x")
