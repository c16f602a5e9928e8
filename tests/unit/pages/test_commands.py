import json

import pytest
from mitmproxy.addons import view as flow_list
from mitmproxy.exceptions import CommandError
from mitmproxy.http import HTTPFlow, Request, Response
from mitmproxy.test import taddons, tflow
from mitmproxy.types import CommandTypes
from toolsim.pages.commands import Inspect
from toolsim.proxy.recorder import BodyRecorder

MESSAGES = [
    {"role": "system", "content": "Be terse."},
    {"role": "assistant", "content": "[function_call id=a call_id=call_001 name=f arguments={}]"},
    {"role": "user", "content": '[function_call_output call_id=call_001 output="one\\ntwo"]'},
]
CALLS = [
    {"id": "call_002", "function": {"name": "f", "arguments": '{"a":1}'}},
    {"id": "call_003", "type": "custom", "custom": {"name": "patch", "input": "***"}},
]


def exchanged(**report: object) -> HTTPFlow:
    flow = tflow.tflow()
    flow.request = Request.make("POST", "http://b/v1/chat/completions", json.dumps({"messages": MESSAGES}))
    flow.backup()
    flow.response = Response.make(200, json.dumps({"choices": [{"message": {"tool_calls": CALLS}}]}))
    flow.metadata["toolsim"] = {"status": 200, "seconds": 1.0, **report}
    recorder = BodyRecorder()
    recorder.whole(Response.make(200, json.dumps({"choices": [{"message": {"content": "as written"}}]})))
    recorder.store_in(flow)
    return flow


@pytest.fixture
def tctx():
    with taddons.context(flow_list.View(), Inspect()) as tctx:
        yield tctx


def run(tctx, command: str) -> list[list[str]]:
    """Run a command as if the user had typed it in mitmproxy's console or in mitmweb's command bar. Return the rows of
    the table that the command shows.
    """
    table = tctx.master.commands.execute(command)
    return [list(row) for row in table]


def add(tctx, *flows: HTTPFlow) -> None:
    tctx.master.addons.get("view").add(flows)


def test_calls(tctx):
    """``toolsim.calls`` shows a row for each call, with the turn, the tool name, the call ID and the arguments. Flows
    that are not exchanges have no rows.
    """
    add(tctx, exchanged(place="#1 turn 2"), tflow.tflow(resp=True), tflow.ttcpflow())
    assert run(tctx, "toolsim.calls @all") == [
        ["turn", "tool", "id", "arguments"],
        ["#1 turn 2", "f", "call_002", '{"a":1}'],
        ["#1 turn 2", "patch", "call_003", "***"],
    ]


def test_transcript(tctx):
    """``toolsim.transcript`` shows earlier messages, calls and outputs. Its last row contains the model's answer."""
    add(tctx, exchanged())
    assert run(tctx, "toolsim.transcript @focus") == [
        ["system", "Be terse."],
        ["call", "→ f   call_001\n{}"],
        ["output", "← call_001\none\ntwo"],
        ["assistant", "as written"],
    ]


def test_transcript_without_the_backends_answer(tctx):
    """If the backend's answer was not stored, the transcript shows the answer that the client received. An error has a
    row as well.
    """
    flow, refused = exchanged(), exchanged()
    flow._backup = refused._backup = None
    refused.response = Response.make(429, b'{"error":{"message":"Slow down."}}')
    add(tctx, flow, refused)
    rows = run(tctx, "toolsim.transcript @all")
    assert ["call", '→ f   call_002\n{"a":1}'] in rows
    assert rows[-1] == ["error", "Slow down."]


def test_outcomes_are_counted(tctx):
    """``toolsim.stats`` counts exchanges by outcome, and failures, repairs and warnings by code, regardless of the
    tool.
    """
    add(
        tctx,
        exchanged(calls=["f", "f", "g"], repairs=["TRAILING_COMMA:f"], seconds=2.0),
        exchanged(parse_failures=["UNKNOWN_TOOL:x", "UNKNOWN_TOOL:y"], tool_cutoff="2 calls"),
        exchanged(error="backend_truncated", warnings=["DUPLICATE_CALL:f"]),
        exchanged(status=429),
        exchanged(status=None, error="aborted", strict_failures="broken file"),
        tflow.tflow(resp=True),
    )
    assert run(tctx, "toolsim.stats @all") == [
        ["call", "f", "2"],
        ["call", "g", "1"],
        ["ended early", "2 calls", "1"],
        ["exchange", "aborted", "1"],
        ["exchange", "failed: HTTP 429", "1"],
        ["exchange", "failed: backend_truncated", "1"],
        ["exchange", "ok", "2"],
        ["parse failure", "UNKNOWN_TOOL", "2"],
        ["repair", "TRAILING_COMMA", "1"],
        ["warning", "DUPLICATE_CALL", "1"],
        ["seconds", "mean", "1.200"],
        ["seconds", "most", "2.000"],
    ]


@pytest.mark.parametrize("name", ["toolsim.calls", "toolsim.transcript", "toolsim.stats"])
def test_completion(tctx, name):
    """mitmproxy can complete the names of toolsim's commands, and offers flow filters as their argument."""
    command = tctx.master.commands.commands[name]
    assert command.help
    assert command.signature_help() == f"{name} flows -> data[][]"
    parts, _ = tctx.master.commands.parse_partial(f"{name} @")
    assert parts[0].valid
    kind = command.parameters[0].type
    offered = CommandTypes.get(kind).completion(tctx.master.commands, kind, "@")
    assert {"@all", "@focus", "@marked"} <= set(offered)


@pytest.mark.parametrize("name", ["toolsim.calls", "toolsim.transcript", "toolsim.stats"])
def test_empty_result_is_an_error(tctx, name):
    """A command raises an error if it finds no turn, because an empty table would crash the console."""
    add(tctx, tflow.tflow(resp=True))
    with pytest.raises(CommandError, match="contain nothing to show"):
        run(tctx, f"{name} @all")
