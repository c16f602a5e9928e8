"""The three log formats, tested with mitmproxy's own terminal handler."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from mitmproxy import flowfilter
from mitmproxy.addons.termlog import TermLog
from mitmproxy.test import taddons, tflow
from toolsim.core.report import Report
from toolsim.proxy.addon import ToolSim
from toolsim.proxy.reporting.log import _NOT_OURS, Log

TURN = Report(client="chat", backend="chat", model="m", tools=["f"], calls=["f"])


class Terminal:
    """A terminal with the given encoding, to which mitmproxy's log handler writes."""

    def __init__(self, encoding: str) -> None:
        self._bytes = io.BytesIO()
        self._file = io.TextIOWrapper(self._bytes, encoding=encoding, write_through=True)
        self.addon = TermLog(self._file)

    def lines(self) -> list[str]:
        return self._bytes.getvalue().decode(self._file.encoding).splitlines()


@pytest.fixture(params=["utf-8"])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    # While this variable is set, mitmproxy's log handler is bound to the current phase of the test, such as its setup,
    # and writes nothing in later phases.
    with taddons.context(ToolSim()):
        with monkeypatch.context() as patch:
            patch.delenv("PYTEST_CURRENT_TEST")
            shown = Terminal(request.param)
        logging.getLogger().setLevel(logging.INFO)
        yield shown
        shown.addon.uninstall()
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def log(terminal: Terminal) -> Iterator[Any]:
    """Return a function that creates a log in the given format."""
    made = Log()

    def configure(form: str) -> Log:
        made.configure(form)
        return made

    yield configure
    made.restore()


def test_text_format(log: Any, terminal: Terminal) -> None:
    """In text format, each turn is logged as a single line that begins with the time. Connections are not logged."""
    made = log("text")
    logging.getLogger("mitmproxy.proxy.server").info("client connect")
    made.turn(TURN, 200, 0.25)
    [line] = terminal.lines()
    assert line.endswith("] ✓ m · chat · 1 call f · 0.2 s")


def test_failures_are_warnings(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Failed turns and turns with parse failures are logged as warnings, and all other turns at the INFO level."""
    made = log("text")
    with caplog.at_level(logging.INFO):
        for report, status in ((TURN, 200), (TURN, 502), (Report(client="chat", parse_failures=["X:f"]), 200)):
            made.turn(report, status, 0)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]


def test_json_format(log: Any, terminal: Terminal) -> None:
    """In JSON format, each turn and each message is logged as one JSON object per line. The object for an exception
    includes the traceback.
    """
    made = log("json")
    made.turn(TURN, 200, 0.25)
    made.turn(TURN, 404, 0.25, problem="näh\n")
    logging.getLogger("other").warning("two\nlines")
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("other").exception("broken")
    turn, failed, message, broken = [json.loads(line) for line in terminal.lines()]
    assert (turn["level"], turn["calls"], turn["status"], turn["seconds"]) == ("info", ["f"], 200, 0.25)
    assert (failed["level"], failed["problem"]) == ("warning", "näh\n")
    assert (message["level"], message["message"]) == ("warning", "two\nlines")
    assert broken["traceback"].endswith("ValueError: x")
    assert all(line["time"].endswith("+00:00") for line in (turn, failed, message, broken))


@pytest.mark.parametrize("form", ["text", "json"])
def test_last_lines_have_the_same_format(log: Any, terminal: Terminal, form: str) -> None:
    """mitmproxy removes its own log handler at shutdown. Later lines still have the chosen format, and each line
    appears only once.
    """
    made = log(form)
    made.restore()
    made.turn(TURN, 502, 0)
    terminal.addon.uninstall()
    made.turn(TURN, 502, 0)
    before, after = (re.sub(r"\d\d:\d\d:[\d.]+", "", line) for line in terminal.lines())
    assert before == after
    made.configure(form)
    made.turn(TURN, 502, 0)
    assert len(terminal.lines()) == 2


def test_off_logs_no_turns(log: Any, terminal: Terminal) -> None:
    """With ``toolsim_log=off``, turns are not logged, but mitmproxy's own messages still are."""
    log("text")
    made = log("off")
    made.turn(TURN, 200, 0)
    logging.getLogger("mitmproxy.proxy.server").info("client connect")
    assert [line.partition("] ")[2] for line in terminal.lines()] == ["client connect"]


@pytest.mark.parametrize("terminal", ["ascii", "cp1252"], indirect=True)
def test_unencodable_characters_are_escaped(log: Any, terminal: Terminal) -> None:
    """A character that the terminal cannot encode is escaped, so that logging never raises an exception."""
    made = log("text")
    made.turn(Report(client="chat", model="模型"), 200, 0)
    [line] = terminal.lines()
    assert r"\u6a21\u578b" in line
    assert line.endswith(" 0.0 s")


@pytest.mark.parametrize(
    ("path", "is_logged"),
    [
        ("/v1/responses", False),
        ("/v1/chat/completions?x=1", False),
        ("/toolsim/metrics", False),
        ("/toolsim/health", False),
        ("/toolsim/ready?x", False),
        ("/api/hello", False),
        ("/v1/messages", False),
        ("/v1/messages/count_tokens?beta=true", False),
        ("/v1/responses/input_tokens", False),
        ("/v1/responses/compact", False),
        ("/v1/messages/batches", True),
        (f"/v1/responses/resp_{'a' * 48}", False),
        (f"/v1/responses/resp_{'a' * 48}?stream=true&starting_after=3", False),
        (f"/v1/responses/resp_{'a' * 48}/cancel", True),
        ("/v1/conversations/conv_1", True),
        ("/page", True),
    ],
)
def test_requests_are_logged_once(path: str, is_logged: bool) -> None:
    """mitmdump does not log a request that toolsim logs itself, or that polls one of toolsim's pages."""
    flow = tflow.tflow()
    flow.request.path = path
    wanted = flowfilter.parse(_NOT_OURS)
    assert wanted is not None
    assert bool(wanted(flow)) is is_logged
