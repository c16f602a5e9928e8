"""Tests for exporting recorded turns as training data: the selection of turns, the three formats, and the removal of
secrets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.mitmdump import ROOT
from support.recording import CALL, TOOL, context, recording
from toolsim.command_line import UsageError
from toolsim.recordings.capture import dump
from toolsim.recordings.export import FORMS, main
from toolsim.recordings.stored import recorded

SECRET = "sk-proj-9fQ2xLw7Rk3Vb8Tn5Yc1Zd4Gh6Jm0Pa"
CALLED = {"id": "call_7", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rostock"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer Zebediah briefly."},
    {"role": "user", "content": "Weather in Rostock?"},
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call_7", "content": "windy"},
    {"role": "assistant", "content": "Windy."},
    {"role": "user", "content": "And in Paris?"},
]


def export(folder: Path, *words: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Export the recordings in a folder. Return the exported lines and the manifest file that describes the export."""
    out = folder / f"out{len(list(folder.iterdir()))}.jsonl"
    assert main([str(folder), "--out", str(out), *words]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return lines, json.loads(out.with_suffix(".manifest.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a recording of one valid turn whose request has a history."""
    with context():
        recording(tmp_path, messages=HISTORY)
    return tmp_path


def test_openai_form(folder: Path) -> None:
    """In the ``openai`` format, each line contains the messages and tools of a chat completions request. Call IDs are
    numbered from 1.
    """
    [line], _ = export(folder, "--form", "openai", "--keep-words")
    assert line["tools"] == [TOOL]
    roles = [message["role"] for message in line["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    first, last = line["messages"][2]["tool_calls"][0], line["messages"][-1]["tool_calls"][0]
    assert (first["id"], last["id"]) == ("call_1", "call_2")
    assert line["messages"][3] == {"role": "tool", "content": "windy", "tool_call_id": "call_1"}
    assert json.loads(last["function"]["arguments"]) == {"city": "Paris"}
    assert line["messages"][-1]["content"] is None


def test_messages_form(folder: Path) -> None:
    """In the ``messages`` format, each line contains Messages API content blocks, and the roles alternate."""
    [line], _ = export(folder, "--form", "messages", "--keep-words")
    assert line["system"] == "Answer Zebediah briefly."
    assert line["tools"] == [{"name": "get_weather", "input_schema": TOOL["function"]["parameters"]}]  # type: ignore[index]
    assert [message["role"] for message in line["messages"]] == ["user", "assistant"] * 3
    assert line["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "call_1", "content": "windy"}]
    assert line["messages"][-1]["content"] == [
        {"type": "tool_use", "id": "call_2", "name": "get_weather", "input": {"city": "Paris"}}
    ]


def test_hermes_form(folder: Path) -> None:
    """In the ``hermes`` format, each line contains only text. The first message lists the tools, and tags enclose calls
    and outputs.
    """
    [line], _ = export(folder, "--form", "hermes", "--keep-words")
    said = line["conversations"]
    assert [part["from"] for part in said] == ["system", "human", "gpt", "tool", "gpt", "human", "gpt"]
    assert json.dumps(TOOL) in said[0]["value"]
    assert said[3]["value"] == '<tool_response>\n{"name": "get_weather", "content": "windy"}\n</tool_response>'
    assert said[-1]["value"] == '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize("form", FORMS)
def test_planted_secret_is_not_exported(tmp_path: Path, form: str) -> None:
    """Neither the exported lines nor the manifest file contain a secret, even if someone has added it to a
    recording.
    """
    messages = [{"role": "user", "content": f"My key is KEY, my password: hunter2. {CALL}"}]
    with context():
        good = recording(tmp_path, messages=messages)
        bad = recording(tmp_path, messages=messages, text="<tool_call>{KEY</tool_call>")
    for path in (good, bad):
        sides = recorded(path)
        for side in sides:
            for message in (side.request, side.response):
                assert message is not None
                message.raw_content = (message.raw_content or b"").replace(b"KEY", SECRET.encode())
        sides[1].metadata["toolsim"]["error"] = f"{SECRET}: no" if path == bad else None
        path.write_bytes(dump(sides))
    for words in ([], ["--keep-words"]):
        lines, manifest = export(tmp_path, "--form", form, *words)
        assert len(lines) == 1
        written = json.dumps([lines, manifest])
        assert SECRET not in written
        assert SECRET[8:20] not in written
        assert manifest["left_out"] == [{"recording": bad.name, "reason": "the answer failed"}]
        assert ("My key" in written) == bool(words)
    everything = "".join(path.read_text() for path in tmp_path.glob("out*"))
    assert SECRET not in everything


def test_pseudonyms_are_consistent(folder: Path) -> None:
    """By default, all words in a conversation are replaced with pseudonyms. Each word always has the same pseudonym."""
    with context():
        recording(folder, messages=[{"role": "user", "content": "Paris, please!"}])
    lines, manifest = export(folder)
    written = json.dumps(lines)
    for word in ("Zebediah", "Rostock", "Paris", "Windy"):
        assert word.lower() not in written.lower()
    city = json.loads(lines[0]["messages"][-1]["tool_calls"][0]["function"]["arguments"])["city"]
    assert city in lines[0]["messages"][-2]["content"]
    assert city in lines[1]["messages"][0]["content"]
    assert lines[0]["messages"][-1]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert manifest["words"] == "pseudonyms"


def test_only_valid_turns_are_exported(tmp_path: Path) -> None:
    """Only valid turns are exported. The manifest file contains the reason for each excluded recording."""
    strict = {
        "type": "function",
        "function": {
            **TOOL["function"],
            "parameters": {  # type: ignore[dict-item]
                "type": "object",
                "properties": {"city": {"enum": ["Bonn"]}},
            },
        },
    }
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]
    with context():
        expected = {
            recording(tmp_path, text="Let me think. <tool_call>{</tool_call>").name: "a call could not be parsed",
            recording(tmp_path, text="").name: "the answer is empty",
            recording(tmp_path, tools=[strict]).name: "a call violated its schema",
            recording(tmp_path, messages=image).name: "the turn contains images or files",
            recording(tmp_path, tools=[]).name: "no tool was on offer",
        }
        good = recording(tmp_path).name
        expected[recording(tmp_path).name] = "the turn duplicates another recording"
    (tmp_path / "cut.flow").write_bytes((tmp_path / good).read_bytes()[:100])
    lines, manifest = export(tmp_path)
    assert len(lines) == 1
    assert manifest["lines"] == [good]
    found = {entry["recording"]: entry["reason"] for entry in manifest["left_out"]}
    assert found.pop("cut.flow") == "the file is not a complete recording"
    assert {name: found[name] for name in expected} == expected
    assert sum(manifest["reasons"].values()) == len(expected) + 1


@pytest.mark.parametrize("form", FORMS)
def test_recordings_of_real_clients_can_be_exported(form: str, tmp_path: Path) -> None:
    """Recordings of real clients can be exported. A chat template can render the lines in the ``openai`` format."""
    out = tmp_path / "real.jsonl"
    assert main([str(ROOT / "flows"), "--form", form, "--out", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) > 10
    assert {tuple(line) for line in lines} <= {
        ("messages", "tools"),
        ("system", "messages", "tools"),
        ("conversations",),
    }
    if form == "openai":
        jinja2 = pytest.importorskip("jinja2")
        template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(TEMPLATE)
        for line in lines:
            text = template.render(**line)
            for message in line["messages"]:
                for call in message.get("tool_calls", ()):
                    assert f'"name": "{call["function"]["name"]}"' in text


TEMPLATE = """
{%- for tool in tools %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls | default([]) %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
"""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["{empty}"], "no .flow file in {empty}"),
        (["{bad}"], "no turns to export in {bad} (1 × the answer failed)"),
        (["{good}", "--out", "{good}"], "--out: {good} already exists"),
        (["{good}", "--out", "{good}/none/x.jsonl"], "--out: {good}/none/x.jsonl: No such file"),
    ],
)
def test_invalid_input_is_one_line(
    words: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid arguments cause a one-line error, and no files are written."""
    monkeypatch.chdir(tmp_path)
    folders = {name: str(tmp_path / name) for name in ("empty", "bad", "good")}
    for name in folders.values():
        Path(name).mkdir()
    with context():
        recording(tmp_path / "good")
        path = recording(tmp_path / "bad")
    backend, client = recorded(path)
    client.metadata["toolsim"]["error"] = "backend_truncated"
    path.write_bytes(dump([backend, client]))
    with pytest.raises(UsageError) as raised:
        main([word.format(**folders) for word in words])
    assert str(raised.value).startswith(problem.format(**folders))
    assert "\n" not in str(raised.value)
    assert list(tmp_path.rglob("*.json*")) == []


def test_unknown_form_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The error for an unknown export format quotes its name and lists the available formats."""
    with pytest.raises(SystemExit):
        main(["DIR", "--form", "alpaca"])
    assert "no such --form: alpaca; expected one of openai, messages, hermes" in capsys.readouterr().err
